//! The table of statuses as the design has it: which verb moves a row from where to where.

use crate::core::status::Status::{
    self, Cancelled, Dead, InFlight, NeedsReview, Pending, Succeeded, Unknown,
};

/// A verb on rows, in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Enqueue,
    Claim,
    Record,
    Recover,
    Release,
    ClaimLookup,
    Find,
    Resolve,
    Confirm,
    Revise,
    Cancel,
    Replay,
    /// Records an outcome that was kept.
    Retry,
    /// Moves no row: a skip, a pause, a bound id, a renewed lease.
    Other,
}

/// Where no relay holds the row any more, a success that comes late wins; but not with an id that
/// is another intent's.
const LATE: &[(Status, &[Status])] = &[
    (Pending, &[Succeeded, NeedsReview]),
    (Unknown, &[Succeeded, NeedsReview]),
    (NeedsReview, &[Succeeded]),
    (Dead, &[Succeeded, NeedsReview]),
];

/// A move of one row.
pub(crate) type Move = (Verb, Status, Status);

impl Verb {
    /// Every move of the table, but for late ones.
    #[cfg(feature = "slow-tests")]
    pub fn all_moves() -> impl Iterator<Item = Move> {
        let verbs = [
            Self::Claim,
            Self::Record,
            Self::Recover,
            Self::Release,
            Self::ClaimLookup,
            Self::Find,
            Self::Resolve,
            Self::Confirm,
            Self::Revise,
            Self::Cancel,
            Self::Replay,
        ];
        verbs.into_iter().flat_map(|verb| {
            let targets =
                |&(from, to): &(Status, &'static [Status])| to.iter().map(move |to| (from, *to));
            verb.table().iter().flat_map(targets).map(move |(from, to)| (verb, from, to))
        })
    }

    pub fn enters(self) -> bool {
        matches!(self, Self::Enqueue | Self::Revise)
    }

    pub fn allows(self, from: Status, to: Status) -> bool {
        let is_in = |table: &[(Status, &[Status])]| {
            table.iter().any(|(known, targets)| *known == from && targets.contains(&to))
        };
        is_in(self.table())
            || matches!(self, Self::Record | Self::Find | Self::Retry) && is_in(LATE)
    }

    fn table(self) -> &'static [(Status, &'static [Status])] {
        match self {
            Self::Enqueue | Self::Other => &[],
            // Due, but expired, in doubt, used up, or not wanted any more.
            Self::Claim => &[(Pending, &[InFlight, Dead, NeedsReview, Unknown, Cancelled])],
            Self::Record => &[
                (InFlight, &[Succeeded, Pending, Unknown, NeedsReview, Dead, Cancelled]),
                // Word that comes late that the only attempt was never sent.
                (Pending, &[Cancelled]),
                (Unknown, &[Pending, Cancelled]),
                (NeedsReview, &[Pending, Cancelled]),
            ],
            // The attempt may have been applied, unless an earlier attempt has proven success.
            Self::Recover => &[(InFlight, &[Pending, Unknown, NeedsReview, Succeeded])],
            Self::Release => &[(InFlight, &[Pending, Succeeded])],
            Self::ClaimLookup => &[(Unknown, &[NeedsReview])],
            Self::Find => &[(Unknown, &[Succeeded, Pending, NeedsReview, Dead, Cancelled])],
            Self::Resolve => &[
                (Unknown, &[Succeeded, Pending, Dead, Cancelled]),
                (NeedsReview, &[Succeeded, Pending, Dead, Cancelled]),
                (Dead, &[Succeeded, Pending, Cancelled]),
            ],
            Self::Confirm => &[
                (Pending, &[Succeeded, NeedsReview]),
                (InFlight, &[Succeeded, NeedsReview]),
                (Unknown, &[Succeeded, NeedsReview]),
                (NeedsReview, &[Succeeded]),
                (Dead, &[Succeeded, NeedsReview]),
            ],
            Self::Revise | Self::Cancel => &[(Pending, &[Cancelled]), (Dead, &[Cancelled])],
            Self::Retry => &[(NeedsReview, &[Succeeded, Pending, Unknown, Dead, Cancelled])],
            Self::Replay => &[(Dead, &[Pending]), (NeedsReview, &[Pending])],
        }
    }
}
