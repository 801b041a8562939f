//! Commands that leave the sandbox: each runs elsewhere, in place of a process that waits inside.
//!
//! Everything the decision depends on was copied when the process was stopped, and everything
//! opened here is compared with that copy: the file that was judged is the file that runs, in the
//! directory it was called in. None of it may be in a place that the run can write.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jail::SandboxProfile;
use jail::intercept::exec::wire::{ExecAnswer, FileIdentity, HeldExec};
use jail::rights::Rights;
use jail::supervisor::{RunFds, RunSpec, SupervisorCommand};
use policy::{Decision, RuleTable};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use tokio::sync::mpsc;

use super::config::SandboxConfig;
pub use super::exec_answer::refuse_escalation;
use super::exec_answer::{answer_from_report, next_signal};
use super::execs::WaitingExec;
use super::launch::WiderRunOptions;
use super::launcher::Launcher;
use super::session_sandboxes::SessionSandboxes;
use super::supervisor_control::SupervisorControl;
use super::user::UserAccount;
use super::{env, git, script};
use crate::approval::Granted;
use crate::base::{Error, Result};
use crate::config::{Config, EscalationMode};

/// Command about to leave the sandbox: checked, with its files held open.
pub struct EscalatedExec {
    held: HeldExec,
    program: OwnedFd,
    cwd: OwnedFd,
    argv0: String,
    args: Vec<String>,
    /// Variables that it gets in addition to the operator's environment.
    added_env: Vec<(String, String)>,
    /// Places that the run can write, so that no program is searched for there.
    writable_places: Vec<PathBuf>,
}

impl EscalatedExec {
    /// Opens the program, script and directory on the host and compares them with what was judged.
    /// An error says why the command cannot leave, in words that the caller may read. Reads files,
    /// so it must not run on a thread that others wait for. `is_repository_open` says that a run
    /// could write all of `.git`, so that git must not trust it.
    pub fn verify_held(
        held_exec: &HeldExec,
        rights: &Rights,
        table: &RuleTable,
        is_repository_open: bool,
    ) -> Result<EscalatedExec, String> {
        if !held_exec.itself {
            return Err("it was not called by its own name".to_owned());
        }
        if held_exec.garbled {
            return Err("its arguments or environment are not valid text".to_owned());
        }
        // Check again by what will run: the file must be one that the operator's rule names.
        let executable = held_exec.script.as_ref().unwrap_or(&held_exec.program);
        let word = held_exec.verdict.out.as_deref().unwrap_or_default();
        let files = table.programs.get(word).into_iter().flat_map(|program| &program.files);
        if !files
            .into_iter()
            .any(|file| (file.device, file.inode) == (executable.device, executable.inode))
        {
            return Err("it is not the file that the rule names".to_owned());
        }
        let program = open_unwritable("the program", &held_exec.program, OFlags::empty(), rights)?;
        if let Some(script) = &held_exec.script {
            let file = open_unwritable("the script", script, OFlags::empty(), rights)?;
            script::check_interpreter(
                &file,
                held_exec.argv.get(..held_exec.script_at).unwrap_or_default(),
                &held_exec.program,
            )?;
        }
        let (cwd_path, cwd) = (Path::new(&held_exec.cwd.path), &held_exec.cwd);
        let cwd = open_same("the directory", cwd, OFlags::DIRECTORY)?;
        let argv0 = match &held_exec.script {
            // The kernel has put the interpreter's own name there.
            Some(_) => held_exec.argv.first().cloned().unwrap_or_default(),
            None => argv0_by_rule(held_exec, rights, table),
        };
        let mut args: Vec<String> = held_exec.argv.iter().skip(1).cloned().collect();
        if let (Some(script), Some(word)) = (
            &held_exec.script,
            held_exec.script_at.checked_sub(1).and_then(|index| args.get_mut(index)),
        ) {
            // Use the real path: the name it was called by may lead elsewhere a moment later.
            word.clone_from(&script.path);
        }
        let env = match is_git(&argv0) {
            true if is_repository_open => {
                return Err("an earlier call could write all of `.git`".to_owned());
            }
            true => {
                let command = git_subcommand(&argv0, &args);
                git::check_command(command)?;
                git::repository_env(rights, cwd_path, command)?
            }
            // Other programs call git, and must find the same repository or none.
            false if is_repository_open => git::env_without_repository(),
            false => git::repository_env(rights, cwd_path, "")
                .unwrap_or_else(|_| git::env_without_repository()),
        };
        let writable_places = rights.writable_roots().map(Path::to_owned).collect();
        Ok(EscalatedExec {
            held: held_exec.clone(),
            program,
            cwd,
            argv0,
            args,
            added_env: env,
            writable_places,
        })
    }
}

impl EscalatedExec {
    /// Builds the spec: no sandbox, and an empty environment.
    fn build_spec(&self, config: &Config) -> RunSpec {
        RunSpec {
            program: self.held.program.path.clone(),
            args: self.args.clone(),
            argv0: Some(self.argv0.clone()),
            env: Vec::new(),
            cwd: PathBuf::from(&self.held.cwd.path),
            grace_ms: u64::try_from(config.limits.grace.as_millis()).unwrap_or(u64::MAX),
            fence: SandboxProfile::None,
            rights: Rights::default(),
            limits: Default::default(),
            proxy_env: Vec::new(),
            shut_ports: Vec::new(),
            exec: None,
            user: None,
        }
    }

    fn run_fds<'a>(&'a self, [stdin, stdout, stderr]: &'a [OwnedFd; 3]) -> RunFds<BorrowedFd<'a>> {
        RunFds {
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            cwd: self.cwd.as_fd(),
            proxy_channel: None,
            exec_channel: None,
            exec_log: None,
            program_file: Some(self.program.as_fd()),
            driver_socket: None,
        }
    }
}

/// Returns whether this is git, or one of its commands under its own name.
pub fn is_git(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or(program);
    name == "git" || name.starts_with("git-")
}

/// Returns the subcommand of `git push` or `git-push`.
fn git_subcommand<'a>(program: &'a str, args: &'a [String]) -> &'a str {
    let name = program.rsplit('/').next().unwrap_or(program);
    name.strip_prefix("git-").or_else(|| args.first().map(String::as_str)).unwrap_or_default()
}

/// Returns the name to run a program by: the one that the rule uses, because a program with many
/// names acts by the name it is called by.
fn argv0_by_rule(held_exec: &HeldExec, rights: &Rights, table: &RuleTable) -> String {
    let rule_program = held_exec.verdict.out.as_deref().unwrap_or_default();
    if rule_program.starts_with('/') {
        return rule_program.to_owned();
    }
    let is_unwritable = |path: &Path| !rights.writable_roots().any(|root| path.starts_with(root));
    let known_paths =
        table.programs.get(rule_program).into_iter().flat_map(|program| &program.paths);
    let mut matching_paths = known_paths.filter(|path| {
        path.rsplit('/').next() == Some(rule_program) && is_unwritable(Path::new(path))
    });
    matching_paths.next().cloned().unwrap_or_else(|| held_exec.program.path.clone())
}

/// Opens the same file that the run sees, by the same name, where the run cannot write.
fn open_unwritable(
    label: &str,
    file: &FileIdentity,
    flags: OFlags,
    rights: &Rights,
) -> Result<OwnedFd, String> {
    if rights.writable_roots().any(|root| Path::new(&file.path).starts_with(root)) {
        return Err(format!("{label} is in a place that the sandbox can write"));
    }
    open_same(label, file, flags)
}

fn open_same(label: &str, file: &FileIdentity, flags: OFlags) -> Result<OwnedFd, String> {
    let mismatch = || format!("{label} is not the same outside the sandbox");
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(&file.path, flags, Mode::empty()).map_err(|_| mismatch())?;
    let file_stat = fstat(&opened).map_err(|_| mismatch())?;
    match (file_stat.st_dev, file_stat.st_ino) == (file.device, file.inode) {
        true => Ok(opened),
        false => Err(mismatch()),
    }
}

/// Gives the reason why a command of so many words needs approval to leave under an `allow` rule
/// that names these words.
pub type ApprovalReasonFn = fn(&[String], usize) -> Option<&'static str>;

/// Returns why a rule that allows the command is not enough to let it leave without approval.
pub fn approval_reason(
    held_exec: &HeldExec,
    find_reason: ApprovalReasonFn,
) -> Option<&'static str> {
    let verdict = &held_exec.verdict;
    if verdict.decision == Decision::Allow {
        find_reason(&verdict.prefix, held_exec.words)
    } else {
        None
    }
}

/// Place where the command runs.
pub enum EscalationTarget<'a> {
    Outside { launcher: &'a Launcher, config: &'a Config },
    Wider(Box<WiderTarget>),
}

/// The wider sandbox of a session, for one run in it. It owns what it needs: such a run is followed
/// to its report even if no one waits for it any more.
pub struct WiderTarget {
    pub sandboxes: Arc<SessionSandboxes>,
    pub config: Arc<Config>,
    pub sandbox_config: SandboxConfig,
    pub launcher: Launcher,
    pub terms: WiderRunOptions,
}

/// Runs the command to its end in place of the process that waits, and returns how that process
/// ends. An error says why the command could not be started: nothing of it has run, and no signal
/// was meant for it.
pub async fn run_escalated(
    granted: Granted<(EscalatedExec, WaitingExec)>,
    target: EscalationTarget<'_>,
) -> Result<ExecAnswer, String> {
    let (exec, waiting) = granted.consume();
    start_escalated(exec, waiting, target).await.map_err(|error| error.message_chain())
}

async fn start_escalated(
    exec: EscalatedExec,
    waiting: WaitingExec,
    target: EscalationTarget<'_>,
) -> Result<ExecAnswer> {
    let WaitingExec { streams, on_begun, signals, .. } = waiting;
    let [Ok(stdin), Ok(stdout), Ok(stderr)] = streams.map(data_stream_or_null) else {
        return Err(Error::internal("its standard streams could not be opened"));
    };
    let streams = [stdin, stdout, stderr];
    let path = exec.held.program.path.clone();
    // Before it starts: a signal that comes when it has just begun is already meant for it, and
    // waits here until then.
    on_begun();
    match target {
        EscalationTarget::Outside { launcher, config } => {
            let control = start_outside(&exec, &streams, launcher, config).await?;
            follow_outside(control, &path, signals).await
        }
        EscalationTarget::Wider(target) => {
            let (runs, grace) = (Arc::clone(&target.terms.wider_runs), target.config.limits.grace);
            runs.run_to_answer(start_wider(exec, streams, *target), grace, path, signals).await
        }
    }
}

async fn start_outside(
    exec: &EscalatedExec,
    streams: &[OwnedFd; 3],
    launcher: &Launcher,
    config: &Config,
) -> Result<SupervisorControl> {
    let account = escalation_account(config)?;
    let spec = RunSpec {
        env: outside_env(exec, config, account.as_ref()),
        user: account.map(|account| account.user),
        limits: config.default_sandbox.limits.clone(),
        ..exec.build_spec(config)
    };
    let (control, supervisor) = launcher.start_supervisor()?;
    SupervisorControl::open(control, Some(supervisor), &spec, &exec.run_fds(streams)).await
}

async fn start_wider(
    exec: EscalatedExec,
    streams: [OwnedFd; 3],
    target: WiderTarget,
) -> Result<SupervisorControl> {
    let WiderTarget { sandboxes, config, sandbox_config, launcher, terms } = target;
    let wider_sandbox = sandboxes.wider_sandbox(&sandbox_config, &launcher)?;
    let env = env::merge_env(
        env::merge_env(env::build(&[])?, wider_sandbox.env.clone()),
        kept_env(&exec, &config),
    );
    let findings =
        sandboxes.repositories.current_findings(&wider_sandbox, config.home.as_deref()).await?;
    let rights = Rights {
        git_protected: findings.map(|findings| findings.covered.clone()),
        ..wider_sandbox.rights.clone()
    };
    let spec = RunSpec {
        env: env::merge_env(env, exec.added_env.clone()),
        rights,
        ..exec.build_spec(&config)
    };
    // By name, because the mounts in the wider sandbox are different.
    wider_sandbox
        .start_escalated(spec, RunFds { program_file: None, ..exec.run_fds(&streams) }, terms)
        .await
}

/// Waits for the end of a command that runs outside.
async fn follow_outside(
    mut control: SupervisorControl,
    path: &str,
    mut signals: mpsc::UnboundedReceiver<i32>,
) -> Result<ExecAnswer> {
    let mut was_signalled = false;
    loop {
        tokio::select! {
            report = control.next_report() => {
                if let Some(answer) = answer_from_report(report, was_signalled, path) {
                    return answer;
                }
            }
            Some(signal) = next_signal(&mut signals) => {
                was_signalled = true;
                control.send_order(SupervisorCommand::Signal(signal)).await;
            }
        }
    }
}

/// Returns a stream that only carries data, or else `/dev/null`. A directory would be a way to name
/// places inside the sandbox, and no command may read from a terminal.
fn data_stream_or_null(stream: Option<OwnedFd>) -> std::io::Result<OwnedFd> {
    let open_null = || {
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(std::io::Error::from)
    };
    let Some(stream) = stream else { return open_null() };
    let kind = FileType::from_raw_mode(fstat(&stream)?.st_mode);
    let is_terminal = rustix::termios::isatty(&stream);
    match kind {
        FileType::Fifo | FileType::RegularFile | FileType::Socket => Ok(stream),
        FileType::CharacterDevice if !is_terminal => Ok(stream),
        _ => open_null(),
    }
}

/// Returns the account that a command outside runs as. `None` is the server's own user, which must
/// not be root.
pub fn escalation_account(config: &Config) -> Result<Option<UserAccount>> {
    let is_root = rustix::process::geteuid().is_root();
    match &config.policy.escalate_as {
        Some(name) => {
            let account = UserAccount::from_name(name)?;
            if account.user.uid == 0 {
                return Err(Error::invalid_arguments("`escalate_as` under [policy] names root")
                    .with_hint(
                        "Commands outside the sandbox must run without privileges: name an ordinary user.",
                    ));
            }
            match (is_root, account.user.uid == rustix::process::geteuid().as_raw()) {
                (true, _) => Ok(Some(account)),
                (false, true) => Ok(None),
                (false, false) => Err(Error::invalid_arguments(format!(
                    "only root can run commands as `{name}` (`escalate_as`)"
                ))
                .with_hint("Remove `escalate_as`: commands then run as you.")),
            }
        }
        None if is_root => Err(Error::invalid_arguments(
            "the server runs as root, but `escalate_as` under [policy] is not set",
        )
        .with_hint("Set `escalate_as` under [policy] to the user that such commands run as.")),
        None => Ok(None),
    }
}

/// Returns the `PATH` of a command that runs outside: it decides which programs the command's own
/// words refer to.
pub fn search_path(exec: &EscalatedExec, config: &Config) -> Option<String> {
    let env = match config.policy.escalate {
        EscalationMode::Wider => env::merge_env(
            env::merge_env(env::build(&[]).ok()?, kept_env(exec, config)),
            exec.added_env.clone(),
        ),
        EscalationMode::Off | EscalationMode::Outside => {
            outside_env(exec, config, escalation_account(config).ok()?.as_ref())
        }
    };
    env.into_iter().find_map(|(name, value)| (name == "PATH").then_some(value))
}

/// Builds the environment: the operator's without the server's own variables, then what the command
/// keeps of its own, then what it has to be given.
fn outside_env(
    exec: &EscalatedExec,
    config: &Config,
    account: Option<&UserAccount>,
) -> Vec<(String, String)> {
    let mut env = match account {
        None => env::operator_env(),
        // Root's environment is not for another user.
        Some(account) => {
            let account_env =
                [("HOME", &account.home), ("USER", &account.name), ("LOGNAME", &account.name)];
            let account_env = account_env.into_iter().chain([("SHELL", &account.shell)]);
            let account_env =
                account_env.map(|(name, value)| (name.to_owned(), value.clone())).collect();
            env::merge_env(env::build(&[]).unwrap_or_default(), account_env)
        }
    };
    if let Some((_, path)) = env.iter_mut().find(|(name, _)| name == "PATH") {
        *path = without_writable_dirs(path, &exec.writable_places);
    }
    env::merge_env(env::merge_env(env, kept_env(exec, config)), exec.added_env.clone())
}

/// Returns the search path without places where the run could have put a program.
fn without_writable_dirs(path: &str, writable: &[PathBuf]) -> String {
    let is_unwritable = |dir: &&str| {
        let real_path = Path::new(dir).canonicalize();
        dir.starts_with('/')
            && real_path
                .is_ok_and(|real_path| !writable.iter().any(|root| real_path.starts_with(root)))
    };
    path.split(':').filter(is_unwritable).collect::<Vec<_>>().join(":")
}

fn kept_env(exec: &EscalatedExec, config: &Config) -> Vec<(String, String)> {
    let is_listed = |(name, _): &&(String, String)| config.policy.escalate_env.contains(name);
    exec.held.env.iter().filter(is_listed).cloned().collect()
}
