-- +goose Up
-- The journal of archiving: one row per partition whose archiving was begun, or that is held. Each step is written here before it
-- begins; done says that it has ended.
CREATE TABLE reconciler.partition_archives (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_name     text        NOT NULL,
    database       text        NOT NULL DEFAULT '',
    partition_oid  bigint      NOT NULL,
    partition_name text        NOT NULL,
    bounds         text        NOT NULL,
    lower_bound    text        NOT NULL,
    upper_bound    text        NOT NULL,
    step           text        NOT NULL DEFAULT 'due',
    done           boolean     NOT NULL DEFAULT true,
    held_reason    text,
    held_example   text,
    held_since     timestamptz,
    rows           bigint,
    bytes          bigint,
    digest         text,
    object         text,
    holder         text,
    last_error     text,
    version        bigint      NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    detached_at    timestamptz,
    dropped_at     timestamptz,
    CONSTRAINT step_is_known CHECK (step IN ('due', 'frozen', 'exported', 'verified', 'watermark', 'detached', 'dropped', 'reattached', 'restored')),
    CONSTRAINT held_is_whole CHECK ((held_reason IS NULL) = (held_since IS NULL))
);
-- An oid may be used again once its partition is gone.
CREATE UNIQUE INDEX partition_archives_partition ON reconciler.partition_archives (table_name, database, partition_oid) WHERE step <> 'dropped';

COMMENT ON TABLE reconciler.partition_archives IS 'What became of each partition: how far its archiving is, or why it is held.';
COMMENT ON COLUMN reconciler.partition_archives.database IS 'empty for the database of this table, else as the configuration names it';
COMMENT ON COLUMN reconciler.partition_archives.bounds IS 'the whole bound as PostgreSQL writes it, in UTC; a partition is attached again with it';
COMMENT ON COLUMN reconciler.partition_archives.version IS '+1 on every write; an archiver that was overtaken changes nothing';
COMMENT ON COLUMN reconciler.partition_archives.object IS 'the file of the archive, below the directory of the table';

-- Below the watermark of a table nothing is sent again, since the keys are archived. Only ever raised.
CREATE TABLE reconciler.archive_watermarks (
    table_name text        PRIMARY KEY,
    watermark  timestamptz NOT NULL,
    raised_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
