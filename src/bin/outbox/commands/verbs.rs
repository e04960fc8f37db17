//! `outbox replay`, `retry`, `resolve`, `skip` and `cancel`: the actions of a person on intents.

use serde::Serialize;
use sqlite_outbox::{Actor, Filter, Outbox, Resolution, Status};

use crate::args::{CancelArgs, IntentsArgs, ReplayArgs, ResolveArgs};
use crate::commands::list;
use crate::ui::failure::{Failure, REFUSED, Result, is_of_this_intent};
use crate::ui::output::{Out, count, escape, note};

/// The outcome for one intent.
#[derive(Serialize)]
struct Done {
    id: i64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Done {
    fn new(id: i64, outcome: &'static str) -> Self {
        Self { id, outcome, status: None, reason: None }
    }

    fn refused(id: i64, reason: &sqlite_outbox::Error) -> Self {
        Self { reason: Some(reason.to_string()), ..Self::new(id, "refused") }
    }

    /// Prints the outcome. For an intent that was not treated as asked, the text for people goes to
    /// standard error; a refusal begins with `word` there.
    fn print(&self, out: Out, word: &str) -> Result<()> {
        if out.is_json {
            out.json(self)?;
        }
        let id = self.id;
        match (&self.reason, self.status) {
            (Some(reason), Some(status)) => note(format_args!("intent {id} is {status}: {reason}")),
            (Some(reason), None) => note(format_args!("{word}: {}", escape(reason))),
            (None, _) if out.is_json => {}
            (None, status) => {
                let now = status.map(|status| format!(", it is {status}")).unwrap_or_default();
                let outcome = self.outcome.replace('_', " ");
                out.line(format_args!("intent {id}: {outcome}{now}"))?;
            }
        }
        Ok(())
    }
}

pub fn replay(out: Out, outbox: &Outbox, args: &ReplayArgs) -> Result<()> {
    let verb = Again {
        done: "replayed",
        would_be: "would_be_replayed",
        status: Status::Dead,
        one: &|id, actor| outbox.replay(id, actor),
        all: &|filter, actor, dry_run| outbox.replay_all(filter, actor, dry_run),
    };
    verb.run(out, args)
}

pub fn retry(out: Out, outbox: &Outbox, args: &ReplayArgs) -> Result<()> {
    let verb = Again {
        done: "retried",
        would_be: "would_be_retried",
        status: Status::Pending,
        one: &|id, actor| outbox.retry(id, actor),
        all: &|filter, actor, dry_run| outbox.retry_all(filter, actor, dry_run),
    };
    verb.run(out, args)
}

pub fn resolve(out: Out, outbox: &Outbox, args: &ResolveArgs) -> Result<()> {
    if args.downstream_id.is_some() && args.intents.ids.len() > 1 {
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
    let actor = args.intents.by.actor();
    let resolved = each(out, &args.intents.ids, |id| {
        let status = outbox.resolve(id, &resolution, &actor)?;
        Ok(Done { status: Some(status), ..Done::new(id, "resolved") })
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
        Ok(Done::new(id, "skipped"))
    })
}

pub fn cancel(out: Out, outbox: &Outbox, args: &CancelArgs) -> Result<()> {
    let actor = args.by.actor();
    let done = |id, status| {
        if status == Status::Cancelled {
            return Done::new(id, "cancelled");
        }
        // The wish to cancel the intent is on record.
        let why = Some("too late to withdraw: it is not tried again".into());
        Done { status: Some(status), reason: why, ..Done::new(id, "too_late") }
    };
    if !args.ids.is_empty() {
        return each(out, &args.ids, |id| {
            outbox.transact(|tx| outbox.request_cancel(tx, id, &actor)).map(|now| done(id, now))
        });
    }
    let matched = outbox.cancel_all(&list::filter(&args.filter), actor)?;
    let mut is_all_done = true;
    for (id, status) in matched {
        let done = status.map_or_else(|why| Done::refused(id, &why), |status| done(id, status));
        is_all_done &= done.reason.is_none();
        done.print(out, "refused")?;
    }
    if is_all_done { Ok(()) } else { Err(Failure::quiet(REFUSED)) }
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

/// Acts on each id separately: a refusal does not keep the others from their turn.
fn each(out: Out, ids: &[i64], act: impl Fn(i64) -> sqlite_outbox::Result<Done>) -> Result<()> {
    let mut is_all_done = true;
    // A closed standard output does not keep the rest from being done.
    let mut said = Ok(());
    for &id in ids {
        let done = match act(id) {
            Err(error) if is_of_this_intent(error.kind()) => Done::refused(id, &error),
            done => done?,
        };
        is_all_done &= done.reason.is_none();
        said = said.and(done.print(out, "error"));
    }
    if is_all_done { said } else { Err(Failure::quiet(REFUSED)) }
}

/// A verb that sends intents again.
struct Again<'a> {
    done: &'static str,
    would_be: &'static str,
    /// Which are meant where the filter names no status.
    status: Status,
    one: &'a dyn Fn(i64, &Actor) -> sqlite_outbox::Result<()>,
    all: &'a dyn Fn(&Filter, &Actor, bool) -> sqlite_outbox::Result<Matched>,
}

type Matched = Vec<(i64, sqlite_outbox::Result<()>)>;

impl Again<'_> {
    fn run(&self, out: Out, args: &ReplayArgs) -> Result<()> {
        let actor = args.by.actor();
        if args.ids.is_empty() {
            return self.many(out, args, &actor);
        }
        each(out, &args.ids, |id| {
            if !args.dry_run {
                (self.one)(id, &actor)?;
                return Ok(Done::new(id, self.done));
            }
            let verdict = (self.all)(&Filter::default().ids([id]), &actor, true)?.pop();
            // There is no such intent, which the verb says in its own words.
            verdict.map_or_else(|| (self.one)(id, &actor), |(_, verdict)| verdict)?;
            Ok(Done::new(id, self.would_be))
        })
    }

    fn many(&self, out: Out, args: &ReplayArgs, actor: &Actor) -> Result<()> {
        let mut filter = list::filter(&args.filter);
        if filter == Filter::default() && !args.all {
            return Err(Failure::usage("name intents by id or by a filter, or say --all"));
        }
        filter.status = filter.status.or(Some(self.status));
        filter.limit = args.limit;
        let plan = (self.all)(&filter, actor, true)?;
        let allowed = plan.iter().filter(|(_, done)| done.is_ok()).count();
        let (can, refused) = (count(allowed, "intent"), plan.len() - allowed);
        let summary = format!("{can} can be {}, {refused} refused", self.done);
        // A closed standard output does not keep the rest from being done.
        let mut said = Ok(());
        if out.is_json {
            note(summary);
        } else {
            said = out.line(summary);
        }
        let (outcome, matched) = if args.dry_run {
            (self.would_be, plan)
        } else {
            (self.done, (self.all)(&filter, actor, false)?)
        };
        said?;
        matched.iter().try_for_each(|(id, done)| match done {
            Ok(()) => Done::new(*id, outcome).print(out, "refused"),
            Err(why) => Done::refused(*id, why).print(out, "refused"),
        })
    }
}
