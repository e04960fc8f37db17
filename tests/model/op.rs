//! Operations as values: a sequence is a list of them, made from a seed, run, and made shorter.
//!
//! Rows are named by a number and not by their id, so that a sequence means something whatever is
//! taken out of it.

use fastrand::Rng;

use super::bench::Setup;
use crate::core::status::Status;

/// How many hosts intents name.
const HOSTS: u8 = 2;

/// Which row: a number among those it makes sense for, or now and then among all.
pub(crate) type Pick = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Enqueue {
        operation: u8,
        line: Option<u8>,
        /// The intent names an endpoint of its own, at this host.
        host: Option<u8>,
        delay_s: u16,
        expires_s: Option<u16>,
    },
    Claim {
        relay: u8,
        operation: u8,
        limit: u8,
    },
    LookUp {
        relay: u8,
        operation: u8,
        limit: u8,
    },
    /// A worker begins with what its relay holds, and reports later or never.
    Begin {
        relay: u8,
        nth: u8,
        answer: Answer,
    },
    Report {
        relay: u8,
        nth: u8,
    },
    /// Both at once.
    Work {
        relay: u8,
        nth: u8,
        answer: Answer,
    },
    Release {
        relay: u8,
        nth: u8,
    },
    Renew {
        relay: u8,
    },
    Abandon {
        relay: u8,
        nth: u8,
    },
    Recover {
        relay: u8,
    },
    /// The process ends; another takes its place under another name.
    Crash {
        relay: u8,
    },
    /// Time passes.
    Advance {
        seconds: u32,
    },
    /// Time passes until the next row comes due or lease runs out.
    AdvanceToNext,
    /// The wall clock is set.
    Set {
        seconds: i32,
    },
    Resolve {
        row: Pick,
        word: Word,
    },
    Confirm {
        row: Pick,
        id: Named,
    },
    Bind {
        row: Pick,
        id: Named,
    },
    Revise {
        row: Pick,
    },
    Cancel {
        row: Pick,
    },
    RequestCancel {
        row: Pick,
    },
    Replay {
        row: Pick,
    },
    Skip {
        row: Pick,
    },
    Pause {
        operation: u8,
        seconds: Option<u16>,
    },
    Resume {
        operation: u8,
    },
    /// The application's own trigger makes recording attempts fail, of every other intent; or it is
    /// mended.
    Obstruct {
        on: bool,
    },
    /// An outcome that was kept is recorded, if that succeeds now.
    RetryKept {
        relay: u8,
    },
}

/// The result of an attempt, and its true effect downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Succeeds,
    SucceedsWithoutId,
    /// With the id of another intent's effect, and none of its own.
    SucceedsAsAnother,
    NotSent,
    /// No answer, and nothing was applied.
    Vanishes,
    /// No answer, but it was applied at once.
    Applied,
    /// No answer, and it is applied some time after, but within the time limit.
    Lingers,
    /// The process was suspended and sends just before it reports or ends, however late.
    Suspended,
    Transient,
    Limited,
    Unauthorized,
    Rejected,
    NeedsReview,
    NeedsReviewApplied,
}

/// A person's word about a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Truth,
    Applied,
    Dead,
}

/// The provider's id that a person or webhook names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    Own,
    Another,
    OfAnotherIntent,
    None,
}

impl Op {
    pub fn random(rng: &mut Rng, setup: Setup) -> Self {
        let relay = rng.u8(0..2);
        let operation = rng.u8(0..3);
        let nth = rng.u8(..);
        if setup.has_crashes() && rng.u8(0..4) == 0 {
            return if rng.bool() { Self::Crash { relay } } else { Self::Recover { relay } };
        }
        match rng.u8(0..if setup.has_persons() { 100 } else { 87 }) {
            0..9 => Self::enqueue(rng, operation, setup),
            9..27 => Self::Claim { relay, operation, limit: rng.u8(1..4) },
            27..36 => Self::LookUp { relay, operation, limit: rng.u8(1..4) },
            36..44 => Self::Work { relay, nth, answer: Answer::random(rng) },
            44..54 => Self::Begin { relay, nth, answer: Answer::random(rng) },
            54..61 => Self::Report { relay, nth },
            61 => Self::Release { relay, nth },
            62 => Self::Renew { relay },
            63 => Self::Abandon { relay, nth },
            64..72 => Self::Recover { relay },
            72 => Self::Crash { relay },
            73..75 if setup.has_jumps() => Self::Set { seconds: jump(rng) },
            75 if setup.has_obstructions() => Self::Obstruct { on: rng.u8(0..3) > 0 },
            76 if setup.has_obstructions() => Self::RetryKept { relay },
            73..78 => Self::Advance { seconds: duration(rng) },
            78..87 => Self::AdvanceToNext,
            _ => Self::by_a_person(rng, operation),
        }
    }

    fn enqueue(rng: &mut Rng, operation: u8, setup: Setup) -> Self {
        Self::Enqueue {
            operation,
            line: (rng.u8(0..3) > 0).then(|| rng.u8(0..3)),
            host: (setup.has_hosts() && rng.u8(0..3) > 0).then(|| rng.u8(0..HOSTS)),
            delay_s: if rng.u8(0..8) == 0 { rng.u16(1..200) } else { 0 },
            expires_s: (rng.u8(0..8) == 0).then(|| rng.u16(200..900)),
        }
    }

    fn by_a_person(rng: &mut Rng, operation: u8) -> Self {
        let row = rng.u8(..);
        match rng.u8(0..20) {
            0..4 => Self::Resolve { row, word: Word::random(rng) },
            4..6 => Self::Confirm { row, id: Named::random(rng) },
            6 => Self::Bind { row, id: Named::random(rng) },
            7..9 => Self::Revise { row },
            9 => Self::Cancel { row },
            10..12 => Self::RequestCancel { row },
            12..16 => Self::Replay { row },
            16..18 => Self::Skip { row },
            18 if rng.bool() => {
                Self::Pause { operation, seconds: rng.bool().then(|| rng.u16(1..200)) }
            }
            _ => Self::Resume { operation },
        }
    }

    /// Which row it is about, where a person does it to one.
    pub fn pick(self) -> Option<Pick> {
        match self {
            Self::Resolve { row, .. }
            | Self::Confirm { row, .. }
            | Self::Bind { row, .. }
            | Self::Revise { row }
            | Self::Cancel { row }
            | Self::RequestCancel { row }
            | Self::Replay { row }
            | Self::Skip { row } => Some(row),
            _ => None,
        }
    }

    /// The statuses of rows for which it is no surprise.
    pub fn suits(self) -> &'static [Status] {
        use Status::{Dead, InFlight, NeedsReview, Pending, Unknown};
        match self {
            Self::Resolve { word: Word::Applied | Word::Truth, .. } => {
                &[Unknown, NeedsReview, Dead]
            }
            Self::Resolve { .. } => &[Unknown, NeedsReview],
            Self::Confirm { id: Named::OfAnotherIntent, .. } => {
                &[Pending, InFlight, Unknown, NeedsReview, Dead]
            }
            Self::Confirm { .. } => &[InFlight, Unknown, NeedsReview, Dead],
            Self::Revise { .. } | Self::Cancel { .. } => &[Pending, Dead],
            Self::RequestCancel { .. } => &[Pending, InFlight, Unknown],
            Self::Bind { .. } => &[Pending],
            Self::Replay { .. } => &[Dead, NeedsReview],
            Self::Skip { .. } => &[Dead, NeedsReview, Unknown],
            _ => &[],
        }
    }
}

impl Answer {
    fn random(rng: &mut Rng) -> Self {
        match rng.u8(0..32) {
            0..6 => Self::Succeeds,
            6 => Self::SucceedsWithoutId,
            7 => Self::SucceedsAsAnother,
            8..11 => Self::NotSent,
            11..14 => Self::Vanishes,
            14..17 => Self::Applied,
            17..19 => Self::Lingers,
            19..22 => Self::Suspended,
            22..25 => Self::Transient,
            25 if rng.bool() => Self::Limited,
            25 if rng.bool() => Self::Unauthorized,
            25..29 => Self::Rejected,
            29..31 => Self::NeedsReview,
            _ => Self::NeedsReviewApplied,
        }
    }
}

impl Word {
    fn random(rng: &mut Rng) -> Self {
        match rng.u8(0..6) {
            0..4 => Self::Truth,
            4 => Self::Applied,
            _ => Self::Dead,
        }
    }
}

impl Named {
    fn random(rng: &mut Rng) -> Self {
        match rng.u8(0..8) {
            0..4 => Self::Own,
            4 => Self::Another,
            5..7 => Self::OfAnotherIntent,
            _ => Self::None,
        }
    }
}

/// Durations past none, one or several of: a backoff, the time limit, the lease, the quiet period,
/// the window.
fn duration(rng: &mut Rng) -> u32 {
    [1, 5, 30, 61, 91, 91, 121, 121, 300, 601, 10_000][rng.usize(0..11)]
}

fn jump(rng: &mut Rng) -> i32 {
    [-5, -30, -100, -700, -90_000, 30, 100, 400, 90_000][rng.usize(0..9)]
}
