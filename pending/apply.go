package pending

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
)

// applyTries bounds how often one transaction is run again: after a lock that could not be had, a deadlock, or a
// COMMIT whose outcome had to be read first.
const applyTries = 4

// Apply writes a batch of changes and their ledger rows in one transaction, set-based, each guarded by the version it
// was decided from. It returns the callIds that were written; a call that is missing there had been changed by somebody
// else (or is locked by a session that does not let go), and nothing was done to it.
//
// After a COMMIT whose outcome is unknown it reads the rows and goes on from what it finds. An error for which
// database.Refused holds means that one of the rows can never be written as it is; nothing was applied then.
func (s *Store) Apply(ctx context.Context, changes []Change) (written map[string]bool, err error) {
	written = make(map[string]bool, len(changes))
	left := make([]*Change, len(changes))
	for i := range changes {
		left[i] = &changes[i]
	}
	// Everybody locks rows in the same order, so two writers wait for each other instead of deadlocking.
	slices.SortFunc(left, func(a, b *Change) int { return strings.Compare(a.Call.CallID, b.Call.CallID) })
	skipLocked, unsure := false, false
	for range applyTries {
		var ids []string
		ids, err = s.applyOnce(ctx, left, skipLocked)
		for _, id := range ids {
			written[id] = true
		}
		switch {
		case err == nil && unsure && len(ids) < len(left):
			// The server may have carried out the lost COMMIT only after the first look, while this transaction waited for it.
			_, err = s.reread(ctx, left, written)
			return written, err
		case err == nil:
			return written, nil
		case errors.Is(err, database.ErrCommitUnknown):
			unsure = true
			var blind error
			if left, blind = s.reread(ctx, left, written); blind != nil || len(left) == 0 {
				return written, blind
			}
		case database.Busy(err):
			skipLocked = true // somebody holds a row; the others need not wait for it
		default:
			return written, err
		}
	}
	return written, err
}

// applySQL is one statement, so that a batch is one round trip and all or nothing by itself. Nothing that the row
// holds afterwards is stored twice in the ledger.
const (
	applyHead = `
		WITH d AS MATERIALIZED (
			SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[],
				$8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[],
				$14::text[], $15::text[], $16::text[], $17::text[], $18::boolean[])
			AS d(call_id, version, status, reason, answered, unanswered, not_found_count,
				not_found_since, last_error, next_check_at, retry_before, receipt, processed_at,
				event, event_detail, anomaly, anomaly_detail, notify)`
	applySkipLocked = `
		), free AS MATERIALIZED (
			SELECT p.call_id AS free_id FROM reconciler.pending_confirmations p JOIN d USING (call_id)
			WHERE p.version = d.version FOR UPDATE OF p SKIP LOCKED`
	applyBody = `
		), u AS (
			UPDATE reconciler.pending_confirmations p SET
				status = d.status,
				reason = nullif(d.reason, ''),
				checks = least(p.checks::bigint + d.answered, 2147483647),
				unanswered = least(p.unanswered::bigint + d.unanswered, 2147483647),
				not_found_count = d.not_found_count,
				not_found_since = nullif(d.not_found_since, '')::timestamptz,
				last_error = nullif(d.last_error, ''),
				next_check_at = coalesce(nullif(d.next_check_at, '')::timestamptz, p.next_check_at),
				retry_before = coalesce(nullif(d.retry_before, '')::timestamptz, CASE WHEN d.status = 'RETRY' THEN p.retry_before END),
				receipt = coalesce(nullif(d.receipt, '')::jsonb, p.receipt),
				processed_at = coalesce(nullif(d.processed_at, '')::timestamptz, p.processed_at),
				resolved_at = CASE WHEN d.status IN ('SUCCESS', 'FAILED') THEN now() END,
				resolved_by = CASE WHEN d.status IN ('SUCCESS', 'FAILED') THEN 'reconciler' END,
				notify_at = CASE WHEN d.notify THEN clock_timestamp() WHEN d.event = '' THEN p.notify_at END,
				notify_since = CASE WHEN d.notify THEN clock_timestamp() ELSE p.notify_since END,
				notify_version = CASE WHEN d.notify THEN p.version + 1 ELSE p.notify_version END,
				notify_attempts = CASE WHEN d.notify THEN 0 ELSE p.notify_attempts END,
				notified_at = CASE WHEN d.event = '' THEN p.notified_at END,
				version = p.version + 1
			FROM d`
	applyTail = `
			WHERE p.call_id = d.call_id AND p.version = d.version AND p.status NOT IN ('SUCCESS', 'FAILED')
			RETURNING p.call_id, p.biz_id, p.attempt, p.reason, d.event, d.event_detail, d.anomaly, d.anomaly_detail
		), e AS (
			INSERT INTO reconciler.call_events (call_id, biz_id, kind, attempt, reason, actor, detail)
			SELECT call_id, biz_id, event, attempt, reason, 'reconciler', nullif(event_detail, '')::jsonb FROM u WHERE event <> ''
			UNION ALL
			SELECT call_id, biz_id, anomaly, attempt, reason, 'reconciler', nullif(anomaly_detail, '')::jsonb FROM u WHERE anomaly <> ''
		)
		SELECT call_id FROM u`

	applySQL        = applyHead + applyBody + applyTail
	applySQLNoWaits = applyHead + applySkipLocked + applyBody + ` JOIN free ON free_id = d.call_id` + applyTail
)

// probesOnly: a batch is a few hundred probes of an index. Left to itself the planner may read whole tables for each of them,
// since the statistics of a table that fills and empties are always old.
const probesOnly = `SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off`

func (s *Store) applyOnce(ctx context.Context, changes []*Change, skipLocked bool) (ids []string, err error) {
	query := applySQL
	if skipLocked {
		query = applySQLNoWaits
	}
	args := applyArgs(changes)
	err = database.InTx(ctx, s.db, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, probesOnly); err != nil {
			return err
		}
		ids = nil
		return tx.SelectContext(ctx, &ids, query, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("writing %d calls: %w", len(changes), err)
	}
	return ids, nil
}

func applyArgs(changes []*Change) []any {
	n := len(changes)
	text := func() pq.StringArray { return make(pq.StringArray, n) }
	ints := func() pq.Int64Array { return make(pq.Int64Array, n) }
	callID, version, status, reason := text(), ints(), text(), text()
	answered, unanswered, notFound, since := ints(), ints(), ints(), text()
	lastError, next, before, proof, processed := text(), text(), text(), text(), text()
	event, eventDetail, anomaly, anomalyDetail := text(), text(), text(), text()
	notify := make(pq.BoolArray, n)
	for i, c := range changes {
		callID[i], version[i], status[i], reason[i] = c.Call.CallID, c.Call.Version, string(c.status), c.reason
		switch c.Look {
		case Answered:
			answered[i] = 1
		case NotAnswered:
			unanswered[i] = 1
		case NoLook:
		}
		notFound[i] = int64(min(c.NotFoundCount, math.MaxInt32))
		if c.NotFoundSince != nil {
			since[i] = stamp(*c.NotFoundSince)
		}
		lastError[i] = c.LastError
		next[i], before[i], processed[i] = stampOrNone(c.nextCheckAt), stampOrNone(c.retryBefore), stampOrNone(c.proof.ProcessedAt)
		proof[i] = string(c.proof.Raw)
		event[i], eventDetail[i] = string(c.Event.Kind), string(c.Event.Detail)
		anomaly[i], anomalyDetail[i] = string(c.Anomaly.Kind), string(c.Anomaly.Detail)
		notify[i] = c.Notify
	}
	return []any{
		callID, version, status, reason, answered, unanswered, notFound, since, lastError, next, before, proof, processed,
		event, eventDetail, anomaly, anomalyDetail, notify,
	}
}

func stampOrNone(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return stamp(t)
}

// reread sorts the changes of a transaction with an unknown outcome: those found written are added to written, those
// whose version stands where it stood are returned to be tried again, and the rest were changed by somebody else.
func (s *Store) reread(ctx context.Context, changes []*Change, written map[string]bool) (left []*Change, err error) {
	ids := make([]string, len(changes))
	for i, c := range changes {
		ids[i] = c.Call.CallID
	}
	calls, err := s.Get(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("finding out whether a COMMIT had happened: %w", err)
	}
	now := make(map[string]Call, len(calls))
	for _, c := range calls {
		now[c.CallID] = c
	}
	for _, c := range changes {
		switch found := now[c.Call.CallID]; {
		case found.CallID == "":
		case found.Version == c.Call.Version:
			left = append(left, c)
		case found.Version == c.Call.Version+1 && found.Status == c.status && found.Reason == c.reason:
			written[c.Call.CallID] = true
		}
	}
	return left, nil
}

// RecordContradictions appends a contradiction to the ledger of calls that are final, once for each call, and returns how
// many were new. The rows themselves are not touched: SUCCESS and FAILED stay what they are.
func (s *Store) RecordContradictions(ctx context.Context, calls []Call, events []Event) (recorded int, err error) {
	var callID, bizID, reason, detail pq.StringArray
	var attempt pq.Int64Array
	for i, c := range calls {
		callID, bizID, attempt = append(callID, c.CallID), append(bizID, c.BizID), append(attempt, int64(c.Attempt))
		reason, detail = append(reason, c.Reason), append(detail, string(events[i].Detail))
	}
	err = database.InTx(ctx, s.db, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, probesOnly); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `
			INSERT INTO reconciler.call_events (call_id, biz_id, kind, attempt, reason, actor, detail)
			SELECT e.call_id, e.biz_id, $6, e.attempt, nullif(e.reason, ''), 'reconciler', nullif(e.detail, '')::jsonb
			FROM unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::text[]) AS e(call_id, biz_id, attempt, reason, detail)
			WHERE NOT EXISTS (SELECT FROM reconciler.call_events old WHERE old.call_id = e.call_id AND old.kind = $6)`,
			callID, bizID, attempt, reason, detail, string(EventContradiction))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		recorded = int(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("recording %d contradictions: %w", len(calls), err)
	}
	return recorded, nil
}

// EnsureEventPartitions makes the ledger's daily partitions for today and two weeks ahead, where they are missing.
func (s *Store) EnsureEventPartitions(ctx context.Context) error {
	err := database.InTx(ctx, s.db, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `SELECT reconciler.ensure_event_partitions()`)
		return err
	})
	if err != nil {
		return fmt.Errorf("making the ledger's partitions: %w", err)
	}
	return nil
}
