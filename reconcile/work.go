package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// The bounds of one transaction. One bizId may own thousands of calls.
const (
	maxWrite      = 1000
	maxWriteBytes = 8 << 20
)

// judged is one call of a batch with its verdict and the write that follows from it.
type judged struct {
	change  pending.Change
	verdict Verdict
	at      time.Time
	// unwritten says that the database refuses even the word that it refuses something.
	unwritten bool
}

// work takes one batch all the way: ask, decide, write.
func (p *pass) work(ctx context.Context, b batch) error {
	defer p.land(b)
	// The verdicts are of the instant before the question: an answer says nothing of what came to pass after it.
	now := b.read.instant(p.cfg.Clock())
	seen, failure := p.ask(ctx, b, now)
	changes := p.judge(b, seen, now)
	for len(changes) > 0 {
		n := fitting(changes)
		if err := p.settle(ctx, changes[:n], seen); err != nil {
			return err
		}
		changes = changes[n:]
	}
	if err := p.noteOthers(ctx, b, seen); err != nil {
		return err
	}
	return failure
}

// fitting is how many changes go into one transaction: at most maxWrite rows and, but for the first, maxWriteBytes of receipts. One
// large receipt may settle many calls.
func fitting(changes []judged) int {
	bytes := 0
	for n, j := range changes {
		if j.verdict.Proof != nil {
			bytes += len(j.verdict.Proof.Raw)
		}
		if n == maxWrite || (n > 0 && bytes > maxWriteBytes) {
			return n
		}
	}
	return len(changes)
}

// ask collects the evidence for a batch. Its error ends the pass; the evidence that was collected counts all the same.
func (p *pass) ask(ctx context.Context, b batch, now time.Time) (map[string]receipt.Evidence, error) {
	if !p.policy.NeedsReceipt {
		return nil, nil
	}
	all := make(map[string]receipt.Evidence, len(b.bizIDs))
	for left := b.bizIDs; len(left) > 0; {
		// The batch was filled before the downstream said that it was too large.
		n := min(len(left), p.size())
		got, err := receipt.Collect(ctx, left[:n], func(ctx context.Context, bizIDs []string) (receipt.Answer, error) {
			return p.gate.query(ctx, p.soft, bizIDs, p.patience)
		})
		left = left[n:]
		p.note(got, n)
		for id, ev := range got.Evidence {
			all[id] = Plausible(ev, now)
		}
		if err != nil {
			for _, id := range left {
				all[id] = receipt.Evidence{Err: receipt.AsError(err)}
			}
			return all, p.refused(fmt.Errorf("asking %s for receipts: %w", p.cfg.Tool, err))
		}
		p.accepted()
	}
	if p.gate.timesPutOff()-p.putOff >= maxPutOff {
		return all, fmt.Errorf("asking %s for receipts: %w", p.cfg.Tool, errPutOff)
	}
	return all, nil
}

// maxRefusals is how many answers in a row must say that the tool is misconfigured. One among good ones is the trouble of
// its batch.
const maxRefusals = 2

// refused takes an error that ends the asking for a batch, and returns it when it ends the pass as well.
func (p *pass) refused(err error) error {
	if e, ok := asError(err); !ok || e.Outcome != receipt.Misconfigured {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal = err
	if p.refusals++; p.refusals >= maxRefusals {
		return err
	}
	return nil
}

func (p *pass) accepted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusals = 0
}

// note counts what came beside the evidence, and learns how many bizIds the downstream bears in one request.
func (p *pass) note(got receipt.Collected, asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum.Unasked += got.Unasked
	p.sum.Duplicates += got.Duplicates
	p.cfg.Metrics.Anomaly(metrics.AnomalyUnaskedReceipt, got.Unasked)
	p.cfg.Metrics.Anomaly(metrics.AnomalyDuplicateReceipt, got.Duplicates)
	if got.MaxBatch > 0 && got.MaxBatch < p.batchSize {
		p.batchSize = got.MaxBatch
		p.cfg.Log.Info("the downstream finds batches too large", "tool", p.cfg.Tool, "asked", asked, "now", got.MaxBatch)
	}
}

// judge decides every call of the batch that something is known about. A call that was not asked about, or whose tool is
// misconfigured, is not touched.
func (p *pass) judge(b batch, seen map[string]receipt.Evidence, now time.Time) []judged {
	all := make([]judged, 0, len(b.calls))
	answers := make(map[string]answerOf, len(seen))
	for bizID, ev := range seen {
		answers[bizID] = arrange(ev)
	}
	for _, call := range b.calls {
		ev := answers[call.BizID].about(call)
		if ev.Err != nil && (ev.Err.Kind == receipt.KindCanceled || ev.Err.Outcome == receipt.Misconfigured) {
			continue
		}
		if v := Decide(call, ev, p.policy, now); v.Action != Leave {
			all = append(all, judged{verdict: v, change: p.change(call, v, ev, now), at: now})
		}
	}
	return all
}

// change turns a verdict into the write that carries it out, with its ledger rows.
func (p *pass) change(call pending.Call, v Verdict, ev receipt.Evidence, now time.Time) pending.Change {
	next := NextCheck(call, v, p.policy, now)
	var c pending.Change
	switch v.Action {
	case Succeed:
		c = pending.Settle(call, string(v.Reason), proof(pending.StatusSuccess, v.Proof))
	case Fail:
		c = pending.Settle(call, string(v.Reason), proof(pending.StatusFailed, v.Proof))
	case Retry:
		c = pending.Offer(call, string(v.Reason), RetryBefore(call, p.policy), next)
	case Escalate:
		c = pending.Escalate(call, string(v.Reason), next)
	case Reopen:
		c = pending.Reopen(call, string(v.Reason), next)
	case Wait, Leave:
		c = pending.Keep(call, string(v.Reason), next)
	}
	p.recordLook(&c, v, ev, now)
	if kind := eventKind(v.Action); kind != "" {
		c.Event = event(kind, newSeen(call, v, c.Status(), ev, p.digest, now))
	}
	c.Notify = p.tells(v.Action)
	if v.Anomaly == CallIDChanged {
		c.Anomaly = event(pending.EventCallIDChanged, map[string]string{"executedAs": v.Proof.CallID})
	}
	return c
}

// tells reports whether the orchestrator is told of it: of everything that ends its waiting, and of a retry only where it is
// the one to send it.
func (p *pass) tells(a Action) bool {
	return p.cfg.Notify && (a == Succeed || a == Fail || a == Escalate || (a == Retry && p.cfg.Sender == nil))
}

func (p *pass) recordLook(c *pending.Change, v Verdict, ev receipt.Evidence, now time.Time) {
	if !p.policy.NeedsReceipt && ev.Presence == receipt.Unknown {
		return // nobody was asked
	}
	c.Look = pending.Answered
	if v.Reason == ReasonUnanswered || !mentions(c.Call, ev) {
		c.Look = pending.NotAnswered
		c.LastError = unansweredText(ev)
	}
	if c.NotFoundCount = v.NotFound; v.NotFound > 0 {
		if c.NotFoundSince = c.Call.NotFoundSince; c.Call.NotFoundCount == 0 || c.NotFoundSince == nil {
			c.NotFoundSince = &now
		}
	}
}

func unansweredText(ev receipt.Evidence) string {
	if ev.Err == nil {
		return string(receipt.KindMissing)
	}
	return strings.ToValidUTF8(strings.ReplaceAll(ev.Err.Error(), "\x00", ""), "?")
}

func eventKind(a Action) pending.EventKind {
	switch a {
	case Succeed, Fail, Retry, Escalate:
		return pending.EventVerdict
	case Reopen:
		return pending.EventReopened
	case Leave, Wait:
	}
	return ""
}

func event(kind pending.EventKind, detail any) pending.Event {
	text, err := json.Marshal(detail)
	if err != nil {
		text = nil // our own structs always marshal; a ledger row without detail is better than none
	}
	return pending.Event{Kind: kind, Detail: text}
}

func proof(status pending.Status, r *receipt.Receipt) pending.Proof {
	return pending.Proof{Status: status, Raw: r.Raw, ProcessedAt: r.ProcessedAt}
}

// settle writes changes and counts what was written. The calls that somebody else changed meanwhile are looked at once
// more, since a final status may contradict what was just learned.
func (p *pass) settle(ctx context.Context, all []judged, seen map[string]receipt.Evidence) error {
	written, err := p.write(ctx, all)
	if err != nil {
		return err
	}
	lost, sum := p.tally(all, written)
	for _, j := range written {
		if !j.unwritten {
			p.say(*j)
			if !p.limits.DryRun {
				p.measure(j)
			}
		}
	}
	p.cfg.Metrics.LostRaces(len(lost))
	if p.cfg.Progress != nil {
		p.cfg.Progress(sum)
	}
	return p.noteContradictions(ctx, lost, seen)
}

// tally counts what was written, and returns the calls that somebody else had changed.
func (p *pass) tally(all []judged, written map[string]*judged) (lost []string, sum Summary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range all {
		j := &all[i]
		p.sum.Scanned++
		final, ok := written[j.change.Call.CallID]
		switch {
		case !ok:
			p.sum.LostRaces++
			lost = append(lost, j.change.Call.CallID)
			continue
		case final.unwritten:
			p.sum.Unwritten++
			continue
		}
		p.sum.count(final.verdict.Action, final.verdict.Reason)
	}
	return lost, p.snapshot()
}

// write applies changes in one transaction and returns what each call got. When the database refuses a value, the batch is
// halved down to the row that holds it; that one goes to a person, and the others proceed.
func (p *pass) write(ctx context.Context, all []judged) (map[string]*judged, error) {
	got := make(map[string]*judged, len(all))
	if p.limits.DryRun {
		for i := range all {
			got[all[i].change.Call.CallID] = &all[i]
		}
		return got, nil
	}
	changes := make([]pending.Change, len(all))
	for i, j := range all {
		changes[i] = j.change
	}
	written, err := p.store.Apply(ctx, changes)
	if state, refused := database.Refused(err); refused {
		return p.writeApart(ctx, all, state, err)
	}
	for i := range all {
		if id := all[i].change.Call.CallID; written[id] {
			got[id] = &all[i]
		}
	}
	return got, err
}

func (p *pass) writeApart(ctx context.Context, all []judged, sqlstate string, refusal error) (map[string]*judged, error) {
	if len(all) == 1 {
		j := all[0]
		if j.verdict.Reason == ReasonUnwritable {
			// A constraint or trigger of somebody else's, for example. The others proceed.
			p.cfg.Log.Error(Prefix(j.change.Call)+" cannot be written at all", "tool", p.cfg.Tool, "error", refusal)
			j.unwritten = true
			return map[string]*judged{j.change.Call.CallID: &j}, nil
		}
		return p.write(ctx, []judged{p.unwritable(j, sqlstate)})
	}
	half := len(all) / 2
	got, err := p.write(ctx, all[:half])
	if err != nil {
		return got, err
	}
	rest, err := p.write(ctx, all[half:])
	for id, j := range rest {
		got[id] = j
	}
	return got, err
}

// unwritable is the verdict on a call whose own verdict the database refuses to store, for example since a number in the
// receipt is out of its range. The look still counts.
func (p *pass) unwritable(j judged, sqlstate string) judged {
	call := j.change.Call
	v := Verdict{Action: Escalate, Reason: ReasonUnwritable}
	next := NextCheck(call, v, p.policy, j.at)
	c := pending.Escalate(call, string(v.Reason), next)
	said := "PostgreSQL refuses what the receipt holds, SQLSTATE " + sqlstate
	if call.Status == pending.StatusManual && Reason(call.Reason) == ReasonUnwritable {
		v.Action, c = Wait, pending.Keep(call, call.Reason, next) // on record already
	} else {
		c.Event = event(pending.EventVerdict, Seen{
			Status: c.Status(), From: call.Status, At: j.at, Policy: p.digest, SentAt: call.LastSentAt, Error: said,
		})
		c.Notify = p.tells(v.Action)
	}
	c.Look, c.LastError = j.change.Look, said
	return judged{verdict: v, change: c, at: j.at}
}
