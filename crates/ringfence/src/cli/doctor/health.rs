//! Checks everything else a run needs: a root directory, a workspace, and the programs agents often
//! call.

use std::path::{Path, PathBuf};

use jail::probe::ProbeOutcome;
use rustix::fs::Access;
use serde::Serialize;

use crate::base::{Error, Result};
use crate::browser::executable::find_browser;
use crate::config::Config;
use crate::tools::code::exec::runtimes::{LanguageRuntime, RUNTIMES};

const PROGRAMS: &[&str] = &["git"];

const NOT_ON_PATH: &str = "not found on PATH";

/// Result of one check.
#[derive(Serialize)]
pub struct HealthCheck {
    pub name: &'static str,
    pub outcome: ProbeOutcome,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Checks the root directory, the workspace, and the programs on PATH.
pub fn check_environment(config: &Result<Config>, root: Option<&Result<()>>) -> Vec<HealthCheck> {
    let mut checks = Vec::new();
    if let (Ok(config), Some(root)) = (config, root) {
        checks.push(match root {
            Ok(()) => health_ok("root directory", path_text(&config.root)),
            Err(error) => health_error("root directory", error),
        });
        checks.extend(
            config
                .workspace
                .as_deref()
                .map(|workspace| health_ok("workspace", path_text(workspace))),
        );
    }
    checks.extend(PROGRAMS.iter().map(|name| match find_on_path(name) {
        Some(path) => health_ok(name, path_text(&path)),
        // A missing program is not a fault of the host.
        None => HealthCheck {
            name,
            outcome: ProbeOutcome::NotTried,
            text: NOT_ON_PATH.to_owned(),
            fix: None,
        },
    }));
    checks.extend(RUNTIMES.iter().filter_map(check_interpreter));
    checks.extend(config.as_ref().ok().map(check_browser));
    checks
}

/// Reports an interpreter for `code.exec`. A missing one is mentioned, with how to install it, only
/// if it is one of the main ones.
fn check_interpreter(runtime: &'static LanguageRuntime) -> Option<HealthCheck> {
    let name = runtime.language;
    match runtime.find_installed(&[]) {
        Some(interpreter) => Some(health_ok(name, path_text(&interpreter.path))),
        None if runtime.is_main => {
            let fix = format!("{}.", runtime.install_hint);
            Some(HealthCheck {
                name,
                outcome: ProbeOutcome::NotTried,
                text: NOT_ON_PATH.to_owned(),
                fix: Some(fix),
            })
        }
        None => None,
    }
}

/// Reports the browser. Not finding one is an error only if the config names one; otherwise the
/// browser tools are simply unavailable.
fn check_browser(config: &Config) -> HealthCheck {
    match find_browser(config) {
        Ok(browser) => health_ok("browser", path_text(&browser.program)),
        Err(error) => {
            let outcome = if config.browser.program.is_some() {
                ProbeOutcome::Refused
            } else {
                ProbeOutcome::NotTried
            };
            HealthCheck { outcome, ..health_error("browser", &error) }
        }
    }
}

/// Returns the path as text.
pub fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Builds the result of a check that passed.
pub fn health_ok(name: &'static str, text: String) -> HealthCheck {
    HealthCheck { name, outcome: ProbeOutcome::Ok, text, fix: None }
}

/// Builds the result of a check that failed, with the error's hint as the fix.
pub fn health_error(name: &'static str, error: &Error) -> HealthCheck {
    let fix = error.hint_text().unwrap_or_else(|| error.kind().default_hint()).to_owned();
    HealthCheck {
        name,
        outcome: ProbeOutcome::Refused,
        text: error.message_chain(),
        fix: Some(fix),
    }
}

/// Looks up a program on PATH, in absolute directories only: a relative one depends on the caller's
/// working directory.
fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name));
    candidates.into_iter().find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok()
}
