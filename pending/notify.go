package pending

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
)

// Notification is a verdict that the orchestrator has not been told yet, read from the committed row.
type Notification struct {
	Call
	NotifyVersion int64      `db:"notify_version"` // the version of the verdict
	Since         time.Time  `db:"notify_since"`   // when it was given
	Attempts      int        `db:"notify_attempts"`
	ProcessedAt   *time.Time `db:"processed_at"`
	ResolvedAt    *time.Time `db:"resolved_at"`
	Receipt       JSON       `db:"receipt"`
}

// toTell is a verdict whose delivery is due. A person may have put a call back to PENDING by plain SQL: there is no verdict to tell of
// then, and one that was asked for but never found would keep every replica at it each second.
const toTell = `p.notify_at <= statement_timestamp() AND p.status <> 'PENDING' AND p.notify_version IS NOT NULL AND p.notify_since IS NOT NULL`

// DueNotifications reads up to limit verdicts of a tool whose delivery is due, those that wait longest first. A call has at most
// one: its latest verdict.
func (s *Store) DueNotifications(ctx context.Context, tool string, limit int) ([]Notification, error) {
	var due []Notification
	err := s.db.SelectContext(ctx, &due, `
		SELECT `+callColumns+`, p.notify_version, `+within(`notify_since`)+`, p.notify_attempts,
			`+within(`processed_at`)+`, `+within(`resolved_at`)+`, p.receipt
		FROM reconciler.pending_confirmations p
		WHERE p.tool = $1 AND `+toTell+`
		ORDER BY p.notify_at, p.call_id LIMIT $2`, tool, limit)
	if err != nil {
		return nil, fmt.Errorf("reading the verdicts of %s to deliver: %w", tool, err)
	}
	return due, nil
}

// ToolsToTell are those of the given tools that have a verdict to deliver now. It costs a look into an index for each, and takes no
// lease, so it can be asked every second by every replica.
func (s *Store) ToolsToTell(ctx context.Context, tools []string) ([]string, error) {
	var due []string
	err := s.db.SelectContext(ctx, &due, `
		SELECT t.tool FROM unnest($1::text[]) AS t(tool) WHERE EXISTS (
			SELECT FROM reconciler.pending_confirmations p WHERE p.tool = t.tool AND `+toTell+`)`, pq.StringArray(tools))
	if err != nil {
		return nil, fmt.Errorf("looking for verdicts to deliver: %w", err)
	}
	return due, nil
}

// Untold counts the verdicts of a tool that wait for their delivery, and those whose delivery was given up, each up to limit.
func (s *Store) Untold(ctx context.Context, tool string, limit int) (waiting, givenUp int, err error) {
	err = s.db.QueryRowxContext(ctx, `
		SELECT (SELECT count(*) FROM (SELECT FROM reconciler.pending_confirmations
				WHERE tool = $1 AND notify_at < 'infinity' LIMIT $2) few),
			(SELECT count(*) FROM (SELECT FROM reconciler.pending_confirmations
				WHERE tool = $1 AND notify_at = 'infinity' LIMIT $2) few)`, tool, limit).Scan(&waiting, &givenUp)
	if err != nil {
		return 0, 0, fmt.Errorf("counting the verdicts of %s that were not told: %w", tool, err)
	}
	return waiting, givenUp, nil
}

// Delivered records that the orchestrator took the verdict. When the call has got another verdict meanwhile, that one is still
// to be delivered and nothing is written.
func (s *Store) Delivered(ctx context.Context, n Notification) error {
	return s.setNotification(ctx, n, `notify_at = NULL, notified_at = clock_timestamp()`)
}

// NotDelivered puts the verdict off; after <= 0 gives it up.
func (s *Store) NotDelivered(ctx context.Context, n Notification, after time.Duration) error {
	if after <= 0 {
		return s.setNotification(ctx, n, `notify_attempts = notify_attempts + 1, notify_at = 'infinity'`)
	}
	return s.setNotification(ctx, n, `notify_attempts = notify_attempts + 1, notify_at = clock_timestamp() + $3 * interval '1 second'`, after.Seconds())
}

func (s *Store) setNotification(ctx context.Context, n Notification, set string, args ...any) error {
	err := database.InTx(ctx, s.db, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `
			UPDATE reconciler.pending_confirmations SET version = version + 1, `+set+`
			WHERE call_id = $1 AND notify_version = $2 AND notify_at IS NOT NULL`, append([]any{n.CallID, n.NotifyVersion}, args...)...)
		return err
	})
	if err != nil {
		return fmt.Errorf("recording the delivery of the verdict on %q: %w", n.CallID, err)
	}
	return nil
}
