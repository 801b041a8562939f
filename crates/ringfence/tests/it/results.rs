//! Results against the schemas that a client was given for them, for every tool: those of `tools/list`, which SDKs
//! validate `structuredContent` by, and the full ones of `mcp.capabilities`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::browser;
use crate::codex_pair::Pair;
use crate::support::matrix::{eras, on_cell};
use crate::support::{Client, Options, SESSIONS, Server, Transport};

/// A command of the operator's, so that their tools are among those tested.
const CONFIGURED: &str = r#"
[mcp.greet]
command = "/bin/echo"
args = ["hello", "{name}"]
description = "Greets."
requires_approval = false
input_schema = { type = "object", properties = { name = { type = "string" } }, required = ["name"], additionalProperties = false }
"#;

/// The output schemas of one tool, as a client was told of them.
struct Declared {
    /// `outputSchema` of `tools/list`.
    listed: Option<Value>,
    /// `outputSchema` of `mcp.capabilities`.
    full: Option<Value>,
}

fn declared(client: &mut Client) -> BTreeMap<String, Declared> {
    let full = client.request("mcp.capabilities", json!({}))["result"]["tools"].clone();
    let listed = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let schema = |tools: &Value, name: &str| {
        let tool = tools.as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
        tool.get("outputSchema").cloned()
    };
    let names =
        listed.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
    names
        .map(|name| {
            let declared = Declared { listed: schema(&listed, &name), full: schema(&full, &name) };
            (name, declared)
        })
        .collect()
}

#[track_caller]
fn assert_valid(what: &str, schema: &Value, value: &Value) {
    let validator =
        jsonschema::draft202012::new(schema).unwrap_or_else(|error| panic!("{what}: {error}"));
    let faults: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{what}: {faults:#?} in {value:#}, by {schema:#}");
}

/// What the full schema describes: structured content, or the JSON text block of a tool that returns none.
fn described(result: &Value) -> Value {
    if let Some(structured) = result.get("structuredContent") {
        return structured.clone();
    }
    let texts =
        result["content"].as_array().unwrap().iter().filter_map(|block| block["text"].as_str());
    let mut objects =
        texts.filter_map(|text| serde_json::from_str::<Value>(text).ok()).filter(Value::is_object);
    objects.next_back().unwrap_or_else(|| panic!("no JSON in {result:#}"))
}

/// Checks a result as a validating client does, and against the full schema.
#[track_caller]
fn check(tool: &str, declared: &Declared, message: &Value) {
    let result = &message["result"];
    if let Some(schema) = &declared.listed {
        match result.get("structuredContent") {
            Some(structured) => assert_valid(&format!("{tool} by tools/list"), schema, structured),
            None => {
                assert_eq!(result["isError"], true, "{tool} declares an outputSchema: {message:#}")
            }
        }
    }
    let full = declared
        .full
        .as_ref()
        .unwrap_or_else(|| panic!("{tool} has no schema in mcp.capabilities"));
    assert_valid(&format!("{tool} by mcp.capabilities"), full, &described(result));
}

#[track_caller]
fn check_failure(tool: &str, declared: &Declared, message: &Value) {
    assert_eq!(message["result"]["isError"], true, "{tool}: {message:#}");
    check(tool, declared, message);
    let error = &message["result"]["structuredContent"]["error"];
    for member in ["kind", "message", "hint", "trace_id"] {
        assert!(
            error[member].as_str().is_some_and(|text| !text.is_empty()),
            "{tool}: {member} in {message:#}"
        );
    }
}

#[test]
fn a_failed_call_of_every_tool_is_valid_by_its_schema() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.config(CONFIGURED).arg("--tools").arg("all"),
            |_, client| {
                let declared = declared(client);
                assert!(declared.len() > 15, "{:?}", declared.keys());
                for (tool, declared) in &declared {
                    // `shell` ignores what it does not know, and misses what it needs.
                    let message = client.call(tool, json!({"no_such_argument": true}));
                    check_failure(tool, declared, &message);
                    assert_eq!(
                        message["result"]["structuredContent"]["error"]["kind"],
                        "invalid_arguments"
                    );
                }
            },
        );
    }
}

/// What a client reads before it calls: arguments and results of every tool, by the dialect that MCP names.
#[test]
fn every_schema_is_json_schema_2020_12() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.config(CONFIGURED).arg("--tools").arg("all"),
            |_, client| {
                for method in ["tools/list", "mcp.capabilities"] {
                    let tools = client.request(method, json!({}))["result"]["tools"].clone();
                    let tools = tools.as_array().unwrap();
                    assert!(tools.len() > 15, "{method}: {}", tools.len());
                    for tool in tools {
                        let name = format!("{} of {method}", tool["name"]);
                        assert_eq!(tool["inputSchema"]["type"], "object", "{name}");
                        // Tools that can return an image have theirs in `_meta` of the list.
                        let hidden = &tool["_meta"]["dev.ringfence/output_schema"];
                        let output = tool.get("outputSchema").unwrap_or(hidden);
                        assert_eq!(output["type"], "object", "{name}: {tool:#}");
                        for schema in [&tool["inputSchema"], output] {
                            if let Err(fault) = jsonschema::draft202012::meta::validate(schema) {
                                panic!("{name}: {fault} in {schema:#}");
                            }
                        }
                    }
                }
            },
        );
    }
}

/// One server with every tool, and the results of all of them that were checked.
struct Bench {
    server: Server,
    client: Client,
    declared: BTreeMap<String, Declared>,
    succeeded: BTreeSet<String>,
}

impl Bench {
    fn new(options: Options) -> Bench {
        let mut server = options.config(CONFIGURED).arg("--tools").arg("all").spawn();
        let mut client = server.connect(SESSIONS);
        let declared = declared(&mut client);
        Bench { server, client, declared, succeeded: BTreeSet::new() }
    }

    #[track_caller]
    fn succeed(&mut self, tool: &str, arguments: Value) -> Value {
        let message = self.client.call(tool, arguments);
        assert_eq!(message["result"]["isError"], false, "{tool}: {message:#}");
        check(tool, &self.declared[tool], &message);
        self.succeeded.insert(tool.to_owned());
        described(&message["result"])
    }

    #[track_caller]
    fn fail(&mut self, tool: &str, arguments: Value) -> Value {
        let message = self.client.call(tool, arguments);
        assert_eq!(message["result"]["isError"], true, "{tool}: {message:#}");
        check(tool, &self.declared[tool], &message);
        described(&message["result"])["error"].clone()
    }
}

#[test]
fn successful_results_of_every_tool_fit_the_full_schema() {
    let pair = Pair::new(Transport::Stdio);
    let mut bench = Bench::new(pair.options.clone());
    files(&mut bench);
    commands(&mut bench);
    pages(&mut bench);
    codex(&mut bench);
    let missing: Vec<&String> =
        bench.declared.keys().filter(|name| !bench.succeeded.contains(*name)).collect();
    assert!(missing.is_empty(), "never succeeded: {missing:?}");
}

fn files(bench: &mut Bench) {
    bench.succeed("file.write", json!({"path": "a.txt", "content": "one\ntwo\nthree\n"}));
    bench.succeed(
        "file.write",
        json!({"path": "a.txt", "content": "one\ntwo\n3\n", "diff": "unified"}),
    );
    bench.succeed("file.read", json!({"path": "a.txt"}));
    bench.succeed("file.read", json!({"path": "a.txt", "encoding": "base64"}));
    bench.succeed("file.list", json!({"path": "."}));
    for output in ["content", "files", "count"] {
        bench.succeed("file.search", json!({"pattern": "one", "output": output}));
    }
    bench.succeed("file.search", json!({"pattern": "two", "before": 1, "after": 1}));
    bench.succeed("file.search", json!({"pattern": "absent"}));
    bench.succeed(
        "file.replace",
        json!({"path": "a.txt", "edits": [{"old": "two", "new": "2"}], "diff": "unified"}),
    );
    let edits = json!([{"old": "one", "new": "1"}]);
    bench.succeed(
        "file.replace",
        json!({"path": ".", "edits": edits, "glob": ["*.txt"], "total_expected": 1}),
    );
    assert_eq!(bench.fail("file.read", json!({"path": "../x"}))["reason"], "outside_workspace");
}

fn commands(bench: &mut Bench) {
    bench.succeed("shell.exec", json!({"command": "echo hi; echo no >&2; exit 3"}));
    let running = bench.succeed("shell.exec", json!({"command": "sleep 600", "yield_ms": 0}));
    bench.succeed("shell.session", json!({"op": "list"}));
    bench.succeed("shell.session", json!({"op": "close", "id": running["exec_id"]}));
    assert_eq!(
        bench.fail("shell.exec", json!({"command": "sleep 600", "timeout_ms": 50}))["kind"],
        "deadline_exceeded"
    );
    bench.succeed(
        "code.exec",
        json!({"language": "python", "code": "open('made.txt', 'w').write('x')\n6 * 7"}),
    );
    bench.succeed("code.exec", json!({"language": "python", "code": "1 / 0"}));
    let workdir = bench.server.workspace();
    bench.succeed("shell", json!({"command": "echo hi; exit 3", "workdir": workdir}));
    bench.succeed(
        "shell",
        json!({"command": "cat < /dev/zero > /dev/null", "workdir": workdir, "timeout_ms": 50}),
    );
    bench.succeed("greet", json!({"name": "you"}));
}

fn pages(bench: &mut Bench) {
    let url = browser::serve(&bench.server, &mut bench.client);
    bench.succeed(
        "browser.navigate",
        json!({"url": format!("{url}/form"), "snapshot": "interactive"}),
    );
    bench.succeed("browser.snapshot", json!({}));
    bench.succeed("browser.screenshot", json!({}));
    bench.succeed("browser.screenshot", json!({"path": "page.png"}));
    bench.succeed("browser.act", json!({"op": "scroll", "dy": 10.0}));
    bench.succeed("browser.eval", json!({"script": "1 + 1"}));
    bench.succeed("browser.logs", json!({}));
    bench.succeed("browser.tabs", json!({}));
}

fn codex(bench: &mut Bench) {
    let begun = bench.succeed("codex", json!({"prompt": "echo hi"}));
    bench.succeed("codex-reply", json!({"prompt": "echo again", "threadId": begun["threadId"]}));
    let unknown = json!({"prompt": "x", "threadId": "01a1e507-1a6d-7780-bad2-f3ce356a988a"});
    assert_eq!(bench.fail("codex-reply", unknown)["reason"], "unknown_thread");
    bench.client.approve = crate::support::Approve::Decline;
    assert_eq!(bench.fail("codex", json!({"prompt": "echo hi"}))["kind"], "approval_denied");
}
