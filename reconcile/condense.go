package reconcile

import (
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// smallAnswer is how many receipts of a bizId every call of it simply looks through.
const smallAnswer = 8

// answerOf is what a downstream says of one bizId, arranged so that each call of it finds what bears on it at once: a bizId
// may own ten thousand calls and as many receipts.
type answerOf struct {
	all     receipt.Evidence
	mine    map[string][]receipt.Receipt
	byKey   map[string]*few
	byOp    map[string]*few
	unkeyed map[string]*few   // by operation, of receipts without a key
	someone []receipt.Receipt // one receipt that says more than NOT_FOUND, of whatever intent
}

// few keeps, of receipts that mean the same to a call, the two that come first and are of different callIds: one of
// them is not the call's own.
type few map[receipt.Status][]receipt.Receipt

func (f few) add(r receipt.Receipt) {
	kept := f[r.Status]
	for i := range kept {
		if kept[i].CallID == r.CallID {
			kept[i] = *receipt.First(&kept[i], &r)
			return
		}
	}
	switch {
	case len(kept) < 2:
		f[r.Status] = append(kept, r)
	case receipt.First(&kept[0], &kept[1]) == &kept[0] && receipt.First(&kept[1], &r) == &r:
		kept[1] = r
	case receipt.First(&kept[0], &r) == &r:
		kept[0] = r
	}
}

func arrange(seen receipt.Evidence) answerOf {
	a := answerOf{all: seen}
	if len(seen.Receipts) <= smallAnswer {
		return a
	}
	a.mine = map[string][]receipt.Receipt{}
	a.byKey, a.byOp, a.unkeyed = map[string]*few{}, map[string]*few{}, map[string]*few{}
	into := func(m map[string]*few, name string, r receipt.Receipt) {
		if m[name] == nil {
			m[name] = &few{}
		}
		m[name].add(r)
	}
	for _, r := range seen.Receipts {
		a.mine[r.CallID] = append(a.mine[r.CallID], r)
		if r.Status == receipt.StatusNotFound {
			continue
		}
		a.someone = []receipt.Receipt{r}
		into(a.byKey, r.IdempotencyKey, r)
		into(a.byOp, r.Operation, r)
		if r.IdempotencyKey == "" {
			into(a.unkeyed, r.Operation, r)
		}
	}
	return a
}

// about is the part of the answer that bears on one call. Decide gives the same verdict on it as on the whole.
func (a answerOf) about(call pending.Call) receipt.Evidence {
	if a.mine == nil {
		return a.all
	}
	part := receipt.Evidence{Presence: a.all.Presence}
	part.Receipts = append(part.Receipts, a.mine[call.CallID]...)
	for _, f := range []*few{a.byKey[call.IdempotencyKey], a.byOp[call.Operation], a.unkeyed[""], a.unkeyed[call.Operation]} {
		if f == nil {
			continue
		}
		for _, rs := range *f {
			part.Receipts = append(part.Receipts, rs...)
		}
	}
	part.Receipts = append(part.Receipts, a.someone...)
	return part
}
