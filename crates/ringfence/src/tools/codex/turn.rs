//! One turn of a Codex session: `codex exec`, or `codex exec resume`, in its fence, from the prompt to the answer.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::events::Events;
use super::settings::{SandboxMode, Settings};
use super::thread::Thread;
use crate::base::call::{Output, Prepared};
use crate::base::{Error, Kind, Result};
use crate::config::{Config, Profile};
use crate::sandbox::{Cell, Launcher, Outcome, Seen, Stdin, Stop, codex, env};
use crate::tools::code_exec::runtimes::{on_path, search_path};
use crate::tools::command::{self, Command, Footing};
use crate::tools::{Plan, PrepareCx, RunCx};

/// The notification that the removed server sent for each event.
const EVENT: &str = "codex/event";
const INSTALL: &str = "Install Codex (`npm install -g @openai/codex`) where the server's PATH finds it.";
/// Characters of what Codex said on standard error, where it said nothing else.
const SAID: usize = 1000;

pub struct Turn {
    pub prompt: String,
    pub settings: Settings,
    /// What the session has chosen for its commands.
    pub env: BTreeMap<String, String>,
    /// The thread that goes on; none begins one.
    pub thread: Option<String>,
}

/// How a turn is held, by Codex and by us.
struct Held {
    /// What Codex itself shall keep to.
    mode: SandboxMode,
    /// Its own sandbox needs namespaces of its own.
    nested: bool,
    /// The workspace is read-only for everything in the fence, whatever Codex does.
    read_only: bool,
}

impl Held {
    fn of(config: &Config, settings: &Settings) -> Result<Held> {
        let mode = settings.mode(config.codex_home.as_deref());
        let is_bare = mode == SandboxMode::DangerFullAccess;
        match config.sandbox.profile {
            Profile::None => Ok(Held { mode, nested: false, read_only: false }),
            // Without a sandbox of its own there is nothing to nest, and the fence is as tight as any command's.
            Profile::Default => Ok(Held { mode, nested: !is_bare, read_only: mode == SandboxMode::ReadOnly }),
            Profile::Contained | Profile::Seatbelt if is_bare => Ok(Held { mode, nested: false, read_only: false }),
            // Ours could keep the workspace, but its commands would have the network that Codex has.
            Profile::Contained | Profile::Seatbelt => {
                let message = "Codex's own sandbox needs namespaces, which this profile does without";
                Err(Error::permission_denied("sandbox", message).hint(
                    "Give `sandbox: danger-full-access` to do without it: its commands then have the network and CODEX_HOME. Or have the operator use the profile `default`.",
                ))
            }
        }
    }
}

/// Where Codex is, or how to get it. Nothing inside the workspace is taken: whatever lies there is the agent's.
pub fn find(config: &Config, workspace: Option<&Path>) -> Result<PathBuf> {
    let shut = || workspace.into_iter().chain(config.workspace.as_deref()).chain([config.root.as_path()]);
    let is_ours = |file: &Path| {
        let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        !shut().any(|place| file.starts_with(place) || real.starts_with(place))
    };
    on_path("codex", &search_path(), is_ours).ok_or_else(|| {
        Error::new(Kind::Unavailable, "there is no Codex on this host").reason("runtime_missing").hint(INSTALL)
    })
}

/// What every turn has to be able to do, before anybody is asked.
pub fn prepare(turn: &Turn, cx: &PrepareCx<'_>) -> Result<Plan> {
    find(cx.config, Some(cx.workspace.path()))?;
    let held = Held::of(cx.config, &turn.settings)?;
    turn.settings.check_for(held.mode, cx.config.codex_home.as_deref())?;
    turn.settings.words(held.mode)?;
    if cx.workspace.denies_network() {
        return Err(Error::permission_denied("client_sandbox", "the client's sandbox allows no network")
            .hint("Codex has to reach its model: have the client allow network access for this call."));
    }
    codex::rights(cx.config, cx.workspace.rights())?;
    let (_, below) = cx.workspace.open_dir(turn.settings.cwd.as_deref().unwrap_or("."))?;
    let cwd: PathBuf = cx.workspace.path().join(below).components().collect();
    Ok(Plan {
        cwd: Some(cwd.display().to_string()),
        env: turn.environment(cx.config)?,
        asks: Some(why(turn, &held, cx.config.sandbox.profile)),
        // Who trusts one that only reads has not trusted one that does what it likes.
        extent: Some(format!("{} {}", held.mode.name(), held.read_only)),
        ..Plan::default()
    })
}

/// The first line of the question, which is enough to decide in a hurry.
fn why(turn: &Turn, held: &Held, profile: Profile) -> String {
    let writes = match (held.read_only, profile) {
        (_, Profile::None) => "without a fence of ours",
        (true, _) => "with the workspace read-only",
        (false, _) => "in the workspace",
    };
    let does = match &turn.thread {
        None => "runs another agent".to_owned(),
        Some(thread) => format!("goes on with thread {thread} of another agent"),
    };
    format!("It {does} ({}), {writes} and with the whole network.", held.mode.name())
}

impl Turn {
    fn environment(&self, config: &Config) -> Result<Vec<(String, String)>> {
        let given: Vec<(String, String)> = self.env.clone().into_iter().collect();
        let mut own = env::codex_keys();
        own.push(("CODEX_HOME".to_owned(), codex::home(config)?.display().to_string()));
        Ok(env::merge(env::build(&given)?, own))
    }

    fn words(&self, held: &Held) -> Result<Vec<String>> {
        let mut words: Vec<String> =
            ["exec", "--json", "--skip-git-repo-check", "--color=never"].map(Into::into).into();
        words.extend(self.settings.words(held.mode)?);
        words.extend(self.thread.iter().flat_map(|thread| ["resume".to_owned(), thread.clone()]));
        // The prompt comes from standard input, where it can be neither a flag nor too long.
        words.push("-".to_owned());
        Ok(words)
    }

    pub async fn run(self, cx: &Arc<RunCx>, call: Prepared, launcher: &Launcher) -> Result<Output> {
        let (limit, held) = (call.limit, Held::of(&cx.config, &self.settings)?);
        let mut rights = codex::rights(&cx.config, cx.workspace.rights())?;
        rights.nested = held.nested;
        rights.read_only |= held.read_only;
        let secrets = env::codex_keys().into_iter().map(|(_, value)| value).collect();
        let mut events = Events::new(secrets);
        let told = (!cx.config.surface.enabled).then(|| events.passed_on());
        let events = Arc::new(Mutex::new(events));
        let hearing = Arc::clone(&events);
        let footing = Footing {
            cell: Cell::for_codex(&cx.session, &cx.config, launcher)?,
            rights,
            stays_in: true,
            reads: Some(Box::new(move |bytes| hearing.lock().unwrap_or_else(PoisonError::into_inner).take(bytes))),
        };
        let command = Command {
            program: find(&cx.config, Some(cx.workspace.path()))?.display().to_string(),
            args: self.words(&held)?,
            cwd: self.settings.cwd.clone().unwrap_or_else(|| ".".to_owned()),
            env: self.environment(&cx.config)?,
            stdin: Stdin::Bytes(self.prompt.clone().into_bytes()),
            line: None,
            merged: false,
            max_bytes: None,
            streaming: true,
        };
        let deadline = Some(Arc::clone(&cx.deadline));
        let started = command::start_on(cx, call, launcher, command, deadline, footing).await?;
        let watched = async {
            let seen = started.watch(cx, None, Box::pin(pending())).await;
            // Nobody tells any more.
            (seen, std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner)).silent())
        };
        let ((seen, events), ()) = tokio::join!(watched, pass_on(cx, told));
        let Seen::Over(outcome) = seen? else { return Err(Error::internal("Codex was left before its end")) };
        if let Some(thread) = &events.thread {
            Thread::keep(&cx.config, &cx.session, thread, &self.settings);
        }
        self.output(cx, limit, events, outcome)
    }

    fn output(&self, cx: &RunCx, limit: Duration, events: Events, outcome: Outcome) -> Result<Output> {
        let ended = &outcome.ended;
        let thread = events.thread.clone().or_else(|| self.thread.clone());
        let is_other = self.thread.is_some() && events.thread.is_some() && events.thread != self.thread;
        let failed =
            match ended.stop {
                Some(Stop::Deadline) => {
                    let limit = limit.as_millis();
                    Some(Error::new(Kind::DeadlineExceeded, format!("Codex was not done within {limit} ms")).hint(
                        "What it has done so far stands; go on with `codex-reply`, or raise `[limits] timeout_ms`.",
                    ))
                }
                Some(Stop::Cancelled(_)) => Some(Error::new(Kind::Cancelled, "Codex was stopped before its end")),
                None if is_other => Some(Error::internal("Codex went on with another thread").reason("codex_failed")),
                None if ended.exit_code == Some(0) && events.is_completed => None,
                None => Some(failure(&events, &outcome)),
            };
        let facts = command::facts(ended);
        let Some(thread) = thread.filter(|_| failed.as_ref().is_none_or(|error| error.kind() != Kind::NotFound)) else {
            return Err(failed.unwrap_or_else(|| failure(&events, &outcome)));
        };
        let partial = || events.redact(&outcome.stdout.text);
        let content = match &failed {
            None => events.answer.clone().unwrap_or_default(),
            Some(error) if ended.stop.is_some() => format!("{}\n{}", error.message(), partial()).trim_end().to_owned(),
            Some(error) => error.message().to_owned(),
        };
        let mut reply =
            Map::from_iter([("threadId".to_owned(), json!(thread)), ("content".to_owned(), json!(content))]);
        if let Some(error) = failed.as_ref().filter(|_| cx.config.surface.enabled) {
            reply.insert("error".to_owned(), error.body(&cx.trace_id));
        }
        if !ended.denials.is_empty() && cx.config.surface.enabled {
            reply.insert("denials".to_owned(), json!(ended.denials));
        }
        Ok(Output { is_error: failed.is_some(), facts, ..Output::of(content, Value::Object(reply)) })
    }
}

/// Tells the client of each event, as the removed server did.
async fn pass_on(cx: &RunCx, told: Option<mpsc::Receiver<Value>>) {
    let Some(mut told) = told else { return };
    let (mut thread, mut count) = (Value::Null, 0_u64);
    while let Some(event) = told.recv().await {
        if event["type"] == "thread.started" {
            thread = event["thread_id"].clone();
        }
        let params = [
            ("_meta".to_owned(), json!({"threadId": thread})),
            ("id".to_owned(), json!(count.to_string())),
            ("msg".to_owned(), event),
        ];
        count += 1;
        tokio::select! {
            () = cx.caller.notify(EVENT, Map::from_iter(params)) => {}
            _ = cx.cancel.cancelled() => return,
        }
    }
}

/// Why Codex failed, in its own words where it has any.
fn failure(events: &Events, outcome: &Outcome) -> Error {
    let said = events.redact(outcome.stderr.text.trim());
    let lacks_thread = events.thread.is_none() && said.contains("no rollout found");
    if lacks_thread {
        return Error::new(Kind::NotFound, "Codex no longer has this thread")
            .reason("unknown_thread")
            .hint("Begin a new one with `codex`.")
            .with("argument", "threadId");
    }
    let tail = || {
        let skipped = said.chars().count().saturating_sub(SAID);
        said.chars().skip(skipped).collect::<String>()
    };
    let message = match (&events.failure, outcome.ended.exit_code) {
        (Some(failure), _) => failure.clone(),
        (None, _) if !said.is_empty() => tail(),
        (None, Some(code)) => format!("Codex ended with exit code {code} and said nothing"),
        (None, None) => "Codex was killed".to_owned(),
    };
    Error::internal(message)
        .reason("codex_failed")
        .hint("This is what Codex itself said; its configuration and credentials are in CODEX_HOME.")
}
