//! Finds everything that is wrong or suspicious in a config, without running anything.

mod advice;

pub use advice::idle_patterns;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::fault::{Fault, Place};
use super::parse::raw;
use super::parse::read::entry_key;
use super::resolve::{Source, entry_faults, resolve_source};
use super::{Config, Env, Flags};
use crate::base::{Error, Result};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The server does not start, or a tool is not available.
    Error,
    /// It works, but perhaps not as intended.
    Warning,
}

/// A problem in a config, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// Path of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The tool that is not available because of it, if that is the only consequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    pub message: String,
    pub hint: String,
    /// The line with a caret under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picture: Option<String>,
}

impl From<Fault> for Finding {
    fn from(fault: Fault) -> Self {
        Finding {
            severity: Severity::Error,
            file: Some(fault.file),
            line: Some(fault.line),
            column: Some(fault.column),
            key: Some(fault.key).filter(|key| !key.is_empty()),
            tool: fault.entry,
            message: fault.message,
            hint: fault.hint,
            picture: Some(fault.picture),
        }
    }
}

impl Finding {
    /// Formats position and message on one line.
    pub fn line(&self) -> String {
        let place = match (&self.file, self.line, self.column) {
            (Some(file), Some(line), Some(column)) => {
                format!("{}:{line}:{column}: ", file.display())
            }
            _ => String::new(),
        };
        format!("{place}{}", self.message)
    }
}

/// Result of checking a config, whether or not it is usable.
pub struct Look {
    /// The resolved config, if it could be resolved.
    pub config: Option<Config>,
    pub findings: Vec<Finding>,
    source: Source,
    /// The name of each command, by the path of its key.
    entry_keys: HashMap<String, String>,
}

impl Look {
    /// Returns the path of the config file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.source.path.as_deref()
    }

    /// Adds a finding about the value of a key, or about its section if the file does not set it.
    pub fn find(
        &mut self,
        severity: Severity,
        key: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let place =
            self.source.read.places.value(key).map(|span| Place::of(&self.source.text, span, key));
        let tool = match severity {
            Severity::Error => self.tool_of(key),
            Severity::Warning => None,
        };
        self.findings.push(Finding {
            severity,
            file: self.source.path.clone().filter(|_| place.is_some()),
            line: place.as_ref().map(|place| place.line),
            column: place.as_ref().map(|place| place.column),
            key: Some(key.to_owned()),
            tool,
            message: message.into(),
            hint: hint.into(),
            picture: place.map(|place| place.picture),
        });
    }

    /// Returns the command that a key belongs to.
    fn tool_of(&self, key: &str) -> Option<String> {
        let ends = key.match_indices('.').map(|(at, _)| at).chain([key.len()]);
        ends.filter_map(|end| self.entry_keys.get(&key[..end])).next().cloned()
    }

    /// Adds an error; the error may name the key.
    pub fn refuse(&mut self, error: &Error) {
        let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint()).to_owned();
        let key = error.fact(KEY).and_then(|key| key.as_str()).unwrap_or_default().to_owned();
        self.find(Severity::Error, &key, error.detail(), hint);
        if let Some(finding) = self.findings.last_mut().filter(|_| key.is_empty()) {
            finding.key = None;
        }
    }

    /// Sorts the findings in the order of the file; those without a position come last.
    pub fn sort(&mut self) {
        self.findings.sort_by_key(|finding| {
            (finding.line.unwrap_or(usize::MAX), finding.column, finding.severity)
        });
        self.findings.dedup();
    }
}

/// Key of the error fact that names the config key it is about.
pub(super) const KEY: &str = "key";

/// Checks the config that these flags and this environment select. Fails if there is no config to
/// check.
pub fn look(flags: &Flags, env: &Env) -> Result<Look> {
    let source = Source::open(flags, env)?;
    let entries = source.read.entries.iter();
    let entry_keys = entries.map(|entry| (entry_key(&entry.name), entry.name.clone())).collect();
    let mut look = Look { config: None, findings: Vec::new(), source, entry_keys };
    look.findings.extend(look.source.read.faults.iter().cloned().map(Finding::from));
    if look.source.read.is_broken {
        look.findings.extend(look.source.read.dropped.iter().cloned().map(Finding::from));
        look.sort();
        return Ok(look);
    }
    // An error in one section must not hide errors in the others.
    let mut flags = flags.clone();
    loop {
        let error = match resolve_source(&look.source, &flags, env, None) {
            Ok(config) => break look.config = Some(config),
            Err(error) => error,
        };
        let key = error.fact(KEY).and_then(|key| key.as_str()).unwrap_or_default().to_owned();
        if key == "workspace" && is_by_chance(&look, &flags, env) {
            // Continue as over HTTP, where there is no default workspace.
            flags.http = Some("0".to_owned());
            continue;
        }
        look.refuse(&error);
        if !forget(&mut look.source.read.file, &key) {
            break;
        }
    }
    let dropped = match &look.config {
        Some(config) => Arc::clone(&config.dropped),
        None => entry_faults(&look.source, env),
    };
    look.findings.extend(dropped.iter().cloned().map(Finding::from));
    advice::give(&mut look, env);
    look.sort();
    Ok(look)
}

/// Returns whether the workspace is merely the current directory, which is not the file's fault.
fn is_by_chance(look: &Look, flags: &Flags, env: &Env) -> bool {
    let named = flags.workspace.is_some() || env.path(super::env::SANDBOX_WORKSPACE).is_some();
    !named && flags.http.is_none() && !look.source.read.places.is_written("workspace")
}

/// Resets the section of a key. Returns whether there was anything in it.
fn forget(file: &mut raw::File, key: &str) -> bool {
    fn taken<T: Default + std::fmt::Debug>(section: &mut T) -> bool {
        let old = std::mem::take(section);
        format!("{old:?}") != format!("{:?}", T::default())
    }
    match key.split('.').next().unwrap_or_default() {
        "workspace" => file.workspace.take().is_some(),
        "root" => file.root.take().is_some(),
        "sandbox" => taken(&mut file.sandbox),
        "policy" => taken(&mut file.policy),
        "auth" => taken(&mut file.auth),
        "secrets" => taken(&mut file.secrets),
        "log" => taken(&mut file.log),
        "browser" => taken(&mut file.browser),
        _ => false,
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
