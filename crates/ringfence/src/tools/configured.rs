//! Tools that run an operator's command: `[mcp.<name>]` in the configuration.
//!
//! The arguments of a call are validated against the entry's schema, inserted into its argument
//! templates, and the command runs in a sandbox that allows what the entry declares and nothing
//! else.

mod filter;
mod schema_paths;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::{Map, Value, json};

use super::arguments::schema_check::SchemaCheck;
use super::limit_docs::ToolLimit;
use super::run::command::{self, CommandRequest};
use super::run::program::{self, ProgramEntry};
use super::shell::exec::Reply;
use super::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolOrigin, ToolSpec,
    arguments,
};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput, digest_json};
use crate::base::{Error, Kind, Result, shell_quote};
use crate::config::{
    CommandStdin, CommandTool, Config, ProfileSetting, ProgramError, ProgramSearch, SideEffect,
    command_key,
};
use crate::redact::known_secrets;
use crate::sandbox::{
    DedicatedSandbox, DedicatedSpec, Launcher, LazyDefinition, SandboxConfig, StdinSource, env,
};
use crate::session::{Overrides, Session};
use filter::SurfaceFilter;

/// A tool that runs an operator's command.
pub struct ConfiguredTool {
    spec: Arc<ToolSpec>,
    entry: Arc<CommandTool>,
    definition_hash: LazyDefinition,
    own_sandbox: Arc<DedicatedSandbox>,
    program_search: ProgramSearch,
    filter: SurfaceFilter,
    /// Compiled with the first call. The config was read with the same compiler, so it is valid.
    schema_check: OnceLock<SchemaCheck>,
    list_arguments: BTreeSet<String>,
    launcher: Launcher,
}

/// Schema of the replies of all commands.
static REPLY_SCHEMA: LazyLock<LazySchema> =
    LazyLock::new(|| LazySchema::new(arguments::reply_schema::<Reply>));

impl ConfiguredTool {
    /// Creates the tool. Fails if the entry is invalid and cannot be a tool.
    pub fn new(
        entry: &Arc<CommandTool>,
        config: &Config,
        default_sandbox: &SandboxConfig,
    ) -> Result<ConfiguredTool> {
        let spec = Arc::new(build_spec(entry, config));
        let (defined_spec, defined_entry) = (Arc::clone(&spec), Arc::clone(entry));
        let definition_hash = LazyDefinition::new(move || {
            digest_json(&json!([defined_spec.definition_hash(), defined_entry.trust_fingerprint()]))
        });
        let own_sandbox = Arc::new(DedicatedSandbox::new(
            default_sandbox,
            &config.secrets,
            describe_sandbox(entry, definition_hash.clone()),
        )?);
        let filter = SurfaceFilter::new(entry, &config.surface);
        Ok(ConfiguredTool {
            spec,
            entry: Arc::clone(entry),
            definition_hash,
            own_sandbox,
            program_search: config.program_search(entry),
            filter,
            schema_check: OnceLock::new(),
            list_arguments: list_arguments(&entry.input_schema),
            launcher: Launcher::from_current_exe(),
        })
    }

    /// Returns the arguments with the defaults of the schema filled in.
    fn fill_defaults(&self, given: &Map<String, Value>) -> Map<String, Value> {
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
    fn validate_arguments(&self, given: &Map<String, Value>) -> Result<Map<String, Value>> {
        let schema_check = match self.schema_check.get() {
            Some(schema_check) => schema_check,
            None => {
                let compiled = SchemaCheck::new(&self.entry.input_schema).map_err(|message| {
                    Error::invalid_arguments(message).with_reason("bad_config")
                })?;
                self.schema_check.get_or_init(|| compiled)
            }
        };
        schema_check.check_arguments(
            &self.spec.name,
            &self.entry.input_schema,
            self.fill_defaults(given),
        )
    }

    fn program_entry(&self) -> ProgramEntry<'_> {
        let path = self.entry.env.iter().find(|(name, _)| name == "PATH");
        ProgramEntry {
            command: &self.entry.command,
            path: path.map(|(_, value)| value.text.as_str()),
            is_privileged: self.entry.access.profile == ProfileSetting::None
                || self.entry.secret_refs().next().is_some(),
        }
    }

    fn argv_options(&self) -> crate::config::template::fill::ArgvOptions<'_> {
        crate::config::template::fill::ArgvOptions {
            list_arguments: self.list_arguments.clone(),
            hidden_arguments: Some(&self.entry.hidden_args),
        }
    }

    /// Returns the working directory: the session's override, else that of the entry, else the
    /// workspace.
    fn choose_cwd(&self, overrides: &Overrides) -> String {
        match (&overrides.cwd, &self.entry.cwd) {
            (Some(chosen), _) => chosen.clone(),
            (None, Some(cwd)) => cwd.display().to_string(),
            (None, None) => ".".to_owned(),
        }
    }

    async fn execute_call(
        &self,
        cx: &Arc<RunCx>,
        arguments: Map<String, Value>,
        call: Prepared,
    ) -> Result<ToolOutput> {
        let program = program::find_program(&self.program_entry(), &cx.session().workspace)
            .map_err(|error| self.explain_start_failure(error))?;
        // The target of a path may have changed while the call waited for approval.
        self.filter.check_call(cx.settings.workspace.path(), Path::new(&call.cwd), &arguments)?;
        let secrets = &cx.settings.config.secrets;
        let mut args = Vec::new();
        for argument in crate::config::template::fill::fill_templates(
            &self.entry.args,
            &arguments,
            &self.argv_options(),
        )? {
            args.push(argument.reveal_text(|secret_ref| {
                crate::config::template::fill::reveal_secret(secrets, secret_ref)
            })?);
        }
        let mut entry_env = Vec::new();
        for (name, value) in &self.entry.env {
            entry_env.push((
                name.clone(),
                crate::config::template::fill::fill_variable(value, |secret_ref| {
                    crate::config::template::fill::reveal_secret(secrets, secret_ref)
                })?,
            ));
        }
        let env = env::merge_env(
            env::merge_env(program::base_env(&cx.session().workspace)?, entry_env),
            cx.settings.overrides.env.clone(),
        );
        let command = CommandRequest {
            program: program.display().to_string(),
            args,
            cwd: self.choose_cwd(&cx.settings.overrides),
            env,
            stdin: match self.entry.stdin {
                CommandStdin::None => StdinSource::Empty,
                CommandStdin::Json => {
                    StdinSource::Bytes(Value::Object(arguments).to_string().into_bytes())
                }
            },
            driver_socket: None,
            streaming: self.entry.streaming,
            merged: false,
            max_bytes: None,
        };
        let run_result = command::run_to_end(cx, call, &self.launcher, command).await;
        let (profile, outcome) = run_result.map_err(|error| self.explain_start_failure(error))?;
        let facts = command::collect_facts(&outcome.result);
        Reply::from_outcome(cx, profile, outcome).into_output(facts)
    }

    /// Replaces the error of a program that cannot be started. Fixing that is up to the operator,
    /// and the caller must not learn where the program is.
    fn explain_start_failure(&self, error: Error) -> Error {
        if error.reason_name() != Some("spawn_failed") {
            return error;
        }
        let stderr = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        // Redact before truncating: a truncated secret would not be recognized.
        let stderr: String = known_secrets::redact_str(&stderr).chars().take(1024).collect();
        tracing::warn!(
            "the command of `{}` cannot be started: {}",
            self.spec.name,
            error.log_line()
        );
        let reason = self.unavailable_reason().unwrap_or_else(|| {
            format!("its program `{}` failed", program::program_name(&self.entry.command))
        });
        Error::new(
            Kind::Internal,
            format!("the command of `{}` could not be started: {reason}", self.spec.name),
        )
        .with_reason("spawn_failed")
        .with_hint(
            "Ask the operator to run `ringfence config check`, which names the reason and the fix.",
        )
        .with_fact("stderr", stderr.replace(&self.entry.command, &self.spec.name))
    }
}

/// Returns the properties that are always lists.
fn list_arguments(schema: &Map<String, Value>) -> BTreeSet<String> {
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    properties
        .filter(|(_, property)| property["type"] == "array")
        .map(|(name, _)| name.clone())
        .collect()
}

/// Describes the sandbox that the command of an entry runs in.
fn describe_sandbox(entry: &CommandTool, definition: LazyDefinition) -> DedicatedSpec<'_> {
    DedicatedSpec {
        readable: Vec::new(),
        name: &entry.name,
        config_table: format!("[{}]", command_key(&entry.name)),
        definition,
        access: &entry.access,
        secret_refs: entry.secret_refs().cloned().collect(),
        own_variables: entry.env.iter().map(|(name, _)| name.clone()).collect(),
    }
}

fn build_spec(entry: &Arc<CommandTool>, config: &Config) -> ToolSpec {
    let listed_entry = Arc::clone(entry);
    let is_unsandboxed = entry.access.profile == ProfileSetting::None;
    let writes_files = is_unsandboxed || entry.access.has_effect(SideEffect::FilesystemWrite);
    let uses_network = is_unsandboxed || entry.access.has_effect(SideEffect::Network);
    let mut effects = vec!["exec"];
    effects.extend(writes_files.then_some(SideEffect::FilesystemWrite.name()));
    effects.extend(uses_network.then_some(SideEffect::Network.name()));
    ToolSpec {
        name: entry.name.clone(),
        title: entry.display_name.clone(),
        description: entry.description.clone(),
        version: entry.version.clone(),
        scope: if uses_network { PermissionScope::Network } else { PermissionScope::Exec },
        hints: ToolHints {
            read_only: !writes_files && !uses_network,
            destructive: writes_files,
            idempotent: false,
            open_world: uses_network,
        },
        effects,
        profile: entry.access.effective_profile(config.default_sandbox.profile).name(),
        input_schema: LazySchema::new(move || listed_entry.input_schema.clone()),
        output_schema: Some(LazySchema::clone(&REPLY_SCHEMA)),
        lists_output_schema: true,
        requires_approval: entry.requires_approval || entry.access.high_risk_reason().is_some(),
        streaming: entry.streaming,
        timeout: entry.timeout.min(config.limits.timeout_ceiling),
        unavailable_reason: (entry.access.profile == ProfileSetting::Seatbelt
            && cfg!(not(target_os = "macos")))
        .then(|| "the profile `seatbelt` is for macOS".to_owned()),
    }
}

impl Tool for ConfiguredTool {
    type Args = Map<String, Value>;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn origin(&self) -> ToolOrigin {
        ToolOrigin::Command
    }

    fn definition_hash(&self) -> String {
        String::from(&*self.definition_hash)
    }

    /// Checked each time, so that a program installed later needs no reload.
    fn unavailable_reason(&self) -> Option<String> {
        let describe_error = |error: ProgramError| {
            format!(
                "its program `{}` {}",
                program::program_name(&self.entry.command),
                error.describe()
            )
        };
        self.spec.unavailable_reason.clone().or_else(|| {
            program::diagnose_program(&self.program_entry(), &self.program_search)
                .map(describe_error)
        })
    }

    fn own_sandbox(&self) -> Option<&Arc<DedicatedSandbox>> {
        Some(&self.own_sandbox)
    }

    fn is_offered_in(&self, workspace: &Path) -> bool {
        self.filter.allows_listing(workspace)
    }

    fn session_defaults(&self, session: &Session, overrides: &Overrides) -> Value {
        let env =
            self.entry.env.iter().map(|(name, value)| (name.clone(), value.text.clone())).collect();
        super::describe_defaults(session, overrides, self.entry.cwd.as_deref(), env)
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![ToolLimit::for_time(self.spec.timeout), ToolLimit::for_text(command::MAX_BYTES)]
    }

    fn parse(
        &self,
        arguments: &Map<String, Value>,
        _: &PrepareCx<'_>,
    ) -> Result<Map<String, Value>> {
        self.validate_arguments(arguments)
    }

    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        let cwd = self.choose_cwd(cx.overrides);
        // Opened so that the call fails before the user is asked; the run opens it again and uses
        // the descriptor it opened.
        let (_, relative_cwd) = cx.workspace.open_dir(&cwd)?;
        // Drops the `.` that means the workspace itself.
        let cwd: PathBuf = cx.workspace.path().join(relative_cwd).components().collect();
        self.filter.check_call(cx.workspace.path(), &cwd, arguments)?;
        let program = program::find_program(&self.program_entry(), &cx.state.session.workspace)
            .map_err(|error| self.explain_start_failure(error))?;
        if self.spec.unavailable_reason.is_none()
            && program::diagnose_program(&self.program_entry(), &self.program_search).is_some()
        {
            let missing = Error::internal("it cannot be started").with_reason("spawn_failed");
            return Err(self.explain_start_failure(missing.with_source(self.entry.command.clone())));
        }
        let filled_args = crate::config::template::fill::fill_templates(
            &self.entry.args,
            arguments,
            &self.argv_options(),
        )?;
        // A missing secret, too, must fail the call before the user is asked.
        for secret_ref in self.entry.secret_refs() {
            cx.config.secrets.get(secret_ref)?;
        }
        let shown_command: Vec<String> = [program.display().to_string()]
            .into_iter()
            .chain(
                filled_args.iter().map(crate::config::template::fill::FilledArgument::display_text),
            )
            .collect();
        let entry_env =
            self.entry.env.iter().map(|(name, value)| (name.clone(), value.text.clone())).collect();
        Ok(CallPlan {
            cwd: Some(cwd.display().to_string()),
            env: env::merge_env(
                self.own_sandbox.run_environment(
                    &cx.state.sandboxes.dedicated,
                    env::merge_env(program::base_env(&cx.state.session.workspace)?, entry_env),
                )?,
                cx.overrides.env.clone(),
            ),
            timeout: None,
            trust_scope: None,
            approval_reason: self.entry.access.high_risk_reason().map(str::to_owned),
            hidden_arguments: self.entry.hidden_args.clone(),
            command: Some(shell_quote::quote_command(shown_command.iter().map(String::as_str))),
            target: None,
            command_covers: &[],
        })
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Map<String, Value>,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        self.execute_call(&cx, args, call.consume()).await
    }
}
