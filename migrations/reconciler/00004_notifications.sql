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

-- Whoever takes a RETRY starts a new send: what was learned of the one before says nothing of it, and the offer is no news any
-- more. The statement of the taker may leave that out.
-- +goose StatementBegin
CREATE FUNCTION reconciler.pending_taken() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.not_found_count := 0;
    NEW.not_found_since := NULL;
    NEW.retry_before := NULL;
    NEW.reason := NULL;
    NEW.notify_at := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER pending_taken BEFORE UPDATE ON reconciler.pending_confirmations
    FOR EACH ROW WHEN (OLD.status = 'RETRY' AND NEW.status = 'PENDING' AND NEW.attempt > OLD.attempt)
    EXECUTE FUNCTION reconciler.pending_taken();
