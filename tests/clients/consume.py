"""Consumes with Python's own sqlite3, by the recipe of docs/inbox.md. usage: consume.py DB SOURCE MESSAGE"""
import sqlite3, sys

def main(path, source, message):
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous = FULL")
    if sqlite3.sqlite_version_info < (3, 51, 3):
        db.execute("PRAGMA wal_autocheckpoint = 0")
    it = {"source": source, "message": message}
    db.execute("BEGIN IMMEDIATE")
    db.execute("""INSERT INTO outbox_inbox (source, message_id) VALUES (:source, :message)
                  ON CONFLICT DO NOTHING""", it)
    if db.execute("SELECT changes()").fetchone() == (0,):
        (result,) = db.execute("""SELECT result FROM outbox_inbox
                                  WHERE source = :source AND message_id = :message""", it).fetchone()
    else:
        db.execute("INSERT INTO orders (id, state) VALUES (hex(randomblob(8)), ?)", (message,))
        result = f"python handled {message}"
        db.execute("""UPDATE outbox_inbox SET result = :result
                      WHERE source = :source AND message_id = :message""", {**it, "result": result})
    db.execute("COMMIT")
    print(result)

main(*sys.argv[1:])
