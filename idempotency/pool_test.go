package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/eventually"
)

// The first arrivals of all prepare the guard's statements, for which each needs a connection.
func TestAnArrivalThatGetsNoConnectionEndsWithItsContextWhoeverElseWaits(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.db.SetMaxOpenConns(1)
	held := s.db.MustBegin()
	patient := s.background(t.Context(), call(), charge("1"))
	eventually.True(t, "the first arrival waits for a connection", func() bool { return s.db.Stats().WaitCount > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	hasty := s.background(ctx, call(as("B1-0002", 1)), charge("1"))
	cancel()
	if got := soon(t, hasty); !errors.Is(got.err, context.Canceled) {
		t.Errorf("%+v", got)
	}
	if err := held.Rollback(); err != nil {
		t.Fatal(err)
	}
	if got := soon(t, patient); got.err != nil {
		t.Error(got.err)
	}
}

func TestAFunctionThatEndsTheTransactionIsToldSo(t *testing.T) {
	t.Parallel()
	s := open(t)
	for what, end := range map[string]func(*sqlx.Tx) error{"COMMIT": (*sqlx.Tx).Commit, "ROLLBACK": (*sqlx.Tx).Rollback} {
		r := call(func(r *idempotency.Request) { r.BizID, r.CallID = what, what })
		got, err := s.Do(t.Context(), r, func(_ context.Context, tx *sqlx.Tx) (json.RawMessage, error) { return nil, end(tx) })
		if err == nil || got.Status != "" || !strings.Contains(err.Error(), "ended the transaction itself") {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}
