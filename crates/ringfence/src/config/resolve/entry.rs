//! `[mcp.<name>]`: the operator's commands, validated and complete.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Picker;
use crate::base::nearest::nearest;
use crate::config::fault::Fault;
use crate::config::parse::places::{LineIndex, Places, child, item};
use crate::config::parse::raw;
use crate::config::parse::read::{Written, entry_key};
use crate::config::parse::template::{Part, Template};
use crate::config::secrets::Ref;
use crate::config::{Profile, Surface};

/// Names of the built-in tools, which no command may use.
pub const OURS: &[&str] = &[
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

/// Side effect of a command. The sandbox prevents those that are not declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes files in the workspace
    FilesystemWrite,
    /// Uses the network, as far as `allow_…` opens it
    Network,
}

impl Effect {
    /// Returns the name used in the file and in approvals.
    pub fn name(self) -> &'static str {
        match self {
            Effect::FilesystemWrite => "filesystem_write",
            Effect::Network => "network",
        }
    }
}

/// Standard input of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryStdin {
    /// Nothing
    None,
    /// All arguments of the call, as one JSON object
    Json,
}

/// One of the operator's commands, resolved.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    pub display_name: String,
    pub description: String,
    pub version: String,
    pub command: String,
    pub args: Vec<Template>,
    pub stdin: EntryStdin,
    pub cwd: Option<PathBuf>,
    pub env: Vec<(String, Template)>,
    pub profile: Profile,
    pub allow_network: bool,
    pub allow_domains: Vec<String>,
    pub allow_addresses: Vec<String>,
    pub side_effects: Vec<Effect>,
    pub requires_approval: bool,
    pub timeout: Duration,
    pub streaming: bool,
    /// Exactly as given.
    pub input_schema: Map<String, Value>,
    /// Arguments whose values are not shown, at any depth.
    pub hidden: BTreeSet<String>,
    /// Line of its table in the config file.
    pub line: usize,
}

impl Entry {
    /// Returns whether it may have this effect.
    pub fn declares(&self, effect: Effect) -> bool {
        self.side_effects.contains(&effect) || effect == Effect::Network && self.reaches_out()
    }

    /// Returns the effective profile, given the one under `[sandbox]`: if that is `contained`,
    /// there are no namespaces for `default`. It is never weaker than that.
    pub fn profile_beside(&self, everybodys: Profile) -> Profile {
        match (self.profile, everybodys) {
            (Profile::Default, Profile::Contained) => Profile::Contained,
            (profile, _) => profile,
        }
    }

    /// Returns whether it may reach anything on the network.
    pub fn reaches_out(&self) -> bool {
        self.allow_network || !self.allow_domains.is_empty() || !self.allow_addresses.is_empty()
    }

    /// Returns why a human has to approve calls whatever the config says.
    pub fn risk(&self) -> Option<&'static str> {
        match () {
            () if self.profile == Profile::None => Some("It runs without a sandbox."),
            () if self.declares(Effect::FilesystemWrite) && self.declares(Effect::Network) => {
                Some("It may change files in the workspace and use the network.")
            }
            () if self.declares(Effect::FilesystemWrite) => {
                Some("It may change files in the workspace.")
            }
            () if self.declares(Effect::Network) => Some("It may use the network."),
            () => None,
        }
    }

    /// Returns the secrets that it refers to.
    pub fn refs(&self) -> impl Iterator<Item = &Ref> {
        self.args.iter().chain(self.env.iter().map(|(_, value)| value)).flat_map(Template::refs)
    }

    /// Returns everything that decides what a call of it does; session trust is bound to this.
    pub fn fingerprint(&self) -> Value {
        let args: Vec<&str> = self.args.iter().map(|one| one.text.as_str()).collect();
        let env: Map<String, Value> =
            self.env.iter().map(|(name, value)| (name.clone(), json!(value.text))).collect();
        json!({
            "command": self.command, "args": args, "stdin": self.stdin == EntryStdin::Json, "cwd": self.cwd,
            "env": env, "profile": self.profile.name(), "allow_network": self.allow_network,
            "allow_domains": self.allow_domains, "allow_addresses": self.allow_addresses,
            "effects": self.side_effects.iter().map(|effect| effect.name()).collect::<Vec<_>>(),
        })
    }
}

/// Context shared by all commands of a file.
pub struct Around<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    pub places: &'a Places,
    pub lines: LineIndex,
    pub picker: &'a Picker<'a>,
    pub surface: &'a Surface,
    /// The profile under `[sandbox]`.
    pub profile: Profile,
}

/// Collects the errors in one command.
struct Check<'a> {
    around: &'a Around<'a>,
    written: &'a Written,
    faults: Vec<Fault>,
}

impl Check<'_> {
    /// Adds an error about the value of a key, or about the command's name if the key is missing.
    fn fault(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let mut path = entry_key(&self.written.name);
        if !key.is_empty() {
            path = format!("{path}.{key}");
        }
        let span = self.around.places.value(&path).unwrap_or_else(|| self.written.span.clone());
        let fault = Fault::about(&path, (self.around.path, self.around.text), span, message, hint);
        self.faults.push(Fault { entry: Some(self.written.name.clone()), ..fault });
    }

    /// Returns whether an error merely results from another key that could not be parsed.
    fn follows(&self, fault: &Fault) -> bool {
        let unread = &self.written.unread;
        let at = |key: &str| fault.key == format!("{}.{key}", entry_key(&self.written.name));
        let about =
            |key: &str| fault.key.starts_with(&format!("{}.{key}", entry_key(&self.written.name)));
        match () {
            () if unread.is_empty() => false,
            () if at("command") => true,
            () => unread.contains("input_schema") && (about("args") || about("secret_args")),
        }
    }

    fn template(&mut self, key: &str, parsed: Result<Template, String>) -> Option<Template> {
        let hint = "An argument is `{name}`, a secret `${NAME}` or `${secret:NAME}`, a brace `{{`.";
        parsed.map_err(|wrong| self.fault(key, wrong, hint)).ok()
    }
}

/// Returns the valid commands, and the errors in the others.
pub fn resolve(around: &Around<'_>, written: &[Written]) -> (Vec<Entry>, Vec<Fault>) {
    let (mut entries, mut faults): (Vec<Entry>, Vec<Fault>) = (Vec::new(), Vec::new());
    // Names of the valid commands so far, by their underscored spelling.
    let mut spellings: HashMap<String, String> = HashMap::new();
    for one in written {
        let mut check = Check { around, written: one, faults: Vec::new() };
        check.name(&spellings);
        let entry = check.entry();
        let found = std::mem::take(&mut check.faults);
        match entry.filter(|_| found.is_empty() && one.unread.is_empty()) {
            Some(entry) => {
                spellings.insert(underscored(&entry.name), entry.name.clone());
                entries.push(entry);
            }
            None => faults.extend(found.into_iter().filter(|fault| !check.follows(fault))),
        }
    }
    (entries, faults)
}

fn underscored(name: &str) -> String {
    name.replace('.', "_")
}

impl Check<'_> {
    fn name(&mut self, earlier: &HashMap<String, String>) {
        let name = self.written.name.clone();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            let hint = "Use up to 64 letters, digits, `_`, `-` and `.`.";
            self.fault("", "clients do not accept a tool with this name", hint);
        }
        if OURS.iter().any(|ours| underscored(ours) == underscored(&name)) {
            self.fault("", format!("`{name}` is a built-in tool"), "Choose another name.");
        }
        if let Some(same) = earlier.get(&underscored(&name)) {
            let message = format!(
                "`{name}` and `{same}` are the same name for clients that do not accept dots"
            );
            self.fault("", message, "Choose another name.");
        }
    }

    fn entry(&mut self) -> Option<Entry> {
        let raw = &self.written.entry;
        let (name, raw) = (self.written.name.clone(), raw::Entry::clone(raw));
        let Some(command) =
            raw.command.clone().filter(|command| !command.is_empty() && !command.contains('\0'))
        else {
            self.fault(
                "command",
                "there is no `command` to run",
                "Name a program: `command = \"make\"`.",
            );
            return None;
        };
        let command = match command.contains('/') {
            // Never from the workspace: the operator does not control the files there.
            true => match self.around.picker.file_path(Path::new(&command)) {
                Ok(path) => path.components().collect::<PathBuf>().display().to_string(),
                Err(error) => {
                    self.fault("command", error.message().to_owned(), "Give the full path.");
                    return None;
                }
            },
            false => command,
        };
        let stdin = raw.stdin.unwrap_or(EntryStdin::None);
        let input_schema = self.schema(raw.input_schema.as_ref(), stdin)?;
        let args: Vec<(usize, Template)> = (raw.args.iter().flatten().enumerate())
            .filter_map(|(at, one)| {
                Some((at, self.template(&item("args", at), Template::with_arguments(one))?))
            })
            .collect();
        let env: Vec<(String, Template)> = raw
            .env
            .iter()
            .flatten()
            .filter_map(|(name, value)| {
                let key = child("env", name);
                if name.is_empty() || name.contains(['=', '\0']) {
                    self.fault(
                        &key,
                        format!("`{name}` is not a valid name of a variable"),
                        "Use a name without `=`.",
                    );
                }
                Some((name.clone(), self.template(&key, Template::without_arguments(value))?))
            })
            .collect();
        self.arguments(&args, &input_schema);
        let profile = raw.sandbox_profile.unwrap_or(Profile::Default);
        self.beside(profile, &args);
        let hidden = self.hidden(raw.secret_args.as_deref().unwrap_or_default(), &input_schema);
        if let Some(cwd) = &raw.cwd
            && cwd.is_relative()
            && cwd.components().any(|part| part == std::path::Component::ParentDir)
        {
            self.fault(
                "cwd",
                "the directory leaves the workspace",
                "Name one inside the workspace.",
            );
        }
        Some(Entry {
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
            profile,
            allow_network: raw.allow_network.unwrap_or(false),
            allow_domains: raw.allow_domains.unwrap_or_default(),
            allow_addresses: raw.allow_addresses.unwrap_or_default(),
            side_effects: raw.side_effects.unwrap_or_default(),
            requires_approval: raw.requires_approval.unwrap_or(true),
            timeout: raw
                .timeout_ms
                .map_or(self.around.surface.default_timeout, |time| Duration::from_millis(time.0)),
            streaming: raw.streaming.unwrap_or(false),
            input_schema,
            hidden,
            line: self.around.lines.line_of(self.written.span.start),
        })
    }

    fn schema(
        &mut self,
        given: Option<&raw::InputSchema>,
        stdin: EntryStdin,
    ) -> Option<Map<String, Value>> {
        let Some(given) = given else {
            // Without a schema, `args` can name no argument; on standard input any are accepted.
            let open = stdin == EntryStdin::Json;
            let Value::Object(schema) = json!({"type": "object", "additionalProperties": open})
            else {
                return None;
            };
            return Some(schema);
        };
        let schema = given.0.clone();
        if schema.get("type") != Some(&json!("object")) {
            let hint =
                "Arguments are an object: write `type = \"object\"` at the top of the schema.";
            self.fault("input_schema", "the schema does not describe an object", hint);
            return None;
        }
        if let Err(wrong) = validator(&schema) {
            self.fault(
                "input_schema",
                format!("the schema is not a JSON Schema: {wrong}"),
                "Correct the schema.",
            );
            return None;
        }
        self.defaults(&schema);
        Some(schema)
    }

    /// Checks that each default is valid in its own schema.
    fn defaults(&mut self, schema: &Map<String, Value>) {
        let Some(Value::Object(properties)) = schema.get("properties") else { return };
        // Only the parts of the schema that a property may refer to.
        let keys = ["$schema", "$id", "$defs", "definitions", "properties"];
        let parts = schema.iter().filter(|(key, _)| keys.contains(&key.as_str()));
        let Ok(validator) =
            validator(&parts.map(|(key, value)| (key.clone(), value.clone())).collect())
        else {
            return;
        };
        for (name, property) in properties {
            let Some(default) = property.get("default") else { continue };
            if let Err(wrong) = validator.validate(&json!({ name: default })) {
                let key = format!("{}.default", child("input_schema.properties", name));
                let hint = format!("Correct the default: {}.", wrong.masked());
                self.fault(
                    &key,
                    format!("the `default` of `{name}` does not fit its own schema"),
                    hint,
                );
            }
        }
    }

    /// Checks the command against the profile under `[sandbox]`.
    fn beside(&mut self, profile: Profile, args: &[(usize, Template)]) {
        let everybodys = self.around.profile;
        if profile == Profile::Contained
            && !matches!(everybodys, Profile::Contained | Profile::None)
        {
            let message =
                "`contained` hides nothing, and is weaker than the profile under [sandbox]";
            let hint = "Remove it, or write `profile = \"contained\"` under [sandbox].";
            self.fault("sandbox_profile", message, hint);
        }
        if everybodys != Profile::Contained {
            return;
        }
        for (at, _) in args.iter().filter(|(_, word)| word.refs().next().is_some()) {
            let message =
                "a secret in `args` can be read by every other command in the profile `contained`";
            self.fault(&item("args", *at), message, "Pass it in `env` instead.");
        }
    }

    /// Checks that every `{name}` is a property, and that a list is an argument of its own.
    fn arguments(&mut self, args: &[(usize, Template)], schema: &Map<String, Value>) {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        for (at, template) in args {
            let key = item("args", *at);
            for name in template.arguments() {
                let Some(property) = properties.get(name) else {
                    let hint = match (nearest(name, &known), known.is_empty()) {
                        (Some(near), _) => format!("Did you mean `{{{near}}}`?"),
                        (None, true) => "Describe it in `input_schema`.".to_owned(),
                        (None, false) => format!("Known here: {}.", known.join(", ")),
                    };
                    self.fault(
                        &key,
                        format!("`{{{name}}}` is not a property in `input_schema`"),
                        hint,
                    );
                    continue;
                };
                if property["type"] == "array"
                    && template.parts != [Part::Argument(name.to_owned())]
                {
                    let hint = "A list becomes one argument per item: write `{…}` on its own.";
                    self.fault(&key, format!("`{{{name}}}` is a list"), hint);
                }
            }
        }
    }

    fn hidden(&mut self, named: &[String], schema: &Map<String, Value>) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut hidden = BTreeSet::new();
        look(schema, schema, &mut all, &mut hidden);
        for (at, name) in named.iter().enumerate() {
            if !all.contains(name) {
                let known: Vec<&str> = all.iter().map(String::as_str).collect();
                let hint = nearest(name, &known).map_or_else(
                    || "Name a property of `input_schema`.".to_owned(),
                    |near| format!("Did you mean `{near}`?"),
                );
                self.fault(
                    &item("secret_args", at),
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
fn look(
    root: &Map<String, Value>,
    schema: &Map<String, Value>,
    all: &mut BTreeSet<String>,
    hidden: &mut BTreeSet<String>,
) {
    for (key, value) in schema {
        if matches!(key.as_str(), "properties" | "patternProperties")
            && let Value::Object(properties) = value
        {
            for (name, property) in properties {
                all.insert(name.clone());
                if is_secret(root, property, 0) {
                    hidden.insert(name.clone());
                }
            }
        }
        match value {
            Value::Object(inner) => look(root, inner, all, hidden),
            Value::Array(items) => {
                items
                    .iter()
                    .filter_map(Value::as_object)
                    .for_each(|item| look(root, item, all, hidden));
            }
            _ => {}
        }
    }
}

/// Returns whether a schema, or one that it applies to the same value or to its items, marks the
/// value as secret.
fn is_secret(root: &Map<String, Value>, schema: &Value, depth: usize) -> bool {
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
        parts.try_fold(first, |at, part| at.get(&part))
    });
    let several = ["allOf", "anyOf", "oneOf", "prefixItems"]
        .iter()
        .filter_map(|key| schema[key].as_array())
        .flatten();
    let single = ["items", "then", "else", "contains"].iter().filter_map(|key| schema.get(key));
    target.into_iter().chain(several).chain(single).any(|inner| is_secret(root, inner, depth + 1))
}

/// Builds the validator for arguments. Its patterns run in linear time.
pub fn validator(schema: &Map<String, Value>) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(&Value::Object(schema.clone()))
        .map_err(|error| error.to_string())
}
