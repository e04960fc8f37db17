#!/usr/bin/env python3
"""Records an order and the intent to charge for it, in one transaction of one SQLite file.

usage: enqueue.py DB ORDER AMOUNT      after: outbox --db DB init
Run it twice with the same arguments and nothing more is written; with another amount for the same
order it is refused, because that is another action and needs the next version.
"""
import hashlib
import json
import pathlib
import sqlite3
import sys


def derive_key(tenant, operation, entity, version, args):
    """The key rule: one business action has one key, in every language."""
    canonical = json.dumps(
        {"args": args, "entity": entity, "op": operation, "tenant": tenant, "v": version},
        sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{operation}:{hashlib.sha256(canonical.encode()).hexdigest()[:40]}"


def connect(path):
    # A file that is not there is a mistake, not a new database.
    uri = pathlib.Path(path).absolute().as_uri() + "?mode=rw"
    # `isolation_level=None`: transactions begin and end where this file says so.
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5)
    db.execute("PRAGMA synchronous = FULL")
    if sqlite3.sqlite_version_info < (3, 51, 3):
        # Older versions can corrupt a WAL that several processes write back; the relay does that.
        db.execute("PRAGMA wal_autocheckpoint = 0")
    return db


def enqueue(db, tenant, operation, entity, args, version=1):
    """Enqueues within the open transaction. Returns the key, and whether the intent is new."""
    key = derive_key(tenant, operation, entity, version, args)
    new = db.execute(
        """INSERT INTO outbox (tenant_id, operation, entity_id, intent_version, idempotency_key, payload)
           SELECT :tenant, :operation, :entity, :version, :key, :payload
           WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE tenant_id = :tenant AND idempotency_key = :key)""",
        {"tenant": tenant, "operation": operation, "entity": entity, "version": version, "key": key,
         "payload": json.dumps(args)})
    return key, new.rowcount == 1


def main(path, order, amount):
    db = connect(path)
    db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("INSERT OR IGNORE INTO orders (id, state) VALUES (?, 'paying')", (order,))
        key, is_new = enqueue(db, "acme", "stripe.charge", order, {"amount": amount, "currency": "usd"})
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    print("enqueued" if is_new else "asked before", key)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except sqlite3.DatabaseError as error:
        sys.exit(f"error: {sys.argv[1]}: {error}; has `outbox --db {sys.argv[1]} init` been run?")
