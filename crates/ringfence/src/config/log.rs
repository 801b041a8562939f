//! `[log]`: how much the server tells about itself, in which form, and where.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;

use super::env::{self, Env};
use super::resolve::{Layers, Picker};
use super::{place, raw};
use crate::base::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people
    Pretty,
    /// One object per line
    Json,
}

#[derive(Debug, Clone)]
pub struct Log {
    pub level: LogLevel,
    pub format: LogFormat,
    /// To append to; standard error without one.
    pub file: Option<PathBuf>,
}

/// What the command line says about it.
#[derive(Debug, Clone, Default)]
pub struct LogFlags {
    pub level: Option<LogLevel>,
    pub format: Option<LogFormat>,
    pub file: Option<PathBuf>,
}

pub(super) fn resolve(
    p: &mut Picker<'_>,
    (flags, env): (&LogFlags, &Env),
    (file, defaults): (&raw::Log, &raw::Log),
) -> Result<Log> {
    let level = Layers {
        flag: flags.level.map(|level| (level, "--log-level")),
        env: word(env, env::RINGFENCE_LOG, "log level")?,
        ..Layers::file_only(file.level, defaults.level)
    };
    let format = Layers {
        flag: flags.format.map(|format| (format, "--log-format")),
        env: word(env, env::RINGFENCE_LOG_FORMAT, "form of the log")?,
        ..Layers::file_only(file.format, defaults.format)
    };
    let from_here = |path: &std::path::Path| place::absolute(path, env.cwd.as_deref(), p.home());
    let path = Layers {
        flag: flags.file.as_deref().map(from_here).transpose()?.map(|path| (path, "--log-file")),
        env: env.path(env::RINGFENCE_LOG_FILE).map(from_here).transpose()?.map(|path| (path, env::RINGFENCE_LOG_FILE)),
        ..Layers::file_only(file.file.as_deref().map(|path| p.file_path(path)).transpose()?, None)
    };
    let path = p.pick_optional("log.file", path, |path| path.display().to_string());
    Ok(Log {
        level: p.pick("log.level", level, |level| name(*level))?.0,
        format: p.pick("log.format", format, |format| name(*format))?.0,
        file: path.map(|(path, _)| place::settle(&path)).transpose()?,
    })
}

fn name(word: impl ValueEnum) -> String {
    word.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A variable that holds one of a few words.
fn word<T: ValueEnum>(env: &Env, variable: &'static str, what: &str) -> Result<Option<(T, &'static str)>> {
    let Some(text) = env.text(variable)? else { return Ok(None) };
    let known = || T::value_variants().iter().cloned().map(name).collect::<Vec<_>>().join(", ");
    match T::from_str(&text, false) {
        Ok(word) => Ok(Some((word, variable))),
        Err(_) => {
            Err(Error::invalid_arguments(format!("{variable} names no {what}"))
                .hint(format!("Use one of {}.", known())))
        }
    }
}
