//! Lookups: asking a provider whether a request was applied.

use http::header::{self, HeaderValue};
use http::{Method, Request};
use ureq::tls::TlsConfig;

use super::exchange::{self, Prepared};
use super::request::placeholder;
use super::resolve::Trust;
use super::{Http, renamed};
use crate::core::endpoint::{check_template, expand, origin};
use crate::core::lookup::{Post, Question, classify_lookup};
use crate::core::predicate::check_pointer;
use crate::core::template::{self, Form, fill};
use crate::core::{Failure, Finding, Outcome, Predicate};
use crate::error::{Error, Result};
use crate::handler::Delivery;

/// Without one of these every intent would be answered alike.
const NAMES_IT: [&str; 4] = ["{idempotency_key}", "{key_hash}", "{entity_id}", "{downstream_id}"];

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

impl Http {
    /// Sets where to ask, with GET, what became of an intent that may have been applied. These are
    /// replaced in its path or query, percent-encoded: `{idempotency_key}`, the key as sent;
    /// `{key_hash}`, its SHA-256 in hex; `{entity_id}`, `{tenant_id}` and `{ordering_key}`;
    /// `{created_at}`, when it was enqueued, in UTC milliseconds; and `{downstream_id}`, which is
    /// known where it was [bound up front](crate::Outbox::bind). The lookup does not tell where
    /// one of them is empty. The configured headers are sent along: this URL is configuration too.
    ///
    /// A 2xx answer that names the provider's id means that it was applied, and **404 that it was
    /// not**, so that it is sent again: a URL that answers 404 for another reason, or a record
    /// that lags behind by more than the [lookup delay](crate::Operation::lookup_delay), would
    /// double the effect. [`reconcile_list`](Self::reconcile_list) and
    /// [`reconcile_not_applied_when`](Self::reconcile_not_applied_when) read other answers; every
    /// answer besides does not tell.
    ///
    /// Must be an `https` or `http` URL of at most 2048 bytes, without user name and fragment, in
    /// which the key, its hash, the entity or the provider's id stands.
    pub fn reconcile_by_get(self, url: &str) -> Self {
        self.set(|http| http.set_question(url, None))
    }

    /// Asks as [`reconcile_by_get`](Self::reconcile_by_get) does, but with POST and this body, for
    /// services that are searched so. The question must change nothing there. The placeholders may
    /// stand in the body too, and it is enough that one of them says there which intent is meant.
    ///
    /// The content type is `application/json`, of a text that is JSON, or
    /// `application/x-www-form-urlencoded`. Values are escaped for it, and for it alone: in the
    /// text of a query inside the JSON they would be part of the query, so take its variables.
    pub fn reconcile_by_post(self, url: &str, content_type: &str, body: &str) -> Self {
        self.set(|http| {
            let form = match content_type {
                JSON => Form::Json,
                FORM => Form::Url,
                _ => {
                    let why = format!("must be {JSON} or {FORM}");
                    return Err(Error::invalid("reconcile.content_type", why));
                }
            };
            let checked = match form {
                Form::Json => template::check_json(body),
                _ if body.bytes().all(|byte| byte.is_ascii_graphic()) => {
                    template::check_braces(body, template::LOOKUP)
                }
                _ => Err("has a space or a non-ASCII character; percent-encode it".to_owned()),
            };
            checked.map_err(|reason| Error::invalid("reconcile.body", reason))?;
            http.set_question(url, Some(Post { form, body: body.to_owned() }))
        })
    }

    fn set_question(&mut self, url: &str, post: Option<Post>) -> Result<()> {
        let question = Question { url: url.to_owned(), post };
        let field = question.field();
        check_template(url, template::LOOKUP).map_err(|error| renamed(&error, field))?;
        let body = question.post.as_ref().map_or("", |post| post.body.as_str());
        check_names_it(field, &[url, body])?;
        self.question = Some(question);
        Ok(())
    }

    /// Sets where the provider's id stands in the answer to a lookup, as a JSON pointer. Defaults
    /// to `/id`.
    pub fn reconcile_id(self, pointer: &str) -> Self {
        self.set(|http| {
            http.lookup_rules.downstream_id = check_pointer("reconcile.downstream_id", pointer)?;
            Ok(())
        })
    }

    /// Takes what a lookup finds for applied only if it passes this test; its id may be missing
    /// then. Otherwise the lookup does not tell.
    pub fn reconcile_when(self, predicate: Predicate) -> Self {
        self.set(|http| {
            http.lookup_rules.when = Some(predicate.checked("reconcile.when")?);
            Ok(())
        })
    }

    /// Takes what a lookup finds for applied only if the text at this JSON pointer is this one, in
    /// which placeholders are filled in as they are, such as `{idempotency_key}`; its id may be
    /// missing then. Otherwise the lookup does not tell: a search may find what is like it.
    pub fn reconcile_match(self, pointer: &str, text: &str) -> Self {
        self.set(|http| {
            let pointer = check_pointer("reconcile.match", pointer)?;
            check_names_it("reconcile.match", &[text])?;
            http.lookup_match = Some((pointer, text.to_owned()));
            Ok(())
        })
    }

    /// Reads the answer as a list, which stands at this JSON pointer. Its only element is what was
    /// found: the other pointers, except that of
    /// [`reconcile_not_applied_when`](Self::reconcile_not_applied_when), are taken within it.
    /// **An empty list means that the intent was not applied**, and that it is sent again. A list
    /// of several, a part of one (202, 206, 207, or a body that does not end) and a list beside
    /// which there is an error, a sign of a further page or another count do not tell.
    pub fn reconcile_list(self, pointer: &str) -> Self {
        self.set(|http| {
            http.lookup_rules.list = Some(check_pointer("reconcile.list", pointer)?);
            Ok(())
        })
    }

    /// Takes a lookup's complete 2xx answer that passes this test as word that the intent was
    /// **not applied**, so that it is sent again. The value must be there, if only as null. Where
    /// it is null, false, zero or empty, an error, a sign of a further page or another count beside
    /// it make the lookup not tell, as for [`reconcile_list`](Self::reconcile_list).
    pub fn reconcile_not_applied_when(self, predicate: Predicate) -> Self {
        self.set(|http| {
            let predicate = predicate.checked("reconcile.not_applied_when")?;
            http.lookup_rules.not_applied_when = Some(predicate);
            Ok(())
        })
    }

    /// Asks once.
    pub(super) fn look_up(&self, delivery: &Delivery) -> Finding {
        self.ask_record(delivery).unwrap_or_else(Finding::Inconclusive)
    }

    fn ask_record(&self, delivery: &Delivery) -> Result<Finding, Failure> {
        let failed = |reason: String| Failure::new("lookup", reason);
        if let Some(fault) = &self.fault {
            return Err(failed(fault.clone()));
        }
        let Some(question) = &self.question else {
            return Err(failed("nothing is configured to look it up".into()));
        };
        let filled = |field: &str, text: &str, form| {
            fill(text, form, |name| placeholder(delivery, name))
                .map_err(|reason| failed(format!("{field}: {reason}")))
        };
        let mut rules = self.lookup_rules.clone();
        if let Some((pointer, text)) = &self.lookup_match {
            let text = filled("reconcile.match", text, Form::Plain)?;
            rules.matching = Some(Predicate::equals(pointer, text));
        }
        let body = match &question.post {
            Some(post) => Some(filled("reconcile.body", &post.body, post.form)?),
            None => None,
        };
        let mut prepared = self
            .prepare_lookup(question, delivery)
            .map_err(|error| failed(renamed(&error, question.field()).to_string()))?;
        prepared.body = body.as_deref().map(str::as_bytes);
        let agent = self.lookup_agent.get_or_init(|| {
            let trust = Trust { endpoint: Some(prepared.origin.clone()), ..Trust::default() };
            exchange::agent(&self.timeouts, trust, TlsConfig::default())
        });
        Ok(match exchange::exchange(agent, prepared, &self.timeouts) {
            Ok(answer) => {
                let mut finding = classify_lookup(&answer, &rules, delivery.lease.now());
                match &mut finding {
                    Finding::Applied(receipt) => self.hide(receipt, &answer, delivery),
                    finding => self.keep(finding.failure_mut(), &answer, delivery),
                }
                finding
            }
            Err(Outcome::NotSent(failure)) => Finding::NotAsked(failure),
            Err(outcome) => {
                let unknown = || Failure::new("lookup", "the lookup failed");
                Finding::Inconclusive(outcome.failure().cloned().unwrap_or_else(unknown))
            }
        })
    }

    /// The request without its body.
    fn prepare_lookup(&self, question: &Question, delivery: &Delivery) -> Result<Prepared<'_>> {
        let uri = expand(&question.url, |name| placeholder(delivery, name))?;
        let mut request = Request::new(());
        let headers = request.headers_mut();
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        if let Some(post) = &question.post {
            let content_type = if post.form == Form::Json { JSON } else { FORM };
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // A kept connection may be closed just as the question goes out, and lookups are few.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let origin = origin(&uri);
        *request.method_mut() = if question.post.is_some() { Method::POST } else { Method::GET };
        *request.uri_mut() = uri;
        let answer_max = self.answer_max;
        Ok(Prepared { request, body: None, origin, answer_max, own_connection: false })
    }
}

fn check_names_it(field: &str, templates: &[&str]) -> Result<()> {
    if templates.iter().any(|text| NAMES_IT.iter().any(|name| text.contains(name))) {
        return Ok(());
    }
    let names = NAMES_IT.join(" or ");
    let why = format!("must say which intent is meant: put {names} into it");
    Err(Error::invalid(field, why))
}
