//! The last steps before a run's program starts, in the process that becomes it.
//!
//! The code has them in the order in which they happen. Each is a layer of its own; the first that
//! fails ends the process with an error that names it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, fchdir, set_dumpable_behavior, setsid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::error::{Layer, LayerContext, SandboxError};
use crate::intercept::rename;
use crate::landlock;
use crate::limits;
use crate::packet::PacketChannel;
use crate::rights::Rights;
use crate::seccomp;
use crate::shebang;
use crate::supervisor::{RunFds, RunSpec};
use crate::sys;

/// Strength of the sandbox around a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxProfile {
    /// No sandbox: explicit trust.
    None,
    /// Landlock and seccomp on the host as it is.
    Contained,
    /// Namespaces, Landlock and seccomp.
    Default,
}

/// System call with which the canary tests the filter. It reaches the supervisor, which does not
/// count it as a denial.
pub const CANARY_CALL: &str = "socket";

/// Placeholder for the proxy's port in the value of an environment variable.
pub const PORT_PLACEHOLDER: &str = "{port}";

/// Environment variable that holds the descriptor number of the program's driver socket, if it has
/// one.
pub const DRIVER_SOCKET_ENV: &str = "RINGFENCE_LINE";

/// Directories of the session root that a run may write, in addition to those its rights name.
const PRIVATE_DIRS: &[&str] = &["/tmp", "/var/tmp", "/run", "/dev/shm", "/dev/pts"];
/// Devices that accept writes. The terminal is the run's own, if it has one.
const WRITABLE_DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// Everything the process needs to become the program.
pub struct LaunchContext<'a> {
    pub spec: &'a RunSpec,
    pub mechanism: limits::LimitMechanism,
    /// Lets the process enter the run's limits, unless it is under them already.
    pub cgroup_joiner: Option<limits::CgroupJoiner>,
    /// Initial working directory, as the run sees it.
    pub working_directory: OwnedFd,
    /// Paths that are covered to protect them.
    pub covers: &'a [PathBuf],
    pub proxy_port: Option<u16>,
    /// Channel to the supervisor. Exec closes it: an end without a message means success.
    pub channel: &'a PacketChannel,
}

/// Message from the process to the supervisor before it becomes the program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchMessage {
    /// The filter is installed. Comes with the descriptor on which the run's system calls arrive.
    Listening,
    Failed(SandboxError),
}

/// Becomes the program, or reports why it cannot and exits.
pub fn become_program(step: LaunchContext<'_>, fds: RunFds<OwnedFd>) -> ! {
    let fault = match apply_layers(&step, fds) {
        Ok((mut command, None)) => explain_start_failure(&step.spec.program, &command.exec()),
        Ok((_, Some(file))) => SandboxError::from_io_error(
            Layer::Program,
            "start the program",
            &execute_file(step.spec, &file),
        ),
        Err(fault) => fault,
    };
    // If this cannot be sent, the supervisor only sees the run end.
    let _ = step.channel.send(&LaunchMessage::Failed(fault), &[]);
    sys::exit_now(125)
}

/// Explains why the program did not start. For a missing interpreter the kernel only says that a
/// file was not found.
fn explain_start_failure(program: &str, error: &io::Error) -> SandboxError {
    let fault = SandboxError::from_io_error(Layer::Program, "start the program", error);
    let line = shebang::read_shebang(Path::new(program));
    match line.as_deref().and_then(<[String]>::first) {
        Some(interpreter) if fault.errno == Some(libc::ENOENT) && program.contains('/') => {
            SandboxError { layer: Layer::Interpreter, text: interpreter.clone(), ..fault }
        }
        _ => fault,
    }
}

/// Applies every layer to this process. Returns the command to execute, and the file to execute
/// instead of its name if there is one.
fn apply_layers(
    step: &LaunchContext<'_>,
    mut fds: RunFds<OwnedFd>,
) -> Result<(Command, Option<OwnedFd>), SandboxError> {
    let (spec, rights) = (step.spec, &step.spec.rights);
    // Detach from the terminal of the process that called us.
    setsid().in_layer(Layer::Namespaces, "start a session")?;
    fchdir(&step.working_directory)
        .in_layer(Layer::Directory, "change to the working directory")?;
    rustix::stdio::dup2_stdin(&fds.stdin).in_layer(Layer::Directory, "set up standard input")?;
    rustix::stdio::dup2_stdout(&fds.stdout).in_layer(Layer::Directory, "set up standard output")?;
    rustix::stdio::dup2_stderr(&fds.stderr).in_layer(Layer::Directory, "set up standard error")?;
    let (file, line) = (fds.program_file.take(), fds.driver_socket.take());
    drop(fds);
    crate::mark_close_on_exec();
    let line = line
        .map(pass_driver_socket)
        .transpose()
        .in_layer(Layer::Program, "pass the driver socket on")?;
    if let Some(door) = &step.cgroup_joiner {
        door.join().in_layer(Layer::Limits, "apply the run's limits")?;
    }
    limits::set_rlimits(&spec.limits, step.mechanism)
        .in_layer(Layer::Limits, "set the per-process limits")?;
    if spec.fence != SandboxProfile::None {
        if rights.nested && spec.fence == SandboxProfile::Default {
            crate::namespaces::become_ordinary_user()?;
        }
        drop_capabilities().in_layer(Layer::Capabilities, "drop every capability")?;
        restrict_writes(spec.fence, rights)?;
        install_filter(step)?;
        run_canary(spec.fence, rights, step.covers)?;
    } else if let Some(user) = &spec.user {
        sys::switch_user(user.uid, user.gid, &user.groups)
            .in_layer(Layer::Program, "switch to another user")?;
    }
    // Not earlier: the kernel refuses to send a descriptor while the user has more in transit than
    // the sender may open, so another run that fills that count could stop this one. The listener
    // was the last descriptor to send.
    limits::set_file_limit(&spec.limits).in_layer(Layer::Limits, "limit open files")?;
    // Processes of the run may inspect each other. The flag was cleared to protect our own code,
    // which ran in this process until now.
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .in_layer(Layer::Program, "become dumpable again")?;
    let mut command = build_command(spec, step.proxy_port);
    if let Some(line) = line {
        command.env(DRIVER_SOCKET_ENV, line.to_string());
    }
    Ok((command, file))
}

/// Keeps a descriptor open for the program and returns its number, which the program finds in its
/// environment: a fixed number might be in use until the exec. Takes the lowest free one, since
/// some shells accept only one digit.
fn pass_driver_socket(line: OwnedFd) -> io::Result<i32> {
    let low = rustix::io::fcntl_dupfd_cloexec(&line, 3)?;
    rustix::io::fcntl_setfd(&low, rustix::io::FdFlags::empty())?;
    Ok(low.into_raw_fd())
}

/// Executes the very file that was checked, whatever its name leads to by now. Returns only on
/// failure.
fn execute_file(spec: &RunSpec, file: &OwnedFd) -> io::Error {
    let argv0 = spec.argv0.as_ref().unwrap_or(&spec.program);
    let argv = [argv0].into_iter().chain(&spec.args).map(|word| word.as_bytes());
    let env = spec.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes());
    sys::exec_file(file.as_fd(), argv.map(<[u8]>::to_vec), env)
}

/// Drops all capabilities permanently: programs executed later cannot regain one either.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Without the right to drop them we have none to begin with, and no_new_privs keeps it
            // that way.
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Limits writing to the run's writable directories, with Landlock.
fn restrict_writes(fence: SandboxProfile, rights: &Rights) -> Result<(), SandboxError> {
    let mut writable: Vec<PathBuf> = rights.writable_roots().map(Path::to_owned).collect();
    if fence == SandboxProfile::Default {
        writable.extend(PRIVATE_DIRS.iter().map(PathBuf::from).filter(|path| path.is_dir()));
    }
    if rights.nested && fence == SandboxProfile::Default {
        // Landlock forbids every mount to a process with rules for files, and a nested sandbox has
        // to mount. The mounts alone keep it from writing, and the canary tests that.
        return landlock::restrict_scope();
    }
    landlock::restrict_thread(&landlock::LandlockRules {
        writable: &writable,
        files: WRITABLE_DEVICES,
        scoped: true,
    })
}

/// Installs the seccomp filter and sends its listener to the supervisor, which from here on
/// receives every call that a rule leaves to it.
fn install_filter(step: &LaunchContext<'_>) -> Result<(), SandboxError> {
    let namespaces = step.spec.fence == SandboxProfile::Default;
    let rights = &step.spec.rights;
    let case = seccomp::FilterOptions {
        network: rights.network,
        own_namespaces: namespaces,
        judges_execs: step.spec.exec.is_some(),
        may_nest: rights.nested && namespaces,
        // Renames are judged from the run's own mounts, which do not show what a nested sandbox has
        // made read-only, nor any other tree of mounts that it has made.
        intercepts_renames: namespaces && !rights.nested && rename::needs_interception(step.covers),
    };
    let program = seccomp::compile_filter(seccomp::select_rules(case));
    let listener =
        sys::install_filter(&program, true).in_layer(Layer::Seccomp, "install the filter")?;
    let Some(listener) = listener else {
        return Err(SandboxError::from_message(
            Layer::Seccomp,
            "install the filter",
            "the kernel returned no listener",
        ));
    };
    step.channel
        .send(&LaunchMessage::Listening, &[listener.as_fd()])
        .in_layer(Layer::Seccomp, "hand the listener over")?;
    drop(listener);
    // Wait until the supervisor is ready, so that it answers the program's calls from the first
    // one.
    match step.channel.receive::<bool>().in_layer(Layer::Seccomp, "wait for the supervisor")? {
        Some((true, _)) => Ok(()),
        _ => {
            Err(SandboxError::from_message(Layer::Seccomp, "wait for the supervisor", "it is gone"))
        }
    }
}

/// Attempts what each layer must refuse. A layer that lets an attempt pass does not work, whatever
/// its setup reported.
fn run_canary(
    fence: SandboxProfile,
    rights: &Rights,
    covers: &[PathBuf],
) -> Result<(), SandboxError> {
    let broken =
        |what: &str| Err(SandboxError::from_message(Layer::Canary, what, "it was not refused"));
    if !rustix::thread::no_new_privs().unwrap_or(false) {
        return broken("gain privileges");
    }
    let capabilities =
        rustix::thread::capabilities(None).in_layer(Layer::Canary, "read the capabilities")?;
    if !capabilities.effective.is_empty() || !capabilities.permitted.is_empty() {
        return broken("keep a capability");
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    for place in [Path::new("/"), Path::new("/usr"), Path::new("/etc"), &rights.workspace] {
        let file = place.join(".ringfence-canary");
        if rights.writable_roots().all(|root| !file.starts_with(root))
            && rustix::fs::open(&file, flags, Mode::from_raw_mode(0o600)).is_ok()
        {
            let _ = std::fs::remove_file(&file);
            return broken("write outside the writable directories");
        }
    }
    if covers.iter().any(|cover| can_write_to(cover)) {
        return broken("write to a protected path");
    }
    if rustix::net::socket(rustix::net::AddressFamily::VSOCK, rustix::net::SocketType::STREAM, None)
        .is_ok()
    {
        return broken("reach the hypervisor");
    }
    if fence == SandboxProfile::Default {
        for hidden in rights.hidden.iter().filter(|path| path.is_file()) {
            if std::fs::read(hidden).is_ok_and(|bytes| !bytes.is_empty()) {
                return broken("read a hidden file");
            }
        }
    }
    Ok(())
}

/// Returns whether a protected file can be opened for writing, a file can be created in a protected
/// directory, or a protected symlink can be changed.
fn can_write_to(cover: &Path) -> bool {
    if cover.is_symlink() {
        // This changes nothing, but the kernel checks whether a change is permitted.
        return rustix::fs::chownat(rustix::fs::CWD, cover, None, None, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok();
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if !cover.is_dir() {
        return rustix::fs::open(cover, flags, Mode::empty()).is_ok();
    }
    let file = cover.join(".ringfence-canary");
    let made =
        rustix::fs::open(&file, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o600))
            .is_ok();
    if made {
        let _ = std::fs::remove_file(&file);
    }
    made
}

fn build_command(spec: &RunSpec, port: Option<u16>) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).env_clear();
    for (name, value) in &spec.env {
        command.env(name, value);
    }
    if let Some(port) = port {
        for (name, value) in &spec.proxy_env {
            command.env(name, OsString::from(value.replace(PORT_PLACEHOLDER, &port.to_string())));
        }
    }
    if let Some(name) = &spec.argv0 {
        command.arg0(name);
    }
    command
}
