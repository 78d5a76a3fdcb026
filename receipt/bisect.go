package receipt

import (
	"context"
	"errors"
	"math/bits"
	"slices"
)

// Ask makes one request about bizIDs. The caller's function adds the rate limit, the repeats and the breaker.
// An error that is no *Error is the caller's own, such as an open breaker: it ends the asking.
type Ask func(ctx context.Context, bizIDs []string) (Answer, error)

// Collected is what was learned about one batch.
type Collected struct {
	Evidence   map[string]Evidence // exactly one entry for each bizId asked
	Unasked    int                 // items that nobody asked for
	Duplicates int                 // items that repeat another one
	// MaxBatch is above 0 when the downstream finds a batch too large: use at most that many ids from now on.
	// It is never below what was answered in the same run, and an id that is too large alone does not lower it.
	MaxBatch int
}

// Collect asks about one batch. A batch that is refused as bad, or whose answer is malformed, is halved, down to the bad bizId,
// which alone is set aside as Unknown. A downstream that refuses everything is left alone after about 2·log2(n) requests without
// one success between them; what is left of the batch is then Unknown. Ids whose request failed in any other way
// are Unknown with that error, and the others are still asked about.
//
// The error is an *Error and means that asking any further is pointless: the tool is misconfigured, or the caller
// gave up. Collected is complete in that case too; ids that were not asked about are Unknown with that error.
func Collect(ctx context.Context, bizIDs []string, ask Ask) (Collected, error) {
	b := batch{
		Collected: Collected{Evidence: make(map[string]Evidence, len(bizIDs))},
		patience:  2*ceilLog2(len(bizIDs)) + 2,
	}
	if len(bizIDs) > 0 {
		b.pending = [][]string{bizIDs}
	}
	for len(b.pending) > 0 {
		ids := b.next()
		answer, err := ask(ctx, ids)
		if err == nil {
			b.answered(ids, answer)
			continue
		}
		trouble := AsError(err)
		switch {
		case trouble.Outcome == Misconfigured || trouble.Kind == KindCanceled:
			b.setAside(trouble, ids)
			b.setAside(trouble, b.pending...)
			return b.result(), trouble
		case trouble.Outcome == BadBatch, trouble.Kind == KindMalformed && len(ids) > 1:
			b.refused(ids, trouble)
		default:
			b.setAside(trouble, ids)
		}
	}
	return b.result(), nil
}

// batch is the state of one Collect.
type batch struct {
	Collected
	pending  [][]string // a stack; the piece at the bottom is the oldest
	patience int        // how many refused requests in a row are borne
	row      int        // refused requests since the last success
	alone    int        // bad ids found since the last success
	answers  int        // the largest piece that was answered
	large    [][]string // pieces that were too large
}

// next takes a piece to ask about. The newest leads down to a bad id in the fewest steps. But when bad ids are
// neighbours that path meets nothing but refusals, so after two of them the oldest and largest piece goes first:
// every part of the batch has then been tried once before patience ends.
func (b *batch) next() []string {
	at := len(b.pending) - 1
	if b.alone >= 2 {
		at = 0
	}
	ids := b.pending[at]
	b.pending = append(b.pending[:at], b.pending[at+1:]...)
	return ids
}

func (b *batch) answered(ids []string, a Answer) {
	b.row, b.alone = 0, 0
	b.answers = max(b.answers, len(ids))
	b.Unasked += a.Unasked
	b.Duplicates += a.Duplicates
	for _, id := range ids {
		e, mentioned := a.Of[id]
		if !mentioned {
			e = Evidence{Err: &Error{Kind: KindMissing}}
		}
		b.Evidence[id] = e
	}
}

func (b *batch) refused(ids []string, trouble *Error) {
	if trouble.Kind == KindTooLarge {
		b.large = append(b.large, ids)
	}
	if len(ids) == 1 {
		b.alone++
		b.setAside(trouble, ids)
	} else {
		half := len(ids) / 2
		b.pending = append(b.pending, ids[half:], ids[:half])
	}
	if b.row++; b.row > b.patience {
		b.setAside(trouble, b.pending...)
		b.pending = nil
	}
}

func (b *batch) setAside(trouble *Error, pieces ...[]string) {
	for _, ids := range pieces {
		for _, id := range ids {
			b.Evidence[id] = Evidence{Err: trouble}
		}
	}
}

// result sets MaxBatch to half of the smallest piece that was too large without an id that is so alone.
func (b *batch) result() Collected {
	alone := make(map[string]bool)
	for _, ids := range b.large {
		if len(ids) == 1 {
			alone[ids[0]] = true
		}
	}
	for _, ids := range b.large {
		explained := slices.ContainsFunc(ids, func(id string) bool { return alone[id] })
		if !explained && (b.MaxBatch == 0 || len(ids)/2 < b.MaxBatch) {
			b.MaxBatch = len(ids) / 2
		}
	}
	if b.MaxBatch > 0 {
		b.MaxBatch = max(b.MaxBatch, b.answers)
	}
	return b.Collected
}

func ceilLog2(n int) int { return bits.Len(uint(max(n, 1) - 1)) }

// AsError finds the *Error in err. Any other error is the asker's own, such as an open breaker, and says nothing of the downstream:
// KindCanceled.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: KindCanceled, Err: err}
}
