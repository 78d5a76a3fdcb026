-- +goose NO TRANSACTION
-- +goose Up
-- What the daemon asks every few seconds, and what it cleans away, must cost an index whatever the size of the backlog. Built beside
-- the traffic; one that was left invalid by an interruption is built anew.
--
-- On a large table that takes longer than any limit of a session, and it waits for every transaction that is open anywhere. It holds
-- up nobody meanwhile, so it has all the time it wants.
SET statement_timeout = 0;
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS reconciler.pending_confirmations_backlog;
CREATE INDEX CONCURRENTLY pending_confirmations_backlog ON reconciler.pending_confirmations (tool, status, created_at)
    WHERE status IN ('PENDING', 'RETRY', 'MANUAL');
DROP INDEX CONCURRENTLY IF EXISTS reconciler.pending_confirmations_settled;
CREATE INDEX CONCURRENTLY pending_confirmations_settled ON reconciler.pending_confirmations (resolved_at)
    WHERE status IN ('SUCCESS', 'FAILED') AND notify_at IS NULL;
RESET lock_timeout;
RESET statement_timeout;
