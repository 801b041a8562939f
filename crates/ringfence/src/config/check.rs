//! Finds everything that is wrong or suspicious in a config, without running anything.

mod upstream_warnings;
mod warnings;

pub use warnings::describe_unmatched_patterns;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::fault::{ConfigError, FilePosition, KEY_FACT};
use super::parse::config_text::command_key;
use super::parse::raw;
use super::resolve::{LoadedConfigFile, find_command_errors, resolve_to_check};
use super::{Config, ConfigFlags, ProcessEnv};
use crate::base::{Error, Result};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingSeverity {
    /// The server does not start, or a tool is not available.
    Error,
    /// It works, but perhaps not as intended.
    Warning,
}

/// A problem in a config, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigFinding {
    pub severity: FindingSeverity,
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

impl From<ConfigError> for ConfigFinding {
    fn from(error: ConfigError) -> Self {
        ConfigFinding {
            severity: FindingSeverity::Error,
            file: Some(error.file),
            line: Some(error.line),
            column: Some(error.column),
            key: Some(error.key).filter(|key| !key.is_empty()),
            tool: error.tool,
            message: error.message,
            hint: error.hint,
            picture: Some(error.picture),
        }
    }
}

impl ConfigFinding {
    /// Formats position and message on one line.
    pub fn to_line(&self) -> String {
        let location = match (&self.file, self.line, self.column) {
            (Some(file), Some(line), Some(column)) => {
                format!("{}:{line}:{column}: ", file.display())
            }
            // Nothing shows the line, so the key is named.
            (Some(file), line, _) => {
                let line = line.map(|line| format!(":{line}")).unwrap_or_default();
                format!("{}{line}: {}: ", file.display(), self.key.as_deref().unwrap_or_default())
            }
            _ => String::new(),
        };
        format!("{location}{}", self.message)
    }
}

/// Result of checking a config, whether or not it is usable.
pub struct ConfigCheck {
    /// The resolved config, if it could be resolved.
    pub config: Option<Config>,
    pub findings: Vec<ConfigFinding>,
    source: LoadedConfigFile,
    /// The name of each command, by the path of its key.
    entry_keys: HashMap<String, String>,
}

impl ConfigCheck {
    /// Returns the path of the config file that was read.
    pub fn file_path(&self) -> Option<&Path> {
        self.source.path.as_deref()
    }

    /// Adds a finding about the value of a key, or about its section if the file does not set it.
    pub fn add_finding(
        &mut self,
        severity: FindingSeverity,
        key: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let position = self
            .source
            .parsed
            .key_spans
            .value_span(key)
            .map(|span| FilePosition::from_span(&self.source.text, span, key));
        let tool = match severity {
            FindingSeverity::Error => self.owning_tool(key),
            FindingSeverity::Warning => None,
        };
        self.findings.push(ConfigFinding {
            severity,
            file: self.source.path.clone().filter(|_| position.is_some()),
            line: position.as_ref().map(|position| position.line),
            column: position.as_ref().map(|position| position.column),
            key: Some(key.to_owned()),
            tool,
            message: message.into(),
            hint: hint.into(),
            picture: position.map(|position| position.picture),
        });
    }

    /// Adds a warning about another file than config.toml.
    fn add_other_finding(
        &mut self,
        (file, line): (PathBuf, Option<usize>),
        key: String,
        message: String,
        hint: String,
    ) {
        self.findings.push(ConfigFinding {
            severity: FindingSeverity::Warning,
            file: Some(file),
            line,
            column: None,
            key: Some(key),
            tool: None,
            message,
            hint,
            picture: None,
        });
    }

    /// Returns the command that a key belongs to.
    fn owning_tool(&self, key: &str) -> Option<String> {
        let key_ends = key.match_indices('.').map(|(index, _)| index).chain([key.len()]);
        key_ends.filter_map(|end| self.entry_keys.get(&key[..end])).next().cloned()
    }

    /// Adds an error; the error may name the key.
    pub fn add_error(&mut self, error: &Error) {
        let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint()).to_owned();
        let key =
            error.get_fact(KEY_FACT).and_then(|key| key.as_str()).unwrap_or_default().to_owned();
        self.add_finding(FindingSeverity::Error, &key, error.message_chain(), hint);
        if let Some(finding) = self.findings.last_mut().filter(|_| key.is_empty()) {
            finding.key = None;
        }
    }

    /// Sorts the findings in the order of the file; those without a position and those of other
    /// files come last.
    pub fn sort_findings(&mut self) {
        let config_file = self.source.path.clone();
        self.findings.sort_by_key(|finding| {
            let is_other = finding.file.is_some() && finding.file != config_file;
            (is_other, finding.line.unwrap_or(usize::MAX), finding.column, finding.severity)
        });
        self.findings.dedup();
    }
}

/// Checks the config that these flags and this environment select. Fails if there is no config to
/// check.
pub fn check_config(flags: &ConfigFlags, env: &ProcessEnv) -> Result<ConfigCheck> {
    let source = LoadedConfigFile::load_any(flags, env)?;
    let entries = source.parsed.commands.iter();
    let entry_keys = entries.map(|entry| (command_key(&entry.name), entry.name.clone())).collect();
    let mut check = ConfigCheck { config: None, findings: Vec::new(), source, entry_keys };
    check.findings.extend(check.source.parsed.errors.iter().cloned().map(ConfigFinding::from));
    if check.source.parsed.has_syntax_errors {
        check
            .findings
            .extend(check.source.parsed.command_errors.iter().cloned().map(ConfigFinding::from));
        check.sort_findings();
        return Ok(check);
    }
    // An error in one section must not hide errors in the others.
    let mut flags = flags.clone();
    loop {
        let error = match resolve_to_check(&check.source, &flags, env, None) {
            Ok(config) => break check.config = Some(config),
            Err(error) => error,
        };
        let key =
            error.get_fact(KEY_FACT).and_then(|key| key.as_str()).unwrap_or_default().to_owned();
        if key == "workspace" && is_default_workspace(&check, &flags, env) {
            // Continue as over HTTP, where there is no default workspace.
            flags.http = Some("0".to_owned());
            continue;
        }
        check.add_error(&error);
        if key == "upstreams" && !flags.ignores_upstreams {
            flags.ignores_upstreams = true;
            continue;
        }
        if !reset_section(&mut check.source.parsed.file, &key) {
            break;
        }
    }
    let command_errors = match &check.config {
        Some(config) => Arc::clone(&config.command_errors),
        None => find_command_errors(&check.source, env),
    };
    check.findings.extend(command_errors.iter().cloned().map(ConfigFinding::from));
    if let Some(config) = &check.config {
        let upstream_errors = config.upstream_errors.iter().cloned();
        check.findings.extend(upstream_errors.map(ConfigFinding::from));
    }
    if flags.ignores_upstreams {
        // Without the servers, every table would seem to be left over.
        check.source.parsed.upstreams.clear();
    }
    warnings::add_warnings(&mut check, env);
    check.sort_findings();
    Ok(check)
}

/// Returns whether the workspace is merely the current directory, which is not the file's fault.
fn is_default_workspace(check: &ConfigCheck, flags: &ConfigFlags, env: &ProcessEnv) -> bool {
    let is_named =
        flags.workspace.is_some() || env.get_path(super::env::SANDBOX_WORKSPACE).is_some();
    !is_named && flags.http.is_none() && !check.source.parsed.key_spans.contains_key("workspace")
}

/// Resets the section of a key. Returns whether there was anything in it.
fn reset_section(file: &mut raw::ConfigFile, key: &str) -> bool {
    fn take_section<T: Default + std::fmt::Debug>(section: &mut T) -> bool {
        let old = std::mem::take(section);
        format!("{old:?}") != format!("{:?}", T::default())
    }
    match key.split('.').next().unwrap_or_default() {
        "workspace" => file.workspace.take().is_some(),
        "root" => file.root.take().is_some(),
        "sandbox" => take_section(&mut file.sandbox),
        "policy" => take_section(&mut file.policy),
        "auth" => take_section(&mut file.auth),
        "secrets" => take_section(&mut file.secrets),
        "log" => take_section(&mut file.log),
        "browser" => take_section(&mut file.browser),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
