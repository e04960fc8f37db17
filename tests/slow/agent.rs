//! Tools of agents: a model that asks for the same step again gets the first receipt back.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sqlite_outbox::{DrainReport, IdempotencyKey, Operation, Relay};

use crate::node;
use crate::support::needs;
use crate::support::scene::Scene;
use crate::support::wire::http;
use crate::support::world::DEDUPLICATES;

/// Answer of a tool to the model, and its exit code.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    json: Value,
}

impl Scene {
    fn tool_relay(&self, path: &str) -> Relay {
        let http = http().endpoint(&self.downstream.url(path));
        let charges = Operation::new(DEDUPLICATES, http);
        Relay::builder(&self.outbox).operation("stripe.charge", charges).build().unwrap()
    }

    fn drain(&self, path: &str) -> DrainReport {
        self.tool_relay(path).drain().unwrap()
    }

    /// Asks a tool as a run of an agent does. What it answers is JSON on standard output; why it
    /// does not is JSON on standard error.
    fn ask(&self, tool: Tool, run: &str, words: &[&str]) -> Said {
        let mut command = tool();
        let output = command.arg(&self.path).args(words).env("AGENT_RUN", run).output().unwrap();
        let code = output.status.code();
        let (said, silent) = match code {
            Some(0) => (output.stdout, output.stderr),
            _ => (output.stderr, output.stdout),
        };
        assert!(silent.is_empty(), "{code:?}: {}", String::from_utf8_lossy(&silent));
        // How it is used is told to people.
        let json = if code == Some(2) { Ok(Value::Null) } else { serde_json::from_slice(&said) };
        Said { code, json: json.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&said))) }
    }

    /// How many intents and how many business rows there are.
    fn rows(&self) -> (i64, i64) {
        (self.number("SELECT count(*) FROM outbox"), self.number("SELECT count(*) FROM orders"))
    }
}

/// How a tool is started; the file, the order and the amount follow.
type Tool = fn() -> Command;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn rust() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    // Where this test was built, with the same features, so that little or nothing is built again.
    command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap());
    command.args(["run", "--quiet", "--example", "agent_tool"]);
    if cfg!(feature = "cli") {
        command.arg("--all-features");
    }
    command.arg("--");
    command
}

fn python() -> Command {
    let mut command = Command::new("python3");
    command.arg(example("agent_tool.py"));
    command
}

/// A program that uses the tool in Python.
fn python_with(program: &str) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", example("")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["-c", program]);
    command
}

fn typescript() -> Command {
    let modules = node::modules().expect("the test is skipped without npm");
    let mut command = Command::new(modules.join(".bin/tsx"));
    command.arg(example("agent_tool.ts")).env("NODE_PATH", modules);
    command
}

fn derived(order: &str, amount: u32) -> String {
    let args = json!({"amount": amount, "currency": "usd"}).to_string();
    IdempotencyKey::derive("acme", "stripe.charge", order, 1, &args).unwrap().key
}

fn answer(order: &str, status: &str, downstream_id: Option<&str>, asked_before: bool) -> Value {
    json!({
        "status": status,
        "idempotency_key": derived(order, 4200),
        "downstream_id": downstream_id,
        "asked_before": asked_before,
    })
}

/// A model that asked again, under another run, had the order charged twice. Here it gets the first
/// receipt, and one that asks for something else is refused.
fn asked_again_it_answers_with_the_first_receipt(tool: Tool) {
    let scene = Scene::new();
    let ask = |run, words: &[&str]| {
        let said = scene.ask(tool, run, words);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.json
    };
    assert_eq!(ask("run-1", &["order-42", "4200"]), answer("order-42", "pending", None, false));
    assert_eq!(ask("run-2", &["order-42", "4200"]), answer("order-42", "pending", None, true));
    assert_eq!(scene.drain("/ok").succeeded, 1);
    let receipt = answer("order-42", "succeeded", Some("eff_1_1"), true);
    assert_eq!(ask("run-3", &["order-42", "4200"]), receipt);
    assert_eq!(ask("", &["order-42", "4200", "--wait", "20"]), receipt);

    let said = scene.ask(tool, "run-4", &["order-42", "4300"]);
    let error = said.json["error"].as_str().unwrap_or_default();
    assert!(said.code == Some(3) && error.contains("a change needs a new version"), "{said:?}");

    assert_eq!(scene.drain("/ok"), DrainReport::default());
    assert_eq!(scene.rows(), (1, 1));
    let requests = scene.downstream.requests();
    assert_eq!((requests.len(), scene.downstream.effects(&derived("order-42", 4200))), (1, 1));
    assert_eq!(requests[0].header("x-agent-run"), Some("run-1"));
    assert_eq!(requests[0].header("x-tool-version"), Some("1.0.0"));
    let body: Value = serde_json::from_str(&requests[0].body).unwrap();
    assert_eq!(body, json!({"amount": 4200, "currency": "usd"}));
}

/// Waiting reads until there is something to tell a model, or the time is over; and an order may be
/// called anything.
fn it_waits_for_what_became_of_it(tool: Tool) {
    let scene = Scene::new();
    let odd = "b\u{e9}\u{1f600}\"\\\u{7f}\n<&>";
    let ask = |order, wait| scene.ask(tool, "", &[order, "4200", "--wait", wait]).json;
    assert_eq!(ask(odd, "0.1"), answer(odd, "pending", None, false));
    let running = scene.tool_relay("/fail/1/503").start().unwrap();
    assert_eq!(ask(odd, "20"), answer(odd, "succeeded", Some("eff_1_1"), true));
    running.shutdown(std::time::Duration::from_secs(10)).unwrap();
    assert_eq!(scene.downstream.requests().len(), 2);
    assert_eq!(scene.downstream.requests()[0].header("x-agent-run"), None);

    let running = scene.tool_relay("/status/400").start().unwrap();
    assert_eq!(ask("bad", "20"), answer("bad", "dead", None, false));
    running.shutdown(std::time::Duration::from_secs(10)).unwrap();
}

/// Mistakes of a model are refused before anything is written.
fn it_refuses_what_it_cannot_take(tool: Tool) {
    let scene = Scene::new();
    for words in [
        &["order-42"][..],
        &["order-42", "42.00"],
        &["order-42", "0"],
        &["order-42", "-1"],
        &["order-42", "100000000"],
        &["order-42", "4200", "--version", "2"],
        &["order-42", "4200", "--wait", "soon"],
    ] {
        assert_eq!(scene.ask(tool, "", words).code, Some(2), "{words:?}");
    }
    for (run, order) in [("a\nb", "order-42"), ("", &"x".repeat(1025))] {
        let said = scene.ask(tool, run, &[order, "4200"]);
        assert!(said.code == Some(1) && said.json["error"].is_string(), "{said:?}");
    }
    assert_eq!(scene.number("SELECT count(*) FROM outbox"), 0);
    assert_eq!(scene.number("SELECT count(*) FROM sqlite_schema WHERE name = 'orders'"), 0);
}

#[test]
fn agent_tool_in_rust() {
    asked_again_it_answers_with_the_first_receipt(rust);
    it_waits_for_what_became_of_it(rust);
    it_refuses_what_it_cannot_take(rust);
}

#[test]
fn agent_tool_in_python() {
    if !needs::has("python3") {
        return;
    }
    asked_again_it_answers_with_the_first_receipt(python);
    it_waits_for_what_became_of_it(python);
    it_refuses_what_it_cannot_take(python);
}

#[test]
fn agent_tool_in_typescript() {
    if node::modules().is_some() {
        asked_again_it_answers_with_the_first_receipt(typescript);
        it_waits_for_what_became_of_it(typescript);
        it_refuses_what_it_cannot_take(typescript);
    }
}

/// `tsx` drops the types without looking at them.
#[test]
fn agent_tool_in_typescript_has_the_types_it_says() {
    let Some(modules) = node::modules() else { return };
    let home = modules.parent().unwrap();
    std::fs::copy(example("agent_tool.ts"), home.join("agent_tool.ts")).unwrap();
    let output = Command::new(modules.join(".bin/tsc"))
        .args(["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext"])
        .args(["--types", "node", "agent_tool.ts"])
        .current_dir(home)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn agent_tools_in_three_languages_ask_for_one_action() {
    let scene = Scene::new();
    let mut tools: Vec<Tool> = vec![rust];
    if needs::has("python3") {
        tools.push(python);
    }
    if node::modules().is_some() {
        tools.push(typescript);
    }
    for (nth, tool) in tools.iter().enumerate() {
        let said = scene.ask(*tool, &format!("run-{nth}"), &["order-42", "4200"]);
        assert_eq!(said.json, answer("order-42", "pending", None, nth > 0));
        assert_eq!(scene.ask(*tool, "", &["order-42", "4300"]).code, Some(3));
    }
    assert_eq!(scene.drain("/ok").succeeded, 1);
    assert_eq!((scene.downstream.requests().len(), scene.rows()), (1, (1, 1)));
}

/// The first version stays what it is; the next version is another action beside it.
#[test]
fn agent_tool_gets_a_new_version_from_code_alone() {
    if !needs::has("python3") {
        return;
    }
    let scene = Scene::new();
    scene.ask(python, "", &["order-42", "4200"]);
    let decided = "import agent_tool, sys
print(agent_tool.charge(agent_tool.connect(sys.argv[1]), 'order-42', 4300, version=2))";
    let mut person = python_with(decided);
    let output = person.arg(&scene.path).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(", False)\n"), "{output:?}");
    assert_eq!(scene.rows(), (2, 1));
    assert_eq!(scene.ask(python, "", &["order-42", "4300"]).code, Some(3));
    let said = scene.ask(python, "", &["order-42", "4200"]);
    assert_eq!(said.json, answer("order-42", "pending", None, true));
}

/// The answers that docs/agents.md shows are the answers that a model sees.
#[test]
fn agent_tool_answers_as_the_guide_shows() {
    let guide = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/agents.md"));
    let lines = guide.lines().filter(|line| line.starts_with(r#"{"status": "#));
    let shown: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = answer("order-42", "pending", None, false);
    assert_eq!(shown, [first, answer("order-42", "succeeded", Some("ch_1"), true)]);
}

/// A model that calls its tools in parallel asks for one step several times at once.
#[test]
fn agent_tool_called_in_parallel_has_one_first_call() {
    if !needs::has("python3") {
        return;
    }
    let scene = Scene::new();
    let said: Vec<Said> = std::thread::scope(|scope| {
        let asks: Vec<_> = (0..8)
            .map(|n| (format!("run-{n}"), &scene))
            .map(|(run, scene)| scope.spawn(move || scene.ask(python, &run, &["order-42", "4200"])))
            .collect();
        asks.into_iter().map(|ask| ask.join().unwrap()).collect()
    });
    let firsts = said.iter().filter(|said| said.json["asked_before"] == false).count();
    assert!(firsts == 1 && said.iter().all(|said| said.code == Some(0)), "{said:?}");
    assert_eq!(scene.rows(), (1, 1));
}

/// A tool that is killed before its commit leaves neither the business row nor the intent, and has
/// answered nothing; asked again it is the first.
#[test]
fn agent_tool_killed_before_its_commit_has_written_nothing() {
    if !needs::has("python3") {
        return;
    }
    let scene = Scene::new();
    scene.ask(python, "", &["order-1", "4200"]);
    let stuck = "import agent_tool, time
enqueue = agent_tool.enqueue
def enqueue_and_hang(*row):
    print('written:', enqueue(*row), flush=True)
    time.sleep(60)
agent_tool.enqueue = enqueue_and_hang
agent_tool.main()";
    let mut tool = python_with(stuck);
    tool.arg(&scene.path).args(["order-42", "4200"]).stdout(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(tool.stdout.take().unwrap()).read_line(&mut said).unwrap();
    tool.kill().unwrap();
    tool.wait().unwrap();
    assert_eq!(said, "written: True\n");
    assert_eq!(scene.rows(), (1, 1));
    let said = scene.ask(python, "", &["order-42", "4200"]);
    assert_eq!(said.json, answer("order-42", "pending", None, false));
    assert_eq!(scene.rows(), (2, 2));
}
