-- +goose NO TRANSACTION
-- +goose Up
-- What the daemon asks every few seconds, and what it cleans away, must cost an index whatever the size of the backlog. Built beside
-- the traffic; one that was left invalid by an interruption is built anew.
DROP INDEX CONCURRENTLY IF EXISTS reconciler.pending_confirmations_backlog;
CREATE INDEX CONCURRENTLY pending_confirmations_backlog ON reconciler.pending_confirmations (tool, status, created_at)
    WHERE status IN ('PENDING', 'RETRY', 'MANUAL');
DROP INDEX CONCURRENTLY IF EXISTS reconciler.pending_confirmations_settled;
CREATE INDEX CONCURRENTLY pending_confirmations_settled ON reconciler.pending_confirmations (resolved_at)
    WHERE status IN ('SUCCESS', 'FAILED') AND notify_at IS NULL;
