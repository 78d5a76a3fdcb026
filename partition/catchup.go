package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/callreceipt/reconciler/internal/database"
)

// settled reads the catalog and the journal, once they agree: what a crash left between the two, or what somebody else did by hand, is put
// right first. A dry run takes them as they are.
func (r *pass) settled(ctx context.Context) (v view, journal map[uint32]*entry, err error) {
	if v, journal, err = r.known(ctx); err != nil || r.limits.DryRun {
		return v, journal, err
	}
	for _, p := range v.partitions {
		if e := journal[p.OID]; p.DetachPending && (e == nil || e.Step != StepDetached) {
			// Whose detach that was nobody knows: the rows are not archived, and the guard does not see them any more.
			if err := r.bringBack(ctx, p); err != nil {
				if err = fmt.Errorf("partition %s.%s: its detach was interrupted: %w", p.Schema, p.Name, err); r.fatal(ctx, err) {
					return v, journal, err
				}
			}
		}
	}
	if v, journal, err = r.known(ctx); err != nil {
		return v, journal, err
	}
	isAttached := map[uint32]bool{}
	for _, p := range v.partitions {
		isAttached[p.OID] = true
	}
	for _, e := range journal {
		if err := r.catchUp(ctx, e, isAttached[e.OID]); err != nil {
			if err = fmt.Errorf("partition %s: %w", e.Name, err); r.fatal(ctx, err) {
				return v, journal, err
			}
		}
	}
	return r.known(ctx)
}

// fatal tells whether an error ends the run. One that is of a single partition is kept, and the others go on.
func (r *pass) fatal(ctx context.Context, err error) bool {
	if ctx.Err() != nil || database.Unreachable(err) {
		return true
	}
	r.failures = append(r.failures, err)
	return false
}

// known reads the catalog and the journal.
func (a *Archiver) known(ctx context.Context) (view, map[uint32]*entry, error) {
	v, err := a.look(ctx)
	if err != nil {
		return view{}, nil, err
	}
	all, err := a.entries(ctx, false)
	if err != nil {
		return view{}, nil, err
	}
	journal := make(map[uint32]*entry, len(all))
	for i := range all {
		journal[all[i].OID] = &all[i]
	}
	return v, journal, nil
}

// bringBack finishes a detach that was interrupted, since no sibling can be detached before, and attaches the partition again. Its bounds
// are in the journal before they are gone from the catalog.
func (r *pass) bringBack(ctx context.Context, p Partition) error {
	e, err := r.open(ctx, p)
	if err != nil {
		return err
	}
	r.cfg.Log.Warn("the detach of a partition that is not archived was interrupted; it is finished, and the partition attached again",
		"table", r.Subject(), "partition", e.Name)
	return r.reattach(ctx, &e)
}

// reattach is good from whatever point it was killed at. If a lock is not to be had now, the next run goes on.
func (r *pass) reattach(ctx context.Context, e *entry) error {
	err := r.step(ctx, e, StepReattached, func() error {
		if err := r.detach(ctx, e.OID); err != nil {
			return err
		}
		failpoint("reattach:alone")
		return r.attach(ctx, e.OID, e.Bounds)
	})
	if h := asHeld(err); h != nil {
		r.later = true
		return r.hold(ctx, e, h)
	}
	return err
}

// catchUp brings one entry to what the catalog says.
func (r *pass) catchUp(ctx context.Context, e *entry, isAttached bool) error {
	is, err := r.attachmentOf(ctx, r.cfg.DB, e.OID)
	if err != nil {
		return err
	}
	switch {
	case isAttached && e.Step == StepRestored && !e.Done:
		return errors.Join(r.unfreeze(ctx, e.OID), r.end(ctx, e))
	case isAttached && e.Step == StepReattached && !e.Done && is == attached:
		return r.end(ctx, e)
	case isAttached && (e.ended(StepDetached) || e.Step == StepDropped):
		if err := r.remember(ctx, e); err != nil { // its claims may be gone
			return err
		}
		e.Step, e.Done = StepDue, true // somebody attached it again: from the beginning
		return r.write(ctx, e)
	case isAttached || e.Step == StepDropped || e.Step == StepRestored && (!e.Done || is == attached) || is == alone && e.ended(StepDetached):
		return nil
	case e.Step == StepReattached && !e.Done && is == alone: // later, somebody did it on purpose
		return r.reattach(ctx, e)
	case e.Step == StepDetached && is == alone:
		r.sum.Detached++
		return r.end(ctx, e)
	case is == missing:
		e.Step, e.Done, e.LastError = StepDropped, true, text("dropped by somebody else, not by archiving")
		e.HeldReason, e.HeldExample = text(""), text("")
		return r.write(ctx, e)
	}
	return r.hold(ctx, e, &Held{ReasonReplaced, "detached by somebody else, not by archiving; attach it again, or drop it"})
}
