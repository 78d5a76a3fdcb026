package pending

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// Store reads and writes the table for the reconciler.
type Store struct{ db *sqlx.DB }

// NewStore works on the database that holds the schema "reconciler".
func NewStore(db *sqlx.DB) *Store { return &Store{db: db} }

// Now is the database clock, by which everything is judged.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var now time.Time
	if err := s.db.GetContext(ctx, &now, `SELECT clock_timestamp()`); err != nil {
		return time.Time{}, fmt.Errorf("asking for the database clock: %w", err)
	}
	return now, nil
}

// Cursor is a place in the order (next_check_at, call_id). The instant stays the server's own text, so that
// "infinity" and microseconds survive the way there and back.
type Cursor struct {
	at     string
	callID string
}

// Range is a stretch of due times, from exclusive to inclusive, in the server's text.
type Range struct{ from, to string }

// Due is everything whose time had come at the horizon.
func Due(horizon time.Time) Range { return Range{from: "-infinity", to: stamp(horizon)} }

// farAhead is beyond any time that a look schedules (config bounds check_backoff.max to 720h). A row that lies
// further ahead was put there by a broken clock or by "infinity", and would never be looked at.
const farAhead = 366 * 24 * time.Hour

// Astray is every row that would not come due within a year.
func Astray(horizon time.Time) Range {
	return Range{from: stamp(horizon.Add(farAhead)), to: "infinity"}
}

// Start is the cursor before the first row of the range.
func (r Range) Start() Cursor { return Cursor{at: r.from} }

// stamp is PostgreSQL's text of an instant; its resolution is the microsecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999Z07:00") }

// Page is a stretch of open calls and the instant at which it was read, by the database clock.
type Page struct {
	Calls  []Call
	Next   Cursor // where the next page goes on
	ReadAt time.Time
}

// pageRow takes the instants that matter of one row only as text, which costs nothing for the others.
type pageRow struct {
	Call
	At     string `db:"at"`
	ReadAt string `db:"read_at"`
}

// Page reads up to limit open calls of a tool within a range, after the cursor. An empty page is the end.
func (s *Store) Page(ctx context.Context, tool string, within Range, after Cursor, limit int) (Page, error) {
	rows := make([]pageRow, 0, limit)
	err := s.db.SelectContext(ctx, &rows, `
		SELECT `+callColumns+`, p.next_check_at::text AS at,
			to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS read_at
		FROM reconciler.pending_confirmations p
		WHERE p.tool = $1 AND `+open+`
		  AND (p.next_check_at, p.call_id) > ($2::timestamptz, $3) AND p.next_check_at <= $4::timestamptz
		ORDER BY p.next_check_at, p.call_id
		LIMIT $5`, tool, after.at, after.callID, within.to, limit)
	if err != nil {
		return Page{}, fmt.Errorf("reading due calls of %s: %w", tool, err)
	}
	page := Page{Next: after, Calls: make([]Call, len(rows))}
	for i, r := range rows {
		page.Calls[i] = r.Call
	}
	if n := len(rows); n > 0 {
		last := rows[n-1]
		page.Next = Cursor{at: last.At, callID: last.CallID}
		if page.ReadAt, err = time.Parse(time.RFC3339Nano, last.ReadAt); err != nil {
			return Page{}, fmt.Errorf("reading the database clock: %w", err)
		}
	}
	return page, nil
}

// Siblings reads the other calls of these bizIds that lie in the range behind the cursor, so that one answer serves
// every due call of a business fact. More than limit are left to their own turn.
//
// The lateral subquery with its limit, and a status condition that the index of due rows does not fit, leave the planner one way:
// a probe of the index on biz_id for each bizId. Few due rows are siblings, and reading them all to find out is what it
// would choose by itself.
func (s *Store) Siblings(ctx context.Context, tool string, within Range, after Cursor, bizIDs []string, limit int) ([]Call, error) {
	var calls []Call
	err := s.db.SelectContext(ctx, &calls, `
		SELECT sibling.* FROM unnest($1::text[]) AS b(biz_id) CROSS JOIN LATERAL (
			SELECT `+callColumns+`
			FROM reconciler.pending_confirmations p
			WHERE p.biz_id = b.biz_id AND p.tool = $2 AND p.status NOT IN ('SUCCESS', 'FAILED')
			  AND (p.next_check_at, p.call_id) > ($3::timestamptz, $4) AND p.next_check_at <= $5::timestamptz
			LIMIT $6) sibling
		LIMIT $6`, pq.StringArray(bizIDs), tool, after.at, after.callID, within.to, limit)
	if err != nil {
		return nil, fmt.Errorf("reading sibling calls of %s: %w", tool, err)
	}
	return calls, nil
}

// Get reads calls by id, in no order; ids that are not in the table are left out.
func (s *Store) Get(ctx context.Context, callIDs []string) ([]Call, error) {
	var calls []Call
	err := s.db.SelectContext(ctx, &calls, `
		SELECT `+callColumns+` FROM reconciler.pending_confirmations p WHERE p.call_id = ANY($1)`, pq.StringArray(callIDs))
	if err != nil {
		return nil, fmt.Errorf("reading %d calls: %w", len(callIDs), err)
	}
	return calls, nil
}

// ToolCount is a tool that open calls name, and how many name it.
type ToolCount struct {
	Tool  string `db:"tool" json:"tool"`
	Calls int    `db:"calls" json:"calls"`
}

// maxUnknownTools bounds how many of them are named; a caller that makes a name for each call has as many as calls.
const maxUnknownTools = 100

// UnknownTools finds open calls of tools that are not in known. It steps from tool to tool through the index instead of
// reading the backlog, stops counting a tool at limit, and names the first hundred or so.
func (s *Store) UnknownTools(ctx context.Context, known []string, limit int) ([]ToolCount, error) {
	var tools []ToolCount
	err := s.db.SelectContext(ctx, &tools, `
		WITH RECURSIVE seen AS (
			(SELECT p.tool, 1 AS n FROM reconciler.pending_confirmations p WHERE `+open+` ORDER BY p.tool LIMIT 1)
			UNION ALL
			SELECT (SELECT p.tool FROM reconciler.pending_confirmations p
			        WHERE `+open+` AND p.tool > seen.tool ORDER BY p.tool LIMIT 1), seen.n + 1
			FROM seen WHERE seen.tool IS NOT NULL AND seen.n < $3)
		SELECT seen.tool, (SELECT count(*) FROM (
				SELECT FROM reconciler.pending_confirmations p WHERE `+open+` AND p.tool = seen.tool LIMIT $2) few) AS calls
		FROM seen WHERE seen.tool IS NOT NULL AND seen.tool <> ALL(coalesce($1::text[], '{}'))
		ORDER BY seen.tool`, pq.StringArray(known), limit, len(known)+maxUnknownTools)
	if err != nil {
		return nil, fmt.Errorf("looking for calls of unknown tools: %w", err)
	}
	return tools, nil
}
