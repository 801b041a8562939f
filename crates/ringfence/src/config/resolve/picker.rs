//! Picks the value of each setting from its sources, and records where it came from.

use std::path::{Path, PathBuf};

use super::config_file::LoadedConfigFile;
use super::directories;
use crate::base::{Error, Result};
use crate::config::env::{self, ProcessEnv};
use crate::config::{ResolvedSetting, SettingOrigin};

/// Values of one setting from each source, in order of precedence.
pub struct Layers<T> {
    pub flag: Option<(T, &'static str)>,
    pub env: Option<(T, &'static str)>,
    pub file: Option<T>,
    pub default: Option<T>,
}

impl<T> Layers<T> {
    /// Creates layers for a setting that only a config file may set.
    pub fn file_only(file: Option<T>, default: Option<T>) -> Self {
        Layers { flag: None, env: None, file, default }
    }
}

/// Picks values and records the origin of each.
pub struct SettingPicker<'a> {
    file_path: Option<&'a Path>,
    /// The parsed file, for line numbers.
    source: Option<&'a LoadedConfigFile>,
    home: Option<PathBuf>,
    settings: Vec<ResolvedSetting>,
}

impl<'a> SettingPicker<'a> {
    /// Creates a picker for the settings of this file.
    pub fn new(source: &'a LoadedConfigFile, env: &ProcessEnv) -> SettingPicker<'a> {
        SettingPicker {
            file_path: source.path.as_deref(),
            source: Some(source),
            home: env.get_absolute(env::HOME).map(Path::to_owned),
            settings: Vec::new(),
        }
    }

    /// Creates a picker that knows no file, environment or home directory.
    pub fn without_source(file_path: Option<&'a Path>) -> SettingPicker<'a> {
        SettingPicker { file_path, source: None, home: None, settings: Vec::new() }
    }

    /// Returns everything that was picked.
    pub fn into_settings(self) -> Vec<ResolvedSetting> {
        self.settings
    }

    /// Picks a value that has a default.
    pub fn pick<T>(
        &mut self,
        key: &'static str,
        layers: Layers<T>,
        format_value: impl Fn(&T) -> String,
    ) -> Result<(T, SettingOrigin)> {
        self.pick_optional(key, layers, format_value)
            .ok_or_else(|| Error::internal(format!("the compiled-in defaults do not set `{key}`")))
    }

    /// Picks a value that may be unset.
    pub fn pick_optional<T>(
        &mut self,
        key: &'static str,
        layers: Layers<T>,
        format_value: impl Fn(&T) -> String,
    ) -> Option<(T, SettingOrigin)> {
        let Layers { flag, env, file, default } = layers;
        let chosen = (flag.map(|(value, name)| (value, SettingOrigin::Flag(name))))
            .or_else(|| env.map(|(value, name)| (value, SettingOrigin::Env(name))))
            .or_else(|| file.map(|value| (value, self.file_origin())))
            .or_else(|| default.map(|value| (value, SettingOrigin::Default)))?;
        self.record_setting(key, format_value(&chosen.0), chosen.1.clone());
        Some(chosen)
    }

    /// Records a value and its origin.
    pub fn record_setting(&mut self, key: &'static str, value: String, origin: SettingOrigin) {
        let line = match origin {
            SettingOrigin::File(_) => {
                self.source.and_then(|source| source.parsed.line_of_key(&source.text, key))
            }
            _ => None,
        };
        self.settings.push(ResolvedSetting { key, value, origin, line });
    }

    /// Returns the origin of values from the config file.
    pub fn file_origin(&self) -> SettingOrigin {
        self.file_path.map_or(SettingOrigin::Default, |path| SettingOrigin::File(path.to_owned()))
    }

    /// Returns the user's home directory.
    pub fn home_dir(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Resolves a path written in the config file, which starts at that file's directory.
    pub fn resolve_file_path(&self, path: &Path) -> Result<PathBuf> {
        directories::make_absolute(
            path,
            self.file_path.and_then(Path::parent),
            self.home.as_deref(),
        )
    }
}
