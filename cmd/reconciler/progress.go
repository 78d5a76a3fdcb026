package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/partition"
	"github.com/callreceipt/reconciler/reconcile"
)

// How often progress is told: on a terminal in place, elsewhere as a line of the log.
const (
	refreshEvery = 200 * time.Millisecond
	logEvery     = 5 * time.Second
)

// progress adds up what all tools have done so far.
type progress struct {
	a     *app
	tools int

	mu   sync.Mutex
	sums map[string]reconcile.Summary
}

func newProgress(a *app, tools int) *progress {
	return &progress{a: a, tools: tools, sums: map[string]reconcile.Summary{}}
}

func (p *progress) update(s reconcile.Summary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sums[s.Tool] = s
}

func (p *progress) total() (sum reconcile.Summary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sums {
		sum.Scanned += s.Scanned
		sum.Success += s.Success
		sum.Failed += s.Failed
		sum.Retry += s.Retry
		sum.Manual += s.Manual
		sum.Waiting += s.Waiting
		sum.Unanswered += s.Unanswered
		sum.Requests += s.Requests
	}
	return sum
}

// start tells progress until the returned function is called.
func (p *progress) start() (stop func()) { return p.a.keepTelling(p.tell) }

// keepTelling calls tell again and again until the returned function is called.
func (a *app) keepTelling(tell func(inPlace bool, took time.Duration)) (stop func()) {
	inPlace := terminal(a.err)
	every := logEvery
	if inPlace {
		every = refreshEvery
	}
	began := time.Now()
	over := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				tell(inPlace, time.Since(began))
			}
		}
	})
	return func() {
		close(over)
		done.Wait()
		if inPlace {
			fmt.Fprint(a.err, "\r\x1b[K")
		}
	}
}

func (p *progress) tell(inPlace bool, took time.Duration) {
	s := p.total()
	perSecond := int(float64(s.Scanned) / took.Seconds())
	if !inPlace {
		p.a.log.Info("progress", "scanned", s.Scanned, "settled", s.Success+s.Failed, "retry", s.Retry, "manual", s.Manual,
			"waiting", s.Waiting, "unanswered", s.Unanswered, "requests", s.Requests, "calls_per_second", perSecond)
		return
	}
	fmt.Fprintf(p.a.err, "\r\x1b[K%s calls  %s settled  %s retry  %s manual  %s waiting  %s unanswered  %s/s  %s",
		thousands(s.Scanned), thousands(s.Success+s.Failed), thousands(s.Retry), thousands(s.Manual), thousands(s.Waiting),
		thousands(s.Unanswered), thousands(perSecond), took.Round(time.Second))
}

// archiveProgress is how far the partition in hand is.
type archiveProgress struct {
	a *app

	mu     sync.Mutex
	latest partition.Progress
}

func (p *archiveProgress) update(latest partition.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = latest
}

func (p *archiveProgress) start() (stop func()) { return p.a.keepTelling(p.tell) }

func (p *archiveProgress) tell(inPlace bool, took time.Duration) {
	p.mu.Lock()
	at := p.latest
	p.mu.Unlock()
	switch {
	case at.Partition == "": // it still looks for one
	case inPlace:
		fmt.Fprintf(p.a.err, "\r\x1b[K%s  %s  %s rows  %s", printable.Text(at.Partition), at.Step, thousands(int(at.Rows)), took.Round(time.Second))
	default:
		p.a.log.Info("progress", "table", at.Table, "partition", at.Partition, "step", string(at.Step), "rows", at.Rows)
	}
}
