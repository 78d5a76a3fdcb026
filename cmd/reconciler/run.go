package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/reconcile"
)

// toolsAtOnce bounds the tools that one run works on at the same time. Each holds a connection for its lease.
const toolsAtOnce = 32

// unknownLimit is where the calls of an unknown tool are no longer counted.
const unknownLimit = 10_000

// report is what `reconciler run` prints; its field names are a contract.
type report struct {
	Task    string              `json:"task"`
	Outcome task.Outcome        `json:"outcome"`
	Tools   []reconcile.Summary `json:"tools"`
	// UnknownTools have open calls and are not configured; nobody touches those.
	UnknownTools []pending.ToolCount `json:"unknown_tools,omitempty"`
	// Notifications are the webhooks; no verdict waited for them.
	Notifications []reconcile.NotifySummary `json:"notifications,omitempty"`
	DryRun        bool                      `json:"dry_run,omitempty"`
}

func (a *app) runCommand() *cobra.Command {
	var tools []string
	var limits reconcile.Limits
	var timeout time.Duration
	var out export
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Look at every due call once and give it its verdict",
		Long: `Run makes one pass over the due calls of each tool: it asks the downstream for receipts, decides, and writes the verdicts.
It may be stopped at any time: SIGINT finishes the batches in hand, and after kill -9 the next run goes on.`,
		Example: `  reconciler run
  reconciler run --tool payment.charge --limit 1000 -o json
  reconciler run --dry-run             ask and decide, write nothing`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limits.Rows < 0 || timeout < 0 {
				return usage(errors.New("--limit and --timeout must not be negative"))
			}
			if err := out.check(); err != nil {
				return usage(err)
			}
			c, err := a.load()
			if err != nil {
				return err
			}
			return a.runTools(cmd.Context(), c, tools, limits, timeout, out)
		},
	}
	cmd.Flags().StringArrayVar(&tools, "tool", nil, "only this `TOOL`; may be given more than once")
	cmd.Flags().IntVar(&limits.Rows, "limit", 0, "stop after about `N` calls of each tool; 0 is no limit")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "begin no new batch after `DURATION`; 0 is no limit")
	out.flags(cmd)
	cmd.Flags().BoolVarP(&limits.DryRun, "dry-run", "n", false, "ask and decide, and write nothing")
	return cmd
}

func (a *app) runTools(ctx context.Context, c *config.Config, only []string, limits reconcile.Limits, timeout time.Duration, out export) error {
	names, err := chosen(c, only)
	if err != nil {
		return usage(err)
	}
	db, err := a.ready(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	defer out.begin(a, c)(ctx, db)
	progress := newProgress(a, len(names))
	w, err := a.wire(c, db, names, progress.update)
	defer w.close()
	if err != nil {
		return usage(err)
	}
	rep := report{Task: "reconcile", DryRun: limits.DryRun}
	rep.UnknownTools = a.unknownTools(ctx, c, db)
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the time limit of %s was reached", timeout))
		defer cancel()
	}
	defer context.AfterFunc(ctx, func() {
		a.log.Info("finishing the batches in hand; interrupt again to stop at once", "because", context.Cause(ctx).Error())
	})()
	stop := progress.start()
	delivered := func() []reconcile.NotifySummary { return nil }
	if !limits.DryRun {
		delivered = w.notifyMeanwhile(ctx)
	}
	rep.Tools = runAll(ctx, w.tools, limits)
	rep.Notifications = delivered()
	stop()
	rep.Outcome = overall(rep)
	if err := a.printReport(rep); err != nil {
		return err
	}
	if code := outcomeCode(rep.Outcome); code != exitDone {
		return &exitError{code: code}
	}
	return nil
}

// runAll passes over every tool; the trouble of one does not slow another.
func runAll(ctx context.Context, tools []*reconcile.Reconciler, limits reconcile.Limits) []reconcile.Summary {
	sums := make([]reconcile.Summary, len(tools))
	var group errgroup.Group
	group.SetLimit(toolsAtOnce)
	for i, tool := range tools {
		group.Go(func() error {
			var err error
			sums[i], err = tool.RunOnce(ctx, limits)
			// The summary carries the error; what ended the context is clearer than "deadline exceeded" at a place within.
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				sums[i].Error = context.Cause(ctx).Error()
			}
			return nil
		})
	}
	_ = group.Wait()
	return sums
}

// unknownTools reports open calls whose tool is not configured.
func (a *app) unknownTools(ctx context.Context, c *config.Config, db *sqlx.DB) []pending.ToolCount {
	known := make([]string, 0, len(c.Tools))
	for name := range c.Tools {
		known = append(known, name)
	}
	unknown, err := pending.NewStore(db).UnknownTools(ctx, known, unknownLimit)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("calls of tools that are not configured could not be looked for", "error", err)
	}
	for _, u := range unknown {
		a.log.Warn("open calls of a tool that is not configured are touched by nobody; add it under 'tools'",
			"reason", "unknown_tool", "tool", printable.ID(u.Tool), "calls", u.Calls)
	}
	return unknown
}

// overall is success, failed or skipped when all tools agree on it, and partial otherwise; also when not every verdict
// could be delivered.
func overall(rep report) task.Outcome {
	outcomes := make([]task.Outcome, len(rep.Tools))
	for i, s := range rep.Tools {
		outcomes[i] = s.Outcome
	}
	outcome := agreed(outcomes)
	for _, n := range rep.Notifications {
		if outcome == task.Success && n.Outcome != task.Success && n.Outcome != task.Skipped {
			return task.Partial
		}
	}
	return outcome
}

// agreed is the outcome of all of them, or partial when they do not agree.
func agreed(outcomes []task.Outcome) task.Outcome {
	if len(slices.Compact(slices.Clone(outcomes))) > 1 {
		return task.Partial
	}
	return outcomes[0]
}

func (a *app) printReport(rep report) error {
	if a.output != "table" {
		return a.printJSON(rep)
	}
	t := table{head: []string{"TOOL", "OUTCOME", "SCANNED", "SUCCESS", "FAILED", "RETRY", "MANUAL", "WAITING", "UNANSWERED", "REQUESTS", "SENT", "TOOK"}}
	for _, s := range rep.Tools {
		took := time.Duration(s.DurationSeconds * float64(time.Second)).Round(10 * time.Millisecond)
		t.add(words(printable.Text(s.Tool)), cell{text: string(s.Outcome), colour: outcomeColour(s.Outcome)}, number(s.Scanned), number(s.Success),
			number(s.Failed), number(s.Retry), number(s.Manual), number(s.Waiting), number(s.Unanswered), number(s.Requests), number(s.Sent),
			cell{text: took.String(), right: true})
	}
	t.print(a.out)
	for _, s := range rep.Tools {
		if s.Error != "" {
			fmt.Fprintf(a.out, "\n%s: %s\n", printable.Text(s.Tool), printable.Text(s.Error))
		}
	}
	for _, n := range rep.Notifications {
		fmt.Fprintf(a.out, "\n%s: %s verdicts delivered, %s not taken, %s given up", printable.Text(n.Tool), thousands(n.Delivered), thousands(n.Failed), thousands(n.GivenUp))
		if n.Error != "" {
			fmt.Fprintf(a.out, ": %s", printable.Text(n.Error))
		}
		fmt.Fprintln(a.out)
	}
	if rep.DryRun {
		fmt.Fprintln(a.out, "\nA dry run: nothing was written.")
	}
	return nil
}

func outcomeColour(o task.Outcome) colour {
	switch o {
	case task.Success:
		return green
	case task.Failed:
		return red
	case task.Partial, task.Skipped:
	}
	return yellow
}
