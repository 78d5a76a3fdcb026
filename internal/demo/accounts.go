package demo

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/pending"
)

// Resend is a send beyond the first, as the reconciler's ledger records it before the first byte leaves.
type Resend struct {
	CallID  string `db:"call_id"`
	Attempt int    `db:"attempt"`
	Actor   string `db:"actor"`
}

// resends reads every recorded resend, by callId and in order.
func resends(ctx context.Context, db *sqlx.DB) (map[string][]Resend, error) {
	var all []Resend
	err := db.SelectContext(ctx, &all, `
		SELECT call_id, attempt, actor FROM reconciler.call_events WHERE kind = $1 ORDER BY at, attempt`, string(pending.EventSent))
	if err != nil {
		return nil, fmt.Errorf("reading the recorded sends: %w", err)
	}
	byCall := map[string][]Resend{}
	for _, r := range all {
		byCall[r.CallID] = append(byCall[r.CallID], r)
	}
	return byCall, nil
}

// faultOfSends compares what is known of how often a call was sent: by its caller, its row, the ledger and the network. It says what
// is wrong, or "".
func (o Outcome) faultOfSends() string {
	parkedAt := o.Attempt
	if o.Parked {
		parkedAt = max(1, o.Attempt) // the table knows no less
	}
	latest := parkedAt + len(o.Resends)
	for i, r := range o.Resends {
		switch {
		case r.Attempt != parkedAt+i+1:
			return fmt.Sprintf("the ledger records send %d where send %d is next", r.Attempt, parkedAt+i+1)
		case r.Actor != o.Call.Tool.resender():
			return fmt.Sprintf("send %d was made by the %s, and the %s sends these again", r.Attempt, r.Actor, o.Call.Tool.resender())
		}
	}
	if o.Parked && latest != o.Sends {
		return fmt.Sprintf("the row says that it was sent %d times, and the ledger %d", o.Sends, latest)
	}
	lookUps, seen := 0, map[int]bool{}
	for _, attempt := range o.Seen {
		switch {
		case attempt == lookUp:
			lookUps++
			continue
		case seen[attempt]:
			return fmt.Sprintf("send %d left twice", attempt)
		case attempt < 1 || attempt > latest || (attempt > o.Attempt && attempt <= parkedAt):
			return fmt.Sprintf("send %d left, and nobody records it", attempt)
		case attempt <= o.Attempt && lookUps < attempt-1:
			return fmt.Sprintf("send %d left, and its caller had not asked for the receipt of the one before", attempt)
		}
		seen[attempt] = true
	}
	return ""
}

// doubt says what should have come by the network and did not, or "". A busy machine loses a request now and then before anybody
// has seen it; many of them are a fault.
func (o Outcome) doubt() string {
	sends := len(o.Seen)
	for _, attempt := range o.Seen {
		if attempt == lookUp {
			sends--
		}
	}
	lookUps := len(o.Seen) - sends
	switch recorded := o.Attempt + len(o.Resends); {
	case sends < recorded:
		return fmt.Sprintf("%d sends are recorded, and %d left", recorded, sends)
	case o.Parked && o.Attempt > 0 && lookUps == 0:
		return "parked, and its caller had not asked for the receipt"
	}
	return ""
}

// faultOfNews compares what the orchestrator was told of a call with the row. It says what is wrong, or "".
func (o Outcome) faultOfNews() string {
	switch {
	case o.Told == "" && o.Status != "":
		return fmt.Sprintf("%s, and the webhook was never told", o.Status)
	case o.Told != o.Status:
		return fmt.Sprintf("%s, and the webhook was last told %s", o.Status, o.Told)
	case !o.Parked || !o.Call.Awaited:
		return ""
	case o.Awaited == "":
		return fmt.Sprintf("%s, and who waited for it was not told", o.Status)
	case o.Awaited != o.Status && o.Awaited != pending.StatusManual: // a late receipt settles what waits for a person
		return fmt.Sprintf("%s, and who waited for it was told %s", o.Status, o.Awaited)
	}
	return ""
}
