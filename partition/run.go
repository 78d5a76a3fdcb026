package partition

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
)

// endTimeout is how long the end of a run may take to be recorded after the run was told to stop.
const endTimeout = 10 * time.Second

// Limits bound one run.
type Limits struct {
	Max    int  // partitions whose archiving is begun; 0 is Config.MaxPerRun
	DryRun bool // look and decide, and write nothing: no lease, no journal, no partition
}

// Summary is what a run did; its JSON field names are a contract.
type Summary struct {
	Table    string       `json:"table"`
	Database string       `json:"database,omitempty"`
	Outcome  task.Outcome `json:"outcome"`
	Due      int          `json:"due"`      // older than the retention and still attached when the run began, held ones included
	Held     int          `json:"held"`     // of these, and of those that wait to be dropped
	Exported int          `json:"exported"` // objects written
	Detached int          `json:"detached"`
	Dropped  int          `json:"dropped"`
	Made     int          `json:"made"` // partitions made ahead
	Rows     int64        `json:"rows"` // exported
	Bytes    int64        `json:"bytes"`

	DurationSeconds float64 `json:"duration_seconds"`
	Error           string  `json:"error,omitempty"`
}

// pass is one run over a table.
type pass struct {
	*Archiver
	limits    Limits
	sum       Summary
	parentKey []string
	room      int     // partitions that may still be begun
	later     bool    // something was left that the next run takes up
	blocked   string  // a partition whose detach is not finished, so that no sibling can be detached
	failures  []error // of single partitions, from bringing the journal up to the catalog
}

// RunOnce makes partitions ahead, archives those that are due and whose business is over, and drops those that were detached long enough
// ago. It returns what it did, also together with an error. What is held is no error. *task.HeldError means that another holder works on
// the table and nothing was done.
func (a *Archiver) RunOnce(ctx context.Context, limits Limits) (Summary, error) {
	if limits.Max == 0 {
		limits.Max = a.cfg.MaxPerRun
	}
	r := &pass{Archiver: a, limits: limits, room: limits.Max, sum: Summary{Table: a.cfg.Table, Database: a.cfg.Database}}
	began := a.cfg.Clock()
	var err error
	if limits.DryRun {
		err = r.archive(ctx)
	} else {
		err = task.Hold(ctx, a.cfg.Control, a.cfg.Log, "archive:"+a.Subject(), a.cfg.Holder, r.recorded)
	}
	r.sum.DurationSeconds = a.cfg.Clock().Sub(began).Seconds()
	r.sum.Outcome = r.outcome(ctx, err)
	if err != nil {
		r.sum.Error = err.Error()
	}
	return r.sum, err
}

func (r *pass) outcome(ctx context.Context, err error) task.Outcome {
	held, _ := errors.AsType[*task.HeldError](err)
	switch {
	case held != nil:
		return task.Skipped
	case err == nil && !r.later:
		return task.Success
	case err == nil || r.sum.Exported+r.sum.Detached+r.sum.Dropped > 0 || ctx.Err() != nil:
		return task.Partial
	}
	return task.Failed
}

// recorded works and leaves a row in the table of runs.
func (r *pass) recorded(ctx context.Context) error {
	id, err := task.Start(ctx, r.cfg.Control, "archive", r.Subject(), r.cfg.Holder, nil)
	if err != nil {
		return err
	}
	r.cfg.Runs.LeaseHeld(true)
	defer r.cfg.Runs.LeaseHeld(false)
	ended := r.cfg.Runs.Begin()
	defer ended(metrics.OutcomeFailed) // only a panic gets there first
	// Partitions ahead have a fate of their own: whatever is wrong with the old ones, new rows need a place.
	made, failure := r.Ensure(ctx)
	r.sum.Made = len(made.Made)
	err = errors.Join(failure, r.archive(ctx))
	outcome := r.outcome(ctx, err)
	ended(metrics.Outcome(outcome))
	counts, _ := json.Marshal(r.sum) // numbers and words always marshal
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if failed := task.Finish(end, r.cfg.Control, id, outcome, counts, err); failed != nil && !database.Unreachable(failed) {
		r.cfg.Log.Warn("the end of the run is not on record", "table", r.Subject(), "error", failed)
	}
	if err := r.Survey(end); err != nil {
		r.cfg.Log.Warn("the partitions could not be looked at for the metrics", "table", r.Subject(), "error", err)
	}
	return err
}

// archive looks at every partition, oldest first, and at those that were detached before.
func (r *pass) archive(ctx context.Context) error {
	v, journal, err := r.settled(ctx)
	if err != nil {
		return err
	}
	r.parentKey = v.parent.Key
	failures := r.failures
	for _, d := range Plan(v.partitions, steps(journal), v.now, r.rules()) {
		if err := r.judged(ctx, d, journal[d.Partition.OID]); err != nil {
			failures = append(failures, fmt.Errorf("partition %s.%s: %w", d.Partition.Schema, d.Partition.Name, err))
			if ctx.Err() != nil || database.Unreachable(err) {
				return errors.Join(failures...)
			}
		}
	}
	return errors.Join(append(failures, r.dropOld(ctx))...)
}

func (a *Archiver) rules() Rules {
	return Rules{Retention: a.cfg.Retention, MaxPerRun: a.cfg.MaxPerRun}
}

// steps is how far the journal says that each partition is.
func steps(journal map[uint32]*entry) map[uint32]Step {
	begun := make(map[uint32]Step, len(journal))
	for oid, e := range journal {
		begun[oid] = e.Step
	}
	return begun
}

// judged does what was decided about one partition. e is nil when the journal does not know it.
func (r *pass) judged(ctx context.Context, d Decision, e *entry) error {
	if d.State == StateLive || e != nil && r.restoredLately(e) {
		return r.release(ctx, d.Partition, e)
	}
	r.sum.Due++
	switch {
	case d.State == StateHeld && r.limits.DryRun:
		r.sum.Held++
		return nil
	case d.State == StateDue && !underway(e) && r.room == 0:
		return nil
	case r.limits.DryRun:
		return r.count(r.over(ctx, d.Partition.OID))
	}
	opened, err := r.open(ctx, d.Partition)
	if err != nil {
		return err
	}
	if d.State == StateDue && r.blocked != "" {
		d.State, d.Reason, d.Example = StateHeld, ReasonDetachPending, r.blocked
	}
	if d.State == StateHeld {
		return r.held(ctx, &opened, &Held{d.Reason, d.Example})
	}
	err = r.gone(ctx, d.Partition, &opened)
	if h := asHeld(err); h != nil {
		return r.held(ctx, &opened, h)
	}
	if err != nil && !errors.Is(err, errOvertaken) && ctx.Err() == nil {
		if is, failed := r.attachmentOf(ctx, r.cfg.DB, opened.OID); failed == nil && is == attached && underway(&opened) {
			err = errors.Join(err, r.thaw(ctx, &opened)) // the trouble may last, and somebody may have to write
		}
		opened.LastError = text(err.Error())
		err = errors.Join(err, r.write(ctx, &opened))
	}
	return err
}

// gone takes a partition as far as it goes now.
func (r *pass) gone(ctx context.Context, p Partition, e *entry) error {
	if p.DetachPending { // verified and below the watermark: all that is left is to finish
		return r.step(ctx, e, StepDetached, func() error { return r.finished(ctx, e) })
	}
	return r.walk(ctx, p, e)
}

func underway(e *entry) bool { return e != nil && e.Step.underway() }

// began counts a partition that passed the check, so that those that are held for years do not use up the room of the others.
func (r *pass) began(e *entry) {
	if !underway(e) {
		r.room--
	}
}

// count counts a finding of a dry run.
func (r *pass) count(err error) error {
	if asHeld(err) == nil {
		return err
	}
	r.sum.Held++
	return nil
}

// held journals why a partition stays, and undoes what was done to it, unless all that is missing is a lock.
func (r *pass) held(ctx context.Context, e *entry, h *Held) error {
	r.sum.Held++
	level := r.cfg.Log.Info
	if e.HeldSince != nil && e.HeldReason.String == string(h.Reason) {
		level = r.cfg.Log.Debug
	}
	level("partition held", "table", r.Subject(), "partition", e.Name, "reason", string(h.Reason), "example", h.Example, "step", string(e.Step))
	if h.Reason == ReasonLocked || h.Reason == ReasonDetachPending {
		r.later = true
		if is, err := r.attachmentOf(ctx, r.cfg.DB, e.OID); err == nil && is == pending {
			r.blocked = e.Name
		}
		return r.hold(ctx, e, h)
	}
	undo := r.thaw
	if !underway(e) { // the triggers may be there all the same
		undo = func(ctx context.Context, e *entry) error { return r.unfreeze(ctx, e.OID) }
	}
	if err := undo(ctx, e); asHeld(err) != nil {
		r.later = true // a writer is there; the next run tries again
	} else if err != nil {
		return errors.Join(err, r.hold(ctx, e, h))
	}
	return r.hold(ctx, e, h)
}

// restoredLately leaves a partition alone that a person brought back: for as long as a detached one is kept.
func (r *pass) restoredLately(e *entry) bool {
	return e.ended(StepRestored) && e.Age < r.cfg.DropAfter.Seconds()
}

// release leaves a partition that is not due as if it never was: the clock or the retention may have been another one.
func (r *pass) release(ctx context.Context, p Partition, e *entry) error {
	var err error
	thawed := underway(e)
	switch {
	case r.limits.DryRun:
		return nil
	case thawed:
		err = r.thaw(ctx, e)
	case p.Frozen: // attached by hand, or by us, after it was archived
		err = r.unfreeze(ctx, p.OID)
	}
	if asHeld(err) != nil {
		r.later = true
		return nil
	}
	if err != nil || e == nil || e.HeldSince == nil && !thawed {
		return err
	}
	e.HeldReason, e.HeldExample = text(""), text("")
	return r.write(ctx, e)
}

// thaw lets a partition take writes again. Whatever was exported may not be what is exported next.
func (r *pass) thaw(ctx context.Context, e *entry) error {
	if err := r.write(ctx, e); err != nil { // whoever was overtaken undoes nothing
		return err
	}
	if err := r.unfreeze(ctx, e.OID); err != nil {
		return fmt.Errorf("undoing the freeze: %w", err)
	}
	e.Step, e.Done, e.Rows, e.Bytes, e.Digest, e.Object = StepDue, true, sql.NullInt64{}, sql.NullInt64{}, text(""), text("")
	return nil
}

func (r *pass) progress(e *entry, rows int64) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(Progress{Table: r.Subject(), Partition: e.Name, Step: e.Step, Rows: rows})
	}
}

// control runs fn in a transaction of the reconciler's database.
func (a *Archiver) control(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
	return database.InTx(ctx, a.cfg.Control, fn)
}
