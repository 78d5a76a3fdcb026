package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/pgproxy"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// road is a service's database, the one where receipts are asked for, and the relay between them.
type road struct {
	Relay
	fromURL, toURL string
	lines          *lines
}

func newRoad(t testing.TB) *road {
	t.Helper()
	r := &road{fromURL: testdb.URL(t, migrations.Downstream), toURL: testdb.URL(t, migrations.Downstream), lines: &lines{}}
	r.Relay = Relay{From: testdb.Open(t, r.fromURL), To: testdb.Open(t, r.toURL), Log: slog.New(slog.NewTextHandler(r.lines, nil))}
	r.From.MustExec(`ALTER TABLE idempotency.receipts ENABLE TRIGGER receipt_to_outbox`)
	return r
}

// execute writes receipts of n calls in the service's database.
func (r *road) execute(first, n int) {
	r.From.MustExec(`SELECT idempotency.keep_receipt('C' || i, 'B' || i, 'charge', 'B' || i || ':charge', 'SUCCESS', ' {"n": 1.0} ', 1, clock_timestamp())
		FROM generate_series($1::int, $2) i`, first, first+n-1)
}

// run is RunOnce, which must deliver so many rows.
func (r *road) run(t testing.TB, want int) {
	t.Helper()
	if n, err := r.RunOnce(t.Context()); err != nil || n != want {
		t.Errorf("%d delivered, want %d, %v", n, want, err)
	}
}

// rows are the receipts in a database, one to a line.
func rows(t rapid.TB, db *sqlx.DB) (all []string) {
	t.Helper()
	if err := db.Select(&all, `SELECT to_json(r)::text FROM idempotency.receipts r ORDER BY call_id`); err != nil {
		t.Fatal(err)
	}
	return all
}

// outbox is how many rows are left to deliver, and the others.
func (r *road) outbox(t testing.TB) (open, refused int) {
	t.Helper()
	if err := r.From.QueryRow(`SELECT count(*) FILTER (WHERE refused IS NULL), count(refused) FROM idempotency.receipt_outbox`).Scan(&open, &refused); err != nil {
		t.Fatal(err)
	}
	return open, refused
}

// arrived fails unless the other database has the service's own receipts, and nothing is left.
func (r *road) arrived(t testing.TB) {
	t.Helper()
	if diff := cmp.Diff(rows(t, r.From), rows(t, r.To)); diff != "" {
		t.Errorf("the databases differ (-service +other):\n%s", diff)
	}
	if open, refused := r.outbox(t); open+refused != 0 {
		t.Errorf("%d rows are left, %d refused", open, refused)
	}
}

func TestEveryReceiptIsDeliveredToTheLetter(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	r.run(t, 0)
	r.execute(1, relayRows+3)
	for i, id := range append(slices.Clone(hostile), strings.Repeat("\x01", 1000)) {
		r.From.MustExec(`SELECT idempotency.keep_receipt($1, $2, 'charge', $2, 'FAILED', $3, 2147483647, '9999-12-31 23:59:59.999999+00')`,
			fmt.Sprint("H", i), id, fmt.Sprintf("{%q: \"\\u0000\",  \"a\":1,\"a\":null} ", "k"))
	}
	r.From.MustExec(`SELECT idempotency.keep_receipt('P', 'B', 'o', 'k', 'PROCESSING', NULL, 1, '2024-02-29 23:59:60+05:30'), idempotency.keep_receipt('N', 'B', 'o', 'k', 'FAILED', 'null', 1, now())`)
	r.run(t, relayRows+3+len(hostile)+1+2)
	r.arrived(t)
	r.run(t, 0)
}

func TestInstantsSurviveAnyDateStyleAndZone(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	r.From, r.To = testdb.Open(t, r.fromURL+"&TimeZone=Asia/Kolkata"), testdb.Open(t, r.toURL+"&TimeZone=America/New_York")
	r.From.SetMaxOpenConns(1)
	r.From.MustExec(`SET DateStyle = 'SQL, DMY'`) // the driver sets its own, others do not
	r.execute(1, 20)
	r.run(t, 20)
	r.From, r.To = testdb.Open(t, r.fromURL+"&TimeZone=UTC"), testdb.Open(t, r.toURL+"&TimeZone=UTC")
	r.arrived(t)
}

func TestARelayThatIsNotTurnedOnSaysHowAndWhatItSaysIsEnough(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	r.From.MustExec(`ALTER TABLE idempotency.receipts DISABLE TRIGGER receipt_to_outbox`)
	r.execute(1, 3)
	_, err := r.RunOnce(t.Context())
	if err == nil {
		t.Fatal("it ran")
	}
	_, statements, found := strings.Cut(err.Error(), "run in the service's database: ")
	if !found {
		t.Fatal(err)
	}
	for _, statement := range strings.Split(statements, "; ") {
		r.From.MustExec(statement)
	}
	r.execute(4, 2)
	r.run(t, 5)
	r.arrived(t)
	for _, mode := range []string{"ENABLE REPLICA", "DISABLE"} {
		r.From.MustExec(`ALTER TABLE idempotency.receipts ` + mode + ` TRIGGER receipt_to_outbox`)
		if _, err := r.RunOnce(t.Context()); err == nil {
			t.Errorf("it runs with %s", mode)
		}
	}
	r.From.MustExec(`ALTER TABLE idempotency.receipts ENABLE ALWAYS TRIGGER receipt_to_outbox`)
	r.run(t, 0)
	if _, err := (&Relay{From: r.From}).RunOnce(t.Context()); err == nil {
		t.Error("it runs without another database")
	}
}

// Killed after the delivery and before the deletion, or in either COMMIT: delivered again, and nothing changes.
func TestADeliveryThatIsRepeatedChangesNothing(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]struct {
		from, to []pgproxy.Fate
		left     int
	}{
		"before the deletion":             {from: []pgproxy.Fate{{}}, left: 3},
		"in the deletion, which happened": {from: []pgproxy.Fate{{Arrives: true}}, left: 0},
		"before the delivery":             {to: []pgproxy.Fate{{}}, left: 3},
		"in the delivery, which happened": {to: []pgproxy.Fate{{Arrives: true}}, left: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRoad(t)
			r.execute(1, 3)
			broken := Relay{From: testdb.Open(t, pgproxy.URL(t, r.fromURL, cut.from...)), To: testdb.Open(t, pgproxy.URL(t, r.toURL, cut.to...))}
			if _, err := broken.RunOnce(t.Context()); !errors.Is(err, database.ErrCommitUnknown) {
				t.Fatal(err)
			}
			before := rows(t, r.To)
			if open, _ := r.outbox(t); open != cut.left {
				t.Errorf("%d rows are left, want %d", open, cut.left)
			}
			r.run(t, cut.left)
			r.arrived(t)
			if len(before) > 0 && !slices.Equal(before, rows(t, r.To)) {
				t.Errorf("the second delivery changed something")
			}
		})
	}
}

func TestTwoRelaysAtOnceDoEachOtherNoHarm(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	r.execute(1, 3*relayRows)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if _, err := r.RunOnce(t.Context()); err != nil && !database.Busy(err) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if _, err := r.RunOnce(t.Context()); err != nil {
		t.Error(err)
	}
	r.arrived(t)
}

// At the stricter levels two relays would refuse each other again and again.
func TestARelayWorksReadCommittedWhateverTheDefaultIs(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	for db, row := range map[*sqlx.DB]string{r.From: "receipt_outbox", r.To: "receipts"} {
		db.MustExec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`)
		db.MustExec(`CREATE FUNCTION level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE '%', current_setting('transaction_isolation'); END IF; RETURN NULL; END $$`)
		db.MustExec(`CREATE TRIGGER level AFTER INSERT OR DELETE ON idempotency.` + row + ` FOR EACH STATEMENT EXECUTE FUNCTION level()`)
	}
	r.execute(1, 2)
	r.From.SetMaxIdleConns(0) // the next connection is a new one
	r.To.SetMaxIdleConns(0)
	r.run(t, 2)
	r.arrived(t)
}

func TestWhileOneDatabaseIsAtWorkNothingIsHeldInTheOther(t *testing.T) {
	t.Parallel()
	for name, blocked := range map[string]func(r *road) (atWork, idle *sqlx.DB, lock string){
		"the delivery": func(r *road) (*sqlx.DB, *sqlx.DB, string) {
			return r.To, r.From, `LOCK TABLE idempotency.receipts IN ACCESS EXCLUSIVE MODE`
		},
		"the deletion": func(r *road) (*sqlx.DB, *sqlx.DB, string) {
			return r.From, r.To, `SELECT FROM idempotency.receipt_outbox FOR UPDATE`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRoad(t)
			r.execute(1, 3)
			atWork, idle, lock := blocked(r)
			tx := atWork.MustBegin()
			defer func() { _ = tx.Rollback() }()
			tx.MustExec(lock)
			done := make(chan error, 1)
			go func() {
				_, err := r.RunOnce(t.Context())
				done <- err
			}()
			eventually.True(t, "the relay waits in "+name, func() (waits bool) {
				err := atWork.Get(&waits, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())`)
				return err == nil && waits
			})
			var open int
			if err := idle.Get(&open, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL
				AND pid <> pg_backend_pid() AND backend_type = 'client backend'`); err != nil || open != 0 {
				t.Errorf("%d transactions are open in the other database, %v", open, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			r.arrived(t)
		})
	}
}

func TestARowThatTheOtherDatabaseRefusesIsMarkedAndTheOthersProceed(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	r.To.MustExec(`ALTER TABLE idempotency.receipts ADD CONSTRAINT odd CHECK (call_id NOT IN ('C7', 'C8', 'C99'))`)
	r.To.MustExec(`SELECT idempotency.keep_receipt('C50', 'another', 'o', 'k', 'SUCCESS', NULL, 1, now())`)
	r.execute(1, 100)
	r.run(t, 96)
	if open, refused := r.outbox(t); open != 0 || refused != 4 {
		t.Errorf("%d open, %d refused", open, refused)
	}
	var why []string
	if err := r.From.Select(&why, `SELECT call_id || ': ' || refused FROM idempotency.receipt_outbox ORDER BY call_id`); err != nil {
		t.Fatal(err)
	}
	if len(why) != 4 || !strings.Contains(why[0], "C50: pq: call 'C50' arrived before for another intent") || !strings.Contains(why[1], "C7: ") || !strings.Contains(why[1], `"odd"`) {
		t.Errorf("%q", why)
	}
	if logged := r.lines.String(); strings.Count(logged, "\n") != 4 || !strings.Contains(logged, "[call=C99][biz=B99][try=1] the other database refuses this receipt") {
		t.Errorf("the log: %s", logged)
	}
	r.run(t, 0) // they are not tried again
	if strings.Count(r.lines.String(), "\n") != 4 {
		t.Errorf("they were: %s", r.lines)
	}
	r.To.MustExec(`ALTER TABLE idempotency.receipts DROP CONSTRAINT odd; DELETE FROM idempotency.receipts WHERE call_id = 'C50'`)
	r.From.MustExec(`UPDATE idempotency.receipt_outbox SET refused = NULL`)
	r.run(t, 4)
	r.arrived(t)
}

func TestTroubleThatIsNoFaultOfARowMarksNone(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	r.execute(1, 3)
	r.To.MustExec(`ALTER FUNCTION idempotency.keep_receipt RENAME TO elsewhere`)
	n, err := r.RunOnce(t.Context())
	if open, refused := r.outbox(t); err == nil || n != 0 || open != 3 || refused != 0 {
		t.Errorf("%d delivered, %d open, %d refused, %v", n, open, refused, err)
	}
}

func TestABatchIsBoundedInRowsAndBytesButNeverEmpty(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	insert := `INSERT INTO idempotency.receipt_outbox (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at)
		SELECT 'C' || i, 'B', 'o', 'k', 'SUCCESS', to_json(repeat('x', $1)), 1, now() FROM generate_series(1, $2::int) i`
	size := func(after int64) int {
		t.Helper()
		batch, err := r.next(t.Context(), after, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		return len(batch)
	}
	r.From.MustExec(insert, 1, relayRows+1)
	if n := size(0); n != relayRows {
		t.Errorf("%d rows", n)
	}
	r.From.MustExec(`TRUNCATE idempotency.receipt_outbox RESTART IDENTITY`)
	r.From.MustExec(insert, relayBytes*2, 1)
	r.From.MustExec(insert, relayBytes/4, 10)
	if first, second := size(0), size(1); first != 1 || second != 4 {
		t.Errorf("%d rows, then %d", first, second)
	}
}

func TestRunDeliversAndSaysATroubleOnce(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, 10*time.Millisecond)
	}()
	there := func(n int) func() bool { return func() bool { return len(rows(t, r.To)) == n } }
	r.execute(1, 3)
	eventually.True(t, "the receipts are there", there(3))
	r.To.MustExec(`CREATE SEQUENCE tries;
		ALTER FUNCTION idempotency.keep_receipt RENAME TO real;
		CREATE FUNCTION idempotency.keep_receipt(text, text, text, text, text, json, integer, timestamptz) RETURNS boolean LANGUAGE plpgsql AS
			'BEGIN PERFORM nextval(''tries''); RAISE ''no room''; END'`)
	r.execute(4, 1)
	eventually.True(t, "it was tried three times", func() (tried bool) {
		return r.To.Get(&tried, `SELECT last_value >= 3 FROM tries`) == nil && tried
	})
	r.To.MustExec(`DROP FUNCTION idempotency.keep_receipt; ALTER FUNCTION idempotency.real RENAME TO keep_receipt`)
	eventually.True(t, "the receipts are there", there(4))
	eventually.True(t, "the end of the trouble is logged", func() bool { return strings.Contains(r.lines.String(), "relayed again") })
	stop()
	<-ended
	if logged := r.lines.String(); strings.Count(logged, "\n") != 2 || strings.Count(logged, "no room") != 1 {
		t.Errorf("the log: %s", logged)
	}
}

// The rights of the roles are those of docs/adopting.md.
func TestARelayAndAReceiptQueryNeedFewRights(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	as := func(db *sqlx.DB, dsn string, grants ...string) *sqlx.DB {
		t.Helper()
		name := "role_" + strings.ToLower(rand.Text())
		db.MustExec(`CREATE ROLE ` + name + `; GRANT USAGE ON SCHEMA idempotency TO ` + name)
		t.Cleanup(func() { db.MustExec(`DROP OWNED BY ` + name + `; DROP ROLE ` + name) })
		for _, g := range grants {
			db.MustExec(`GRANT ` + g + ` TO ` + name)
		}
		return testdb.Open(t, dsn+"&role="+name)
	}
	r.execute(1, 3)
	r.To.MustExec(`ALTER TABLE idempotency.receipts ADD CHECK (call_id <> 'C2')`)
	n, err := (&Relay{
		From: as(r.From, r.fromURL, `SELECT, UPDATE, DELETE ON idempotency.receipt_outbox`),
		To:   as(r.To, r.toURL, `SELECT, INSERT, UPDATE ON idempotency.receipts`),
	}).RunOnce(t.Context())
	if open, refused := r.outbox(t); err != nil || n != 2 || open != 0 || refused != 1 {
		t.Errorf("%d delivered, %d open, %d refused, %v", n, open, refused, err)
	}
	held, err := NewReceipts(as(r.To, r.toURL, `SELECT ON idempotency.receipts`), nil).ByBiz(t.Context(), []string{"B1", "B2"})
	if err != nil || len(held) != 2 || held[0].Status != "SUCCESS" || held[1].Status != "NOT_FOUND" {
		t.Errorf("%+v, %v", held, err)
	}
}
