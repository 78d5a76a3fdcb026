package daemon

import (
	"sync"
	"time"
)

const (
	// restate is how often the log repeats a trouble that goes on.
	restate = time.Hour
	// databaseQuiet is how often, at most, the log says that the database is away, whoever is hit: 40 jobs fail at once, and
	// a server without free slots takes one and refuses the next.
	databaseQuiet = 10 * time.Minute
)

// trouble decides what is said of failures: the first one, and not the thousandth. A spell of it goes from the first failure
// to the next success of any job that was hit.
type trouble struct {
	quiet time.Duration // at least so long between two lines, whatever the news

	mu    sync.Mutex
	spell spell
	hit   map[*entry]bool // in this spell
	kind  string          // of the latest failure
	said  time.Time       // when the latest line was written, in whatever spell
}

// spell is how long trouble lasted, or has so far.
type spell struct {
	since    time.Time
	failures int
	told     bool // the log says so
}

// failed counts a failure and returns whether the log is to speak of it: when it is the first one, of another kind than the one
// before, of a job that was not hit before, or an hour after the latest line.
func (t *trouble) failed(e *entry, kind string, now time.Time) (s spell, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.spell.failures == 0 {
		t.spell.since, t.hit = now, map[*entry]bool{}
	}
	t.spell.failures++
	pause := restate
	if !t.spell.told || kind != t.kind || !t.hit[e] {
		pause = t.quiet
	}
	t.kind, t.hit[e] = kind, true
	if tell = t.said.IsZero() || now.Sub(t.said) >= pause; tell {
		t.said, t.spell.told = now, true
	}
	return t.spell, tell
}

// worked ends the spell if the job was hit by it, and returns it.
func (t *trouble) worked(e *entry) (s spell, over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hit[e] {
		return spell{}, false
	}
	s, t.spell, t.hit = t.spell, spell{}, nil
	return s, true
}
