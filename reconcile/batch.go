package reconcile

import (
	"time"

	"github.com/callreceipt/reconciler/pending"
)

// maxBatchCalls bounds the calls of a batch. One bizId may own any number; beyond this it is asked about again.
const maxBatchCalls = 2000

// batch is the calls of up to so many distinct bizIds, which are asked about in one request.
type batch struct {
	bizIDs []string
	calls  []pending.Call
	readAt time.Time // when the latest of them was read, by the database clock: the instant of their verdicts
}

// batcher fills batches across pages, so that a pass makes no more requests than it must.
type batcher struct {
	batch
	has map[string]bool
}

// add takes a call, or reports that it does not fit any more: the batch holds size bizIds and this is another, or it holds
// as many calls as it may.
func (b *batcher) add(c pending.Call, readAt time.Time, size int) bool {
	if len(b.calls) >= maxBatchCalls {
		return false
	}
	if !b.has[c.BizID] {
		if len(b.bizIDs) >= size {
			return false
		}
		if b.has == nil {
			b.has = make(map[string]bool, size)
		}
		b.has[c.BizID] = true
		b.bizIDs = append(b.bizIDs, c.BizID)
	}
	b.calls = append(b.calls, c)
	b.readAt = readAt
	return true
}

// take hands out what has been collected and starts anew.
func (b *batcher) take() batch {
	full := b.batch
	*b = batcher{}
	return full
}
