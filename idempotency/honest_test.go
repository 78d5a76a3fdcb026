package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// A function that says ROLLBACK in SQL has no effect, and must have no receipt that says SUCCESS.
func TestABusinessFunctionThatRollsBackInSQLHasNoReceipt(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"} {
		s := open(t)
		got, err := s.Do(t.Context(), call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
			if _, err := charge("")(ctx, tx); err != nil {
				return nil, err
			}
			_, err := tx.ExecContext(ctx, end)
			return json.RawMessage(`"paid"`), err
		})
		if err == nil || s.effects(t)+s.count(t, `SELECT count(*) FROM idempotency.keys`)+s.count(t, `SELECT count(*) FROM idempotency.receipts`) != 0 {
			t.Errorf("%s: %+v, %v, and something is left", end, got, err)
		}
	}
}

// EUC_JP keeps U+00A6 as U+FFE4: the bytes that were sent and those that the database digests differ.
func TestAKeyIsOneKeyInADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	s := open(t)
	name := fmt.Sprint("guard_eucjp_", time.Now().UnixNano())
	s.db.MustExec(`CREATE DATABASE ` + name + ` TEMPLATE template0 ENCODING 'EUC_JP' LC_COLLATE 'C' LC_CTYPE 'C'`)
	u, err := url.Parse(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	db := testdb.Open(t, u.String())
	defer func() { _ = db.Close(); s.db.MustExec(`DROP DATABASE ` + name + ` WITH (FORCE)`) }()
	if _, err := migrations.Downstream.Up(t.Context(), db.DB); err != nil {
		t.Fatal(err)
	}
	db.MustExec(`CREATE TABLE effects (biz_id text NOT NULL)`)
	g := s.guard(t, db)
	for i := range 2 {
		if _, err := g.Do(t.Context(), call(as(fmt.Sprint("C", i), 1), func(r *idempotency.Request) { r.BizID = "A\u00a67"; r.Hash = nil }), charge("1")); err != nil {
			t.Fatal(err)
		}
	}
	var n int
	if err := db.Get(&n, `SELECT count(*) FROM effects`); err != nil || n != 1 {
		t.Errorf("%d effects of one key, %v", n, err)
	}
}

// Prepared on every connection for ever: a type of the table must not be a type of the answer.
func TestAnArrivalOutlivesAColumnOfAnotherPrecision(t *testing.T) {
	t.Parallel()
	s := open(t)
	db := testdb.Open(t, s.dsn)
	db.SetMaxOpenConns(1)
	g := s.guard(t, db)
	for i, ddl := range []string{`SELECT`, `ALTER TABLE idempotency.claims ALTER COLUMN created_at TYPE timestamptz(3)`} {
		s.db.MustExec(ddl)
		biz := fmt.Sprint("B", i)
		if _, err := g.Do(t.Context(), call(as(biz, 1), func(r *idempotency.Request) { r.BizID = biz }), charge("1")); err != nil {
			t.Error(err)
		}
	}
}

func TestASchemaThatIsOlderThanTheLibrarySaysSo(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.db.MustExec(`DROP FUNCTION idempotency.key_lock`)
	if _, err := s.Do(t.Context(), call(), never(t)); err == nil || !strings.Contains(err.Error(), "migrate up --for downstream") {
		t.Errorf("%v", err)
	}
}
