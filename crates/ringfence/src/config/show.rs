//! Lists every config key with its value and origin.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::parse::config_text::{command_key, upstream_key};
use super::resolve::{LoadedConfigFile, minimal_command, resolve_source};
use super::secrets::SecretRef;
use super::values::CommandStdin;
use super::{
    CommandTool, Config, ConfigFlags, DEFAULT_CONFIG, DeclaredAccess, ProcessEnv, SettingOrigin,
    ValueTemplate, schema, show_upstreams,
};
use crate::base::Result;
use crate::redact::secret::{is_sensitive, redact_command_args};

/// A key with its value, safe to show.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownKey {
    pub key: String,
    /// `None` if it is not set and has no default.
    pub value: Option<Value>,
    pub origin: SettingOrigin,
    /// Line in the config file.
    pub line: Option<usize>,
}

/// A secret that the config refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededSecret {
    /// As written in the file, `${secret:NAME}`.
    pub name: String,
    pub is_set: bool,
    /// Tools that need it, and servers as `upstream.<id>`.
    pub tools: Vec<String>,
}

/// Everything that `ringfence config show` prints.
#[derive(Debug)]
pub struct ConfigListing {
    pub file: Option<PathBuf>,
    pub keys: Vec<ShownKey>,
    pub secrets: Vec<NeededSecret>,
}

/// Resolves the config and lists its keys and secrets.
pub fn show_config(flags: &ConfigFlags, env: &ProcessEnv) -> Result<ConfigListing> {
    let source = LoadedConfigFile::load_usable(flags, env)?;
    let config = resolve_source(&source, flags, env, None)?;
    let file_values: Map<String, Value> = toml::from_str(&source.text).unwrap_or_default();
    let defaults: Map<String, Value> = toml::from_str(DEFAULT_CONFIG).unwrap_or_default();
    let mut keys = Vec::new();
    for key in schema::list_keys() {
        keys.push(match config.settings.iter().rev().find(|setting| setting.key == key.path) {
            Some(setting) => ShownKey {
                value: Some(typed_value(&setting.value, &key.schema)),
                origin: setting.origin.clone(),
                line: setting.line,
                key: key.path,
            },
            None => show_file_key(&source, &file_values, &defaults, key.path),
        });
    }
    // Settings without a key in the file: flags, and the secret in the environment.
    for setting in &config.settings {
        if keys.iter().any(|shown_key| shown_key.key == setting.key) {
            continue;
        }
        let section = setting.key.rsplit_once('.').map_or("", |(section, _)| section);
        let section_end = keys.iter().rposition(|shown_key| {
            shown_key.key.rsplit_once('.').map_or("", |(other, _)| other) == section
        });
        let shown_key = ShownKey {
            key: setting.key.to_owned(),
            value: Some(
                serde_json::from_str(&setting.value).unwrap_or_else(|_| json!(setting.value)),
            ),
            origin: setting.origin.clone(),
            line: setting.line,
        };
        keys.insert(section_end.map_or(keys.len(), |index| index + 1), shown_key);
    }
    for entry in config.commands.iter() {
        let path = command_key(&entry.name);
        for key in schema::list_command_keys() {
            let line = source.parsed.line_of_key(&source.text, &format!("{path}.{}", key.path));
            let origin = table_origin(&source, line);
            let value = match key.path.as_str() {
                // The effective value, given the profile under [sandbox].
                "sandbox_profile" => Some(json!(
                    entry.access.effective_profile(config.default_sandbox.profile).name()
                )),
                path => command_value(entry, path),
            };
            keys.push(ShownKey { value, key: format!("{path}.{}", key.path), origin, line });
        }
    }
    keys.extend(show_upstreams::list_server_keys(&source, &config));
    Ok(ConfigListing { file: source.path.clone(), keys, secrets: list_needed_secrets(&config) })
}

/// Returns the origin of a key in a table that only the file can set.
pub(super) fn table_origin(source: &LoadedConfigFile, line: Option<usize>) -> SettingOrigin {
    match (&source.path, line) {
        (Some(file), Some(_)) => SettingOrigin::File(file.clone()),
        _ => SettingOrigin::Default,
    }
}

/// Lists a key that only the file can set, as written there.
fn show_file_key(
    source: &LoadedConfigFile,
    file_values: &Map<String, Value>,
    defaults: &Map<String, Value>,
    key: String,
) -> ShownKey {
    let find = |table: &Map<String, Value>| {
        let pointer = format!("/{}", key.replace('.', "/"));
        Value::Object(table.clone()).pointer(&pointer).cloned()
    };
    let hide = |value: Value| if is_sensitive(&key) { json!("set") } else { value };
    let line = source.parsed.line_of_key(&source.text, &key);
    match (find(file_values), &source.path) {
        (Some(value), Some(file)) => ShownKey {
            value: Some(hide(value)),
            origin: SettingOrigin::File(file.clone()),
            line,
            key,
        },
        _ => ShownKey { value: find(defaults), origin: SettingOrigin::Default, line: None, key },
    }
}

/// Converts the text of a setting to the type of its key.
fn typed_value(text: &str, schema: &Map<String, Value>) -> Value {
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean" | "integer") => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        Some("array") if text.is_empty() => json!([]),
        Some("array") => json!(text.split(", ").collect::<Vec<_>>()),
        _ => json!(text),
    }
}

fn list_needed_secrets(config: &Config) -> Vec<NeededSecret> {
    let mut uses: Vec<(&SecretRef, Vec<String>)> = Vec::new();
    let command_refs = config
        .commands
        .iter()
        .flat_map(|entry| entry.secret_refs().map(|one| (one, entry.name.clone())));
    let servers = config.upstreams.servers.values();
    let server_refs =
        servers.flat_map(|server| server.secret_refs().map(|one| (one, upstream_key(&server.id))));
    for (secret_ref, user) in command_refs.chain(server_refs) {
        match uses.iter_mut().find(|(known, _)| *known == secret_ref) {
            Some((_, users)) if users.contains(&user) => {}
            Some((_, users)) => users.push(user),
            None => uses.push((secret_ref, vec![user])),
        }
    }
    uses.into_iter()
        .map(|(secret_ref, tools)| NeededSecret {
            name: format_reference(secret_ref),
            is_set: config.secrets.get(secret_ref).is_ok(),
            tools,
        })
        .collect()
}

/// Returns a reference as a config file writes it.
pub(super) fn format_reference(secret_ref: &SecretRef) -> String {
    match secret_ref {
        SecretRef::Variable(name) => format!("${{{name}}}"),
        SecretRef::Stored(name) => format!("${{secret:{name}}}"),
    }
}

/// Returns the value of one key of a command, safe to show.
pub(super) fn command_value(entry: &CommandTool, key: &str) -> Option<Value> {
    Some(match key {
        "command" => json!(entry.command),
        "args" => json!(show_templates(&entry.args)),
        "stdin" => json!(if entry.stdin == CommandStdin::Json { "json" } else { "none" }),
        "cwd" => json!(entry.cwd.as_deref().unwrap_or(Path::new("."))),
        "env" => show_variables(&entry.env),
        "requires_approval" => json!(entry.requires_approval),
        "timeout_ms" => json!(u64::try_from(entry.timeout.as_millis()).unwrap_or(u64::MAX)),
        "streaming" => json!(entry.streaming),
        "description" => json!(entry.description),
        "display_name" => json!(entry.display_name),
        "input_schema" => Value::Object(entry.input_schema.clone()),
        "secret_args" => json!(entry.hidden_args),
        "version" => json!(entry.version),
        _ => return access_value(&entry.access, key),
    })
}

/// Returns the value of one key of a command or server about its access.
pub(super) fn access_value(access: &DeclaredAccess, key: &str) -> Option<Value> {
    Some(match key {
        "sandbox_profile" => json!(access.profile.name()),
        "allow_network" => json!(access.allow_network),
        "allow_domains" => json!(access.allow_domains),
        "allow_addresses" => json!(access.allow_addresses),
        "side_effects" => {
            json!(access.side_effects.iter().map(|effect| effect.name()).collect::<Vec<_>>())
        }
        _ => return None,
    })
}

fn show_templates(templates: &[ValueTemplate]) -> Vec<String> {
    redact_command_args(&templates.iter().map(|one| one.text.clone()).collect::<Vec<_>>())
}

/// Returns variables with their values, except for values that may be secrets.
pub(super) fn show_variables(variables: &[(String, ValueTemplate)]) -> Value {
    let show_variable = |(name, value): &(String, ValueTemplate)| {
        let is_hidden = is_sensitive(name) && value.secret_refs().next().is_none();
        let shown_text = show_templates(std::slice::from_ref(value)).concat();
        (name.clone(), json!(if is_hidden { "set".to_owned() } else { shown_text }))
    };
    Value::Object(variables.iter().map(show_variable).collect())
}

/// Returns the defaults of a command: the values of one that sets only `command`. Values that
/// depend on its name are left out.
pub(super) fn command_defaults(keys: &[String]) -> Map<String, Value> {
    let Some(entry) = minimal_command() else { return Map::new() };
    let specific_keys = ["command", "display_name", "description", "input_schema"];
    keys.iter()
        .filter(|key| !specific_keys.contains(&key.as_str()))
        .filter_map(|key| Some((key.clone(), command_value(&entry, key)?)))
        .collect()
}
