package pending_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func TestParkingACallTwiceIsOneRow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for i, want := range []bool{true, false, false} {
		parked, err := pending.Suspend(t.Context(), db, suspension("C1", func(s *pending.Suspension) { s.Attempt = i + 1 }))
		if parked != want || err != nil {
			t.Errorf("parking it for the %d. time: %v %v, want %v", i+1, parked, err, want)
		}
	}
	if c := read(t, db, "C1")[0]; c.Attempt != 1 || c.Version != 0 {
		t.Errorf("the row was changed: attempt %d, version %d", c.Attempt, c.Version)
	}
}

func TestParkingASettledCallAgainLeavesItSettled(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "biz_id='B1'", "status='SUCCESS'")
	if parked, err := pending.Suspend(t.Context(), db, suspension("C1")); parked || err != nil {
		t.Errorf("parked %v, %v", parked, err)
	}
	if c := read(t, db, "C1")[0]; c.Status != pending.StatusSuccess {
		t.Errorf("it is %s", c.Status)
	}
}

func TestOneCallIdForTwoBusinessFactsIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	if _, err := pending.Suspend(t.Context(), db, suspension("C1")); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*pending.Suspension){
		"bizId":     func(s *pending.Suspension) { s.BizID = "B2" },
		"tool":      func(s *pending.Suspension) { s.Tool = "payment.refund" },
		"operation": func(s *pending.Suspension) { s.Operation = "refund" },
		"key":       func(s *pending.Suspension) { s.IdempotencyKey = "B1:charge:second" },
	} {
		parked, err := pending.Suspend(t.Context(), db, suspension("C1", edit))
		if parked || !errors.Is(err, pending.ErrOtherCall) || !strings.Contains(err.Error(), `"C1"`) {
			t.Errorf("another %s: %v %v", name, parked, err)
		}
	}
}

func TestAParkedCallGoesWithTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for id, keep := range map[string]bool{"kept": true, "dropped": false} {
		tx := db.MustBegin()
		if parked, err := pending.Suspend(t.Context(), tx, suspension(id)); !parked || err != nil {
			t.Fatalf("%s: %v %v", id, parked, err)
		}
		end := tx.Rollback
		if keep {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if n := value[int](t, db, `SELECT count(*) FROM reconciler.pending_confirmations WHERE call_id = $1`, id); n == 1 != keep {
			t.Errorf("%s: %d rows", id, n)
		}
	}
}

func TestWhatTheCallerLeavesOutHasADefault(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tx := db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	if _, err := pending.Suspend(t.Context(), tx, pending.Suspension{CallID: "C1", BizID: "B1", Tool: tool, Operation: "charge"}); err != nil {
		t.Fatal(err)
	}
	got := value[string](t, tx, `SELECT concat_ws(' ', attempt, idempotency_key, status, request IS NULL, timeout_kind IS NULL, issued_at = now())
		FROM reconciler.pending_confirmations`)
	if want := "1 B1:charge PENDING t t t"; got != want {
		t.Errorf("defaults %q, want %q", got, want)
	}
	// now() is when the transaction began, perhaps before the call went out, and nothing may be sent again too soon after that.
	if !value[bool](t, tx, `SELECT last_sent_at > now() AND last_sent_at <= clock_timestamp() FROM reconciler.pending_confirmations`) {
		t.Error("last_sent_at is not the moment at which it was parked")
	}
}

func TestWhatTheCallerSaysIsStored(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	at := time.Date(2024, 5, 1, 18, 0, 0, 123456000, time.FixedZone("CST", 8*3600))
	s := suspension("C1", func(s *pending.Suspension) {
		s.IdempotencyKey, s.Attempt, s.IssuedAt, s.LastSentAt = "K", 3, at, at.Add(time.Minute)
		s.TimeoutKind = pending.TimeoutRead
	})
	if _, err := pending.Suspend(t.Context(), db, s); err != nil {
		t.Fatal(err)
	}
	r, err := pending.NewStore(db).Find(t.Context(), "C1")
	if err != nil {
		t.Fatal(err)
	}
	if r.IdempotencyKey != "K" || r.Attempt != 3 || !r.IssuedAt.Equal(at) || !r.LastSentAt.Equal(at.Add(time.Minute)) ||
		r.TimeoutKind == nil || *r.TimeoutKind != "read" || !r.HasRequest {
		t.Errorf("stored %+v", r)
	}
}

func TestALargeRequestIsStoredWhole(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	request := `{"text": "` + strings.Repeat("x", 1<<20) + `"}`
	if _, err := pending.Suspend(t.Context(), db, suspension("C1", func(s *pending.Suspension) { s.Request = json.RawMessage(request) })); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, db, `SELECT request FROM reconciler.pending_confirmations`); got != request {
		t.Errorf("%d bytes came back of %d", len(got), len(request))
	}
}

func TestACallThatCannotBeStoredIsRefusedWithAReasonAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	request := func(text string) func(*pending.Suspension) {
		return func(s *pending.Suspension) { s.Request = json.RawMessage(text) }
	}
	for _, tt := range []struct {
		name, says string
		edit       func(*pending.Suspension)
	}{
		{"a list as request", "request_is_an_object", request(`[1]`)},
		{"null as request", "request_is_an_object", request(`null`)},
		{"a broken request", "invalid input syntax for type json", request(`{"a":`)},
		{"two documents", "invalid input syntax for type json", request(`{} {}`)},
		{"a NUL in the request", "unsupported Unicode escape sequence", request(`{"a":"\u0000"}`)},
		{"a NUL in the callId", "invalid byte sequence", func(s *pending.Suspension) { s.CallID = "C\x001" }},
		{"a NUL in the bizId", "invalid byte sequence", func(s *pending.Suspension) { s.BizID = "B\x001" }},
		{"invalid UTF-8", "invalid byte sequence", func(s *pending.Suspension) { s.CallID = "C\xff1" }},
		{"a line break", "call_id_is_short_and_plain", func(s *pending.Suspension) { s.CallID = "C\n1" }},
		{"no callId", "call_id_is_short_and_plain", func(s *pending.Suspension) { s.CallID = "" }},
		{"201 bytes", "call_id_is_short_and_plain", func(s *pending.Suspension) { s.CallID = strings.Repeat("c", 201) }},
		{"no bizId", "biz_id_is_bounded", func(s *pending.Suspension) { s.BizID = "" }},
		{"no tool", "tool_is_bounded", func(s *pending.Suspension) { s.Tool = "" }},
		{"no operation", "operation_is_bounded", func(s *pending.Suspension) { s.Operation = "" }},
		{"an unknown kind of time-out", "timeout_kind_is_known", func(s *pending.Suspension) { s.TimeoutKind = "late" }},
	} {
		s := suspension("C1", tt.edit)
		parked, err := pending.Suspend(t.Context(), db, s)
		if parked || err == nil || !strings.Contains(err.Error(), tt.says) || strings.ContainsAny(err.Error(), "\x00\n") {
			t.Errorf("%s: %v, %v", tt.name, parked, err)
		}
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.pending_confirmations`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}
