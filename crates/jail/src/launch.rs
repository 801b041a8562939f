//! The last steps before a run's program starts, in the process that becomes it.
//!
//! The code has them in the order in which they happen. Each is a layer of its own; the first that
//! fails ends the process with an error that names it. All layers are in place before the process
//! learns what to become: until then it waits, and nothing of a command is in it.

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
use crate::namespaces::Tier;
use crate::packet::PacketChannel;
use crate::protect;
use crate::rights::Rights;
use crate::seccomp;
use crate::shebang;
use crate::supervisor::{RunBasis, RunUser};
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

/// Everything the process needs before it learns what to become.
pub struct LaunchContext<'a> {
    pub basis: &'a RunBasis,
    /// How the session got its namespaces, if it has any.
    pub tier: Option<Tier>,
    pub mechanism: limits::LimitMechanism,
    /// Lets the process enter the run's limits, unless it is under them already.
    pub cgroup_joiner: Option<limits::CgroupJoiner>,
    /// Channel to the supervisor. Exec closes it: an end without a message means success.
    pub channel: PacketChannel,
}

/// Message from the process to the supervisor before it becomes the program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchMessage {
    /// Every layer is in place, and the process waits for its order. Comes with the descriptor on
    /// which the run's system calls arrive, if it has a filter.
    Ready,
    Failed(SandboxError),
}

/// Message from the supervisor to the process: what to become. Comes with the working directory as
/// the run sees it, standard input, output and error, and what else is said to be attached.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchOrder {
    pub program: String,
    pub args: Vec<String>,
    pub argv0: Option<String>,
    /// The environment is exact; a later variable replaces an earlier one of the same name.
    pub env: Vec<(String, String)>,
    /// Paths that are covered to protect them.
    pub covers: Vec<PathBuf>,
    /// User to switch to, for a program that runs without a sandbox.
    pub user: Option<RunUser>,
    /// The program itself is attached, opened, in place of its name.
    pub has_program_file: bool,
    /// A driver socket is attached.
    pub has_driver_socket: bool,
}

/// Descriptors of a [`LaunchOrder`].
struct OrderFds {
    directory: OwnedFd,
    streams: [OwnedFd; 3],
    program_file: Option<OwnedFd>,
    driver_socket: Option<OwnedFd>,
}

/// Becomes the program that the supervisor orders, or reports why it cannot and exits.
pub fn become_program(context: LaunchContext<'_>) -> ! {
    let error = match apply_layers(&context).and_then(|()| receive_order(&context.channel)) {
        // The supervisor is gone or needs no run any more.
        Ok(None) => sys::exit_now(125),
        Ok(Some((order, fds))) => start_program(context.basis, &order, fds),
        Err(error) => error,
    };
    // If this cannot be sent, the supervisor only sees the run end.
    let _ = context.channel.send(&LaunchMessage::Failed(error), &[]);
    sys::exit_now(125)
}

/// Receives what to become; `None` if there is no one left to say so.
fn receive_order(channel: &PacketChannel) -> Result<Option<(LaunchOrder, OrderFds)>, SandboxError> {
    let received =
        channel.receive::<LaunchOrder>().in_layer(Layer::Program, "receive the order")?;
    let Some((order, fds)) = received else { return Ok(None) };
    let mut fds = fds.into_iter();
    let (Some(directory), Some(stdin), Some(stdout), Some(stderr)) =
        (fds.next(), fds.next(), fds.next(), fds.next())
    else {
        return Err(SandboxError::from_message(
            Layer::Program,
            "receive the order",
            "the descriptors are missing",
        ));
    };
    let program_file = if order.has_program_file { fds.next() } else { None };
    let driver_socket = if order.has_driver_socket { fds.next() } else { None };
    let streams = [stdin, stdout, stderr];
    Ok(Some((order, OrderFds { directory, streams, program_file, driver_socket })))
}

/// Starts the program. Returns only on failure.
fn start_program(basis: &RunBasis, order: &LaunchOrder, fds: OrderFds) -> SandboxError {
    match take_order(basis, order, fds) {
        Ok((mut command, None)) => explain_start_failure(&order.program, &command.exec()),
        Ok((_, Some(file))) => SandboxError::from_io_error(
            Layer::Program,
            "start the program",
            &execute_file(order, &file),
        ),
        Err(error) => error,
    }
}

/// Explains why the program did not start. For a missing interpreter the kernel only says that a
/// file was not found.
fn explain_start_failure(program: &str, error: &io::Error) -> SandboxError {
    let sandbox_error = SandboxError::from_io_error(Layer::Program, "start the program", error);
    let shebang_words = shebang::read_shebang(Path::new(program));
    match shebang_words.as_deref().and_then(<[String]>::first) {
        Some(interpreter) if sandbox_error.errno == Some(libc::ENOENT) && program.contains('/') => {
            SandboxError { layer: Layer::Interpreter, text: interpreter.clone(), ..sandbox_error }
        }
        _ => sandbox_error,
    }
}

/// Applies every layer to this process, and tells the supervisor when they are in place.
fn apply_layers(context: &LaunchContext<'_>) -> Result<(), SandboxError> {
    let RunBasis { fence, rights, limits, .. } = context.basis;
    // Detach from the terminal of the process that called us.
    setsid().in_layer(Layer::Namespaces, "start a session")?;
    if let Some(cgroup_joiner) = &context.cgroup_joiner {
        cgroup_joiner.join().in_layer(Layer::Limits, "apply the run's limits")?;
    }
    limits::set_rlimits(limits, context.mechanism)
        .in_layer(Layer::Limits, "set the per-process limits")?;
    let mut listener = None;
    if *fence != SandboxProfile::None {
        if rights.nested && *fence == SandboxProfile::Default {
            crate::namespaces::become_ordinary_user()?;
        }
        drop_capabilities().in_layer(Layer::Capabilities, "drop every capability")?;
        restrict_writes(*fence, context.tier, rights)?;
        listener = Some(install_filter(context.basis)?);
    }
    let attached: Vec<_> = listener.iter().map(AsFd::as_fd).collect();
    context
        .channel
        .send(&LaunchMessage::Ready, &attached)
        .in_layer(Layer::Seccomp, "hand the listener over")
}

/// Takes up what belongs to the program alone, and tests the layers. Returns the command to
/// execute, and the file to execute instead of its name if there is one.
fn take_order(
    basis: &RunBasis,
    order: &LaunchOrder,
    fds: OrderFds,
) -> Result<(Command, Option<OwnedFd>), SandboxError> {
    let OrderFds { directory, streams: [stdin, stdout, stderr], program_file, driver_socket } = fds;
    fchdir(&directory).in_layer(Layer::Directory, "change to the working directory")?;
    rustix::stdio::dup2_stdin(&stdin).in_layer(Layer::Directory, "set up standard input")?;
    rustix::stdio::dup2_stdout(&stdout).in_layer(Layer::Directory, "set up standard output")?;
    rustix::stdio::dup2_stderr(&stderr).in_layer(Layer::Directory, "set up standard error")?;
    drop((directory, stdin, stdout, stderr));
    crate::mark_close_on_exec();
    let driver_socket = driver_socket
        .map(pass_driver_socket)
        .transpose()
        .in_layer(Layer::Program, "pass the driver socket on")?;
    if basis.fence != SandboxProfile::None {
        run_canary(basis.fence, &basis.rights, &order.covers)?;
    } else if let Some(user) = &order.user {
        sys::switch_user(user.uid, user.gid, &user.groups)
            .in_layer(Layer::Program, "switch to another user")?;
    }
    // Not earlier: the kernel refuses to send a descriptor while the user has more in transit than
    // the sender may open, so another run that fills that count could stop this one. The listener
    // was the last descriptor to send.
    limits::set_file_limit(&basis.limits).in_layer(Layer::Limits, "limit open files")?;
    // Processes of the run may inspect each other. The flag was cleared to protect our own code,
    // which ran in this process until now.
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .in_layer(Layer::Program, "become dumpable again")?;
    let mut command = build_command(order);
    if let Some(driver_socket) = driver_socket {
        command.env(DRIVER_SOCKET_ENV, driver_socket.to_string());
    }
    Ok((command, program_file))
}

/// Keeps a descriptor open for the program and returns its number, which the program finds in its
/// environment: a fixed number might be in use until the exec. Takes the lowest free one, since
/// some shells accept only one digit.
fn pass_driver_socket(socket: OwnedFd) -> io::Result<i32> {
    let lowest_fd = rustix::io::fcntl_dupfd_cloexec(&socket, 3)?;
    rustix::io::fcntl_setfd(&lowest_fd, rustix::io::FdFlags::empty())?;
    Ok(lowest_fd.into_raw_fd())
}

/// Executes the very file that was checked, whatever its name leads to by now. Returns only on
/// failure.
fn execute_file(order: &LaunchOrder, file: &OwnedFd) -> io::Error {
    let argv0 = order.argv0.as_ref().unwrap_or(&order.program);
    let argv = [argv0].into_iter().chain(&order.args).map(|word| word.as_bytes());
    let env = order.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes());
    sys::exec_file(file.as_fd(), argv.map(<[u8]>::to_vec), env)
}

/// Drops all capabilities permanently: programs executed later cannot regain one either.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let no_capabilities = CapabilitySet::empty();
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
        CapabilitySets {
            effective: no_capabilities,
            permitted: no_capabilities,
            inheritable: no_capabilities,
        },
    )?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Limits writing to the run's writable directories, with Landlock.
fn restrict_writes(
    profile: SandboxProfile,
    tier: Option<Tier>,
    rights: &Rights,
) -> Result<(), SandboxError> {
    let mut writable: Vec<PathBuf> = rights.writable_roots().map(Path::to_owned).collect();
    if profile == SandboxProfile::Default {
        writable.extend(PRIVATE_DIRS.iter().map(PathBuf::from).filter(|path| path.is_dir()));
    }
    let relies_on_mounts = tier == Some(Tier::Mounts);
    if relies_on_mounts && rights.nested {
        return Err(SandboxError::from_message(
            Layer::Landlock,
            "let a sandbox run inside this one",
            "the kernel's Landlock is missing or older than version 3",
        ));
    }
    if rights.nested && profile == SandboxProfile::Default {
        // Landlock forbids every mount to a process with rules for files, and a nested sandbox has
        // to mount. The mounts alone keep it from writing, and the canary tests that.
        return landlock::restrict_scope();
    }
    let rules =
        landlock::LandlockRules { writable: &writable, files: WRITABLE_DEVICES, scoped: true };
    match relies_on_mounts {
        true => landlock::restrict_on_old_kernel(&rules),
        false => landlock::restrict_thread(&rules),
    }
}

/// Installs the seccomp filter and returns its listener. The supervisor, which gets it, receives
/// every call that a rule leaves to it.
fn install_filter(basis: &RunBasis) -> Result<OwnedFd, SandboxError> {
    let own_namespaces = basis.fence == SandboxProfile::Default;
    let rights = &basis.rights;
    let options = seccomp::FilterOptions {
        network: rights.network,
        own_namespaces,
        judges_execs: basis.watches_execs,
        may_nest: rights.nested && own_namespaces,
        // Renames are judged from the run's own mounts, which do not show what a nested sandbox has
        // made read-only, nor any other tree of mounts that it has made.
        intercepts_renames: own_namespaces
            && !rights.nested
            && rename::needs_interception(&protect::protected_paths(rights)),
    };
    let program = seccomp::compile_filter(seccomp::select_rules(options));
    let listener =
        sys::install_filter(&program, true).in_layer(Layer::Seccomp, "install the filter")?;
    listener.ok_or_else(|| {
        SandboxError::from_message(
            Layer::Seccomp,
            "install the filter",
            "the kernel returned no listener",
        )
    })
}

/// Attempts what each layer must refuse. A layer that lets an attempt pass does not work, whatever
/// its setup reported.
fn run_canary(
    profile: SandboxProfile,
    rights: &Rights,
    covers: &[PathBuf],
) -> Result<(), SandboxError> {
    let fail =
        |what: &str| Err(SandboxError::from_message(Layer::Canary, what, "it was not refused"));
    if !rustix::thread::no_new_privs().unwrap_or(false) {
        return fail("gain privileges");
    }
    let capabilities =
        rustix::thread::capabilities(None).in_layer(Layer::Canary, "read the capabilities")?;
    if !capabilities.effective.is_empty() || !capabilities.permitted.is_empty() {
        return fail("keep a capability");
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    for directory in [Path::new("/"), Path::new("/usr"), Path::new("/etc"), &rights.workspace] {
        let file = directory.join(".ringfence-canary");
        if rights.writable_roots().all(|root| !file.starts_with(root))
            && rustix::fs::open(&file, flags, Mode::from_raw_mode(0o600)).is_ok()
        {
            let _ = std::fs::remove_file(&file);
            return fail("write outside the writable directories");
        }
    }
    if covers.iter().any(|cover| can_write_to(cover)) {
        return fail("write to a protected path");
    }
    if rustix::net::socket(rustix::net::AddressFamily::VSOCK, rustix::net::SocketType::STREAM, None)
        .is_ok()
    {
        return fail("reach the hypervisor");
    }
    if profile == SandboxProfile::Default {
        for hidden in rights.hidden.iter().filter(|path| path.is_file()) {
            if std::fs::read(hidden).is_ok_and(|bytes| !bytes.is_empty()) {
                return fail("read a hidden file");
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
    let created =
        rustix::fs::open(&file, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o600))
            .is_ok();
    if created {
        let _ = std::fs::remove_file(&file);
    }
    created
}

fn build_command(order: &LaunchOrder) -> Command {
    let mut command = Command::new(&order.program);
    command.args(&order.args).env_clear();
    for (name, value) in &order.env {
        command.env(name, value);
    }
    if let Some(name) = &order.argv0 {
        command.arg0(name);
    }
    command
}
