//! Errors for a sandbox or a program that could not be started.

use std::io;
use std::path::Path;

use jail::error::{Layer, SandboxError};
use rustix::io::Errno;

use crate::base::{Error, Kind};
use crate::config::REPLACED_DIRECTORIES;

/// Explains a failed start: a caller that named a program which cannot run learns why; a layer that
/// refused is named, with a way to fix it.
pub fn explain_start_failure(program: &str, error: &SandboxError) -> Error {
    if !matches!(error.layer, Layer::Program | Layer::Interpreter) {
        tracing::warn!("the sandbox cannot be set up: {error}");
    }
    match error.layer {
        Layer::Program => spawn_failed(program, error),
        Layer::Interpreter => missing_interpreter(program, error),
        Layer::Protected => Error::permission_denied("sandbox", format!("the sandbox cannot {}", error.what))
            .with_hint(match error.errno.map(Errno::from_raw_os_error) {
                Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
                    "The server needs write access to the workspace to protect paths that do not exist there yet."
                }
                _ => "Make it a plain file or directory; no command runs while a protected path cannot be protected.",
            })
            .with_source(error.clone()),
        _ => Error::permission_denied(
            "sandbox",
            format!("the sandbox cannot be set up ({} refused)", error.layer.name()),
        )
        .with_hint(layer_hint(error))
        .with_source(error.clone()),
    }
}

fn layer_hint(error: &SandboxError) -> &'static str {
    let errno = error.errno.map(Errno::from_raw_os_error);
    match error.layer {
        Layer::Seccomp if errno == Some(Errno::BUSY) => {
            "This process is already supervised, perhaps by another Ringfence, and there can be only one supervisor. \
             Run the command directly: it is already in that sandbox."
        }
        Layer::UserNamespace | Layer::Namespaces | Layer::Mounts if is_sandboxed() => {
            "This process seems to be in a sandbox already, and a sandbox cannot be set up inside one. Run the command \
             directly, or run Ringfence outside."
        }
        // `contained` needs Landlock: it is no way out where that is missing.
        Layer::UserNamespace | Layer::Namespaces | Layer::Mounts | Layer::Proc | Layer::Network
            if jail::has_required_landlock() =>
        {
            "Run `ringfence doctor`: it shows what this host refuses and how to allow it. In a container, `profile = \
             \"contained\"` under `[sandbox]` promises less and needs no namespaces."
        }
        Layer::UserNamespace | Layer::Namespaces | Layer::Mounts | Layer::Proc | Layer::Network => {
            "Run `ringfence doctor`: it shows what this host refuses and how to allow it. The sandbox needs Linux 5.14 or newer."
        }
        Layer::Landlock | Layer::Seccomp => {
            "Run `ringfence doctor`: this kernel lacks a feature that the sandbox needs."
        }
        Layer::Exec => {
            "Run `ringfence doctor`. Execs cannot be intercepted on this host, so rules cannot be enforced; \
             `intercept = false` under [policy] runs without rules."
        }
        _ => "Run `ringfence doctor`: it tries every layer and says what is wrong.",
    }
}

/// Returns whether this process looks like a run in our sandbox: few others have both
/// no-new-privileges and a seccomp filter.
fn is_sandboxed() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let has = |name: &str, value: &str| {
        status.lines().any(|line| line.strip_prefix(name).map(str::trim) == Some(value))
    };
    has("NoNewPrivs:", "1") && has("Seccomp:", "2")
}

/// Builds the error about a missing interpreter. The script names the interpreter, and the caller
/// the script, so both can be shown.
fn missing_interpreter(program: &str, error: &SandboxError) -> Error {
    let shorten = |text: &str| text.escape_debug().take(200).collect::<String>();
    let interpreter = shorten(&error.text);
    Error::new(Kind::NotFound, format!("`{}` is a script for `{interpreter}`, which was not found", shorten(program)))
        .with_reason("spawn_failed")
        .with_hint("Install the interpreter, correct the first line of the script, or run the script through another one.")
        .with_fact("interpreter", interpreter)
        .with_source(error.clone())
}

/// Builds the error about a program that was searched for and could not run. The caller named it,
/// so it can be shown.
fn spawn_failed(program: &str, error: &SandboxError) -> Error {
    let display_name: String = program.chars().take(200).collect();
    let errno = error.errno.map(Errno::from_raw_os_error);
    let (kind, message, hint) = match errno {
        Some(Errno::NOENT) if !program.contains('/') => (
            Kind::NotFound,
            format!("program `{display_name}` was not found in PATH"),
            "Check the spelling, or give the program's path.",
        ),
        Some(Errno::NOENT) => (
            Kind::NotFound,
            format!("program `{display_name}` was not found"),
            match REPLACED_DIRECTORIES
                .iter()
                .any(|directory| Path::new(program).starts_with(directory))
            {
                true => {
                    "The sandbox has its own /tmp, /var/tmp and /run instead of the host's. Put the program into the workspace."
                }
                false => "Check the spelling. Relative paths start at the working directory.",
            },
        ),
        Some(Errno::ACCESS | Errno::ISDIR | Errno::NOTDIR | Errno::LOOP) => (
            Kind::InvalidArguments,
            format!("`{display_name}` is not a program that can be run"),
            "Run it through its interpreter, or make the file executable.",
        ),
        Some(Errno::NOEXEC) => (
            Kind::InvalidArguments,
            format!("`{display_name}` has a format that this system cannot run"),
            "Run it through its interpreter, or give it a `#!` line.",
        ),
        Some(Errno::TOOBIG | Errno::NAMETOOLONG) => (
            Kind::InvalidArguments,
            "the command is longer than the system allows".to_owned(),
            "Pass long text through `stdin` or a file.",
        ),
        _ => (
            Kind::Internal,
            format!("`{display_name}` could not be started"),
            Kind::Internal.default_hint(),
        ),
    };
    let failure = Error::new(kind, message).with_reason("spawn_failed").with_hint(hint);
    // The message names the program already, so only the system's reason is added.
    match error.errno {
        Some(errno) => failure.with_source(io::Error::from_raw_os_error(errno)),
        None => failure.with_source(error.clone()),
    }
}

/// Returns the error for a run that could not be started at all, and logs the cause.
pub(super) fn cannot_start(program: &str, error: &std::io::Error) -> Error {
    tracing::warn!("cannot start a run of {program:?}: {error}");
    Error::internal("the command could not be started")
        .with_reason("spawn_failed")
        .with_source(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_start_is_explained_without_our_layers() {
        for (program, errno, chain) in [
            (
                "nosuch",
                Errno::NOENT,
                "program `nosuch` was not found in PATH: No such file or directory (os error 2)",
            ),
            (
                "./nosuch",
                Errno::NOENT,
                "program `./nosuch` was not found: No such file or directory (os error 2)",
            ),
            (
                "/etc/passwd",
                Errno::ACCESS,
                "`/etc/passwd` is not a program that can be run: Permission denied (os error 13)",
            ),
            (
                "true",
                Errno::NOMEM,
                "`true` could not be started: Cannot allocate memory (os error 12)",
            ),
        ] {
            let error = SandboxError::from_io_error(
                Layer::Program,
                "start the program",
                &io::Error::from_raw_os_error(errno.raw_os_error()),
            );
            assert_eq!(explain_start_failure(program, &error).message_chain(), chain);
        }
    }
}
