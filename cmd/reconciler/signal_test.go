package main

import (
	"encoding/json"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Two tools, so that two batches are in hand. The rate lets a third one begin only long after the test.
const slowly = "batch_size: 10, rate: 0.001, timeout: 30s"

func TestOnSIGINTTheBatchesInHandAreFinishedAndNoOtherBegins(t *testing.T) {
	t.Parallel()
	s := newScene(t, slowly, "charge", "refund")
	s.park("charge", 30)
	s.park("refund", 30)
	arrived, proceed := make(chan query, 10), make(chan struct{})
	s.downstream.forget(func(q query) {
		arrived <- q
		select {
		case <-proceed:
			q.answer()
		case <-q.gone:
		}
	})
	p := s.start("run", "-o", "json", "--log-level", "error")
	inHand := slices.Concat(await(t, arrived, "a request").bizIDs, await(t, arrived, "a second one").bizIDs)
	p.signal(syscall.SIGINT)
	close(proceed)

	if code := p.exit(); code != 130 {
		t.Errorf("exit code %d, want 130; %s", code, &p.stderr)
	}
	slices.Sort(inHand)
	if got := s.settled(); len(got) != 20 || !slices.Equal(got, inHand) {
		t.Errorf("settled %q, in hand were %q", got, inHand)
	}
	if free := one[bool](s, `SELECT bool_and(expires_at <= clock_timestamp()) AND count(*) = 2 FROM reconciler.leases`); !free {
		t.Error("a lease was not given back")
	}
	if told := one[string](s, `SELECT string_agg(outcome || ' ' || (counts->>'scanned') || ' ' || error, ', ') FROM reconciler.runs`); told !=
		"partial 10 stopped by interrupt, partial 10 stopped by interrupt" {
		t.Errorf("on record is %q", told)
	}
	var rep report
	if err := json.Unmarshal(p.stdout.Bytes(), &rep); err != nil || rep.Outcome != "partial" || len(rep.Tools) != 2 {
		t.Errorf("stdout is %v, %q", err, &p.stdout)
	}
}

func TestTheSecondSIGINTEndsTheProcessAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t, slowly, "charge")
	s.park("charge", 30)
	arrived := make(chan query, 10)
	s.downstream.forget(func(q query) {
		arrived <- q
		<-q.gone // it is never answered
	})
	p := s.start("run")
	await(t, arrived, "a request")

	// Two signals of a kind that arrive together are one, so another is sent until the process has ended.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	sent := 0
	for ended := false; !ended; {
		p.signal(syscall.SIGINT)
		if sent++; sent > int(patience/(20*time.Millisecond)) {
			t.Fatal("it does not end")
		}
		select {
		case <-p.over:
			ended = true
		case <-again.C:
		}
	}
	if code := p.exit(); code != 130 || sent < 2 {
		t.Errorf("exit code %d after %d signals, want 130 after two; %s", code, sent, &p.stderr)
	}
	if got := s.settled(); len(got) != 0 || p.stdout.Len() > 0 {
		t.Errorf("settled %q, and said %q", got, &p.stdout)
	}
}
