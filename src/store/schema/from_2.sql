-- outbox_lease: whether a row names an endpoint of its own, and the hold behind which it waits.
CREATE TABLE main.outbox_lease_3 (
    id             INTEGER PRIMARY KEY,
    operation      TEXT    NOT NULL,
    state          TEXT    NOT NULL CHECK (
        state IN ('pending', 'in_flight', 'unknown', 'needs_review', 'dead')),
    due_at         INTEGER,
    attempts       INTEGER NOT NULL DEFAULT 0,
    tries          INTEGER NOT NULL DEFAULT 0,
    lost           INTEGER NOT NULL DEFAULT 0,
    token          INTEGER,
    owner          TEXT,
    claimed_at     INTEGER,
    last_token     INTEGER,
    lookups        INTEGER NOT NULL DEFAULT 0,
    cancel_requested_at INTEGER,
    resume_at      INTEGER,
    in_doubt_since INTEGER,
    first_sent_at  INTEGER,
    error_class    TEXT,
    last_error     TEXT,
    late_id        TEXT,
    late_receipt   TEXT,
    own_endpoint   INTEGER NOT NULL DEFAULT 0,
    held_by        INTEGER,
    doubt_boot     INTEGER,
    shift          INTEGER,
    CHECK (held_by IS NULL OR due_at IS NULL),
    CHECK (due_at IS NOT NULL OR state NOT IN ('in_flight', 'unknown')),
    CHECK (state = 'unknown' OR (state = 'in_flight') = (owner IS NOT NULL))
) STRICT;

INSERT INTO main.outbox_lease_3 (
    id, operation, state, due_at, attempts, tries, lost, token, owner, claimed_at, last_token,
    lookups, cancel_requested_at, resume_at, in_doubt_since, first_sent_at, error_class,
    last_error, late_id, late_receipt, own_endpoint)
SELECT
    l.id, l.operation, l.state,
    coalesce(l.due_at, CASE WHEN l.state IN ('in_flight', 'unknown') THEN 0 END),
    l.attempts, l.tries, l.lost, l.token, l.owner,
    l.claimed_at, l.last_token, l.lookups, l.cancel_requested_at, l.resume_at, l.in_doubt_since,
    l.first_sent_at, l.error_class, l.last_error, l.late_id, l.late_receipt,
    o.endpoint IS NOT NULL
FROM main.outbox_lease l LEFT JOIN main.outbox o ON o.id = l.id;

DROP TABLE main.outbox_lease;
ALTER TABLE main.outbox_lease_3 RENAME TO outbox_lease;

CREATE TABLE main.outbox_hold (
    id        INTEGER PRIMARY KEY,
    operation TEXT    NOT NULL,
    domain    TEXT    NOT NULL
              CHECK (domain IN ('origin', 'endpoint', 'tenant', 'run', 'suspects', 'network')),
    name      TEXT    NOT NULL,
    cause     TEXT,
    since     INTEGER,
    until     INTEGER,
    culprit   INTEGER,
    reason    TEXT,
    failures  INTEGER NOT NULL DEFAULT 0,
    probes    INTEGER NOT NULL DEFAULT 0,
    probe_id    INTEGER,
    probe_token INTEGER,
    UNIQUE (operation, domain, name)
) STRICT;

-- outbox_keyed: the mark of rows in flight that are not the first of their key.
ALTER TABLE main.outbox_keyed ADD COLUMN overtaken INTEGER NOT NULL DEFAULT 0;

UPDATE main.outbox_keyed SET overtaken = 1
WHERE id IN (SELECT id FROM main.outbox_lease WHERE state = 'in_flight');

-- outbox_unstripped: the settled intents whose payload may still be there.
CREATE TABLE main.outbox_unstripped (
    finished_at INTEGER NOT NULL,
    id          INTEGER NOT NULL,
    PRIMARY KEY (finished_at, id)
) STRICT, WITHOUT ROWID;

INSERT INTO main.outbox_unstripped (finished_at, id)
SELECT finished_at, id FROM main.outbox_receipt ORDER BY finished_at, id;
ALTER TABLE main.outbox_operation ADD COLUMN paused_culprit INTEGER;
ALTER TABLE main.outbox_operation ADD COLUMN refused TEXT;
ALTER TABLE main.outbox_operation ADD COLUMN throttled_since INTEGER;
ALTER TABLE main.outbox_operation ADD COLUMN throttled_by INTEGER;
ALTER TABLE main.outbox_operation
    ADD COLUMN uses_network INTEGER NOT NULL DEFAULT 0 CHECK (uses_network IN (0, 1));

-- outbox_meta: the machine's start as the last relay has seen it, and the wall clock beside it.
ALTER TABLE main.outbox_meta ADD COLUMN boot_id TEXT;
ALTER TABLE main.outbox_meta ADD COLUMN wall_ahead INTEGER;
ALTER TABLE main.outbox_meta ADD COLUMN ahead_from INTEGER;
ALTER TABLE main.outbox_meta ADD COLUMN ahead_id INTEGER;
CREATE TABLE main.outbox_unrecorded (
    id       INTEGER NOT NULL,
    token    INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    outcome  TEXT,
    error    TEXT    NOT NULL,
    retry_at INTEGER,
    PRIMARY KEY (id, token)
) STRICT, WITHOUT ROWID;
