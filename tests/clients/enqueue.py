"""Enqueues with Python's own sqlite3, by the recipe of docs/sql.md. usage: enqueue.py DB FROM TO"""
import hashlib, json, sqlite3, sys

def derive(tenant, operation, entity, version, args):
    canonical = json.dumps(
        {"args": args, "entity": entity, "op": operation, "tenant": tenant, "v": version},
        sort_keys=True, separators=(",", ":"))
    return f"{operation}:{hashlib.sha256(canonical.encode()).hexdigest()[:40]}"

def main(path, first, last):
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous = FULL")
    if sqlite3.sqlite_version_info < (3, 51, 3):
        db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")
    for n in range(first, last):
        entity, args = f"py-{n}", {"amount": n, "unit": "é"}
        key = derive("acme", "pay", entity, 1, args)
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO orders (id, state) VALUES (?, 'paying')", (entity,))
        insert = """INSERT INTO outbox (tenant_id, operation, entity_id, idempotency_key, payload, ordering_key)
                    SELECT 'acme', 'pay', :entity, :key, :payload, :ordering_key
                    WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE tenant_id = 'acme' AND idempotency_key = :key)"""
        row = {"entity": entity, "key": key, "payload": json.dumps(args),
               "ordering_key": f"py-{n % 7}" if n % 2 else None}
        db.execute(insert, row)
        # Asking again in the same way writes nothing.
        assert db.execute(insert, row).rowcount == 0
        db.execute("COMMIT")
        print(key, flush=True)

main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
