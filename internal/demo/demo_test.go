package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

// It is not parallel: it looks at the goroutines of the process.
func TestARunEndsWithEveryCallAccountedForAndNothingRunning(t *testing.T) {
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	if err := db.Ping(); err != nil {
		t.Fatal(err)
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	before := goleak.IgnoreCurrent()
	var mu sync.Mutex
	var stages []Stage
	got, err := Run(t.Context(), Config{DSN: dsn, Calls: 300, Seed: 1, Progress: func(stage Stage, done, _ int) {
		mu.Lock()
		defer mu.Unlock()
		if done == 0 && !slices.Contains(stages, stage) {
			stages = append(stages, stage)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, before)
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("the run left %v behind, %v", left, err)
	}
	if !got.Good() || len(got.Problems) > 0 {
		t.Errorf("%+v\n%s", got.Summary, strings.Join(got.Problems, "\n"))
	}
	if got.Calls != 300 || got.Suspended < 75 || got.TimedOut <= got.Suspended || got.Success == 0 || got.Failed == 0 || got.Manual == 0 || got.Retried == 0 {
		t.Errorf("the run shows too little: %+v", got.Summary)
	}
	if d := got.Deliveries; d.Verdicts < got.Suspended || d.Repeats == 0 || d.Invalid != 0 || got.Awaited == 0 {
		t.Errorf("%d calls were parked, %d were waited for, and the webhook saw %+v", got.Suspended, got.Awaited, d)
	}
	if want := []Stage{StageSending, StageSettling, StageComparing}; !slices.Equal(stages, want) {
		t.Errorf("stages %v, want %v", stages, want)
	}
	if e := got.Example; e == nil || e.Way != NeverArrived || !slices.ContainsFunc(e.Moments, func(m Moment) bool {
		return m.What == "executed" && m.Send > 1 && m.By == "downstream"
	}) {
		t.Errorf("the example does not tell how a lost call was executed by a retry: %+v", e)
	}
	// What the tables say, besides what the run says of them.
	var changedIDs, resends int
	if err := db.Get(&changedIDs, `SELECT count(*) FROM reconciler.call_events WHERE kind = 'call_id_changed'`); err != nil {
		t.Fatal(err)
	}
	if err := db.Get(&resends, `SELECT count(*) FROM reconciler.call_events WHERE kind = 'sent'`); err != nil {
		t.Fatal(err)
	}
	if own := got.Retried - resends; changedIDs == 0 || resends != got.Dispatched+got.HandedOff || own <= 0 {
		t.Errorf("%d calls were settled by another call, %d parked ones were sent again, and %d by their callers: %+v", changedIDs, resends, own, got)
	}
	var kinds []string
	if err := db.Select(&kinds, `SELECT DISTINCT timeout_kind FROM reconciler.pending_confirmations ORDER BY 1`); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []pending.TimeoutKind{pending.TimeoutConnect, pending.TimeoutReceipt} {
		if !slices.Contains(kinds, string(kind)) {
			t.Errorf("no call was parked for the reason %s, only %v", kind, kinds)
		}
	}
	var resent []string
	if err := db.Select(&resent, `
		SELECT DISTINCT p.tool || ' by the ' || e.actor FROM reconciler.call_events e JOIN reconciler.pending_confirmations p USING (call_id)
		WHERE e.kind = 'sent' ORDER BY 1`); err != nil {
		t.Fatal(err)
	}
	if want := []string{"payment.charge by the reconciler", "stock.reserve by the orchestrator"}; !slices.Equal(resent, want) ||
		got.Dispatched == 0 || got.HandedOff == 0 {
		t.Errorf("sent again: %v, %d by the reconciler and %d by the orchestrator", resent, got.Dispatched, got.HandedOff)
	}
	// The network loses what the reconciler sends as well.
	var exhausted []string
	if err := db.Select(&exhausted, `
		SELECT call_id FROM reconciler.pending_confirmations WHERE tool = 'payment.charge' AND reason = 'attempts_exhausted'`); err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Concat(Plan(1, 300)...) {
		if c.Tool.Dispatched && c.Way == Unreachable && !slices.Contains(exhausted, c.CallID) {
			t.Errorf("call %s reached the downstream, or was given up too soon", c.CallID)
		}
	}
	if len(exhausted) == 0 {
		t.Error("no call was lost as often as the reconciler may send it")
	}
}

func TestASmallRunIsAsGoodAsALargeOne(t *testing.T) {
	t.Parallel()
	for _, calls := range []int{1, 2, 20} {
		t.Run(fmt.Sprint(calls), func(t *testing.T) {
			t.Parallel()
			got, err := Run(t.Context(), Config{DSN: testdb.URL(t), Calls: calls, Seed: 3})
			if err != nil || !got.Good() || got.Calls != calls {
				t.Errorf("%+v, %q, %v", got.Summary, got.Problems, err)
			}
		})
	}
}

// Neither is this one parallel.
func TestARunThatIsStoppedReturnsTheCauseAndLeavesNothingRunning(t *testing.T) {
	for _, at := range []Stage{StageSending, StageSettling, StageComparing} {
		dsn := testdb.URL(t)
		before := goleak.IgnoreCurrent()
		stopped := errors.New("stopped by a person")
		ctx, stop := context.WithCancelCause(t.Context())
		got, err := Run(ctx, Config{DSN: dsn, Calls: 100, Seed: 1, Progress: func(stage Stage, _, _ int) {
			if stage == at {
				stop(stopped)
			}
		}})
		if !errors.Is(err, stopped) || got.Calls != 0 {
			t.Errorf("%s: error %v, result %+v", at, err, got.Summary)
		}
		goleak.VerifyNone(t, before)
	}
}

func TestARunRefusesWhatItCannotPlay(t *testing.T) {
	t.Parallel()
	for _, calls := range []int{-1, 0, MaxCalls + 1} {
		if _, err := Run(t.Context(), Config{DSN: "postgres://nowhere.invalid/x?sslmode=disable", Calls: calls}); err == nil ||
			!strings.Contains(err.Error(), "1 to 100000 calls") {
			t.Errorf("%d calls: %v", calls, err)
		}
	}
}
