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

-- outbox_receipt: whether the payload is still there.
ALTER TABLE main.outbox_receipt ADD COLUMN has_payload INTEGER NOT NULL DEFAULT 1;

UPDATE main.outbox_receipt SET has_payload = 0
WHERE id IN (SELECT id FROM main.outbox WHERE payload IS NULL);

-- outbox_operation: the causes of pauses and throttles.
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

-- outbox_unrecorded: outcomes that could not be written.
CREATE TABLE main.outbox_unrecorded (
    id       INTEGER NOT NULL,
    token    INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    outcome  TEXT,
    error    TEXT    NOT NULL,
    retry_at INTEGER,
    PRIMARY KEY (id, token)
) STRICT, WITHOUT ROWID;

ALTER TABLE main.outbox_meta
    ADD COLUMN only_registered INTEGER NOT NULL DEFAULT 0 CHECK (only_registered IN (0, 1));

CREATE TABLE main.outbox_run (
    id  INTEGER PRIMARY KEY,
    run TEXT    NOT NULL
) STRICT;

INSERT INTO main.outbox_run (id, run)
SELECT o.id, min(h.value)
FROM main.outbox o, main.outbox_meta m, json_each(o.headers) h
WHERE o.headers <> '{}' AND lower(h.key) = m.agent_run_header AND h.value <> ''
GROUP BY o.id;

-- outbox_budget: one for each window, and for agent runs.
CREATE TABLE main.outbox_budget_3 (
    operation TEXT    NOT NULL,
    scope     TEXT    NOT NULL CHECK (scope IN ('operation', 'tenant', 'run')),
    kind      TEXT    NOT NULL CHECK (kind IN ('sends', 'cost')),
    amount    INTEGER NOT NULL CHECK (amount > 0),
    window_ms INTEGER NOT NULL CHECK (window_ms > 0),
    PRIMARY KEY (operation, scope, kind, window_ms)
) STRICT, WITHOUT ROWID;

INSERT INTO main.outbox_budget_3 (operation, scope, kind, amount, window_ms)
SELECT operation, scope, kind, amount, window_ms FROM main.outbox_budget;

DROP TABLE main.outbox_budget;
ALTER TABLE main.outbox_budget_3 RENAME TO outbox_budget;

-- outbox_spend: whose agent run a claim was for; and its running totals.
CREATE TABLE main.outbox_spend_3 (
    operation TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    id        INTEGER NOT NULL,
    token     INTEGER NOT NULL,
    tenant_id TEXT    NOT NULL,
    cost      INTEGER NOT NULL CHECK (cost >= 0),
    run       TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (operation, at, id, token)
) STRICT, WITHOUT ROWID;

INSERT INTO main.outbox_spend_3 (operation, at, id, token, tenant_id, cost)
SELECT operation, at, id, token, tenant_id, cost FROM main.outbox_spend;

DROP TABLE main.outbox_spend;
ALTER TABLE main.outbox_spend_3 RENAME TO outbox_spend;

CREATE TABLE main.outbox_total (
    operation TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    window_ms INTEGER NOT NULL,
    since     INTEGER NOT NULL,
    sends     INTEGER NOT NULL,
    high      INTEGER NOT NULL,
    low       INTEGER NOT NULL,
    PRIMARY KEY (operation, name, window_ms)
) STRICT, WITHOUT ROWID;

-- outbox_operation_event: limits that were changed.
CREATE TABLE main.outbox_operation_event_3 (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL,
    operation TEXT    NOT NULL,
    kind      TEXT    NOT NULL CHECK (kind IN ('paused', 'resumed', 'limited')),
    cause     TEXT    NOT NULL,
    until     INTEGER,
    actor     TEXT,
    reason    TEXT
) STRICT;

INSERT INTO main.outbox_operation_event_3 (seq, at, operation, kind, cause, until, actor, reason)
SELECT seq, at, operation, kind, cause, until, actor, reason FROM main.outbox_operation_event;

DROP TABLE main.outbox_operation_event;
ALTER TABLE main.outbox_operation_event_3 RENAME TO outbox_operation_event;
