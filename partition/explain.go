package partition

import (
	"context"
	"time"

	"github.com/callreceipt/reconciler/metrics"
)

// Explained is how one partition stands; its JSON field names are a contract.
type Explained struct {
	Table     string     `json:"table"`
	Partition string     `json:"partition"`
	Lower     string     `json:"lower"`
	Upper     string     `json:"upper"`
	State     string     `json:"state"`  // live, due, held, or the step that the archiving is at
	Reason    string     `json:"reason"` // why it is not archived
	Example   string     `json:"example"`
	Since     *time.Time `json:"since"` // since when it is held by this reason
	Rows      int64      `json:"rows"`  // exact once it is exported, before that the planner's estimate
	Object    string     `json:"object,omitempty"`
	Error     string     `json:"error,omitempty"` // of the last step, when it failed
}

// Explain tells of each partition whether it is due or held, by what, and since when; oldest first, with those that were detached and
// dropped at the end. It looks into those that are due, and writes nothing.
func (a *Archiver) Explain(ctx context.Context) ([]Explained, error) { return a.list(ctx, true) }

// List is Explain without looking into the partitions: what held them is what the last run found.
func (a *Archiver) List(ctx context.Context) ([]Explained, error) { return a.list(ctx, false) }

func (a *Archiver) list(ctx context.Context, ask bool) ([]Explained, error) {
	v, journal, err := a.known(ctx)
	if err != nil {
		return nil, err
	}
	var all []Explained
	isAttached := map[uint32]bool{}
	for _, d := range Plan(v.partitions, steps(journal), v.now, a.rules()) {
		e := journal[d.Partition.OID]
		isAttached[d.Partition.OID] = true
		if ask && d.State == StateDue {
			if err := a.over(ctx, d.Partition.OID); err != nil {
				h := asHeld(err)
				if h == nil {
					return all, err
				}
				d.State, d.Reason, d.Example = StateHeld, h.Reason, h.Example
			}
		}
		all = append(all, a.explained(d, e, ask))
	}
	archived, err := a.entries(ctx, true)
	if err != nil {
		return all, err
	}
	for i := range archived {
		if e := &archived[i]; !isAttached[e.OID] {
			all = append(all, a.told(Explained{State: string(e.reached())}, e))
		}
	}
	return all, nil
}

// explained is a partition that is attached.
func (a *Archiver) explained(d Decision, e *entry, asked bool) Explained {
	x := Explained{
		Table: a.cfg.Table, Partition: d.Partition.Schema + "." + d.Partition.Name, Rows: d.Partition.Rows,
		Lower: d.Partition.Range.Lower.String(), Upper: d.Partition.Range.Upper.String(),
		State: string(d.State), Reason: string(d.Reason), Example: d.Example,
	}
	if e == nil {
		return x
	}
	if d.State == StateHeld && e.HeldReason.String == x.Reason {
		x.Since = e.HeldSince
	}
	if d.State != StateHeld && (e.Step.underway() || e.Step == StepRestored) {
		x.State = string(e.reached())
		x.Reason, x.Example, x.Since = e.HeldReason.String, e.HeldExample.String, e.HeldSince
	}
	if !asked && d.State == StateDue && e.HeldSince != nil {
		return a.told(x, e)
	}
	x.Object, x.Error = e.Object.String, e.LastError.String
	if e.Rows.Valid {
		x.Rows = e.Rows.Int64
	}
	return x
}

// told fills in what the journal says.
func (a *Archiver) told(x Explained, e *entry) Explained {
	x.Table, x.Partition, x.Lower, x.Upper = a.cfg.Table, e.Name, e.Lower, e.Upper
	x.Rows, x.Object, x.Error = e.Rows.Int64, e.Object.String, e.LastError.String
	x.Reason, x.Example, x.Since = e.HeldReason.String, e.HeldExample.String, e.HeldSince
	if e.HeldSince != nil && !e.ended(StepDetached) {
		x.State = string(StateHeld)
	}
	return x
}

// mostCounted bounds what is counted of the DEFAULT partition.
const mostCounted = 1_000_000

// Survey tells the metrics how the partitions stand, from the catalog and the journal alone. It writes nothing.
func (a *Archiver) Survey(ctx context.Context) error {
	if a.cfg.Metrics == nil {
		return nil
	}
	v, journal, err := a.known(ctx)
	if err != nil {
		a.cfg.Metrics.Unknown()
		return err
	}
	s := metrics.ArchiveState{
		Held: map[string]int{}, Partitions: len(v.partitions), Premake: a.cfg.Interval.after(v.now, a.cfg.Premake).Sub(v.now),
	}
	for _, d := range Plan(v.partitions, steps(journal), v.now, a.rules()) {
		e := journal[d.Partition.OID]
		if d.Partition.DetachPending {
			s.DetachPendingSince = earliest(s.DetachPendingSince, since(e, v.now))
		}
		upper, ok := d.Partition.Range.Upper.Time()
		switch {
		case d.State == StateLive || !ok:
		case d.State == StateHeld || e != nil && e.HeldSince != nil:
			reason := string(d.Reason)
			if d.State != StateHeld {
				reason = e.HeldReason.String
			}
			s.Held[reason]++
			if e != nil && e.HeldSince != nil {
				s.OldestHeld = earliest(s.OldestHeld, *e.HeldSince)
			}
		default:
			s.Due++
			s.OldestDue = earliest(s.OldestDue, upper.Add(a.cfg.Retention))
		}
	}
	for _, e := range journal {
		if e.HeldSince != nil && e.ended(StepDetached) {
			s.Held[e.HeldReason.String]++
			s.OldestHeld = earliest(s.OldestHeld, *e.HeldSince)
		}
	}
	if at, ok := Horizon(v.partitions, v.now).Time(); ok {
		s.Horizon = at
	}
	if v.parent.DefaultOID != 0 {
		err := a.cfg.DB.GetContext(ctx, &s.DefaultRows, `SELECT count(*) FROM (SELECT FROM `+v.parent.Default+` LIMIT $1) some`, mostCounted)
		if err != nil {
			return err
		}
	}
	a.cfg.Metrics.Set(s)
	return nil
}

func since(e *entry, now time.Time) time.Time {
	if e == nil {
		return now
	}
	return e.UpdatedAt
}

// earliest is the earlier of two instants, of which a zero one is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
