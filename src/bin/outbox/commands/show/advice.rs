//! The commands with which a person can move on an intent that stands still.

use sqlite_outbox::{
    Clock, Entry, ErrorKind, Event, EventKind, OnDead, Outbox, Status, StoredContract, SystemClock,
};

use crate::commands::verbs;
use crate::ui::failure::Result;
use crate::ui::output::{quoted, time};

/// An intent, its trail and its contract, by which advice is given.
pub struct Case<'a> {
    pub outbox: &'a Outbox,
    pub entry: &'a Entry,
    pub events: &'a [Event],
    pub contract: Option<&'a StoredContract>,
}

impl Case<'_> {
    /// A sentence, then a line for each command that is accepted now; `None` if the intent goes on
    /// automatically.
    pub fn next_step(&self) -> Result<Option<String>> {
        let mut lines = match self.entry.status {
            Status::Pending => {
                let resume = format!("resume {}", quoted(&self.entry.operation));
                let advice =
                    || format!("its operation is paused: {} lets it go on", self.command(&resume));
                return Ok(self.is_paused().then(advice));
            }
            Status::Dead => self.dead()?,
            Status::Unknown | Status::NeedsReview => self.in_doubt()?,
            _ => return Ok(None),
        };
        if self.blocks() {
            let skip = self.on_intent("skip", "");
            lines.push(format!("{skip} lets later intents of its ordering key go on without it"));
        }
        Ok(Some(lines.join("\n  ")))
    }

    fn dead(&self) -> Result<Vec<String>> {
        let cancel = format!("{} withdraws it", self.on_intent("cancel", ""));
        let class = self.events.iter().rev().find_map(|event| event.error_class.as_deref());
        if class == Some("expired") {
            let version = "it expired: enqueue the next version if it is still wanted";
            return Ok(vec![version.into(), cancel]);
        }
        if self.may_replay()? {
            let replay = self.on_intent("replay", "");
            let replay = format!("{replay} sends it again under its key, once the cause is mended");
            return Ok(vec![replay, cancel]);
        }
        let not_applied = self.on_intent("resolve", " --not-applied");
        Ok(vec![
            "it was given up, and may have been applied".into(),
            self.if_applied(),
            format!("{not_applied} if it definitely was not"),
            cancel,
        ])
    }

    fn in_doubt(&self) -> Result<Vec<String>> {
        let is_unwanted = self.is_unwanted();
        let not_applied = self.on_intent("resolve", " --not-applied");
        let then = if is_unwanted {
            "withdrawn, because its cancellation was requested"
        } else {
            "sent again under its key"
        };
        let mut lines = vec![
            self.doubt(),
            self.if_applied(),
            format!("{not_applied} if it definitely was not: it is {then}"),
            format!("{} gives it up", self.on_intent("resolve", " --dead")),
        ];
        if self.entry.status == Status::NeedsReview && !is_unwanted && self.may_replay()? {
            lines.push(format!(
                "{} sends it again under its key, which the downstream still remembers",
                self.on_intent("replay", "")
            ));
        }
        Ok(lines)
    }

    /// The first line about an intent that may have been applied.
    fn doubt(&self) -> String {
        let sent = quoted(&self.entry.wire_key);
        let ask = format!("ask the provider about the key that was sent, {sent}, or the entity");
        if self.entry.status == Status::NeedsReview {
            return format!("a person must find out what became of it: {ask}");
        }
        let at = self.entry.next_lookup_at.unwrap_or_default();
        let lookup = if self.is_paused() {
            "its operation is paused, so that no relay looks it up".into()
        } else if self.entry.locked_by.is_some() {
            "a lookup is on its way".into()
        } else if at > SystemClock.now() {
            format!("the next lookup is at {}", time(at))
        } else {
            format!("a lookup is due since {}, and no relay has made it yet", time(at))
        };
        format!(
            "it may have been applied, and nothing is sent until that is known: {lookup}; if you \
             cannot wait, {ask}"
        )
    }

    fn if_applied(&self) -> String {
        let applied = self.on_intent("resolve", " --applied --downstream-id …");
        format!("{applied} if it was applied")
    }

    fn on_intent(&self, verb: &str, flags: &str) -> String {
        self.command(&format!("{verb} {}{flags}", self.entry.id))
    }

    fn command(&self, words: &str) -> String {
        format!("`outbox --db {} {words}`", quoted(&self.outbox.path().display().to_string()))
    }

    fn is_paused(&self) -> bool {
        self.contract.is_some_and(|contract| contract.paused.is_some())
    }

    /// Whether cancellation was requested, and no replay or resolution has come since.
    fn is_unwanted(&self) -> bool {
        let is_newer = |e: &&Event| !matches!(e.kind, EventKind::Replayed | EventKind::Resolved);
        let mut since = self.events.iter().rev().take_while(is_newer);
        since.any(|event| event.kind == EventKind::CancelRequested)
    }

    fn may_replay(&self) -> Result<bool> {
        match verbs::may_replay(self.outbox, self.entry.id) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Refused => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether later intents of the same ordering key wait for this one.
    fn blocks(&self) -> bool {
        let goes_on = self.entry.status == Status::Dead
            && self.contract.is_some_and(|contract| contract.on_dead == OnDead::Continue);
        let mut since = self.events.iter().rev().take_while(|e| e.status != Status::Pending);
        let is_skipped = since.any(|event| event.kind == EventKind::Skipped);
        self.entry.ordering_key.is_some() && !goes_on && !is_skipped
    }
}
