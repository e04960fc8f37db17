//! Sequences that broke a rule once, each with its story.

use super::bench::{Bench, Setup};
use super::op::{Answer, Named, Op, Word};
use super::sequence::Machine;

fn holds(setup: u16, ops: &[Op]) {
    let mut bench = Bench::new(None);
    if let Err(violation) = Machine::new(&mut bench, Setup(setup), None).run(ops) {
        panic!("{violation}");
    }
}

fn enqueue(operation: u8, line: Option<u8>) -> Op {
    Op::Enqueue { operation, line, host: None, delay_s: 0, expires_s: None }
}

/// A revision took the place of a dead intent that later ones had passed, while one of them was on
/// the way. That one failed, and gave way to a row that could not come due: the line stood still.
#[test]
fn a_revision_that_waits_for_a_later_row_acts_when_that_gives_way() {
    let row = 0;
    let continues = 0b1010;
    holds(
        continues,
        &[
            enqueue(0, Some(0)),
            Op::Claim { relay: 0, operation: 0, limit: 1 },
            Op::Work { relay: 0, nth: 0, answer: Answer::Rejected },
            enqueue(2, Some(0)),
            Op::Claim { relay: 0, operation: 2, limit: 1 },
            Op::Revise { row },
            Op::Work { relay: 0, nth: 0, answer: Answer::Transient },
        ],
    );
}

/// An intent that was in flight was confirmed with the id of another, which left it for review; and
/// a person's word sent it again, although the relay that was at it was alive and had not reported.
#[test]
fn what_is_set_aside_may_still_be_on_its_way() {
    let (row, binds) = (0, 0b1_0000);
    holds(
        binds,
        &[
            enqueue(0, None),
            Op::Bind { row, id: Named::Own },
            enqueue(1, None),
            Op::Claim { relay: 0, operation: 1, limit: 1 },
            Op::Begin { relay: 0, nth: 0, answer: Answer::Suspended },
            Op::Confirm { row: 1, id: Named::OfAnotherIntent },
            Op::Resolve { row, word: Word::Truth },
        ],
    );
}

/// A row that was set aside in flight was in doubt from then on, and not since its attempt: it was
/// replayed after the downstream had forgotten its key.
#[test]
fn what_is_set_aside_is_in_doubt_since_its_attempt() {
    let (row, binds) = (0, 0b1_0000);
    holds(
        binds,
        &[
            enqueue(1, None),
            Op::Bind { row, id: Named::Own },
            enqueue(0, None),
            Op::Claim { relay: 0, operation: 0, limit: 1 },
            Op::Advance { seconds: 10_000 },
            Op::Confirm { row: 1, id: Named::OfAnotherIntent },
            Op::Replay { row },
            Op::Claim { relay: 1, operation: 0, limit: 1 },
        ],
    );
}

/// A lookup asked, and found nothing; then a relay that had been suspended with the row sent it
/// after all, and reported or died before the finding was written, which was believed.
#[test]
fn a_finding_older_than_the_last_word_of_a_sender_is_not_believed() {
    for last_word in [Op::Report { relay: 0, nth: 0 }, Op::Crash { relay: 0 }] {
        holds(
            0,
            &[
                enqueue(1, None),
                Op::Claim { relay: 0, operation: 1, limit: 1 },
                Op::Begin { relay: 0, nth: 0, answer: Answer::Suspended },
                Op::AdvanceToNext,
                Op::Recover { relay: 1 },
                Op::AdvanceToNext,
                Op::LookUp { relay: 1, operation: 1, limit: 1 },
                Op::Begin { relay: 1, nth: 0, answer: Answer::Succeeds },
                last_word,
                Op::Report { relay: 1, nth: 0 },
            ],
        );
    }
}

/// A lookup found the effect of an attempt that had been sent meanwhile, and said in the trail that
/// the row had been unknown.
#[test]
fn a_finding_that_comes_late_says_where_the_row_stands() {
    holds(
        0,
        &[
            enqueue(1, None),
            Op::Claim { relay: 0, operation: 1, limit: 1 },
            Op::Crash { relay: 0 },
            Op::AdvanceToNext,
            Op::Recover { relay: 1 },
            Op::AdvanceToNext,
            Op::LookUp { relay: 1, operation: 1, limit: 1 },
            Op::Resolve { row: 0, word: Word::Truth },
            Op::Claim { relay: 0, operation: 1, limit: 1 },
            Op::Begin { relay: 0, nth: 0, answer: Answer::Applied },
            Op::Begin { relay: 1, nth: 0, answer: Answer::Succeeds },
            Op::Report { relay: 1, nth: 0 },
        ],
    );
}

/// A later row was set aside in flight; an earlier one that had been skipped and replayed waited
/// for it forever.
#[test]
fn what_is_set_aside_gives_way_to_an_earlier_row() {
    let (row, binds) = (0, 0b1_0000);
    holds(
        binds,
        &[
            enqueue(1, None),
            Op::Bind { row, id: Named::Own },
            enqueue(2, Some(0)),
            Op::Claim { relay: 0, operation: 2, limit: 1 },
            Op::Work { relay: 0, nth: 0, answer: Answer::NeedsReview },
            Op::Skip { row },
            enqueue(0, Some(0)),
            Op::Claim { relay: 0, operation: 0, limit: 1 },
            Op::Resolve { row, word: Word::Truth },
            Op::Confirm { row: 2, id: Named::OfAnotherIntent },
        ],
    );
}

/// A suspended worker sent at last, reported that it does not know, or died; and a lookup asked
/// right after it, whose relay had known of the doubt for long. The request was still under way.
#[test]
fn an_attempt_that_ends_late_is_left_alone_from_then_on() {
    for end in [Op::Report { relay: 0, nth: 0 }, Op::Crash { relay: 0 }] {
        holds(
            0,
            &[
                enqueue(1, None),
                Op::Claim { relay: 0, operation: 1, limit: 1 },
                Op::Begin { relay: 0, nth: 0, answer: Answer::Suspended },
                Op::AdvanceToNext,
                Op::Recover { relay: 1 },
                Op::Advance { seconds: 601 },
                end,
                Op::LookUp { relay: 1, operation: 1, limit: 1 },
                Op::Work { relay: 1, nth: 0, answer: Answer::Succeeds },
                Op::Claim { relay: 1, operation: 1, limit: 1 },
                Op::Begin { relay: 1, nth: 0, answer: Answer::Applied },
                Op::Advance { seconds: 61 },
            ],
        );
    }
}

/// The clock was set back, so that by the wall clock two suspects were not to be sent again: they
/// were not lined up, and then sent both, because the machine's uptime said that they might be.
#[test]
fn suspects_are_tried_one_at_a_time_also_when_the_clock_was_set_back() {
    holds(
        0,
        &[
            enqueue(0, None),
            enqueue(0, Some(1)),
            Op::Claim { relay: 1, operation: 0, limit: 3 },
            Op::AdvanceToNext,
            Op::Recover { relay: 0 },
            Op::Claim { relay: 1, operation: 0, limit: 3 },
            Op::AdvanceToNext,
            Op::Recover { relay: 0 },
            Op::Set { seconds: -700 },
            Op::Claim { relay: 0, operation: 0, limit: 2 },
        ],
    );
}

/// The clock was set forward while an attempt was on its way: its report put the entry of its claim
/// back to where the clock had stood, and the budget was free again.
#[test]
fn a_budget_counts_what_was_sent_before_the_clock_was_set() {
    let has_budget = 3 << 13;
    holds(
        has_budget,
        &[
            enqueue(2, None),
            enqueue(2, Some(2)),
            Op::Claim { relay: 1, operation: 2, limit: 1 },
            Op::Begin { relay: 1, nth: 0, answer: Answer::NeedsReview },
            Op::Set { seconds: 90_000 },
            Op::Claim { relay: 1, operation: 2, limit: 3 },
            enqueue(2, None),
            Op::Report { relay: 1, nth: 0 },
            Op::Claim { relay: 1, operation: 2, limit: 1 },
        ],
    );
}
