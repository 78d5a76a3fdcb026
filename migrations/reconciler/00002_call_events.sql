-- +goose Up
-- The audit ledger: every state change, send, anomaly and action of a person, written in the transaction of
-- the change itself. Append-only; one partition a day (UTC).
CREATE TABLE reconciler.call_events (
    call_id text        NOT NULL,
    biz_id  text        NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind    text        NOT NULL,
    attempt integer     NOT NULL,
    reason  text,
    actor   text        NOT NULL,
    detail  jsonb
) PARTITION BY RANGE (at);

CREATE INDEX call_events_call ON reconciler.call_events (call_id);

COMMENT ON TABLE reconciler.call_events IS 'Append-only audit ledger of pending_confirmations, partitioned by day.';
COMMENT ON COLUMN reconciler.call_events.kind IS
    'verdict; reopened (a RETRY withdrawn); sent; contradiction, call_id_changed';
COMMENT ON COLUMN reconciler.call_events.detail IS 'with a verdict: what the decision saw and the row no longer shows';

-- +goose StatementBegin
CREATE FUNCTION reconciler.events_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation',
              HINT = 'The ledger is the evidence of every verdict. Whole old partitions are archived, rows are never changed.';
END $$;
-- +goose StatementEnd

CREATE TRIGGER call_events_append_only BEFORE UPDATE OR DELETE ON reconciler.call_events
    FOR EACH ROW EXECUTE FUNCTION reconciler.events_refuse();
CREATE TRIGGER call_events_no_truncate BEFORE TRUNCATE ON reconciler.call_events
    FOR EACH STATEMENT EXECUTE FUNCTION reconciler.events_refuse();

-- ensure_event_partitions makes the missing daily partitions from yesterday to today + days_ahead and returns how many
-- it made. The migration, every pass and any client may call it; concurrent calls make each partition once.
-- A partition is built aside and attached, which takes a lock that lets inserts into its siblings go on. Only the owner of
-- the ledger may do that, so the function runs as the owner and whoever works on the table may be allowed to call it.
-- +goose StatementBegin
CREATE FUNCTION reconciler.ensure_event_partitions(days_ahead integer DEFAULT 14) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO' SET TimeZone = 'UTC' AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    day   date;
    made  integer := 0;
    lower timestamptz;
    upper timestamptz;
    name  text;
BEGIN
    FOR day IN SELECT today + n FROM generate_series(-1, least(greatest(days_ahead, 1), 366)) n LOOP
        name := 'call_events_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN EXISTS (SELECT FROM pg_class WHERE relname = name AND relnamespace = 'reconciler'::regnamespace);
        PERFORM pg_advisory_xact_lock(hashtext('reconciler.ensure_event_partitions'));
        CONTINUE WHEN EXISTS (SELECT FROM pg_class WHERE relname = name AND relnamespace = 'reconciler'::regnamespace);
        lower := day::timestamp AT TIME ZONE 'UTC';
        upper := (day + 1)::timestamp AT TIME ZONE 'UTC';
        EXECUTE format('CREATE TABLE reconciler.%I (LIKE reconciler.call_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
        EXECUTE format('ALTER TABLE reconciler.call_events ATTACH PARTITION reconciler.%I FOR VALUES FROM (%L) TO (%L)',
                       name, lower, upper);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION reconciler.ensure_event_partitions(integer) FROM PUBLIC;

SELECT reconciler.ensure_event_partitions();
