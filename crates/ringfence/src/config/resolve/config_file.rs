//! Finds and reads the config file.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{ConfigFlags, MIB, directories};
use crate::base::{Error, Kind, Result};
use crate::config::env::{self, ProcessEnv};
use crate::config::parse::config_text::{self, ParsedConfig};

/// The config file: the named one, which must exist, or the default one, which need not.
#[derive(Default)]
pub struct LoadedConfigFile {
    pub path: Option<PathBuf>,
    /// Directories of the file; or where the default file would be, if it does not exist.
    pub locations: Vec<PathBuf>,
    pub text: String,
    pub parsed: ParsedConfig,
}

impl LoadedConfigFile {
    /// Reads the file; fails if it has errors that make it unusable.
    pub fn load_usable(flags: &ConfigFlags, env: &ProcessEnv) -> Result<LoadedConfigFile> {
        let source = LoadedConfigFile::load_any(flags, env)?;
        source.parsed.check_usable()?;
        Ok(source)
    }

    /// Reads the file, whatever errors are in it.
    pub fn load_any(flags: &ConfigFlags, env: &ProcessEnv) -> Result<LoadedConfigFile> {
        let Some((path, is_explicit)) = config_path(flags, env)? else {
            return Ok(LoadedConfigFile::default());
        };
        let text = match read_config_text(&path) {
            Ok(text) => text,
            Err(error) if !is_explicit && error.kind() == Kind::NotFound => {
                let locations = path
                    .parent()
                    .map(directories::canonicalize_partial)
                    .transpose()?
                    .into_iter()
                    .collect();
                return Ok(LoadedConfigFile { locations, ..LoadedConfigFile::default() });
            }
            Err(error) => return Err(error),
        };
        let parsed = config_text::parse_config(&text, &path);
        // A link and its target: changing either changes the config.
        let mut locations = Vec::new();
        for file in [Some(path.clone()), path.canonicalize().ok()].into_iter().flatten() {
            locations.extend(file.parent().map(directories::canonicalize_partial).transpose()?);
        }
        Ok(LoadedConfigFile { path: Some(path), locations, text, parsed })
    }
}

/// Returns the path of the config file, and whether it was named explicitly.
pub fn config_path(flags: &ConfigFlags, env: &ProcessEnv) -> Result<Option<(PathBuf, bool)>> {
    match flags.config.as_deref().or_else(|| env.get_path(env::RINGFENCE_CONFIG)) {
        Some(path) => Ok(Some((directories::make_absolute(path, env.cwd.as_deref(), None)?, true))),
        None => Ok(default_config_path(env).map(|path| (path, false))),
    }
}

fn default_config_path(env: &ProcessEnv) -> Option<PathBuf> {
    let base = match env.get_absolute(env::XDG_CONFIG_HOME) {
        Some(base) => base.to_owned(),
        None => env.get_absolute(env::HOME)?.join(".config"),
    };
    Some(base.join("ringfence/config.toml"))
}

fn read_config_text(path: &Path) -> Result<String> {
    let failed = |kind, problem: &str| {
        Error::new(kind, format!("the config file {} {problem}", path.display()))
            .with_hint("Name the file with `--config` (or RINGFENCE_CONFIG).")
    };
    let file = File::open(path).map_err(|error| {
        let missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
        let (kind, problem) = if missing {
            (Kind::NotFound, "does not exist")
        } else {
            (Kind::Unavailable, "cannot be read")
        };
        failed(kind, problem).with_source(error)
    })?;
    let metadata = file
        .metadata()
        .map_err(|error| failed(Kind::Unavailable, "cannot be read").with_source(error))?;
    if metadata.mode() & 0o002 != 0 && metadata.is_file() {
        return Err(failed(Kind::PermissionDenied, "is writable by everyone")
            .with_hint("Run `chmod o-w` on it."));
    }
    let mut text = String::new();
    let read_result = file.take(MIB + 1).read_to_string(&mut text);
    read_result
        .map_err(|error| failed(Kind::Unavailable, "cannot be read as text").with_source(error))?;
    if text.len() as u64 > MIB {
        return Err(failed(Kind::TooLarge, "is larger than 1 MiB"));
    }
    Ok(text)
}
