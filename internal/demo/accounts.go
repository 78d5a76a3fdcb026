package demo

import (
	"context"
	"fmt"
	"slices"

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

// faultOfSends compares three accounts of how often a call was sent: its row, the ledger and the network. It says what is wrong,
// or "".
func (o Outcome) faultOfSends() string {
	unseen := 0
	for i, r := range o.Resends {
		switch {
		case r.Attempt != i+2:
			return fmt.Sprintf("the ledger records send %d where send %d is next", r.Attempt, i+2)
		case r.Actor != o.Call.Tool.resender():
			return fmt.Sprintf("send %d was made by the %s, and the %s sends these again", r.Attempt, r.Actor, o.Call.Tool.resender())
		case !slices.Contains(o.Seen, r.Attempt):
			unseen++
		}
	}
	if recorded := len(o.Resends) + 1; o.Parked && recorded != o.Sends {
		return fmt.Sprintf("the row says that it was sent %d times, and the ledger %d", o.Sends, recorded)
	}
	seen := map[int]bool{}
	for _, attempt := range o.Seen {
		switch {
		case seen[attempt]:
			return fmt.Sprintf("send %d left twice", attempt)
		case attempt < 1 || attempt > len(o.Resends)+1:
			return fmt.Sprintf("send %d left, and the ledger does not record it", attempt)
		}
		seen[attempt] = true
	}
	if unseen > 1 { // one may be lost before anybody saw it
		return fmt.Sprintf("the ledger records %d sends that never left", unseen)
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
