-- +goose Up
-- One row per call whose outcome its caller does not know. Programs in any language insert and read here,
-- so the database itself keeps the rules that no client may break.
CREATE TABLE reconciler.pending_confirmations (
    call_id         text        PRIMARY KEY,
    biz_id          text        NOT NULL,
    tool            text        NOT NULL,
    operation       text        NOT NULL,
    idempotency_key text        NOT NULL,
    status          text        NOT NULL DEFAULT 'PENDING',
    attempt         integer     NOT NULL DEFAULT 1,
    issued_at       timestamptz NOT NULL DEFAULT now(),
    last_sent_at    timestamptz NOT NULL DEFAULT now(),
    request         jsonb,
    timeout_kind    text,
    next_check_at   timestamptz NOT NULL DEFAULT now(),
    checks          integer     NOT NULL DEFAULT 0,
    unanswered      integer     NOT NULL DEFAULT 0,
    not_found_count integer     NOT NULL DEFAULT 0,
    not_found_since timestamptz,
    reason          text,
    last_error      text,
    retry_before    timestamptz,
    receipt         jsonb,
    processed_at    timestamptz,
    resolved_at     timestamptz,
    resolved_by     text,
    notified_at     timestamptz,
    version         bigint      NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT call_id_is_short_and_plain
        CHECK (octet_length(call_id) BETWEEN 1 AND 200 AND call_id !~ '[\x01-\x1f\x7f-\x9f]'),
    CONSTRAINT biz_id_is_bounded          CHECK (octet_length(biz_id) BETWEEN 1 AND 1000),
    CONSTRAINT tool_is_bounded            CHECK (octet_length(tool) BETWEEN 1 AND 200),
    CONSTRAINT operation_is_bounded       CHECK (octet_length(operation) BETWEEN 1 AND 200),
    CONSTRAINT idempotency_key_is_bounded CHECK (octet_length(idempotency_key) BETWEEN 1 AND 1500),
    CONSTRAINT status_is_known            CHECK (status IN ('PENDING', 'RETRY', 'SUCCESS', 'FAILED', 'MANUAL')),
    CONSTRAINT timeout_kind_is_known      CHECK (timeout_kind IN ('connect', 'write', 'read', 'receipt')),
    CONSTRAINT attempt_is_positive        CHECK (attempt >= 1),
    CONSTRAINT version_can_be_counted_on  CHECK (version BETWEEN 0 AND 4611686018427387903),
    CONSTRAINT counts_are_not_negative    CHECK (checks >= 0 AND unanswered >= 0 AND not_found_count >= 0),
    CONSTRAINT request_is_an_object       CHECK (jsonb_typeof(request) = 'object')
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05
);

COMMENT ON TABLE reconciler.pending_confirmations IS
    'Calls whose outcome is unknown. Park with INSERT ... ON CONFLICT (call_id) DO NOTHING; read status and reason.';
COMMENT ON COLUMN reconciler.pending_confirmations.idempotency_key IS 'one business intent; biz_id:operation unless given';
COMMENT ON COLUMN reconciler.pending_confirmations.attempt IS 'sends so far';
COMMENT ON COLUMN reconciler.pending_confirmations.checks IS 'looks that the downstream answered';
COMMENT ON COLUMN reconciler.pending_confirmations.unanswered IS 'looks that it did not answer';
COMMENT ON COLUMN reconciler.pending_confirmations.not_found_count IS 'consecutive NOT_FOUND looks since the last send had settled';
COMMENT ON COLUMN reconciler.pending_confirmations.last_error IS 'why the latest look was not answered, for people; null when it was';
COMMENT ON COLUMN reconciler.pending_confirmations.retry_before IS
    'with status RETRY: the downstream may have forgotten the key from then on, so nobody may send again';
COMMENT ON COLUMN reconciler.pending_confirmations.version IS '+1 on every write by anybody; names the state a write was decided from';

-- The scan of due rows: keyset (next_check_at, call_id) of one tool, open rows only.
CREATE INDEX pending_confirmations_due ON reconciler.pending_confirmations (tool, next_check_at, call_id)
    WHERE status IN ('PENDING', 'RETRY', 'MANUAL');
-- Calls that wait to be sent again, for whoever takes them.
CREATE INDEX pending_confirmations_retry ON reconciler.pending_confirmations (tool, next_check_at)
    WHERE status = 'RETRY';
-- All calls of one business fact: its siblings in a pass, and a person who looks for an order number.
CREATE INDEX pending_confirmations_biz ON reconciler.pending_confirmations (biz_id);

-- +goose StatementBegin
CREATE FUNCTION reconciler.pending_fill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.idempotency_key := NEW.biz_id || ':' || NEW.operation;
    RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER pending_fill BEFORE INSERT ON reconciler.pending_confirmations
    FOR EACH ROW WHEN (NEW.idempotency_key IS NULL) EXECUTE FUNCTION reconciler.pending_fill();

-- +goose StatementBegin
CREATE FUNCTION reconciler.pending_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    problem text;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        IF EXISTS (SELECT FROM reconciler.pending_confirmations WHERE status NOT IN ('SUCCESS', 'FAILED')) THEN
            RAISE EXCEPTION 'reconciler.pending_confirmations holds open calls and cannot be truncated'
                USING ERRCODE = 'integrity_constraint_violation', HINT = 'Only SUCCESS and FAILED rows may be deleted.';
        END IF;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        problem := format('is %s and cannot be deleted; only SUCCESS and FAILED rows may be', OLD.status);
    ELSIF NEW.call_id <> OLD.call_id THEN
        problem := 'cannot change its call_id: a retry must carry the original';
    ELSIF (NEW.biz_id, NEW.tool, NEW.operation, NEW.idempotency_key, NEW.issued_at)
            IS DISTINCT FROM (OLD.biz_id, OLD.tool, OLD.operation, OLD.idempotency_key, OLD.issued_at) THEN
        problem := 'cannot change its biz_id, tool, operation, idempotency_key or issued_at';
    ELSIF OLD.status IN ('SUCCESS', 'FAILED') AND NEW.status <> OLD.status THEN
        problem := format('is %s, which is final; it cannot become %s', OLD.status, NEW.status);
    ELSIF NEW.attempt < OLD.attempt THEN
        problem := format('cannot lower attempt from %s to %s', OLD.attempt, NEW.attempt);
    ELSIF NEW.version < OLD.version THEN
        problem := format('cannot lower version from %s to %s', OLD.version, NEW.version);
    ELSE
        problem := format('could be sent again only before %s: the downstream may have forgotten its key', OLD.retry_before);
    END IF;
    RAISE EXCEPTION 'call % %', quote_literal(OLD.call_id), problem
        USING ERRCODE = 'integrity_constraint_violation', TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
END $$;
-- +goose StatementEnd

CREATE TRIGGER pending_refuse_update BEFORE UPDATE ON reconciler.pending_confirmations
    FOR EACH ROW WHEN (
        NEW.call_id <> OLD.call_id OR NEW.biz_id <> OLD.biz_id OR NEW.tool <> OLD.tool
        OR NEW.operation <> OLD.operation OR NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key
        OR NEW.issued_at <> OLD.issued_at
        OR (OLD.status IN ('SUCCESS', 'FAILED') AND NEW.status <> OLD.status)
        OR NEW.attempt < OLD.attempt OR NEW.version < OLD.version
        OR (OLD.status = 'RETRY' AND NEW.attempt > OLD.attempt AND OLD.retry_before <= clock_timestamp()))
    EXECUTE FUNCTION reconciler.pending_refuse();
CREATE TRIGGER pending_refuse_delete BEFORE DELETE ON reconciler.pending_confirmations
    FOR EACH ROW WHEN (OLD.status NOT IN ('SUCCESS', 'FAILED')) EXECUTE FUNCTION reconciler.pending_refuse();
CREATE TRIGGER pending_refuse_truncate BEFORE TRUNCATE ON reconciler.pending_confirmations
    FOR EACH STATEMENT EXECUTE FUNCTION reconciler.pending_refuse();

-- A write that forgets the version still moves it, so a decision made from the older state cannot land on top.
-- +goose StatementBegin
CREATE FUNCTION reconciler.pending_bump() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER pending_bump BEFORE UPDATE ON reconciler.pending_confirmations
    FOR EACH ROW WHEN (NEW.version = OLD.version) EXECUTE FUNCTION reconciler.pending_bump();
