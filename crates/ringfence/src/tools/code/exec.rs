//! `code.exec`: runs code in the session's sandbox and returns its last value, its exception, its
//! figures and its files.
//!
//! Python, JavaScript and bash have a driver that receives code over its own socket, either once or
//! for as long as the session lives. Other interpreters run the code as a file.

mod artifacts;
mod driver_exchange;
mod driver_messages;
mod reply;
mod run_code;
pub mod runtimes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::workspace::Workspace;
use crate::base::{Error, Result, shell_quote};
use crate::config::Config;
use crate::sandbox::{Launcher, env};
use crate::tools::limit_docs::{ByteCount, ItemCount, ToolLimit};
use crate::tools::run::command::{self, SpecTexts};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolSpec, arguments,
};
use reply::Reply;
use run_code::{CodeRun, find_interpreter};
use runtimes::CodeDelivery;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// The description of `shell.exec` explains the sandbox.
const SANDBOXED_TEXT: &str = "Sandboxed like shell.exec.";
const DESCRIPTION: &str = "Run code and get its output, the value of its last expression (`result`), an exception with \
    its line (`error`), the files it made (`artifacts`) and open matplotlib figures as images. `session: \"new\"` keeps \
    the interpreter: pass its handle to run more code with the same variables.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum FigureMode {
    #[default]
    Inline,
    File,
    None,
}

/// Arguments of `code.exec`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    language: String,
    /// The code. Give this or `file`.
    code: Option<String>,
    /// A workspace file to run.
    file: Option<String>,
    /// Arguments of the program.
    args: Option<Vec<String>>,
    /// Directory, relative to the workspace (the default).
    cwd: Option<String>,
    /// Environment variables to add.
    env: Option<BTreeMap<String, String>>,
    /// Text for standard input.
    stdin: Option<String>,
    /// `new`, or the handle of a session (python, javascript, bash).
    session: Option<String>,
    /// Restart the session's interpreter first.
    reset: Option<bool>,
    /// Milliseconds until it is interrupted, then killed. Default: 60000.
    timeout_ms: Option<u64>,
    /// Figures: as images (inline, default), as figure-N.png in its directory (file), or none.
    figures: Option<FigureMode>,
    /// Maximum bytes of output (up to 262144).
    max_bytes: Option<usize>,
}

/// The `code.exec` tool.
pub struct CodeExec {
    spec: ToolSpec,
    launcher: Launcher,
}

/// Returns the schema of the arguments, with the languages that this host can run.
fn input_schema(languages: &[&str]) -> Map<String, Value> {
    let mut schema = arguments::input_schema::<Args>();
    if let Some(language) =
        schema.get_mut("properties").and_then(|properties| properties.get_mut("language"))
    {
        language["enum"] = json!(languages);
    }
    schema
}

impl CodeExec {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        Self::with_launcher(config, Launcher::from_current_exe())
    }

    fn with_launcher(config: &Config, launcher: Launcher) -> Self {
        let texts = SpecTexts::from_config(config);
        let spec = ToolSpec {
            name: "code.exec".into(),
            title: "Run code".into(),
            description: format!(
                "{DESCRIPTION} {}",
                if texts.is_sandboxed { SANDBOXED_TEXT } else { texts.description.trim() }
            ),
            version: "1.0.0".into(),
            scope: PermissionScope::Exec,
            hints: texts.hints,
            effects: texts.effects,
            profile: config.default_sandbox.profile.name(),
            input_schema: LazySchema::new(|| input_schema(&runtimes::installed_languages())),
            output_schema: Some(LazySchema::new(Reply::output_schema)),
            lists_output_schema: false,
            requires_approval: !texts.is_sandboxed,
            streaming: true,
            timeout: DEFAULT_TIMEOUT,
            unavailable_reason: (!runtimes::is_any_installed())
                .then(|| "no interpreter was found on PATH".to_owned()),
        };
        CodeExec { spec, launcher }
    }

    async fn execute_call(
        &self,
        cx: &Arc<RunCx>,
        arguments: Args,
        call: Prepared,
    ) -> Result<ToolOutput> {
        let installed =
            runtimes::find_runtime(&arguments.language, &cx.settings.workspace.rights().hidden)?;
        let run =
            CodeRun { cx, launcher: &self.launcher, installed: &installed, arguments: &arguments };
        match arguments.session.as_deref() {
            Some(session) => run.run_in_session(call, session).await,
            None if installed.runtime.delivery.has_driver() => run.run_once(call).await,
            None => run.run_without_driver(call).await,
        }
    }
}

impl Tool for CodeExec {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::for_time(DEFAULT_TIMEOUT),
            ToolLimit::from_fixed("figures", ItemCount(driver_messages::MAX_FIGURES as u64)),
            ToolLimit::from_fixed("a figure", ByteCount(driver_messages::MAX_FIGURE_BYTES as u64)),
            ToolLimit::from_fixed(
                "files compared for artifacts",
                ItemCount(artifacts::MAX_FILES as u64),
            ),
            ToolLimit::from_fixed("artifacts named", ItemCount(artifacts::MAX_SHOWN as u64)),
            ToolLimit::from_fixed(
                "interpreters kept alive",
                ItemCount(run_code::MAX_INTERPRETERS as u64),
            ),
            ToolLimit::for_text(command::MAX_BYTES),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Args> {
        let mut args: Args = self.spec.parse_arguments(arguments)?;
        args.validate_args()?;
        if args.session.as_deref().is_none_or(|session| session == "new") {
            cx.overrides.fill_unset(&mut args.cwd, &mut args.env);
        }
        Ok(args)
    }

    fn prepare(&self, args: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        let installed = runtimes::find_runtime(&args.language, &cx.workspace.rights().hidden)?;
        args.check_for_delivery(installed.runtime.delivery)?;
        if let Some(session) = args.session.as_deref().filter(|session| *session != "new") {
            find_interpreter(
                cx.state.background_runs.as_ref(),
                session,
                installed.runtime.language,
            )?;
        }
        // Opened so that the call fails before the user is asked; the run opens them again in its
        // sandbox.
        let (_, relative_cwd) = cx.workspace.open_dir(args.cwd.as_deref().unwrap_or("."))?;
        args.resolve_file(cx.workspace)?;
        let requested_timeout = args.timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
        Ok(CallPlan {
            env: args.build_env(installed.runtime.delivery)?,
            cwd: args
                .cwd
                .as_ref()
                .map(|_| cx.workspace.path().join(relative_cwd).display().to_string()),
            timeout: Some(requested_timeout.min(cx.config.limits.timeout_ceiling)),
            approval_reason: command::approval_reason(cx),
            command: Some(args.command_line()),
            command_covers: &["language", "code", "file", "args"],
            ..CallPlan::default()
        })
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        self.execute_call(&cx, args, call.consume()).await
    }
}

impl Args {
    /// Returns the text for an approval prompt: the interpreter, its arguments and the code.
    fn command_line(&self) -> String {
        let argv = [&self.language].into_iter().chain(&self.file).chain(self.args.iter().flatten());
        let line = shell_quote::quote_command(argv.map(String::as_str));
        match &self.code {
            Some(code) => format!("{line}, with this code:\n{code}"),
            None if self.file.is_none() => format!("{line}, restarted without code"),
            None => line,
        }
    }

    /// Validates what the schema cannot express.
    fn validate_args(&self) -> Result<()> {
        let refuse =
            |message: &str, hint: &str| Err(Error::invalid_arguments(message).with_hint(hint));
        match (&self.code, &self.file, self.reset) {
            (Some(_), Some(_), _) => {
                return refuse(
                    "give `code` or `file`, not both",
                    "`code` is the text of a program, `file` the path of one.",
                );
            }
            (None, None, Some(true)) | (Some(_), None, _) | (None, Some(_), _) => {}
            (None, None, _) => {
                return refuse("`code` is missing", "Give `code`, or the path of a `file`.");
            }
        }
        if self.code.iter().chain(self.args.iter().flatten()).any(|text| text.contains('\0')) {
            return refuse(
                "code and arguments cannot contain a NUL byte",
                "Write it as an escape (`\\0`).",
            );
        }
        if self.timeout_ms == Some(0) {
            return refuse("`timeout_ms` is zero", "Omit it for the default of one minute.");
        }
        match self.session.as_deref() {
            None if self.reset == Some(true) => {
                refuse("`reset` needs a session", "Give its handle as `session`.")
            }
            None => Ok(()),
            Some(_) if self.stdin.is_some() => refuse(
                "code in a session cannot have `stdin`",
                "Leave out `session`, or put the text into the code.",
            ),
            Some(session) => {
                let starts_session = session == "new" || self.reset == Some(true);
                match (self.cwd.is_some() || self.env.is_some()) && !starts_session {
                    true => refuse(
                        "`cwd` and `env` can only be set when a session is started",
                        "Change them in the code, or start another session.",
                    ),
                    false => Ok(()),
                }
            }
        }
    }

    fn check_for_delivery(&self, delivery: CodeDelivery) -> Result<()> {
        if self.session.is_some() && !delivery.has_driver() {
            return Err(Error::invalid_arguments(format!(
                "there are no sessions for {}",
                self.language
            ))
            .with_hint("python, javascript and bash support sessions."));
        }
        if self.stdin.is_some() && self.file.is_none() && delivery == CodeDelivery::Stdin {
            return Err(Error::invalid_arguments(format!(
                "{} reads the code itself from standard input",
                self.language
            ))
            .with_hint("Put the code into a file and give `file`."));
        }
        Ok(())
    }

    /// Returns the path of the file as the run sees it.
    fn resolve_file(&self, workspace: &Workspace) -> Result<Option<String>> {
        let Some(file) = &self.file else { return Ok(None) };
        let opened = workspace.open_read(file)?;
        Ok(Some(workspace.path().join(opened.path).display().to_string()))
    }

    fn program_args(&self) -> Vec<String> {
        self.args.clone().unwrap_or_default()
    }

    fn build_env(&self, delivery: CodeDelivery) -> Result<Vec<(String, String)>> {
        let mut variables = self.env.clone().unwrap_or_default();
        if delivery == CodeDelivery::Python {
            // There is no display.
            variables.entry("MPLBACKEND".to_owned()).or_insert_with(|| "Agg".to_owned());
        }
        env::build(&variables.into_iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests;
