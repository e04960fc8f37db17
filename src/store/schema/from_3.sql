-- From version 3 to 4.

-- outbox_answer: the last failing answer of an intent.
CREATE TABLE main.outbox_answer (
    id          INTEGER PRIMARY KEY,
    at          INTEGER NOT NULL,
    status      INTEGER NOT NULL,
    headers     TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    body_bytes  INTEGER NOT NULL,
    body_sha256 TEXT    NOT NULL
) STRICT;

-- outbox_wire_key: keys as they were sent. The migration fills it: SQL has no SHA-256.
CREATE TABLE main.outbox_wire_key (
    id       INTEGER PRIMARY KEY,
    wire_key TEXT    NOT NULL
) STRICT;
