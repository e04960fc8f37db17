//! The configuration of a relay, from `relay.toml` and the flags.

use std::time::Duration;

use sqlite_outbox::{
    Backoff, Downstream, ErrorKind, Handler as _, Http, Operation, Outbox, RelayBuilder,
    StoredContract, Timeouts,
};

use super::toml::{
    BackoffKind, BackoffTable, BindsWord, ConnectionWord, OperationTable, Per, Period,
    ReconcileTable, RelayTable, Source,
};
use crate::args::RelayArgs;
use crate::ui::failure::{Failure, Result};
use crate::ui::input::{given, set_given};

/// The time that a provider remembers a key, unless `key_window` says it.
const KEY_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// The operations and options that a relay is built from.
pub struct Plan {
    source: Option<Source>,
    relay: RelayTable,
    operations: Vec<(String, Operation)>,
    default: Option<Operation>,
}

impl Plan {
    /// Reads the configuration, or takes what the file knows, and lets the flags override it.
    pub fn new(outbox: &Outbox, args: &RelayArgs) -> Result<Self> {
        let mut plan = match &args.config {
            Some(path) => Self::configured(Source::read(path)?, args)?,
            None => Self::from_file(outbox, args)?,
        };
        if let (None, Some(downstream)) = (&plan.default, downstream_flag(args)?) {
            plan.default = Some(Operation::new(downstream, with_flags(Http::new(), args)?));
        }
        if plan.operations.is_empty() && plan.default.is_none() {
            return Err(match &plan.source {
                Some(source) => {
                    let fix = "add a table [operations.NAME], or [default] for all";
                    source.fail(&[], &format!("names no operation: {fix}"))
                }
                None => Failure::usage(
                    "there is no operation to send: give --config FILE, or --downstream \
                     deduplicates or unprotected",
                ),
            });
        }
        Ok(plan)
    }

    fn configured(source: Source, args: &RelayArgs) -> Result<Self> {
        let mut parsed = source.parse()?;
        if let (Some(default), Some(flag)) = (&mut parsed.default, downstream_flag(args)?) {
            flag.as_str().clone_into(&mut default.downstream);
            default.key_window = flag.window().map(Period);
        }
        let mut operations = Vec::new();
        for (name, table) in &parsed.operations {
            let place = Place { source: &source, path: vec!["operations", name] };
            operations.push((name.clone(), operation(&place, table, args)?));
        }
        let place = Place { source: &source, path: vec!["default"] };
        let default =
            parsed.default.as_ref().map(|table| operation(&place, table, args)).transpose()?;
        Ok(Self { relay: parsed.relay, operations, default, source: Some(source) })
    }

    /// The operations that the file knows. With `--downstream` all fall under the default instead;
    /// a stored contract that is stricter still holds.
    fn from_file(outbox: &Outbox, args: &RelayArgs) -> Result<Self> {
        let mut operations = Vec::new();
        if args.downstream.is_none() {
            for stored in outbox.operations()? {
                let http = with_flags(Http::new(), args)?;
                operations.push((stored.operation.clone(), as_stored(&stored, http)));
            }
        }
        Ok(Self { source: None, relay: RelayTable::default(), operations, default: None })
    }

    /// The builder with everything set; a flag overrides the configuration.
    pub fn apply(&self, mut builder: RelayBuilder, args: &RelayArgs) -> RelayBuilder {
        let table = &self.relay;
        set_given!(builder, table, [workers, batch], |&number| (number));
        set_given!(builder, table, [lease, shard], |value| (value.0));
        set_given!(builder, args, [workers, lease, shard], |&value| (value));
        for (name, operation) in &self.operations {
            builder = builder.operation(name, operation.clone());
        }
        given(builder, self.default.clone(), RelayBuilder::default_operation)
    }

    /// The builder's error, under the key or the flag that it comes from.
    pub fn explain(&self, error: sqlite_outbox::Error, args: &RelayArgs) -> Failure {
        if error.kind() != ErrorKind::Invalid {
            return error.into();
        }
        let text = error.to_string();
        let mut names = self.operations.iter().map(|(name, _)| name.as_str()).chain(["default"]);
        let split = |name| Some((name, text.strip_prefix(&format!("operation {name:?}: "))?));
        let (operation, rest) = names.find_map(split).unzip();
        let rest = rest.unwrap_or(&text);
        let Some((field, reason)) = rest.split_once(": ") else { return error.into() };
        let is_flag = match field {
            "workers" => args.workers.is_some(),
            "lease" => args.lease.is_some(),
            "key_window" => args.key_window.is_some() && operation.is_none_or(|o| o == "default"),
            _ => false,
        };
        let Some(source) = self.source.as_ref().filter(|_| !is_flag) else {
            return Failure::usage(format!("--{}: {reason}", field.replace('_', "-")));
        };
        match (field, operation) {
            ("workers" | "batch" | "lease" | "shard", _) => source.fail(&["relay", field], reason),
            (_, Some("default")) => Place { source, path: vec!["default"] }.refuse(field, reason),
            (_, Some(name)) => {
                Place { source, path: vec!["operations", name] }.refuse(field, reason)
            }
            (_, None) => source.fail(&["operations"], &text),
        }
    }

    /// The operations that are sent, for people.
    pub fn summary(&self) -> String {
        let names: Vec<&str> = self.operations.iter().map(|(name, _)| name.as_str()).collect();
        match (names.as_slice(), &self.default) {
            ([], _) => "all operations".into(),
            (names, None) => names.join(", "),
            (names, Some(_)) => format!("{} and all others", names.join(", ")),
        }
    }
}

fn downstream_flag(args: &RelayArgs) -> Result<Option<Downstream>> {
    let flag = args.downstream.as_ref().map(|word| downstream(word, args.key_window));
    flag.transpose().map_err(|error| flag_error(&error))
}

/// The promise of a downstream; its keys are remembered for the usual time if none is given.
fn downstream(word: &str, window: Option<Duration>) -> sqlite_outbox::Result<Downstream> {
    Downstream::from_word(word, window).or_else(|error| match window {
        Some(_) => Err(error),
        None => Downstream::from_word(word, Some(KEY_WINDOW)).map_err(|_| error),
    })
}

/// The handler, with the addresses that the flags allow.
fn with_flags(http: Http, args: &RelayArgs) -> Result<Http> {
    let http = http.allow_addresses(&args.allow_addresses);
    http.check().map_err(|error| flag_error(&error))?;
    Ok(http)
}

fn flag_error(error: &sqlite_outbox::Error) -> Failure {
    Failure::usage(format!("--{}", error.to_string().replacen('_', "-", 1)))
}

fn as_stored(stored: &StoredContract, http: Http) -> Operation {
    let mut operation = Operation::new(stored.downstream, http).on_dead(stored.on_dead);
    // The file says that there is a lookup, not which: the relay that has it asks.
    set_given!(operation, stored, [provider], |text| (text));
    operation = operation.repeat_rules(stored.repeat_rules.clone());
    if stored.binds_ids { operation.binds_ids() } else { operation }
}

/// A table of the configuration.
struct Place<'a> {
    source: &'a Source,
    path: Vec<&'a str>,
}

impl Place<'_> {
    fn fail(&self, key: &str, reason: &str) -> Failure {
        let mut path = self.path.clone();
        path.extend(key.split('/'));
        self.source.fail(&path, reason)
    }

    /// A complaint of the library about `field`, under its key in relay.toml.
    fn refuse(&self, field: &str, reason: &str) -> Failure {
        match field {
            "lookup_delay" => self.fail("reconcile/delay", reason),
            "max_lookups" => self.fail("reconcile/max_attempts", reason),
            field => self.fail(&field.replace('.', "/"), reason),
        }
    }

    /// The library's errors begin with the field.
    fn explain(&self, error: &sqlite_outbox::Error) -> Failure {
        let text = error.to_string();
        let (field, reason) = text.split_once(": ").unwrap_or(("", &text));
        self.refuse(field, reason)
    }
}

/// Adds the budgets of each of these keys.
macro_rules! set_budgets {
    ($operation:ident, $table:ident, [$($key:ident),+]) => {$(
        for &Per(amount, per) in $table.$key.iter().flat_map(|budgets| &budgets.0) {
            $operation = $operation.$key(amount, per);
        }
    )+};
}

fn operation(place: &Place<'_>, table: &OperationTable, args: &RelayArgs) -> Result<Operation> {
    let downstream = downstream(&table.downstream, table.key_window.map(|window| window.0))
        .map_err(|error| place.explain(&error))?;
    let mut operation = Operation::new(downstream, http(place, table, args)?);
    if let Some(table) = &table.backoff {
        operation = operation.backoff(backoff(place, table)?);
    }
    set_given!(operation, table, [priority, max_attempts, on_dead, repeat_safe], |&value| (value));
    set_given!(operation, table, [max_in_flight, breaker_after], |&most| (most));
    set_given!(operation, table, [provider, owner, key_recipe], |text| (text));
    set_given!(operation, table, [give_up_after], |period| (period.0));
    set_given!(operation, table, [rate], |&Per(n, per)| (n, per));
    set_budgets!(operation, table, [max_per, max_per_tenant, max_per_run]);
    set_budgets!(operation, table, [max_cost, max_cost_per_tenant, max_cost_per_run]);
    operation = given(operation, table.binds, |o, BindsWord::Create| o.binds_ids());
    if let Some(reconcile) = &table.reconcile {
        operation = given(operation, reconcile.delay, |o, delay| o.lookup_delay(delay.0));
        operation = given(operation, reconcile.max_attempts, Operation::max_lookups);
    }
    if table.weaken_stored_contract {
        operation = operation.weaken_stored_contract();
    }
    Ok(operation)
}

fn http(place: &Place<'_>, table: &OperationTable, args: &RelayArgs) -> Result<Http> {
    let mut http = Http::new();
    if let Some(table) = &table.timeouts {
        let mut timeouts = Timeouts::default();
        set_given!(timeouts, table, [resolve, connect, send, response, body], |time| (time.0));
        http = http.timeouts(timeouts);
    }
    // The idempotency header comes before the others, which are checked against it.
    set_given!(http, table, [endpoint, idempotency_header, downstream_id], |text| (text));
    set_given!(http, table, [success_when, rejected_when, transient_when], |when| (when.0.clone()));
    set_given!(http, table, [limited_when, not_applied_when], |when| (when.0.clone()));
    for (status, meaning) in &table.on_status {
        let fail = |reason: &str| place.fail(&format!("on_status/{status}"), reason);
        let code = status.parse().map_err(|_| fail("is not a status such as 404"))?;
        http = http.on_status(code, *meaning);
        http.check().map_err(|error| fail(error.to_string().trim_start_matches("on_status: ")))?;
    }
    http = given(http, table.answer_max, Http::answer_max);
    if matches!(table.connection, Some(ConnectionWord::Close)) {
        http = http.close_connections();
    }
    if let Some(table) = &table.reconcile {
        http = lookup(place, table, http)?;
    }
    if table.quoted_key {
        http = http.quoted_key();
    }
    http = http.allow_addresses(&table.allow_addresses).allow_origins(&table.allow_origins);
    http.check().map_err(|error| place.explain(&error))?;
    for (name, value) in headers(place, table.headers.as_ref())? {
        http = http.header(&name, &value);
        http.check().map_err(|error| {
            let text = error.to_string();
            let reason = text.strip_prefix("headers: ").unwrap_or(&text);
            place.fail(&format!("headers/{name}"), reason)
        })?;
    }
    with_flags(http, args)
}

fn lookup(place: &Place<'_>, table: &ReconcileTable, http: Http) -> Result<Http> {
    let content_type = table.content_type.as_deref().unwrap_or("application/json");
    let http = match (&table.get, &table.post, &table.body) {
        (Some(url), None, None) if table.content_type.is_none() => http.reconcile_by_get(url),
        (None, Some(url), Some(body)) => http.reconcile_by_post(url, content_type, body),
        _ => return Err(place.fail("reconcile", "needs either get, or post with a body")),
    };
    if table.list.as_ref().is_some_and(|list| !list.first) {
        return Err(place.fail("reconcile/list", "needs first = true: the element is the effect"));
    }
    let http = given(http, table.list.as_ref(), |http, list| http.reconcile_list(&list.at));
    let http = given(http, table.downstream_id.as_deref(), Http::reconcile_id);
    let http = given(http, table.when.clone(), |http, when| http.reconcile_when(when.0));
    let http = given(http, table.matching.as_ref(), |http, matching| {
        http.reconcile_match(&matching.pointer, &matching.equals)
    });
    Ok(given(http, table.not_applied_when.clone(), |http, when| {
        http.reconcile_not_applied_when(when.0)
    }))
}

fn backoff(place: &Place<'_>, table: &BackoffTable) -> Result<Backoff> {
    let is_schedule = table.kind == BackoffKind::Schedule;
    let others = [
        ("delays", !is_schedule && table.delays.is_some()),
        ("base", is_schedule && table.base.is_some()),
        ("cap", is_schedule && table.cap.is_some()),
        ("jitter", is_schedule && table.jitter.is_some()),
    ];
    if let Some((key, _)) = others.iter().find(|(_, is_wrong)| *is_wrong) {
        return Err(place.fail(&format!("backoff/{key}"), "belongs to the other kind of backoff"));
    }
    if is_schedule {
        let missing = || place.fail("backoff/kind", "a schedule needs delays");
        let delays = table.delays.as_ref().ok_or_else(missing)?;
        return Ok(Backoff::Schedule(delays.iter().map(|delay| delay.0).collect()));
    }
    Ok(Backoff::Exponential {
        base: table.base.map_or(Duration::from_secs(2), |base| base.0),
        cap: table.cap.map_or(Duration::from_secs(3600), |cap| cap.0),
        jitter: table.jitter.unwrap_or_default(),
    })
}

/// The configured headers with their variables filled in. No message repeats a value.
fn headers(place: &Place<'_>, value: Option<&toml::Value>) -> Result<Vec<(String, String)>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let Some(table) = value.as_table() else {
        return Err(place.fail("headers", "must be a table such as { authorization = \"…\" }"));
    };
    let mut headers = Vec::new();
    for (name, value) in table {
        let fail = |reason: &str| place.fail(&format!("headers/{name}"), reason);
        let value = match value {
            toml::Value::String(text) => with_variables(text).map_err(|reason| fail(&reason))?,
            toml::Value::Integer(_) | toml::Value::Boolean(_) => value.to_string(),
            _ => return Err(fail("its value must be a string, an integer or a boolean")),
        };
        headers.push((name.clone(), value));
    }
    Ok(headers)
}

/// Replaces each `${VAR}` by the environment's value. A bare `$VAR` is refused: sent as it
/// stands, it would be a wrong credential that the downstream answers with 401.
fn with_variables(text: &str) -> std::result::Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, tail) = after.split_once('}').ok_or("has a ${ without its }")?;
        refuse_bare_variable(before)?;
        filled.push_str(before);
        let value = std::env::var(name).map_err(|error| {
            let is_missing = error == std::env::VarError::NotPresent;
            let why = if is_missing { "is not set" } else { "is not UTF-8" };
            // Anything else in the braces may be the value itself.
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let shown = if name.chars().all(is_name) { name } else { "in ${…}" };
            format!("the environment variable {shown} {why}")
        })?;
        filled.push_str(&value);
        rest = tail;
    }
    refuse_bare_variable(rest)?;
    filled.push_str(rest);
    Ok(filled)
}

fn refuse_bare_variable(text: &str) -> std::result::Result<(), String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in text.match_indices('$') {
        let rest = &text[at + 1..];
        if !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            continue;
        }
        let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
        // Only a whole word that looks like a variable is repeated: anything else may be part of a
        // password.
        let is_word = text[..at].chars().next_back().is_none_or(char::is_whitespace)
            && rest[name.len()..].chars().next().is_none_or(char::is_whitespace)
            && !name.contains(|c: char| c.is_ascii_lowercase());
        let shown = if is_word { name } else { "NAME" };
        return Err(format!(
            "a variable is written ${{{shown}}}; a value with a $ of its own must come from a \
             variable"
        ));
    }
    Ok(())
}
