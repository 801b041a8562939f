//! Finds the browser to use.

use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::base::{Error, Kind, Result};
use crate::config::Config;

/// Programs to try if `[browser] program` is not set, fastest to start first.
pub const PROGRAMS: &[&str] = &[
    "chromium-headless-shell",
    "headless_shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "microsoft-edge",
];
/// Hint on how to get a browser.
pub const INSTALL_HINT: &str = "Install one (Debian: `apt install chromium-headless-shell`), or set `program` under [browser].";

/// Browser program, and the flag that makes it run without a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrowserProgram {
    /// Path of the program.
    pub program: PathBuf,
    /// Flag for headless mode.
    pub headless_flag: &'static str,
}

/// Returns the configured browser, or the first known one on PATH.
pub fn find_browser(config: &Config) -> Result<BrowserProgram> {
    let missing_error = |message: &str| {
        Error::new(Kind::Unavailable, message)
            .with_reason("browser_missing")
            .with_hint(INSTALL_HINT)
    };
    if let Some(configured) = &config.browser.program {
        return match is_program(configured) {
            true => Ok(browser_program(configured.clone())),
            false => Err(missing_error("the configured browser cannot be run")
                .with_source(configured.display().to_string())),
        };
    }
    // Absolute directories only: a relative one depends on the caller's working directory.
    let folders = config.browser.search_path.iter().filter(|folder| folder.is_absolute());
    let folders: Vec<&PathBuf> = folders.collect();
    let mut candidates =
        PROGRAMS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    candidates
        .find(|file| is_program(file))
        .map(browser_program)
        .ok_or_else(|| missing_error("no Chromium was found on this host"))
}

fn browser_program(program: PathBuf) -> BrowserProgram {
    // Links and wrappers have many names; the name of the final target shows which kind it is.
    let resolved = program.canonicalize().unwrap_or_else(|_| program.clone());
    let is_headless_shell = [&program, &resolved].into_iter().any(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().replace('_', "-");
        name.contains("headless-shell")
    });
    BrowserProgram {
        program,
        headless_flag: if is_headless_shell { "--headless" } else { "--headless=new" },
    }
}

fn is_program(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{ConfigFlags, ProcessEnv, resolve_config};

    #[test]
    fn the_named_one_counts_then_the_fastest_on_the_path() {
        let scratch = Scratch::new();
        let (one, two) = (scratch.dir("one"), scratch.dir("two"));
        let flags =
            ConfigFlags { root: Some(scratch.path().join("root")), ..ConfigFlags::default() };
        let path = std::env::join_paths([&one, &two]).unwrap();
        let env = ProcessEnv::new(
            [("HOME", "/nonexistent".into()), ("PATH", path)],
            scratch.dir("project"),
        );
        let mut config = resolve_config(&flags, &env).unwrap();
        let error = find_browser(&config).unwrap_err();
        assert_eq!(
            (error.kind(), error.reason_name()),
            (Kind::Unavailable, Some("browser_missing"))
        );
        assert!(error.hint_text().unwrap().contains("apt install chromium-headless-shell"));
        let program = |file: PathBuf| {
            std::fs::write(&file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let full = program(one.join("chromium"));
        assert_eq!(
            find_browser(&config).unwrap(),
            BrowserProgram { program: full, headless_flag: "--headless=new" }
        );
        let shell = program(two.join("headless_shell"));
        assert_eq!(
            find_browser(&config).unwrap(),
            BrowserProgram { program: shell, headless_flag: "--headless" }
        );
        std::fs::write(one.join("chromium-headless-shell"), "not a program").unwrap();
        assert_eq!(find_browser(&config).unwrap().program, two.join("headless_shell"));
        let named = program(two.join("my-browser"));
        config.browser.program = Some(named.clone());
        assert_eq!(
            find_browser(&config).unwrap(),
            BrowserProgram { program: named, headless_flag: "--headless=new" }
        );
        config.browser.program = Some(two.join("nothing"));
        assert_eq!(find_browser(&config).unwrap_err().reason_name(), Some("browser_missing"));
    }
}
