-- +goose Up
-- Who works on what. Written and judged by the database clock only; fence only ever grows.
-- The backend is the session that renews the lease: when it is gone, its holder is dead and nobody waits for the expiry.
CREATE TABLE reconciler.leases (
    name          text        PRIMARY KEY,
    holder        text        NOT NULL,
    fence         bigint      NOT NULL,
    expires_at    timestamptz NOT NULL,
    backend_pid   integer     NOT NULL,
    backend_start timestamptz
);

-- Every run of every task. A row without finished_at is a run in progress, or one that was killed.
CREATE TABLE reconciler.runs (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task        text        NOT NULL,
    subject     text        NOT NULL,
    holder      text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    outcome     text        NOT NULL DEFAULT 'running',
    counts      jsonb,
    policy      jsonb,
    error       text,
    CONSTRAINT outcome_is_known CHECK (outcome IN ('running', 'success', 'partial', 'failed', 'skipped'))
);
COMMENT ON COLUMN reconciler.runs.policy IS 'the rules in force; the ledger names them by digest, so every verdict can be replayed';
CREATE INDEX runs_latest ON reconciler.runs (task, subject, started_at DESC);
