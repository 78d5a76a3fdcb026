package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/internal/demo"
	"github.com/callreceipt/reconciler/internal/localpg"
)

func (a *app) demoCommand() *cobra.Command {
	var calls int
	var seed uint64
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work on a private PostgreSQL, with calls that time out in every way",
		Long: `Demo starts a private PostgreSQL, a downstream service that executes every intent once and keeps receipts, and an orchestrator.
The orchestrator makes calls through a network that loses requests and answers. Mostly it finds out at once what became of a
call; where the look-up of the receipt is lost as well, the call is parked. Parked calls of one tool are sent again by the
reconciler itself, those of another by the orchestrator, to which they are handed off. Verdicts go to a webhook of the
orchestrator that verifies their signatures, refuses some and drops the answer to others.

When every call has its end, each is compared with what the downstream has on record and with what the webhook was told; the
exit code is 1 unless they all agree. It needs no configuration, touches no database of yours, and leaves nothing behind.

The logs are shown when --log-level is given.`,
		Example: `  reconciler demo
  reconciler demo --calls 10000 --seed 7
  reconciler demo -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if calls < 1 || calls > demo.MaxCalls {
				return usage(fmt.Errorf("--calls is %d and must be from 1 to %d", calls, demo.MaxCalls))
			}
			cfg := demo.Config{Calls: calls, Seed: seed}
			if cmd.Flags().Changed("log-level") {
				cfg.Log = a.log
			}
			return a.runDemo(cmd.Context(), cfg)
		},
	}
	cmd.Flags().IntVar(&calls, "calls", 2000, "make `N` calls")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "choose the faults by `S`; the same seed brings the same faults")
	return cmd
}

func (a *app) runDemo(ctx context.Context, cfg demo.Config) (err error) {
	stages := stages{a: a, inPlace: terminal(a.err), calls: cfg.Calls, seed: cfg.Seed}
	cfg.Progress = stages.update
	stages.update(stageStarting, 0, 0)
	server, err := localpg.Start(ctx, localpg.Options{})
	if err != nil {
		stages.over()
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	cfg.DSN = server.DSN("")
	result, err := demo.Run(ctx, cfg)
	stages.over()
	if err != nil {
		return err
	}
	if a.output == "table" {
		a.printDemo(result, cfg)
	} else if err := a.printJSON(result.Summary); err != nil {
		return err
	}
	if !result.Good() {
		for _, p := range result.Problems {
			fmt.Fprintln(a.err, p)
		}
		return &exitError{code: exitFailed}
	}
	return nil
}

// stageStarting comes before those of the demo itself.
const stageStarting demo.Stage = "starting"

// stages tells what the demo is doing: in place on a terminal, one line for each stage elsewhere.
type stages struct {
	a       *app
	inPlace bool
	calls   int
	seed    uint64

	mu      sync.Mutex
	current demo.Stage
	told    time.Time
}

func (s *stages) update(stage demo.Stage, done, total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew := stage != s.current
	if !isNew && (!s.inPlace || time.Since(s.told) < refreshEvery) {
		return
	}
	s.current, s.told = stage, time.Now()
	text := s.text(stage, total)
	if !s.inPlace {
		fmt.Fprintln(s.a.err, text)
		return
	}
	if done > 0 {
		text += fmt.Sprintf(": %s of %s", thousands(done), thousands(total))
	}
	fmt.Fprintf(s.a.err, "\r\x1b[K%s", text)
}

func (s *stages) text(stage demo.Stage, total int) string {
	switch stage {
	case demo.StageSending:
		return fmt.Sprintf("making %s %s (seed %d), parking those whose outcome stays unknown", thousands(s.calls), plural(s.calls, "call", "calls"), s.seed)
	case demo.StageSettling:
		return fmt.Sprintf("settling %s parked %s from receipts", thousands(total), plural(total, "call", "calls"))
	case demo.StageComparing:
		return "comparing every outcome with the downstream's records"
	}
	return "starting a private PostgreSQL"
}

// over ends the line that was written in place.
func (s *stages) over() {
	if s.inPlace {
		fmt.Fprint(s.a.err, "\r\x1b[K")
	}
}

func (a *app) printDemo(r demo.Result, cfg demo.Config) {
	fmt.Fprintf(a.out, "%s %s through a network that loses requests and answers; %d tools, seed %d.\n", thousands(r.Calls),
		plural(r.Calls, "call", "calls"), len(demo.Tools), cfg.Seed)
	fmt.Fprintf(a.out, "%s brought no answer at first; %s of them %s parked. All of it took %s.\n\n", thousands(r.TimedOut), thousands(r.Suspended),
		plural(r.Suspended, "was", "were"), time.Duration(r.DurationSeconds*float64(time.Second)).Round(100*time.Millisecond))
	a.printWays(r)
	fmt.Fprintln(a.out)
	a.printNews(r)
	fmt.Fprintln(a.out)
	a.printChecks(r)
	if r.Example != nil {
		fmt.Fprintln(a.out)
		a.printExample(*r.Example)
	}
	fmt.Fprint(a.out, `
Where to go next
  README.md                  park your first call and settle it
  reconciler config check    see whether your configuration is good, and what it will do when
  docs/decision-table.md     the rules behind every verdict
`)
}

func (a *app) printWays(r demo.Result) {
	t := table{head: []string{"WHAT HAPPENED TO THE CALL", "CALLS", "AT ONCE", "PARKED", "SUCCESS", "FAILED", "MANUAL", "SENT AGAIN", "EFFECTS"}}
	if r.Open > 0 {
		t.head = append(t.head, "OPEN")
	}
	add := func(what string, row demo.Row) {
		cells := []cell{
			words(what), number(row.Calls), number(row.AtOnce), number(row.Parked), number(row.Success), number(row.Failed), number(row.Manual),
			number(row.SentAgain), number(row.Effects),
		}
		if r.Open > 0 {
			cells = append(cells, number(row.Open))
		}
		t.add(cells...)
	}
	for _, row := range r.Rows {
		add(row.Way.String(), row)
	}
	add("total", demo.Row{
		Calls: r.Calls, AtOnce: r.AtOnce, Parked: r.Suspended, Success: r.Success, Failed: r.Failed, Manual: r.Manual, Open: r.Open,
		SentAgain: r.Retried, Effects: r.Effects,
	})
	t.print(a.out)
}

// printNews tells who sent again, and how the orchestrator heard of the verdicts.
func (a *app) printNews(r demo.Result) {
	t := table{head: []string{"", "", ""}}
	line := func(n int, what, detail string) {
		t.add(cell{text: thousands(n), right: true}, words(what), cell{text: detail, colour: dim})
	}
	signatures := "every signature is valid"
	if n := r.Deliveries.Invalid; n > 0 {
		signatures = thousands(n) + " more with an invalid signature"
	}
	line(r.Retried-r.Dispatched-r.HandedOff, "sent again at once by the caller", "toolcall: nothing had arrived")
	line(r.Dispatched, "sent again by the reconciler", "mode dispatch, from the stored request")
	line(r.HandedOff, "sent again by the orchestrator", "mode handoff, taken with pending.TakeRetries")
	line(r.Deliveries.Verdicts, plural(r.Deliveries.Verdicts, "verdict", "verdicts")+" taken by the webhook", signatures)
	line(r.Deliveries.Repeats, plural(r.Deliveries.Repeats, "delivery", "deliveries")+" repeated", "after a refusal, or known by the webhook-id")
	line(r.Awaited, plural(r.Awaited, "verdict", "verdicts")+" also awaited on the spot", "with pending.Await")
	t.print(a.out)
}

func (a *app) printChecks(r demo.Result) {
	t := table{head: []string{"", "", "", ""}}
	check := func(n int, what, meaning string) {
		mark := cell{text: "✓", colour: green}
		if n > 0 {
			mark, meaning = cell{text: "✗", colour: red}, "must be 0; stderr tells which they are"
		}
		t.add(mark, cell{text: thousands(n), right: true}, words(what), cell{text: meaning, colour: dim})
	}
	check(r.Open, "open calls", "each that was parked has a verdict, or waits for a person with the reason")
	check(r.DuplicateEffects, "duplicate effects", "no intent was executed twice, though calls were sent again")
	check(r.WrongVerdicts, "wrong verdicts", "each is what the downstream has on record, and what the webhook was told")
	check(r.Lost, "lost calls", "of each its caller knows the outcome, or it has a row")
	t.print(a.out)
}

func (a *app) printExample(e demo.Example) {
	fmt.Fprintf(a.out, "One of them, call %s of %s: %s\n", e.CallID, e.Tool, e.Way)
	t := table{head: []string{"", "", "", "", ""}}
	for _, m := range e.Moments {
		t.add(cell{text: fmt.Sprintf("  +%.3fs", m.After.Seconds()), right: true, colour: dim}, words(fmt.Sprintf("send %d", m.Send)), words(m.What), words(m.Reason),
			cell{text: "by the " + m.By, colour: dim})
	}
	t.print(a.out)
}
