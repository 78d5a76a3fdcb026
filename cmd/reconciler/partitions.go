package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/partition"
	"github.com/callreceipt/reconciler/pending"
)

func (a *app) partitionsCommand() *cobra.Command {
	return group("partitions", "See partitions and why they are held, make them ahead, bring them back, verify the archive",
		a.partitionsListCommand(), a.partitionsExplainCommand(), a.partitionsEnsureCommand(), a.partitionsRestoreCommand(), a.partitionsVerifyCommand())
}

// explained is what `partitions list` and `explain` print of one partition; its field names are a contract.
type explained struct {
	partition.Explained
	Database string `json:"database,omitempty"` // when it is not the reconciler's
}

func (a *app) partitionsListCommand() *cobra.Command {
	var only []string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List partitions, the oldest first, and what the last run found of them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.listPartitions(cmd.Context(), only, "", (*partition.Archiver).List)
		},
	}
	tableFlag(cmd, &only)
	return cmd
}

func (a *app) partitionsExplainCommand() *cobra.Command {
	var only []string
	cmd := &cobra.Command{
		Use:   "explain [PARTITION]",
		Short: "Look into the old partitions and tell of each whether it is due or held, by which row or call, and since when",
		Example: `  reconciler partitions explain
  reconciler partitions explain keys_20240501 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.listPartitions(cmd.Context(), only, strings.Join(args, ""), (*partition.Archiver).Explain)
		},
	}
	tableFlag(cmd, &only)
	return cmd
}

// onTables runs do on the tables that were chosen.
func (a *app) onTables(ctx context.Context, only []string, do func(*sqlx.DB, []*partitioned) error) error {
	c, err := a.load()
	if err != nil {
		return err
	}
	chosen, err := chosenTables(c, only)
	if err != nil {
		return usage(err)
	}
	return a.onChosen(ctx, c, chosen, do)
}

func (a *app) onChosen(ctx context.Context, c *config.Config, chosen []config.Partition, do func(*sqlx.DB, []*partitioned) error) error {
	db, err := a.ready(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	w, err := a.wireTables(c, db, task.NewHolder(), 0, nil)
	defer func() { _ = w.close() }()
	if err != nil {
		return usage(err)
	}
	return do(db, w.of(chosen))
}

// listPartitions prints what ask finds of every partition, or of the one with that name. What is wrong with one table does not keep it
// from the others.
func (a *app) listPartitions(ctx context.Context, only []string, name string, ask func(*partition.Archiver, context.Context) ([]partition.Explained, error)) error {
	return a.onTables(ctx, only, func(db *sqlx.DB, all []*partitioned) error {
		var list []explained
		var failures []error
		for _, t := range all {
			found, err := ask(t.Archiver, ctx)
			if err != nil {
				failures = append(failures, err)
			}
			for _, x := range found {
				if name == "" || name == x.Partition || name == x.Partition[strings.LastIndex(x.Partition, ".")+1:] {
					list = append(list, explained{x, t.database})
				}
			}
		}
		failure := errors.Join(failures...)
		if isProblem(failure) {
			failure = usage(failure)
		}
		switch {
		case name != "" && len(list) == 0 && failure == nil:
			return fmt.Errorf("there is no partition %s, and the journal knows none; 'reconciler partitions list' shows all", printable.ID(name))
		case a.output != "table":
			return errors.Join(printList(a, list), failure)
		case len(list) == 0:
			if failure == nil {
				fmt.Fprintln(a.out, "No partitions.")
			}
			return failure
		}
		now, err := pending.NewStore(db).Now(ctx)
		if err != nil {
			return err
		}
		a.printPartitions(list, now)
		return failure
	})
}

func (a *app) printPartitions(list []explained, now time.Time) {
	t := table{head: []string{"TABLE", "PARTITION", "FROM", "TO", "STATE", "REASON", "EXAMPLE", "SINCE", "ROWS"}}
	for _, x := range list {
		since := ""
		if x.Since != nil {
			since = ago(*x.Since, now)
		}
		name := x.Table
		if x.Database != "" {
			name += "@" + x.Database
		}
		t.add(words(printable.Text(name)), words(printable.Text(x.Partition)), words(x.Lower), words(x.Upper),
			cell{text: x.State, colour: stateColour(x)}, words(x.Reason), words(printable.Text(x.Example)), words(since), number(int(x.Rows)))
	}
	t.print(a.out)
	for _, x := range list {
		if x.Error != "" {
			fmt.Fprintf(a.out, "\n%s: the last step failed: %s\n", printable.Text(x.Partition), printable.Text(x.Error))
		}
	}
}

func stateColour(x explained) colour {
	switch {
	case x.Error != "":
		return red
	case x.State == string(partition.StateHeld):
		return yellow
	case x.State == string(partition.StateLive), x.State == string(partition.StateDue):
		return plain
	}
	return green
}

// ensured is what `partitions ensure` prints of one table; its field names are a contract.
type ensured struct {
	partition.Ensured
	Database string `json:"database,omitempty"`
}

func (a *app) partitionsEnsureCommand() *cobra.Command {
	var only []string
	cmd := &cobra.Command{
		Use:   "ensure",
		Short: "Make the partitions that are missing ahead",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onTables(cmd.Context(), only, func(_ *sqlx.DB, all []*partitioned) error {
				return a.ensure(cmd.Context(), all)
			})
		},
	}
	tableFlag(cmd, &only)
	return cmd
}

func (a *app) ensure(ctx context.Context, all []*partitioned) error {
	var list []ensured
	var failures []error
	for _, t := range all {
		made, err := t.Ensure(ctx)
		if err != nil {
			failures = append(failures, err)
		}
		list = append(list, ensured{made, t.database})
	}
	failure := errors.Join(failures...)
	if isProblem(failure) {
		failure = usage(failure)
	}
	if a.output != "table" {
		return errors.Join(printList(a, list), failure)
	}
	for i, e := range list {
		until := ""
		if e.Until != "" {
			until = fmt.Sprintf("; there are partitions until %s", e.Until)
		}
		fmt.Fprintf(a.out, "%s: %d %s made%s\n", printable.Text(all[i].Subject()), len(e.Made), plural(len(e.Made), "partition", "partitions"), until)
		for _, name := range e.Made {
			fmt.Fprintf(a.out, "  %s\n", printable.Text(name))
		}
	}
	return failure
}

func (a *app) partitionsRestoreCommand() *cobra.Command {
	var only string
	cmd := &cobra.Command{
		Use:   "restore PARTITION",
		Short: "Bring an archived partition back under its table",
		Long: `Restore attaches a partition again that was detached, or loads one that was dropped from its archive object. Either way its rows
are compared with the object first. Archiving leaves it alone for drop_after. The watermark stays: what was issued below it is refused.`,
		Example: `  reconciler partitions restore keys_20240501 --table idempotency.keys`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load()
			if err != nil {
				return err
			}
			var names []string
			if only != "" {
				names = []string{only}
			}
			chosen, err := chosenTables(c, names)
			if err != nil {
				return usage(err)
			}
			if len(chosen) > 1 {
				var subjects []string
				for _, p := range chosen {
					subjects = append(subjects, p.Subject())
				}
				return usage(fmt.Errorf("which table is it of? --table must name one of %v", subjects))
			}
			return a.onChosen(cmd.Context(), c, chosen, func(_ *sqlx.DB, all []*partitioned) error {
				return a.restore(cmd.Context(), all[0], args[0])
			})
		},
	}
	cmd.Flags().StringVar(&only, "table", "", "the `TABLE` it is of; needed when several are configured")
	return cmd
}

func (a *app) restore(ctx context.Context, t *partitioned, name string) error {
	done, err := t.Restore(ctx, name)
	if held, _ := errors.AsType[*task.HeldError](err); held != nil {
		return &exitError{code: exitNotRun, err: err}
	}
	if err != nil {
		return fmt.Errorf("restoring %s of %s: %w", printable.ID(name), t.Subject(), err)
	}
	if a.output != "table" {
		return a.printJSON(done)
	}
	fmt.Fprintf(a.out, "%s is back under %s with %s %s, equal to %s.\n", printable.Text(done.Partition), printable.Text(t.Subject()),
		thousands(int(done.Rows)), plural(int(done.Rows), "row", "rows"), done.Object)
	return nil
}
