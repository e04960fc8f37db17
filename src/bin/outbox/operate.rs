//! `outbox replay` and `outbox cancel`: what a person does about intents.

use serde::Serialize;
use sqlite_outbox::{ErrorKind, Filter, Outbox, Status};

use crate::args::{CancelArgs, ReplayArgs};
use crate::failure::{Failure, REFUSED, Result};
use crate::input;
use crate::inspect;
use crate::output::{Out, count, escape, note};

/// What became of one intent.
#[derive(Serialize)]
struct Done<'a> {
    id: i64,
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Out {
    fn done(self, id: i64, outcome: &str) -> Result<()> {
        if self.is_json() {
            return self.json(&Done { id, outcome: outcome.replace(' ', "_"), reason: None });
        }
        self.line(format_args!("intent {id}: {outcome}"))
    }

    /// `word` is `error` where this intent was asked for, `refused` where it only matched.
    fn refused(self, word: &str, id: i64, reason: &str) -> Result<()> {
        if self.is_json() {
            self.json(&Done { id, outcome: "refused".into(), reason: Some(reason) })?;
        }
        note(format_args!("{word}: {}", escape(reason)));
        Ok(())
    }
}

pub fn replay(out: Out, outbox: &Outbox, args: &ReplayArgs) -> Result<()> {
    let actor = input::actor(args.actor.as_deref());
    if args.ids.is_empty() {
        return replay_many(out, outbox, args, &actor);
    }
    let outcome = if args.dry_run { "would be replayed" } else { "replayed" };
    each(out, &args.ids, outcome, |id| {
        if args.dry_run {
            outbox.check_replay(id)
        } else {
            outbox.replay(id, &actor, args.reason.as_deref())
        }
    })
}

pub fn cancel(out: Out, outbox: &Outbox, args: &CancelArgs) -> Result<()> {
    let actor = input::actor(args.actor.as_deref());
    each(out, &args.ids, "cancelled", |id| {
        outbox.transact(|tx| outbox.cancel(tx, id, &actor, args.reason.as_deref()))
    })
}

/// Acts on each id by itself: one that is refused keeps no other from its turn.
fn each(
    out: Out,
    ids: &[i64],
    outcome: &str,
    act: impl Fn(i64) -> sqlite_outbox::Result<()>,
) -> Result<()> {
    let mut is_any_refused = false;
    // Whoever reads may have gone away; what was asked for is done all the same.
    let mut said = Ok(());
    for &id in ids {
        let told = match act(id) {
            Ok(()) => out.done(id, outcome),
            Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::NotFound) => {
                is_any_refused = true;
                out.refused("error", id, &error.to_string())
            }
            Err(error) => return Err(error.into()),
        };
        said = said.and(told);
    }
    if is_any_refused { Err(Failure::quiet(REFUSED)) } else { said }
}

fn replay_many(out: Out, outbox: &Outbox, args: &ReplayArgs, actor: &str) -> Result<()> {
    let mut filter = inspect::filter(&args.filter);
    if filter == Filter::default() && !args.all {
        return Err(Failure::usage("name intents by id or by a filter, or say --all"));
    }
    filter.status = filter.status.or(Some(Status::Dead));
    filter.limit = args.limit;
    let reason = args.reason.as_deref();
    let plan = outbox.replay_all(&filter, actor, reason, true)?;
    // Whoever reads may have gone away; what was asked for is done all the same.
    let said = out.say(format_args!(
        "{} can be replayed, {} refused",
        count(plan.replayed.len(), "intent"),
        plan.refused.len()
    ));
    let (outcome, report) = if args.dry_run {
        ("would be replayed", plan)
    } else {
        ("replayed", outbox.replay_all(&filter, actor, reason, false)?)
    };
    said?;
    report.replayed.iter().try_for_each(|&id| out.done(id, outcome))?;
    report.refused.iter().try_for_each(|(id, reason)| out.refused("refused", *id, reason))
}
