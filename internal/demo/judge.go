package demo

import (
	"fmt"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// judge compares what the caller's side believes, and was told, with what the downstream has on record. It knows what was done to
// every call, and trusts neither side.
func judge(outcomes []Outcome, books Books, told Deliveries) Result {
	j := &judgement{}
	j.result.Calls, j.result.Effects, j.result.Deliveries = len(outcomes), len(books.Effects), told
	j.open(outcomes, books)
	if told.Invalid > 0 {
		j.wrong(told.Invalid, "%d deliveries to the webhook bore no valid signature", told.Invalid)
	}
	var doubts []string
	for _, o := range outcomes {
		j.count(o)
		if problem := j.fault(o); problem != "" {
			j.wrong(1, "%s: %s", o.Call, problem)
		} else if doubt := o.doubt(); doubt != "" {
			doubts = append(doubts, fmt.Sprintf("%s: %s", o.Call, doubt))
		}
	}
	if len(doubts) > j.mostDoubts() {
		for _, doubt := range doubts {
			j.wrong(1, "%s", doubt)
		}
	}
	j.result.Rows = j.rowsWithCalls()
	return j.result
}

type judgement struct {
	result   Result
	rows     [ways]Row
	byKey    map[string][]Effect
	byCall   map[string]int // effects
	keys     map[string]Proof
	receipts map[string]Proof // by callId
	// plain calls are those to which nothing was to happen; some of them may have come, or been answered, late.
	plain, late int
}

// mostDoubts is how many doubts are put down to a busy machine: a few, and of the parked calls the share of those plain calls that it
// was too slow for.
func (j *judgement) mostDoubts() int {
	const few = 10
	return few + j.result.Suspended*j.late/max(1, j.plain)
}

// open sorts the books, and finds what is wrong in them whatever the verdicts are.
func (j *judgement) open(outcomes []Outcome, books Books) {
	j.byKey, j.byCall = map[string][]Effect{}, map[string]int{}
	j.keys, j.receipts = map[string]Proof{}, map[string]Proof{}
	sent, intents := make(map[string]string, len(outcomes)), map[string]bool{}
	for _, o := range outcomes {
		sent[o.Call.CallID] = o.Call.Key()
		intents[o.Call.Key()] = true
	}
	for _, e := range books.Effects {
		j.byKey[e.IdempotencyKey] = append(j.byKey[e.IdempotencyKey], e)
		j.byCall[e.CallID]++
		if sent[e.CallID] != e.IdempotencyKey {
			j.wrong(1, "intent %s was executed as call %s, which nobody sent for it", e.IdempotencyKey, e.CallID)
		}
		if len(j.byKey[e.IdempotencyKey]) == 2 {
			j.result.DuplicateEffects++
			j.say("intent %s was executed more than once", e.IdempotencyKey)
		}
	}
	for _, k := range books.Keys {
		if _, twice := j.keys[k.IdempotencyKey]; twice || !intents[k.IdempotencyKey] {
			j.wrong(1, "the downstream remembers key %s twice, or nobody sent it", k.IdempotencyKey)
		}
		j.keys[k.IdempotencyKey] = k
	}
	for _, r := range books.Receipts {
		if sent[r.CallID] == "" {
			j.wrong(1, "the downstream has a receipt of call %s, which nobody sent", r.CallID)
		}
		j.receipts[r.CallID] = r
	}
}

func (j *judgement) count(o Outcome) {
	row := &j.rows[o.way()]
	row.Way = o.way()
	row.Calls++
	row.Effects += j.byCall[o.Call.CallID]
	row.SentAgain += o.sentAgain()
	r := &j.result
	r.Retried += o.sentAgain()
	if o.Call.Tool.Dispatched {
		r.Dispatched += len(o.Resends)
	} else {
		r.HandedOff += len(o.Resends)
	}
	if o.TimedOut {
		r.TimedOut++
	}
	if o.Call.Way == Answered {
		j.plain++
		if o.TimedOut {
			j.late++
		}
	}
	if o.Awaited != "" {
		r.Awaited++
	}
	status, atOnce := o.end()
	if atOnce {
		r.AtOnce++
		row.AtOnce++
		return
	}
	if !o.Parked {
		r.Lost++
		j.say("%s: its caller does not know what became of it, and it is not in the pending table", o.Call)
		return
	}
	r.Suspended++
	row.Parked++
	switch status {
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
		j.say("%s: still %s (%s)", o.Call, o.Status, o.Reason)
	}
}

// fault says what is wrong with the end of one call, or "". A call that is open or lost has no end and is counted as that.
func (j *judgement) fault(o Outcome) string {
	status, atOnce := o.end()
	effects := j.byKey[o.Call.Key()]
	switch {
	case atOnce && o.Parked:
		return fmt.Sprintf("its caller was told %s, and it was parked as well", status)
	case status == "" || status == pending.StatusPending || status == pending.StatusRetry:
		return "" // lost, or open
	case status == pending.StatusSuccess && len(effects) == 0:
		return "SUCCESS, and the downstream executed nothing"
	case status != pending.StatusSuccess && len(effects) > 0:
		return fmt.Sprintf("%s, and the downstream executed it", status)
	}
	for _, problem := range []string{
		o.faultOfEnd(), o.faultOfSends(), o.faultOfNews(), j.faultOfBooks(o, receipt.Status(status)),
	} {
		if problem != "" {
			return problem
		}
	}
	return ""
}

// faultOfEnd compares the end of a call with the one that what was done to it calls for. It says what is wrong, or "". A busy
// machine may leave a call to the reconciler that its caller was to settle; the other way round only time helps.
func (o Outcome) faultOfEnd() string {
	want := o.want()
	status, atOnce := o.end()
	sends := o.Attempt
	if o.Parked {
		sends = o.Sends
	}
	switch {
	case status != want.status:
		return fmt.Sprintf("%s (%s), and it calls for %s", status, o.Reason, want.status)
	case atOnce && !want.atOnce && o.Call.Way != Processing:
		return fmt.Sprintf("its caller was told %s, and could not know", status)
	case o.Parked && want.reason != "" && o.Reason != string(want.reason):
		return fmt.Sprintf("%s for the reason %s, and it calls for %s", status, o.Reason, want.reason)
	case sends < want.leastSends || sends > want.mostSends:
		return fmt.Sprintf("sent %d times, and it calls for %d to %d", sends, want.leastSends, want.mostSends)
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

// wrong counts what may never be as wrong verdicts, and says what it is.
func (j *judgement) wrong(n int, format string, args ...any) {
	j.result.WrongVerdicts += n
	j.say(format, args...)
}

func (j *judgement) say(format string, args ...any) {
	if len(j.result.Problems) < maxProblems {
		j.result.Problems = append(j.result.Problems, fmt.Sprintf(format, args...))
	}
}
