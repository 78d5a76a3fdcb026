package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/partition"
)

// archiveReport is what `reconciler archive` prints; its field names are a contract.
type archiveReport struct {
	Task    string              `json:"task"`
	Outcome task.Outcome        `json:"outcome"`
	Tables  []partition.Summary `json:"tables"`
	DryRun  bool                `json:"dry_run,omitempty"`
}

func (a *app) archiveCommand() *cobra.Command {
	var only []string
	var limits partition.Limits
	var timeout time.Duration
	var out export
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Make partitions ahead, and archive those that are old and whose business is over",
		Long: `Archive works on the tables under 'partitions', one after another. It makes the partitions that are missing ahead, writes those
that are older than the retention into the archive, detaches them, and drops those that were detached long enough ago. A partition with
a row or a call that is still open is held, which is no failure: 'reconciler partitions explain' tells why.
It may be stopped at any time, also by kill -9; the next run goes on.`,
		Example: `  reconciler archive
  reconciler archive --table idempotency.keys --max 1 -o json
  reconciler archive --dry-run         look and decide, write nothing`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limits.Max < 0 || timeout < 0 {
				return usage(errors.New("--max and --timeout must not be negative"))
			}
			if err := out.check(); err != nil {
				return usage(err)
			}
			c, err := a.load()
			if err != nil {
				return err
			}
			return a.archiveTables(cmd.Context(), c, only, limits, timeout, out)
		},
	}
	tableFlag(cmd, &only)
	cmd.Flags().IntVar(&limits.Max, "max", 0, "begin with at most `N` partitions of each table; 0 is max_per_run of the configuration")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "stop after `DURATION`; 0 is no limit")
	out.flags(cmd)
	cmd.Flags().BoolVarP(&limits.DryRun, "dry-run", "n", false, "look and decide, and write nothing")
	return cmd
}

func tableFlag(cmd *cobra.Command, only *[]string) {
	cmd.Flags().StringArrayVar(only, "table", nil, "only this `TABLE`; may be given more than once")
}

func (a *app) archiveTables(ctx context.Context, c *config.Config, only []string, limits partition.Limits, timeout time.Duration, out export) error {
	chosen, err := chosenTables(c, only)
	if err != nil {
		return usage(err)
	}
	db, err := a.ready(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	leave := out.beginTables(a)
	progress := &archiveProgress{a: a}
	w, err := a.wireTables(c, db, task.NewHolder(), limits.Max, progress.update)
	defer func() { _ = w.close() }()
	if err != nil {
		return usage(err)
	}
	defer leave(ctx, w)

	ctx, stopNow := context.WithCancelCause(ctx)
	defer stopNow(nil)
	if timeout > 0 {
		limit := time.AfterFunc(timeout, func() { stopNow(fmt.Errorf("the time limit of %s was reached", timeout)) })
		defer limit.Stop()
	}
	defer context.AfterFunc(ctx, func() {
		a.log.Info("stopping; the next run goes on where this one ends", "because", context.Cause(ctx).Error())
	})()
	rep := archiveReport{Task: string(config.TaskArchive), DryRun: limits.DryRun}
	var outcomes []task.Outcome
	refused := false
	stop := progress.start()
	for _, t := range w.of(chosen) {
		sum, problem := archiveTable(ctx, t, limits)
		refused = refused || problem
		rep.Tables, outcomes = append(rep.Tables, sum), append(outcomes, sum.Outcome)
	}
	stop()
	rep.Outcome = agreed(outcomes)
	if err := a.printArchive(ctx, rep, w.of(chosen)); err != nil {
		return err
	}
	switch code := outcomeCode(rep.Outcome); {
	case refused:
		return &exitError{code: exitUsage}
	case code != exitDone:
		return &exitError{code: code}
	}
	return nil
}

// archiveTable works on one table. A problem is something that a person has to put right first; nothing is done then.
func archiveTable(ctx context.Context, t *partitioned, limits partition.Limits) (sum partition.Summary, problem bool) {
	if err := t.Check(ctx); isProblem(err) {
		return partition.Summary{Table: t.name, Database: t.database, Outcome: task.Failed, Error: err.Error()}, true
	}
	sum, err := t.RunOnce(ctx, limits)
	if err != nil && ctx.Err() != nil {
		// What ended the context is clearer than what broke by it, and no failure.
		sum.Error = context.Cause(ctx).Error()
		if sum.Outcome == task.Failed {
			sum.Outcome = task.Partial
		}
	}
	return sum, false
}

func isProblem(err error) bool {
	problem, _ := errors.AsType[*partition.Problem](err)
	return problem != nil
}

func (a *app) printArchive(ctx context.Context, rep archiveReport, all []*partitioned) error {
	if a.output != "table" {
		return a.printJSON(rep)
	}
	t := table{head: []string{"TABLE", "OUTCOME", "DUE", "HELD", "EXPORTED", "DETACHED", "DROPPED", "MADE", "ROWS", "BYTES", "TOOK"}}
	held := 0
	for i, s := range rep.Tables {
		took := time.Duration(s.DurationSeconds * float64(time.Second)).Round(10 * time.Millisecond)
		t.add(words(printable.Text(all[i].Subject())), cell{text: string(s.Outcome), colour: outcomeColour(s.Outcome)}, number(s.Due), number(s.Held),
			number(s.Exported), number(s.Detached), number(s.Dropped), number(s.Made), number(int(s.Rows)), number(int(s.Bytes)),
			cell{text: took.String(), right: true})
		held += s.Held
	}
	t.print(a.out)
	for i, s := range rep.Tables {
		if s.Error != "" {
			fmt.Fprintf(a.out, "\n%s: %s\n", printable.Text(all[i].Subject()), printable.Text(s.Error))
		}
	}
	if rep.DryRun {
		return a.printOutlook(ctx, rep, all)
	}
	if held > 0 {
		fmt.Fprintf(a.out, "\n%d %s held; 'reconciler partitions explain' tells why.\n", held, plural(held, "partition is", "partitions are"))
	}
	return nil
}

// printOutlook lists what a run would archive, and what is held. max_per_run was counted before it was known which ones are held, and
// those give their places to others.
func (a *app) printOutlook(ctx context.Context, rep archiveReport, all []*partitioned) error {
	var list []explained
	for i, t := range all {
		if rep.Tables[i].Error != "" {
			continue
		}
		found, err := t.Explain(ctx)
		if err != nil {
			return fmt.Errorf("explaining the partitions of %s: %w", t.Subject(), err)
		}
		begun := 0
		for _, x := range found {
			switch x.State {
			case string(partition.StateDue):
				x.Reason = ""
				if begun++; begun > t.most {
					x.Reason = string(partition.ReasonMaxPerRun)
				}
			case string(partition.StateLive), string(partition.StepDetached), string(partition.StepDropped), string(partition.StepRestored):
				continue
			}
			list = append(list, explained{x, t.database})
		}
	}
	if len(list) > 0 {
		fmt.Fprintln(a.out)
		a.printPartitions(list, time.Now())
	}
	fmt.Fprintln(a.out, "\nA dry run: nothing was written.")
	return nil
}
