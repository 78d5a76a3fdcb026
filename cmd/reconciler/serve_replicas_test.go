package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/task"
)

// replicas are daemons on one database, by process id.
type replicas struct {
	*scene
	running map[int]*served
}

func (r *replicas) add() {
	r.t.Helper()
	d := r.serve()
	r.running[d.cmd.Process.Pid] = d
}

// holder is the replica that has a tool's lease.
func (r *replicas) holder(tool string) (d *served) {
	r.t.Helper()
	eventually.True(r.t, "somebody holds the lease of "+tool, func() bool {
		d = r.running[one[int](r.scene, `SELECT coalesce((SELECT split_part(holder, '/', 2)::int FROM reconciler.leases
			WHERE name = 'reconcile:' || $1 AND expires_at > clock_timestamp()), 0)`, tool)]
		return d != nil
	})
	return d
}

// passedOn waits until another than this replica has a tool's lease.
func (r *replicas) passedOn(tool string, from *served) {
	r.t.Helper()
	eventually.True(r.t, "another one works on "+tool, func() bool { return r.holder(tool) != from })
}

// Of three replicas whoever holds a lease is killed, or stopped for longer than the lease and set going again. Every call gets one
// verdict, and only what was in hand at a hand-over is asked for a second time.
func TestServeSharesTheWorkAmongReplicasThatDieAndHang(t *testing.T) {
	t.Parallel()
	calls, rounds, stopped := sized(3000, 50_000), sized(1, 3), time.Duration(sized(1, 3))*task.LeaseTTL
	const batch, concurrency = 10, 2
	pace := fmt.Sprintf("batch_size: %d, concurrency: %d, rate: %d", batch, concurrency, sized(15, 20))
	s := newScene(t, pace, "charge", "refund")
	s.park("charge", calls/2)
	s.park("refund", calls/2)
	var mu sync.Mutex
	asked := map[string]int{}
	s.downstream.forget(func(q query) {
		mu.Lock()
		for _, id := range q.bizIDs {
			asked[id]++
		}
		mu.Unlock()
		q.answer()
	})

	r := &replicas{scene: s, running: map[int]*served{}}
	for range 3 {
		r.add()
	}
	handOvers := 0
	for i := range rounds {
		more := func(share int) { // waits for a part of the round's work
			s.untilSome(calls * (4*i + share) / (4*rounds + 2))
		}
		more(1)
		victim := r.holder("charge")
		_ = victim.cmd.Process.Kill()
		victim.exit()
		r.add()
		r.passedOn("charge", victim)

		more(2)
		victim = r.holder("refund")
		victim.signal(syscall.SIGSTOP)
		since := one[time.Time](s, `SELECT clock_timestamp()`)
		eventually.True(t, "the lease has expired", func() bool {
			return one[bool](s, `SELECT clock_timestamp() > $1::timestamptz + $2 * interval '1 second'`, since, stopped.Seconds())
		})
		r.add()
		r.passedOn("refund", victim)
		victim.signal(syscall.SIGCONT)
		handOvers += 2
	}
	s.untilSettled("charge")
	s.untilSettled("refund")

	if wrong := one[int](s, `SELECT count(*) FROM reconciler.pending_confirmations
		WHERE status <> CASE left(biz_id, 1) WHEN 'S' THEN 'SUCCESS' ELSE 'FAILED' END OR receipt->>'callId' <> call_id OR version <> 1`); wrong != 0 {
		t.Errorf("%d calls have the wrong verdict, or more than one write", wrong)
	}
	if got := one[string](s, `SELECT count(*) || ' ' || count(DISTINCT call_id) FROM reconciler.call_events WHERE kind = 'verdict'`); got != fmt.Sprint(calls, calls) {
		t.Errorf("verdicts in the ledger and calls they are about: %s, want %d of each", got, calls)
	}
	mu.Lock()
	defer mu.Unlock()
	total, most := 0, slices.Max(slices.Collect(maps.Values(asked)))
	for _, times := range asked {
		total += times
	}
	t.Logf("%d calls, %d asked for again after %d hand-overs, one at most %d times", len(asked), total-calls, handOvers, most)
	// What was in hand, and what a process that was stopped begins before it knows that the lease is lost.
	if len(asked) != calls || total-calls > handOvers*2*concurrency*batch || most > 1+handOvers {
		t.Errorf("%d of %d calls were asked for, %d of them again, one %d times", len(asked), calls, total-calls, most)
	}
	var runs []struct{ Subject, Outcome, Holder, Error string }
	if err := s.db.Select(&runs, `SELECT subject, outcome, holder, coalesce(error, '') AS error FROM reconciler.runs WHERE task = 'reconcile' ORDER BY id`); err != nil {
		t.Fatal(err)
	}
	killed, lost := 0, 0
	for _, run := range runs {
		switch {
		case run.Outcome == "running" && run.Subject == "charge":
			killed++
		case strings.Contains(run.Error, "the lease was lost") && run.Subject == "refund":
			lost++
		}
		var pid int
		if _, err := fmt.Sscanf(run.Holder[strings.Index(run.Holder, "/")+1:], "%d/", &pid); err != nil || r.running[pid] == nil {
			t.Errorf("a run is by %s, who is none of the replicas", run.Holder)
		}
	}
	if killed != rounds || lost != rounds {
		t.Errorf("on record are %d runs that were killed and %d that lost their lease, want %d of each: %v", killed, lost, rounds, runs)
	}
}
