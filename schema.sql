-- sqlite-outbox, schema version 5. SQLite 3.38 or newer.
--
-- This file is the contract for every language: a plain INSERT into `outbox` is a full enqueue.
-- Times are UTC milliseconds since 1970. Everything but `outbox` and `outbox_inbox` is written by
-- library alone.

-- One row: which schema this is, which database, and the counter of fencing tokens.
CREATE TABLE main.outbox_meta (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    schema_version INTEGER NOT NULL,
    database_id    TEXT    NOT NULL,
    token          INTEGER NOT NULL DEFAULT 0,
    payload_max    INTEGER NOT NULL DEFAULT 1048576 CHECK (payload_max BETWEEN 1 AND 100000000),
    -- The machine's start as the last relay has seen it, and by how much the wall clock was ahead
    -- of the milliseconds since then: another difference means that the wall clock was set.
    boot_id        TEXT,
    wall_ahead     INTEGER,
    -- When intents were last found that were made while the clock was ahead, and the newest then:
    -- those of them that are queued count from that time once it is their turn.
    ahead_from     INTEGER,
    ahead_id       INTEGER,
    -- The headers of an intent whose values go into its audit trail, in lower case.
    agent_run_header    TEXT NOT NULL DEFAULT 'x-agent-run',
    tool_version_header TEXT NOT NULL DEFAULT 'x-tool-version',
    -- Whether only registered operations may be enqueued.
    only_registered INTEGER NOT NULL DEFAULT 0 CHECK (only_registered IN (0, 1))
) STRICT;

INSERT INTO main.outbox_meta (id, schema_version, database_id)
VALUES (1, 5, lower(hex(randomblob(16))));

-- The intents. Append-only: what was authorised is what is sent, on every attempt.
CREATE TABLE main.outbox (
    id              INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id > 0),
    tenant_id       TEXT    NOT NULL DEFAULT '',
    operation       TEXT    NOT NULL,
    entity_id       TEXT    NOT NULL,
    intent_version  INTEGER NOT NULL DEFAULT 1,
    idempotency_key TEXT    NOT NULL,
    args_hash       TEXT,
    endpoint        TEXT,
    method          TEXT    NOT NULL DEFAULT 'POST',
    content_type    TEXT    NOT NULL DEFAULT 'application/json',
    ordering_key    TEXT,
    available_at    INTEGER NOT NULL
                    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
    expires_at      INTEGER,
    created_at      INTEGER NOT NULL
                    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
    -- What carrying it out costs, in units of the application's choice; held against budgets.
    cost            INTEGER NOT NULL DEFAULT 0,
    -- The large ones are last: SQLite walks over every page of a value to reach what is behind it.
    headers         TEXT    NOT NULL DEFAULT '{}',
    payload         TEXT,
    -- Whether the key has the derived shape: the operation, a colon, 40 hexadecimal digits.
    is_derived      INTEGER NOT NULL GENERATED ALWAYS AS (
        length(idempotency_key) = length(operation) + 41
        AND substr(idempotency_key, 1, length(operation) + 1) = operation || ':'
        AND substr(idempotency_key, -40) NOT GLOB '*[^0-9a-f]*'
    ) VIRTUAL,
    UNIQUE (tenant_id, idempotency_key)
) STRICT;

-- One business action has one derived key: other arguments need another version.
CREATE UNIQUE INDEX main.outbox_version
    ON outbox (tenant_id, operation, entity_id, intent_version) WHERE is_derived;

-- One row for each unsettled intent that may act or waits for a person. `due_at` is the next
-- attempt while pending, the lease's expiry while in flight, the next lookup (or the end of its
-- lease, where there is an owner) while unknown, and NULL while parked or queued.
CREATE TABLE main.outbox_lease (
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
    -- Names the last attempt, also after it has ended: its token, or a newer one since an attempt
    -- reported, or was found dead, after its lease was lost.
    last_token     INTEGER,
    -- Lookups of its result, since it is in doubt.
    lookups        INTEGER NOT NULL DEFAULT 0,
    -- Since when a cancellation is requested, although it was too late to withdraw it.
    cancel_requested_at INTEGER,
    -- When it would be due, while it is queued behind another row of its ordering key.
    resume_at      INTEGER,
    in_doubt_since INTEGER,
    first_sent_at  INTEGER,
    error_class    TEXT,
    last_error     TEXT,
    -- Proof of success from an attempt that had lost its lease while a later one was in flight.
    late_id        TEXT,
    late_receipt   TEXT,
    -- Whether the intent names an endpoint of its own, so that what closes the operation's
    -- configured origin does not concern the row.
    own_endpoint   INTEGER NOT NULL DEFAULT 0,
    -- The hold (`outbox_hold.id`) behind which the row waits, with its due time in `resume_at`.
    held_by        INTEGER,
    -- Milliseconds since the machine's start when the attempt began that may be in doubt; -1 where
    -- it has been started anew since.
    doubt_boot     INTEGER,
    -- How far the times that the caller has asked for are moved, because the row was made while the
    -- clock was ahead or did not know the time.
    shift          INTEGER,
    CHECK (held_by IS NULL OR due_at IS NULL),
    CHECK (due_at IS NOT NULL OR state NOT IN ('in_flight', 'unknown')),
    CHECK (state = 'unknown' OR (state = 'in_flight') = (owner IS NOT NULL))
) STRICT;

-- The agent run of each intent that names one, in the header that outbox_meta names.
CREATE TABLE main.outbox_run (
    id  INTEGER PRIMARY KEY,
    run TEXT    NOT NULL
) STRICT;

CREATE INDEX main.outbox_run_name ON outbox_run (run, id);

-- The key as it was sent of each intent whose tenant brought a key of its own, since its first
-- claim. Every other intent is sent under the key that is stored.
CREATE TABLE main.outbox_wire_key (
    id       INTEGER PRIMARY KEY,
    wire_key TEXT    NOT NULL
) STRICT;

CREATE INDEX main.outbox_wire_key_sent ON outbox_wire_key (wire_key);

CREATE INDEX main.outbox_lease_due ON outbox_lease (operation, state, due_at, id)
    WHERE due_at IS NOT NULL;
CREATE INDEX main.outbox_lease_own ON outbox_lease (operation, state, due_at, id)
    WHERE due_at IS NOT NULL AND own_endpoint;
CREATE INDEX main.outbox_lease_held ON outbox_lease (held_by, resume_at, id)
    WHERE held_by IS NOT NULL;
CREATE INDEX main.outbox_lease_parked ON outbox_lease (state, id) WHERE due_at IS NULL;

-- A hold stops one domain of an operation and nothing else: an origin or an endpoint that intents
-- name, a tenant or an agent run whose budget is used up, or the rows that were in flight when a
-- process died. Its rows wait aside of the due ones, written once, however many times the hold is
-- tried. A hold without a cause only counts failures.
CREATE TABLE main.outbox_hold (
    id        INTEGER PRIMARY KEY,
    operation TEXT    NOT NULL,
    domain    TEXT    NOT NULL
              CHECK (domain IN ('origin', 'endpoint', 'tenant', 'run', 'suspects', 'network')),
    name      TEXT    NOT NULL,
    cause     TEXT,
    since     INTEGER,
    -- When rows may be tried again.
    until     INTEGER,
    -- The intent that showed it, and the answer to it or its failure.
    culprit   INTEGER,
    reason    TEXT,
    -- Failures in a row, and tries of this hold that failed.
    failures  INTEGER NOT NULL DEFAULT 0,
    probes    INTEGER NOT NULL DEFAULT 0,
    -- The row that is let through to try it, and its claim.
    probe_id    INTEGER,
    probe_token INTEGER,
    UNIQUE (operation, domain, name)
) STRICT;

CREATE INDEX main.outbox_hold_until ON outbox_hold (operation, until) WHERE until IS NOT NULL;

-- Attempts whose lease was lost and of which nothing was heard since: while their relay is alive
-- they may still be on the way.
CREATE TABLE main.outbox_lost (
    id    INTEGER NOT NULL,
    token INTEGER NOT NULL,
    owner TEXT    NOT NULL,
    PRIMARY KEY (id, token)
) STRICT, WITHOUT ROWID;

-- What could not be written about an intent, because an object of the application (a trigger, a
-- CHECK, a foreign key) made the write fail: the outcome of one of its claims or, where `outcome`
-- is NULL, only that the row cannot be moved. While `retry_at` has a time, no relay claims the row
-- or takes it back; an outcome is recorded once that succeeds.
CREATE TABLE main.outbox_unrecorded (
    id       INTEGER NOT NULL,
    token    INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    outcome  TEXT,
    error    TEXT    NOT NULL,
    retry_at INTEGER,
    PRIMARY KEY (id, token)
) STRICT, WITHOUT ROWID;

-- Unsettled rows with an ordering key. Only the first of a key has a row in `outbox_lease` that
-- can come due, so a claim never has to look at predecessors.
CREATE TABLE main.outbox_keyed (
    tenant_id    TEXT    NOT NULL,
    ordering_key TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    id           INTEGER NOT NULL UNIQUE,
    -- Whether an earlier row took its place in front of this one while this one was in flight: a
    -- row in flight is the first of its key or has this mark, so that nothing walks over a line.
    overtaken    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, ordering_key, position, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX main.outbox_keyed_overtaken ON outbox_keyed (tenant_id, ordering_key)
    WHERE overtaken = 1;

-- Which intent took the place of which, and that place in the line of its ordering key.
CREATE TABLE main.outbox_revision (
    id       INTEGER PRIMARY KEY,
    revises  INTEGER NOT NULL UNIQUE,
    position INTEGER NOT NULL
) STRICT;

-- One row for each settled intent.
CREATE TABLE main.outbox_receipt (
    id            INTEGER PRIMARY KEY,
    status        TEXT    NOT NULL CHECK (status IN ('succeeded', 'cancelled')),
    finished_at   INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    downstream_id TEXT,
    receipt       TEXT,
    -- Whether the intent was not stripped yet.
    has_payload   INTEGER NOT NULL DEFAULT 1
) STRICT;

-- Those whose payload is still there, so that those that were stripped are not walked over again.
CREATE INDEX main.outbox_receipt_payload ON outbox_receipt (finished_at, id) WHERE has_payload;

-- The last answer to an intent that refused it or did not tell, also to a lookup. `headers` is a
-- JSON array of pairs; of the body at most 16 KiB are kept, with the length and the SHA-256 of what
-- was read. Configured credentials are blanked. A later success leaves the answer there; stripping
-- deletes it.
CREATE TABLE main.outbox_answer (
    id          INTEGER PRIMARY KEY,
    at          INTEGER NOT NULL,
    status      INTEGER NOT NULL,
    headers     TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    body_bytes  INTEGER NOT NULL,
    body_sha256 TEXT    NOT NULL
) STRICT;

-- Whose effect a provider's id names, for operations that create things. An id is never given to
-- another intent.
CREATE TABLE main.outbox_binding (
    provider      TEXT    NOT NULL,
    downstream_id TEXT    NOT NULL,
    id            INTEGER NOT NULL,
    PRIMARY KEY (provider, downstream_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX main.outbox_binding_intent ON outbox_binding (id);

-- How many intents were ever settled, so that counting does not read them; and, under the status
-- 'duplicate_effect', how many turned out to have been carried out twice.
CREATE TABLE main.outbox_settled (
    operation TEXT    NOT NULL,
    status    TEXT    NOT NULL,
    total     INTEGER NOT NULL,
    PRIMARY KEY (operation, status)
) STRICT, WITHOUT ROWID;

-- The audit trail, in the order of commits. Append-only; never holds payloads or header values but
-- the two that outbox_meta names. A claim is not a line of its own: the line of its outcome says
-- when it was claimed.
CREATE TABLE main.outbox_event (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    outbox_id     INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    kind          TEXT    NOT NULL,
    from_status   TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    claimed_at    INTEGER,
    token         INTEGER,
    actor         TEXT,
    error_class   TEXT,
    reason        TEXT,
    downstream_id TEXT,
    agent_run     TEXT,
    tool_version  TEXT,
    UNIQUE (outbox_id, seq)
) STRICT;

-- What each downstream promises about repeated requests. Every relay obeys the stricter of this
-- and its own configuration.
CREATE TABLE main.outbox_operation (
    operation     TEXT    PRIMARY KEY,
    downstream    TEXT    NOT NULL CHECK (downstream IN ('deduplicates', 'unprotected')),
    window_ms     INTEGER CHECK (window_ms > 0),
    on_dead       TEXT    NOT NULL DEFAULT 'block' CHECK (on_dead IN ('block', 'continue')),
    provider      TEXT,
    owner         TEXT,
    key_recipe    TEXT,
    -- What holds over all relays: so many in flight, so many sends in such a time; and the longest
    -- that one attempt takes.
    max_in_flight INTEGER CHECK (max_in_flight > 0),
    rate_count    INTEGER CHECK (rate_count > 0),
    rate_ms       INTEGER CHECK (rate_ms > 0),
    time_limit_ms INTEGER,
    registered_at INTEGER NOT NULL,
    -- The budgets of each intent: attempts, and milliseconds from the first that may have left.
    attempts_max  INTEGER CHECK (attempts_max > 0),
    give_up_ms    INTEGER CHECK (give_up_ms >= 0),
    -- Whether some relay can look up what became of an intent; and whether the ids in receipts name
    -- what was created, so that no two intents can have one.
    reconciles    INTEGER NOT NULL DEFAULT 0 CHECK (reconciles IN (0, 1)),
    binds_ids     INTEGER NOT NULL DEFAULT 0 CHECK (binds_ids IN (0, 1)),
    -- Why it is paused, since when, and until when; NULL in paused_until waits for a person.
    paused_kind     TEXT CHECK (paused_kind IN ('operator', 'auth', 'breaker')),
    paused_until    INTEGER,
    paused_since    INTEGER,
    paused_by       TEXT,
    paused_reason   TEXT,
    -- The row that tries out whether the pause can end, its claim, and how many such failed.
    probe_id        INTEGER,
    probe_token     INTEGER,
    probes          INTEGER NOT NULL DEFAULT 0,
    failures        INTEGER NOT NULL DEFAULT 0,
    throttled_until INTEGER,
    resumed_at      INTEGER,
    -- The intent whose outcome began the pause, or made it go on; those that were refused as by
    -- their credentials, with no success between; and since when, and by whose answer, it is
    -- throttled.
    paused_culprit  INTEGER,
    refused         TEXT,
    throttled_since INTEGER,
    throttled_by    INTEGER,
    -- Whether its intents go over the machine's network.
    uses_network    INTEGER NOT NULL DEFAULT 0 CHECK (uses_network IN (0, 1)),
    -- Whether a GET may be repeated where the downstream is unprotected; and, as a JSON array of
    -- texts, the answers that are taken for word that nothing was applied, though by themselves
    -- they leave it open. NULL while no relay has said which.
    repeat_safe     INTEGER NOT NULL DEFAULT 1 CHECK (repeat_safe IN (0, 1)),
    repeat_rules    TEXT,
    -- What is left in the bucket of its rate, in thousandths of a send, and when that was.
    bucket          INTEGER,
    bucket_at       INTEGER,
    CHECK ((downstream = 'deduplicates') = (window_ms IS NOT NULL)),
    CHECK ((rate_count IS NULL) = (rate_ms IS NULL))
) STRICT, WITHOUT ROWID;

-- How much of an operation may be sent in any stretch of time, over all relays: of the whole, by
-- each tenant, by each agent run. All of them hold, and of one window the smallest amount that a
-- relay has registered.
CREATE TABLE main.outbox_budget (
    operation TEXT    NOT NULL,
    scope     TEXT    NOT NULL CHECK (scope IN ('operation', 'tenant', 'run')),
    kind      TEXT    NOT NULL CHECK (kind IN ('sends', 'cost')),
    amount    INTEGER NOT NULL CHECK (amount > 0),
    window_ms INTEGER NOT NULL CHECK (window_ms > 0),
    PRIMARY KEY (operation, scope, kind, window_ms)
) STRICT, WITHOUT ROWID;

-- The ledger: one row for each claim of an operation that has budgets or a rate, until it is proven
-- that nothing was applied or the longest window is over. `at` is when it was sent; where it has a
-- cost, the last time at which it may have had its effect. What an intent costs is entered once
-- where its downstream deduplicates, and stands with the last attempt that may have been applied.
CREATE TABLE main.outbox_spend (
    operation TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    id        INTEGER NOT NULL,
    token     INTEGER NOT NULL,
    tenant_id TEXT    NOT NULL,
    cost      INTEGER NOT NULL CHECK (cost >= 0),
    run       TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (operation, at, id, token)
) STRICT, WITHOUT ROWID;

CREATE INDEX main.outbox_spend_tenant ON outbox_spend (operation, tenant_id, at, cost);
CREATE INDEX main.outbox_spend_run ON outbox_spend (operation, run, at, cost) WHERE run <> '';
CREATE INDEX main.outbox_spend_intent ON outbox_spend (id, token);

-- Running totals of the ledger, for each window of the whole operation (''), of a tenant ('tenant:'
-- and its name) and of a run ('run:'): what was entered later than `since`. A claim moves
-- `since` to the beginning of the window and takes off what has left it, so that no claim counts a
-- window again. The sums of costs are those of their upper and lower halves, so that neither can
-- overflow.
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

-- The moves of operations themselves: pauses and their ends, and limits that were changed.
CREATE TABLE main.outbox_operation_event (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL,
    operation TEXT    NOT NULL,
    kind      TEXT    NOT NULL CHECK (kind IN ('paused', 'resumed', 'limited')),
    cause     TEXT    NOT NULL,
    until     INTEGER,
    actor     TEXT,
    reason    TEXT
) STRICT;

-- The inbox: one row for each message that was consumed, inserted before anything is done about it,
-- in the same transaction. `result` is the first result, and NULL while the library's consumer is
-- at work. A message whose row is deleted is handled again when it is delivered again.
CREATE TABLE main.outbox_inbox (
    source     TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    result     TEXT    DEFAULT '',
    handled_at INTEGER NOT NULL
                    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
    PRIMARY KEY (source, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX main.outbox_inbox_age ON outbox_inbox (handled_at);

CREATE VIEW main.outbox_status AS
SELECT o.id, o.tenant_id, o.operation, o.entity_id, o.intent_version, o.idempotency_key, o.endpoint,
       o.ordering_key,
       coalesce(r.status, l.state, 'pending')                   AS status,
       coalesce(r.attempts, l.attempts, 0)                      AS attempts,
       CASE l.state WHEN 'pending' THEN l.due_at END            AS next_attempt_at,
       CASE l.state WHEN 'unknown' THEN l.due_at END            AS next_lookup_at,
       CASE l.state WHEN 'in_flight' THEN l.due_at END          AS locked_until,
       l.owner                                                  AS locked_by,
       coalesce((SELECT u.error FROM outbox_unrecorded u
                 WHERE u.id = o.id AND u.retry_at IS NOT NULL LIMIT 1),
                l.last_error)                                   AS last_error,
       r.downstream_id,
       o.created_at,
       r.finished_at,
       EXISTS (SELECT 1 FROM outbox_operation c WHERE c.operation = o.operation) AS registered
FROM outbox o
LEFT JOIN outbox_lease l ON l.id = o.id
LEFT JOIN outbox_receipt r ON r.id = o.id;

-- How many intents of each operation are not settled, and when the first of them is due. Does
-- not read what is settled.
CREATE VIEW main.outbox_backlog AS
SELECT operation, state AS status, count(*) AS total,
       min(CASE state WHEN 'pending' THEN due_at END) AS first_due_at
FROM outbox_lease GROUP BY operation, state
UNION ALL
SELECT o.operation, 'pending', count(*), NULL
FROM outbox_keyed k CROSS JOIN outbox o ON o.id = k.id
WHERE NOT EXISTS (SELECT 1 FROM outbox_lease l WHERE l.id = k.id) GROUP BY o.operation;

-- Guards. RAISE(ABORT) is loud under INSERT OR IGNORE and OR REPLACE too, where a constraint
-- would skip the row or change the one that is there. A time below 10^12 is a mistaken unit,
-- unless SQLite's own clock (julianday) stands before 10^12 ms too: a machine that does not know
-- the time yet.
CREATE TRIGGER main.outbox_insert_guard BEFORE INSERT ON outbox
BEGIN
    SELECT CASE
        WHEN NEW.id <> -1
            THEN RAISE(ABORT, 'outbox.id: leave it out, it is assigned')
        WHEN typeof(NEW.tenant_id) <> 'text' OR length(NEW.tenant_id) > 255
             OR instr(NEW.tenant_id, char(0))
            THEN RAISE(ABORT,
                'outbox.tenant_id: must be text of at most 255 characters without NUL')
        WHEN typeof(NEW.operation) <> 'text' OR length(NEW.operation) NOT BETWEEN 1 AND 128
             OR NEW.operation GLOB '*[^-A-Za-z0-9_./]*' OR instr(NEW.operation, char(0))
            THEN RAISE(ABORT,
                'outbox.operation: must be 1 to 128 letters, digits or any of _ . / -')
        WHEN (SELECT only_registered FROM outbox_meta)
             AND NOT EXISTS (SELECT 1 FROM outbox_operation WHERE operation = NEW.operation)
            THEN RAISE(ABORT,
                'outbox.operation: is not registered, and this file takes registered operations only; start a relay that names it, or switch off outbox operations --only-registered')
        WHEN typeof(NEW.entity_id) <> 'text' OR length(NEW.entity_id) NOT BETWEEN 1 AND 1024
             OR instr(NEW.entity_id, char(0))
            THEN RAISE(ABORT, 'outbox.entity_id: must be text of 1 to 1024 characters without NUL')
        WHEN typeof(NEW.intent_version) <> 'integer' OR NEW.intent_version < 1
            THEN RAISE(ABORT, 'outbox.intent_version: must be an integer from 1')
        WHEN typeof(NEW.idempotency_key) <> 'text'
             OR length(CAST(NEW.idempotency_key AS BLOB)) NOT BETWEEN 1 AND 255
             OR NEW.idempotency_key GLOB '*[^!-~]*' OR instr(NEW.idempotency_key, char(0))
            THEN RAISE(ABORT, 'outbox.idempotency_key: must be 1 to 255 visible ASCII characters')
        WHEN NEW.args_hash IS NOT NULL
             AND (typeof(NEW.args_hash) <> 'text' OR length(NEW.args_hash) <> 64
                   OR NEW.args_hash GLOB '*[^0-9a-f]*' OR instr(NEW.args_hash, char(0)))
            THEN RAISE(ABORT, 'outbox.args_hash: must be NULL or SHA-256 as 64 hexadecimal digits')
        WHEN NEW.endpoint IS NOT NULL
             AND (typeof(NEW.endpoint) <> 'text' OR length(NEW.endpoint) > 2048
                  OR NEW.endpoint GLOB '*[^!-~]*' OR instr(NEW.endpoint, char(0))
                  OR NOT (lower(NEW.endpoint) GLOB 'http://?*'
                           OR lower(NEW.endpoint) GLOB 'https://?*'))
            THEN RAISE(ABORT,
                'outbox.endpoint: must be NULL or an http(s) URL of at most 2048 ASCII characters')
        WHEN NEW.method IS NULL OR NEW.method <> 'POST'
             AND NEW.method NOT IN ('PUT', 'PATCH', 'DELETE', 'GET')
            THEN RAISE(ABORT, 'outbox.method: must be POST, PUT, PATCH, DELETE or GET')
        WHEN typeof(NEW.content_type) <> 'text' OR length(NEW.content_type) NOT BETWEEN 3 AND 255
             OR NEW.content_type GLOB '*[^ -~]*' OR NEW.content_type NOT GLOB '[^ ]*/*[^ ]'
             OR NEW.content_type GLOB '/*' OR instr(NEW.content_type, char(0))
            THEN RAISE(ABORT,
                'outbox.content_type: must be a media type such as application/json, without line ends, and without blanks around it')
        WHEN typeof(NEW.payload) <> 'text' OR instr(NEW.payload, char(0))
            THEN RAISE(ABORT, 'outbox.payload: must be text without NUL')
        WHEN length(CAST(NEW.payload AS BLOB)) > (SELECT payload_max FROM outbox_meta)
            THEN RAISE(ABORT, 'outbox.payload: longer than outbox_meta.payload_max bytes')
        WHEN (lower(NEW.content_type) GLOB 'application/json*'
              OR lower(NEW.content_type) GLOB '*+json*')
             AND NOT (NEW.payload = '' AND NEW.method IN ('GET', 'DELETE'))
             AND NOT json_valid(NEW.payload)
            THEN RAISE(ABORT, 'outbox.payload: not valid JSON, which content_type says it is')
        WHEN typeof(NEW.headers) <> 'text' OR NOT json_valid(NEW.headers)
             OR instr(NEW.headers, char(0))
             OR (NEW.headers <> '{}' AND json_type(NEW.headers) <> 'object')
            THEN RAISE(ABORT,
                'outbox.headers: must be a JSON object of strings, numbers and booleans')
        WHEN NEW.ordering_key IS NOT NULL
             AND (typeof(NEW.ordering_key) <> 'text'
                   OR length(NEW.ordering_key) NOT BETWEEN 1 AND 255
                  OR instr(NEW.ordering_key, char(0)))
            THEN RAISE(ABORT,
                'outbox.ordering_key: must be NULL or text of 1 to 255 characters without NUL')
        WHEN typeof(NEW.created_at) <> 'integer'
             OR NEW.created_at > 99999999999999
             OR (NEW.created_at < 1000000000000 AND julianday('now') > 2452161.6)
            THEN RAISE(ABORT,
                'outbox.created_at: must be UTC milliseconds, not seconds or microseconds')
        WHEN typeof(NEW.available_at) <> 'integer'
             OR NEW.available_at > 99999999999999
             OR (NEW.available_at < 1000000000000 AND julianday('now') > 2452161.6)
            THEN RAISE(ABORT,
                'outbox.available_at: must be UTC milliseconds, not seconds or microseconds')
        WHEN NEW.expires_at IS NOT NULL
             AND (typeof(NEW.expires_at) <> 'integer'
                  OR NEW.expires_at > 99999999999999
                  OR (NEW.expires_at < 1000000000000 AND julianday('now') > 2452161.6))
            THEN RAISE(ABORT,
                'outbox.expires_at: must be NULL or UTC milliseconds, not seconds or microseconds')
        WHEN typeof(NEW.cost) <> 'integer' OR NEW.cost < 0
            THEN RAISE(ABORT, 'outbox.cost: must be an integer of 0 or more')
        WHEN NEW.expires_at <= NEW.available_at
            THEN RAISE(ABORT, 'outbox.expires_at: must be after available_at')
        WHEN EXISTS (SELECT 1 FROM outbox
                     WHERE tenant_id = NEW.tenant_id AND idempotency_key = NEW.idempotency_key)
            THEN RAISE(ABORT,
                'outbox.idempotency_key: already used by this tenant; the intent is there')
        WHEN NEW.is_derived AND EXISTS (SELECT 1 FROM outbox
                     WHERE tenant_id = NEW.tenant_id AND operation = NEW.operation
                       AND entity_id = NEW.entity_id
                       AND intent_version = NEW.intent_version AND is_derived)
            THEN RAISE(ABORT,
                'outbox.intent_version: exists with other arguments; a change needs a new version')
    END;
END;

-- The same rules as in src/core/endpoint.rs. An endpoint of a plain host and path needs none of
-- them; `tail` is the text behind the host.
CREATE TRIGGER main.outbox_insert_endpoint_guard BEFORE INSERT ON outbox
WHEN NEW.endpoint IS NOT NULL
     AND (NEW.endpoint NOT GLOB 'https://[A-Za-z0-9]*'
          OR substr(NEW.endpoint, 9) GLOB '*[^-A-Za-z0-9._/]*')
BEGIN
    SELECT CASE
        WHEN instr(NEW.endpoint, '#')
            THEN RAISE(ABORT, 'outbox.endpoint: has a fragment, which is never sent; leave it out')
        WHEN NEW.endpoint GLOB '*[{}]*'
             AND replace(replace(NEW.endpoint, '{idempotency_key}', 'x'), '{entity_id}', 'x')
                 GLOB '*[{}]*'
            THEN RAISE(ABORT,
                'outbox.endpoint: only {idempotency_key} and {entity_id} may stand in braces; write others as %7B, %7D')
        WHEN NEW.entity_id IN ('.', '..') AND instr(NEW.endpoint, '{entity_id}')
             OR NEW.idempotency_key IN ('.', '..') AND NEW.tenant_id = ''
                AND instr(NEW.endpoint, '{idempotency_key}')
            THEN RAISE(ABORT, 'outbox.endpoint: a placeholder would become a dot segment')
        WHEN rest = tail
             OR rest GLOB '[[]*'
                AND (substr(rest, 2, instr(rest, ']') - 2) GLOB '*[^0-9A-Fa-f:.]*'
                     OR length(replace(substr(rest, 1, instr(rest, ']')), ':', ''))
                        NOT BETWEEN instr(rest, ']') - 8 AND instr(rest, ']') - 2)
            THEN RAISE(ABORT,
                'outbox.endpoint: has no host, or one that is neither a name nor an address')
        WHEN tail <> '' AND tail NOT GLOB '[/?]*'
             AND (tail NOT GLOB ':[0-9]*'
                  OR ltrim(substr(tail, 2), '0123456789') GLOB '[^/?]*'
                  OR CAST(substr(tail, 2) AS INTEGER) NOT BETWEEN 1 AND 65535)
            THEN RAISE(ABORT,
                'outbox.endpoint: behind the host may stand a port within 1 to 65535, a path and a query; no user name and password')
        WHEN rest GLOB '*[<>]*' OR rest GLOB '*[?]*"*'
             OR substr(rest, 1, instr(rest || '?', '?')) GLOB '*`*'
            THEN RAISE(ABORT, 'outbox.endpoint: has a character that must be percent-encoded')
    END
    FROM (SELECT rest, CASE WHEN rest GLOB '[[]*]*' THEN substr(rest, instr(rest, ']') + 1)
                            ELSE ltrim(lower(rest), 'abcdefghijklmnopqrstuvwxyz0123456789._-')
                       END AS tail
          FROM (SELECT substr(NEW.endpoint, instr(NEW.endpoint, '://') + 3) AS rest));
END;

-- The same rules as in src/core/header.rs. Numbers and booleans are sent as they are written.
CREATE TRIGGER main.outbox_insert_headers_guard BEFORE INSERT ON outbox
WHEN NEW.headers <> '{}' AND json_valid(NEW.headers)
BEGIN
    SELECT CASE
        WHEN type <> 'text' AND type NOT IN ('integer', 'real', 'true', 'false')
            THEN RAISE(ABORT,
                'outbox.headers: a value must be a string, a number or a boolean; leave a header out instead of null')
        WHEN key = '' OR key GLOB '*[^-A-Za-z0-9!#$%&''*+.^_`|~]*'
            THEN RAISE(ABORT,
                'outbox.headers: a name must consist of ASCII letters, digits and !#$%&''*+-.^_`|~')
        WHEN key NOT GLOB '[Xx]-*'
             AND (lower(key) GLOB 'proxy-*' OR instr(
                 ' host content-length transfer-encoding connection expect te upgrade trailer keep-alive idempotency-key ',
                 ' ' || lower(key) || ' '))
            THEN RAISE(ABORT,
                'outbox.headers: has a name that belongs to the transport or carries the key; leave it out')
        WHEN type = 'text' AND (value GLOB '*[^ -~]*' OR value NOT GLOB '[^ ]*' OR value GLOB '* ')
             -- Some versions of SQLite end a text there, and all compare no further.
             OR instr(replace(NEW.headers, '\\', ''), '\u0000')
            THEN RAISE(ABORT,
                'outbox.headers: a value must be visible ASCII, with spaces only inside, and not empty')
    END
    FROM json_each(NEW.headers);
    SELECT RAISE(ABORT, 'outbox.headers: a name is given twice')
    FROM json_each(NEW.headers) WHERE NEW.headers GLOB '*,*'
    GROUP BY lower(key) HAVING count(*) > 1;
    SELECT CASE
        WHEN count(*) > 50
             OR sum(length(key) + length(iif(type = 'text', value, NEW.headers -> fullkey))) > 8192
            THEN RAISE(ABORT, 'outbox.headers: at most 50, of together at most 8192 bytes')
    END
    FROM json_each(NEW.headers) WHERE length(NEW.headers) > 300;
END;

CREATE TRIGGER main.outbox_inbox_insert_guard BEFORE INSERT ON outbox_inbox
BEGIN
    SELECT CASE
        WHEN typeof(NEW.source) <> 'text' OR length(NEW.source) NOT BETWEEN 1 AND 255
             OR instr(NEW.source, char(0))
            THEN RAISE(ABORT,
                'outbox_inbox.source: must be text of 1 to 255 characters without NUL')
        WHEN typeof(NEW.message_id) <> 'text' OR length(NEW.message_id) NOT BETWEEN 1 AND 1024
             OR instr(NEW.message_id, char(0))
            THEN RAISE(ABORT,
                'outbox_inbox.message_id: must be text of 1 to 1024 characters without NUL')
        WHEN typeof(NEW.handled_at) <> 'integer'
             OR NEW.handled_at > 99999999999999
             OR (NEW.handled_at < 1000000000000 AND julianday('now') > 2452161.6)
            THEN RAISE(ABORT,
                'outbox_inbox.handled_at: must be UTC milliseconds, not seconds or microseconds')
    END;
END;

CREATE TRIGGER main.outbox_insert_free AFTER INSERT ON outbox WHEN NEW.ordering_key IS NULL
BEGIN
    INSERT INTO outbox_lease (id, operation, state, due_at, own_endpoint)
    VALUES (NEW.id, NEW.operation, 'pending', NEW.available_at, NEW.endpoint IS NOT NULL);
END;

CREATE TRIGGER main.outbox_insert_run AFTER INSERT ON outbox WHEN NEW.headers <> '{}'
BEGIN
    INSERT INTO outbox_run (id, run)
    SELECT NEW.id, iif(h.type = 'text', h.value, NEW.headers -> h.fullkey)
    FROM outbox_meta m, json_each(NEW.headers) h
    WHERE lower(h.key) = m.agent_run_header AND h.value <> '' LIMIT 1;
END;

CREATE TRIGGER main.outbox_insert_keyed AFTER INSERT ON outbox WHEN NEW.ordering_key IS NOT NULL
BEGIN
    INSERT INTO outbox_lease (id, operation, state, due_at, own_endpoint)
    SELECT NEW.id, NEW.operation, 'pending', NEW.available_at, NEW.endpoint IS NOT NULL
    WHERE NOT EXISTS (SELECT 1 FROM outbox_keyed
                      WHERE tenant_id = NEW.tenant_id AND ordering_key = NEW.ordering_key);
    INSERT INTO outbox_keyed (tenant_id, ordering_key, position, id)
    VALUES (NEW.tenant_id, NEW.ordering_key, NEW.id, NEW.id);
END;

-- The totals follow the ledger, whoever writes it.
CREATE TRIGGER main.outbox_spend_insert AFTER INSERT ON outbox_spend
BEGIN
    UPDATE outbox_total
    SET sends = sends + 1, high = high + (NEW.cost >> 32), low = low + (NEW.cost & 4294967295)
    WHERE operation = NEW.operation AND since < NEW.at
      AND name IN ('', 'tenant:' || NEW.tenant_id, 'run:' || NEW.run);
END;

CREATE TRIGGER main.outbox_spend_delete AFTER DELETE ON outbox_spend
BEGIN
    UPDATE outbox_total
    SET sends = sends - 1, high = high - (OLD.cost >> 32), low = low - (OLD.cost & 4294967295)
    WHERE operation = OLD.operation AND since < OLD.at
      AND name IN ('', 'tenant:' || OLD.tenant_id, 'run:' || OLD.run);
    DELETE FROM outbox_total
    WHERE operation = OLD.operation AND sends <= 0
      AND name IN ('tenant:' || OLD.tenant_id, 'run:' || OLD.run);
END;

CREATE TRIGGER main.outbox_spend_update AFTER UPDATE ON outbox_spend
BEGIN
    UPDATE outbox_total
    SET sends = sends + (since < NEW.at) - (since < OLD.at),
        high = high + (since < NEW.at) * (NEW.cost >> 32) - (since < OLD.at) * (OLD.cost >> 32),
        low = low + (since < NEW.at) * (NEW.cost & 4294967295)
              - (since < OLD.at) * (OLD.cost & 4294967295)
    WHERE operation = NEW.operation
      AND name IN ('', 'tenant:' || NEW.tenant_id, 'run:' || NEW.run);
END;

-- When a row leaves the line of its key, the first one left may act; but a row that was passed
-- and replayed waits until a later one that is on the way has come back.
CREATE TRIGGER main.outbox_promote AFTER DELETE ON outbox_keyed
BEGIN
    INSERT INTO outbox_lease (id, operation, state, due_at, resume_at, own_endpoint, shift)
    SELECT o.id, o.operation, 'pending',
           CASE WHEN NOT f.is_busy
                THEN o.available_at + coalesce(m.ahead_from - o.created_at, 0) END,
           CASE WHEN f.is_busy
                THEN o.available_at + coalesce(m.ahead_from - o.created_at, 0) END,
           o.endpoint IS NOT NULL, m.ahead_from - o.created_at
    FROM outbox o
         LEFT JOIN outbox_meta m ON o.id <= m.ahead_id AND o.created_at > m.ahead_from + 60000,
         (SELECT EXISTS (SELECT 1 FROM outbox_keyed k INDEXED BY outbox_keyed_overtaken
                         CROSS JOIN outbox_lease l ON l.id = k.id
                         WHERE k.tenant_id = OLD.tenant_id AND k.ordering_key = OLD.ordering_key
                           AND k.overtaken = 1 AND l.state = 'in_flight') AS is_busy) f
    WHERE o.id = (SELECT k.id FROM outbox_keyed k
                  WHERE k.tenant_id = OLD.tenant_id AND k.ordering_key = OLD.ordering_key
                  ORDER BY k.position, k.id LIMIT 1)
    ON CONFLICT (id) DO UPDATE
    SET due_at = coalesce(outbox_lease.resume_at, excluded.due_at), resume_at = NULL
    WHERE state = 'pending' AND outbox_lease.due_at IS NULL AND outbox_lease.held_by IS NULL
      AND excluded.due_at IS NOT NULL;
END;

CREATE TRIGGER main.outbox_update_guard BEFORE UPDATE ON outbox
WHEN NOT (
    NEW.payload IS NULL AND NEW.headers = '{}'
    AND EXISTS (SELECT 1 FROM outbox_receipt WHERE id = OLD.id)
    AND NEW.id = OLD.id AND NEW.tenant_id = OLD.tenant_id AND NEW.operation = OLD.operation
    AND NEW.entity_id = OLD.entity_id AND NEW.intent_version = OLD.intent_version
    AND NEW.idempotency_key = OLD.idempotency_key AND NEW.args_hash IS OLD.args_hash
    AND NEW.endpoint IS OLD.endpoint AND NEW.method = OLD.method
    AND NEW.content_type = OLD.content_type
    AND NEW.ordering_key IS OLD.ordering_key AND NEW.available_at = OLD.available_at
    AND NEW.expires_at IS OLD.expires_at AND NEW.created_at = OLD.created_at
    AND NEW.cost = OLD.cost)
BEGIN
    SELECT RAISE(ABORT, 'outbox: an intent is frozen; enqueue a new version');
END;

CREATE TRIGGER main.outbox_delete_guard BEFORE DELETE ON outbox
WHEN NOT EXISTS (SELECT 1 FROM outbox_receipt WHERE id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'outbox: an unsettled intent cannot be deleted; cancel it');
END;

CREATE TRIGGER main.outbox_strip AFTER UPDATE OF payload ON outbox WHEN NEW.payload IS NULL
BEGIN
    UPDATE outbox_receipt SET has_payload = 0 WHERE id = NEW.id;
    DELETE FROM outbox_answer WHERE id = NEW.id;
END;

CREATE TRIGGER main.outbox_delete AFTER DELETE ON outbox
BEGIN
    DELETE FROM outbox_receipt WHERE id = OLD.id;
    DELETE FROM outbox_answer WHERE id = OLD.id;
    DELETE FROM outbox_event WHERE outbox_id = OLD.id;
    DELETE FROM outbox_lost WHERE id = OLD.id;
    DELETE FROM outbox_unrecorded WHERE id = OLD.id;
    DELETE FROM outbox_binding WHERE id = OLD.id;
    DELETE FROM outbox_revision WHERE id = OLD.id;
    DELETE FROM outbox_run WHERE id = OLD.id;
    DELETE FROM outbox_wire_key WHERE id = OLD.id;
END;

-- INSERT OR REPLACE would delete without asking the delete guard.
CREATE TRIGGER main.outbox_event_insert_guard BEFORE INSERT ON outbox_event
WHEN NEW.position <> -1
     OR EXISTS (SELECT 1 FROM outbox_event WHERE outbox_id = NEW.outbox_id AND seq = NEW.seq)
BEGIN
    SELECT RAISE(ABORT, 'outbox_event: the audit trail is append-only');
END;

CREATE TRIGGER main.outbox_event_update_guard BEFORE UPDATE ON outbox_event
BEGIN
    SELECT RAISE(ABORT, 'outbox_event: the audit trail is append-only');
END;

CREATE TRIGGER main.outbox_event_delete_guard BEFORE DELETE ON outbox_event
WHEN EXISTS (SELECT 1 FROM outbox WHERE id = OLD.outbox_id)
BEGIN
    SELECT RAISE(ABORT, 'outbox_event: the audit trail is append-only');
END;
