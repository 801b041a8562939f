//! Checks everything else a run needs: a root directory, a workspace, and the programs agents often
//! call.

use std::path::{Path, PathBuf};

use jail::probe::ProbeOutcome;
use rustix::fs::Access;
use serde::Serialize;

use crate::base::{Error, Result};
use crate::browser::find::find;
use crate::config::Config;
use crate::tools::code::code_exec::runtimes::{RUNTIMES, Runtime};

const PROGRAMS: &[&str] = &["git"];

const MISSING: &str = "not found on PATH";

/// Result of one check.
#[derive(Serialize)]
pub struct Health {
    pub name: &'static str,
    pub outcome: ProbeOutcome,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Checks the root directory, the workspace, and the programs on PATH.
pub fn look(config: &Result<Config>, root: Option<&Result<()>>) -> Vec<Health> {
    let mut all = Vec::new();
    if let (Ok(config), Some(root)) = (config, root) {
        all.push(match root {
            Ok(()) => good("root directory", shown(&config.root)),
            Err(error) => bad("root directory", error),
        });
        all.extend(
            config.workspace.as_deref().map(|workspace| good("workspace", shown(workspace))),
        );
    }
    all.extend(PROGRAMS.iter().map(|name| match on_path(name) {
        Some(path) => good(name, shown(&path)),
        // A missing program is not a fault of the host.
        None => {
            Health { name, outcome: ProbeOutcome::NotTried, text: MISSING.to_owned(), fix: None }
        }
    }));
    all.extend(RUNTIMES.iter().filter_map(interpreter));
    all.extend(config.as_ref().ok().map(browser));
    all
}

/// Reports an interpreter for `code.exec`. A missing one is mentioned, with how to install it, only
/// if it is one of the main ones.
fn interpreter(runtime: &'static Runtime) -> Option<Health> {
    let name = runtime.language;
    match runtime.find(&[]) {
        Some(found) => Some(good(name, shown(&found.path))),
        None if runtime.is_main => {
            let fix = format!("install {}.", runtime.install);
            Some(Health {
                name,
                outcome: ProbeOutcome::NotTried,
                text: MISSING.to_owned(),
                fix: Some(fix),
            })
        }
        None => None,
    }
}

/// Reports the browser. Not finding one is an error only if the config names one; otherwise the
/// browser tools are simply unavailable.
fn browser(config: &Config) -> Health {
    match find(config) {
        Ok(found) => good("browser", shown(&found.program)),
        Err(error) => {
            let outcome = if config.browser.program.is_some() {
                ProbeOutcome::Refused
            } else {
                ProbeOutcome::NotTried
            };
            Health { outcome, ..bad("browser", &error) }
        }
    }
}

/// Returns the path as text.
pub fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Builds the result of a check that passed.
pub fn good(name: &'static str, text: String) -> Health {
    Health { name, outcome: ProbeOutcome::Ok, text, fix: None }
}

/// Builds the result of a check that failed, with the error's hint as the fix.
pub fn bad(name: &'static str, error: &Error) -> Health {
    let fix = error.hint_text().unwrap_or_else(|| error.kind().default_hint()).to_owned();
    Health { name, outcome: ProbeOutcome::Refused, text: error.detail(), fix: Some(fix) }
}

/// Looks up a program on PATH, in absolute directories only: a relative one depends on the caller's
/// working directory.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name));
    found.into_iter().find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok()
}
