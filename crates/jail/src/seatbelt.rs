//! The sandbox on macOS: a policy for `sandbox-exec`, built from a fixed text with paths as
//! parameters.
//!
//! This module neither accesses the file system nor starts anything, so it behaves the same on
//! every host. The kernel compares real paths: the caller resolves symbolic links first, and this
//! module adds only the three that exist on every Mac.

mod path;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write};
use std::num::NonZeroU16;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Absolute, never looked up by name: a hostile PATH could put a fake one first.
pub const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

const POLICY_TEXT: &str = include_str!("../profiles/seatbelt.sbpl");

/// Access rights of a run, in the terms of a seatbelt policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatbeltRights {
    /// Directories whose contents may be changed.
    pub writable: Vec<PathBuf>,
    /// Paths inside these that may not be changed, whether they exist yet or not.
    pub protected: Vec<PathBuf>,
    /// Paths that can be neither read nor changed.
    pub hidden: Vec<PathBuf>,
    /// Network access of the run.
    pub network: SeatbeltNetwork,
}

/// Network access of a run, in the terms of a seatbelt policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeatbeltNetwork {
    /// No network.
    #[default]
    Off,
    /// Only this port on the host's loopback interface.
    Proxy(NonZeroU16),
    /// Everything.
    All,
}

/// A path that cannot be expressed in a policy without changing its meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyPathError {
    pub path: PathBuf,
    pub reason: &'static str,
}

impl fmt::Display for PolicyPathError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} cannot be part of a seatbelt policy: {}", self.path, self.reason)
    }
}

impl std::error::Error for PolicyPathError {}

/// Parameters of a policy, as `sandbox-exec -D` takes them.
pub type PolicyParameters = Vec<(String, String)>;

/// Returns the policy and its parameters. Every parameter is used, and every parameter used is
/// defined.
pub fn build_policy(
    rights: &SeatbeltRights,
) -> Result<(String, PolicyParameters), PolicyPathError> {
    let writable = path::normalize_all(&rights.writable)?;
    let mut protected = path::normalize_all(&rights.protected)?;
    let hidden = path::normalize_all(&rights.hidden)?;
    if writable.contains("/") {
        return Err(PolicyPathError {
            path: "/".into(),
            reason: "a sandbox cannot make the whole file system writable",
        });
    }
    if writable.is_empty() {
        // Nothing can be written, so there is no rule that they could be an exception to.
        protected.clear();
    }
    let anchors =
        path::directories_above(writable.iter().chain(&protected).chain(&hidden), &writable);

    let mut policy = PolicyBuilder { text: policy_section("always"), parameters: Vec::new() };
    policy.allow_network(rights.network);
    let hidden = policy.add_path_filters("HIDDEN", &hidden);
    let protected = policy.add_path_filters("PROTECTED", &protected);
    policy.allow_writing(&writable, protected.iter().chain(&hidden));
    policy.pin_anchors(&anchors);
    policy.deny_hidden(&hidden);
    Ok((policy.text, policy.parameters))
}

/// Returns the command to start instead of the program: `sandbox-exec` with the policy, its
/// parameters and the program.
pub fn wrap_command(
    rights: &SeatbeltRights,
    program: &OsStr,
    args: &[OsString],
) -> Result<(&'static str, Vec<OsString>), PolicyPathError> {
    let (text, parameters) = build_policy(rights)?;
    let mut command_args: Vec<OsString> = vec!["-p".into(), text.into()];
    command_args
        .extend(parameters.into_iter().map(|(name, value)| format!("-D{name}={value}").into()));
    command_args.push("--".into());
    command_args.push(program.to_owned());
    command_args.extend_from_slice(args);
    Ok((SANDBOX_EXEC, command_args))
}

/// Returns one section of the policy text.
fn policy_section(name: &str) -> String {
    let lines =
        POLICY_TEXT.lines().skip_while(|line| line.strip_prefix(";; ") != Some(name)).skip(1);
    lines
        .take_while(|line| !line.starts_with(";; "))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// A policy under construction.
struct PolicyBuilder {
    text: String,
    parameters: PolicyParameters,
}

impl PolicyBuilder {
    fn push_line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(line);
        self.text.push('\n');
    }

    /// Adds a parameter and returns the expression that refers to it.
    fn add_parameter(&mut self, name: String, value: &str) -> String {
        let filter = format!("(param \"{name}\")");
        self.parameters.push((name, value.to_owned()));
        filter
    }

    /// Adds the filters that match a path in all its forms: the path itself (otherwise it could be
    /// created), everything below it, and both in any case, since the usual file system of a Mac
    /// does not distinguish `.git` from `.GIT`.
    fn add_path_filters(&mut self, kind: &str, paths: &BTreeSet<String>) -> Vec<String> {
        let mut filters = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            let exact = self.add_parameter(format!("{kind}_{index}"), path);
            let spelling = self.add_parameter(
                format!("{kind}_{index}_SPELLED"),
                &path::spelling_regex(path, "(/.*)?"),
            );
            filters.push(format!("(literal {exact})"));
            filters.push(format!("(subpath {exact})"));
            filters.push(format!("(regex {spelling})"));
        }
        filters
    }

    fn allow_network(&mut self, network: SeatbeltNetwork) {
        match network {
            SeatbeltNetwork::Off => {}
            SeatbeltNetwork::Proxy(port) => {
                self.push_line(format_args!("\n; The proxy, which decides about every host name."));
                self.push_line(format_args!(
                    "(allow network-outbound (remote ip \"localhost:{port}\"))"
                ));
            }
            SeatbeltNetwork::All => {
                self.text.push('\n');
                self.text += &policy_section("network");
            }
        }
    }

    fn allow_writing<'a>(
        &mut self,
        writable: &BTreeSet<String>,
        exceptions: impl Iterator<Item = &'a String>,
    ) {
        if writable.is_empty() {
            return;
        }
        self.push_line(format_args!(
            "\n; The writable roots, except what is protected or hidden in them."
        ));
        self.push_line(format_args!("(allow file-write*\n  (require-all\n    (require-any"));
        for (index, root) in writable.iter().enumerate() {
            let root = self.add_parameter(format!("WRITABLE_{index}"), root);
            self.push_line(format_args!("      (subpath {root})"));
        }
        self.text.pop();
        self.push_line(format_args!(")"));
        for filter in exceptions {
            self.push_line(format_args!("    (require-not {filter})"));
        }
        self.text.pop();
        self.push_line(format_args!("))"));
    }

    /// Rules refer to paths by name, so a directory above such a path must not be moved away or
    /// replaced by a link.
    fn pin_anchors(&mut self, anchors: &BTreeSet<String>) {
        if anchors.is_empty() {
            return;
        }
        self.push_line(format_args!(
            "\n; Directories above or in these rules cannot be moved away or replaced by a link."
        ));
        for (index, anchor) in anchors.iter().enumerate() {
            let exact = self.add_parameter(format!("ANCHOR_{index}"), anchor);
            let spelling = self.add_parameter(
                format!("ANCHOR_{index}_SPELLED"),
                &path::spelling_regex(anchor, ""),
            );
            self.push_line(format_args!(
                "(deny file-write-unlink (require-all (literal {exact}) (vnode-type DIRECTORY)))\n\
                 (deny file-write-create (require-all (regex {spelling}) (vnode-type SYMLINK)))"
            ));
        }
    }

    fn deny_hidden(&mut self, hidden: &[String]) {
        if hidden.is_empty() {
            return;
        }
        self.push_line(format_args!("\n; Hidden paths: last, so that no rule above reopens them."));
        for operation in ["file-read*", "file-write*", "process-exec"] {
            self.push_line(format_args!("(deny {operation}\n  {})", hidden.join("\n  ")));
        }
    }
}

#[cfg(test)]
mod tests;
