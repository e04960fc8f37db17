//! An application that writes through sqlx, and the relay beside it in the same process.
#![cfg(test)]

use sqlite_outbox::{Downstream, Operation, Outbox, Outcome, Receipt, Relay, Status};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection, Executor, Row};

const INTENT: &str = "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
                      VALUES ('mail.send', ?, ?, '{}') RETURNING id";

async fn enqueue(app: &mut SqliteConnection, order: &str, commit: bool) -> i64 {
    let mut tx = app.begin_with("BEGIN IMMEDIATE").await.unwrap();
    tx.execute(sqlx::query("INSERT INTO orders VALUES (?)").bind(order)).await.unwrap();
    let intent = sqlx::query(INTENT).bind(order).bind(format!("mail-{order}"));
    let id = intent.fetch_one(&mut *tx).await.unwrap().get(0);
    if commit {
        tx.commit().await.unwrap();
    } else {
        tx.rollback().await.unwrap();
    }
    id
}

#[test]
fn an_intent_committed_through_sqlx_is_sent_and_one_rolled_back_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let outbox = Outbox::open(&file).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (kept, dropped) = runtime.block_on(async {
        let mut app = SqliteConnectOptions::new().filename(&file).connect().await.unwrap();
        app.execute("CREATE TABLE orders (id TEXT NOT NULL)").await.unwrap();
        let dropped = enqueue(&mut app, "order-1", false).await;
        let kept = enqueue(&mut app, "order-2", true).await;
        app.close().await.unwrap();
        (kept, dropped)
    });

    let handler = |_: &sqlite_outbox::Delivery| Outcome::Succeeded(Receipt::new());
    let relay = Relay::builder(&outbox)
        .operation("mail.send", Operation::new(Downstream::Unprotected, handler))
        .build()
        .unwrap();
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(kept, dropped, "the id of what was rolled back is free again");
    let entry = outbox.entry(kept).unwrap().unwrap();
    assert_eq!((entry.status, entry.entity_id.as_str()), (Status::Succeeded, "order-2"));
}
