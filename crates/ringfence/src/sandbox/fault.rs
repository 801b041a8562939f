//! What a caller is told when the fence or its program could not be started.

use std::path::Path;

use jail::fault::{Fault, Layer};
use rustix::io::Errno;

use crate::base::{Error, Kind};
use crate::config::REPLACED_DIRECTORIES;

/// Whoever asked for a program that cannot be run is told so; a layer that refused is named with the way out.
pub fn explain(program: &str, fault: &Fault) -> Error {
    if !matches!(fault.layer, Layer::Program | Layer::Interpreter) {
        tracing::warn!("the sandbox cannot be put up: {fault}");
    }
    match fault.layer {
        Layer::Program => spawn_failed(program, fault),
        Layer::Interpreter => no_interpreter(program, fault),
        Layer::Protected => Error::permission_denied("sandbox", format!("the sandbox cannot {}", fault.what))
            .hint(match fault.errno.map(Errno::from_raw_os_error) {
                Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
                    "The server has to be able to write to the workspace, or it cannot protect what is missing there."
                }
                _ => "Make it a plain file or directory; a protected path that cannot be protected stops every run.",
            })
            .source(fault.clone()),
        _ => Error::permission_denied(
            "sandbox",
            format!("the sandbox cannot be put up ({} refused)", fault.layer.name()),
        )
        .hint(way_out(fault))
        .source(fault.clone()),
    }
}

fn way_out(fault: &Fault) -> &'static str {
    let errno = fault.errno.map(Errno::from_raw_os_error);
    match fault.layer {
        Layer::Seccomp if errno == Some(Errno::BUSY) => {
            "Something supervises this process already, as another Ringfence does, and there can be only one. Run the \
             command as it is: it is in that sandbox."
        }
        Layer::UserNamespace | Layer::Namespaces | Layer::Mounts if is_fenced() => {
            "This process seems to be in a sandbox already, and a sandbox cannot be put up inside one. Run the command as \
             it is, or run Ringfence outside."
        }
        Layer::UserNamespace | Layer::Namespaces | Layer::Mounts | Layer::Proc | Layer::Network => {
            "Run `ringfence doctor`: it shows what this host refuses and how to allow it. In a container, `profile = \
             \"contained\"` under `[sandbox]` promises less and needs no namespaces."
        }
        Layer::Landlock | Layer::Seccomp => {
            "Run `ringfence doctor`. This kernel does not have what the sandbox needs."
        }
        Layer::Exec => {
            "Run `ringfence doctor`. The programs of a run cannot be watched here, so rules cannot hold; `intercept = \
             false` under [policy] runs without them."
        }
        _ => "Run `ringfence doctor`: it tries every layer and says what is wrong.",
    }
}

/// What a run in a fence of ours looks like from inside, and few others.
fn is_fenced() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let has = |name: &str, value: &str| {
        status.lines().any(|line| line.strip_prefix(name).map(str::trim) == Some(value))
    };
    has("NoNewPrivs:", "1") && has("Seccomp:", "2")
}

/// Its interpreter is the script's own word, as its name is the caller's.
fn no_interpreter(program: &str, fault: &Fault) -> Error {
    let shown = |text: &str| text.escape_debug().take(200).collect::<String>();
    let interpreter = shown(&fault.text);
    Error::new(Kind::NotFound, format!("`{}` is a script for `{interpreter}`, which was not found", shown(program)))
        .reason("spawn_failed")
        .hint("Install the interpreter, correct the first line of the script, or run the script through another one.")
        .with("interpreter", interpreter)
        .source(fault.clone())
}

/// The program was looked for and could not be run. Its name is the caller's own word.
fn spawn_failed(program: &str, fault: &Fault) -> Error {
    let shown: String = program.chars().take(200).collect();
    let errno = fault.errno.map(Errno::from_raw_os_error);
    let (kind, message, hint) = match errno {
        Some(Errno::NOENT) => (
            Kind::NotFound,
            format!("there is no program `{shown}`"),
            match REPLACED_DIRECTORIES
                .iter()
                .any(|directory| Path::new(program).starts_with(directory))
            {
                true => {
                    "The sandbox has directories of its own in place of the host's /tmp, /var/tmp and /run. Put the program into the workspace."
                }
                false => {
                    "Check the name; a path is relative to `cwd`, a bare name is looked up in PATH."
                }
            },
        ),
        Some(Errno::ACCESS | Errno::ISDIR | Errno::NOTDIR | Errno::LOOP) => (
            Kind::InvalidArguments,
            format!("`{shown}` is not a program that can be run"),
            "Run it through its interpreter, or make the file executable.",
        ),
        Some(Errno::NOEXEC) => (
            Kind::InvalidArguments,
            format!("`{shown}` is not in a format that this system runs"),
            "Run it through its interpreter, or give it a `#!` line.",
        ),
        Some(Errno::TOOBIG | Errno::NAMETOOLONG) => (
            Kind::InvalidArguments,
            "the command is longer than the system takes".to_owned(),
            "Pass long text through `stdin` or a file.",
        ),
        _ => (
            Kind::Internal,
            format!("`{shown}` could not be started"),
            Kind::Internal.default_hint(),
        ),
    };
    Error::new(kind, message).reason("spawn_failed").hint(hint).source(fault.clone())
}
