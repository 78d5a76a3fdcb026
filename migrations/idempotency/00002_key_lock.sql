-- +goose Up
-- Whoever may execute a key holds its advisory lock until the transaction ends, so that a first arrival can tell without waiting. A
-- transaction that executes many keys holds as many; some ten thousand exhaust the lock table of a server with its default settings.
CREATE FUNCTION idempotency.key_lock(key_digest bytea) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT ('x' || encode(substr(key_digest, 1, 8), 'hex'))::bit(64)::bigint $$;

-- arrive is as before, and takes the lock before it claims a key or moves the claim.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION idempotency.arrive(idempotency_key text, biz_id text, operation text, call_id text, attempt integer,
    issued_at timestamptz, request_hash bytea, rerun_failed boolean DEFAULT false, wait_ms integer DEFAULT 1000,
    OUT outcome text, OUT created_at timestamptz, OUT status text, OUT result json, OUT answered_attempt integer, OUT processed_at timestamptz)
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    digest  bytea := sha256(convert_to($1, 'UTF8'));
    executing bigint := idempotency.key_lock(digest);
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
        SELECT c.created_at INTO claimed FROM idempotency.claims c WHERE c.key_digest = digest;
        IF NOT FOUND THEN
            PERFORM pg_advisory_xact_lock(executing);
            INSERT INTO idempotency.claims (key_digest, created_at) VALUES (digest, fresh) ON CONFLICT DO NOTHING;
            CONTINUE WHEN NOT FOUND;
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
        PERFORM pg_advisory_xact_lock(executing);
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
