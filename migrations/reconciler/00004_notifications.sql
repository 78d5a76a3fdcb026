-- +goose Up
-- Delivery of verdicts to the orchestrator's webhook. What is to be delivered is the row itself, so there is no copy of it
-- that could differ: notify_at says when to try next.
ALTER TABLE reconciler.pending_confirmations
    ADD COLUMN notify_at       timestamptz,
    ADD COLUMN notify_version  bigint,
    ADD COLUMN notify_since    timestamptz,
    ADD COLUMN notify_attempts integer NOT NULL DEFAULT 0;

COMMENT ON COLUMN reconciler.pending_confirmations.notify_at IS
    'when to deliver the verdict next; null when there is nothing to deliver, infinity when it was given up (set it to now() to go on)';
COMMENT ON COLUMN reconciler.pending_confirmations.notify_version IS 'version of the verdict to deliver; with call_id it is the webhook-id';
COMMENT ON COLUMN reconciler.pending_confirmations.notify_since IS 'when that verdict was given';

CREATE INDEX pending_confirmations_notify ON reconciler.pending_confirmations (tool, notify_at, call_id)
    WHERE notify_at IS NOT NULL;
