//! Starts stdio servers in their sandbox. The holder of the connection gets the standard streams;
//! the run's own task keeps standard error, the reports and the end.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use ringfence_client::{
    ClientError, ErrorKind, ServerProcess, SpawnRequest, SpawnedServer, Spawner,
};
use tokio_util::task::TaskTracker;

use super::backend::UpstreamBackend;
use super::packages::{PackageLaunch, PackageServer};
use crate::audit::CallEvents;
use crate::base::workspace::Workspace;
use crate::base::{CancelCause, CancelToken, Error, IgnorePoison, Result};
use crate::config::template::fill::{fill_variable, reveal_secret};
use crate::config::{Config, ProfileSetting, UpstreamServer};
use crate::redact::short_secrets::ShortSecrets;
use crate::rulebook::RulebookCache;
use crate::sandbox::repositories::{GitBaseline, SessionRepositories};
use crate::sandbox::{
    DedicatedSandbox, LaunchRequest, Launcher, OutputRequest, RunHandle, RunOptions, RunResult,
    RunState, SessionSandbox, SessionSandboxes, StdinSource, StopReason, env,
};
use crate::session::OutputStore;
use crate::tools::RunCx;
use crate::tools::run::command::{record_end, status_name};
use crate::tools::run::held_execs::{ExecList, RunExecRules, audit_network};
use crate::tools::run::program::{self, ProgramEntry};

/// Bytes of standard error that are kept for errors.
const STDERR_BYTES: usize = 4 << 10;
/// Time between closing a server's input and ending it.
const EXIT_GRACE: Duration = Duration::from_secs(2);
/// Time to wait for the end of a server that closed its output.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What starting a server takes from the call, or the command of the operator, that needs it.
#[derive(Clone)]
pub struct StartContext {
    pub config: Arc<Config>,
    /// The workspace as the server may access it.
    pub workspace: Arc<Workspace>,
    /// The workspace of the session, which decides where agents could have put programs.
    pub session_workspace: Arc<Workspace>,
    /// Absent for a remote server.
    pub sandbox: Option<Arc<SessionSandbox>>,
    pub policy: RulebookCache,
    /// What git on the host would execute, which no run may change.
    pub repositories: Arc<SessionRepositories>,
    pub call_events: CallEvents,
    pub outputs: Arc<OutputStore>,
    /// Ends the server, with its session or with ours.
    pub cancel: CancelToken,
    pub tasks: TaskTracker,
}

impl StartContext {
    /// Takes what a call has. A connection that outlives its session ends with the server instead.
    pub fn from_call(cx: &RunCx, server: &UpstreamServer, outlives_session: bool) -> Result<Self> {
        let session = cx.session();
        let sandbox = match cx.settings.own_sandbox {
            Some(_) => Some(cx.open_sandbox(&Launcher::from_current_exe())?),
            None => None,
        };
        Ok(StartContext {
            config: Arc::clone(&cx.settings.config),
            workspace: Arc::clone(&cx.settings.workspace),
            session_workspace: Arc::clone(&session.workspace),
            sandbox,
            policy: cx.services.policy.clone(),
            repositories: Arc::clone(&cx.session_ref.state.sandboxes.repositories),
            call_events: cx.control.call_events.with_field("upstream", server.id.as_str()),
            outputs: Arc::clone(&session.outputs),
            cancel: match outlives_session {
                true => session.cancel.root_token(),
                false => session.cancel.clone(),
            },
            tasks: cx.services.tasks.clone(),
        })
    }

    /// Opens the sandbox of a server outside any call.
    pub fn open_sandbox(
        &mut self,
        sandboxes: &SessionSandboxes,
        own_sandbox: &DedicatedSandbox,
    ) -> Result<()> {
        self.workspace = own_sandbox.restricted_workspace(&sandboxes.dedicated)?;
        self.sandbox =
            Some(own_sandbox.get_sandbox(&sandboxes.dedicated, &Launcher::from_current_exe())?);
        Ok(())
    }
}

/// Starts one server in its sandbox, whenever its connection needs it.
pub struct SandboxSpawner {
    server: Arc<UpstreamServer>,
    package: Option<Arc<PackageServer>>,
    /// Of the call that uses the connection now: it answers for a start.
    context: RwLock<StartContext>,
}

impl SandboxSpawner {
    /// Creates the spawner of one connection.
    pub fn new(backend: &UpstreamBackend, context: StartContext) -> SandboxSpawner {
        SandboxSpawner {
            server: Arc::clone(&backend.server),
            package: backend.package.clone(),
            context: RwLock::new(context),
        }
    }

    /// Fails if the server has a package that is not installed or has changed since.
    pub async fn check_package(&self) -> Result<()> {
        match &self.package {
            Some(package) => package.check_unchanged().await,
            None => Ok(()),
        }
    }

    /// Makes another call answer for the next start. The sandbox stays the one that the connection
    /// was made for.
    pub fn set_call_events(&self, call_events: CallEvents) {
        self.context.write().ignore_poison().call_events = call_events;
    }

    /// Returns the context of the next start.
    pub fn context(&self) -> StartContext {
        self.context.read().ignore_poison().clone()
    }

    async fn start_server(&self, request: SpawnRequest) -> Result<SpawnedServer> {
        let context = self.context();
        self.check_package().await?;
        let package = self.package.as_ref();
        let package =
            package.map(|package| package.launch(&context.session_workspace)).transpose()?;
        let sandbox =
            context.sandbox.clone().ok_or_else(|| Error::internal("the server has no sandbox"))?;
        let exec_rules = RunExecRules::current_without_call(
            &context.config,
            sandbox.profile,
            &context.policy,
            context.workspace.path(),
        )
        .await?;
        let denied_hosts = exec_rules.as_ref().map(RunExecRules::denied_hosts).unwrap_or_default();
        let root = &context.config.root;
        let execs = exec_rules
            .map(|rules| rules.into_unattended_decider(context.call_events.clone(), root))
            .transpose()?;
        let exec_log = execs.as_ref().and_then(|execs| execs.log.as_ref()?.try_clone().ok());
        let home = context.config.home.clone();
        let git_baseline = GitBaseline::capture(&context.repositories, &sandbox, home).await?;
        let mut rights = context.workspace.rights().clone();
        if let Some(findings) = git_baseline.findings() {
            rights.git_protected = Some(findings.covered.clone());
        }
        let (cwd, cwd_path) = self.open_cwd(&request, &context)?;
        let launch = LaunchRequest {
            program: match &package {
                Some(package) => package.program.display().to_string(),
                None => self.find_program(&request, &context)?,
            },
            args: package.as_ref().map_or(&request.args, |package| &package.args).clone(),
            cwd,
            cwd_path,
            env: self.build_env(&context, package.as_ref())?,
            stdin: StdinSource::Open(Vec::new()),
            merge_stderr: false,
            rights: Some(rights),
            grace: context.config.limits.grace,
            on_decision: Some(audit_network(&context.call_events)),
            execs,
            denied_hosts,
            driver_socket: None,
            session_router: None,
        };
        let mut run = sandbox.start_run(launch).await?;
        let (stdin, stdout) =
            run.take_streams().ok_or_else(|| Error::internal("the server has no streams"))?;
        let handle = run.into_handle(run_options(context, sandbox, git_baseline, exec_log));
        Ok(SpawnedServer {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            process: Box::new(SandboxedProcess::new(handle)),
        })
    }

    /// Opens the directory that the server starts in. Interpreters load modules from there, and an
    /// agent writes the workspace: a server with secrets starts in its own HOME unless the operator
    /// chose a directory.
    fn open_cwd(
        &self,
        request: &SpawnRequest,
        context: &StartContext,
    ) -> Result<(OwnedFd, PathBuf)> {
        let chosen = self.server.cwd.as_deref().or(request.cwd.as_deref());
        let has_secrets = self.server.secret_refs().next().is_some();
        if let (None, true, Some(home)) = (chosen, has_secrets, &context.workspace.rights().home) {
            let file = std::fs::File::open(home).map_err(|error| {
                Error::internal("cannot open the home of the server").with_source(error)
            })?;
            return Ok((file.into(), home.clone()));
        }
        let path = chosen.unwrap_or(Path::new(".")).display().to_string();
        let (directory, relative) = context.workspace.open_dir(&path)?;
        Ok((directory, context.workspace.path().join(relative)))
    }

    fn find_program(&self, request: &SpawnRequest, context: &StartContext) -> Result<String> {
        let path = self.server.env.iter().find(|(name, _)| name == "PATH");
        let entry = ProgramEntry {
            command: &request.command,
            path: path.map(|(_, value)| value.text.as_str()),
            is_privileged: self.server.access.profile == ProfileSetting::None
                || self.server.secret_refs().next().is_some(),
        };
        let program = program::find_program(&entry, &context.session_workspace);
        Ok(program.map_err(|error| self.explain_missing_program(error))?.display().to_string())
    }

    fn explain_missing_program(&self, error: Error) -> Error {
        match error.reason_name() {
            Some("spawn_failed") => error.with_hint(format!(
                "Install it, or give its whole path as `command` of the server `{}`.",
                self.server.id
            )),
            _ => error,
        }
    }

    /// Returns the environment. A secret that is missing or empty stops the start: a server that
    /// runs without its key fails later, and no one knows why.
    fn build_env(
        &self,
        context: &StartContext,
        package: Option<&PackageLaunch>,
    ) -> Result<Vec<(String, String)>> {
        let mut own_env = Vec::new();
        for (name, value) in &self.server.env {
            let secrets = &context.config.secrets;
            let text = fill_variable(value, |secret_ref| {
                let text = reveal_secret(secrets, secret_ref)?;
                match text.is_empty() {
                    false => Ok(text),
                    true => Err(empty_secret_error(secret_ref.name())),
                }
            })?;
            own_env.push((name.clone(), text));
        }
        let mut base_env = program::base_env(&context.session_workspace)?;
        // Else `python3 -m server` runs a `json.py` of the workspace.
        base_env.push(("PYTHONSAFEPATH".to_owned(), "1".to_owned()));
        let env = env::merge_env(base_env, own_env);
        Ok(match package {
            Some(package) => package.complete_env(env),
            None => env,
        })
    }
}

/// Returns the error for a secret without a value.
pub fn empty_secret_error(name: &str) -> Error {
    Error::new(crate::base::Kind::Unauthenticated, format!("the secret `{name}` is empty"))
        .with_reason("missing_secret")
        .with_hint(format!("Have the operator run `ringfence secret set {name}`."))
}

fn run_options(
    context: StartContext,
    sandbox: Arc<SessionSandbox>,
    git_baseline: GitBaseline,
    exec_log: Option<std::fs::File>,
) -> RunOptions {
    let short_secrets = context.config.policy.audit_execs.then(ShortSecrets::default);
    let call_events = context.call_events;
    RunOptions {
        outputs: context.outputs,
        cancel: context.cancel,
        deadline: None,
        budget: STDERR_BYTES,
        max_file_bytes: context.config.limits.output_file_bytes,
        stdout_filter: None,
        on_end: Box::new(move |result: &mut RunResult| {
            let count = result.execs.take();
            result.exec_summary = exec_log.map(|log| {
                ExecList::new(call_events.clone(), short_secrets, log).record_and_summarize(count)
            });
            Box::pin(async move {
                result.git_changed = git_baseline.describe_changes().await;
                record_end(&call_events, result);
                // The namespaces of the server end with it.
                drop(sandbox);
            })
        }),
        on_late_end: None,
        on_forgotten: Box::new(|| {}),
        tasks: context.tasks,
    }
}

impl Spawner for SandboxSpawner {
    fn spawn(
        &self,
        request: SpawnRequest,
    ) -> BoxFuture<'_, ringfence_client::Result<SpawnedServer>> {
        Box::pin(async move { self.start_server(request).await.map_err(describe_start_error) })
    }
}

fn describe_start_error(error: Error) -> ClientError {
    let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint()).to_owned();
    ClientError::new(ErrorKind::Unavailable, error.message_chain()).with_hint(hint)
}

/// Description of how a run ended, shared by all who ask for it.
type EndDescription = Shared<BoxFuture<'static, String>>;

/// A server's process in its sandbox. Dropping it ends the run, because its last handle goes.
struct SandboxedProcess {
    handle: RunHandle,
    end: EndDescription,
}

impl SandboxedProcess {
    fn new(handle: RunHandle) -> SandboxedProcess {
        // This handle alone would keep the run alive; dropping the process stops it.
        let observed = handle.clone();
        let end = async move { describe_end(&observed).await };
        SandboxedProcess { handle, end: end.boxed().shared() }
    }
}

impl ServerProcess for SandboxedProcess {
    fn describe_end(&self) -> BoxFuture<'static, String> {
        let end = self.end.clone();
        Box::pin(async move {
            let ended = tokio::time::timeout(END_TIMEOUT, end).await;
            ended.unwrap_or_else(|_| "it closed its output".to_owned())
        })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // Its input has been closed, which ends a well-behaved server.
            if tokio::time::timeout(EXIT_GRACE, self.end.clone()).await.is_err() {
                self.handle.stop(StopReason::Cancelled(CancelCause::SessionEnd));
                self.end.clone().await;
            }
        })
    }
}

impl Drop for SandboxedProcess {
    fn drop(&mut self) {
        self.handle.stop(StopReason::Cancelled(CancelCause::SessionEnd));
    }
}

async fn describe_end(handle: &RunHandle) -> String {
    let request = OutputRequest {
        client: None,
        budget: STDERR_BYTES,
        until: Box::pin(std::future::pending()),
        yields_to_next: false,
    };
    match handle.request_output(request).await {
        Ok(RunState::Over(outcome)) => {
            let result = &outcome.result;
            let end = match (result.exit_code, result.signal) {
                (Some(code), _) => format!("it exited with code {code}"),
                (None, Some(signal)) => format!("it was ended by signal {signal}"),
                (None, None) => format!("it has {}", status_name(result)),
            };
            match outcome.stderr.text.trim_end() {
                "" => end,
                text => format!("{end}; it wrote:\n{text}"),
            }
        }
        Ok(RunState::Running(_)) => "it closed its output".to_owned(),
        Err(error) => error.message_chain(),
    }
}
