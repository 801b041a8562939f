//! `[log]`: level, format and destination of the server's log.

use std::path::PathBuf;

use clap::ValueEnum;

use super::directories;
use super::{Layers, SettingPicker};
use crate::base::{Error, Result};
use crate::config::env::{self, ProcessEnv};
use crate::config::parse::raw;
use crate::config::values::{LogFormat, LogLevel};

/// Resolved `[log]`.
#[derive(Debug, Clone)]
pub struct LogSettings {
    pub level: LogLevel,
    pub format: LogFormat,
    /// File to append to; `None` means standard error.
    pub file: Option<PathBuf>,
}

/// Values from the command line.
#[derive(Debug, Clone, Default)]
pub struct LogFlags {
    pub level: Option<LogLevel>,
    pub format: Option<LogFormat>,
    pub file: Option<PathBuf>,
}

/// Resolves `[log]`.
pub fn resolve_log(
    picker: &mut SettingPicker<'_>,
    flags: &LogFlags,
    env: &ProcessEnv,
    file: &raw::LogSection,
    defaults: &raw::LogSection,
) -> Result<LogSettings> {
    let level = Layers {
        flag: flags.level.map(|level| (level, "--log-level")),
        env: parse_variable(env, env::RINGFENCE_LOG, "log level")?,
        ..Layers::file_only(file.level, defaults.level)
    };
    let format = Layers {
        flag: flags.format.map(|format| (format, "--log-format")),
        env: parse_variable(env, env::RINGFENCE_LOG_FORMAT, "log format")?,
        ..Layers::file_only(file.format, defaults.format)
    };
    let to_absolute = |path: &std::path::Path| {
        directories::make_absolute(path, env.cwd.as_deref(), picker.home_dir())
    };
    let path = Layers {
        flag: flags.file.as_deref().map(to_absolute).transpose()?.map(|path| (path, "--log-file")),
        env: env
            .get_path(env::RINGFENCE_LOG_FILE)
            .map(to_absolute)
            .transpose()?
            .map(|path| (path, env::RINGFENCE_LOG_FILE)),
        ..Layers::file_only(
            file.file.as_deref().map(|path| picker.resolve_file_path(path)).transpose()?,
            None,
        )
    };
    let path = picker.pick_optional("log.file", path, |path| path.display().to_string());
    Ok(LogSettings {
        level: picker.pick("log.level", level, |level| value_name(*level))?.0,
        format: picker.pick("log.format", format, |format| value_name(*format))?.0,
        file: path.map(|(path, _)| directories::canonicalize_partial(&path)).transpose()?,
    })
}

fn value_name(variant: impl ValueEnum) -> String {
    variant.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Parses a variable that holds one of a few values.
fn parse_variable<T: ValueEnum>(
    env: &ProcessEnv,
    variable: &'static str,
    noun: &str,
) -> Result<Option<(T, &'static str)>> {
    let Some(text) = env.get_text(variable)? else { return Ok(None) };
    let known_values =
        || T::value_variants().iter().cloned().map(value_name).collect::<Vec<_>>().join(", ");
    match T::from_str(&text, false) {
        Ok(value) => Ok(Some((value, variable))),
        Err(_) => Err(Error::invalid_arguments(format!("{variable} is not a valid {noun}"))
            .with_hint(format!("Use one of {}.", known_values()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{Config, ConfigFlags, SettingOrigin};

    fn config(
        scratch: &Scratch,
        log: LogFlags,
        variables: &[(&str, &str)],
        file: &str,
    ) -> Result<Config> {
        let config = scratch.file("etc/config.toml", file);
        let root = Some(scratch.path().join("root"));
        let flags = ConfigFlags { config: Some(config), root, log, ..ConfigFlags::default() };
        crate::config::resolve_config(
            &flags,
            &ProcessEnv::new(variables.iter().copied(), scratch.dir("project")),
        )
    }

    #[test]
    fn flag_over_environment_over_file_over_default() {
        let scratch = Scratch::new();
        let of = |config: Config| (config.log.level, config.log.format, config.log.file);
        let none = LogFlags::default;
        let usual = config(&scratch, none(), &[], "").unwrap();
        assert_eq!(of(usual), (LogLevel::Warn, LogFormat::Pretty, None));
        let file = "[log]\nlevel = 'debug'\nformat = 'json'\nfile = 'my.log'\n";
        let from_file = config(&scratch, none(), &[], file).unwrap();
        let at = |name: &str| Some(scratch.path().canonicalize().unwrap().join(name));
        assert_eq!(of(from_file), (LogLevel::Debug, LogFormat::Json, at("etc/my.log")));
        let variables = [
            ("RINGFENCE_LOG", "error"),
            ("RINGFENCE_LOG_FORMAT", "pretty"),
            ("RINGFENCE_LOG_FILE", "../e"),
        ];
        let from_env = config(&scratch, none(), &variables, file).unwrap();
        let origin =
            &from_env.settings.iter().find(|setting| setting.key == "log.file").unwrap().origin;
        assert_eq!(*origin, SettingOrigin::Env("RINGFENCE_LOG_FILE"));
        assert_eq!(of(from_env), (LogLevel::Error, LogFormat::Pretty, at("e")));
        let flags = LogFlags {
            level: Some(LogLevel::Trace),
            format: Some(LogFormat::Json),
            file: Some(scratch.path().join("flag")),
        };
        assert_eq!(
            of(config(&scratch, flags, &variables, file).unwrap()),
            (LogLevel::Trace, LogFormat::Json, at("flag"))
        );
    }

    #[test]
    fn words_that_are_not_known_and_places_that_tools_reach_are_refused() {
        let scratch = Scratch::new();
        for (name, value) in [("RINGFENCE_LOG", "loud"), ("RINGFENCE_LOG_FORMAT", "xml")] {
            let error = config(&scratch, LogFlags::default(), &[(name, value)], "").unwrap_err();
            assert!(
                error.message().contains(name)
                    && error.hint_text().unwrap().starts_with("Use one of "),
                "{error}"
            );
        }
        let inside =
            config(&scratch, LogFlags::default(), &[], "log.file = '../project/deep/my.log'")
                .unwrap_err();
        assert_eq!(inside.reason_name(), Some("bad_workspace"), "{inside}");
        let theirs =
            config(&scratch, LogFlags::default(), &[], "log.file = '../root/workspaces/a/l'")
                .unwrap_err();
        assert_eq!(theirs.reason_name(), Some("bad_log_file"), "{theirs}");
    }
}
