-- +goose Up
-- The downstream's side: which intents were executed, with what result, and the receipt of every call that arrived. It lives in the
-- database of the business, so that key, effect and receipt are one transaction. Services in any language call
-- idempotency.arrive before the business effect and idempotency.settle after it, in the same transaction.
CREATE TABLE idempotency.keys (
    idempotency_key text        NOT NULL,
    biz_id          text        NOT NULL,
    operation       text        NOT NULL,
    call_id         text        NOT NULL,
    attempt         integer     NOT NULL,
    status          text        NOT NULL,
    result          json,
    request_hash    bytea,
    issued_at       timestamptz NOT NULL,
    created_at      timestamptz NOT NULL,
    completed_at    timestamptz,
    expires_at      timestamptz NOT NULL,

    PRIMARY KEY (idempotency_key, created_at),
    CONSTRAINT key_is_bounded        CHECK (octet_length(idempotency_key) BETWEEN 1 AND 1500),
    CONSTRAINT biz_id_is_bounded     CHECK (octet_length(biz_id) BETWEEN 1 AND 1000),
    CONSTRAINT operation_is_bounded  CHECK (octet_length(operation) BETWEEN 1 AND 200),
    CONSTRAINT status_is_known       CHECK (status IN ('PROCESSING', 'SUCCESS', 'FAILED')),
    CONSTRAINT attempt_is_positive   CHECK (attempt >= 1),
    CONSTRAINT completed_when_final  CHECK ((completed_at IS NULL) = (status = 'PROCESSING'))
) PARTITION BY RANGE (created_at);

-- What a crash may have left unfinished.
CREATE INDEX keys_processing ON idempotency.keys (created_at) WHERE status = 'PROCESSING';

COMMENT ON TABLE idempotency.keys IS 'One row per business intent that arrived, partitioned by day of arrival (UTC). Unique by idempotency.claims.';
COMMENT ON COLUMN idempotency.keys.call_id IS 'the call that executes or executed it last';
COMMENT ON COLUMN idempotency.keys.result IS 'verbatim: a repeat gets exactly the first result';
COMMENT ON COLUMN idempotency.keys.request_hash IS 'SHA-256 of the payload; the same key with another one is refused. Null is not compared';
COMMENT ON COLUMN idempotency.keys.expires_at IS 'until when the key is remembered at least';

-- PostgreSQL cannot make a key unique across time partitions, and searching all of them is ruinous. This narrow table is the
-- authority on uniqueness: who inserts executes; who does not finds here the one partition that holds the result.
CREATE TABLE idempotency.claims (
    key_digest bytea       PRIMARY KEY,
    created_at timestamptz NOT NULL,
    CONSTRAINT key_digest_is_sha256 CHECK (octet_length(key_digest) = 32)
);

-- The proof of every call that arrived, also of a replayed one. It is what the receipt query answers from.
CREATE TABLE idempotency.receipts (
    call_id         text        PRIMARY KEY,
    biz_id          text        NOT NULL,
    operation       text        NOT NULL,
    idempotency_key text        NOT NULL,
    status          text        NOT NULL,
    result          json,
    attempt         integer     NOT NULL,
    processed_at    timestamptz NOT NULL,
    CONSTRAINT call_id_is_short_and_plain
        CHECK (octet_length(call_id) BETWEEN 1 AND 200 AND call_id !~ '[\x01-\x1f\x7f-\x9f]'),
    CONSTRAINT status_is_known     CHECK (status IN ('PROCESSING', 'SUCCESS', 'FAILED')),
    CONSTRAINT attempt_is_positive CHECK (attempt >= 1)
);
CREATE INDEX receipts_biz ON idempotency.receipts (biz_id);

COMMENT ON COLUMN idempotency.receipts.attempt IS 'the latest send that this result answers, from 1';

-- Below the watermark of a table nothing is executed any more: its keys may be archived. Only ever raised.
CREATE TABLE idempotency.watermarks (
    table_name text        PRIMARY KEY,
    watermark  timestamptz NOT NULL,
    raised_at  timestamptz NOT NULL DEFAULT now()
);

-- The local message table of a service whose receipts are asked for in another database. A relay delivers each row there at least
-- once and then deletes it; delivering twice changes nothing.
CREATE TABLE idempotency.receipt_outbox (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    call_id         text        NOT NULL,
    biz_id          text        NOT NULL,
    operation       text        NOT NULL,
    idempotency_key text        NOT NULL,
    status          text        NOT NULL,
    result          json,
    attempt         integer     NOT NULL,
    processed_at    timestamptz NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused         text
);
COMMENT ON COLUMN idempotency.receipt_outbox.refused IS 'why the other database will never take this row; it is left for a person, and the others proceed';

-- +goose StatementBegin
CREATE FUNCTION idempotency.receipt_to_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO idempotency.receipt_outbox (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at)
    VALUES (NEW.call_id, NEW.biz_id, NEW.operation, NEW.idempotency_key, NEW.status, NEW.result, NEW.attempt, NEW.processed_at);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- Off until somebody relays: ALTER TABLE idempotency.receipts ENABLE TRIGGER receipt_to_outbox
CREATE TRIGGER receipt_to_outbox AFTER INSERT OR UPDATE ON idempotency.receipts
    FOR EACH ROW EXECUTE FUNCTION idempotency.receipt_to_outbox();
ALTER TABLE idempotency.receipts DISABLE TRIGGER receipt_to_outbox;

-- +goose StatementBegin
CREATE FUNCTION idempotency.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row of idempotency.% is SUCCESS, which is final', TG_ARGV[0]
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
-- +goose StatementEnd

CREATE TRIGGER success_is_final BEFORE UPDATE ON idempotency.keys
    FOR EACH ROW WHEN (OLD.status = 'SUCCESS') EXECUTE FUNCTION idempotency.refuse('keys');
CREATE TRIGGER success_is_final BEFORE UPDATE ON idempotency.receipts
    FOR EACH ROW WHEN (OLD.status = 'SUCCESS' AND (NEW.status <> 'SUCCESS' OR NEW.result::text IS DISTINCT FROM OLD.result::text))
    EXECUTE FUNCTION idempotency.refuse('receipts');

-- keep_receipt stores what is known of one call now. It takes the news of one call in any order and any number of times, and never
-- goes back: SUCCESS stays, a later attempt outweighs an earlier one, and a final status outweighs PROCESSING.
-- +goose StatementBegin
CREATE FUNCTION idempotency.keep_receipt(call_id text, biz_id text, operation text, idempotency_key text, status text, result json,
    attempt integer, processed_at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_key text;
BEGIN
    INSERT INTO idempotency.receipts AS r (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (call_id) DO UPDATE SET status = excluded.status, result = excluded.result, attempt = excluded.attempt,
        processed_at = excluded.processed_at
    WHERE (r.idempotency_key, r.biz_id, r.operation) = (excluded.idempotency_key, excluded.biz_id, excluded.operation)
      AND CASE r.status
            WHEN 'SUCCESS' THEN excluded.status = 'SUCCESS' AND excluded.attempt > r.attempt
            WHEN 'FAILED'  THEN excluded.attempt > r.attempt
            ELSE excluded.attempt > r.attempt OR (excluded.attempt = r.attempt AND excluded.status <> 'PROCESSING')
          END;
    IF NOT FOUND THEN
        PERFORM FROM idempotency.receipts r WHERE r.call_id = $1 AND (r.idempotency_key, r.biz_id, r.operation) = ($4, $2, $3);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'call % arrived before for another intent; a callId belongs to one', quote_literal($1)
                USING ERRCODE = 'unique_violation', CONSTRAINT = 'call_of_one_intent', SCHEMA = 'idempotency', TABLE = 'receipts';
        END IF;
    END IF;
END $$;
-- +goose StatementEnd

-- arrive decides what to do with a call that has just come in, and says it in the first column:
--
--   EXECUTE        do it now, then call idempotency.settle in this same transaction
--   REPEAT         it was done before; status, result, attempt and processed_at are the receipt to answer with
--   PROCESSING     it is being done, and its owner will finish it: answer 409 and Retry-After
--   OTHER_PAYLOAD  the key was used for another payload, bizId or operation: answer 422, do nothing
--   EXPIRED        its result may have been forgotten: answer 410, do nothing
--   IN_FUTURE      issued_at is more than 5 minutes ahead of this database's clock: answer 400, do nothing
--
-- COMMIT after each of them. SQLSTATE 55P03 means that another transaction has been executing the same key for longer than wait_ms:
-- roll back and treat it as PROCESSING. Two arrivals of one key never execute both, whatever day it is.
--
-- rerun_failed is the tool's declared choice: a key whose result is FAILED is executed anew, for another callId or a later attempt.
-- It needs READ COMMITTED or stricter; what READ COMMITTED waits for, the stricter levels refuse with 40001.
-- +goose StatementBegin
CREATE FUNCTION idempotency.arrive(idempotency_key text, biz_id text, operation text, call_id text, attempt integer,
    issued_at timestamptz, request_hash bytea, rerun_failed boolean DEFAULT false, wait_ms integer DEFAULT 1000,
    OUT outcome text, OUT created_at timestamptz, OUT status text, OUT result json, OUT answered_attempt integer, OUT processed_at timestamptz)
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    digest  bytea := sha256(convert_to($1, 'UTF8'));
    claimed timestamptz;
    held    record;
    stored  CONSTANT text := 'SELECT k.biz_id, k.operation, k.call_id, k.attempt, k.status, k.result, k.request_hash, k.completed_at
        FROM idempotency.keys k WHERE k.idempotency_key = $1 AND k.created_at = $2';
BEGIN
    IF $6 IS NULL THEN
        RAISE EXCEPTION 'issued_at is missing: it tells a late retry from a new call' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF $6 > clock_timestamp() + interval '5 minutes' THEN
        outcome := 'IN_FUTURE';
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', greatest(wait_ms, 1)::text, true); -- until this function ends
    LOOP
        INSERT INTO idempotency.claims (key_digest, created_at) VALUES (digest, clock_timestamp())
        ON CONFLICT DO NOTHING RETURNING claims.created_at INTO claimed;
        IF FOUND THEN
            -- The watermark is read after the claim: who deletes an archived key's claim has raised the watermark before.
            IF EXISTS (SELECT FROM idempotency.watermarks w WHERE w.table_name = 'idempotency.keys' AND $6 < w.watermark) THEN
                DELETE FROM idempotency.claims c WHERE c.key_digest = digest;
                outcome := 'EXPIRED';
                RETURN;
            END IF;
            outcome := 'EXECUTE';
            created_at := claimed;
            RETURN;
        END IF;
        SELECT c.created_at INTO claimed FROM idempotency.claims c WHERE c.key_digest = digest;
        EXIT WHEN FOUND;
    END LOOP;

    created_at := claimed;
    -- Planned with the values in it, so that no other partition is so much as locked.
    EXECUTE stored INTO held USING $1, claimed;
    IF held.status IS NULL THEN
        outcome := 'EXPIRED'; -- its partition is gone: done, and nobody remembers how
        RETURN;
    END IF;
    IF (held.biz_id, held.operation) <> ($2, $3) OR held.request_hash <> $7 THEN
        outcome := 'OTHER_PAYLOAD';
        RETURN;
    END IF;
    IF held.status = 'PROCESSING' OR (rerun_failed AND held.status = 'FAILED' AND (held.call_id <> $4 OR held.attempt < $5)) THEN
        -- Its owner may be finishing it, or another arrival be executing it anew: whoever comes second sees what the first did.
        EXECUTE stored || ' FOR UPDATE' INTO held USING $1, claimed;
        IF held.status = 'PROCESSING' THEN
            PERFORM idempotency.keep_receipt($4, $2, $3, $1, 'PROCESSING', NULL, $5, clock_timestamp());
            outcome := 'PROCESSING';
            RETURN;
        END IF;
        IF rerun_failed AND held.status = 'FAILED' AND (held.call_id <> $4 OR held.attempt < $5) THEN
            outcome := 'EXECUTE';
            RETURN;
        END IF;
    END IF;
    PERFORM idempotency.keep_receipt($4, $2, $3, $1, held.status, held.result, $5, held.completed_at);
    SELECT r.status, r.result, r.attempt, r.processed_at INTO status, result, answered_attempt, processed_at
    FROM idempotency.receipts r WHERE r.call_id = $4;
    outcome := 'REPEAT';
END $$;
-- +goose StatementEnd

-- settle records what became of a call for which arrive said EXECUTE, in the same transaction, and returns when. With PROCESSING it
-- records that the work goes on outside of this database, and idempotency.complete ends it.
-- +goose StatementBegin
CREATE FUNCTION idempotency.settle(idempotency_key text, biz_id text, operation text, call_id text, attempt integer,
    issued_at timestamptz, request_hash bytea, created_at timestamptz, status text, result json,
    remember interval DEFAULT interval '168 hours') RETURNS timestamptz LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := clock_timestamp();
BEGIN
    INSERT INTO idempotency.keys AS k (idempotency_key, biz_id, operation, call_id, attempt, status, result, request_hash, issued_at,
        created_at, completed_at, expires_at)
    VALUES ($1, $2, $3, $4, $5, $9, $10, $7, $6, $8, CASE WHEN $9 <> 'PROCESSING' THEN instant END, $8 + $11)
    ON CONFLICT (idempotency_key, created_at) DO UPDATE SET call_id = excluded.call_id, attempt = excluded.attempt,
        status = excluded.status, result = excluded.result, completed_at = excluded.completed_at
    WHERE k.status = 'FAILED';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'key % is not to be executed: settle only what arrive said EXECUTE for, in its transaction', quote_literal($1)
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    PERFORM idempotency.keep_receipt($4, $2, $3, $1, $9, $10, $5, instant);
    RETURN instant;
END $$;
-- +goose StatementEnd

-- complete ends what settle left PROCESSING: with SUCCESS or FAILED, for every call of the key that came meanwhile. It names the call
-- and the attempt that began it, so that who was given up for dead changes nothing. No row comes back when it is not theirs to end;
-- otherwise the instant at which it was first ended so.
-- +goose StatementBegin
CREATE FUNCTION idempotency.complete(idempotency_key text, created_at timestamptz, call_id text, attempt integer, status text,
    result json) RETURNS SETOF timestamptz LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := clock_timestamp();
    biz     text;
BEGIN
    UPDATE idempotency.keys k SET status = $5, result = $6, completed_at = instant
    WHERE k.idempotency_key = $1 AND k.created_at = $2 AND k.call_id = $3 AND k.attempt = $4 AND k.status = 'PROCESSING'
    RETURNING k.biz_id INTO biz;
    IF NOT FOUND THEN
        RETURN QUERY SELECT k.completed_at FROM idempotency.keys k
            WHERE k.idempotency_key = $1 AND k.created_at = $2 AND k.call_id = $3 AND k.attempt = $4 AND k.status = $5
              AND k.result::text IS NOT DISTINCT FROM $6::text;
        RETURN;
    END IF;
    UPDATE idempotency.receipts r SET status = $5, result = $6, processed_at = instant
    WHERE r.biz_id = biz AND r.idempotency_key = $1 AND r.status = 'PROCESSING';
    RETURN NEXT instant;
END $$;
-- +goose StatementEnd

-- ensure_partitions makes the missing daily partitions of idempotency.keys from yesterday to today + days_ahead and returns how many it
-- made. Any client may call it at any time. A partition is built aside and attached, which lets inserts into its siblings go on.
-- Only the owner may do that, so the function runs as the owner.
-- +goose StatementBegin
CREATE FUNCTION idempotency.ensure_partitions(days_ahead integer DEFAULT 14) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    day   date;
    made  integer := 0;
    name  text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('idempotency.ensure_partitions'));
    FOR day IN SELECT today + n FROM generate_series(-1, least(greatest(days_ahead, 1), 366)) n LOOP
        name := 'keys_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('idempotency.' || name) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE idempotency.%I (LIKE idempotency.keys INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
            EXECUTE format('ALTER TABLE idempotency.keys ATTACH PARTITION idempotency.%I FOR VALUES FROM (%L) TO (%L)', name,
                day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
            made := made + 1;
        EXCEPTION WHEN invalid_object_definition THEN
            NULL; -- a partition with other bounds or another name holds a part of the day
        END;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION idempotency.ensure_partitions(integer) FROM PUBLIC;

SELECT idempotency.ensure_partitions();
