package pending

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// Record is everything the table holds of one call; its JSON names are the column names.
type Record struct {
	Call
	NextCheckAt time.Time  `db:"next_check_at" json:"next_check_at"`
	TimeoutKind *string    `db:"timeout_kind" json:"timeout_kind"`
	LastError   *string    `db:"last_error" json:"last_error"`
	RetryBefore *time.Time `db:"retry_before" json:"retry_before"`
	ProcessedAt *time.Time `db:"processed_at" json:"processed_at"`
	ResolvedAt  *time.Time `db:"resolved_at" json:"resolved_at"`
	ResolvedBy  *string    `db:"resolved_by" json:"resolved_by"`
	NotifiedAt  *time.Time `db:"notified_at" json:"notified_at"`
	Receipt     JSON       `db:"receipt" json:"receipt"`
}

// JSON is a column of type jsonb; null stays null.
type JSON json.RawMessage

// Scan takes what the driver has.
func (j *JSON) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*j = nil
	case []byte:
		*j = append((*j)[:0], v...)
	case string:
		*j = append((*j)[:0], v...)
	default:
		return fmt.Errorf("a %T is no jsonb", src)
	}
	return nil
}

// MarshalJSON writes the document as it is.
func (j JSON) MarshalJSON() ([]byte, error) {
	if j == nil {
		return []byte("null"), nil
	}
	return j, nil
}

var recordColumns = callColumns + `, ` + within(`next_check_at`) + `, p.timeout_kind, p.last_error, ` + within(`retry_before`) + `, ` + within(`processed_at`) + `, ` +
	within(`resolved_at`) + `, p.resolved_by, ` + within(`notified_at`) + `, p.receipt`

// Filter selects calls for people; "" means any.
type Filter struct {
	Tool, BizID, Reason string
	Statuses            []Status // empty selects nothing
	Limit               int
}

// List reads the calls that a filter selects: those that are due first, first.
func (s *Store) List(ctx context.Context, f Filter) ([]Record, error) {
	statuses := make(pq.StringArray, len(f.Statuses))
	for i, status := range f.Statuses {
		statuses[i] = string(status)
	}
	var calls []Record
	err := s.db.SelectContext(ctx, &calls, `
		SELECT `+recordColumns+`
		FROM reconciler.pending_confirmations p
		WHERE ($1 = '' OR p.tool = $1) AND p.status = ANY($2) AND ($3 = '' OR p.biz_id = $3) AND ($4 = '' OR p.reason = $4)
		ORDER BY p.next_check_at, p.call_id
		LIMIT $5`, f.Tool, statuses, f.BizID, f.Reason, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("listing calls: %w", err)
	}
	return calls, nil
}

// ErrNoSuchCall is returned for a callId that is not in the table.
var ErrNoSuchCall = errors.New("no such call")

// Find reads one call.
func (s *Store) Find(ctx context.Context, callID string) (Record, error) {
	var r Record
	err := s.db.GetContext(ctx, &r, `
		SELECT `+recordColumns+` FROM reconciler.pending_confirmations p WHERE p.call_id = $1`, callID)
	if errors.Is(err, sql.ErrNoRows) {
		return r, fmt.Errorf("%q: %w", callID, ErrNoSuchCall)
	}
	if err != nil {
		return r, fmt.Errorf("reading call %q: %w", callID, err)
	}
	return r, nil
}

// Entry is one row of the ledger.
type Entry struct {
	At      time.Time `db:"at" json:"at"`
	Kind    EventKind `db:"kind" json:"kind"`
	Attempt int       `db:"attempt" json:"attempt"`
	Reason  string    `db:"reason" json:"reason"`
	Actor   string    `db:"actor" json:"actor"`
	Detail  JSON      `db:"detail" json:"detail"`
}

// Ledger reads the newest rows of a call's ledger, at most limit, oldest first.
func (s *Store) Ledger(ctx context.Context, callID string, limit int) ([]Entry, error) {
	var entries []Entry
	err := s.db.SelectContext(ctx, &entries, `
		SELECT at, kind, attempt, reason, actor, detail FROM (
			SELECT at, kind, attempt, coalesce(reason, '') AS reason, actor, detail
			FROM reconciler.call_events WHERE call_id = $1 ORDER BY at DESC LIMIT $2) newest
		ORDER BY at`, callID, limit)
	if err != nil {
		return nil, fmt.Errorf("reading the ledger of call %q: %w", callID, err)
	}
	return entries, nil
}
