//! One turn of a Codex session: runs `codex exec` or `codex exec resume` in its sandbox, from the
//! prompt to the answer.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::events::EventParser;
use super::home::ThreadHome;
use super::protected_check::{self, ProtectedPaths};
use super::settings::{CodexSettings, SandboxMode};
use super::thread::ThreadRecord;
use super::user_config::UserConfig;
use crate::base::IgnorePoison;
use crate::base::call::{Prepared, ToolOutput, digest_json};
use crate::base::workspace::Workspace;
use crate::base::{Error, Kind, Result};
use crate::config::{Config, ProfileSetting};
use crate::redact::known_secrets;
use crate::sandbox::{Launcher, RunOutcome, RunState, StdinSource, StopReason, codex, env};
use crate::tools::code::exec::runtimes::{find_on_path, search_path};
use crate::tools::run::command::{self, CommandPlacement, CommandRequest};
use crate::tools::{CallPlan, PrepareCx, RunCx};

/// Notification that the removed server sent for each event.
const EVENT_METHOD: &str = "codex/event";
const INSTALL_HINT: &str =
    "Install Codex (`npm install -g @openai/codex`) in a directory on the server's PATH.";
/// Maximum characters of standard error in an error message, if Codex reported nothing else.
const MAX_STDERR_CHARS: usize = 1000;

/// One turn of a thread.
pub struct CodexTurn {
    pub prompt: String,
    pub settings: CodexSettings,
    /// Environment overrides of the session.
    pub env: BTreeMap<String, String>,
    /// The thread to continue; absent to start one.
    pub thread_id: Option<String>,
}

/// The restrictions of a turn, by Codex and by our sandbox.
struct TurnRestrictions {
    /// The mode of Codex's own sandbox.
    mode: SandboxMode,
    /// Codex's own sandbox needs namespaces of its own.
    nested: bool,
    /// The workspace is read-only for everything in our sandbox, whatever Codex does.
    read_only: bool,
}

impl TurnRestrictions {
    fn from_mode(config: &Config, mode: SandboxMode) -> Result<TurnRestrictions> {
        let is_unsandboxed = mode == SandboxMode::DangerFullAccess;
        match config.default_sandbox.profile {
            ProfileSetting::None => Ok(TurnRestrictions { mode, nested: false, read_only: false }),
            // Without a sandbox of its own there is nothing to nest, and ours is as strict as for
            // any command.
            ProfileSetting::Default => Ok(TurnRestrictions {
                mode,
                nested: !is_unsandboxed,
                read_only: mode == SandboxMode::ReadOnly,
            }),
            ProfileSetting::Contained | ProfileSetting::Seatbelt if is_unsandboxed => {
                Ok(TurnRestrictions { mode, nested: false, read_only: false })
            }
            // Ours could protect the workspace, but the commands of Codex would have network access
            // like Codex itself.
            ProfileSetting::Contained | ProfileSetting::Seatbelt => {
                let message =
                    "Codex's own sandbox needs namespaces, which this profile does not use";
                Err(Error::permission_denied("sandbox", message).with_hint(
                    "Use `sandbox: danger-full-access` to turn it off (its commands can then use the network and CODEX_HOME), or have the operator use the profile `default`.",
                ))
            }
        }
    }
}

/// Finds Codex, or says how to install it. Ignores programs inside the workspace, because the agent
/// can write there.
pub fn find_codex(config: &Config, workspace: Option<&Path>) -> Result<PathBuf> {
    let excluded_dirs =
        || workspace.into_iter().chain(config.workspace.as_deref()).chain([config.root.as_path()]);
    let is_acceptable = |file: &Path| {
        let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        !excluded_dirs().any(|dir| file.starts_with(dir) || real.starts_with(dir))
    };
    find_on_path("codex", search_path(), is_acceptable).ok_or_else(|| {
        Error::new(Kind::Unavailable, "Codex was not found on this host")
            .with_reason("runtime_missing")
            .with_hint(INSTALL_HINT)
    })
}

/// Everything that a turn depends on, read once, so that what is approved is what runs.
struct ResolvedTurn {
    user_config: UserConfig,
    restrictions: TurnRestrictions,
    cwd: PathBuf,
    args: Vec<String>,
}

impl ResolvedTurn {
    /// Returns the scope of trust. Trust in a session that only reads must not extend to one with
    /// full access, or to one with a different configuration.
    fn trust_scope(&self) -> String {
        let TurnRestrictions { mode, nested, read_only } = &self.restrictions;
        digest_json(&json!([mode.name(), nested, read_only, self.args, self.user_config.digest()]))
    }
}

/// Checks everything that a turn needs, before the user is asked.
pub fn prepare_turn(turn: &CodexTurn, cx: &PrepareCx<'_>) -> Result<CallPlan> {
    let program = find_codex(cx.config, Some(cx.workspace.path()))?;
    let resolved = turn.resolve_turn(cx.config, cx.workspace)?;
    // The approval prompt must not show credentials either.
    resolved.user_config.register_secrets();
    if cx.workspace.denies_network() {
        return Err(Error::permission_denied("client_sandbox", "the client's sandbox allows no network")
            .with_hint("Codex has to reach its model, so it cannot be run for a client whose own sandbox has no network: have the client allow network access (in Codex: `sandbox_workspace_write.network_access = true`)."));
    }
    let launch =
        codex::CodexLaunch { program: &program, home: None, nested: resolved.restrictions.nested };
    let rights = codex::codex_rights(cx.sandbox, cx.workspace.rights(), launch)?;
    if resolved.restrictions.nested {
        protected_check::check_hidden(&rights)?;
    }
    let home = rights.home.map(|home| ("HOME".to_owned(), home.display().to_string()));
    Ok(CallPlan {
        cwd: Some(resolved.cwd.display().to_string()),
        env: env::merge_env(turn.build_env(None)?, home.into_iter().collect()),
        approval_reason: (!starts_without_approval(cx))
            .then(|| approval_reason(turn, &resolved.restrictions, cx.sandbox.settings.profile)),
        trust_scope: Some(resolved.trust_scope()),
        command: Some(turn.command_line(&resolved.restrictions)),
        command_covers: &["prompt"],
        ..CallPlan::default()
    })
}

/// Returns whether the call starts without approval, as on the removed server, which never asked
/// before Codex started. That server was only reachable on standard streams, by the client that had
/// started it; over the network, anyone with access can call. Without our sandbox a human decides,
/// as for every command.
fn starts_without_approval(cx: &PrepareCx<'_>) -> bool {
    !cx.config.surface.enabled
        && cx.state.session.transport == "stdio"
        && cx.sandbox.settings.profile != ProfileSetting::None
}

/// Returns the first line of the question, which must be enough to decide in a hurry.
fn approval_reason(
    turn: &CodexTurn,
    restrictions: &TurnRestrictions,
    profile: ProfileSetting,
) -> String {
    let access = match (restrictions.read_only, profile) {
        (_, ProfileSetting::None) => "without ringfence's sandbox",
        (true, _) => "with the workspace read-only",
        (false, _) => "in the workspace",
    };
    let action = match &turn.thread_id {
        None => "runs another agent".to_owned(),
        Some(thread) => format!("continues thread {thread} of another agent"),
    };
    format!("It {action} ({}), {access} and with full network access.", restrictions.mode.name())
}

impl CodexTurn {
    fn resolve_turn(&self, config: &Config, workspace: &Workspace) -> Result<ResolvedTurn> {
        let user_config =
            UserConfig::load(config.codex_home.as_deref(), self.settings.profile.as_deref())?;
        let restrictions =
            TurnRestrictions::from_mode(config, self.settings.sandbox_mode(&user_config))?;
        let (_, relative_cwd) = workspace.open_dir(self.settings.cwd.as_deref().unwrap_or("."))?;
        let cwd: PathBuf = workspace.path().join(relative_cwd).components().collect();
        let args = self.build_args(&restrictions, &cwd)?;
        Ok(ResolvedTurn { user_config, restrictions, cwd, args })
    }

    /// Returns the text for an approval prompt. It omits settings, because they may contain
    /// credentials; the arguments show them by name.
    fn command_line(&self, restrictions: &TurnRestrictions) -> String {
        let thread =
            self.thread_id.iter().map(|thread| format!(" resume {thread}")).collect::<String>();
        format!(
            "codex exec --sandbox={}{thread}, with this prompt:\n{}",
            restrictions.mode.name(),
            self.prompt
        )
    }

    fn build_env(&self, home: Option<&Path>) -> Result<Vec<(String, String)>> {
        let turn_env: Vec<(String, String)> = self.env.clone().into_iter().collect();
        let mut codex_env = env::codex_keys();
        codex_env.extend(home.map(|home| ("CODEX_HOME".to_owned(), home.display().to_string())));
        Ok(env::merge_env(env::build(&turn_env)?, codex_env))
    }

    fn build_args(&self, restrictions: &TurnRestrictions, cwd: &Path) -> Result<Vec<String>> {
        let mut args: Vec<String> =
            ["exec", "--json", "--skip-git-repo-check", "--color=never"].map(Into::into).into();
        args.extend(self.settings.build_args(restrictions.mode, cwd)?);
        args.extend(self.thread_id.iter().flat_map(|thread| ["resume".to_owned(), thread.clone()]));
        // The prompt is passed on standard input, where it cannot be a flag and has no length
        // limit.
        args.push("-".to_owned());
        Ok(args)
    }

    /// Runs the turn and returns the answer.
    pub async fn run_turn(
        self,
        cx: &Arc<RunCx>,
        call: Prepared,
        launcher: &Launcher,
    ) -> Result<ToolOutput> {
        let limit = call.time_limit;
        let ResolvedTurn { user_config, restrictions, args, .. } =
            self.resolve_approved(cx, &call)?;
        user_config.register_secrets();
        let program = find_codex(&cx.settings.config, Some(cx.settings.workspace.path()))?;
        let mut home = match &self.thread_id {
            None => ThreadHome::create_new(&cx.settings.config, cx.session())?,
            Some(thread) => ThreadHome::reopen_thread(&cx.settings.config, cx.session(), thread)?,
        };
        home.install_config(&user_config)?;
        let codex_home = home.codex_home();
        let launch = codex::CodexLaunch {
            program: &program,
            home: Some(&codex_home),
            nested: restrictions.nested,
        };
        let mut rights =
            codex::codex_rights(&cx.settings.sandbox, cx.settings.workspace.rights(), launch)?;
        rights.nested = restrictions.nested;
        rights.read_only |= restrictions.read_only;
        let protected_paths = match restrictions.nested {
            true => Some(ProtectedPaths::capture(&rights)?),
            false => None,
        };
        let mut events = EventParser::default();
        let event_receiver = (!cx.settings.config.surface.enabled).then(|| events.forward_events());
        let events = Arc::new(Mutex::new(events));
        let filter_events = Arc::clone(&events);
        let placement = CommandPlacement {
            sandbox: cx.session_ref.state.sandboxes.sandbox_for_codex(
                &cx.settings.sandbox,
                launcher,
                launch,
            )?,
            rights,
            never_escalate: true,
            output_filter: Some(Box::new(move |bytes| {
                filter_events.lock().ignore_poison().parse_chunk(bytes)
            })),
            has_next: false,
        };
        let command = CommandRequest {
            program: program.display().to_string(),
            args,
            cwd: self.settings.cwd.clone().unwrap_or_else(|| ".".to_owned()),
            env: self.build_env(Some(&codex_home))?,
            stdin: StdinSource::Bytes(self.prompt.clone().into_bytes()),
            driver_socket: None,
            merged: false,
            max_bytes: None,
            streaming: true,
        };
        let deadline = Some(Arc::clone(&cx.control.deadline));
        let started = command::start_in(cx, call, launcher, command, deadline, placement).await?;
        let watch = async {
            let run_state = started.watch_run(cx, None, Box::pin(pending())).await;
            // Drops the sender, so that forwarding the events ends.
            (run_state, std::mem::take(&mut *events.lock().ignore_poison()).without_forwarding())
        };
        let ((run_state, events), ()) = tokio::join!(watch, send_events(cx, event_receiver));
        let RunState::Over(outcome) = run_state? else {
            return Err(Error::internal("Codex was abandoned before it finished"));
        };
        let replaced_paths = protected_paths
            .map(|protected_paths| protected_paths.list_replaced())
            .unwrap_or_default();
        let thread_id = events
            .thread_id
            .as_ref()
            .filter(|thread_id| self.thread_id.as_ref().is_none_or(|own| own == *thread_id));
        let record_result = thread_id.map_or(Ok(()), |thread_id| {
            let thread = ThreadRecord {
                workspace: cx.session().workspace.path().to_owned(),
                settings: self.settings.clone(),
            };
            home.assign_thread(&cx.settings.config, thread_id, &thread.to_json()?)
        });
        self.build_output(cx, limit, (events, record_result.err()), outcome, &replaced_paths)
    }

    /// Reads everything again and fails if it is not what was approved: files may have changed
    /// since.
    fn resolve_approved(&self, cx: &RunCx, call: &Prepared) -> Result<ResolvedTurn> {
        let resolved = self.resolve_turn(&cx.settings.config, &cx.settings.workspace)?;
        match call.trust_scope.as_ref() == Some(&resolved.trust_scope()) {
            true => Ok(resolved),
            false => Err(Error::new(
                Kind::Conflict,
                "the Codex configuration has changed since the call was prepared",
            )
            .with_reason("codex_changed")
            .with_hint(
                "Files in CODEX_HOME or the settings of the thread have changed. Call again.",
            )),
        }
    }

    fn build_output(
        &self,
        cx: &RunCx,
        limit: Duration,
        (events, record_error): (EventParser, Option<Error>),
        outcome: RunOutcome,
        replaced_paths: &[String],
    ) -> Result<ToolOutput> {
        let result = &outcome.result;
        let thread = events.thread_id.clone().or_else(|| self.thread_id.clone());
        let is_other = self.thread_id.is_some()
            && events.thread_id.is_some()
            && events.thread_id != self.thread_id;
        let failure = match result.stop_reason {
            Some(StopReason::Deadline) => {
                let limit = limit.as_millis();
                Some(Error::new(Kind::DeadlineExceeded, format!("Codex did not finish within {limit} ms")).with_hint(
                        "Its work so far is kept; continue with `codex-reply`, or raise `[limits] timeout_ms`.",
                    ))
            }
            Some(StopReason::Cancelled(_)) => {
                Some(Error::new(Kind::Cancelled, "Codex was stopped before it finished"))
            }
            None if record_error.is_some() => record_error,
            None if is_other => {
                Some(Error::internal("Codex continued another thread").with_reason("codex_failed"))
            }
            None if result.exit_code == Some(0) && events.is_completed => None,
            None => Some(failure_error(&events, &outcome)),
        };
        let mut facts = command::collect_facts(result);
        facts.denials.extend(
            replaced_paths
                .iter()
                .map(|path| json!({"kind": "protected", "name": path, "count": 1})),
        );
        let Some(thread) =
            thread.filter(|_| failure.as_ref().is_none_or(|error| error.kind() != Kind::NotFound))
        else {
            return Err(failure.unwrap_or_else(|| failure_error(&events, &outcome)));
        };
        let partial = || known_secrets::redact_str(&outcome.stdout.text);
        let mut content = match &failure {
            None => events.answer.clone().unwrap_or_default(),
            Some(error) if result.stop_reason.is_some() => {
                format!("{}\n{}", error.message(), partial()).trim_end().to_owned()
            }
            Some(error) => error.message().to_owned(),
        };
        let warning = protected_check::replaced_warning(replaced_paths);
        if let Some(warning) = &warning {
            tracing::error!(trace_id = %cx.trace_id, "{warning}");
            content = format!("{content}\n\n[ringfence: {warning}]").trim_start().to_owned();
        }
        let mut reply = Map::from_iter([
            ("threadId".to_owned(), json!(thread)),
            ("content".to_owned(), json!(content)),
        ]);
        if let Some(error) = failure.as_ref().filter(|_| cx.settings.config.surface.enabled) {
            reply.insert("error".to_owned(), error.to_body(&cx.trace_id));
        }
        if !facts.denials.is_empty() && cx.settings.config.surface.enabled {
            reply.insert("denials".to_owned(), json!(facts.denials));
        }
        if let Some(warning) = warning.filter(|_| cx.settings.config.surface.enabled) {
            reply.insert("warnings".to_owned(), json!([warning]));
        }
        Ok(ToolOutput {
            is_error: failure.is_some(),
            facts,
            ..ToolOutput::from_structured(content, Value::Object(reply))
        })
    }
}

/// Sends each event to the client, as the removed server did.
async fn send_events(cx: &RunCx, receiver: Option<mpsc::Receiver<Value>>) {
    let Some(mut receiver) = receiver else { return };
    let (mut thread, mut count) = (Value::Null, 0_u64);
    while let Some(event) = receiver.recv().await {
        if thread.is_null() && event["type"] == "thread.started" {
            thread = event["thread_id"].clone();
        }
        let params = [
            ("_meta".to_owned(), json!({"threadId": thread})),
            ("id".to_owned(), json!(count.to_string())),
            ("msg".to_owned(), event),
        ];
        count += 1;
        tokio::select! {
            () = cx.control.client.send_notification(EVENT_METHOD, Map::from_iter(params)) => {}
            _ = cx.control.cancel.cancelled() => return,
        }
    }
}

/// Returns why Codex failed, in its own words if there are any.
fn failure_error(events: &EventParser, outcome: &RunOutcome) -> Error {
    let stderr = known_secrets::redact_str(outcome.stderr.text.trim());
    let lacks_thread = events.thread_id.is_none() && stderr.contains("no rollout found");
    if lacks_thread {
        return Error::new(Kind::NotFound, "Codex no longer has this thread")
            .with_reason("unknown_thread")
            .with_hint("Start a new one with `codex`.")
            .with_fact("argument", "threadId");
    }
    let tail = || {
        let skipped = stderr.chars().count().saturating_sub(MAX_STDERR_CHARS);
        stderr.chars().skip(skipped).collect::<String>()
    };
    let message = match (&events.failure, outcome.result.exit_code) {
        (Some(failure), _) => failure.clone(),
        (None, _) if !stderr.is_empty() => tail(),
        (None, Some(code)) => format!("Codex exited with code {code} and no message"),
        (None, None) => "Codex was killed".to_owned(),
    };
    Error::internal(message).with_reason("codex_failed").with_hint(
        "This message comes from Codex; its configuration and credentials come from CODEX_HOME.",
    )
}
