//! `[mcp.<name>]`: the operator's commands, validated and complete.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::SettingPicker;
use super::declared_access::DeclaredAccess;
use super::plain_schema::{is_surely_valid, surely_fits};
use crate::base::suggest::suggest_name;
use crate::config::fault::ConfigError;
use crate::config::parse::config_text::{WrittenCommand, command_key};
use crate::config::parse::key_spans::{KeySpans, LineIndex, child_path, item_path};
use crate::config::parse::raw;
use crate::config::secrets::SecretRef;
use crate::config::template::{TemplatePart, ValueTemplate};
use crate::config::values::CommandStdin;
use crate::config::{ProfileSetting, ToolSurface};

/// Names of the built-in tools, which no command may use.
pub const BUILT_IN_TOOLS: &[&str] = &[
    "file.read",
    "file.write",
    "file.list",
    "file.search",
    "file.replace",
    "shell.exec",
    "shell.session",
    "code.exec",
    "browser.navigate",
    "browser.screenshot",
    "browser.snapshot",
    "browser.act",
    "browser.eval",
    "browser.logs",
    "browser.tabs",
    "shell",
    "codex",
    "codex-reply",
];

/// One of the operator's commands, resolved.
#[derive(Debug, Clone)]
pub struct CommandTool {
    pub name: String,
    pub display_name: String,
    pub description: String,
    pub version: String,
    pub command: String,
    pub args: Vec<ValueTemplate>,
    pub stdin: CommandStdin,
    pub cwd: Option<PathBuf>,
    pub env: Vec<(String, ValueTemplate)>,
    pub access: DeclaredAccess,
    pub requires_approval: bool,
    pub timeout: Duration,
    pub streaming: bool,
    /// Exactly as given.
    pub input_schema: Map<String, Value>,
    /// Arguments whose values are not shown, at any depth.
    pub hidden_args: BTreeSet<String>,
    /// Line of its table in the config file.
    pub line: usize,
}

impl CommandTool {
    /// Returns the secrets that it refers to.
    pub fn secret_refs(&self) -> impl Iterator<Item = &SecretRef> {
        self.args
            .iter()
            .chain(self.env.iter().map(|(_, value)| value))
            .flat_map(ValueTemplate::secret_refs)
    }

    /// Returns everything that decides what a call of it does; session trust is bound to this.
    pub fn trust_fingerprint(&self) -> Value {
        let args: Vec<&str> = self.args.iter().map(|one| one.text.as_str()).collect();
        let env: Map<String, Value> =
            self.env.iter().map(|(name, value)| (name.clone(), json!(value.text))).collect();
        json!({
            "command": self.command, "args": args, "stdin": self.stdin == CommandStdin::Json,
            "cwd": self.cwd, "env": env, "access": self.access.trust_fingerprint(),
        })
    }
}

/// Context shared by all commands of a file.
pub struct CommandContext<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    pub key_spans: &'a KeySpans,
    pub lines: LineIndex,
    pub picker: &'a SettingPicker<'a>,
    pub surface: &'a ToolSurface,
    /// The profile under `[sandbox]`.
    pub sandbox_profile: ProfileSetting,
}

/// Collects the errors in one command.
struct CommandChecker<'a> {
    context: &'a CommandContext<'a>,
    written: &'a WrittenCommand,
    errors: Vec<ConfigError>,
}

impl CommandChecker<'_> {
    /// Adds an error about the value of a key, or about the command's name if the key is missing.
    fn add_error(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let mut path = command_key(&self.written.name);
        if !key.is_empty() {
            path = format!("{path}.{key}");
        }
        let span = self
            .context
            .key_spans
            .value_span(&path)
            .unwrap_or_else(|| self.written.name_span.clone());
        let error = ConfigError::about_key(
            &path,
            (self.context.path, self.context.text),
            span,
            message,
            hint,
        );
        self.errors.push(ConfigError { tool: Some(self.written.name.clone()), ..error });
    }

    /// Returns whether an error merely results from another key that could not be parsed.
    fn is_consequence(&self, error: &ConfigError) -> bool {
        let unparsed_keys = &self.written.unparsed_keys;
        let is_key = |key: &str| error.key == format!("{}.{key}", command_key(&self.written.name));
        let is_below = |key: &str| {
            error.key.starts_with(&format!("{}.{key}", command_key(&self.written.name)))
        };
        match () {
            () if unparsed_keys.is_empty() => false,
            () if is_key("command") => true,
            () => {
                unparsed_keys.contains("input_schema")
                    && (is_below("args") || is_below("secret_args"))
            }
        }
    }

    fn check_template(
        &mut self,
        key: &str,
        parsed: Result<ValueTemplate, String>,
    ) -> Option<ValueTemplate> {
        let hint = "An argument is `{name}`, a secret `${NAME}` or `${secret:NAME}`, a brace `{{`.";
        parsed.map_err(|message| self.add_error(key, message, hint)).ok()
    }
}

/// Returns the valid commands, and the errors in the others.
pub fn resolve_commands(
    context: &CommandContext<'_>,
    written_commands: &[WrittenCommand],
) -> (Vec<CommandTool>, Vec<ConfigError>) {
    let (mut entries, mut errors): (Vec<CommandTool>, Vec<ConfigError>) = (Vec::new(), Vec::new());
    // Names of the valid commands so far, by their underscored spelling.
    let mut spellings: HashMap<String, String> = HashMap::new();
    for command in written_commands {
        let mut checker = CommandChecker { context, written: command, errors: Vec::new() };
        checker.check_name(&spellings);
        let entry = checker.build_command();
        let entry_errors = std::mem::take(&mut checker.errors);
        match entry.filter(|_| entry_errors.is_empty() && command.unparsed_keys.is_empty()) {
            Some(entry) => {
                spellings.insert(to_underscored(&entry.name), entry.name.clone());
                entries.push(entry);
            }
            None => errors
                .extend(entry_errors.into_iter().filter(|error| !checker.is_consequence(error))),
        }
    }
    (entries, errors)
}

fn to_underscored(name: &str) -> String {
    name.replace('.', "_")
}

impl CommandChecker<'_> {
    fn check_name(&mut self, earlier: &HashMap<String, String>) {
        let name = self.written.name.clone();
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_allowed) {
            let hint = "Use up to 64 letters, digits, `_`, `-` and `.`.";
            self.add_error("", "clients do not accept a tool with this name", hint);
        }
        let underscored = to_underscored(&name);
        let is_same = |built_in: &str| {
            let spelling = built_in.bytes().map(|byte| if byte == b'.' { b'_' } else { byte });
            spelling.eq(underscored.bytes())
        };
        if BUILT_IN_TOOLS.iter().any(|built_in| is_same(built_in)) {
            self.add_error("", format!("`{name}` is a built-in tool"), "Choose another name.");
        }
        if let Some(earlier_name) = earlier.get(&underscored) {
            let message = format!(
                "`{name}` and `{earlier_name}` are the same name for clients that do not accept dots"
            );
            self.add_error("", message, "Choose another name.");
        }
    }

    fn build_command(&mut self) -> Option<CommandTool> {
        let raw = &self.written.section;
        let (name, raw) = (self.written.name.clone(), raw::CommandSection::clone(raw));
        let Some(command) =
            raw.command.clone().filter(|command| !command.is_empty() && !command.contains('\0'))
        else {
            self.add_error(
                "command",
                "there is no `command` to run",
                "Name a program: `command = \"make\"`.",
            );
            return None;
        };
        let command = match command.contains('/') {
            // Never from the workspace: the operator does not control the files there.
            true => match self.context.picker.resolve_file_path(Path::new(&command)) {
                Ok(path) => path.components().collect::<PathBuf>().display().to_string(),
                Err(error) => {
                    self.add_error("command", error.message().to_owned(), "Give the full path.");
                    return None;
                }
            },
            false => command,
        };
        let stdin = raw.stdin.unwrap_or(CommandStdin::None);
        let input_schema = self.check_schema(raw.input_schema, stdin)?;
        let args: Vec<(usize, ValueTemplate)> = (raw.args.iter().flatten().enumerate())
            .filter_map(|(index, one)| {
                Some((
                    index,
                    self.check_template(
                        &item_path("args", index),
                        ValueTemplate::with_arguments(one),
                    )?,
                ))
            })
            .collect();
        let env: Vec<(String, ValueTemplate)> = raw
            .env
            .iter()
            .flatten()
            .filter_map(|(name, value)| {
                let key = child_path("env", name);
                if name.is_empty() || name.contains(['=', '\0']) {
                    self.add_error(
                        &key,
                        format!("`{name}` is not a valid name of a variable"),
                        "Use a name without `=`.",
                    );
                }
                Some((
                    name.clone(),
                    self.check_template(&key, ValueTemplate::without_arguments(value))?,
                ))
            })
            .collect();
        self.check_arguments(&args, &input_schema);
        let profile = raw.sandbox_profile.unwrap_or(ProfileSetting::Default);
        self.check_profile(profile, &args);
        let hidden_args =
            self.collect_hidden_args(raw.secret_args.as_deref().unwrap_or_default(), &input_schema);
        if let Some(cwd) = &raw.cwd
            && cwd.is_relative()
            && cwd.components().any(|part| part == std::path::Component::ParentDir)
        {
            self.add_error(
                "cwd",
                "the directory leaves the workspace",
                "Name one inside the workspace.",
            );
        }
        Some(CommandTool {
            display_name: raw.display_name.unwrap_or_else(|| name.clone()),
            // The program's directory is not shown to clients.
            description: raw.description.unwrap_or_else(|| {
                format!("Runs `{}`.", command.rsplit('/').next().unwrap_or(&command))
            }),
            version: raw.version.unwrap_or_else(|| "1".to_owned()),
            name,
            command,
            args: args.into_iter().map(|(_, one)| one).collect(),
            stdin,
            cwd: raw.cwd,
            env,
            access: DeclaredAccess {
                profile,
                allow_network: raw.allow_network.unwrap_or(false),
                allow_domains: raw.allow_domains.unwrap_or_default(),
                allow_addresses: raw.allow_addresses.unwrap_or_default(),
                side_effects: raw.side_effects.unwrap_or_default(),
            },
            requires_approval: raw.requires_approval.unwrap_or(true),
            timeout: raw
                .timeout_ms
                .map_or(self.context.surface.default_timeout, |time| Duration::from_millis(time.0)),
            streaming: raw.streaming.unwrap_or(false),
            input_schema,
            hidden_args,
            line: self.context.lines.line_at(self.written.name_span.start),
        })
    }

    fn check_schema(
        &mut self,
        raw_schema: Option<raw::InputSchema>,
        stdin: CommandStdin,
    ) -> Option<Map<String, Value>> {
        let Some(raw_schema) = raw_schema else {
            // Without a schema, `args` can name no argument; on standard input any are accepted.
            let allows_more = stdin == CommandStdin::Json;
            let Value::Object(schema) =
                json!({"type": "object", "additionalProperties": allows_more})
            else {
                return None;
            };
            return Some(schema);
        };
        let schema = raw_schema.0;
        if schema.get("type") != Some(&json!("object")) {
            let hint =
                "Arguments are an object: write `type = \"object\"` at the top of the schema.";
            self.add_error("input_schema", "the schema does not describe an object", hint);
            return None;
        }
        let is_plain = is_surely_valid(&schema);
        if !is_plain && let Err(error) = build_validator(&schema) {
            self.add_error(
                "input_schema",
                format!("the schema is not a JSON Schema: {error}"),
                "Correct the schema.",
            );
            return None;
        }
        self.check_defaults(&schema, is_plain);
        Some(schema)
    }

    /// Checks that each default is valid in its own schema.
    fn check_defaults(&mut self, schema: &Map<String, Value>, is_plain: bool) {
        let Some(Value::Object(properties)) = schema.get("properties") else { return };
        let is_checked = |property: &Value| {
            property.get("default").is_none_or(|default| is_plain && surely_fits(property, default))
        };
        if properties.values().all(is_checked) {
            return;
        }
        // Only the parts of the schema that a property may refer to.
        let keys = ["$schema", "$id", "$defs", "definitions", "properties"];
        let parts = schema.iter().filter(|(key, _)| keys.contains(&key.as_str()));
        let Ok(validator) =
            build_validator(&parts.map(|(key, value)| (key.clone(), value.clone())).collect())
        else {
            return;
        };
        for (name, property) in properties {
            let Some(default) = property.get("default") else { continue };
            if let Err(error) = validator.validate(&json!({ name: default })) {
                let key = format!("{}.default", child_path("input_schema.properties", name));
                let hint = format!("Correct the default: {}.", error.masked());
                self.add_error(
                    &key,
                    format!("the `default` of `{name}` does not fit its own schema"),
                    hint,
                );
            }
        }
    }

    /// Checks the command against the profile under `[sandbox]`.
    fn check_profile(&mut self, profile: ProfileSetting, args: &[(usize, ValueTemplate)]) {
        let sandbox_profile = self.context.sandbox_profile;
        if profile == ProfileSetting::Contained
            && !matches!(sandbox_profile, ProfileSetting::Contained | ProfileSetting::None)
        {
            let message =
                "`contained` hides nothing, and is weaker than the profile under [sandbox]";
            let hint = "Remove it, or write `profile = \"contained\"` under [sandbox].";
            self.add_error("sandbox_profile", message, hint);
        }
        if sandbox_profile != ProfileSetting::Contained {
            return;
        }
        for (index, _) in
            args.iter().filter(|(_, template)| template.secret_refs().next().is_some())
        {
            let message =
                "a secret in `args` can be read by every other command in the profile `contained`";
            self.add_error(&item_path("args", *index), message, "Pass it in `env` instead.");
        }
    }

    /// Checks that every `{name}` is a property, and that a list is an argument of its own.
    fn check_arguments(&mut self, args: &[(usize, ValueTemplate)], schema: &Map<String, Value>) {
        let no_properties = Map::new();
        let properties =
            schema.get("properties").and_then(Value::as_object).unwrap_or(&no_properties);
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        for (index, template) in args {
            let key = item_path("args", *index);
            for name in template.argument_names() {
                let Some(property) = properties.get(name) else {
                    let hint = match (suggest_name(name, &known), known.is_empty()) {
                        (Some(suggestion), _) => format!("Did you mean `{{{suggestion}}}`?"),
                        (None, true) => "Describe it in `input_schema`.".to_owned(),
                        (None, false) => format!("Its properties: {}.", known.join(", ")),
                    };
                    self.add_error(
                        &key,
                        format!("`{{{name}}}` is not a property in `input_schema`"),
                        hint,
                    );
                    continue;
                };
                if property["type"] == "array"
                    && template.parts != [TemplatePart::Argument(name.to_owned())]
                {
                    let hint = "A list becomes one argument per item: write `{…}` on its own.";
                    self.add_error(&key, format!("`{{{name}}}` is a list"), hint);
                }
            }
        }
    }

    fn collect_hidden_args(
        &mut self,
        secret_args: &[String],
        schema: &Map<String, Value>,
    ) -> BTreeSet<String> {
        let mut property_names = BTreeSet::new();
        let mut hidden = BTreeSet::new();
        collect_properties(schema, schema, &mut property_names, &mut hidden);
        for (index, name) in secret_args.iter().enumerate() {
            if !property_names.contains(name) {
                let known: Vec<&str> = property_names.iter().map(String::as_str).collect();
                let hint = suggest_name(name, &known).map_or_else(
                    || "Name a property of `input_schema`.".to_owned(),
                    |suggestion| format!("Did you mean `{suggestion}`?"),
                );
                self.add_error(
                    &item_path("secret_args", index),
                    format!("`{name}` is not a property in `input_schema`"),
                    hint,
                );
            }
            hidden.insert(name.clone());
        }
        hidden
    }
}

/// Collects the names of all properties, and of those that are marked as secret, at any depth.
fn collect_properties(
    root: &Map<String, Value>,
    schema: &Map<String, Value>,
    property_names: &mut BTreeSet<String>,
    hidden: &mut BTreeSet<String>,
) {
    for (key, value) in schema {
        if matches!(key.as_str(), "properties" | "patternProperties")
            && let Value::Object(properties) = value
        {
            for (name, property) in properties {
                property_names.insert(name.clone());
                if is_secret_schema(root, property, 0) {
                    hidden.insert(name.clone());
                }
            }
        }
        match value {
            Value::Object(inner) => collect_properties(root, inner, property_names, hidden),
            Value::Array(items) => {
                items
                    .iter()
                    .filter_map(Value::as_object)
                    .for_each(|item| collect_properties(root, item, property_names, hidden));
            }
            _ => {}
        }
    }
}

/// Returns whether a schema, or one that it applies to the same value or to its items, marks the
/// value as secret.
fn is_secret_schema(root: &Map<String, Value>, schema: &Value, depth: usize) -> bool {
    if schema["writeOnly"] == true || schema["format"] == "password" {
        return true;
    }
    // Deeper than people write; a recursive schema has been covered by then.
    if depth > 8 {
        return false;
    }
    let pointer = schema["$ref"].as_str().and_then(|target| target.strip_prefix("#/"));
    let target = pointer.and_then(|pointer| {
        let mut parts = pointer.split('/').map(|part| part.replace("~1", "/").replace("~0", "~"));
        let first = root.get(&parts.next()?)?;
        parts.try_fold(first, |node, part| node.get(&part))
    });
    let branches = ["allOf", "anyOf", "oneOf", "prefixItems"]
        .iter()
        .filter_map(|key| schema[key].as_array())
        .flatten();
    let subschemas = ["items", "then", "else", "contains"].iter().filter_map(|key| schema.get(key));
    target
        .into_iter()
        .chain(branches)
        .chain(subschemas)
        .any(|inner| is_secret_schema(root, inner, depth + 1))
}

/// Builds the validator for arguments. Its patterns run in linear time.
pub fn build_validator(schema: &Map<String, Value>) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(&Value::Object(schema.clone()))
        .map_err(|error| error.to_string())
}
