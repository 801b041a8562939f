//! Loading of a configuration from its sources.
//!
//! Precedence: overrides, then the JSON of the environment, then one file. Sources may be partial;
//! they are merged first and validated afterwards.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ClientConfig;
use super::discover::discover_config_path;
use super::location::KeyLocations;
use super::merge::merge_trees;
use super::parse::read_config;
use super::problem::{ConfigProblem, ProblemList};
use super::source::{ConfigOrigin, ConfigSource, FileOrigin};
use super::tree::{JsonNode, MAX_CONFIG_BYTES, describe_excess, parse_tree};
use crate::{ClientError, ErrorKind, Result};

/// Environment variable with the path of a configuration file.
pub const CONFIG_PATH_VARIABLE: &str = "CODEX_TOOLLOOP_MCP_CONFIG_PATH";
/// Environment variable with a configuration as JSON text.
pub const CONFIG_JSON_VARIABLE: &str = "CODEX_TOOLLOOP_MCP_CONFIG_JSON";

/// Environment variables that select a configuration. An empty one is the same as none.
#[derive(Clone, Default)]
pub struct EnvSource {
    /// `CODEX_TOOLLOOP_MCP_CONFIG_PATH`.
    pub config_path: Option<PathBuf>,
    /// `CODEX_TOOLLOOP_MCP_CONFIG_JSON`.
    pub config_json: Option<OsString>,
}

impl EnvSource {
    /// Reads the variables of this process.
    pub fn from_process() -> EnvSource {
        EnvSource {
            config_path: std::env::var_os(CONFIG_PATH_VARIABLE).map(PathBuf::from),
            config_json: std::env::var_os(CONFIG_JSON_VARIABLE),
        }
    }
}

impl fmt::Debug for EnvSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The JSON may contain headers and variables with secrets.
        formatter
            .debug_struct("EnvSource")
            .field("config_path", &self.config_path)
            .field("config_json", &self.config_json.as_ref().map(|_| "..."))
            .finish()
    }
}

/// Where to load a configuration from.
#[derive(Clone)]
pub struct LoadOptions {
    /// Partial or full configuration that takes precedence over everything else.
    pub overrides: Option<Value>,
    /// Path of the file; it takes precedence over the environment and over discovery.
    pub path: Option<PathBuf>,
    /// Directory that relative paths and discovery start at.
    pub cwd: PathBuf,
    /// Environment variables to use.
    pub env: EnvSource,
}

impl LoadOptions {
    /// Creates options that discover a file from `cwd` and ignore the environment.
    pub fn new(cwd: impl Into<PathBuf>) -> LoadOptions {
        LoadOptions { overrides: None, path: None, cwd: cwd.into(), env: EnvSource::default() }
    }
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LoadOptions")
            .field("overrides", &self.overrides.as_ref().map(|_| "..."))
            .field("path", &self.path)
            .field("cwd", &self.cwd)
            .field("env", &self.env)
            .finish()
    }
}

/// A configuration and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedConfig {
    /// The merged and validated configuration.
    pub config: ClientConfig,
    /// The sources that were used, highest precedence first.
    pub sources: Vec<ConfigOrigin>,
    /// Absolute path of the file, if one was used.
    pub path: Option<PathBuf>,
    /// Where each key was written.
    pub locations: KeyLocations,
}

/// Contents of a configuration file that the caller has read.
#[derive(Clone)]
pub struct ConfigContents {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// How the file was selected.
    pub found: FileOrigin,
    /// Its text.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for ConfigContents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ConfigContents")
            .field("path", &self.path)
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

/// Loads the configuration: merges its sources and validates the result. Blocks while it reads.
///
/// Without any source, the configuration is empty. A path that was given must exist.
pub fn load_config(options: &LoadOptions) -> Result<LoadedConfig> {
    let cwd = std::path::absolute(&options.cwd).map_err(|error| {
        let message = format!("cannot resolve the working directory: {error}");
        ClientError::new(ErrorKind::InvalidConfig, message)
            .with_hint("Set `cwd` of the load options to an existing directory.")
    })?;
    let mut loader = SourceLoader::default();
    let file = select_file(options, &cwd);
    if let Some((path, found)) = &file {
        loader.add_file(path, *found);
    }
    loader.add_environment(options.env.config_json.as_deref(), &cwd);
    if let Some(overrides) = &options.overrides {
        loader.add_text(ConfigOrigin::Overrides, &cwd, Ok(&overrides.to_string()));
    }
    loader.finish(file.map(|(path, _)| path))
}

/// Loads the configuration from a file that the caller has read, and from the JSON of the
/// environment. Reads nothing itself: what was checked is what is used.
///
/// Relative paths of the JSON start at `cwd`, which must be absolute.
pub fn load_contents(
    file: Option<&ConfigContents>,
    config_json: Option<&OsStr>,
    cwd: &Path,
) -> Result<LoadedConfig> {
    let mut loader = SourceLoader::default();
    if let Some(ConfigContents { path, found, bytes }) = file {
        loader.add_bytes(path, *found, bytes);
    }
    loader.add_environment(config_json, cwd);
    loader.finish(file.map(|file| file.path.clone()))
}

/// Returns the file to use. A given path is not checked here: if it does not exist, another file
/// must not take its place.
fn select_file(options: &LoadOptions, cwd: &Path) -> Option<(PathBuf, FileOrigin)> {
    if let Some(path) = &options.path {
        return Some((cwd.join(path), FileOrigin::Argument));
    }
    match options.env.config_path.as_ref().filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => Some((cwd.join(path), FileOrigin::EnvironmentPath)),
        None => discover_config_path(cwd).map(|path| (path, FileOrigin::Discovered)),
    }
}

/// Reason and hint of a problem with a whole source.
type SourceFault = (&'static str, &'static str);

const NOT_UTF8: SourceFault = ("this is not UTF-8 text", "Save it as UTF-8.");

/// Reads sources in the order of rising precedence.
#[derive(Default)]
struct SourceLoader {
    sources: Vec<ConfigSource>,
    merged: Option<JsonNode>,
    problems: ProblemList,
    has_unreadable_source: bool,
}

impl SourceLoader {
    fn add_file(&mut self, path: &Path, found: FileOrigin) {
        let origin = ConfigOrigin::File { path: path.to_owned(), found };
        let base_dir = path.parent().unwrap_or(path);
        let source = self.sources.len();
        match read_bounded(path) {
            Ok(bytes) => self.add_bytes(path, found, &bytes),
            Err(error) => {
                let problem = describe_read_error(source, &error, found);
                self.add_source(origin, base_dir, Err(problem));
            }
        }
    }

    fn add_bytes(&mut self, path: &Path, found: FileOrigin, bytes: &[u8]) {
        let origin = ConfigOrigin::File { path: path.to_owned(), found };
        let base_dir = path.parent().unwrap_or(path);
        if bytes.len() > MAX_CONFIG_BYTES {
            let problem = describe_excess(self.sources.len());
            return self.add_source(origin, base_dir, Err(problem));
        }
        self.add_text(origin, base_dir, str::from_utf8(bytes).map_err(|_| NOT_UTF8));
    }

    fn add_environment(&mut self, json: Option<&OsStr>, cwd: &Path) {
        let Some(json) = json.filter(|json| !json.is_empty()) else { return };
        let text = json.to_str().ok_or(NOT_UTF8);
        self.add_text(ConfigOrigin::EnvironmentJson, cwd, text);
    }

    fn add_text(&mut self, origin: ConfigOrigin, dir: &Path, text: Result<&str, SourceFault>) {
        let source = self.sources.len();
        let tree = match text {
            Ok(text) => parse_tree(text, source, &mut self.problems),
            Err((reason, hint)) => Err(ConfigProblem::with_source(source, reason, hint)),
        };
        self.add_source(origin, dir, tree);
    }

    fn add_source(
        &mut self,
        origin: ConfigOrigin,
        base_dir: &Path,
        tree: Result<JsonNode, ConfigProblem>,
    ) {
        self.sources
            .push(ConfigSource { origin: Some(origin), base_dir: Some(base_dir.to_owned()) });
        match (tree, self.merged.take()) {
            (Ok(tree), Some(merged)) => self.merged = Some(merge_trees(merged, tree)),
            (Ok(tree), None) => self.merged = Some(tree),
            (Err(problem), merged) => {
                self.merged = merged;
                self.has_unreadable_source = true;
                self.problems.add(problem);
            }
        }
    }

    fn finish(mut self, path: Option<PathBuf>) -> Result<LoadedConfig> {
        let config = match &self.merged {
            // Keys of the unreadable source would be reported as missing.
            Some(tree) if !self.has_unreadable_source => {
                read_config(tree, &self.sources, &mut self.problems)
            }
            _ => ClientConfig::default(),
        };
        let config = self.problems.into_result(config, &self.sources)?;
        let origins = self.sources.iter().rev().filter_map(|source| source.origin.clone());
        let sources = origins.collect();
        let locations = KeyLocations::new(self.merged.as_ref(), self.sources);
        Ok(LoadedConfig { config, sources, path, locations })
    }
}

/// Reads at most one byte more than a configuration may have.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would block until someone writes to it.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_CONFIG_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn describe_read_error(source: usize, error: &io::Error, found: FileOrigin) -> ConfigProblem {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => format!("the file does not exist ({found})"),
        _ => format!("the file cannot be read ({found}): {error}"),
    };
    let hint = match found {
        FileOrigin::Argument => "Pass the path of an existing, readable file.".to_owned(),
        FileOrigin::EnvironmentPath => format!("Correct or unset {CONFIG_PATH_VARIABLE}."),
        FileOrigin::Discovered => "Make the file readable, or remove it.".to_owned(),
    };
    ConfigProblem::with_source(source, reason, hint)
}

#[cfg(test)]
mod tests;
