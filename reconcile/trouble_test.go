package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/task"
)

func TestOneBadBizIdIsSetAsideAndTheOthersAreSettled(t *testing.T) { // clinicaltrialsgov-mcp#32, rocketmq#9500
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 100)
	for i := range 100 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	d.before = func(w http.ResponseWriter, ids []string) bool {
		for _, id := range ids {
			if id == "B33" {
				http.Error(w, "cannot read B33", http.StatusBadRequest)
				return true
			}
		}
		return false
	}
	sum := runPass(t, on(t, db, d, func(c *Config) { c.BatchSize = 20 }))
	if sum.Success != 99 || sum.Unanswered != 1 || sum.Requests > 5+2*5+1 {
		t.Errorf("%+v", sum)
	}
	if got := look(t, db, "C33"); got.Reason != "unanswered" || got.Checks != 0 || !strings.Contains(got.LastError, "400") {
		t.Errorf("%+v", got)
	}
}

func TestTooLargeBatchesAreMadeSmallerForTheRestOfThePass(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 200)
	for i := range 200 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	d.before = func(w http.ResponseWriter, ids []string) bool {
		if len(ids) > 12 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
		return len(ids) > 12
	}
	sum := runPass(t, on(t, db, d, func(c *Config) { c.BatchSize, c.Concurrency = 50, 1 }))
	if sum.Success != 200 {
		t.Errorf("%+v", sum)
	}
	refused := 0
	for _, n := range d.sizes {
		if n > 12 {
			refused++
		}
	}
	if refused > 6 {
		t.Errorf("%d batches were too large: %v", refused, d.sizes)
	}
}

func TestAReceiptTheDatabaseRefusesGoesToAPersonAndTheOthersProceed(t *testing.T) { // genlayer-studio#1601
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 50)
	for i := range 50 {
		result := `"result":1`
		if i == 17 {
			result = `"result":1e200000` // valid JSON, out of range for numeric
		}
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS", result)
	}
	r := on(t, db, d, func(c *Config) { c.BatchSize = 50 })
	if sum := runPass(t, r); sum.Success != 49 || sum.Manual != 1 {
		t.Errorf("%+v", sum)
	}
	got := look(t, db, "C17")
	if got.Status != "MANUAL" || got.Reason != "unwritable" || !strings.Contains(got.LastError, "22003") || got.Events != 1 {
		t.Errorf("%+v", got)
	}
	due(db)
	if sum := runPass(t, r); sum.Waiting != 1 || sum.Manual != 0 {
		t.Errorf("the second look: %+v", sum)
	}
	if got := look(t, db, "C17"); got.Events != 1 || got.Status != "MANUAL" {
		t.Errorf("the second look: %+v", got)
	}
}

func TestAWriterThatSleptChangesNothing(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 3)
	for i := range 3 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	// A person settles C1 while its receipt is on the way.
	d.before = func(http.ResponseWriter, []string) bool {
		db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'FAILED', reason = 'by hand', resolved_by = 'person:eve' WHERE call_id = 'C1'`)
		db.MustExec(`UPDATE reconciler.pending_confirmations SET timeout_kind = 'read' WHERE call_id = 'C2'`)
		return false
	}
	sum := runPass(t, on(t, db, d))
	if sum.Success != 1 || sum.LostRaces != 2 || sum.Contradictions != 1 || sum.Outcome != task.Success {
		t.Errorf("%+v", sum)
	}
	if got := look(t, db, "C1"); got.Status != "FAILED" || got.Reason != "by hand" || got.Events != 1 {
		t.Errorf("%+v", got)
	}
	if got := look(t, db, "C2"); got.Status != "PENDING" || got.Checks != 0 {
		t.Errorf("%+v", got)
	}
}

func TestALateFailureNeverDowngradesASuccessAndIsOnRecordOnce(t *testing.T) { // nearmerch#209, killbill#573
	t.Parallel()
	db, d := open(t)
	parkOne(t, db, "C1", "B1")
	d.say("C1", "B1", "SUCCESS")
	r := on(t, db, d)
	runPass(t, r)
	d.forget()
	parkOne(t, db, "C2", "B1")
	d.say("C1", "B1", "FAILED", `"operation":"charge"`)
	d.say("C2", "B1", "PROCESSING", `"operation":"charge"`)
	if sum := runPass(t, r); sum.Contradictions != 1 {
		t.Errorf("%+v", sum)
	}
	due(db)
	if sum := runPass(t, r); sum.Contradictions != 0 {
		t.Errorf("recorded twice: %+v", sum)
	}
	if got := look(t, db, "C1"); got.Status != "SUCCESS" || got.Events != 2 {
		t.Errorf("%+v", got)
	}
}

func TestARowThatAnotherSessionLocksDelaysNobody(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 30)
	for i := range 30 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	db.MustExec(`ALTER DATABASE ` + databaseName(t, db) + ` SET lock_timeout = '100ms'`)
	db.SetMaxIdleConns(0)
	tx := db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	var one int
	if err := tx.Get(&one, `SELECT 1 FROM reconciler.pending_confirmations WHERE call_id = 'C7' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	sum := runPass(t, on(t, db, d))
	if sum.Success != 29 || sum.LostRaces != 1 {
		t.Errorf("%+v", sum)
	}
}

func databaseName(t testing.TB, db *sqlx.DB) (name string) {
	t.Helper()
	if err := db.Get(&name, `SELECT quote_ident(current_database())`); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestAnOutageChangesNoVerdictAndCountsNoLook(t *testing.T) { // rocketmq#615, ManageHub#1579
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 200)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET last_sent_at = now() - interval '3 days'`)
	r := on(t, db, d, func(c *Config) { c.BatchSize, c.Policy.ManualAfter = 1, time.Minute })
	down := true
	d.before = func(w http.ResponseWriter, _ []string) bool {
		if down {
			w.WriteHeader(http.StatusBadGateway)
		}
		return down
	}
	sum, err := r.RunOnce(context.Background(), Limits{})
	if !errors.Is(err, errBreakerOpen) || sum.Outcome != task.Partial || sum.Manual+sum.Failed+sum.Success+sum.Waiting > 0 {
		t.Errorf("%v, %+v", err, sum)
	}
	if limit := breakerFailures + 4 + breakerProbes; sum.Requests > limit {
		t.Errorf("%d requests to a downstream that does not answer, want at most %d", sum.Requests, limit)
	}
	if n := count(t, db, `checks > 0 OR status <> 'PENDING'`); n > 0 {
		t.Errorf("%d rows count a look that was not answered", n)
	}
	if n := count(t, db, `unanswered = 0 AND next_check_at <= now() AND version = 1`); n < 150 {
		t.Errorf("only %d rows that were not asked about stand as they stood", n)
	}
	down = false
	for i := range 200 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	due(db)
	if sum := runPass(t, r); sum.Success != 200 {
		t.Errorf("after the recovery: %+v", sum)
	}
}

func TestAMisconfiguredToolStopsAndTouchesNoRow(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404, 301, 302, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			db, d := open(t)
			parkMany(t, db, 100)
			d.before = func(w http.ResponseWriter, _ []string) bool {
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
				w.WriteHeader(status)
				return true
			}
			r := on(t, db, d, func(c *Config) { c.Retries = 2 })
			sum, err := r.RunOnce(context.Background(), Limits{})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) || sum.Outcome != task.Failed {
				t.Errorf("%v, %+v", err, sum)
			}
			if sum.Requests > r.cfg.Concurrency+maxRefusals-1 {
				t.Errorf("%d requests although %d said it all", sum.Requests, maxRefusals)
			}
			if n := count(t, db, `version > 0`); n > 0 {
				t.Errorf("%d rows were touched", n)
			}
		})
	}
}

func TestARefusalAmongAnswersIsTheTroubleOfItsBatch(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404, 302} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			db, d := open(t)
			parkMany(t, db, 100)
			for i := range 100 {
				d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
			}
			d.before = func(w http.ResponseWriter, bizIDs []string) bool {
				if slices.Contains(bizIDs, "B0") { // in the first batch
					w.WriteHeader(status)
					return true
				}
				return false
			}
			sum, err := on(t, db, d, func(c *Config) { c.Concurrency = 1 }).RunOnce(context.Background(), Limits{})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) || sum.Outcome != task.Partial || sum.Success != 90 {
				t.Errorf("%v, %+v", err, sum)
			}
			if got := look(t, db, "C0"); got.Status != "PENDING" || got.Unanswered+got.Checks > 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestA429PausesTheToolAndItsBatchIsAskedAgain(t *testing.T) { // metagraphed#6451
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 30)
	var resume time.Time
	d.before = func(w http.ResponseWriter, _ []string) bool {
		if d.requests == 1 {
			resume = time.Now().Add(time.Second)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		if time.Now().Before(resume) {
			t.Error("asked within the pause")
		}
		return false
	}
	for i := range 30 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	sum := runPass(t, on(t, db, d, func(c *Config) { c.Concurrency, c.Retries = 1, 1 }))
	if sum.Success != 30 || sum.Requests != 4 {
		t.Errorf("%+v", sum)
	}
}

func TestInstantsAtTheEndOfTimeHideNoRow(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	for i, set := range []string{
		"next_check_at = 'infinity'", "next_check_at = '-infinity'", "next_check_at = '9999-01-01'", "next_check_at = '0044-03-15 BC'",
		"last_sent_at = 'infinity'", "last_sent_at = '-infinity'", "not_found_since = 'infinity'", "created_at = '-infinity'", "attempt = 2147483647",
		"checks = 2147483647",
	} {
		parkOne(t, db, fmt.Sprint("C", i), fmt.Sprint("B", i))
		db.MustExec(`UPDATE reconciler.pending_confirmations SET `+set+` WHERE call_id = $1`, fmt.Sprint("C", i))
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, issued_at)
		VALUES ('past', 'past', 'payment.charge', 'charge', '-infinity'), ('never', 'never', 'payment.charge', 'charge', 'infinity')`)
	d.say("past", "past", "SUCCESS")
	d.say("never", "never", "SUCCESS")
	if sum := runPass(t, on(t, db, d)); sum.Success != 12 {
		t.Errorf("%+v", sum)
	}
}

func TestHostileIdsAreHandledLikeAnyOther(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	ids := []string{
		"a\nb", "tab\t", `quo"te'`, "100%", "../../etc/passwd", "\x1b[31mred", "<script>alert(1)</script>", `=HYPERLINK("x")`,
		"e\u0301", "\u00e9", strings.Repeat("x", 200), strings.Repeat("y", 201), `back\slash`, "{brace,comma}", "NULL",
	}
	for i, id := range ids {
		parkOne(t, db, fmt.Sprint("C", i), id)
		d.say(fmt.Sprint("C", i), id, "SUCCESS")
	}
	if sum := runPass(t, on(t, db, d)); sum.Success != len(ids) {
		t.Errorf("%+v", sum)
	}
}

func TestAPanicInABatchEndsThePassAndNotTheProcess(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 20)
	for i := range 20 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	r := on(t, db, d, func(c *Config) {
		c.Concurrency = 1
		c.Progress = func(Summary) { panic("no progress") }
	})
	if _, err := r.RunOnce(context.Background(), Limits{}); err == nil || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("%v", err)
	}
	if sum := runPass(t, on(t, db, d)); sum.Success+count(t, db, `status = 'SUCCESS'`) < 20 {
		t.Errorf("%+v", sum)
	}
}

func TestOneMalformedReceiptDoesNotStarveItsBatch(t *testing.T) { // rocketmq#9500
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 50)
	for i := range 50 {
		processed := `"processedAt":"2026-01-01T10:00:00Z"`
		if i == 20 {
			processed = `"processedAt":"2026-01-01T10:00:00"`
		}
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS", processed)
	}
	sum := runPass(t, on(t, db, d, func(c *Config) { c.BatchSize, c.Retries = 200, 2 }))
	if sum.Success != 49 || sum.Unanswered != 1 || sum.Requests > 2*6+1+2 {
		t.Errorf("%+v", sum)
	}
	if got := look(t, db, "C20"); !strings.Contains(got.LastError, "zone") {
		t.Errorf("%+v", got)
	}
}

func TestAContradictionThatCannotBeStoredIsOnRecordWithoutItsReceipt(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 20)
	for i := range 20 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS", `"operation":"charge"`)
	}
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'SUCCESS', reason = 'receipt_success' WHERE call_id = 'C0'`)
	parkOne(t, db, "C0b", "B0")
	d.says["B0"] = nil
	d.say("C0", "B0", "FAILED", `"operation":"refund"`, `"result":1e300000`)
	d.say("C0b", "B0", "SUCCESS", `"operation":"charge"`)
	sum := runPass(t, on(t, db, d))
	if sum.Success != 20 || sum.Contradictions != 1 || sum.Outcome != task.Success {
		t.Errorf("%+v", sum)
	}
}

func TestARowThatCannotBeWrittenAtAllHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 30)
	for i := range 30 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	db.MustExec(`ALTER TABLE reconciler.pending_confirmations ADD CONSTRAINT somebody_elses CHECK (call_id <> 'C0' OR version = 0)`)
	sum := runPass(t, on(t, db, d))
	if sum.Success != 29 || sum.Unwritten != 1 || sum.LostRaces != 0 || sum.Outcome != task.Partial {
		t.Errorf("%+v", sum)
	}
}

func TestOneLargeReceiptMaySettleManyCalls(t *testing.T) { // I14
	t.Parallel()
	db, d := open(t)
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) SELECT 'C' || n, 'B', 'payment.charge', 'charge' FROM generate_series(1, 300) n`)
	d.say("C0", "B", "SUCCESS", `"operation":"charge"`, `"result":"`+strings.Repeat("x", 200<<10)+`"`)
	if sum := runPass(t, on(t, db, d)); sum.Success != 300 || sum.Requests != 1 {
		t.Errorf("%+v", sum)
	}
}
