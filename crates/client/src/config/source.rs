//! Sources of a configuration, as results and errors name them.

use std::fmt;
use std::path::{Path, PathBuf};

use super::load::{CONFIG_JSON_VARIABLE, CONFIG_PATH_VARIABLE};

/// Source that contributed to a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigOrigin {
    /// Overrides that the caller passed.
    Overrides,
    /// JSON text in the environment variable `CODEX_TOOLLOOP_MCP_CONFIG_JSON`.
    EnvironmentJson,
    /// A file.
    File {
        /// Absolute path of the file.
        path: PathBuf,
        /// How the file was selected.
        found: FileOrigin,
    },
}

/// How a configuration file was selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileOrigin {
    /// The caller passed its path.
    Argument,
    /// The environment variable `CODEX_TOOLLOOP_MCP_CONFIG_PATH` contains its path.
    EnvironmentPath,
    /// It was found in the working directory or in one above.
    Discovered,
}

impl fmt::Display for ConfigOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigOrigin::Overrides => formatter.write_str("overrides"),
            ConfigOrigin::EnvironmentJson => {
                write!(formatter, "environment variable {CONFIG_JSON_VARIABLE}")
            }
            ConfigOrigin::File { path, found } => {
                write!(formatter, "{} ({found})", path.display())
            }
        }
    }
}

impl fmt::Display for FileOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileOrigin::Argument => formatter.write_str("path given by the caller"),
            FileOrigin::EnvironmentPath => {
                write!(formatter, "path given by {CONFIG_PATH_VARIABLE}")
            }
            FileOrigin::Discovered => formatter.write_str("discovered"),
        }
    }
}

/// A text that values come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigSource {
    /// `None` for a text that the caller parses itself.
    pub origin: Option<ConfigOrigin>,
    /// Directory that relative paths of the text start at; without it they stay relative.
    pub base_dir: Option<PathBuf>,
}

impl ConfigSource {
    /// Creates the source of a text of unknown origin.
    pub fn new_unnamed() -> ConfigSource {
        ConfigSource { origin: None, base_dir: None }
    }

    /// Returns the prefix of an error about a line of this source.
    pub fn format_location(&self, line: Option<usize>) -> String {
        match (&self.origin, line) {
            (Some(ConfigOrigin::File { path, .. }), Some(line)) => {
                format!("{}:{line}: ", path.display())
            }
            (Some(ConfigOrigin::File { path, .. }), None) => format!("{}: ", path.display()),
            // The line of a variable or of overrides is one that the user never sees.
            (Some(ConfigOrigin::EnvironmentJson), _) => format!("{CONFIG_JSON_VARIABLE}: "),
            (Some(ConfigOrigin::Overrides), _) => "overrides: ".to_owned(),
            (None, Some(line)) => format!("line {line}: "),
            (None, None) => String::new(),
        }
    }

    /// Resolves a path that the text contains.
    pub fn resolve_path(&self, path: &str) -> PathBuf {
        self.base_dir.as_deref().map_or_else(|| PathBuf::from(path), |dir: &Path| dir.join(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_described_for_a_human() {
        let file = |found| ConfigOrigin::File { path: PathBuf::from("/a/mcp.json"), found };
        for (origin, expected) in [
            (ConfigOrigin::Overrides, "overrides"),
            (ConfigOrigin::EnvironmentJson, "environment variable CODEX_TOOLLOOP_MCP_CONFIG_JSON"),
            (file(FileOrigin::Argument), "/a/mcp.json (path given by the caller)"),
            (
                file(FileOrigin::EnvironmentPath),
                "/a/mcp.json (path given by CODEX_TOOLLOOP_MCP_CONFIG_PATH)",
            ),
            (file(FileOrigin::Discovered), "/a/mcp.json (discovered)"),
        ] {
            assert_eq!(origin.to_string(), expected);
        }
    }
}
