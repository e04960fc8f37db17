use super::*;
use crate::core::status::Status;

#[test]
fn delivery_is_what_a_relay_would_hand_over() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path().join("app.db")).unwrap();
    let intent = Intent::new("charge", "order-42")
        .tenant("acme")
        .key("brought-1")
        .endpoint("https://api.example.com/")
        .header("X-Trace", "t1")
        .header("A-First", "1")
        .ordering_key("o")
        .args(serde_json::json!({"amount": 1}));
    outbox.transact(|tx| outbox.enqueue(tx, &intent)).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let handler = move |delivery: &Delivery| {
        tell.send(delivery.clone()).unwrap();
        crate::Outcome::Succeeded(crate::Receipt::new())
    };
    let relay = crate::Relay::builder(&outbox)
        .operation("charge", crate::Operation::new(Downstream::Unprotected, handler))
        .build()
        .unwrap();
    relay.drain().unwrap();
    let theirs = told.recv().unwrap();
    let ours = delivery(&intent).unwrap().build();
    let facts = |d: &Delivery| {
        format!(
            "{} {} {} {} {} {} {} {:?} {} {} {} {:?} {:?} {} {:?} {}",
            d.id(),
            d.tenant(),
            d.operation(),
            d.entity(),
            d.version(),
            d.idempotency_key(),
            d.wire_key(),
            d.endpoint(),
            d.method(),
            d.content_type(),
            d.payload(),
            d.headers(),
            d.ordering_key(),
            d.attempt(),
            d.downstream(),
            d.token()
        )
    };
    assert_eq!(facts(&ours), facts(&theirs));
    assert_eq!(ours.intent.args_hash, theirs.intent.args_hash);
}

#[test]
fn delivery_can_be_a_later_one_whose_lease_ends() {
    let clock = ManualClock::at(1_000);
    let window = Duration::from_secs(60);
    let delivery = delivery(&Intent::new("charge", "1"))
        .unwrap()
        .attempt(3)
        .downstream(Downstream::DeduplicatesByKey { window })
        .lease(Duration::from_secs(5))
        .clock(clock.clone())
        .build();
    assert_eq!((delivery.attempt(), delivery.downstream().window()), (3, Some(window)));
    assert!(delivery.holds_lease_for(Duration::from_secs(5)));
    clock.advance(Duration::from_secs(1));
    assert!(!delivery.holds_lease_for(Duration::from_secs(5)));
    let refused = super::delivery(&Intent::new("a b", "1")).unwrap_err();
    assert!(refused.to_string().starts_with("operation: "), "{refused}");
}

#[test]
fn assert_enqueued_lists_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path().join("app.db")).unwrap();
    let wanted = Filter::default().operation("mail.send").tenant("acme");
    let message = |outbox: &Outbox| {
        let assert = || assert_enqueued(outbox, &wanted);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(assert)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    let text = message(&outbox);
    assert!(text.ends_with("; the outbox is empty"), "{text}");

    for n in 0..30 {
        let intent = Intent::new("mail.send", format!("order-{n}"));
        outbox.transact(|tx| outbox.enqueue(tx, &intent)).unwrap();
    }
    let text = message(&outbox);
    assert!(text.starts_with("no intent matches Filter {"), "{text}");
    let newest = "of 30 intents the newest are:\n  30: mail.send on \"order-29\", version 1, \
                  tenant \"\", pending";
    assert!(text.contains(newest) && !text.contains("\n  10:"), "{text}");

    let found = assert_enqueued(&outbox, &Filter::default().operation("mail.send"));
    assert_eq!((found.id, found.status), (1, Status::Pending));
}
