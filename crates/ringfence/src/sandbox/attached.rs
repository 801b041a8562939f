//! Foreground runs (`ringfence sandbox`): the command uses the standard input, output and error of
//! this process.

mod desk;
mod signals;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jail::SandboxProfile;
use jail::error::{Layer, SandboxError};
use jail::namespaces::Tier;
use jail::packet::PacketChannel;
use jail::rights::{NetworkAccess, Rights};
use jail::supervisor::{self, RunExit, RunFds, RunSpec, SupervisorCommand, SupervisorReport};
use jail::zygote::{self, SessionSetup, SetupResult};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

use super::egress::Egress;
use super::execs::{Desk, Service};
use super::repositories::{Known, MADE, Repositories, UNPROTECTABLE};
use super::tier::{self, tiers};
use super::{Cell, KeptInside, Launcher, env, fault, git, profile};
use crate::base::{Error, Result};
use crate::config::{Config, Profile};
use crate::net::{self, Allow};

/// Exit code if the sandbox could not be set up.
const NO_FENCE: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NO_PROGRAM: u8 = 127;

/// Time allowed for killing, beyond the grace period. Only a process stuck in the kernel takes
/// longer.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

pub use desk::{OnPrompt, Ruling};
use signals::StopSignals;

/// Options of a foreground run.
pub struct Terms<'a> {
    /// File for the JSON report.
    pub report: Option<&'a Path>,
    /// Tries only this tier instead of all available ones.
    pub only: Option<Tier>,
}

/// Runs a command in the foreground and returns the exit code for this process.
pub fn run(config: &Config, command: &[String], terms: &Terms<'_>, ruling: Ruling) -> Result<u8> {
    profile::check(config)?;
    let Some(workspace) = &config.workspace else {
        return Err(Error::internal("there is no workspace"));
    };
    let Some((program, args)) = command.split_first() else {
        return Err(Error::invalid_arguments("no command"));
    };
    let mut rights = profile::rights(config, workspace)?;
    if ruling.lets_out(config) && git::is_let_out(&ruling.table) {
        git::protect(&mut rights);
        // There was no earlier run to which these places were open, so nothing needs to be closed.
        rights.closed.clear();
    }
    let repositories = GitWatch::begin(config, &mut rights)?;
    let _scratch = profile::Scratch::make(config, &mut rights)?;
    // Open it before the run, which could put a symlink in its place.
    let replaceable = if config.sandbox.profile == Profile::None { None } else { Some(&rights) };
    let mut report = terms.report.map(|path| open_report(path, replaceable)).transpose()?;
    let allow = profile::allow(config)?.map(Arc::new);
    let cwd = working_directory(workspace);
    let mut environment = env::build(&[])?;
    let fenced = config.sandbox.profile != Profile::None;
    if fenced {
        environment = env::merge(environment, profile::environment(config, &rights));
    }
    let spec = RunSpec {
        program: program.clone(),
        args: args.to_vec(),
        argv0: None,
        env: environment,
        cwd,
        grace_ms: u64::try_from(config.limits.grace.as_millis()).unwrap_or(u64::MAX),
        fence: match config.sandbox.profile {
            Profile::Default | Profile::Seatbelt => SandboxProfile::Default,
            Profile::Contained => SandboxProfile::Contained,
            Profile::None => SandboxProfile::None,
        },
        rights,
        limits: config.sandbox.limits.clone(),
        proxy_env: allow
            .as_ref()
            .map(|_| net::environment(jail::PORT_PLACEHOLDER))
            .unwrap_or_default(),
        shut_ports: Vec::new(),
        exec: (fenced && config.policy.intercept).then(|| ruling.rules(config)),
        user: None,
    };
    if !config.policy.intercept && ruling.is_needed(config) {
        return Err(Error::invalid_arguments("rules are configured but exec interception is off")
            .hint("Set `intercept = true` under [policy], or remove the rules."));
    }
    let kept_inside = Arc::new(KeptInside::default());
    let desk = (fenced && ruling.is_needed(config))
        .then(|| ruling.desk(config, &spec.rights, &kept_inside));
    let outcome = start(&spec, terms.only)
        .and_then(|(control, tier)| watch(control, &spec, allow, desk).map(|end| (end, tier)));
    let (end, tier) =
        outcome.map_err(|error| Error::internal("the sandbox was lost").source(error))?;
    let kept = kept_inside.take();
    let git_changed = repositories.changes();
    // A user who runs `git clone` expects a new repository, so it causes no warning; the report
    // still lists it.
    for change in git_changed.iter().filter(|change| !change.starts_with(MADE)) {
        let _ = writeln!(io::stderr(), "ringfence: git: {change}");
    }
    for entry in &kept {
        // If standard error is closed, there is nowhere left to report it.
        let _ = writeln!(io::stderr(), "ringfence: {}", entry.line());
    }
    if let (Some(file), End::Exited(exit, refused)) = (&mut report, &end) {
        let seen = exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok());
        let denials: Vec<Value> = seen.chain(refused.iter().cloned()).collect();
        let text = json!({
            "profile": config.sandbox.profile.name(), "tier": tier.map(Tier::name), "limits": exit.limits,
            "exit_code": exit.code, "signal": exit.signal, "left_behind": exit.left_behind,
            "out_of_memory": exit.out_of_memory, "denials": denials, "execs": exit.execs,
            "kept_inside": kept, "git_changed": git_changed,
        });
        writeln!(file, "{text}").map_err(|error| unwritable(&error))?;
    }
    if let (Some(file), End::Failed(fault)) = (&mut report, &end) {
        let text = json!({ "profile": config.sandbox.profile.name(), "fault": fault });
        writeln!(file, "{text}").map_err(|error| unwritable(&error))?;
    }
    Ok(match end {
        End::Exited(exit, _) => code(&exit),
        End::Failed(fault) => tell(program, &fault),
    })
}

/// State of what git would execute before the run, for a command without a session.
struct GitWatch<'a> {
    config: &'a Config,
    rights: Rights,
    repositories: Repositories,
    before: Option<Arc<Known>>,
}

impl<'a> GitWatch<'a> {
    /// Records the state and protects it in these rights.
    fn begin(config: &'a Config, rights: &mut Rights) -> Result<GitWatch<'a>> {
        let mut watch = GitWatch {
            config,
            rights: rights.clone(),
            repositories: Repositories::default(),
            before: None,
        };
        // If no sandbox can be set up, the run itself reports why; and without an answer from git
        // no part of a repository is writable.
        watch.before = match watch.look() {
            Err(error) if error.reason_name() == Some(UNPROTECTABLE) => return Err(error),
            known => known.ok().flatten(),
        };
        rights.for_git = watch.before.as_ref().map(|known| known.covered.clone());
        Ok(watch)
    }

    fn changes(&self) -> Vec<String> {
        let Some(before) = &self.before else { return Vec::new() };
        match self.look() {
            Ok(Some(now)) => now.changes_since(before),
            Ok(None) => Vec::new(),
            Err(error) => vec![format!("what git would execute could not be compared: {error}")],
        }
    }

    /// Uses a runtime that is dropped before this returns: this process forks later, so it must
    /// have a single thread.
    fn look(&self) -> Result<Option<Arc<Known>>> {
        if self.config.sandbox.profile != Profile::Default {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Error::internal("git cannot be run").source(error))?;
        runtime.block_on(async {
            let cell = Cell::with(self.rights.clone(), self.config, Launcher::own())?;
            self.repositories.look(&cell, self.config.home.as_deref()).await
        })
    }
}

enum End {
    /// The run's exit, and what its proxy refused.
    Exited(RunExit, Vec<Value>),
    Failed(SandboxError),
}

/// Returns the directory in which the command starts: the current one, if it is inside the
/// workspace.
fn working_directory(workspace: &Path) -> PathBuf {
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    here.ok().filter(|here| here.starts_with(workspace)).unwrap_or_else(|| workspace.to_owned())
}

/// Starts a supervisor that waits for its spec on the returned socket.
fn start(
    spec: &RunSpec,
    only: Option<Tier>,
) -> io::Result<(std::result::Result<UnixStream, SandboxError>, Option<Tier>)> {
    let (ours, theirs) = UnixStream::pair()?;
    if spec.fence != SandboxProfile::Default {
        Command::new("/proc/self/exe")
            .arg(supervisor::ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        return Ok((Ok(ours), None));
    }
    let mut refused = None;
    for tier in only.map_or_else(tiers, |tier| vec![tier]) {
        let channel = begin(tier)?;
        match lay(&channel, &spec.rights, tier) {
            Ok(()) => {
                let network = (spec.rights.network != NetworkAccess::All).then_some(0);
                channel.send(
                    &zygote::ZygoteRequest { network, last: true, socket: None },
                    &[theirs.as_fd()],
                )?;
                // The zygote ends with this process, and takes the run with it.
                std::mem::forget(channel);
                return Ok((Ok(ours), Some(tier)));
            }
            Err(fault) => refused = Some(refused.unwrap_or(fault)),
        }
    }
    let none = || {
        SandboxError::from_message(
            Layer::Namespaces,
            "start",
            "this host offers no way to create namespaces",
        )
    };
    Ok((Err(refused.unwrap_or_else(none)), None))
}

/// Starts a zygote that waits for its session root. There is nothing to hide from it, so a fork is
/// enough where the tier allows one.
fn begin(tier: Tier) -> io::Result<PacketChannel> {
    if tier != Tier::Bwrap {
        return zygote::fork_zygote();
    }
    let (ours, theirs) = PacketChannel::pair()?;
    tier::zygote(tier, Path::new("/proc/self/exe"), theirs)?.spawn()?;
    Ok(ours)
}

/// Has the zygote build the session root. A zygote that exits before it has answered, as bubblewrap
/// does where it is refused, means that the tier does not work.
fn lay(channel: &PacketChannel, rights: &Rights, tier: Tier) -> SetupResult {
    let lost = |error: io::Error| {
        SandboxError::from_io_error(Layer::Namespaces, "build the session root", &error)
    };
    channel.send(&SessionSetup { rights: rights.clone(), tier }, &[]).map_err(lost)?;
    match channel.receive::<SetupResult>().map_err(lost)? {
        Some((laid, _)) => laid,
        None => Err(SandboxError::from_message(
            Layer::Namespaces,
            "build the session root",
            "the zygote was lost",
        )),
    }
}

fn watch(
    control: std::result::Result<UnixStream, SandboxError>,
    spec: &RunSpec,
    allow: Option<Arc<Allow>>,
    desk: Option<Arc<dyn Desk>>,
) -> io::Result<End> {
    let control = match control {
        Ok(control) => control,
        Err(fault) => return Ok(End::Failed(fault)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Listen before a run exists that a signal would leave behind, and after all forks that
        // would inherit the handlers.
        let signals = StopSignals::listen()?;
        let cwd = File::open(&spec.cwd)?;
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let way_out = allow
            .map(|allow| PacketChannel::pair().map(|(ours, theirs)| (allow, ours, theirs)))
            .transpose()?;
        let questions = desk
            .map(|desk| PacketChannel::pair().map(|(ours, theirs)| (desk, ours, theirs)))
            .transpose()?;
        let fds = RunFds {
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            cwd: cwd.as_fd(),
            proxy_channel: way_out.as_ref().map(|(_, _, theirs)| theirs.as_fd()),
            exec_channel: questions.as_ref().map(|(_, _, theirs)| theirs.as_fd()),
            exec_log: None,
            program_file: None,
            driver_socket: None,
        };
        let rest = supervisor::send_spec(control.as_fd(), spec, &fds)?;
        (&control).write_all(&rest)?;
        let service = questions
            .map(|(desk, ours, _)| Service::start(ours, desk, Arc::default()))
            .transpose()?;
        let way_out = way_out.map(|(allow, ours, _)| (allow, ours));
        let end = follow(control, signals, spec.grace_ms, way_out).await;
        if let Some(service) = service {
            // The last decisions may still be on their way, and the list of commands kept inside is
            // built from them.
            service.finish().await;
        }
        end
    })
}

/// Follows the run until nothing of it is left, which is when the stream of reports ends. A signal
/// to this process is meant for the run: all of it gets the signal, then SIGKILL after the grace
/// period, and its end is awaited.
async fn follow(
    control: UnixStream,
    mut signals: StopSignals,
    grace_ms: u64,
    way_out: Option<(Arc<Allow>, PacketChannel)>,
) -> io::Result<End> {
    control.set_nonblocking(true)?;
    let (reports, mut orders) = tokio::net::UnixStream::from_std(control)?.into_split();
    let mut reports = tokio::io::BufReader::new(reports).lines();
    let (mut end, mut egress, mut until) = (None, None, None);
    loop {
        let line = tokio::select! {
            line = reports.next_line() => line?,
            signal = signals.next() => {
                let order = if until.is_none() { SupervisorCommand::End(signal) } else { SupervisorCommand::Signal(signal) };
                // A write error means that the supervisor has ended, which the end of its reports
                // shows.
                let _ = orders.write_all(&supervisor::encode_line(&order)?).await;
                until.get_or_insert(Instant::now() + Duration::from_millis(grace_ms) + KILLED_WITHIN);
                continue;
            }
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "some processes of the run could not be killed"));
            }
        };
        let Some(line) = line else { break };
        match serde_json::from_str(&line)? {
            SupervisorReport::Started(_) => {
                if let Some((allow, handout)) = &way_out {
                    egress = Some(Egress::start(handout, allow, None)?);
                }
            }
            SupervisorReport::Failed(fault) => end = Some(End::Failed(fault)),
            // `Over` comes last and is more complete.
            SupervisorReport::Exited(exit) | SupervisorReport::Over(exit) => {
                let refused = egress.as_ref().map(Egress::denials).unwrap_or_default();
                end = Some(End::Exited(exit, refused));
            }
        }
    }
    end.ok_or_else(|| io::Error::other("the supervisor was lost"))
}

/// Opens the report file, but not where the command can write: there it could replace the file and
/// deceive its readers.
fn open_report(path: &Path, rights: Option<&Rights>) -> Result<File> {
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|error| unwritable(&error))?;
    if rights.is_some_and(|rights| rights.writable_roots().any(|root| parent.starts_with(root))) {
        return Err(Error::invalid_arguments(
            "the command could replace its own report, which is in a place it can write",
        )
        .hint("Name a file outside the workspace and the writable directories with `--report`."));
    }
    let name = path.file_name().ok_or_else(|| unwritable(&io::ErrorKind::IsADirectory.into()))?;
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Use the path that was checked: another run may have placed symlinks in the given one.
    let opened = rustix::fs::open(parent.join(name), flags, Mode::from_raw_mode(0o644));
    opened.map(File::from).map_err(|errno| unwritable(&errno.into()))
}

fn unwritable(error: &io::Error) -> Error {
    Error::invalid_arguments(format!("the report cannot be written: {error}"))
        .hint("Name another file with `--report`.")
}

fn code(exit: &RunExit) -> u8 {
    let code =
        exit.code.or_else(|| exit.signal.map(|signal| 128 + signal)).unwrap_or(i32::from(NO_FENCE));
    u8::try_from(code).unwrap_or(NO_FENCE)
}

fn tell(program: &str, fault: &SandboxError) -> u8 {
    let error = fault::explain(program, fault);
    let hint = error.hint_text().unwrap_or_default().to_owned();
    // If standard error is closed, there is nowhere left to report it.
    let _ = writeln!(io::stderr(), "error: {}\nhint: {hint}", error.detail());
    match (fault.layer, fault.errno) {
        (Layer::Program, Some(ENOENT)) => NO_PROGRAM,
        (Layer::Program, _) => CANNOT_RUN,
        _ => NO_FENCE,
    }
}

const ENOENT: i32 = 2;
