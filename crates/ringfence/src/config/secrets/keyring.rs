//! The system keyring, accessed through the system's own program: libsecret's `secret-tool`, or
//! `security` on macOS.
//!
//! This is the only code outside `sandbox/` that starts a process. It is not a run: it takes
//! nothing from a call, the program is part of the system and is looked up nowhere else, and a
//! sandbox would only keep it from the user's session.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::store::{MAX_VALUE_BYTES, check_secret};
use super::{ProcessEnv, env, is_secret_name};
use crate::base::{Error, Kind, Result};
use crate::redact::secret::Secret;

/// Time for all lookups of a config together: a locked keyring waits until the user unlocks it.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
const SERVICE: &str = "ringfence";
const IS_MACOS: bool = cfg!(target_os = "macos");
/// Not from PATH: it may contain a project's directory.
const KEYRING_PROGRAMS: &[&str] = if IS_MACOS {
    &["/usr/bin/security"]
} else {
    &[
        "/usr/bin/secret-tool",
        "/usr/local/bin/secret-tool",
        "/run/current-system/sw/bin/secret-tool",
    ]
};
/// Variables that it needs to find the user's session.
const PASSED_VARIABLES: [&str; 3] =
    [env::HOME, env::XDG_RUNTIME_DIR, env::DBUS_SESSION_BUS_ADDRESS];

/// Access to the system keyring.
#[derive(Debug, Clone)]
pub struct Keyring {
    program: PathBuf,
    env: Vec<(&'static str, OsString)>,
}

struct KeyringOutput {
    /// `None` if it was killed by a signal.
    code: Option<i32>,
    stdout: Zeroizing<Vec<u8>>,
    stderr: Vec<u8>,
}

impl Keyring {
    /// Finds the keyring; `None` if the system has no such program, or no session to which a
    /// keyring could belong.
    pub fn detect(env: &ProcessEnv) -> Option<Keyring> {
        let has_bus = env.get(env::DBUS_SESSION_BUS_ADDRESS).is_some()
            || env.get_absolute(env::XDG_RUNTIME_DIR).is_some_and(|dir| dir.join("bus").exists());
        let program = KEYRING_PROGRAMS
            .iter()
            .map(PathBuf::from)
            .find(|program| program.is_file() && (has_bus || IS_MACOS))?;
        let passed_variables =
            PASSED_VARIABLES.into_iter().filter_map(|name| Some((name, env.get(name)?.to_owned())));
        Some(Keyring { program, env: passed_variables.collect() })
    }

    /// Looks up a value, waiting no longer than `deadline`.
    pub fn get(&self, name: &str, deadline: Instant) -> Result<Option<Secret>> {
        let args = match IS_MACOS {
            true => vec!["find-generic-password", "-s", SERVICE, "-a", name, "-w"],
            false => vec!["lookup", "service", SERVICE, "account", name],
        };
        let mut output = self.run_program(&args, None, deadline)?;
        // `security` ends its output with a newline that is not part of the value.
        if IS_MACOS && output.stdout.last() == Some(&b'\n') {
            output.stdout.pop();
        }
        let is_silent = output.stdout.is_empty() && output.stderr.is_empty();
        match output.code {
            // A missing entry is reported by the exit code alone.
            Some(44) if IS_MACOS => Ok(None),
            Some(0 | 1) if is_silent => Ok(None),
            Some(0) => {
                let value = Secret::new(std::mem::take(&mut *output.stdout));
                check_secret(name, &value)?;
                Ok(Some(value))
            }
            _ => Err(keyring_error(&output)),
        }
    }

    /// Stores a value.
    pub fn store_secret(&self, name: &str, value: &Secret) -> Result<()> {
        check_secret(name, value)?;
        if IS_MACOS {
            return Err(Error::new(
                Kind::Unavailable,
                "`security` takes a value only from its own prompt or its arguments",
            )
            .with_hint(format!("Run `security add-generic-password -U -s {SERVICE} -a {name} -w`, which asks for it.")));
        }
        let label = format!("--label=Ringfence: {name}");
        let args = ["store", &label, "service", SERVICE, "account", name];
        let output = self.run_program(&args, Some(value), Instant::now() + LOOKUP_TIMEOUT * 12)?;
        if output.code == Some(0) { Ok(()) } else { Err(keyring_error(&output)) }
    }

    /// Removes a value. Returns whether it existed.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let deadline = Instant::now() + LOOKUP_TIMEOUT * 12;
        if self.get(name, deadline)?.is_none() {
            return Ok(false);
        }
        let args = match IS_MACOS {
            true => vec!["delete-generic-password", "-s", SERVICE, "-a", name],
            false => vec!["clear", "service", SERVICE, "account", name],
        };
        let output = self.run_program(&args, None, deadline)?;
        if output.code == Some(0) { Ok(true) } else { Err(keyring_error(&output)) }
    }

    /// Returns the names of our entries. On macOS they cannot be listed.
    pub fn list_names(&self) -> Result<Vec<String>> {
        if IS_MACOS {
            return Ok(Vec::new());
        }
        let output = self.run_program(
            &["search", "--all", "service", SERVICE],
            None,
            Instant::now() + LOOKUP_TIMEOUT,
        )?;
        // It prints values on standard output, and the attributes on standard error.
        let stderr = String::from_utf8_lossy(&output.stderr);
        let names = stderr.lines().filter_map(|line| line.strip_prefix("attribute.account = "));
        let mut names: Vec<String> =
            names.filter(|name| is_secret_name(name)).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn run_program(
        &self,
        args: &[&str],
        input: Option<&Secret>,
        deadline: Instant,
    ) -> Result<KeyringOutput> {
        let failed = |error: std::io::Error| {
            let program = self.program.display();
            Error::new(Kind::Unavailable, format!("cannot run {program}"))
                .with_reason("secret_store")
                .with_source(error)
        };
        let mut child = Command::new(&self.program)
            .args(args)
            .env_clear()
            .env("LC_ALL", "C")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let (Some(mut stdin), Some(value)) = (child.stdin.take(), input) {
            // If the program does not read its input, it reports why when it exits.
            let _ = stdin.write_all(value.expose());
        }
        let (stdout, stderr) =
            (spawn_reader(child.stdout.take()), spawn_reader(child.stderr.take()));
        let output = wait_for_output(&stdout, &stderr, deadline);
        if output.is_none() {
            // It may have exited in the meantime.
            let _ = child.kill();
        }
        let status = child.wait().map_err(failed)?;
        let (stdout, stderr) = output.ok_or_else(|| {
            Error::new(Kind::Unavailable, "the keyring does not answer")
                .with_reason("secret_store")
                .with_hint("Unlock it, or set `keyring = false` under [secrets].")
        })?;
        Ok(KeyringOutput { code: status.code(), stdout: Zeroizing::new(stdout), stderr })
    }
}

fn spawn_reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // After a read error, the output read so far is used.
            let _ = pipe.take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut bytes);
        }
        let _ = sender.send(bytes);
    });
    receiver
}

/// Waits for the end of both streams, which end when the program exits.
fn wait_for_output(
    stdout: &Receiver<Vec<u8>>,
    stderr: &Receiver<Vec<u8>>,
    deadline: Instant,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let stdout = stdout.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()?;
    let stderr = stderr.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()?;
    Some((stdout, stderr))
}

fn keyring_error(output: &KeyringOutput) -> Error {
    let stderr_text = String::from_utf8_lossy(&output.stderr);
    let stderr_text: String = stderr_text.trim().chars().take(300).collect();
    Error::new(Kind::Unavailable, "the keyring cannot be used")
        .with_reason("secret_store")
        .with_hint("Unlock it, or set `keyring = false` under [secrets].")
        .with_source(stderr_text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::super::scratch::Scratch;
    use super::*;

    /// A program in the keyring's place, for what a real one does not do when it is asked to.
    fn stand_in(scratch: &Scratch, script: &str) -> Keyring {
        let program = scratch.file("tool", &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        Keyring { program, env: vec![("HOME", "/".into())] }
    }

    #[test]
    fn a_keyring_that_does_not_answer_is_not_waited_for() {
        let scratch = Scratch::new();
        let started = Instant::now();
        let keyring = stand_in(&scratch, "exec sleep 600");
        let error = keyring.get("A", Instant::now() + Duration::from_millis(300)).unwrap_err();
        assert_eq!((error.kind(), error.reason_name()), (Kind::Unavailable, Some("secret_store")));
        // A time that is up already is none at all.
        assert!(keyring.get("A", started).is_err());
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn what_it_says_is_bounded_and_believed_whole_or_not_at_all() {
        let scratch = Scratch::new();
        let until = || Instant::now() + Duration::from_secs(20);
        let get = |script: &str| stand_in(&scratch, script).get("A", until());
        assert_eq!(get("printf 'two\\nlines'").unwrap().unwrap().expose(), b"two\nlines");
        assert!(get("exit 1").unwrap().is_none() && get("true").unwrap().is_none());
        assert!(get("echo no bus >&2; exit 1").unwrap_err().message_chain().contains("no bus"));
        // Killed by SIGPIPE, or exited normally: the truncated output is not the value.
        assert!(get("exec yes").is_err());
        assert_eq!(get("head -c 65537 /dev/zero | tr '\\0' x").unwrap_err().kind(), Kind::TooLarge);
        assert_eq!(
            get("head -c 65536 /dev/zero | tr '\\0' x").unwrap().unwrap().expose().len(),
            MAX_VALUE_BYTES
        );
        assert!(get("printf half; exit 1").is_err() && get("kill -9 $$").is_err());
        assert_eq!(get("printf 'a\\000b'").unwrap_err().kind(), Kind::InvalidArguments);
        // It is told nothing of our environment.
        let env = get("env").unwrap().unwrap();
        let names: Vec<&[u8]> = env
            .expose()
            .split(|byte| *byte == b'\n')
            .map(|line| line.split(|byte| *byte == b'=').next().unwrap())
            .collect();
        assert!(
            names.iter().all(|name| [
                &b""[..],
                b"HOME",
                b"LC_ALL",
                b"PWD",
                b"_",
                b"OLDPWD",
                b"SHLVL"
            ]
            .contains(name)),
            "{names:?}"
        );
        assert!(
            stand_in(&scratch, "cat >/dev/null; exit 3")
                .store_secret("A", &Secret::new("value-of-it"))
                .is_err()
        );
    }
}
