//! Lists every config key with its value and origin.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::parse::read::entry_key;
use super::resolve::entry::{Effect, EntryStdin};
use super::resolve::{Source, bare_entry, resolve_source};
use super::secrets::Ref;
use super::{Config, DEFAULTS, Entry, Env, Flags, Origin, Template, schema};
use crate::base::Result;
use crate::redact::secret::{is_sensitive, redact_words};

/// A key with its value, safe to show.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    pub key: String,
    /// `None` if it is not set and has no default.
    pub value: Option<Value>,
    pub origin: Origin,
    /// Line in the config file.
    pub line: Option<usize>,
}

/// A secret that the config refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// As written in the file, `${secret:NAME}`.
    pub name: String,
    pub is_set: bool,
    /// Tools that need it.
    pub tools: Vec<String>,
}

/// Everything that `ringfence config show` prints.
#[derive(Debug)]
pub struct Show {
    pub file: Option<PathBuf>,
    pub keys: Vec<Shown>,
    pub secrets: Vec<Needed>,
}

/// Resolves the config and lists its keys and secrets.
pub fn show(flags: &Flags, env: &Env) -> Result<Show> {
    let source = Source::read(flags, env)?;
    let config = resolve_source(&source, flags, env, None)?;
    let written: Map<String, Value> = toml::from_str(&source.text).unwrap_or_default();
    let default: Map<String, Value> = toml::from_str(DEFAULTS).unwrap_or_default();
    let mut keys = Vec::new();
    for key in schema::keys() {
        keys.push(match config.settings.iter().rev().find(|setting| setting.key == key.path) {
            Some(setting) => Shown {
                value: Some(typed(&setting.value, &key.schema)),
                origin: setting.origin.clone(),
                line: setting.line,
                key: key.path,
            },
            None => plain(&source, &written, &default, key.path),
        });
    }
    // Settings without a key in the file: flags, and the secret in the environment.
    for setting in &config.settings {
        if keys.iter().any(|shown| shown.key == setting.key) {
            continue;
        }
        let section = setting.key.rsplit_once('.').map_or("", |(section, _)| section);
        let after = keys.iter().rposition(|shown| {
            shown.key.rsplit_once('.').map_or("", |(other, _)| other) == section
        });
        let shown = Shown {
            key: setting.key.to_owned(),
            value: Some(
                serde_json::from_str(&setting.value).unwrap_or_else(|_| json!(setting.value)),
            ),
            origin: setting.origin.clone(),
            line: setting.line,
        };
        keys.insert(after.map_or(keys.len(), |at| at + 1), shown);
    }
    for entry in config.entries.iter() {
        let path = entry_key(&entry.name);
        for key in schema::entry_keys() {
            let line = source.read.line(&source.text, &format!("{path}.{}", key.path));
            let origin = match (&source.path, line) {
                (Some(file), Some(_)) => Origin::File(file.clone()),
                _ => Origin::Default,
            };
            let value = match key.path.as_str() {
                // The effective value, given the profile under [sandbox].
                "sandbox_profile" => {
                    Some(json!(entry.profile_beside(config.sandbox.profile).name()))
                }
                path => entry_value(entry, path),
            };
            keys.push(Shown { value, key: format!("{path}.{}", key.path), origin, line });
        }
    }
    Ok(Show { file: source.path.clone(), keys, secrets: needed(&config) })
}

/// Lists a key that only the file can set, as written there.
fn plain(
    source: &Source,
    written: &Map<String, Value>,
    default: &Map<String, Value>,
    key: String,
) -> Shown {
    let find = |table: &Map<String, Value>| {
        let pointer = format!("/{}", key.replace('.', "/"));
        Value::Object(table.clone()).pointer(&pointer).cloned()
    };
    let hide = |value: Value| if is_sensitive(&key) { json!("set") } else { value };
    let line = source.read.line(&source.text, &key);
    match (find(written), &source.path) {
        (Some(value), Some(file)) => {
            Shown { value: Some(hide(value)), origin: Origin::File(file.clone()), line, key }
        }
        _ => Shown { value: find(default), origin: Origin::Default, line: None, key },
    }
}

/// Converts the text of a setting to the type of its key.
fn typed(text: &str, schema: &Map<String, Value>) -> Value {
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean" | "integer") => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        Some("array") if text.is_empty() => json!([]),
        Some("array") => json!(text.split(", ").collect::<Vec<_>>()),
        _ => json!(text),
    }
}

fn needed(config: &Config) -> Vec<Needed> {
    let mut all: Vec<(&Ref, Vec<String>)> = Vec::new();
    for entry in config.entries.iter() {
        for wanted in entry.refs() {
            match all.iter_mut().find(|(known, _)| *known == wanted) {
                Some((_, tools)) if tools.contains(&entry.name) => {}
                Some((_, tools)) => tools.push(entry.name.clone()),
                None => all.push((wanted, vec![entry.name.clone()])),
            }
        }
    }
    all.into_iter()
        .map(|(wanted, tools)| Needed {
            name: written_as(wanted),
            is_set: config.secrets.get(wanted).is_ok(),
            tools,
        })
        .collect()
}

/// Returns a reference as a config file writes it.
pub(super) fn written_as(wanted: &Ref) -> String {
    match wanted {
        Ref::Variable(name) => format!("${{{name}}}"),
        Ref::Stored(name) => format!("${{secret:{name}}}"),
    }
}

/// Returns the value of one key of a command, safe to show.
pub(super) fn entry_value(entry: &Entry, key: &str) -> Option<Value> {
    let texts = |all: &[Template]| {
        redact_words(&all.iter().map(|one| one.text.clone()).collect::<Vec<_>>())
    };
    Some(match key {
        "command" => json!(entry.command),
        "args" => json!(texts(&entry.args)),
        "stdin" => json!(if entry.stdin == EntryStdin::Json { "json" } else { "none" }),
        "cwd" => json!(entry.cwd.as_deref().unwrap_or(Path::new("."))),
        "env" => Value::Object(
            entry
                .env
                .iter()
                .map(|(name, value)| {
                    let hide = is_sensitive(name) && value.refs().next().is_none();
                    let shown = texts(std::slice::from_ref(value)).concat();
                    (name.clone(), json!(if hide { "set".to_owned() } else { shown }))
                })
                .collect(),
        ),
        "sandbox_profile" => json!(entry.profile.name()),
        "allow_network" => json!(entry.allow_network),
        "allow_domains" => json!(entry.allow_domains),
        "allow_addresses" => json!(entry.allow_addresses),
        "side_effects" => {
            json!(entry.side_effects.iter().map(|effect| Effect::name(*effect)).collect::<Vec<_>>())
        }
        "requires_approval" => json!(entry.requires_approval),
        "timeout_ms" => json!(u64::try_from(entry.timeout.as_millis()).unwrap_or(u64::MAX)),
        "streaming" => json!(entry.streaming),
        "description" => json!(entry.description),
        "display_name" => json!(entry.display_name),
        "input_schema" => Value::Object(entry.input_schema.clone()),
        "secret_args" => json!(entry.hidden),
        "version" => json!(entry.version),
        _ => return None,
    })
}

/// Returns the defaults of a command: the values of one that sets only `command`. Values that
/// depend on its name are left out.
pub(super) fn entry_defaults(keys: &[String]) -> Map<String, Value> {
    let Some(entry) = bare_entry() else { return Map::new() };
    let own = ["command", "display_name", "description", "input_schema"];
    keys.iter()
        .filter(|key| !own.contains(&key.as_str()))
        .filter_map(|key| Some((key.clone(), entry_value(&entry, key)?)))
        .collect()
}
