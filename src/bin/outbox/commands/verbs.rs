//! `outbox replay`, `resolve`, `skip` and `cancel`: the actions of a person on intents.

use serde::Serialize;
use sqlite_outbox::{Actor, Filter, Outbox, Resolution, Status};

use crate::args::{IntentsArgs, ReplayArgs, ResolveArgs};
use crate::commands::list;
use crate::ui::failure::{Failure, REFUSED, Result, is_of_this_intent};
use crate::ui::output::{Out, count, escape, note};

/// The outcome for one intent.
#[derive(Serialize)]
struct Done<'a> {
    id: i64,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> Done<'a> {
    fn new(id: i64, outcome: &'a str) -> Self {
        Self { id, outcome, status: None, reason: None }
    }

    fn print(&self, out: Out) -> Result<()> {
        if out.is_json() {
            return out.json(self);
        }
        let Self { id, outcome, .. } = self;
        let now = self.status.map(|status| format!(", it is {status}")).unwrap_or_default();
        out.line(format_args!("intent {id}: {}{now}", outcome.replace('_', " ")))
    }

    /// An intent that was not treated as asked: the text for people goes to standard error.
    fn print_as_note(&self, out: Out, text: &str) -> Result<()> {
        if out.is_json() {
            out.json(self)?;
        }
        note(text);
        Ok(())
    }

    /// `word` is `error` for an intent that was asked for, `refused` for one that only matched.
    fn print_refusal(out: Out, word: &str, id: i64, reason: &str) -> Result<()> {
        let done = Done { reason: Some(reason), ..Done::new(id, "refused") };
        done.print_as_note(out, &format!("{word}: {}", escape(reason)))
    }
}

/// Whether an intent was treated as asked.
enum Told {
    Done,
    Otherwise,
}

pub fn replay(out: Out, outbox: &Outbox, args: &ReplayArgs) -> Result<()> {
    let actor = args.by.actor();
    if args.ids.is_empty() {
        return replay_many(out, outbox, args, &actor);
    }
    let outcome = if args.dry_run { "would_be_replayed" } else { "replayed" };
    each(out, &args.ids, |id| {
        if args.dry_run {
            may_replay(outbox, id)?;
        } else {
            outbox.replay(id, &actor)?;
        }
        Ok((Told::Done, Done::new(id, outcome).print(out)))
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
        let done = Done { status: Some(status), ..Done::new(id, "resolved") };
        Ok((Told::Done, done.print(out)))
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
        Ok((Told::Done, Done::new(id, "skipped").print(out)))
    })
}

pub fn cancel(out: Out, outbox: &Outbox, args: &IntentsArgs) -> Result<()> {
    let actor = args.by.actor();
    each(out, &args.ids, |id| {
        let status = outbox.transact(|tx| outbox.request_cancel(tx, id, &actor))?;
        Ok(match status {
            Status::Cancelled => (Told::Done, Done::new(id, "cancelled").print(out)),
            status => (Told::Otherwise, too_late(out, id, status)),
        })
    })
}

/// Whether an intent would be replayed now; the error says why not.
pub fn may_replay(outbox: &Outbox, id: i64) -> sqlite_outbox::Result<()> {
    let filter = Filter::default().ids([id]);
    match outbox.replay_all(&filter, "cli", true)?.pop() {
        Some((_, verdict)) => verdict,
        // There is no such intent, which `replay` says in its own words.
        None => outbox.replay(id, "cli"),
    }
}

/// The intent was not withdrawn, but the wish to cancel it is on record.
fn too_late(out: Out, id: i64, status: Status) -> Result<()> {
    let why = "too late to withdraw: it is not tried again";
    let done = Done { status: Some(status), reason: Some(why), ..Done::new(id, "too_late") };
    done.print_as_note(out, &format!("intent {id} is {status}: {why}"))
}

/// Acts on each id separately: a refusal does not keep the others from their turn.
fn each(
    out: Out,
    ids: &[i64],
    act: impl Fn(i64) -> sqlite_outbox::Result<(Told, Result<()>)>,
) -> Result<()> {
    let mut is_all_done = true;
    // A closed standard output does not keep the rest from being done.
    let mut said = Ok(());
    for &id in ids {
        let (told, line) = match act(id) {
            Ok(told) => told,
            Err(error) if is_of_this_intent(error.kind()) => {
                (Told::Otherwise, Done::print_refusal(out, "error", id, &error.to_string()))
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
    // A closed standard output does not keep the rest from being done.
    let said = out.say(format_args!(
        "{} can be replayed, {} refused",
        count(replayable, "intent"),
        plan.len() - replayable
    ));
    let (outcome, matched) = if args.dry_run {
        ("would_be_replayed", plan)
    } else {
        ("replayed", outbox.replay_all(&filter, actor, false)?)
    };
    said?;
    matched.iter().try_for_each(|(id, done)| match done {
        Ok(()) => Done::new(*id, outcome).print(out),
        Err(why) => Done::print_refusal(out, "refused", *id, &why.to_string()),
    })
}
