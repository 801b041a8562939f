//! Tools that run an operator's command: `[mcp.<name>]` in the configuration.
//!
//! The arguments of a call are validated against the entry's schema, inserted into its argument
//! templates, and the command runs in a sandbox that allows what the entry declares and nothing
//! else.

mod depth;
mod filter;
mod marks;
mod program;
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::limits::Limit;
use super::run::command::{self, Command};
use super::shell::shell_exec::Reply;
use super::{Hints, Plan, PrepareCx, RunCx, Scope, Spec, Tool, arguments};
use crate::approval::Granted;
use crate::base::call::{Output, Prepared, digest};
use crate::base::{Error, Kind, Result, visible};
use crate::config::{Config, Effect, Entry, EntryStdin, Profile, ProgramFault, validator};
use crate::redact::known;
use crate::sandbox::{DedicatedSandbox, Launcher, StdinSource, env};
use crate::session::{Overrides, Session};
use filter::Filter;

/// Maximum number of schema errors reported; the first few are enough to correct a call.
const TOLD: usize = 8;
/// A larger schema is not repeated in an error.
const SCHEMA_BYTES: usize = 16 << 10;

/// A tool that runs an operator's command.
pub struct Configured {
    spec: Spec,
    entry: Arc<Entry>,
    definition: String,
    ground: Arc<DedicatedSandbox>,
    filter: Filter,
    validator: Validator,
    deepest: usize,
    lists: BTreeSet<String>,
    launcher: Launcher,
}

impl Configured {
    /// Creates the tool. Fails if the entry is invalid and cannot be a tool.
    pub fn new(entry: &Arc<Entry>, config: &Config) -> Result<Configured> {
        let wrong = |what: String| Error::invalid_arguments(what).reason("bad_config");
        let validator = validator(&entry.input_schema).map_err(wrong)?;
        let spec = spec(entry, config);
        let definition = digest(&json!([spec.definition(), entry.fingerprint()]));
        let ground = Arc::new(DedicatedSandbox::from_entry(config, entry, &definition)?);
        let filter = Filter::new(entry, &config.surface);
        Ok(Configured {
            spec,
            entry: Arc::clone(entry),
            definition,
            ground,
            filter,
            validator,
            deepest: depth::deepest(&entry.input_schema),
            lists: lists(&entry.input_schema),
            launcher: Launcher::from_current_exe(),
        })
    }

    /// Returns the arguments with the defaults of the schema filled in.
    fn complete(&self, given: &Map<String, Value>) -> Map<String, Value> {
        let mut arguments = given.clone();
        if let Some(Value::Object(properties)) = self.entry.input_schema.get("properties") {
            for (name, property) in properties {
                if let (Some(default), false) =
                    (property.get("default"), arguments.contains_key(name))
                {
                    arguments.insert(name.clone(), default.clone());
                }
            }
        }
        arguments
    }

    /// Returns the same if they match the schema.
    fn check(&self, given: &Map<String, Value>) -> Result<Map<String, Value>> {
        depth::check(given, self.deepest)?;
        let value = Value::Object(self.complete(given));
        // Masked, because an argument may be a secret.
        let told = |error: jsonschema::ValidationError<'_>| {
            let place = error.instance_path().to_string();
            let what = error.masked().to_string();
            if place.is_empty() {
                what
            } else {
                format!("{}: {what}", place.trim_start_matches('/'))
            }
        };
        let fits = self.validator.is_valid(&value);
        match value {
            Value::Object(arguments) if fits => Ok(arguments),
            value => {
                let faults: Vec<String> =
                    self.validator.iter_errors(&value).take(TOLD).map(told).collect();
                let message = format!(
                    "the arguments of `{}` do not match its schema: {}",
                    self.spec.name,
                    faults.join("; ")
                );
                let error =
                    Error::invalid_arguments(message).reason("schema").with("faults", faults);
                let schema = json!(self.entry.input_schema);
                Err(match schema.to_string().len() <= SCHEMA_BYTES {
                    true => error
                        .with("schema", schema)
                        .hint("Correct the call according to the schema in this error."),
                    false => {
                        error.hint("Correct the call according to the schema in the list of tools.")
                    }
                })
            }
        }
    }

    fn about(&self) -> words::About<'_> {
        words::About { lists: self.lists.clone(), hidden: Some(&self.entry.hidden) }
    }

    /// Returns the working directory: the session's override, else that of the entry, else the
    /// workspace.
    fn cwd(&self, shape: &Overrides) -> String {
        match (&shape.cwd, &self.entry.cwd) {
            (Some(chosen), _) => chosen.clone(),
            (None, Some(cwd)) => cwd.display().to_string(),
            (None, None) => ".".to_owned(),
        }
    }

    async fn execute(&self, cx: &Arc<RunCx>, call: Prepared) -> Result<Output> {
        // They have been validated, and nothing could change them since.
        let arguments = self.complete(&call.arguments);
        let program = program::find(&self.entry, &cx.session.workspace)
            .map_err(|error| self.explain(error))?;
        // The target of a path may have changed while the call waited for approval.
        self.filter.check(cx.workspace.path(), Path::new(&call.cwd), &arguments)?;
        let secrets = &cx.config.secrets;
        let mut args = Vec::new();
        for word in words::expand(&self.entry.args, &arguments, &self.about())? {
            args.push(word.text(|one| words::reveal(secrets, one))?);
        }
        let mut own = Vec::new();
        for (name, value) in &self.entry.env {
            own.push((name.clone(), words::value(value, |one| words::reveal(secrets, one))?));
        }
        let env = env::merge_env(
            env::merge_env(program::baseline(&cx.session.workspace)?, own),
            cx.shape.env.clone(),
        );
        let command = Command {
            program: program.display().to_string(),
            args,
            cwd: self.cwd(&cx.shape),
            env,
            stdin: match self.entry.stdin {
                EntryStdin::None => StdinSource::Empty,
                EntryStdin::Json => {
                    StdinSource::Bytes(Value::Object(arguments).to_string().into_bytes())
                }
            },
            line: None,
            streaming: self.entry.streaming,
            merged: false,
            max_bytes: None,
        };
        let ran = command::run(cx, call, &self.launcher, command).await;
        let (profile, outcome) = ran.map_err(|error| self.explain(error))?;
        let facts = command::facts(&outcome.result);
        Reply::over(cx, profile, outcome).into_output(facts)
    }

    /// Replaces the error of a program that cannot be started. Fixing that is up to the operator,
    /// and the caller must not learn where the program is.
    fn explain(&self, error: Error) -> Error {
        if error.reason_name() != Some("spawn_failed") {
            return error;
        }
        let said = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        // Redact before truncating: a truncated secret would not be recognized.
        let said: String = known::redact(&said).chars().take(1024).collect();
        tracing::warn!(
            "the command of `{}` cannot be started: {}",
            self.spec.name,
            error.log_line()
        );
        let why = self
            .unavailable()
            .unwrap_or_else(|| format!("its program `{}` failed", program::name(&self.entry)));
        Error::new(
            Kind::Internal,
            format!("the command of `{}` could not be started: {why}", self.spec.name),
        )
        .reason("spawn_failed")
        .hint(
            "Ask the operator to run `ringfence config check`, which names the reason and the fix.",
        )
        .with("stderr", said.replace(&self.entry.command, &self.spec.name))
    }
}

/// Returns the properties that are always lists.
fn lists(schema: &Map<String, Value>) -> BTreeSet<String> {
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    properties
        .filter(|(_, property)| property["type"] == "array")
        .map(|(name, _)| name.clone())
        .collect()
}

fn spec(entry: &Entry, config: &Config) -> Spec {
    let unfenced = entry.profile == Profile::None;
    let writes = unfenced || entry.declares(Effect::FilesystemWrite);
    let reaches_out = unfenced || entry.declares(Effect::Network);
    let mut effects = vec!["exec"];
    effects.extend(writes.then_some(Effect::FilesystemWrite.name()));
    effects.extend(reaches_out.then_some(Effect::Network.name()));
    Spec {
        name: entry.name.clone(),
        title: entry.display_name.clone(),
        description: entry.description.clone(),
        version: entry.version.clone(),
        scope: if reaches_out { Scope::Network } else { Scope::Exec },
        hints: Hints {
            read_only: !writes && !reaches_out,
            destructive: writes,
            idempotent: false,
            open_world: reaches_out,
        },
        effects,
        profile: entry.profile_beside(config.sandbox.profile).name(),
        input_schema: entry.input_schema.clone(),
        output_schema: Some(arguments::reply_schema::<Reply>()),
        lists_output_schema: true,
        requires_approval: entry.requires_approval || entry.risk().is_some(),
        streaming: entry.streaming,
        timeout: entry.timeout.min(config.limits.timeout_ceiling),
        unavailable: (entry.profile == Profile::Seatbelt && cfg!(not(target_os = "macos")))
            .then(|| "the profile `seatbelt` is for macOS".to_owned()),
    }
}

impl Tool for Configured {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn definition(&self) -> String {
        self.definition.clone()
    }

    /// Checked each time, so that a program installed later needs no reload.
    fn unavailable(&self) -> Option<String> {
        let told = |fault: ProgramFault| {
            format!("its program `{}` {}", program::name(&self.entry), fault.describe())
        };
        self.spec
            .unavailable
            .clone()
            .or_else(|| program::fault(&self.entry, &self.ground.config).map(told))
    }

    fn ground(&self) -> Option<&Arc<DedicatedSandbox>> {
        Some(&self.ground)
    }

    fn is_shown_in(&self, workspace: &Path) -> bool {
        self.filter.shows(workspace)
    }

    fn session_defaults(&self, session: &Session, shape: &Overrides) -> Value {
        let env =
            self.entry.env.iter().map(|(name, value)| (name.clone(), value.text.clone())).collect();
        super::defaults((session, shape), self.entry.cwd.as_deref(), env)
    }

    fn limits(&self) -> Vec<Limit> {
        vec![Limit::time(self.spec.timeout), Limit::text(command::MAX_BYTES)]
    }

    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Plan> {
        let arguments = self.check(arguments)?;
        let cwd = self.cwd(cx.shape);
        // Opened so that the call fails before the user is asked; the run opens it again and uses
        // the descriptor it opened.
        let (_, below) = cx.workspace.open_dir(&cwd)?;
        // Drops the `.` that means the workspace itself.
        let cwd: PathBuf = cx.workspace.path().join(below).components().collect();
        self.filter.check(cx.workspace.path(), &cwd, &arguments)?;
        let program = program::find(&self.entry, &cx.session.workspace)
            .map_err(|error| self.explain(error))?;
        if self.spec.unavailable.is_none() && program::fault(&self.entry, cx.config).is_some() {
            let missing = Error::internal("it cannot be started").reason("spawn_failed");
            return Err(self.explain(missing.source(self.entry.command.clone())));
        }
        let words = words::expand(&self.entry.args, &arguments, &self.about())?;
        // A missing secret, too, must fail the call before the user is asked.
        for one in self.entry.refs() {
            cx.config.secrets.get(one)?;
        }
        let shown: Vec<String> = words.iter().map(words::Word::shown).collect();
        let own =
            self.entry.env.iter().map(|(name, value)| (name.clone(), value.text.clone())).collect();
        Ok(Plan {
            cwd: Some(cwd.display().to_string()),
            env: env::merge_env(
                self.ground.run_environment(
                    cx.session,
                    env::merge_env(program::baseline(&cx.session.workspace)?, own),
                )?,
                cx.shape.env.clone(),
            ),
            timeout: None,
            extent: None,
            asks: self.entry.risk().map(str::to_owned),
            hidden: self.entry.hidden.clone(),
            command: Some(visible::command_line(&program.display().to_string(), &shown)),
            command_covers: &[],
        })
    }

    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<Output>> {
        Box::pin(async move { self.execute(&cx, call.consume()).await })
    }
}
