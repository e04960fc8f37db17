//! The meaning of an answer where the operation says more about it than the table of HTTP does.

use std::collections::BTreeMap;

use super::body::{Answer, BodyEnd, header, read_json};
use super::classify::{classify, failure, message, receipt};
use super::contract::Downstream;
use super::outcome::{Failure, Outcome};
use super::predicate::Predicate;
use super::word::words;
use crate::error::{Error, Result};

words! {
    /// The meaning that an operation gives to a status or to a body.
    #[non_exhaustive]
    pub enum Meaning, "on_status" {
        /// The effect is there.
        Applied = "applied",
        /// The request was refused for good, and not applied.
        Rejected = "rejected",
        /// The request was not applied, and may be repeated.
        Transient = "transient",
        /// The request was not applied, and the downstream is to be left alone for a while.
        Limited = "limited",
        /// The credentials were refused, and the request was not applied.
        Unauthorized = "unauthorized",
        /// The request did not get through to the service: for 521, 523, 525, 526 and 530 only.
        NotReached = "not_reached",
        /// The request may have been applied, as after a timeout.
        InDoubt = "in_doubt",
        /// A person must look.
        NeedsReview = "needs_review",
    }
}

impl Meaning {
    /// Whether a request is sent again by itself, also to a downstream that does not deduplicate.
    fn repeats(self) -> bool {
        matches!(self, Self::Transient | Self::Limited | Self::Unauthorized | Self::NotReached)
    }
}

/// How the answers of an operation's downstream are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// A body that passes means success; a 2xx whose body does not is none.
    pub success_when: Option<Predicate>,
    pub rejected_when: Option<Predicate>,
    pub transient_when: Option<Predicate>,
    pub limited_when: Option<Predicate>,
    /// The body of a 5xx that passes means that nothing was applied.
    pub not_applied_when: Option<Predicate>,
    pub on_status: BTreeMap<u16, Meaning>,
    /// JSON pointer to the provider's id.
    pub downstream_id: String,
}

/// The facts about a request besides its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub downstream: Downstream,
    /// No earlier attempt of this budget may have reached the downstream.
    pub first: bool,
    /// The rules of repetition in the stored contract.
    pub stored: &'a [String],
    /// For dates in `Retry-After`.
    pub now: i64,
}

/// Only of these does a proxy say by its own word that the service was not reached. It says 520,
/// 522 and 524 as well after the request went through.
const NOT_REACHED: [u16; 5] = [521, 523, 525, 526, 530];

impl Rules {
    /// Gives a status a meaning, if it can have it.
    pub fn set_status(&mut self, status: u16, meaning: Meaning) -> Result<()> {
        let refuse = |why: &str| Err(Error::invalid("on_status", format!("{status} {why}")));
        match (status, meaning) {
            (200..=299, Meaning::InDoubt | Meaning::NeedsReview) => {}
            (200..=299, _) => {
                return refuse("is a success; success_when and rejected_when read its body");
            }
            (300..=599, Meaning::NotReached) if !NOT_REACHED.contains(&status) => {
                return refuse("is said by proxies that may have reached the service as well");
            }
            (300..=599, _) => {}
            _ => return refuse("is no final status of HTTP"),
        }
        self.on_status.insert(status, meaning);
        Ok(())
    }

    /// The rules by which an answer that leaves open whether the request was applied lets it be
    /// repeated, as texts. Only those in the stored contract are obeyed.
    pub fn repeat_rules(&self) -> Vec<String> {
        let maps = self
            .on_status
            .iter()
            .filter(|(status, meaning)| meaning.repeats() && !is_refusal(**status));
        let maps = maps.map(|(status, meaning)| status_rule(*status, *meaning));
        let tests = self.tests().filter(|(_, meaning, _)| meaning.repeats());
        maps.chain(tests.map(|(name, _, test)| test_rule(name, test))).collect()
    }

    /// The tests of a body, each with its name and with the meaning of a body that passes.
    fn tests(&self) -> impl Iterator<Item = (&'static str, Meaning, &Predicate)> {
        let tests = [
            ("success_when", Meaning::Applied, &self.success_when),
            ("rejected_when", Meaning::Rejected, &self.rejected_when),
            ("transient_when", Meaning::Transient, &self.transient_when),
            ("limited_when", Meaning::Limited, &self.limited_when),
            ("not_applied_when", Meaning::Transient, &self.not_applied_when),
        ];
        tests.into_iter().filter_map(|(name, meaning, test)| Some((name, meaning, test.as_ref()?)))
    }

    /// The tests that this answer passes.
    fn passed(&self, answer: &Answer) -> Vec<(&'static str, Meaning, &Predicate)> {
        if self.tests().next().is_none() {
            return Vec::new();
        }
        let Ok(body) = read_json(answer) else { return Vec::new() };
        let applies = |name: &str, test: &Predicate| match (name, answer.status) {
            // Of a failure, a value that is missing or merely there proves no success.
            ("success_when", status) => (200..=299).contains(&status) || test.names_values(),
            ("not_applied_when", status) => status >= 500,
            _ => true,
        };
        self.tests().filter(|(name, _, test)| applies(name, test) && test.holds(&body)).collect()
    }
}

fn status_rule(status: u16, meaning: Meaning) -> String {
    format!("on_status {status} = {meaning}")
}

fn test_rule(name: &str, test: &Predicate) -> String {
    format!("{name} {test}")
}

/// Reads an answer: by its body, else by what the operation says of its status, else by its headers
/// and the table of HTTP.
pub(crate) fn judge(answer: &Answer, rules: &Rules, asked: &Asked<'_>) -> Outcome {
    let passed = rules.passed(answer);
    if let Some(&(name, meaning, test)) = passed.first() {
        if passed.iter().any(|(_, other, _)| *other != meaning) {
            let names: Vec<&str> = passed.iter().map(|(name, ..)| *name).collect();
            let text = format!("the body passes {} at once", names.join(" and "));
            return Outcome::NeedsReview(failure(answer, "contradictory", &text, asked.now));
        }
        let is_stored = asked.stored.contains(&test_rule(name, test));
        let word = Word { meaning, by: name, is_believed: is_stored || !is_open(answer) };
        return said(answer, rules, word, asked.now);
    }
    if let Some(&meaning) = rules.on_status.get(&answer.status) {
        let is_stored = asked.stored.contains(&status_rule(answer.status, meaning));
        let is_believed = is_stored || is_refusal(answer.status);
        let word = Word { meaning, by: "on_status", is_believed };
        return said(answer, rules, word, asked.now);
    }
    let outcome = match answer.status {
        200..=299 => success(answer, rules),
        _ => classify(answer, asked.downstream, asked.first, asked.now),
    };
    heed_advice(answer, outcome)
}

/// Whether an answer leaves open that the request was applied, whatever its body says.
fn is_open(answer: &Answer) -> bool {
    let is_whole = answer.body_end == BodyEnd::Complete;
    !(is_refusal(answer.status) || is_whole && matches!(answer.status, 200..=299))
}

fn is_refusal(status: u16) -> bool {
    matches!(status, 400..=499)
}

/// The word of an operation's rule about an answer.
#[derive(Clone, Copy)]
struct Word {
    meaning: Meaning,
    /// The setting with the rule.
    by: &'static str,
    /// Whether the request may be repeated where the rule says so.
    is_believed: bool,
}

/// The outcome that the operation's rule says an answer is.
fn said(answer: &Answer, rules: &Rules, word: Word, now: i64) -> Outcome {
    let Word { meaning, by, is_believed } = word;
    let fail = |class| failure(answer, class, &format!("so says {by}"), now);
    if meaning.repeats() && !is_believed {
        let text = format!("may have been applied; the stored contract has no such {by}");
        return Outcome::MaybeSent(failure(answer, "ambiguous", &text, now));
    }
    match meaning {
        Meaning::Applied => unreadable(answer, rules)
            .unwrap_or_else(|| Outcome::Succeeded(receipt(answer, &rules.downstream_id))),
        Meaning::Rejected => Outcome::Rejected(fail("permanent")),
        Meaning::Transient => Outcome::Transient(fail("transient")),
        Meaning::Limited => Outcome::Limited(fail("limited")),
        Meaning::Unauthorized => Outcome::Unauthorized(fail("auth")),
        Meaning::NotReached => Outcome::Transient(fail("not_reached")),
        // A request that is being worked on under this key is repeated soon.
        Meaning::InDoubt if answer.status == 409 => Outcome::MaybeSent(fail("conflict")),
        Meaning::InDoubt => Outcome::MaybeSent(fail("ambiguous")),
        Meaning::NeedsReview => Outcome::NeedsReview(fail("on_status")),
    }
}

fn success(answer: &Answer, rules: &Rules) -> Outcome {
    if let Some(outcome) = unreadable(answer, rules) {
        return outcome;
    }
    if rules.success_when.is_some() {
        let text = "the body does not say success";
        return Outcome::NeedsReview(no_success(answer, "success_when", text));
    }
    Outcome::Succeeded(receipt(answer, &rules.downstream_id))
}

/// The outcome of an answer that is no success because its body, which may say something else,
/// cannot be read.
fn unreadable(answer: &Answer, rules: &Rules) -> Option<Outcome> {
    rules.tests().next()?;
    let why = read_json(answer).err()?;
    Some(if answer.body_end == BodyEnd::Complete {
        Outcome::NeedsReview(no_success(answer, "success_when", why))
    } else {
        let text = "the body that says whether it succeeded was not read to its end";
        Outcome::MaybeSent(no_success(answer, "body_unreadable", text))
    })
}

/// The failure that a 2xx is. No wait is asked for with one.
fn no_success(answer: &Answer, class: &'static str, meaning: &str) -> Failure {
    Failure::new(class, message(answer.status, meaning)).status(answer.status)
}

/// Heeds what a service says about trying again, as far as that is safe: it makes no failure that
/// may have been applied one that was not.
fn heed_advice(answer: &Answer, outcome: Outcome) -> Outcome {
    let advice = ["stripe-should-retry", "x-should-retry"]
        .into_iter()
        .find_map(|name| header(answer, name)?.trim_ascii().to_ascii_lowercase().parse().ok());
    let reworded = |failure: Failure, text: &str| {
        let message = format!("{}; the service says {text}", failure.message);
        Failure { message, ..failure }
    };
    match (advice, outcome) {
        (Some(true), Outcome::Rejected(f))
            if is_refusal(answer.status) && f.class == "permanent" =>
        {
            let failure = Failure { class: "transient".into(), ..f };
            Outcome::Transient(reworded(failure, "that it may be repeated"))
        }
        (Some(false), Outcome::Transient(f)) if f.class == "transient" => {
            let failure = Failure { class: "permanent".into(), ..f };
            Outcome::Rejected(reworded(failure, "not to repeat it"))
        }
        (Some(false), Outcome::MaybeSent(f)) => {
            Outcome::NeedsReview(reworded(f, "not to repeat it"))
        }
        (_, outcome) => outcome,
    }
}

#[cfg(test)]
mod tests;
