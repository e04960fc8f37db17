-- outbox_operation: binds ('create' or NULL) becomes binds_ids (0 or 1).
CREATE TABLE main.outbox_operation_2 (
    operation     TEXT    PRIMARY KEY,
    downstream    TEXT    NOT NULL CHECK (downstream IN ('deduplicates', 'unprotected')),
    window_ms     INTEGER CHECK (window_ms > 0),
    on_dead       TEXT    NOT NULL DEFAULT 'block' CHECK (on_dead IN ('block', 'continue')),
    provider      TEXT,
    owner         TEXT,
    key_recipe    TEXT,
    max_in_flight INTEGER CHECK (max_in_flight > 0),
    rate_count    INTEGER CHECK (rate_count > 0),
    rate_ms       INTEGER CHECK (rate_ms > 0),
    time_limit_ms INTEGER,
    registered_at INTEGER NOT NULL,
    attempts_max  INTEGER CHECK (attempts_max > 0),
    give_up_ms    INTEGER CHECK (give_up_ms >= 0),
    reconciles    INTEGER NOT NULL DEFAULT 0 CHECK (reconciles IN (0, 1)),
    binds_ids     INTEGER NOT NULL DEFAULT 0 CHECK (binds_ids IN (0, 1)),
    paused_kind     TEXT CHECK (paused_kind IN ('operator', 'auth', 'breaker')),
    paused_until    INTEGER,
    paused_since    INTEGER,
    paused_by       TEXT,
    paused_reason   TEXT,
    probe_id        INTEGER,
    probe_token     INTEGER,
    probes          INTEGER NOT NULL DEFAULT 0,
    failures        INTEGER NOT NULL DEFAULT 0,
    throttled_until INTEGER,
    resumed_at      INTEGER,
    bucket          INTEGER,
    bucket_at       INTEGER,
    CHECK ((downstream = 'deduplicates') = (window_ms IS NOT NULL)),
    CHECK ((rate_count IS NULL) = (rate_ms IS NULL))
) STRICT, WITHOUT ROWID;

INSERT INTO main.outbox_operation_2 (
    operation, downstream, window_ms, on_dead, provider, owner, key_recipe, max_in_flight,
    rate_count, rate_ms, time_limit_ms, registered_at, attempts_max, give_up_ms, reconciles,
    binds_ids, paused_kind, paused_until, paused_since, paused_by, paused_reason, probe_id,
    probe_token, probes, failures, throttled_until, resumed_at, bucket, bucket_at)
SELECT
    operation, downstream, window_ms, on_dead, provider, owner, key_recipe, max_in_flight,
    rate_count, rate_ms, time_limit_ms, registered_at, attempts_max, give_up_ms, reconciles,
    binds IS NOT NULL, paused_kind, paused_until, paused_since, paused_by, paused_reason,
    probe_id, probe_token, probes, failures, throttled_until, resumed_at, bucket, bucket_at
FROM main.outbox_operation;

DROP TABLE main.outbox_operation;
ALTER TABLE main.outbox_operation_2 RENAME TO outbox_operation;
