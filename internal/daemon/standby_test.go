package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/internal/task"
)

// peer is another replica as the database shows it: it works from one instant to another, if it is not killed, and holds the
// lease as long as it works.
type peer struct {
	zero         time.Time
	begins, ends time.Duration
	expires      time.Duration // when the lease runs out for good; 0 is when it ends
	asked        atomic.Int64  // how often somebody tried to get the lease
}

func (p *peer) run(ctx context.Context) (task.Outcome, error) {
	p.asked.Add(1)
	until := p.ends
	if p.expires > 0 {
		until = p.expires
	}
	if left := until - time.Since(p.zero); left > 0 && time.Since(p.zero) >= p.begins {
		_ = pause.For(ctx, 2*time.Second) // so long task.Hold asks again
		if left -= 2 * time.Second; left > 0 {
			return "", fmt.Errorf("tool T: %w", &task.HeldError{Name: "reconcile:T", Holder: "peer", ExpiresIn: min(left, 13*time.Second)})
		}
	}
	return task.Success, nil
}

func (p *peer) last(context.Context) (*task.Run, error) {
	r := &task.Run{ID: 1, StartedAt: p.zero.Add(p.begins), Outcome: "running"}
	if since := time.Since(p.zero); since < p.begins {
		return ran(p.zero)(context.Background())
	} else if p.expires == 0 && since >= p.ends {
		end := p.zero.Add(p.ends)
		r.FinishedAt, r.Outcome = &end, task.Success
	}
	return r, nil
}

// beside runs a job beside the peer, and returns what was noted, less the attempts that found the lease held.
func beside(t *testing.T, p *peer, spec string, d time.Duration) []string {
	t.Helper()
	w := newWatch()
	p.zero = time.Now()
	serveFor(t, d, Config{Jobs: []Job{{
		Task: "reconcile", Subject: "T", Schedule: schedule(t, spec, "UTC"), Last: p.last, Watch: w, Run: p.run,
	}}})
	var notes []string
	for _, e := range w.all() {
		_, what, _ := strings.Cut(e, " ") // when an attempt is made depends on the jitter
		if what != "began" && !strings.HasPrefix(what, "skipped after") {
			notes = append(notes, what)
		}
	}
	return notes
}

func TestAnotherReplicaThatFinishesTheWorkIsWaitedForAndCountedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &peer{begins: time.Minute, ends: 100 * time.Second}
		if diff := cmp.Diff([]string{"skipped lease_held"}, beside(t, p, "* * * * *", 119*time.Second)); diff != "" {
			t.Error(diff)
		}
		if n := p.asked.Load(); n < 2 || n > 4 {
			t.Errorf("asked for the lease %d times in 40 s", n)
		}
	})
}

func TestAReplicaThatIsKilledIsReplacedBeforeTheNextTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Its run began at the tick and will never end; its lease runs out 40 s later, and the next tick is an hour away.
		p := &peer{begins: time.Hour, ends: 2 * time.Hour, expires: time.Hour + 40*time.Second}
		if diff := cmp.Diff([]string{"success after 0s"}, beside(t, p, "0 * * * *", time.Hour+58*time.Second)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestARunThatEndedBeforeTheTickIsNotTheWorkOfTheTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// It died after it got the lease and before it left its run on record: the latest one there is an earlier one.
		w, began := newWatch(), time.Now()
		serveFor(t, time.Hour+50*time.Second, Config{Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "@hourly", "UTC"), Last: ran(began), Watch: w,
			Run: func(context.Context) (task.Outcome, error) {
				if left := time.Hour + 15*time.Second - time.Since(began); left > 0 {
					return "", &task.HeldError{Name: "reconcile:T", ExpiresIn: left}
				}
				return task.Success, nil
			},
		}}})
		if w.count("success") != 1 || w.count("lease_held") != 0 {
			t.Errorf("%q", w.all())
		}
	})
}

func TestTicksDuringStandByAreFoldedIntoIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The peer works on and on, and a tick comes every 7 s, while the attempts for the lease take 2 s each.
		p := &peer{begins: 0, ends: time.Hour}
		got := beside(t, p, "@every 7s", 10*time.Minute)
		if diff := cmp.Diff([]string(nil), got); diff != "" {
			t.Error(diff)
		}
		if n := p.asked.Load(); n > 46 {
			t.Errorf("asked for the lease %d times in 10 minutes", n)
		}
	})
}

func TestAReplicaThatStartsWhileAnotherWorksStandsBy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &peer{begins: -5 * time.Minute, ends: 30 * time.Second}
		if diff := cmp.Diff([]string{"skipped lease_held"}, beside(t, p, "0 * * * *", time.Minute)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestStandByEndsWithTheScheduler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := &peer{begins: 0, ends: time.Hour}
		if got := beside(t, p, "@every 1h", 10*time.Second); len(got) > 0 || time.Since(began) != 10*time.Second {
			t.Errorf("%q, ended after %s", got, time.Since(began))
		}
	})
}

func TestTheLeaseIsAskedForAgainWhenItWouldHaveExpired(t *testing.T) {
	t.Parallel()
	for in, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Second, 0: time.Second, 5 * time.Second: 5 * time.Second,
		task.LeaseTTL: task.LeaseTTL, 24 * time.Hour: task.LeaseTTL, // nobody holds longer without renewing
	} {
		for range 100 {
			if got := standBy(&task.HeldError{ExpiresIn: in}); got < want || got >= want+time.Second {
				t.Errorf("expires in %s, asked again in %s", in, got)
			}
		}
	}
}

// A daily job whose run was cut short by the end of its replica would otherwise wait for the next day.
func TestARunThatWasStoppedIsGoneOnWithByTheReplicaThatStoodBy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcome task.Outcome
		err     string
		goesOn  int
	}{
		"stopped":          {task.Partial, "stopped by terminated", 1},
		"failed":           {task.Failed, "panic", 1},
		"some unanswered":  {task.Partial, "", 0},
		"done to its end ": {task.Success, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, began := newWatch(), time.Now()
				last := func(context.Context) (*task.Run, error) {
					if time.Since(began) < time.Hour+10*time.Second {
						return ran(began)(t.Context())
					}
					at := began.Add(time.Hour + 10*time.Second)
					r := &task.Run{ID: 2, StartedAt: began.Add(time.Hour), FinishedAt: &at, Outcome: c.outcome}
					if c.err != "" {
						r.Error = &c.err
					}
					return r, nil
				}
				serveFor(t, time.Hour+50*time.Second, Config{Jobs: []Job{{
					Task: "archive", Subject: "T", Schedule: schedule(t, "@hourly", "UTC"), Last: last, Watch: w,
					Run: func(context.Context) (task.Outcome, error) {
						if left := time.Hour + 10*time.Second - time.Since(began); left > 0 {
							return "", &task.HeldError{Name: "archive:T", ExpiresIn: left}
						}
						return task.Success, nil
					},
				}}})
				if w.count("success") != c.goesOn {
					t.Errorf("%q", w.all())
				}
			})
		})
	}
}
