//! The gate of an operation in a relay's transaction, and how outcomes open and close it.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::core::{Actor, Draw, FlowControl, FlowMove, Gates, Heard, Outcome, Shard, Stopped};
use crate::error::Result;
use crate::handler::Delivery;
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::tables::gates::gates_of;
use crate::store::tables::ledger::{self, Ledger};
use crate::store::tables::pause;

impl RelayTx<'_> {
    /// The operation's flow control as this transaction has left it so far.
    fn flow(&mut self, operation: &str) -> Result<&mut FlowControl> {
        let (_, flow) = match self.flows.entry(operation.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let flow = pause::load(self.conn, operation)?.unwrap_or_default();
                unknown.insert((flow.clone(), flow))
            }
        };
        Ok(flow)
    }

    pub(super) fn save_flows(&self) -> Result<()> {
        for (operation, (before, now)) in &self.flows {
            if before != now {
                pause::save(self.conn, operation, now)?;
            }
        }
        Ok(())
    }

    /// Whether rows of this operation may be claimed. Ends a pause whose time has come.
    pub(super) fn gates(&mut self, rules: &Rules, shard: Shard) -> Result<Gates> {
        let (conn, now, operation) = (self.conn, self.now, rules.operation.as_str());
        if let Some(ended) = self.flow(operation)?.end_pause(now) {
            let actor = Actor::new("relay").reason("its time was over");
            pause::insert_move(conn, operation, FlowMove::Resumed, Some(&ended), &actor, now)?;
        }
        let flow = self.flow(operation)?.clone();
        let network = self.network(rules)?;
        let ledger = self.ledger(operation)?;
        let gates = gates_of(conn, &flow, ledger, network.as_ref(), shard)?;
        if let Some(stopped) = gates.configured.stopped() {
            // Another relay may have closed the gate: unstarted deliveries here must be released.
            self.stops.operation(operation, stopped);
        }
        Ok(gates)
    }

    /// Whether a rate or budgets count the sends of this operation.
    pub(super) fn is_limited(&mut self, operation: &str) -> Result<bool> {
        let has_rate = self.flow(operation)?.limits.rate.is_some();
        Ok(has_rate || self.ledger(operation)?.has_budgets())
    }

    pub(super) fn begin_probe(&mut self, operation: &str, delivery: Option<&Arc<Delivery>>) {
        if let (Some((_, flow)), Some(delivery)) = (self.flows.get_mut(operation), delivery) {
            flow.probe = Some((delivery.id, delivery.token));
        }
    }

    pub(super) fn take_from_bucket(&mut self, rules: &Rules, count: usize) {
        if let Some((_, flow)) = self.flows.get_mut(&rules.operation).filter(|_| count > 0) {
            flow.take(count, self.now);
        }
    }

    pub(super) fn forget_probe(&mut self, operation: &str, id: i64, token: i64) -> Result<()> {
        self.flow(operation)?.forget_probe((id, token));
        Ok(())
    }

    /// Whether this outcome is that of a probe and says that what it tried must stand still longer.
    pub(super) fn is_failed_probe(
        &mut self,
        delivery: &Delivery,
        outcome: &Outcome,
        rules: &Rules,
    ) -> Result<bool> {
        let claim = (delivery.id, delivery.token);
        let heard = Heard { outcome, claim, due_at: None };
        Ok(self.flow(&delivery.operation)?.is_failed_probe(&heard)
            || self.network(rules)?.is_some_and(|hold| hold.is_failed_probe(&heard))
            || self
                .holds_on(delivery.id, &delivery.intent, rules)?
                .iter()
                .any(|hold| hold.is_failed_probe(&heard)))
    }

    /// Takes into account what an outcome says about where its intent went. `due_at` is the row's
    /// next attempt.
    pub(super) fn on_outcome(
        &mut self,
        delivery: &Delivery,
        outcome: &Outcome,
        rules: &Rules,
        draw: Draw,
        due_at: Option<i64>,
    ) -> Result<()> {
        let heard = Heard { outcome, claim: (delivery.id, delivery.token), due_at };
        let is_offline =
            rules.network.is_some() && self.on_network(&heard, &delivery.intent, rules, draw)?;
        match delivery.intent.endpoint.as_deref() {
            Some(endpoint) => self.on_outcome_elsewhere(endpoint, &heard, rules, draw),
            // The network is to blame, and the row was no proper try of a pause.
            None if is_offline => self.forget_probe(&rules.operation, delivery.id, delivery.token),
            None => self.on_outcome_configured(&heard, rules, draw),
        }
    }

    fn on_outcome_configured(
        &mut self,
        heard: &Heard<'_>,
        rules: &Rules,
        draw: Draw,
    ) -> Result<()> {
        let operation = rules.operation.as_str();
        let flow = self.flow(operation)?;
        let before = flow.pause.clone();
        let moved = flow.on_outcome(heard, rules.breaker_after, draw);
        if flow.throttled_until(draw.now).is_some() {
            // Deliveries that no worker has started must not be sent now.
            self.stops.operation(operation, Stopped::Configured);
        }
        let Some(moved) = moved else { return Ok(()) };
        let pause = self.flow(operation)?.pause.clone().or(before);
        let reason = match (moved, &pause) {
            (FlowMove::Paused, Some(pause)) => match pause.culprit {
                Some(id) => format!("intent {id}: {}", pause.reason),
                None => pause.reason.clone(),
            },
            _ => "the downstream answers again".to_owned(),
        };
        let actor = Actor::new(self.owner).reason(&reason);
        pause::insert_move(self.conn, operation, moved, pause.as_ref(), &actor, draw.now)?;
        if moved == FlowMove::Paused {
            log::warn!("operation {operation:?} is paused: {reason}");
            self.stops.operation(operation, Stopped::Configured);
        } else {
            log::info!("operation {operation:?} goes on: {reason}");
        }
        Ok(())
    }

    /// The budgets and the rate of an operation, and what is spent of them.
    pub(super) fn ledger(&mut self, operation: &str) -> Result<&Ledger> {
        let limits = self.flow(operation)?.limits;
        Ok(match self.ledgers.entry(operation.to_owned()) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(closed) => {
                closed.insert(Ledger::open(self.conn, operation, &limits, self.now)?.written())
            }
        })
    }

    /// Corrects the entry of a claim that has reported to the time that counts.
    pub(super) fn account(&mut self, delivery: &Delivery) -> Result<()> {
        let conn = self.conn;
        if self.ledger(&delivery.operation)?.reported(conn, delivery)? {
            self.look_again(delivery)?;
        }
        Ok(())
    }

    /// Refunds a claim that is proven to have applied nothing. An earlier claim of the same intent
    /// keeps its own entry.
    pub(super) fn refund(&mut self, delivery: &Delivery) -> Result<()> {
        let conn = self.conn;
        if self.ledger(&delivery.operation)?.refund(conn, delivery)? {
            self.look_again(delivery)?;
        }
        Ok(())
    }

    /// Refunds every claim since the row is in doubt: none of them was applied.
    pub(super) fn refund_doubt(&mut self, delivery: &Delivery) -> Result<()> {
        ledger::refund_doubt(self.conn, delivery)?;
        self.look_again(delivery)
    }
}

#[cfg(test)]
mod tests;
