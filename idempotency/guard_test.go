package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/receipt"
)

func TestEveryRepeatGetsTheFirstResultByteForByte(t *testing.T) {
	t.Parallel()
	s := open(t)
	for i, result := range []string{
		`{"ref":"x"}`, `{"b": 1,  "a":1.50}`, "[1,\n\t 2 ]", `123456789012345678901234567890.10e+5`, `"\u00e9\/\ud83d\ude00é"`, `null`, `""`, `-0.0e-0`,
		`{"deep":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}`,
	} {
		r := call(func(r *idempotency.Request) { r.BizID, r.CallID = fmt.Sprint("B", i), fmt.Sprint("B", i, "-0001") })
		first := s.must(t, r, charge(" \n"+result+"\t\r\n"))
		if string(first.Result) != result || first.Status != receipt.StatusSuccess || first.Attempt != 1 || first.ProcessedAt.IsZero() {
			t.Errorf("%s came back as %+v", result, first)
		}
		if again := s.must(t, r, never(t)); wire(t, again) != wire(t, first) {
			t.Errorf("the repeat of %s differs: %s and %s", result, wire(t, first), wire(t, again))
		}
		r.Attempt = 2
		if again := s.must(t, r, never(t)); string(again.Result) != result || again.Attempt != 2 || !again.ProcessedAt.Equal(first.ProcessedAt) {
			t.Errorf("attempt 2 of %s: %+v", result, again)
		}
		r.CallID, r.Attempt = r.BizID+"-0002", 1
		if again := s.must(t, r, never(t)); string(again.Result) != result || again.CallID != r.CallID || !again.ProcessedAt.Equal(first.ProcessedAt) {
			t.Errorf("under a changed callId, %s: %+v", result, again)
		}
		if n := s.count(t, `SELECT count(*) FROM idempotency.receipts WHERE biz_id = $1 AND status = 'SUCCESS' AND result::text = $2`, r.BizID, result); n != 2 {
			t.Errorf("%d receipts of %s", n, result)
		}
	}
	if n := s.effects(t); n != 9 {
		t.Errorf("%d effects of 9 intents", n)
	}
}

func TestNoResultIsNoResult(t *testing.T) {
	t.Parallel()
	s := open(t)
	first, again := s.must(t, call(), charge("")), s.must(t, call(), never(t))
	if first.Result != nil || wire(t, first) != wire(t, again) || strings.Contains(wire(t, first), "result") {
		t.Errorf("%s and %s", wire(t, first), wire(t, again))
	}
}

func TestAResultThatNobodyCouldReadIsAnErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	s := open(t)
	for name, result := range map[string]string{
		"cut off": `{"a":`, "two values": `1 2`, "closes the receipt": `1,"status":"FAILED"`, "a name twice": `{"a":1,"a":2}`, "a NUL": `"\u0000"`,
		"a lone surrogate": `"\ud800"`, "white space only": "  ", "invalid UTF-8": "\"\xff\"", "too deep": strings.Repeat("[", 64) + strings.Repeat("]", 64),
		"too large": `"` + strings.Repeat("x", 256<<10) + `"`,
		// It fits into the receipt of this call, and not into that of a later attempt or of a longer callId.
		"too large for another call": `"` + strings.Repeat("x", 256<<10-200) + `"`,
	} {
		got, err := s.Do(t.Context(), call(), charge(result))
		if err == nil || !strings.Contains(err.Error(), "B1-0001") || len(err.Error()) > 500 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if _, err = s.Do(t.Context(), call(), refuse(result)); err == nil {
			t.Errorf("%s was taken as a refusal", name)
		}
		s.nothing(t, name)
	}
}

func TestWhatMayNotBeExecutedIsToldApart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(*shop)
		edit   func(*idempotency.Request)
		want   error
	}{
		"another payload":   {edit: func(r *idempotency.Request) { r.Hash = []byte("other") }, want: idempotency.ErrOtherPayload},
		"another bizId":     {edit: func(r *idempotency.Request) { r.IdempotencyKey, r.BizID = "B1:charge", "B2" }, want: idempotency.ErrOtherPayload},
		"another operation": {edit: func(r *idempotency.Request) { r.IdempotencyKey, r.Operation = "B1:charge", "refund" }, want: idempotency.ErrOtherPayload},
		"the callId of another intent": {
			edit: func(r *idempotency.Request) { r.BizID = "B2" }, want: idempotency.ErrOtherPayload,
		},
		"the callId of another intent, which was executed too": {
			before: func(s *shop) {
				s.must(t, call(as("B2-0001", 1), func(r *idempotency.Request) { r.BizID = "B2" }), charge("1"))
			},
			edit: func(r *idempotency.Request) { r.BizID = "B2" }, want: idempotency.ErrOtherPayload,
		},
		"issued in the future": {edit: func(r *idempotency.Request) { r.IssuedAt = time.Now().Add(6 * time.Minute) }, want: idempotency.ErrIssuedInFuture},
		"a new key issued below the watermark": {
			before: func(s *shop) { s.db.MustExec(`INSERT INTO idempotency.watermarks VALUES ('idempotency.keys', now())`) },
			edit:   func(r *idempotency.Request) { r.BizID, r.CallID = "B2", "B2-0001" }, want: idempotency.ErrExpired,
		},
		"a key whose partition is gone": {
			before: func(s *shop) { s.detachAll(t) },
			edit:   func(*idempotency.Request) {}, want: idempotency.ErrExpired,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			s.must(t, call(), charge("1"))
			if c.before != nil {
				c.before(s)
			}
			claims, effects := s.count(t, `SELECT count(*) FROM idempotency.claims`), s.effects(t)
			got, err := s.Do(t.Context(), call(c.edit), charge("2"))
			if !errors.Is(err, c.want) || got.Status != "" || !strings.Contains(err.Error(), call(c.edit).CallID) {
				t.Errorf("%+v, %v", got, err)
			}
			if n := s.count(t, `SELECT count(*) FROM idempotency.claims`); n != claims || s.effects(t) != effects {
				t.Errorf("%d effects and %d claims are left", s.effects(t), n)
			}
		})
	}
}

// detachAll takes away all partitions of keys, as the archiver does with old ones.
func (s *shop) detachAll(t testing.TB) {
	t.Helper()
	s.db.MustExec(`DO $$ DECLARE p regclass; BEGIN
		FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idempotency.keys'::regclass LOOP
			EXECUTE 'ALTER TABLE idempotency.keys DETACH PARTITION ' || p;
			EXECUTE 'ALTER TABLE ' || p || ' SET SCHEMA public';
		END LOOP; END $$`)
}

func TestAKeyBelowTheWatermarkThatIsStillRememberedIsARepeat(t *testing.T) {
	t.Parallel()
	s := open(t)
	first := s.must(t, call(), charge("1"))
	s.db.MustExec(`INSERT INTO idempotency.watermarks VALUES ('idempotency.keys', now())`)
	if again := s.must(t, call(), never(t)); wire(t, again) != wire(t, first) {
		t.Errorf("%s and %s", wire(t, first), wire(t, again))
	}
}

// The clock of a caller may be ahead of the database's. Once the partition of that day is archived and its claims are deleted, the
// watermark alone stands between a late retry and a second effect.
func TestACallWhoseClockIsAheadIsNotForgottenWithTheDayBefore(t *testing.T) {
	t.Parallel()
	s := open(t)
	ahead := call(func(r *idempotency.Request) { r.IssuedAt = time.Now().Add(4 * time.Minute) })
	s.must(t, ahead, charge("1"))
	if n := s.count(t, `SELECT count(*) FROM idempotency.keys k JOIN idempotency.claims c USING (created_at) WHERE k.created_at >= k.issued_at`); n != 1 {
		t.Error("the key lies before the instant at which its call was issued")
	}
}

func TestAPayloadWithoutAHashIsNotCompared(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.must(t, call(func(r *idempotency.Request) { r.Hash = nil }), charge("1"))
	s.must(t, call(), never(t))
	if n := s.count(t, `SELECT count(*) FROM idempotency.keys WHERE request_hash IS NULL`); n != 1 {
		t.Error("no hash was stored as something")
	}
}

func TestARequestThatCannotBeWrittenIsRefusedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	s := open(t)
	for says, edit := range map[string]func(*idempotency.Request){
		"callId is missing":                func(r *idempotency.Request) { r.CallID = "" },
		"callId has 201 bytes":             func(r *idempotency.Request) { r.CallID = strings.Repeat("x", 201) },
		`callId "a\nb" holds a control`:    func(r *idempotency.Request) { r.CallID = "a\nb" },
		"bizId is missing":                 func(r *idempotency.Request) { r.BizID = "" },
		"bizId has 1001 bytes":             func(r *idempotency.Request) { r.BizID = strings.Repeat("x", 1001) },
		`bizId "\x00" holds a NUL`:         func(r *idempotency.Request) { r.BizID = "\x00" },
		`operation "\xff" holds a NUL`:     func(r *idempotency.Request) { r.Operation = "\xff" },
		"operation has 201 bytes":          func(r *idempotency.Request) { r.Operation = strings.Repeat("x", 201) },
		"idempotencyKey has 1501 bytes":    func(r *idempotency.Request) { r.IdempotencyKey = strings.Repeat("x", 1501) },
		"attempt -1 is not from 1":         func(r *idempotency.Request) { r.Attempt = -1 },
		"attempt 2147483648 is not from 1": func(r *idempotency.Request) { r.Attempt = 1 << 31 },
		"timestamp is missing":             func(r *idempotency.Request) { r.IssuedAt = time.Time{} },
		"timestamp is in the year 1999":    func(r *idempotency.Request) { r.IssuedAt = time.Unix(946684799, 0) },
		"timestamp is in the year 10000":   func(r *idempotency.Request) { r.IssuedAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		if _, err := s.Do(t.Context(), call(edit), never(t)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
		if claim, _, err := s.Begin(t.Context(), call(edit)); err == nil || claim != nil {
			t.Errorf("%s: begun", says)
		}
	}
	s.nothing(t, "a refused request")
}

func TestTheLongestIDsAreExecuted(t *testing.T) {
	t.Parallel()
	s := open(t)
	r := call(func(r *idempotency.Request) {
		r.CallID, r.BizID, r.Operation = strings.Repeat("é", 100), strings.Repeat("\n", 1000), strings.Repeat("'", 200)
		r.IdempotencyKey, r.Attempt = strings.Repeat("\x01", 1500), 1<<31-1
	})
	first, again := s.must(t, r, charge(`"`+strings.Repeat("x", 200_000)+`"`)), s.must(t, r, never(t))
	if wire(t, first) != wire(t, again) || first.Check() != nil {
		t.Errorf("%v", first.Check())
	}
}

func TestAConfigThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t)
	for says, cfg := range map[string]idempotency.Config{
		"Config.DB":       {},
		"Config.Wait":     {DB: s.db, Wait: time.Minute + 1},
		"Config.Wait: -1": {DB: s.db, Wait: -1},
		"Config.Remember": {DB: s.db, Remember: -1},
	} {
		if _, err := idempotency.New(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	long := s.guard(t, s.db, func(c *idempotency.Config) { c.Remember = 1000 * time.Hour })
	if _, err := long.Do(t.Context(), call(), charge("1")); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, `SELECT count(*) FROM idempotency.keys WHERE expires_at = created_at + interval '1000 hours'`); n != 1 {
		t.Error("the key is not remembered as long as it should be")
	}
}

func TestTheFunctionRunsReadCommittedWhateverTheDefaultIs(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.db.MustExec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`)
	s.db.SetMaxIdleConns(0) // the next connection is a new one
	var level, standard string
	s.must(t, call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		return nil, tx.QueryRowContext(ctx, `SELECT current_setting('transaction_isolation'), current_setting('default_transaction_isolation')`).Scan(&level, &standard)
	})
	if level != "read committed" || standard != "serializable" {
		t.Errorf("%s, by default %s", level, standard)
	}
}

// An arrival needs one connection, so a pool of one is enough: no step waits for a connection while it holds another.
func TestOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.db.SetMaxOpenConns(1)
	s.must(t, call(), refuse(`"no funds"`))
	s.must(t, call(as("B1-0002", 1)), never(t))
	s.detachAll(t)
	s.must(t, call(func(r *idempotency.Request) { r.BizID, r.CallID = "B2", "B2-0001" }), charge("1"))
}
