//! Scenarios as text: `scenarios/<name>.scn`, each run on every transport in every version.
//!
//! One step per line; lines that begin with a space continue the one before.
//! ```text
//! # a comment
//! config tool_names = "dot"       a line of the server's config.toml
//! client NAME                     what the client calls itself
//! answer once|session|decline|…   how its human answers from here on
//! > METHOD PARAMS                 a request
//! call TOOL ARGUMENTS             a tool call with all its questions
//! < JSON                          what the result (or `{"error": …}`) holds: see `subset`
//! asked N                         how many questions there have been so far
//! save NAME /json/pointer         keeps a part of the result; `${NAME}` puts it into later lines
//! file PATH "TEXT"                a file of the workspace holds exactly this
//! no-file PATH                    and this one is not there; PATH may lead out of the workspace
//! ```

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::{Value, json};

use crate::support::subset::mismatch;
use crate::support::{Approve, CELLS, Client, Options, Server, on_every_transport};

struct Step {
    line: usize,
    word: String,
    rest: String,
}

fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match (line.starts_with(' '), steps.last_mut()) {
            (true, Some(step)) => step.rest.push_str(line),
            _ => {
                let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
                steps.push(Step { line: number + 1, word: word.into(), rest: rest.trim().into() });
            }
        }
    }
    steps
}

fn run(name: &str, text: &str) {
    let steps = parse(text);
    let of = |word: &str| {
        steps.iter().filter(|step| step.word == word).map(|step| step.rest.as_str()).collect()
    };
    let config: Vec<&str> = of("config");
    let client: Vec<&str> = of("client");
    for cell in CELLS {
        let mut server = Options::new(cell.transport).config(&config.join("\n")).spawn();
        let mut speaker = server.client(cell.version);
        if let [name] = client[..] {
            speaker.name = name.to_owned();
        }
        speaker.shake_hands();
        let mut scene = Scene { client: speaker, server, last: Value::Null, saved: HashMap::new() };
        for step in &steps {
            if let Err(why) = scene.take(step) {
                panic!("{name}.scn line {} on {}: {why}", step.line, scene.client.at());
            }
        }
    }
}

struct Scene {
    client: Client,
    server: Server,
    last: Value,
    saved: HashMap<String, String>,
}

impl Scene {
    fn take(&mut self, step: &Step) -> Result<(), String> {
        let rest = self.saved.iter().fold(step.rest.clone(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value)
        });
        let json = |text: &str| -> Result<Value, String> {
            if text.is_empty() {
                Ok(json!({}))
            } else {
                serde_json::from_str(text).map_err(|e| format!("{e} in {text}"))
            }
        };
        let (first, second) = rest.split_once(' ').unwrap_or((&rest, ""));
        match step.word.as_str() {
            "config" | "client" => {}
            "answer" => self.client.approve = Approve::named(first),
            ">" => self.last = outcome(self.client.request(first, json(second)?)),
            "call" => self.last = outcome(self.client.call(first, json(second)?)),
            "<" => {
                if let Some(why) = mismatch(&json(&rest)?, &self.last, "") {
                    return Err(format!("{why}\nin {:#}", self.last));
                }
            }
            "asked" => {
                let count = self.client.questions.len();
                if count.to_string() != first {
                    return Err(format!("there were {count} questions"));
                }
            }
            "save" => {
                let found = self.last.pointer(second).and_then(Value::as_str);
                let found =
                    found.ok_or_else(|| format!("nothing at {second} in {:#}", self.last))?;
                self.saved.insert(first.to_owned(), found.to_owned());
            }
            "file" => {
                let text = std::fs::read_to_string(self.server.workspace().join(first))
                    .map_err(|e| e.to_string())?;
                if json(second)? != text {
                    return Err(format!("{first} holds {text:?}"));
                }
            }
            "no-file" => {
                if self.server.workspace().join(first).symlink_metadata().is_ok() {
                    return Err(format!("{first} is there"));
                }
            }
            other => return Err(format!("`{other}` is no step")),
        }
        Ok(())
    }
}

fn outcome(message: Value) -> Value {
    match message.get("result") {
        Some(result) => result.clone(),
        None => json!({"error": message["error"]}),
    }
}

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name), include_str!(concat!("scenarios/", stringify!($name), ".scn")));
            }
        )*

        #[test]
        fn every_scenario_file_is_run() {
            let listed = [$(concat!(stringify!($name), ".scn")),*];
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/scenarios");
            for entry in std::fs::read_dir(folder).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                assert!(listed.contains(&name.as_str()), "{name} is not in the list");
            }
        }
    };
}

scenarios! {
    tools_are_discovered
    what_is_written_is_read_back
    an_edit_is_made_exactly_or_not_at_all
    a_command_runs_after_approval
    a_command_runs_in_the_fence
    code_runs_in_the_fence
    a_denied_command_does_not_run
    an_unknown_tool_is_an_error
    bad_arguments_are_explained
    nothing_outside_the_workspace_is_touched
    files_are_listed
    text_is_found_in_files
    long_output_is_read_on
    names_with_dots
    names_with_underscores
    clients_that_reject_dots_get_underscores
}

/// A client waits for the first answer, so its table has an end; lists have all tools.
#[test]
fn the_first_answer_has_a_table_of_bounded_size() {
    let entries = (0..250).map(|number| format!("[mcp.tool{number}]\ncommand = \"true\"\n"));
    let entries: String = entries.collect();
    for cell in CELLS {
        let mut server = Options::new(cell.transport).config(&entries).spawn();
        let mut client = server.client(cell.version);
        let hello = client.shake_hands();
        assert_eq!(hello["_meta"]["dev.ringfence/tools"].as_array().unwrap().len(), 200);
        assert!(hello.to_string().len() < 20_000, "{}", hello.to_string().len());
        let known = client.request("mcp.capabilities", json!({}));
        assert!(known["result"]["tools"].as_array().unwrap().len() > 250);
    }
}

/// The keys of `_meta` that each listed tool carries, and the table of the handshake, on each transport.
#[test]
fn every_tool_carries_its_metadata_on_every_transport() {
    let per_tool =
        ["version", "permission", "requires_approval", "sandbox_profile", "default_timeout_ms"];
    let per_tool =
        [&per_tool[..], &["allows_streaming", "side_effects", "session_defaults"]].concat();
    for cell in CELLS {
        let mut server = Options::new(cell.transport).spawn();
        let mut client = server.client(cell.version);
        let hello = client.shake_hands();
        let table =
            hello["_meta"]["dev.ringfence/tools"].as_array().expect("the table of tools").clone();
        let listed =
            client.request("tools/list", json!({}))["result"]["tools"].as_array().unwrap().clone();
        let known = client.request("mcp.capabilities", json!({}))["result"]["tools"]
            .as_array()
            .unwrap()
            .clone();
        assert!(!listed.is_empty());
        assert_eq!(listed.len(), table.len());
        assert_eq!(listed.len(), known.len());
        for ((tool, row), whole) in listed.iter().zip(&table).zip(&known) {
            for key in &per_tool {
                let value = &tool["_meta"][format!("dev.ringfence/{key}")];
                assert!(!value.is_null(), "{}: {key} of {}", client.at(), tool["name"]);
                assert_eq!(*value, whole[*key], "{}: {key} of {}", client.at(), tool["name"]);
            }
            assert_eq!(row["name"], whole["name"]);
            assert_eq!(row["version"], whole["version"]);
            assert_eq!(row["permission"], whole["permission"]);
            assert_eq!(tool["inputSchema"], whole["inputSchema"]);
            assert_eq!(tool["inputSchema"]["type"], "object");
            for banned in ["oneOf", "anyOf", "allOf"] {
                assert!(tool["inputSchema"].get(banned).is_none(), "{banned} in {}", tool["name"]);
            }
        }
    }
}

/// The same list, word for word, on every transport and however often one asks.
#[test]
fn the_list_is_the_same_for_everybody() {
    let seen: RefCell<Option<Value>> = RefCell::new(None);
    on_every_transport(
        |options| options,
        |server, client| {
            let mut list = client.request("tools/list", json!({}))["result"]["tools"].clone();
            assert_eq!(list, client.request("tools/list", json!({}))["result"]["tools"]);
            for tool in list.as_array_mut().unwrap() {
                let cwd = &mut tool["_meta"]["dev.ringfence/session_defaults"]["cwd"];
                assert_eq!(*cwd, server.workspace().to_str().unwrap());
                *cwd = Value::Null;
            }
            assert_eq!(
                seen.borrow_mut().get_or_insert_with(|| list.clone()),
                &list,
                "{}",
                client.at()
            );
        },
    );
}
