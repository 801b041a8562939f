//! The last steps before a program of the run, in the process that becomes it. They stand here in their order; each
//! is a layer of its own, and the first that fails ends the process with its name.

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

use crate::fault::{Fault, InLayer, Layer};
use crate::intercept::rename;
use crate::landlock;
use crate::limits;
use crate::packet::Channel;
use crate::rights::Rights;
use crate::script;
use crate::seccomp;
use crate::supervisor::{Fds, Spec};
use crate::sys;

/// How strong the fence around a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// None at all: explicit trust.
    None,
    /// Landlock and seccomp on the host as it is.
    Contained,
    /// Namespaces, Landlock and seccomp.
    Default,
}

/// The call with which the canary tries the filter. The supervisor hears of it, and does not count it.
pub const CANARY: &str = "socket";

/// What stands in a value of the environment for the number of the proxy's port.
pub const PORT: &str = "{port}";

/// Tells a program the number of its line, where it has one.
pub const LINE: &str = "RINGFENCE_LINE";

/// Directories of the ground that a run may write, beside those that its rights name.
const PRIVATE: &[&str] = &["/tmp", "/var/tmp", "/run", "/dev/shm", "/dev/pts"];
/// Devices that take what is written to them. The terminal's is the run's own, if it has one.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// What the process needs to become the program.
pub struct Step<'a> {
    pub spec: &'a Spec,
    pub means: limits::Means,
    /// The way to the run's limits, for a process that is not under them already.
    pub door: Option<limits::Door>,
    /// Where the run starts, as the run sees it.
    pub directory: OwnedFd,
    /// What is protected in it.
    pub covers: &'a [PathBuf],
    pub port: Option<u16>,
    /// Closed by the exec: its end without a word means that all went well.
    pub talk: &'a Channel,
}

/// What the process says before it becomes the program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// With the descriptor on which the run's system calls arrive.
    Listening,
    Failed(Fault),
}

/// Becomes the program, or says why not and ends.
pub fn become_program(step: Step<'_>, fds: Fds<OwnedFd>) -> ! {
    let fault = match enter(&step, fds) {
        Ok((mut command, None)) => explain_start(&step.spec.program, &command.exec()),
        Ok((_, Some(file))) => {
            Fault::new(Layer::Program, "start the program", &start_file(step.spec, &file))
        }
        Err(fault) => fault,
    };
    // When nobody hears it, the lost run is what tells.
    let _ = step.talk.send(&Said::Failed(fault), &[]);
    sys::leave(125)
}

/// Why the program did not start. The kernel says of a missing interpreter only that a file was not found.
fn explain_start(program: &str, error: &io::Error) -> Fault {
    let fault = Fault::new(Layer::Program, "start the program", error);
    let line = script::read_first_line(Path::new(program));
    match line.as_deref().and_then(<[String]>::first) {
        Some(interpreter) if fault.errno == Some(libc::ENOENT) && program.contains('/') => {
            Fault { layer: Layer::Interpreter, text: interpreter.clone(), ..fault }
        }
        _ => fault,
    }
}

fn enter(step: &Step<'_>, mut fds: Fds<OwnedFd>) -> Result<(Command, Option<OwnedFd>), Fault> {
    let (spec, rights) = (step.spec, &step.spec.rights);
    // Away from the terminal of whoever called us.
    setsid().in_layer(Layer::Namespaces, "start a session")?;
    fchdir(&step.directory).in_layer(Layer::Directory, "go there")?;
    rustix::stdio::dup2_stdin(&fds.stdin).in_layer(Layer::Directory, "standard input")?;
    rustix::stdio::dup2_stdout(&fds.stdout).in_layer(Layer::Directory, "standard output")?;
    rustix::stdio::dup2_stderr(&fds.stderr).in_layer(Layer::Directory, "standard error")?;
    let (file, line) = (fds.program.take(), fds.line.take());
    drop(fds);
    crate::close_on_exec();
    let line = line.map(hand_on).transpose().in_layer(Layer::Program, "hand its line on")?;
    if let Some(door) = &step.door {
        door.enter().in_layer(Layer::Limits, "put the run under its limits")?;
    }
    limits::set_rlimits(&spec.limits, step.means)
        .in_layer(Layer::Limits, "set the limits of a process")?;
    if spec.fence != Fence::None {
        if rights.nested && spec.fence == Fence::Default {
            crate::namespaces::be_ordinary()?;
        }
        drop_capabilities().in_layer(Layer::Capabilities, "give up every capability")?;
        restrict(spec.fence, rights)?;
        filter(step)?;
        canary(spec.fence, rights, step.covers)?;
    } else if let Some(user) = &spec.user {
        sys::become_user(user.uid, user.gid, &user.groups)
            .in_layer(Layer::Program, "become another user")?;
    }
    // The listener was the last descriptor to be handed over. Earlier, a run that has filled the user's count of those in
    // transit could stop this one.
    limits::set_file_limit(&spec.limits).in_layer(Layer::Limits, "limit the open files")?;
    // The tree may look at its own processes; the flag was cleared for what ran here before.
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .in_layer(Layer::Program, "be an ordinary process")?;
    let mut command = command(spec, step.port);
    if let Some(line) = line {
        command.env(LINE, line.to_string());
    }
    Ok((command, file))
}

/// Leaves a descriptor open for the program, which is told its number: a fixed one may be in use until the exec. The
/// lowest that is free, since some shells know no numbers of two digits.
fn hand_on(line: OwnedFd) -> io::Result<i32> {
    let low = rustix::io::fcntl_dupfd_cloexec(&line, 3)?;
    rustix::io::fcntl_setfd(&low, rustix::io::FdFlags::empty())?;
    Ok(low.into_raw_fd())
}

/// Starts the very file that was looked at, whatever its name leads to by now.
fn start_file(spec: &Spec, file: &OwnedFd) -> io::Error {
    let argv0 = spec.argv0.as_ref().unwrap_or(&spec.program);
    let argv = [argv0].into_iter().chain(&spec.args).map(|word| word.as_bytes());
    let env = spec.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes());
    sys::exec_file(file.as_fd(), argv.map(<[u8]>::to_vec), env)
}

/// All of them, for ever: what is run later cannot get one back either.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Without the right to drop them we have none to begin with, and no_new_privs keeps it so.
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

fn restrict(fence: Fence, rights: &Rights) -> Result<(), Fault> {
    let mut writable: Vec<PathBuf> = rights.writable_roots().map(Path::to_owned).collect();
    if fence == Fence::Default {
        writable.extend(PRIVATE.iter().map(PathBuf::from).filter(|path| path.is_dir()));
    }
    if rights.nested && fence == Fence::Default {
        // Under rules about files no mount can be made. The mounts alone hold then, as the canary tries.
        return landlock::scope();
    }
    landlock::restrict(&landlock::Rules { writable: &writable, files: DEVICES, scoped: true })
}

/// From here on the supervisor hears of every call that a rule leaves to it.
fn filter(step: &Step<'_>) -> Result<(), Fault> {
    let namespaces = step.spec.fence == Fence::Default;
    let rights = &step.spec.rights;
    let case = seccomp::Case {
        network: rights.network,
        namespaces,
        watched: step.spec.exec.is_some(),
        nested: rights.nested && namespaces,
        // What a sandbox inside has made read-only, or another tree, is not seen from where renames would be looked at.
        renames: namespaces && !rights.nested && rename::is_needed(step.covers),
    };
    let program = seccomp::program(seccomp::rules(case));
    let listener = sys::seccomp(&program, true).in_layer(Layer::Seccomp, "put the filter on")?;
    let Some(listener) = listener else {
        return Err(Fault::other(Layer::Seccomp, "put the filter on", "no listener"));
    };
    step.talk
        .send(&Said::Listening, &[listener.as_fd()])
        .in_layer(Layer::Seccomp, "hand the listener over")?;
    drop(listener);
    // The supervisor is ready when it says so; the calls of the program find it waiting.
    match step.talk.receive::<bool>().in_layer(Layer::Seccomp, "wait for the supervisor")? {
        Some((true, _)) => Ok(()),
        _ => Err(Fault::other(Layer::Seccomp, "wait for the supervisor", "it is gone")),
    }
}

/// Tries what each layer must refuse. A layer that lets it pass is one that does not hold, whatever it said.
fn canary(fence: Fence, rights: &Rights, covers: &[PathBuf]) -> Result<(), Fault> {
    let broken = |what: &str| Err(Fault::other(Layer::Canary, what, "it was not refused"));
    if !rustix::thread::no_new_privs().unwrap_or(false) {
        return broken("gain privileges");
    }
    let capabilities =
        rustix::thread::capabilities(None).in_layer(Layer::Canary, "look at the capabilities")?;
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
            return broken("write outside");
        }
    }
    if covers.iter().any(|cover| writes_into(cover)) {
        return broken("write to a protected path");
    }
    if rustix::net::socket(rustix::net::AddressFamily::VSOCK, rustix::net::SocketType::STREAM, None)
        .is_ok()
    {
        return broken("reach the hypervisor");
    }
    if fence == Fence::Default {
        for hidden in rights.hidden.iter().filter(|path| path.is_file()) {
            if std::fs::read(hidden).is_ok_and(|bytes| !bytes.is_empty()) {
                return broken("read a hidden file");
            }
        }
    }
    Ok(())
}

/// Whether a protected file can be opened for writing, a file made in a protected directory, or a protected link changed.
fn writes_into(cover: &Path) -> bool {
    if cover.is_symlink() {
        // Changes nothing, but the kernel asks whether it may be changed.
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

fn command(spec: &Spec, port: Option<u16>) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).env_clear();
    for (name, value) in &spec.env {
        command.env(name, value);
    }
    if let Some(port) = port {
        for (name, value) in &spec.proxy_env {
            command.env(name, OsString::from(value.replace(PORT, &port.to_string())));
        }
    }
    if let Some(name) = &spec.argv0 {
        command.arg0(name);
    }
    command
}
