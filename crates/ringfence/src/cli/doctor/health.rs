//! What else a run needs: a config that can be used, a root, and the programs that agents like to call.

use std::path::{Path, PathBuf};

use jail::probe::Outcome;
use rustix::fs::Access;
use serde::Serialize;

use crate::base::{Error, Result};
use crate::browser::find::find;
use crate::config::Config;
use crate::tools::code::code_exec::runtimes::{RUNTIMES, Runtime};

const PROGRAMS: &[&str] = &["git"];

const MISSING: &str = "not found on PATH";

#[derive(Serialize)]
pub struct Health {
    pub name: &'static str,
    pub outcome: Outcome,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

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
        // Nothing is wrong with a host that does not have it.
        None => Health { name, outcome: Outcome::NotTried, text: MISSING.to_owned(), fix: None },
    }));
    all.extend(RUNTIMES.iter().filter_map(interpreter));
    all.extend(config.as_ref().ok().map(browser));
    all
}

/// What `code.exec` can run, and how to install what most people miss first.
fn interpreter(runtime: &'static Runtime) -> Option<Health> {
    let name = runtime.language;
    match runtime.find(&[]) {
        Some(found) => Some(good(name, shown(&found.path))),
        None if runtime.is_main => {
            let fix = format!("install {}.", runtime.install);
            Some(Health {
                name,
                outcome: Outcome::NotTried,
                text: MISSING.to_owned(),
                fix: Some(fix),
            })
        }
        None => None,
    }
}

/// One that was named must be there; a host without any is a host without the browser tools.
fn browser(config: &Config) -> Health {
    match find(config) {
        Ok(found) => good("browser", shown(&found.program)),
        Err(error) => {
            let outcome =
                if config.browser.program.is_some() { Outcome::Refused } else { Outcome::NotTried };
            Health { outcome, ..bad("browser", &error) }
        }
    }
}

pub fn shown(path: &Path) -> String {
    path.display().to_string()
}

pub fn good(name: &'static str, text: String) -> Health {
    Health { name, outcome: Outcome::Ok, text, fix: None }
}

pub fn bad(name: &'static str, error: &Error) -> Health {
    let fix = error.hint_text().unwrap_or_else(|| error.kind().default_hint()).to_owned();
    Health { name, outcome: Outcome::Refused, text: error.detail(), fix: Some(fix) }
}

/// Only in absolute directories: what `.` means changes with whoever asks.
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
