//! `outbox replay`, `resolve`, `skip` and `cancel`: what a person does about intents.

use serde::Serialize;
use sqlite_outbox::{Actor, Filter, Outbox, Resolution, Status};

use crate::args::{IntentsArgs, ReplayArgs, ResolveArgs};
use crate::commands::list;
use crate::ui::failure::{Failure, REFUSED, Result, is_of_this_intent};
use crate::ui::output::{Out, count, escape, note};

/// What became of one intent.
#[derive(Serialize)]
struct Done<'a> {
    id: i64,
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Out {
    fn done(self, id: i64, outcome: &str) -> Result<()> {
        if self.is_json() {
            let outcome = outcome.replace(' ', "_");
            return self.json(&Done { id, outcome, status: None, reason: None });
        }
        self.line(format_args!("intent {id}: {outcome}"))
    }

    fn resolved(self, id: i64, status: Status) -> Result<()> {
        if self.is_json() {
            let status = Some(status.as_str());
            return self.json(&Done { id, outcome: "resolved".into(), status, reason: None });
        }
        self.line(format_args!("intent {id}: resolved, it is {status}"))
    }

    /// It was not withdrawn, but that somebody wanted to is on record.
    fn too_late(self, id: i64, status: Status) -> Result<()> {
        let why = "too late to withdraw: it is not tried again";
        if self.is_json() {
            let (outcome, status) = ("too_late".into(), Some(status.as_str()));
            self.json(&Done { id, outcome, status, reason: Some(why) })?;
        }
        note(format_args!("intent {id} is {status}: {why}"));
        Ok(())
    }

    /// `word` is `error` where this intent was asked for, `refused` where it only matched.
    fn refused(self, word: &str, id: i64, reason: &str) -> Result<()> {
        if self.is_json() {
            let outcome = "refused".into();
            self.json(&Done { id, outcome, status: None, reason: Some(reason) })?;
        }
        note(format_args!("{word}: {}", escape(reason)));
        Ok(())
    }
}

/// How an act on one intent ended, once that was said.
enum Told {
    Done,
    /// Not as it was asked for.
    Otherwise,
}

pub fn replay(out: Out, outbox: &Outbox, args: &ReplayArgs) -> Result<()> {
    let actor = args.by.actor();
    if args.ids.is_empty() {
        return replay_many(out, outbox, args, &actor);
    }
    let outcome = if args.dry_run { "would be replayed" } else { "replayed" };
    each(out, &args.ids, |id| {
        if args.dry_run {
            may_replay(outbox, id)?;
        } else {
            outbox.replay(id, &actor)?;
        }
        Ok((Told::Done, out.done(id, outcome)))
    })
}

pub fn resolve(out: Out, outbox: &Outbox, args: &ResolveArgs) -> Result<()> {
    if args.downstream_id.is_some() && args.ids.len() > 1 {
        return Err(Failure::usage(
            "--downstream-id: it is the id of one intent's effect: name one",
        ));
    }
    let resolution = if args.finding.applied {
        let downstream_id = args.downstream_id.clone();
        Resolution::Applied { downstream_id }
    } else if args.finding.not_applied {
        Resolution::NotApplied
    } else {
        Resolution::Dead
    };
    let actor = args.by.actor();
    let resolved = each(out, &args.ids, |id| {
        let status = outbox.resolve(id, &resolution, &actor)?;
        Ok((Told::Done, out.resolved(id, status)))
    });
    resolved.map_err(|failure| match failure.text.strip_prefix("downstream_id: ") {
        Some(reason) => Failure::usage(format!("--downstream-id: {reason}")),
        None => failure,
    })
}

pub fn skip(out: Out, outbox: &Outbox, args: &IntentsArgs) -> Result<()> {
    let actor = args.by.actor();
    each(out, &args.ids, |id| {
        outbox.transact(|tx| outbox.skip(tx, id, &actor))?;
        Ok((Told::Done, out.done(id, "skipped")))
    })
}

pub fn cancel(out: Out, outbox: &Outbox, args: &IntentsArgs) -> Result<()> {
    let actor = args.by.actor();
    each(out, &args.ids, |id| {
        let status = outbox.transact(|tx| outbox.request_cancel(tx, id, &actor))?;
        Ok(match status {
            Status::Cancelled => (Told::Done, out.done(id, "cancelled")),
            status => (Told::Otherwise, out.too_late(id, status)),
        })
    })
}

/// Whether an intent would be replayed now.
pub fn may_replay(outbox: &Outbox, id: i64) -> sqlite_outbox::Result<()> {
    let filter = Filter::default().ids([id]);
    match outbox.replay_all(&filter, "cli", true)?.pop() {
        Some((_, verdict)) => verdict,
        None => outbox.replay(id, "cli"),
    }
}

/// Acts on each id by itself: one that is refused keeps no other from its turn.
fn each(
    out: Out,
    ids: &[i64],
    act: impl Fn(i64) -> sqlite_outbox::Result<(Told, Result<()>)>,
) -> Result<()> {
    let mut is_all_done = true;
    // Whoever reads may have gone away; what was asked for is done all the same.
    let mut said = Ok(());
    for &id in ids {
        let (told, line) = match act(id) {
            Ok(told) => told,
            Err(error) if is_of_this_intent(error.kind()) => {
                (Told::Otherwise, out.refused("error", id, &error.to_string()))
            }
            Err(error) => return Err(error.into()),
        };
        is_all_done &= matches!(told, Told::Done);
        said = said.and(line);
    }
    if is_all_done { said } else { Err(Failure::quiet(REFUSED)) }
}

fn replay_many(out: Out, outbox: &Outbox, args: &ReplayArgs, actor: &Actor) -> Result<()> {
    let mut filter = list::filter(&args.filter);
    if filter == Filter::default() && !args.all {
        return Err(Failure::usage("name intents by id or by a filter, or say --all"));
    }
    filter.status = filter.status.or(Some(Status::Dead));
    filter.limit = args.limit;
    let plan = outbox.replay_all(&filter, actor, true)?;
    let replayable = plan.iter().filter(|(_, done)| done.is_ok()).count();
    // Whoever reads may have gone away; what was asked for is done all the same.
    let said = out.say(format_args!(
        "{} can be replayed, {} refused",
        count(replayable, "intent"),
        plan.len() - replayable
    ));
    let (outcome, matched) = if args.dry_run {
        ("would be replayed", plan)
    } else {
        ("replayed", outbox.replay_all(&filter, actor, false)?)
    };
    said?;
    matched.iter().try_for_each(|(id, done)| match done {
        Ok(()) => out.done(*id, outcome),
        Err(why) => out.refused("refused", *id, &why.to_string()),
    })
}
