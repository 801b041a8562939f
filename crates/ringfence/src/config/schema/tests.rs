use serde_json::json;

use super::*;
use crate::config::scratch::Scratch;
use crate::config::{CommandTool, Config, ConfigFlags, ProcessEnv, resolve_config};

fn fits(text: &str) -> Result<(), String> {
    let value: Value = toml::from_str(text).map_err(|error| error.to_string())?;
    let validator = jsonschema::options()
        .with_draft(jsonschema::Draft::Draft7)
        .build(&config_schema())
        .unwrap();
    let wrong: Vec<String> = validator
        .iter_errors(&value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

#[test]
fn the_list_of_sections_is_that_of_the_schema() {
    fn collect_sections(path: &str, schema: &Value, sections: &mut Vec<String>) {
        for (name, key) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            if key.get("properties").is_some() {
                sections.push(path.clone());
                collect_sections(&path, key, sections);
            }
        }
    }
    let mut sections = Vec::new();
    collect_sections("", &config_schema(), &mut sections);
    assert_eq!(sections, crate::config::parse::raw::SECTIONS);
}

#[test]
fn the_defaults_and_every_example_fit_the_schema() {
    fits(DEFAULT_CONFIG).unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut count = 0;
    for folder in
        std::fs::read_dir(examples).into_iter().flatten().map(|entry| entry.unwrap().path())
    {
        let Ok(text) = std::fs::read_to_string(folder.join("config.toml")) else { continue };
        fits(&text).unwrap_or_else(|wrong| panic!("{}: {wrong}", folder.display()));
        count += 1;
    }
    assert!(count >= 6, "{count} examples");
    fits("ENABLE_MCP_SERVER_SURFACE = true\n[mcp.a]\ncommand = \"x\"\ninput_schema = \"{}\"\nenv = { A = \"b\" }")
        .unwrap();
}

#[test]
fn what_the_reader_refuses_the_schema_does_too() {
    for text in [
        "tool = 1",
        "tools = \"cor\"",
        "shared_workspace = \"yes\"",
        "root = 3",
        "[limits]\ngrace_ms = -4",
        "[limits]\ngrace_ms = 60001",
        "[limits]\ngrace_ms = 1.5",
        "[limits]\ngrace = 1",
        "[aproval]",
        "[approval]\nown_tools = \"never\"",
        "[approval]\nown_tools = [1]",
        "[approval]\nown_tools = 1",
        "[policy.wider]\nwriteable = []",
        "[policy]\nescalate = \"out\"",
        "[sandbox]\nprofile = \"strong\"",
        "[sandbox]\nallow_domains = \"a.b\"",
        "[surface]\nallow = [1]",
        "[log]\nlevel = \"loud\"",
        "[log]\nformat = 1",
        "mcp = 3",
        "[mcp.a]\nargs = []",
        "[mcp.a]\ncommand = \"x\"\ntimeout = 5",
        "[mcp.a]\ncommand = \"x\"\ntimeout_ms = 0",
        "[mcp.a]\ncommand = \"x\"\nside_effects = [\"net\"]",
        "[mcp.a]\ncommand = \"x\"\nstdin = \"jason\"",
        "[mcp.a]\ncommand = \"x\"\nenv = { A = 1 }",
        "[mcp.a]\ncommand = \"x\"\ninput_schema = 3",
        "[mcp.\"a b\"]\ncommand = \"x\"",
        "upstreams = 3",
        "upstream = 3",
        "[upstream.a]\nshare = \"all\"",
        "[upstream.a]\ncommand = \"x\"",
        "[upstream.a]\nidle_s = 0",
        "[upstream.\"a b\"]",
    ] {
        assert!(fits(text).is_err(), "{text}");
        let scratch = Scratch::new();
        let file = scratch.file("config/config.toml", text);
        let env = ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project"));
        let flags = ConfigFlags {
            config: Some(file),
            root: Some(scratch.dir("root")),
            ..ConfigFlags::default()
        };
        assert!(!crate::config::check_config(&flags, &env).unwrap().findings.is_empty(), "{text}");
    }
}

#[test]
fn every_key_says_what_it_is_and_nothing_is_behind_references() {
    fn walk(path: &str, schema: &Value) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(
                property["description"].as_str().is_some_and(|text| text.ends_with('.')),
                "{path}: {property}"
            );
            assert!(
                property["type"].is_string() || ["input_schema", "own_tools"].contains(&&**name),
                "{path}: {property}"
            );
            walk(&path, property);
        }
    }
    let whole = config_schema();
    assert_eq!(whole["$schema"], "http://json-schema.org/draft-07/schema#");
    walk("", &whole);
    walk("mcp", &whole["properties"]["mcp"]["additionalProperties"]);
    walk("upstream", &whole["properties"]["upstream"]["additionalProperties"]);
    let text = whole.to_string();
    for word in ["$ref", "null", "oneOf", "anyOf", "allOf", "\"const\""] {
        assert!(!text.contains(word), "{word}");
    }
    jsonschema::draft7::meta::validate(&whole).unwrap();
}

#[test]
fn the_schema_has_the_defaults() {
    let keys = list_keys();
    let default = |path: &str| {
        keys.iter().find(|key| key.path == path).unwrap().schema.get("default").cloned()
    };
    assert_eq!(default("limits.timeout_ms"), Some(json!(3_600_000)));
    assert_eq!(default("surface.allow"), Some(json!(["*"])));
    assert_eq!(default("tools"), Some(json!("core")));
    assert_eq!(default("workspace"), None);
    // Whatever has a default stands in the file of defaults, and the other way round.
    let written: toml::Table = toml::from_str(DEFAULT_CONFIG).unwrap();
    let count: usize =
        written.values().map(|value| value.as_table().map_or(1, toml::Table::len)).sum();
    assert_eq!(keys.iter().filter(|key| key.schema.contains_key("default")).count(), count);
}

/// A config with one command of which only this is said.
fn with(lines: &str) -> Config {
    let scratch = Scratch::new();
    let file =
        scratch.file("config/config.toml", &format!("[mcp.lint]\ncommand = \"make\"\n{lines}"));
    let env = ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project"));
    let flags = ConfigFlags {
        config: Some(file),
        root: Some(scratch.dir("root")),
        ..ConfigFlags::default()
    };
    let config = resolve_config(&flags, &env).unwrap();
    assert!(config.command_errors.is_empty(), "{:#?}", config.command_errors);
    config
}

fn entry(lines: &str) -> CommandTool {
    CommandTool::clone(&with(lines).commands[0])
}

/// The default of one key of a command: as it is resolved, as it is shown and as editors are told.
#[track_caller]
fn defaults_to(key: &str, value: Value, written: &str) {
    assert_eq!(show::command_value(&entry(""), key), Some(value.clone()), "{key}");
    let keys = list_command_keys();
    let told = keys.iter().find(|other| other.path == key).unwrap().schema.get("default").cloned();
    let own = ["display_name", "description", "input_schema"].contains(&key);
    assert_eq!(told, (!own).then_some(value.clone()), "{key}");
    // And it is the key that decides it.
    assert_ne!(show::command_value(&entry(written), key), Some(value), "{key}");
}

#[test]
fn sandbox_profile_is_default() {
    defaults_to("sandbox_profile", json!("default"), "sandbox_profile = \"none\"");
}

#[test]
fn requires_approval_is_true() {
    defaults_to("requires_approval", json!(true), "requires_approval = false");
}

#[test]
fn allow_network_is_false() {
    defaults_to("allow_network", json!(false), "allow_network = true");
}

#[test]
fn allow_domains_is_empty() {
    defaults_to("allow_domains", json!([]), "allow_domains = [\"a.b\"]");
}

#[test]
fn allow_addresses_is_empty() {
    defaults_to("allow_addresses", json!([]), "allow_addresses = [\"1.2.3.4:5\"]");
}

#[test]
fn timeout_ms_is_two_minutes_or_what_the_surface_says() {
    defaults_to("timeout_ms", json!(120_000), "timeout_ms = 5");
    assert_eq!(entry("[surface]\ndefault_timeout_ms = 7").timeout.as_millis(), 7);
    assert_eq!(entry("timeout_ms = 9\n[surface]\ndefault_timeout_ms = 7").timeout.as_millis(), 9);
}

#[test]
fn streaming_is_false() {
    defaults_to("streaming", json!(false), "streaming = true");
}

#[test]
fn side_effects_are_none() {
    defaults_to("side_effects", json!([]), "side_effects = [\"network\"]");
    assert_eq!(entry("").access.high_risk_reason(), None);
}

#[test]
fn cwd_is_the_workspace() {
    defaults_to("cwd", json!("."), "cwd = \"src\"");
    assert_eq!(entry("").cwd, None);
}

#[test]
fn env_is_empty() {
    defaults_to("env", json!({}), "env = { A = \"b\" }");
}

#[test]
fn args_are_none() {
    defaults_to("args", json!([]), "args = [\"x\"]");
}

#[test]
fn stdin_is_none() {
    defaults_to("stdin", json!("none"), "stdin = \"json\"");
}

#[test]
fn input_schema_takes_nothing_or_with_stdin_anything() {
    let none = json!({"type": "object", "additionalProperties": false});
    defaults_to("input_schema", none, "input_schema = { type = \"object\" }");
    let any = entry("stdin = \"json\"").input_schema;
    assert_eq!(Value::Object(any), json!({"type": "object", "additionalProperties": true}));
}

#[test]
fn secret_args_are_those_of_the_schema() {
    let schema = "input_schema = { type = \"object\", properties = { p = { format = \"password\" }, q = {} } }";
    defaults_to("secret_args", json!([]), schema);
    let both = entry(&format!("secret_args = [\"q\"]\n{schema}"));
    assert_eq!(show::command_value(&both, "secret_args"), Some(json!(["p", "q"])));
}

#[test]
fn version_is_one() {
    defaults_to("version", json!("1"), "version = \"2\"");
}

#[test]
fn display_name_is_the_name() {
    defaults_to("display_name", json!("lint"), "display_name = \"Lint\"");
}

#[test]
fn description_says_what_runs() {
    defaults_to("description", json!("Runs `make`."), "description = \"Looks.\"");
}

const BEGIN: &str = "<!-- keys, as the code has them -->\n";
const END: &str = "<!-- end of keys -->";

/// The tables of docs/config.md.
fn tables() -> String {
    let row = |key: &SchemaKey, name: &str| {
        let schema = &key.schema;
        let quoted = |value: &Value| format!("`{value}`");
        let default = schema.get("default").map_or("–".to_owned(), quoted);
        let values = match (schema.get("enum"), schema["type"].as_str(), schema.get("minimum")) {
            (Some(Value::Array(all)), _, _) => all
                .iter()
                .map(|value| format!("`{}`", value.as_str().unwrap()))
                .collect::<Vec<_>>()
                .join(", "),
            (_, _, Some(low)) => format!("{low} to {}", schema["maximum"]),
            (_, Some("boolean"), _) => "bool".to_owned(),
            (_, Some("string"), _) => "text".to_owned(),
            (_, Some("array"), _) => match schema["items"].get("enum") {
                Some(Value::Array(all)) => format!(
                    "list of {}",
                    all.iter()
                        .map(|value| format!("`{}`", value.as_str().unwrap()))
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
                _ => "list".to_owned(),
            },
            (_, Some(other), _) => {
                if other == "object" {
                    "table".to_owned()
                } else {
                    other.to_owned()
                }
            }
            _ if schema.contains_key("items") => "text or list".to_owned(),
            _ => "table or text".to_owned(),
        };
        let meaning = schema["description"].as_str().unwrap().replace('|', "\\|");
        format!("| `{name}` | {default} | {values} | {meaning} |\n")
    };
    let head = "| key | default | values | meaning |\n|---|---|---|---|\n";
    let whole = config_schema();
    let mut text = format!("\n### At the top\n\n{head}");
    let mut section = "";
    let keys = list_keys();
    for key in &keys {
        let (home, name) = key.path.rsplit_once('.').unwrap_or(("", &key.path));
        if home != section {
            section = home;
            let said = whole
                .pointer(&format!("/properties/{}/description", home.replace('.', "/properties/")));
            text.push_str(&format!(
                "\n### `[{home}]`\n\n{}\n\n{head}",
                said.unwrap().as_str().unwrap()
            ));
        }
        text.push_str(&row(key, name));
    }
    text.push_str(&format!("\n### `[mcp.<name>]`\n\nOne command of yours as a tool.\n\n{head}"));
    list_command_keys().iter().for_each(|key| text.push_str(&row(key, &key.path)));
    let meaning = "Settings of one MCP server of the [upstreams file](gateway.md).";
    text.push_str(&format!("\n### `[upstream.<id>]`\n\n{meaning}\n\n{head}"));
    list_upstream_keys().iter().for_each(|key| text.push_str(&row(key, &key.path)));
    text.push('\n');
    text
}

/// The tables in the documents are the code's word. `RINGFENCE_BLESS=1` writes them anew.
#[test]
fn the_documents_have_the_keys_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (now, after) = rest.split_once(END).unwrap();
    let made = tables();
    if std::env::var_os("RINGFENCE_BLESS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        now, made,
        "docs/config.md is not what the code says; RINGFENCE_BLESS=1 writes it anew"
    );
}
