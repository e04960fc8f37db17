//! Tenants and agent runs whose budget is used up: their rows wait aside behind one hold, which is
//! looked at again when the budget has something left.

use crate::core::hold::{Cause, Domain, Hold};
use crate::core::{Scope, UsedUp};
use crate::error::Result;
use crate::handler::Delivery;
use crate::store::relay::claim::ClaimRequest;
use crate::store::relay::tx::RelayTx;
use crate::store::tables::{hold, ledger};

impl RelayTx<'_> {
    /// Lets a due row wait aside until its tenant or run has something left.
    pub(super) fn wait_for_budget(
        &mut self,
        mut hold: Hold,
        used_up: &UsedUp,
        id: i64,
    ) -> Result<()> {
        if let Some(known) = self.find_hold(&hold.operation, hold.domain, &hold.name)? {
            hold = known;
        }
        if hold.cause.is_none() || hold.until.is_none_or(|until| until <= self.now) {
            hold = Hold {
                cause: Some(Cause::Budget),
                since: if hold.cause.is_none() { self.now } else { hold.since },
                until: Some(used_up.until),
                culprit: Some(id),
                reason: used_up.to_string(),
                ..hold
            };
            hold.id = self.save_hold(hold.clone())?;
        }
        hold::put_aside(self.conn, id, hold.id)
    }

    /// Lets as many rows come due behind this hold as its budgets leave.
    pub(super) fn release_share(&mut self, hold: Hold, request: &ClaimRequest<'_>) -> Result<()> {
        let conn = self.conn;
        let scope = if hold.domain == Domain::Run { Scope::Run } else { Scope::Tenant };
        let ledger = self.ledger(&hold.operation)?;
        let (left, until) = ledger.left_of(conn, scope, &hold.name)?;
        let released = hold::release(conn, hold.id, request.shard, left)?.len();
        if released < left && self.remove_hold(&hold)? {
            return Ok(());
        }
        // Rows of a shard that another relay serves are for that relay to let through.
        if released > 0 || left == 0 {
            self.save_hold(Hold { until: Some(until), ..hold })?;
        }
        Ok(())
    }

    /// Looks at the budgets of a claim's tenant and run again: its entry has changed.
    pub(super) fn look_again(&mut self, delivery: &Delivery) -> Result<()> {
        let Delivery { operation, intent, id, .. } = delivery;
        for domain in [Domain::Tenant, Domain::Run] {
            if !self.has_holds_of(operation, domain)? {
                continue;
            }
            let name = match domain {
                Domain::Run => ledger::run_of(self.conn, *id)?.unwrap_or_default(),
                _ => intent.tenant_id.clone(),
            };
            if let Some(hold) = self.find_hold(operation, domain, &name)?
                && hold.cause == Some(Cause::Budget)
            {
                self.save_hold(Hold { until: Some(self.now), ..hold })?;
            }
        }
        Ok(())
    }
}
