package partition

import (
	"cmp"
	"slices"
	"time"
)

// Step is how far the archiving of a partition is. The journal has the step before it begins.
type Step string

// Every step, in order. The last two undo.
const (
	StepDue        Step = "due"        // older than the retention; nothing was done to it
	StepFrozen     Step = "frozen"     // a trigger refuses writes
	StepExported   Step = "exported"   // its rows are in an archive object with a manifest
	StepVerified   Step = "verified"   // the object was read back and equals the table
	StepWatermark  Step = "watermark"  // calls issued before its upper bound are refused
	StepDetached   Step = "detached"   // it is a table of its own
	StepDropped    Step = "dropped"    // only the archive object is left
	StepReattached Step = "reattached" // a detached one was attached again
	StepRestored   Step = "restored"   // a dropped one was loaded from its object
)

// underway tells whether an attached partition at s has to be gone on with.
func (s Step) underway() bool {
	switch s {
	case StepFrozen, StepExported, StepVerified, StepWatermark, StepDetached:
		return true
	case StepDue, StepDropped, StepReattached, StepRestored:
	}
	return false
}

// State is what a plan makes of a partition.
type State string

// Every state. Of a partition that is on its way, explain shows the step instead.
const (
	StateLive State = "live" // younger than the retention
	StateDue  State = "due"
	StateHeld State = "held" // due, and not archived for a reason
)

// Reason says why a partition is not archived. The same word goes to the journal, the log and the metric label.
type Reason string

// Reasons of partitions that are not held.
const (
	ReasonYoung     Reason = "young"       // live: its upper bound is younger than the retention
	ReasonMaxPerRun Reason = "max_per_run" // due, but not in this run
)

// Every reason to hold a partition that is due. The first six are seen by Plan, the others by looking into the partition.
const (
	ReasonNewest             Reason = "newest"               // new rows may need it, whatever the clock says
	ReasonLast               Reason = "last"                 // the table would have none left
	ReasonSubpartitioned     Reason = "subpartitioned"       // it has partitions itself
	ReasonForeignTable       Reason = "foreign_table"        // its rows are on another server
	ReasonInboundForeignKey  Reason = "inbound_foreign_key"  // another table refers to it
	ReasonDetachPending      Reason = "detach_pending"       // a detach that we did not begin was interrupted
	ReasonNotTerminal        Reason = "not_terminal"         // a row has a status that is not final
	ReasonOpenCall           Reason = "open_call"            // a call that is still open refers to a row
	ReasonUnanswerable       Reason = "unanswerable"         // whether its business is over cannot be told
	ReasonLocked             Reason = "locked"               // somebody kept a lock on it
	ReasonChangedAfterFreeze Reason = "changed_after_freeze" // its rows are no longer those that were exported
	ReasonObjectDamaged      Reason = "object_damaged"       // the archive object is not what was written
	ReasonReplaced           Reason = "replaced"             // its name means another table
	ReasonReferenced         Reason = "referenced"           // detached, and another object depends on it
)

// Partition is what the catalog says about one partition.
type Partition struct {
	OID          uint32
	Schema, Name string
	// Bounds is the whole bound as PostgreSQL writes it, and Range what it says about time.
	Bounds string
	Range  Range
	// Kind is relkind: r a table, p a partitioned one, f a foreign one.
	Kind string
	// DetachPending tells of a concurrent detach that was interrupted: rows are no longer seen through the parent.
	DetachPending bool
	// Rows is the planner's estimate.
	Rows int64
	// Frozen tells that our triggers are on it, whatever the journal says.
	Frozen bool
	// InboundKey names a foreign key of another table that refers to this one, or is empty.
	InboundKey string
}

// Rules bound what a plan may do.
type Rules struct {
	// Retention is the age of its upper bound at which a partition is due.
	Retention time.Duration
	// MaxPerRun is the most partitions whose archiving one run begins.
	MaxPerRun int
}

// Decision is what becomes of one partition in this run.
type Decision struct {
	Partition Partition
	State     State
	Reason    Reason // empty if Now
	Example   string // what the reason was seen by
	Now       bool   // to be worked on in this run
}

// Plan decides about every partition but the default one, oldest first, and those whose archiving is underway before the others.
// The newest is never planned, so never all of them; of those not begun at most rules.MaxPerRun are. The order of parts is of no account.
//
// A partition that turns out to be held before it is frozen has not begun: the next one of ReasonMaxPerRun may take its place, so that
// partitions that are held for years keep nobody waiting.
func Plan(parts []Partition, begun map[uint32]Step, now time.Time, rules Rules) []Decision {
	parts = slices.DeleteFunc(slices.Clone(parts), func(p Partition) bool { return p.Range.Default })
	slices.SortFunc(parts, func(p, q Partition) int {
		return cmp.Or(p.Range.Upper.Compare(q.Range.Upper), p.Range.Lower.Compare(q.Range.Lower), cmp.Compare(p.OID, q.OID))
	})
	all := siblingsOf(parts, begun)
	cutoff := boundAt(now.Add(-rules.Retention))
	slices.SortStableFunc(parts, func(p, q Partition) int { return rank(begun[p.OID]) - rank(begun[q.OID]) })

	plan, room := make([]Decision, 0, len(parts)), rules.MaxPerRun
	for _, p := range parts {
		d := all.judge(p, begun[p.OID].underway(), cutoff)
		switch {
		case d.State != StateDue:
		case begun[p.OID].underway():
			d.Now = true
		case room > 0:
			d.Now = true
			room--
		default:
			d.Reason = ReasonMaxPerRun
		}
		plan = append(plan, d)
	}
	return plan
}

// rank puts those underway first.
func rank(s Step) int {
	if s.underway() {
		return 0
	}
	return 1
}

// siblings is what the fate of one partition depends on in the others.
type siblings struct {
	attached int
	newest   uint32
	pending  string // one whose detach somebody else left unfinished
}

func siblingsOf(oldestFirst []Partition, begun map[uint32]Step) siblings {
	var s siblings
	for _, p := range oldestFirst {
		switch {
		case !p.DetachPending:
			s.attached++
			s.newest = p.OID
		case !begun[p.OID].underway():
			s.pending = p.Schema + "." + p.Name
		}
	}
	return s
}

// judge says whether p is due by itself, without regard to how many others are.
func (s siblings) judge(p Partition, underway bool, cutoff Bound) Decision {
	held := func(r Reason, example string) Decision {
		return Decision{Partition: p, State: StateHeld, Reason: r, Example: example}
	}
	switch {
	case p.DetachPending && underway:
		return Decision{Partition: p, State: StateDue} // there is no way back: whatever else holds, it is finished first
	case p.DetachPending:
		return held(ReasonDetachPending, "")
	case p.Range.Upper.Compare(cutoff) > 0:
		return Decision{Partition: p, State: StateLive, Reason: ReasonYoung}
	case s.attached == 1:
		return held(ReasonLast, "")
	case p.OID == s.newest:
		return held(ReasonNewest, "")
	case p.Kind == "p":
		return held(ReasonSubpartitioned, "")
	case p.Kind == "f":
		return held(ReasonForeignTable, "")
	case p.InboundKey != "":
		return held(ReasonInboundForeignKey, p.InboundKey)
	case s.pending != "":
		return held(ReasonDetachPending, s.pending) // no sibling can be detached before that one
	}
	return Decision{Partition: p, State: StateDue}
}
