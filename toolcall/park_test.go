package toolcall

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/pgproxy"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

// lost is a tool whose sends are all answered with 500 and whose receipts are unknown: its calls are parked after one send.
func lost(t testing.TB, edit ...func(*Tool)) Tool {
	t.Helper()
	a := answers(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if r.URL.Path != "/receipts" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(`{"receipts":[]}`))
	})
	return theTool(a.url, a.url+"/receipts", edit...)
}

func TestParkingACallTwiceIsOneRow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}})
	for range 2 {
		if out, err := c.Do(t.Context(), theCall("C1")); err != nil || out.Status != Suspended || out.Timeout != pending.TimeoutReceipt {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if diff := cmp.Diff([]string{"C1 B1 payment.charge charge B1:charge PENDING 1 receipt -"}, rows(t, db)); diff != "" {
		t.Error(diff)
	}
}

func TestARowSaysWhenTheCallWasIssuedAndLastSentAndWhatWasSent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	at := noon
	c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}, Clock: func() time.Time { at = at.Add(time.Second); return at }})
	// The clock was read for the call, for the beginning of Do, and then for the send.
	out, err := c.Do(t.Context(), theCall("C1"))
	if err != nil || out.Status != Suspended {
		t.Fatalf("%+v, %v", out, err)
	}
	var got string
	err = db.Get(&got, `SELECT concat_ws(' ', to_char(issued_at AT TIME ZONE 'UTC', 'HH24:MI:SS'), to_char(last_sent_at AT TIME ZONE 'UTC', 'HH24:MI:SS'), request)
		FROM reconciler.pending_confirmations`)
	if want := `12:00:01 12:00:03 {"amount": 1999}`; got != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

func TestACallThatOnlyAnEarlierProcessSentIsParkedAsSentJustNow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}, Clock: func() time.Time { return noon }})
	out, err := c.Do(t.Context(), theCall("C1", func(c *Call) { c.Sent, c.IssuedAt = 2, time.Now() }))
	if err != nil || out.Status != Suspended || told(out.Steps) != "ask unanswered, ask unanswered, park" {
		t.Fatalf("%+v, %v", out, err)
	}
	var recent bool
	if err := db.Get(&recent, `SELECT last_sent_at > now() - interval '10 minutes' AND attempt = 2 FROM reconciler.pending_confirmations`); err != nil || !recent {
		t.Errorf("nobody knows when it was last sent, and nothing may be sent again too soon: %v", err)
	}
}

// withOrders is a database with a table of the caller's own.
func withOrders(t *testing.T) *sqlx.DB {
	t.Helper()
	db := testdb.New(t)
	db.MustExec(`CREATE TABLE orders (id text, state text)`)
	return db
}

func TestATransactionOfTheCallerCommitsTheCallWithItsOwnWrites(t *testing.T) {
	t.Parallel()
	db := withOrders(t)
	c := newClient(t, Config{Tools: []Tool{lost(t)}}) // no DB: the caller has it
	out, err := c.Do(t.Context(), theCall("C1", func(c *Call) {
		c.Transaction = func(ctx context.Context, park func(sqlx.ExtContext) error) error {
			return database.InTx(ctx, db, func(tx *sqlx.Tx) error {
				if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ('B1', 'unknown')`); err != nil {
					return err
				}
				return park(tx)
			})
		}
	}))
	var orders int
	if err := db.Get(&orders, `SELECT count(*) FROM orders`); err != nil {
		t.Fatal(err)
	}
	if n := len(rows(t, db)); out.Status != Suspended || err != nil || orders != 1 || n != 1 {
		t.Errorf("%+v, %v, %d orders, %d rows", out, err, orders, n)
	}
}

func TestATransactionThatDoesNotParkIsReportedWithAllThatItTakesToParkLater(t *testing.T) {
	t.Parallel()
	db := withOrders(t)
	full := errors.New("the disk is full")
	calls := 0
	for name, transaction := range map[string]func(ctx context.Context, park func(sqlx.ExtContext) error) error{
		"rolled back after parking": func(ctx context.Context, park func(sqlx.ExtContext) error) error {
			calls++
			return database.InTx(ctx, db, func(tx *sqlx.Tx) error {
				tx.MustExecContext(ctx, `INSERT INTO orders VALUES ('B1', 'unknown')`)
				if err := park(tx); err != nil {
					return err
				}
				return full
			})
		},
		"failed before parking": func(context.Context, func(sqlx.ExtContext) error) error { calls++; return full },
		"never called park":     func(context.Context, func(sqlx.ExtContext) error) error { calls++; return nil },
		"hides that parking failed": func(ctx context.Context, park func(sqlx.ExtContext) error) error {
			calls++
			tx := db.MustBegin()
			_ = tx.Rollback()
			_ = park(tx)
			return nil
		},
	} {
		var log strings.Builder
		c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		out, err := c.Do(t.Context(), theCall("C1", func(c *Call) { c.Transaction = transaction }))
		var lost *NotParkedError
		if !errors.As(err, &lost) || out.Status != "" || out.Attempt != 1 || lost.CallID != "C1" || lost.Err == nil {
			t.Errorf("%s: %+v, %v", name, out, err)
			continue
		}
		if errors.Is(err, full) != (name == "rolled back after parking" || name == "failed before parking") {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(log.String(), `level=ERROR msg="[call=C1][biz=B1][try=1] the outcome is unknown, and the call could not be parked"`) {
			t.Errorf("%s: logged %s", name, &log)
		}
		var orders int
		if err := db.Get(&orders, `SELECT count(*) FROM orders`); err != nil || orders != 0 || len(rows(t, db)) != 0 {
			t.Errorf("%s: %d orders, %v, %v", name, orders, rows(t, db), err)
		}
	}
	if calls != 4 {
		t.Errorf("the transactions were run %d times: whether to try again is their owner's to decide", calls)
	}
}

func TestATransactionIsNotOpenedForACallThatNeedNotBeParked(t *testing.T) {
	t.Parallel()
	endpoint := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		_, _ = w.Write([]byte(receiptOf("C1", "SUCCESS")))
	})
	c := newClient(t, Config{Tools: []Tool{theTool(endpoint.url, endpoint.url)}})
	out, err := c.Do(t.Context(), theCall("C1", func(c *Call) {
		c.Transaction = func(context.Context, func(sqlx.ExtContext) error) error { t.Error("opened"); return nil }
	}))
	if out.Status != Success || err != nil {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestADatabaseThatIsAwayLosesNothingThatParkingNeeds(t *testing.T) {
	t.Parallel()
	away, err := database.Open("postgres://u:p@" + strings.TrimPrefix(refusing(t), "http://") + "/d?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = away.Close() })
	var log strings.Builder
	at := noon
	c := newClient(t, Config{
		DB: away, Tools: []Tool{lost(t)}, Log: slog.New(slog.NewTextHandler(&log, nil)), Clock: func() time.Time { at = at.Add(time.Second); return at },
	})
	out, err := c.Do(t.Context(), theCall("C1\u202e[x]=", func(c *Call) { c.BizID = "B1\nlevel=ERROR msg=\"[call=C2]\"" }))
	var lost *NotParkedError
	if !errors.As(err, &lost) || !database.Unreachable(err) || out.Status != "" || told(out.Steps) != "send 1 answered, ask unanswered, ask unanswered, park" {
		t.Fatalf("%+v, %v", out, err)
	}
	want := pending.Suspension{
		CallID: "C1\u202e[x]=", BizID: "B1\nlevel=ERROR msg=\"[call=C2]\"", Tool: "payment.charge", Operation: "charge",
		IdempotencyKey: "B1\nlevel=ERROR msg=\"[call=C2]\":charge", Attempt: 1, IssuedAt: noon.Add(time.Second), LastSentAt: noon.Add(3 * time.Second),
		Request: small, TimeoutKind: pending.TimeoutReceipt,
	}
	if diff := cmp.Diff(want, lost.Suspension); diff != "" {
		t.Error(diff)
	}
	if strings.ContainsAny(err.Error(), "\n\u202e") {
		t.Errorf("%q", err)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || strings.Count(text, "level=ERROR") != 1 || strings.Contains(text, "[call=C2]") ||
		!strings.Contains(text, `msg="[call=\"C1\\u202e\\x5bx\\x5d\\x3d\"][biz=\"B1\\nlevel\\x3dERROR msg\\x3d\\\"\\x5bcall\\x3dC2\\x5d\\\"\"][try=1] the outcome`) {
		t.Errorf("logged %s", text)
	}
	// Later, when it is back.
	db := testdb.New(t)
	if parked, err := pending.Suspend(t.Context(), db, lost.Suspension); !parked || err != nil {
		t.Errorf("%v, %v", parked, err)
	}
}

func TestACommitWhoseOutcomeIsUnknownIsMadeAgainAndIsOneRow(t *testing.T) {
	t.Parallel()
	arrived, lostCommit := pgproxy.Fate{Arrives: true}, pgproxy.Fate{}
	for name, fates := range map[string][]pgproxy.Fate{
		"it arrived":                            {arrived},
		"it never arrived":                      {lostCommit},
		"it never arrived, twice":               {lostCommit, lostCommit},
		"it never arrived, and then it arrived": {lostCommit, arrived},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.URL(t)
			c := newClient(t, Config{DB: testdb.Open(t, pgproxy.URL(t, dsn, fates...)), Tools: []Tool{lost(t)}})
			out, err := c.Do(t.Context(), theCall("C1"))
			if out.Status != Suspended || err != nil {
				t.Errorf("%+v, %v", out, err)
			}
			if diff := cmp.Diff([]string{"C1 B1 payment.charge charge B1:charge PENDING 1 receipt -"}, rows(t, testdb.Open(t, dsn))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOnlyWhatMayPassIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, err := range []error{fmt.Errorf("%w: the answer was no COMMIT", database.ErrCommitUnknown), driver.ErrBadConn, &pq.Error{Code: "40P01"}, &pq.Error{Code: "57P03"}} {
		if !passing(err) {
			t.Errorf("%v is final", err)
		}
	}
	for _, err := range []error{pending.ErrOtherCall, &pq.Error{Code: "23514"}, &pq.Error{Code: "42P01"}, context.Canceled} {
		if passing(err) {
			t.Errorf("%v is tried again", err)
		}
	}
}

func TestACallIDThatIsParkedForAnotherBusinessIsReportedAndNotTriedAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}})
	if _, err := c.Do(t.Context(), theCall("C1")); err != nil {
		t.Fatal(err)
	}
	out, err := c.Do(t.Context(), theCall("C1", func(c *Call) { c.BizID = "B2" }))
	var lost *NotParkedError
	if !errors.As(err, &lost) || !errors.Is(err, pending.ErrOtherCall) || out.Status != "" || lost.Suspension.BizID != "B2" {
		t.Errorf("%+v, %v", out, err)
	}
}
