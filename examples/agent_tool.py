#!/usr/bin/env python3
"""A tool of an agent that charges for an order once, however often the model asks for it.

usage: agent_tool.py DB ORDER AMOUNT [--wait SECONDS]      after: outbox --db DB init
Prints a JSON object for the model. Exit codes: 0 answered, 1 failed, 2 wrong usage, 3 refused because
the order was asked for with another amount. After a failure the same ask may simply be repeated.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import sqlite3
import sys
import time

TENANT, OPERATION, TOOL_VERSION = "acme", "stripe.charge", "1.0.0"


class Refused(Exception):
    """Another action has taken this place, and asking again will not help."""


def charge(db, order, amount, version=1, run=""):
    """The tool. Returns the key, and whether the same was asked before. It sends nothing itself.

    The model chooses `order` and `amount`. `version` is for code or a person who has decided that this
    order is to be charged otherwise; a model that could choose it could charge twice.
    """
    # The key is derived from this, so it holds what the action is and nothing of how it was asked for.
    # With the id of a tool call, a trace id, now() or a random number in it, every ask would be another
    # action, and the order would be charged for each.
    args = {"amount": amount, "currency": "usd"}
    key = derive_key(TENANT, OPERATION, order, version, args)
    # Who asked goes into headers, which are no part of the key. Those of the first ask are sent.
    headers = {"x-tool-version": TOOL_VERSION}
    if run:
        if not re.fullmatch("[!-~]{1,200}", run):
            raise ValueError("AGENT_RUN must be 1 to 200 visible ASCII characters")
        headers["x-agent-run"] = run
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")
        # Your tool would look the order up and refuse one that is not there: a
        # misspelt order is another order, and charging for it another action.
        db.execute("INSERT OR IGNORE INTO orders (id, state) VALUES (?, 'paying')", (order,))
        is_new = enqueue(db, order, version, key, args, headers)
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if "exists with other arguments" in str(error):
            raise Refused(f"{order} was asked for before with another amount; nothing was changed. Do not "
                          "try other arguments: a change needs a new version, which a person decides on."
                          ) from error
        raise
    # Only now may the model be answered: before the commit there is nothing to tell.
    return key, not is_new


def enqueue(db, entity, version, key, args, headers):
    """Enqueues within the open transaction. Returns whether the intent is new."""
    row = {"tenant": TENANT, "operation": OPERATION, "entity": entity, "version": version, "key": key,
           "payload": json.dumps(args), "headers": json.dumps(headers)}
    return db.execute(
        """INSERT INTO outbox
               (tenant_id, operation, entity_id, intent_version, idempotency_key, payload, headers)
           SELECT :tenant, :operation, :entity, :version, :key, :payload, :headers
           WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE tenant_id = :tenant AND idempotency_key = :key)""",
        row).rowcount == 1


def derive_key(tenant, operation, entity, version, args):
    """The key rule: one business action has one key, in every language."""
    canonical = json.dumps(
        {"args": args, "entity": entity, "op": operation, "tenant": tenant, "v": version},
        sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{operation}:{hashlib.sha256(canonical.encode()).hexdigest()[:40]}"


def outcome(db, key, wait):
    """The status and the receipt's id. Waits so many seconds for them, and only reads meanwhile."""
    end, seen = time.monotonic() + wait, None
    while True:
        # Changes when another connection has committed; cheap enough to ask all the time.
        changed, = db.execute("PRAGMA data_version").fetchone()
        if changed != seen:
            seen = changed
            status, downstream_id = db.execute(
                "SELECT status, downstream_id FROM outbox_status WHERE tenant_id = ? AND idempotency_key = ?",
                (TENANT, key)).fetchone()
        if status not in ("pending", "in_flight", "unknown") or time.monotonic() >= end:
            return status, downstream_id
        time.sleep(0.02)


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


def cents(text):
    if not re.fullmatch("[1-9][0-9]{0,7}", text):
        raise argparse.ArgumentTypeError("must be a whole number of cents from 1 to 99999999")
    return int(text)


def main():
    usage = argparse.ArgumentParser(description="Charges for an order, once.")
    usage.add_argument("db")
    usage.add_argument("order")
    usage.add_argument("amount", type=cents)
    usage.add_argument("--wait", type=float, default=0, metavar="SECONDS")
    asked = usage.parse_args()
    db = connect(asked.db)
    key, asked_before = charge(db, asked.order, asked.amount, run=os.environ.get("AGENT_RUN", ""))
    status, downstream_id = outcome(db, key, asked.wait)
    print(json.dumps({"status": status, "idempotency_key": key, "downstream_id": downstream_id,
                      "asked_before": asked_before}))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print(json.dumps({"error": str(error)}), file=sys.stderr)
        sys.exit(3 if isinstance(error, Refused) else 1)
