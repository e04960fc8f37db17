-- From version 4 to 5.

-- outbox_operation: which answers let a request be repeated.
ALTER TABLE main.outbox_operation
    ADD COLUMN repeat_safe INTEGER NOT NULL DEFAULT 1 CHECK (repeat_safe IN (0, 1));
ALTER TABLE main.outbox_operation ADD COLUMN repeat_rules TEXT;
