-- +goose Up
-- The downstream's side: which intents were executed, with what result, and the receipt of every call that arrived. It lives in the
-- database of the business, so that key, effect and receipt are one transaction. Services in any language call
-- idempotency.arrive before the business effect and idempotency.settle after it, in the same transaction.

-- What the strict reader of a receipt refuses is refused here. Domains, since PostgreSQL prepares the CHECK of a table anew for each
-- statement that inserts, and those of keys and receipts were a third of what settle costs.
CREATE DOMAIN idempotency.idempotency_key AS text CONSTRAINT key_is_bounded CHECK (octet_length(VALUE) BETWEEN 1 AND 1500);
CREATE DOMAIN idempotency.digest AS bytea CONSTRAINT key_digest_is_sha256 CHECK (octet_length(VALUE) = 32);
CREATE DOMAIN idempotency.biz_id AS text CONSTRAINT biz_id_is_bounded CHECK (octet_length(VALUE) BETWEEN 1 AND 1000);
CREATE DOMAIN idempotency.operation AS text CONSTRAINT operation_is_bounded CHECK (octet_length(VALUE) BETWEEN 1 AND 200);
CREATE DOMAIN idempotency.call_id AS text CONSTRAINT call_id_is_short_and_plain
    CHECK (octet_length(VALUE) BETWEEN 1 AND 200 AND VALUE !~ '[\x01-\x1f\x7f-\x9f]');
CREATE DOMAIN idempotency.attempt AS integer CONSTRAINT attempt_is_positive CHECK (VALUE >= 1);
CREATE DOMAIN idempotency.status AS text CONSTRAINT status_is_known CHECK (VALUE IN ('PROCESSING', 'SUCCESS', 'FAILED'));
CREATE DOMAIN idempotency.processed_at AS timestamptz CONSTRAINT processed_at_is_instant
    CHECK (VALUE >= '2000-01-01 00:00+00' AND VALUE < '10000-01-01 00:00+00');

CREATE TABLE idempotency.keys (
    idempotency_key idempotency.idempotency_key NOT NULL,
    biz_id          idempotency.biz_id          NOT NULL,
    operation       idempotency.operation       NOT NULL,
    call_id         idempotency.call_id         NOT NULL,
    attempt         idempotency.attempt         NOT NULL,
    status          idempotency.status          NOT NULL,
    result          json,
    request_hash    bytea,
    issued_at       timestamptz                 NOT NULL,
    created_at      timestamptz                 NOT NULL,
    completed_at    timestamptz,
    expires_at      timestamptz                 NOT NULL,

    PRIMARY KEY (idempotency_key, created_at)
) PARTITION BY RANGE (created_at);

-- What a crash may have left unfinished.
CREATE INDEX keys_processing ON idempotency.keys (created_at) WHERE status = 'PROCESSING';

-- An intent that failed and was executed anew has a row for each time.
COMMENT ON TABLE idempotency.keys IS 'One row per execution of a business intent, partitioned by day (UTC). The row that idempotency.claims names is the one that counts.';
COMMENT ON COLUMN idempotency.keys.call_id IS 'the call that executes or executed it';
COMMENT ON COLUMN idempotency.keys.result IS 'verbatim: a repeat gets exactly the first result';
COMMENT ON COLUMN idempotency.keys.request_hash IS 'SHA-256 of the payload; the same key with another one is refused. Null is not compared';
COMMENT ON COLUMN idempotency.keys.completed_at IS 'null while PROCESSING';
COMMENT ON COLUMN idempotency.keys.expires_at IS 'until when the key is remembered at least';

-- PostgreSQL cannot make a key unique across time partitions, and searching all of them is ruinous. This narrow table is the
-- authority on uniqueness: who inserts executes; who does not finds here the one partition that holds the result.
CREATE TABLE idempotency.claims (
    key_digest idempotency.digest PRIMARY KEY,
    created_at timestamptz        NOT NULL
);

-- The proof of every call that arrived, also of a replayed one. It is what the receipt query answers from.
CREATE TABLE idempotency.receipts (
    call_id         idempotency.call_id         PRIMARY KEY,
    biz_id          idempotency.biz_id          NOT NULL,
    operation       idempotency.operation       NOT NULL,
    idempotency_key idempotency.idempotency_key NOT NULL,
    status          idempotency.status          NOT NULL,
    result          json,
    attempt         idempotency.attempt         NOT NULL,
    processed_at    idempotency.processed_at    NOT NULL
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
-- goes back: SUCCESS stays, a later attempt outweighs an earlier one, and a final status outweighs PROCESSING. False comes back for
-- what was known before.
-- +goose StatementBegin
CREATE FUNCTION idempotency.keep_receipt(call_id text, biz_id text, operation text, idempotency_key text, status text, result json,
    attempt integer, processed_at timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO idempotency.receipts (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE idempotency.receipts r SET status = $5, result = $6, attempt = $7, processed_at = $8
    WHERE r.call_id = $1 AND (r.idempotency_key, r.biz_id, r.operation) = ($4, $2, $3)
      AND CASE r.status
            WHEN 'SUCCESS' THEN $5 = 'SUCCESS' AND $7 > r.attempt
            WHEN 'FAILED'  THEN $7 > r.attempt
            ELSE $7 > r.attempt OR ($7 = r.attempt AND $5 <> 'PROCESSING')
          END;
    IF FOUND THEN
        RETURN true;
    END IF;
    PERFORM FROM idempotency.receipts r WHERE r.call_id = $1 AND (r.idempotency_key, r.biz_id, r.operation) = ($4, $2, $3);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'call % arrived before for another intent; a callId belongs to one', quote_literal($1)
            USING ERRCODE = 'unique_violation', CONSTRAINT = 'call_of_one_intent', SCHEMA = 'idempotency', TABLE = 'receipts';
    END IF;
    RETURN false;
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
-- Which callId and attempt were answered already is what the receipts say, so no late duplicate of a failed attempt executes.
-- It needs READ COMMITTED or stricter; what READ COMMITTED waits for, the stricter levels refuse with 40001.
-- +goose StatementBegin
CREATE FUNCTION idempotency.arrive(idempotency_key text, biz_id text, operation text, call_id text, attempt integer,
    issued_at timestamptz, request_hash bytea, rerun_failed boolean DEFAULT false, wait_ms integer DEFAULT 1000,
    OUT outcome text, OUT created_at timestamptz, OUT status text, OUT result json, OUT answered_attempt integer, OUT processed_at timestamptz)
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    digest  bytea := sha256(convert_to($1, 'UTF8'));
    fresh   timestamptz;
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
    IF wait_ms <> 1000 THEN
        PERFORM set_config('lock_timeout', greatest(wait_ms, 1)::text, true); -- until this function ends
    END IF;
    LOOP
        -- Never before issued_at, whose clock may be ahead: a call issued after the watermark has its key above the watermark.
        -- In whole milliseconds, since settle needs it back unchanged and the instants of many a language carry no more.
        fresh := date_trunc('milliseconds', greatest(clock_timestamp(), $6) + interval '1 millisecond');
        INSERT INTO idempotency.claims (key_digest, created_at) VALUES (digest, fresh) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            -- The watermark is read after the claim: who deletes an archived key's claim has raised the watermark before. And a receipt
            -- outlives its key.
            IF NOT EXISTS (SELECT FROM idempotency.watermarks w WHERE w.table_name = 'idempotency.keys' AND $6 < w.watermark)
                AND NOT EXISTS (SELECT FROM idempotency.receipts r WHERE r.call_id = $4
                    AND (rerun_failed IS NOT TRUE OR r.status <> 'FAILED' OR r.attempt >= $5)) THEN
                outcome := 'EXECUTE';
                created_at := fresh;
                RETURN;
            END IF;
            DELETE FROM idempotency.claims c WHERE c.key_digest = digest;
            SELECT r.status, r.result, r.processed_at::timestamptz AS completed_at INTO held FROM idempotency.receipts r WHERE r.call_id = $4
                AND NOT EXISTS (SELECT FROM idempotency.watermarks w WHERE w.table_name = 'idempotency.keys' AND $6 < w.watermark);
            EXIT WHEN FOUND;
            outcome := 'EXPIRED';
            RETURN;
        END IF;
        SELECT c.created_at INTO claimed FROM idempotency.claims c WHERE c.key_digest = digest;
        CONTINUE WHEN NOT FOUND;
        created_at := claimed;

        -- Planned with the values in it, so that no other partition is so much as locked.
        EXECUTE stored INTO held USING $1, claimed;
        IF held.status = 'PROCESSING' THEN -- its owner may be finishing it: whoever comes second sees what the first did
            EXECUTE stored || ' FOR UPDATE' INTO held USING $1, claimed;
        END IF;
        IF held.status IS NULL THEN
            outcome := 'EXPIRED'; -- its partition is gone: done, and nobody remembers how
            RETURN;
        END IF;
        IF (held.biz_id, held.operation) <> ($2, $3) OR held.request_hash <> $7 THEN
            outcome := 'OTHER_PAYLOAD';
            RETURN;
        END IF;
        IF held.status = 'PROCESSING' THEN
            -- The row is written, not only locked: whoever ends the key in an older snapshot, which lacks the receipt, is refused.
            EXECUTE 'UPDATE idempotency.keys SET status = status WHERE idempotency_key = $1 AND created_at = $2' USING $1, claimed;
            PERFORM idempotency.keep_receipt($4, $2, $3, $1, 'PROCESSING', NULL, $5, clock_timestamp());
            outcome := 'PROCESSING';
            RETURN;
        END IF;
        EXIT WHEN rerun_failed IS NOT TRUE OR held.status <> 'FAILED'
            OR EXISTS (SELECT FROM idempotency.receipts r WHERE r.call_id = $4 AND (r.status = 'SUCCESS' OR r.attempt >= $5))
            OR EXISTS (SELECT FROM idempotency.watermarks w WHERE w.table_name = 'idempotency.keys' AND $6 < w.watermark);
        -- Executed anew, the key gets another row, in the partition of today, and is remembered as long as any. Of two that are about
        -- to, one moves the claim; the other waits here, and looks again.
        UPDATE idempotency.claims c SET created_at = greatest(fresh, claimed + interval '1 millisecond')
        WHERE c.key_digest = digest AND c.created_at = claimed RETURNING c.created_at INTO created_at;
        IF FOUND THEN
            outcome := 'EXECUTE';
            RETURN;
        END IF;
    END LOOP;

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
    INSERT INTO idempotency.keys (idempotency_key, biz_id, operation, call_id, attempt, status, result, request_hash, issued_at,
        created_at, completed_at, expires_at)
    SELECT $1, $2, $3, $4, $5, $9, $10, $7, $6, $8, CASE WHEN $9 <> 'PROCESSING' THEN instant END, $8 + $11
    FROM idempotency.claims c WHERE c.key_digest = sha256(convert_to($1, 'UTF8')) AND c.created_at = $8
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'key % is not to be executed: settle only what arrive said EXECUTE for, in its transaction', quote_literal($1)
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    -- The first statement of keep_receipt, for those that need no more of it: on this path a call of a function is worth counting.
    INSERT INTO idempotency.receipts (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at)
    VALUES ($4, $2, $3, $1, $9, $10, $5, instant) ON CONFLICT DO NOTHING;
    IF NOT FOUND AND NOT idempotency.keep_receipt($4, $2, $3, $1, $9, $10, $5, instant) THEN
        -- Committed, the effect would have a receipt that speaks of another execution.
        RAISE EXCEPTION 'call % has a receipt of attempt % or a later one already', quote_literal($4), $5
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
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
    IF $5 = 'PROCESSING' THEN
        RAISE EXCEPTION 'key % is PROCESSING already; it ends with SUCCESS or FAILED', quote_literal($1) USING ERRCODE = 'check_violation';
    END IF;
    -- Planned with the values in it, as in arrive: a plan for any instant would lock every partition.
    EXECUTE 'UPDATE idempotency.keys SET status = $5, result = $6, completed_at = $7
        WHERE idempotency_key = $1 AND created_at = $2 AND call_id = $3 AND attempt = $4 AND status = ''PROCESSING''
        RETURNING biz_id' INTO biz USING $1, $2, $3, $4, $5, $6, instant;
    IF biz IS NULL THEN
        RETURN QUERY EXECUTE 'SELECT completed_at FROM idempotency.keys
            WHERE idempotency_key = $1 AND created_at = $2 AND call_id = $3 AND attempt = $4 AND status = $5
              AND result::text IS NOT DISTINCT FROM $6::text
              AND EXISTS (SELECT FROM idempotency.claims c WHERE c.key_digest = sha256(convert_to($1, ''UTF8'')) AND c.created_at = $2)'
            USING $1, $2, $3, $4, $5, $6;
        RETURN;
    END IF;
    UPDATE idempotency.receipts r SET status = $5, result = $6, processed_at = instant
    WHERE r.biz_id = biz AND r.idempotency_key = $1 AND r.status = 'PROCESSING';
    RETURN NEXT instant;
END $$;
-- +goose StatementEnd

-- ensure_partitions makes the missing daily partitions of idempotency.keys from yesterday to today + days_ahead and returns how many it
-- made. Any client may call it at any time. A partition is built aside and attached, which lets inserts into its siblings go on.
-- Only the owner may do that, so the function runs as the owner. The bounds are written as text, which must not depend on the session.
-- +goose StatementBegin
CREATE FUNCTION idempotency.ensure_partitions(days_ahead integer DEFAULT 14) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO' SET TimeZone = 'UTC' AS $$
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
        EXCEPTION WHEN invalid_object_definition OR check_violation THEN
            NULL; -- a partition with other bounds or another name holds a part of the day, or the default one has rows of it
        END;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION idempotency.ensure_partitions(integer) FROM PUBLIC;

SELECT idempotency.ensure_partitions();
