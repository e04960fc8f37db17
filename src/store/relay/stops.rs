//! Operations and domains that a transaction found to stand still: their rows that were claimed
//! before, and that no worker has started, go back.

use std::collections::{BTreeMap, HashSet};

use crate::core::Stopped;
use crate::core::hold::Domain;
use crate::handler::Delivery;
use crate::store::tables::hold::Place;

/// Operations and domains that were found to stand still.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    operations: BTreeMap<String, Stopped>,
    domains: HashSet<(String, Domain, String)>,
}

impl Stops {
    pub fn operation(&mut self, operation: &str, stopped: Stopped) {
        let known = self.operations.entry(operation.to_owned()).or_insert(stopped);
        *known = stopped.max(*known);
    }

    pub fn domain(&mut self, operation: &str, kind: Domain, name: &str) {
        self.domains.insert((operation.to_owned(), kind, name.to_owned()));
    }

    pub fn extend(&mut self, other: Self) {
        other.operations.iter().for_each(|(name, stopped)| self.operation(name, *stopped));
        self.domains.extend(other.domains);
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.domains.is_empty()
    }

    pub fn stops(&self, delivery: &Delivery) -> bool {
        let (operation, intent) = (&delivery.operation, &delivery.intent);
        let by_operation = match self.operations.get(operation) {
            Some(Stopped::All) => true,
            Some(Stopped::Configured) => intent.endpoint.is_none(),
            None => false,
        };
        by_operation
            || self.domains.iter().any(|(held, kind, name)| {
                held == operation && Place::of(intent).name_in(*kind).as_ref() == Some(name)
            })
    }
}
