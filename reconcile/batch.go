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
	read   reading // of the latest of them
}

// reading is the instant of a read by the database clock, and by our own, which is good for measuring only.
type reading struct{ at, local time.Time }

// instant is the database's time when our own clock shows local.
func (r reading) instant(local time.Time) time.Time { return r.at.Add(local.Sub(r.local)) }

// batcher fills batches across pages, so that a pass makes no more requests than it must.
type batcher struct {
	batch
	has map[string]bool
}

// add takes a call, or reports that it does not fit any more: the batch holds size bizIds and this is another, or it holds
// as many calls as it may.
func (b *batcher) add(c pending.Call, read reading, size int) bool {
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
	b.read = read
	return true
}

// take hands out what has been collected and starts anew.
func (b *batcher) take() batch {
	full := b.batch
	*b = batcher{}
	return full
}
