package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/pending"
)

// ledgerLimit bounds the timeline of one call.
const ledgerLimit = 200

func (a *app) callsCommand() *cobra.Command {
	return group("calls", "See parked calls, their verdicts and why", a.callsListCommand(), a.callsShowCommand())
}

func (a *app) callsListCommand() *cobra.Command {
	var f pending.Filter
	var status string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List open calls, those that are due first, first",
		Example: `  reconciler calls list --status MANUAL
  reconciler calls list --biz ORD-7 -o jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.Statuses, err = statuses(status, f); err != nil {
				return usage(err)
			}
			if f.Limit < 1 {
				return usage(fmt.Errorf("--limit is %d and must be at least 1", f.Limit))
			}
			return a.onDatabase(cmd.Context(), a.ready, func(db *sqlx.DB) error {
				return a.listCalls(cmd.Context(), pending.NewStore(db), f)
			})
		},
	}
	cmd.Flags().StringVar(&f.Tool, "tool", "", "only calls of this `TOOL`")
	cmd.Flags().StringVar(&status, "status", "", "only calls in this `STATUS`; 'any' for all (default: open calls, and all with --biz)")
	cmd.Flags().StringVar(&f.BizID, "biz", "", "only calls of this `BIZID`")
	cmd.Flags().StringVar(&f.Reason, "reason", "", "only calls with this `REASON`")
	cmd.Flags().IntVar(&f.Limit, "limit", 50, "at most `N` calls")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions([]string{"PENDING", "RETRY", "MANUAL", "SUCCESS", "FAILED", "any"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) listCalls(ctx context.Context, store *pending.Store, f pending.Filter) error {
	calls, err := store.List(ctx, f)
	if err != nil {
		return err
	}
	if a.output != "table" {
		return printList(a, calls)
	}
	now, err := store.Now(ctx)
	if err != nil {
		return err
	}
	a.printCalls(calls, f, now)
	return nil
}

// statuses reads --status. Who names an order wants all of its calls; who names nothing wants what is not settled.
func statuses(flag string, f pending.Filter) ([]pending.Status, error) {
	one := pending.Status(strings.ToUpper(flag))
	switch {
	case slices.Contains(pending.Statuses, one):
		return []pending.Status{one}, nil
	case strings.EqualFold(flag, "any"), flag == "" && f.BizID != "":
		return pending.Statuses, nil
	case flag == "":
		return []pending.Status{pending.StatusPending, pending.StatusRetry, pending.StatusManual}, nil
	}
	return nil, fmt.Errorf("--status is %q and must be one of %v, or any", flag, pending.Statuses)
}

func (a *app) printCalls(calls []pending.Record, f pending.Filter, now time.Time) {
	if len(calls) == 0 {
		fmt.Fprintln(a.out, "No calls.")
		return
	}
	t := table{head: []string{"CALL", "BIZ", "TOOL", "OPERATION", "STATUS", "REASON", "TRY", "ISSUED", "NEXT LOOK"}}
	for _, c := range calls {
		next := ago(c.NextCheckAt, now)
		if c.Status.Terminal() {
			next = ""
		}
		t.add(words(printable.ID(c.CallID)), words(printable.ID(c.BizID)), words(printable.ID(c.Tool)), words(printable.ID(c.Operation)),
			cell{text: string(c.Status), colour: statusColour(c.Status)}, words(printable.Text(c.Reason)), number(c.Attempt),
			words(ago(c.IssuedAt, now)), words(next))
	}
	t.print(a.out)
	if len(calls) == f.Limit {
		fmt.Fprintf(a.err, "The first %d calls; there may be more: --limit, or -o jsonl.\n", f.Limit)
	}
}

func statusColour(s pending.Status) colour {
	switch s {
	case pending.StatusSuccess:
		return green
	case pending.StatusFailed:
		return red
	case pending.StatusRetry, pending.StatusManual:
		return yellow
	case pending.StatusPending:
	}
	return plain
}

// story is what `calls show` prints of one call; its field names are a contract.
type story struct {
	Call    pending.Record  `json:"call"`
	Events  []pending.Entry `json:"events"`
	LastRun *task.Run       `json:"last_run"` // of the call's tool
}

func (a *app) callsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show CALLID",
		Short: "Show one call: where it stands and why, its ledger as a timeline, its receipt",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onDatabase(cmd.Context(), a.ready, func(db *sqlx.DB) error {
				return a.showCall(cmd.Context(), db, args[0])
			})
		},
	}
}

func (a *app) showCall(ctx context.Context, db *sqlx.DB, callID string) error {
	store := pending.NewStore(db)
	var s story
	var err error
	if s.Call, err = store.Find(ctx, callID); errors.Is(err, pending.ErrNoSuchCall) {
		return fmt.Errorf("%w; 'reconciler calls list --biz BIZID' finds the calls of a bizId", err)
	} else if err != nil {
		return err
	}
	if s.Events, err = store.Ledger(ctx, callID, ledgerLimit); err != nil {
		return err
	}
	if s.LastRun, err = task.Latest(ctx, db, "reconcile", s.Call.Tool); err != nil {
		return err
	}
	if a.output != "table" {
		return a.printJSON(s)
	}
	now, err := store.Now(ctx)
	if err != nil {
		return err
	}
	a.printStory(s, now)
	return nil
}

func (a *app) printStory(s story, now time.Time) {
	c := s.Call
	var t table
	t.head = []string{"", ""}
	field := func(name string, value cell) {
		if value.text != "" {
			t.add(cell{text: name, colour: dim}, value)
		}
	}
	instant := func(at time.Time) cell { return words(at.UTC().Format(time.RFC3339) + "  " + ago(at, now)) }
	optional := func(at *time.Time) cell {
		if at == nil {
			return cell{}
		}
		return instant(*at)
	}
	text := func(s *string) cell {
		if s == nil {
			return cell{}
		}
		return words(printable.Text(*s))
	}
	field("call", words(printable.ID(c.CallID)))
	field("biz", words(printable.ID(c.BizID)))
	field("tool", words(printable.ID(c.Tool)))
	field("operation", words(printable.ID(c.Operation)))
	field("idempotency key", words(printable.ID(c.IdempotencyKey)))
	field("status", cell{text: string(c.Status), colour: statusColour(c.Status)})
	field("reason", words(printable.Text(c.Reason)))
	field("last error", text(c.LastError))
	field("attempt", words(fmt.Sprint(c.Attempt)))
	field("issued", instant(c.IssuedAt))
	field("last sent", instant(c.LastSentAt))
	field("timed out", text(c.TimeoutKind))
	field("looks", words(fmt.Sprintf("%d answered, %d not; %d NOT_FOUND in a row", c.Checks, c.Unanswered, c.NotFoundCount)))
	if !c.Status.Terminal() {
		field("next look", instant(c.NextCheckAt))
	}
	field("send again before", optional(c.RetryBefore))
	field("processed", optional(c.ProcessedAt))
	field("resolved", optional(c.ResolvedAt))
	field("resolved by", text(c.ResolvedBy))
	field("notified", optional(c.NotifiedAt))
	if s.LastRun != nil {
		field("last run", cell{text: lastRun(*s.LastRun, now), colour: outcomeColour(s.LastRun.Outcome)})
	}
	t.print(a.out)

	fmt.Fprintln(a.out)
	timeline := table{head: []string{"WHEN", "", "WHAT", "REASON", "TRY", "BY", "DETAIL"}}
	row := func(at time.Time, what, reason string, try int, by, detail string) {
		timeline.add(words(at.UTC().Format("2006-01-02 15:04:05.000")), words(ago(at, now)), words(what), words(reason), number(try), words(by), words(detail))
	}
	row(c.CreatedAt, "parked", "", 1, "", "")
	for _, e := range s.Events {
		row(e.At, printable.Text(string(e.Kind)), printable.Text(e.Reason), e.Attempt, printable.Text(e.Actor), gist(e))
	}
	timeline.print(a.out)
	if c.Receipt != nil {
		fmt.Fprintf(a.out, "\nreceipt  %s\n", printable.Text(string(c.Receipt)))
	}
}

func lastRun(r task.Run, now time.Time) string {
	if r.FinishedAt == nil {
		return fmt.Sprintf("began %s and has not finished", ago(r.StartedAt, now))
	}
	text := fmt.Sprintf("%s %s", r.Outcome, ago(*r.FinishedAt, now))
	if r.Error != nil {
		text += ": " + printable.Text(*r.Error)
	}
	return text
}

// gist is the part of a ledger row's detail that a person reads first.
func gist(e pending.Entry) string {
	var d struct {
		Status, From, ExecutedAs, Error string
	}
	if e.Detail == nil || json.Unmarshal(e.Detail, &d) != nil {
		return ""
	}
	var parts []string
	if d.From != "" {
		parts = append(parts, d.From+" -> "+d.Status)
	}
	if d.ExecutedAs != "" {
		parts = append(parts, "executed as "+printable.ID(d.ExecutedAs))
	}
	if d.Error != "" {
		parts = append(parts, d.Error)
	}
	return printable.Text(strings.Join(parts, "; "))
}
