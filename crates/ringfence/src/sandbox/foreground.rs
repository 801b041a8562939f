//! Foreground runs (`ringfence sandbox`): the command uses the standard input, output and error of
//! this process.

mod decider;
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
use jail::rights::Rights;
use jail::supervisor::{self, RunExit, RunFds, RunSpec, SupervisorCommand, SupervisorReport};
use jail::zygote::{self, SessionSetup, SetupResult};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep_until};

use super::config::SandboxConfig;
use super::egress::Egress;
use super::execs::{ExecDecider, ExecService};
use super::repositories::{NEW_REPOSITORY, RepositoryFindings, SessionRepositories, UNPROTECTABLE};
use super::tier::{self, available_tiers};
use super::{KeptInside, Launcher, SessionSandbox, env, git, profile, start_error};
use crate::base::{Error, Result};
use crate::config::{Config, ProfileSetting};
use crate::net::{self, AllowList};

/// Exit code if the sandbox could not be set up.
const SANDBOX_FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const PROGRAM_NOT_FOUND: u8 = 127;

/// Time allowed for killing, beyond the grace period. Only a process stuck in the kernel takes
/// longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

pub use decider::{ForegroundRules, OnPrompt};
use signals::StopSignals;

/// Options of a foreground run.
pub struct ForegroundOptions<'a> {
    /// File for the JSON report.
    pub report: Option<&'a Path>,
    /// Tries only this tier instead of all available ones.
    pub only_tier: Option<Tier>,
}

/// Runs a command in the foreground and returns the exit code for this process.
pub fn run(
    config: &Config,
    command: &[String],
    options: &ForegroundOptions<'_>,
    rules: ForegroundRules,
) -> Result<u8> {
    let sandbox_config = SandboxConfig::from_config(config);
    let settings = &sandbox_config.settings;
    profile::check_profile(&sandbox_config)?;
    let Some(workspace) = &config.workspace else {
        return Err(Error::internal("there is no workspace"));
    };
    let Some((program, args)) = command.split_first() else {
        return Err(Error::invalid_arguments("no command"));
    };
    let mut rights = profile::run_rights(&sandbox_config, workspace)?;
    if rules.escalates(config) && git::escalates_git(&rules.table) {
        git::close_repository(&mut rights);
        // There was no earlier run to which these places were open, so nothing needs to be closed.
        rights.read_only_dirs.clear();
    }
    let runtime_error =
        |error: io::Error| Error::internal("the sandbox was lost").with_source(error);
    // Forked before the runtime, because a process with several threads cannot be forked safely.
    let zygote = match settings.profile {
        ProfileSetting::Default => {
            Some(start_first_tier(&rights, options.only_tier).map_err(runtime_error)?)
        }
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(runtime_error)?;
    let repositories = GitWatch::new(&sandbox_config, &mut rights, zygote.as_ref(), &runtime)?;
    let _scratch = profile::ScratchDir::create(&sandbox_config, &mut rights)?;
    // Open it before the run, which could put a symlink in its place.
    let report_rights = if settings.profile == ProfileSetting::None { None } else { Some(&rights) };
    let mut report = options.report.map(|path| open_report(path, report_rights)).transpose()?;
    let allow_list = profile::proxy_allow_list(&sandbox_config)?.map(Arc::new);
    let cwd = working_directory(workspace);
    let mut environment = env::build(&[])?;
    let is_sandboxed = settings.profile != ProfileSetting::None;
    if is_sandboxed {
        environment =
            env::merge_env(environment, profile::sandbox_environment(&sandbox_config, &rights));
    }
    let spec = RunSpec {
        program: program.clone(),
        args: args.to_vec(),
        argv0: None,
        env: environment,
        cwd,
        grace_ms: u64::try_from(config.limits.grace.as_millis()).unwrap_or(u64::MAX),
        fence: match settings.profile {
            ProfileSetting::Default | ProfileSetting::Seatbelt => SandboxProfile::Default,
            ProfileSetting::Contained => SandboxProfile::Contained,
            ProfileSetting::None => SandboxProfile::None,
        },
        rights,
        limits: settings.limits.clone(),
        proxy_env: allow_list
            .as_ref()
            .map(|_| net::proxy_environment(jail::PORT_PLACEHOLDER))
            .unwrap_or_default(),
        shut_ports: Vec::new(),
        exec: (is_sandboxed && config.policy.intercept).then(|| rules.exec_rules(config)),
        user: None,
    };
    if !config.policy.intercept && rules.needs_decider(config) {
        return Err(Error::invalid_arguments("rules are configured but exec interception is off")
            .with_hint("Set `intercept = true` under [policy], or remove the rules."));
    }
    let kept_inside = Arc::new(KeptInside::default());
    let decider = (is_sandboxed && rules.needs_decider(config))
        .then(|| rules.into_decider(config, &spec.rights, &kept_inside));
    let control = start_supervisor(&spec, zygote.as_ref().map(Result::as_ref));
    let end = control.and_then(|control| match control {
        Ok(control) => runtime.block_on(run_supervised(control, &spec, allow_list, decider)),
        Err(sandbox_error) => Ok(ForegroundEnd::Failed(sandbox_error)),
    });
    let end = end.map_err(runtime_error)?;
    let kept_commands = kept_inside.take_new();
    let git_changed = repositories.list_changes();
    // A user who runs `git clone` expects a new repository, so it causes no warning; the report
    // still lists it.
    for change in git_changed.iter().filter(|change| !change.starts_with(NEW_REPOSITORY)) {
        let _ = writeln!(io::stderr(), "ringfence: git: {change}");
    }
    for entry in &kept_commands {
        // If standard error is closed, there is nowhere left to report it.
        let _ = writeln!(io::stderr(), "ringfence: {}", entry.summary_line());
    }
    if let (Some(file), ForegroundEnd::Exited(exit, proxy_denials)) = (&mut report, &end) {
        let run_denials =
            exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok());
        let denials: Vec<Value> = run_denials.chain(proxy_denials.iter().cloned()).collect();
        let text = json!({
            "profile": settings.profile.name(), "tier": exit.tier.map(Tier::name), "limits": exit.limits,
            "exit_code": exit.code, "signal": exit.signal, "left_behind": exit.left_behind,
            "out_of_memory": exit.out_of_memory, "denials": denials, "execs": exit.execs,
            "kept_inside": kept_commands, "git_changed": git_changed,
        });
        writeln!(file, "{text}").map_err(|error| report_write_error(&error))?;
    }
    if let (Some(file), ForegroundEnd::Failed(sandbox_error)) = (&mut report, &end) {
        let text = json!({ "profile": settings.profile.name(), "fault": sandbox_error });
        writeln!(file, "{text}").map_err(|error| report_write_error(&error))?;
    }
    Ok(match end {
        ForegroundEnd::Exited(exit, _) => exit_code(&exit),
        ForegroundEnd::Failed(sandbox_error) => print_fault(program, &sandbox_error),
    })
}

/// State of what git would execute before the run, for a command without a session.
struct GitWatch<'a> {
    config: &'a SandboxConfig,
    runtime: &'a Runtime,
    /// `None` if nothing can be run in it, and nothing has to be protected.
    sandbox: Option<SessionSandbox>,
    repositories: SessionRepositories,
    findings_before: Option<Arc<RepositoryFindings>>,
}

impl<'a> GitWatch<'a> {
    /// Records the state and protects it in these rights. git runs in the sandbox of this zygote,
    /// with which the command itself is started, too.
    fn new(
        config: &'a SandboxConfig,
        rights: &mut Rights,
        zygote: Option<&StartedZygote>,
        runtime: &'a Runtime,
    ) -> Result<GitWatch<'a>> {
        let sandbox = match zygote {
            Some(Ok(channel)) => {
                let launcher = Launcher::from_current_exe();
                let channel = Arc::clone(channel);
                Some(SessionSandbox::from_zygote(rights.clone(), config, launcher, channel)?)
            }
            _ => None,
        };
        let repositories = SessionRepositories::default();
        let mut watch = GitWatch { config, runtime, sandbox, repositories, findings_before: None };
        // If no sandbox can be set up, the run itself reports why; and without an answer from git
        // no part of a repository is writable.
        watch.findings_before = match watch.query_repositories() {
            Err(error) if error.reason_name() == Some(UNPROTECTABLE) => return Err(error),
            findings => findings.ok().flatten(),
        };
        rights.git_protected =
            watch.findings_before.as_ref().map(|findings| findings.covered.clone());
        Ok(watch)
    }

    fn list_changes(&self) -> Vec<String> {
        let Some(previous) = &self.findings_before else { return Vec::new() };
        match self.query_repositories() {
            Ok(Some(current)) => current.changes_since(previous),
            Ok(None) => Vec::new(),
            Err(error) => vec![format!("what git would execute could not be compared: {error}")],
        }
    }

    fn query_repositories(&self) -> Result<Option<Arc<RepositoryFindings>>> {
        let Some(sandbox) = &self.sandbox else { return Ok(None) };
        let home = self.config.host.home.as_deref();
        self.runtime.block_on(self.repositories.current_findings(sandbox, home))
    }
}

enum ForegroundEnd {
    /// The run's exit, and what its proxy refused.
    Exited(RunExit, Vec<Value>),
    Failed(SandboxError),
}

/// Returns the directory in which the command starts: the current one, if it is inside the
/// workspace.
fn working_directory(workspace: &Path) -> PathBuf {
    let cwd = std::env::current_dir().and_then(|cwd| cwd.canonicalize());
    cwd.ok().filter(|cwd| cwd.starts_with(workspace)).unwrap_or_else(|| workspace.to_owned())
}

/// Channel to a zygote whose session root is built, or why there is none.
type StartedZygote = std::result::Result<Arc<PacketChannel>, SandboxError>;

/// Starts a zygote in the first tier that works. If none does, the error is that of the best one.
fn start_first_tier(rights: &Rights, only_tier: Option<Tier>) -> io::Result<StartedZygote> {
    let mut first_error = None;
    for tier in only_tier.map_or_else(available_tiers, |tier| vec![tier]) {
        let channel = start_zygote(tier)?;
        match build_session_root(&channel, rights, tier) {
            Ok(()) => return Ok(Ok(Arc::new(channel))),
            Err(error) => first_error = Some(first_error.unwrap_or(error)),
        }
    }
    let no_tier_error = || {
        SandboxError::from_message(
            Layer::Namespaces,
            "start",
            "this host offers no way to create namespaces",
        )
    };
    Ok(Err(first_error.unwrap_or_else(no_tier_error)))
}

/// Starts a supervisor that waits for its spec on the returned socket: the zygote becomes it, or it
/// is a child of this process.
fn start_supervisor(
    spec: &RunSpec,
    zygote: Option<std::result::Result<&Arc<PacketChannel>, &SandboxError>>,
) -> io::Result<std::result::Result<UnixStream, SandboxError>> {
    let (control, supervisor_end) = UnixStream::pair()?;
    match zygote {
        Some(Ok(channel)) => {
            let network = SessionSandbox::network_number(spec.rights.network);
            channel.send(
                &zygote::ZygoteRequest { network, basis: None, last: true, socket: None },
                &[supervisor_end.as_fd()],
            )?;
        }
        Some(Err(error)) => return Ok(Err(error.clone())),
        None => {
            Command::new("/proc/self/exe")
                .arg(supervisor::ARGUMENT)
                .env_clear()
                .stdin(Stdio::from(OwnedFd::from(supervisor_end)))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
        }
    }
    Ok(Ok(control))
}

/// Starts a zygote that waits for its session root. There is nothing to hide from it, so a fork is
/// enough where the tier allows one.
fn start_zygote(tier: Tier) -> io::Result<PacketChannel> {
    if tier != Tier::Bwrap {
        return zygote::fork_zygote();
    }
    let (channel, zygote_end) = PacketChannel::pair()?;
    tier::zygote_command(tier, Path::new("/proc/self/exe"), zygote_end)?.spawn()?;
    Ok(channel)
}

/// Has the zygote build the session root. A zygote that exits before it has answered, as bubblewrap
/// does where it is refused, means that the tier does not work.
fn build_session_root(channel: &PacketChannel, rights: &Rights, tier: Tier) -> SetupResult {
    let channel_error = |error: io::Error| {
        SandboxError::from_io_error(Layer::Namespaces, "build the session root", &error)
    };
    channel.send(&SessionSetup { rights: rights.clone(), tier }, &[]).map_err(channel_error)?;
    match channel.receive::<SetupResult>().map_err(channel_error)? {
        Some((setup_result, _)) => setup_result,
        None => Err(SandboxError::from_message(
            Layer::Namespaces,
            "build the session root",
            "the zygote was lost",
        )),
    }
}

async fn run_supervised(
    control: UnixStream,
    spec: &RunSpec,
    allow_list: Option<Arc<AllowList>>,
    decider: Option<Arc<dyn ExecDecider>>,
) -> io::Result<ForegroundEnd> {
    // Listen before a run exists that a signal would leave behind, and after all forks that
    // would inherit the handlers.
    let signals = StopSignals::listen()?;
    let cwd = File::open(&spec.cwd)?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let egress_channel = allow_list
        .map(|allow_list| {
            PacketChannel::pair().map(|(server_end, run_end)| (allow_list, server_end, run_end))
        })
        .transpose()?;
    let exec_pair = decider
        .map(|decider| {
            PacketChannel::pair().map(|(server_end, run_end)| (decider, server_end, run_end))
        })
        .transpose()?;
    let fds = RunFds {
        stdin: stdin.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        cwd: cwd.as_fd(),
        proxy_channel: egress_channel.as_ref().map(|(_, _, run_end)| run_end.as_fd()),
        exec_channel: exec_pair.as_ref().map(|(_, _, run_end)| run_end.as_fd()),
        exec_log: None,
        program_file: None,
        driver_socket: None,
    };
    let remaining_spec = supervisor::send_spec(control.as_fd(), spec, &fds)?;
    (&control).write_all(&remaining_spec)?;
    let service = exec_pair
        .map(|(decider, server_end, _)| ExecService::start_serving(server_end, decider))
        .transpose()?;
    let egress_channel = egress_channel.map(|(allow_list, server_end, _)| (allow_list, server_end));
    let end = follow_reports(control, signals, spec.grace_ms, egress_channel).await;
    if let Some(service) = service {
        // The last decisions may still be on their way, and the list of commands kept inside is
        // built from them.
        service.finish_notices().await;
    }
    end
}

/// Follows the run until nothing of it is left, which is when the stream of reports ends. A signal
/// to this process is meant for the run: all of it gets the signal, then SIGKILL after the grace
/// period, and its end is awaited.
async fn follow_reports(
    control: UnixStream,
    mut signals: StopSignals,
    grace_ms: u64,
    egress_channel: Option<(Arc<AllowList>, PacketChannel)>,
) -> io::Result<ForegroundEnd> {
    control.set_nonblocking(true)?;
    let (reports, mut orders) = tokio::net::UnixStream::from_std(control)?.into_split();
    let mut reports = tokio::io::BufReader::new(reports).lines();
    let (mut end, mut egress, mut kill_deadline) = (None, None, None);
    loop {
        let line = tokio::select! {
            line = reports.next_line() => line?,
            signal = signals.next() => {
                let order = if kill_deadline.is_none() { SupervisorCommand::End(signal) } else { SupervisorCommand::Signal(signal) };
                // A write error means that the supervisor has ended, which the end of its reports
                // shows.
                let _ = orders.write_all(&supervisor::encode_line(&order)?).await;
                kill_deadline.get_or_insert(Instant::now() + Duration::from_millis(grace_ms) + KILL_TIMEOUT);
                continue;
            }
            () = sleep_until(kill_deadline.unwrap_or_else(Instant::now)), if kill_deadline.is_some() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "some processes of the run could not be killed"));
            }
        };
        let Some(line) = line else { break };
        match serde_json::from_str(&line)? {
            SupervisorReport::Started(_) => {
                if let Some((allow_list, channel)) = &egress_channel {
                    egress = Some(Egress::start(channel, allow_list, None)?);
                }
            }
            SupervisorReport::Failed(error) => end = Some(ForegroundEnd::Failed(error)),
            // `Over` comes last and is more complete.
            SupervisorReport::Exited(exit) | SupervisorReport::Over(exit) => {
                let denials = egress.as_ref().map(Egress::denials).unwrap_or_default();
                end = Some(ForegroundEnd::Exited(exit, denials));
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
    let parent = parent.canonicalize().map_err(|error| report_write_error(&error))?;
    if rights.is_some_and(|rights| rights.writable_roots().any(|root| parent.starts_with(root))) {
        return Err(Error::invalid_arguments(
            "the command could replace its own report, which is in a place it can write",
        )
        .with_hint(
            "Name a file outside the workspace and the writable directories with `--report`.",
        ));
    }
    let name =
        path.file_name().ok_or_else(|| report_write_error(&io::ErrorKind::IsADirectory.into()))?;
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Use the path that was checked: another run may have placed symlinks in the given one.
    let opened = rustix::fs::open(parent.join(name), flags, Mode::from_raw_mode(0o644));
    opened.map(File::from).map_err(|errno| report_write_error(&errno.into()))
}

fn report_write_error(error: &io::Error) -> Error {
    Error::invalid_arguments(format!("the report cannot be written: {error}"))
        .with_hint("Name another file with `--report`.")
}

fn exit_code(exit: &RunExit) -> u8 {
    let code = exit
        .code
        .or_else(|| exit.signal.map(|signal| 128 + signal))
        .unwrap_or(i32::from(SANDBOX_FAILED));
    u8::try_from(code).unwrap_or(SANDBOX_FAILED)
}

fn print_fault(program: &str, sandbox_error: &SandboxError) -> u8 {
    let error = start_error::explain_start_failure(program, sandbox_error);
    let hint = error.hint_text().unwrap_or_default().to_owned();
    let message = match (sandbox_error.layer, sandbox_error.errno) {
        // The message says that something was not found; the system says no more.
        (Layer::Program | Layer::Interpreter, Some(ENOENT)) => error.message().to_owned(),
        _ => error.message_chain(),
    };
    // If standard error is closed, there is nowhere left to report it.
    let _ = writeln!(io::stderr(), "error: {message}\nhint: {hint}");
    match (sandbox_error.layer, sandbox_error.errno) {
        (Layer::Program, Some(ENOENT)) => PROGRAM_NOT_FOUND,
        (Layer::Program, _) => CANNOT_RUN,
        _ => SANDBOX_FAILED,
    }
}

const ENOENT: i32 = 2;
