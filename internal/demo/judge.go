package demo

import (
	"fmt"
	"time"

	"github.com/callreceipt/reconciler/pending"
)

// Effect is one row of the downstream's own ledger: something was executed.
type Effect struct {
	CallID         string    `db:"call_id"`
	IdempotencyKey string    `db:"idempotency_key"`
	Attempt        int       `db:"attempt"`
	ExecutedAt     time.Time `db:"executed_at"`
}

// judge compares what the caller's side believes, and was told, with what the downstream executed. It knows what was done to
// every call, and trusts neither side.
func judge(outcomes []Outcome, effects []Effect, told Deliveries) Result {
	j := newJudgement(outcomes, effects)
	j.result.Deliveries = told
	if told.Invalid > 0 {
		j.result.WrongVerdicts += told.Invalid
		j.say("%d deliveries to the webhook bore no valid signature", told.Invalid)
	}
	for _, o := range outcomes {
		j.count(o)
		if problem := j.fault(o); problem != "" {
			j.result.WrongVerdicts++
			j.say("call %s of %s (%s): %s", o.Call.CallID, o.Call.Tool.Name, o.Call.Way, problem)
		}
	}
	j.result.Rows = j.rowsWithCalls()
	return j.result
}

type judgement struct {
	result Result
	rows   [ways]Row
	byKey  map[string][]Effect
	byCall map[string]int
}

func newJudgement(outcomes []Outcome, effects []Effect) *judgement {
	j := &judgement{byKey: map[string][]Effect{}, byCall: map[string]int{}}
	for _, e := range effects {
		j.byKey[e.IdempotencyKey] = append(j.byKey[e.IdempotencyKey], e)
		j.byCall[e.CallID]++
	}
	j.result.Calls, j.result.Effects = len(outcomes), len(effects)
	sent := make(map[string]string, len(outcomes))
	for _, o := range outcomes {
		sent[o.Call.CallID] = o.Call.Key()
	}
	reported := map[string]bool{}
	for _, e := range effects {
		if n := len(j.byKey[e.IdempotencyKey]); n > 1 && !reported[e.IdempotencyKey] {
			reported[e.IdempotencyKey] = true
			j.result.DuplicateEffects++
			j.say("intent %s was executed %d times", e.IdempotencyKey, n)
		}
		if sent[e.CallID] != e.IdempotencyKey {
			j.result.WrongVerdicts++
			j.say("intent %s was executed as call %s, which nobody sent for it", e.IdempotencyKey, e.CallID)
		}
	}
	return j
}

func (j *judgement) count(o Outcome) {
	row := &j.rows[o.way()]
	row.Way = o.way()
	row.Calls++
	row.Effects += j.byCall[o.Call.CallID]
	r := &j.result
	if o.Answer == "" {
		r.TimedOut++
	}
	if !o.Parked {
		if o.Answer == "" {
			r.Lost++
			j.say("call %s of %s (%s): not answered, and not in the pending table", o.Call.CallID, o.Call.Tool.Name, o.Call.Way)
		}
		return
	}
	r.Suspended++
	r.Retried += o.Sends - 1
	row.SentAgain += o.Sends - 1
	if o.Call.Tool.Dispatched {
		r.Dispatched += o.Sends - 1
	}
	if o.Awaited != "" {
		r.Awaited++
	}
	switch o.Status {
	case pending.StatusSuccess:
		r.Success++
		row.Success++
	case pending.StatusFailed:
		r.Failed++
		row.Failed++
	case pending.StatusManual:
		r.Manual++
		row.Manual++
	case pending.StatusPending, pending.StatusRetry:
		r.Open++
		row.Open++
		j.say("call %s of %s (%s): still %s (%s)", o.Call.CallID, o.Call.Tool.Name, o.Call.Way, o.Status, o.Reason)
	}
}

// fault says what is wrong with the end of one call, or "". A call that is open or lost has no end and is counted as that.
func (j *judgement) fault(o Outcome) string {
	status := o.Status
	if o.Answer != "" {
		status = pending.Status(o.Answer)
	}
	effects := j.byKey[o.Call.Key()]
	switch status {
	case pending.StatusSuccess:
		if len(effects) == 0 {
			return "SUCCESS, and the downstream executed nothing"
		}
	case pending.StatusFailed, pending.StatusManual:
		if len(effects) > 0 {
			return fmt.Sprintf("%s, and the downstream executed it", status)
		}
	case pending.StatusPending, pending.StatusRetry:
		return "" // open
	default:
		return "" // lost
	}
	if problem := o.faultOfEnd(status); problem != "" {
		return problem
	}
	if problem := o.faultOfSends(); problem != "" {
		return problem
	}
	return o.faultOfNews()
}

// faultOfEnd compares the end of a call with the one that what was done to it calls for. It says what is wrong, or "".
func (o Outcome) faultOfEnd(status pending.Status) string {
	want := o.want()
	switch {
	case status != want.status:
		return fmt.Sprintf("%s (%s), and it calls for %s", status, o.Reason, want.status)
	case o.Answer != "":
		return ""
	case want.reason != "" && o.Reason != string(want.reason):
		return fmt.Sprintf("%s for the reason %s, and it calls for %s", status, o.Reason, want.reason)
	case o.Sends < want.leastSends || o.Sends > want.mostSends:
		return fmt.Sprintf("sent %d times, and it calls for %d to %d", o.Sends, want.leastSends, want.mostSends)
	}
	return ""
}

func (j *judgement) rowsWithCalls() []Row {
	var rows []Row
	for _, row := range j.rows {
		if row.Calls > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

// maxProblems bounds how many faults are spelled out; all are counted.
const maxProblems = 20

func (j *judgement) say(format string, args ...any) {
	if len(j.result.Problems) < maxProblems {
		j.result.Problems = append(j.result.Problems, fmt.Sprintf(format, args...))
	}
}
