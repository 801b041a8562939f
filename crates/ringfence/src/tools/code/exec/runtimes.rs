//! The supported interpreters, and how to find those that are installed.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::{Access, access};

use crate::base::suggest::suggest_name;
use crate::base::{Error, Kind, Result};
use crate::sandbox::env;

/// A language and the programs that run it, best first.
#[derive(Debug)]
pub struct LanguageRuntime {
    pub language: &'static str,
    pub programs: &'static [InterpreterProgram],
    pub delivery: CodeDelivery,
    /// How to install it.
    pub install_hint: &'static str,
    /// `ringfence doctor` reports it if it is missing.
    pub is_main: bool,
}

/// A program that runs a language.
#[derive(Debug)]
pub struct InterpreterProgram {
    pub name: &'static str,
    /// Arguments before the file.
    pub leading_args: &'static [&'static str],
}

/// How the code reaches the interpreter. Never on the command line, which is limited in length and
/// visible to every user of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeDelivery {
    Python,
    JavaScript,
    Bash,
    /// As a file without a name.
    File,
    /// Through standard input, for programs that require a file name with their own extension.
    Stdin,
}

impl CodeDelivery {
    /// Returns whether we have a driver for it that receives code over a socket: the interpreter
    /// can then stay alive, and it reports more than an exit code.
    pub fn has_driver(self) -> bool {
        matches!(self, CodeDelivery::Python | CodeDelivery::JavaScript | CodeDelivery::Bash)
    }
}

const fn plain_program(name: &'static str) -> InterpreterProgram {
    InterpreterProgram { name, leading_args: &[] }
}

/// The supported languages.
pub const RUNTIMES: &[LanguageRuntime] = &[
    LanguageRuntime {
        language: "python",
        programs: &[plain_program("python3"), plain_program("python")],
        delivery: CodeDelivery::Python,
        install_hint: "run `apt-get install python3` (or use dnf, apk, brew)",
        is_main: true,
    },
    LanguageRuntime {
        language: "javascript",
        programs: &[plain_program("node"), plain_program("nodejs")],
        delivery: CodeDelivery::JavaScript,
        install_hint: "run `apt-get install nodejs`, or see https://nodejs.org",
        is_main: true,
    },
    LanguageRuntime {
        language: "bash",
        programs: &[plain_program("bash")],
        delivery: CodeDelivery::Bash,
        install_hint: "run `apt-get install bash` (or use dnf, apk, brew)",
        is_main: true,
    },
    LanguageRuntime {
        language: "typescript",
        programs: &[
            InterpreterProgram { name: "deno", leading_args: &["run", "-A"] },
            InterpreterProgram { name: "bun", leading_args: &["run"] },
        ],
        delivery: CodeDelivery::Stdin,
        install_hint: "install deno (https://deno.com) or bun (https://bun.sh)",
        is_main: false,
    },
    LanguageRuntime {
        language: "ruby",
        programs: &[plain_program("ruby")],
        delivery: CodeDelivery::File,
        install_hint: "run `apt-get install ruby`",
        is_main: false,
    },
    LanguageRuntime {
        language: "perl",
        programs: &[plain_program("perl")],
        delivery: CodeDelivery::File,
        install_hint: "run `apt-get install perl`",
        is_main: false,
    },
    LanguageRuntime {
        language: "php",
        programs: &[plain_program("php")],
        delivery: CodeDelivery::File,
        install_hint: "run `apt-get install php-cli`",
        is_main: false,
    },
    LanguageRuntime {
        language: "lua",
        programs: &[
            plain_program("lua"),
            plain_program("lua5.4"),
            plain_program("lua5.3"),
            plain_program("luajit"),
        ],
        delivery: CodeDelivery::File,
        install_hint: "run `apt-get install lua5.4`",
        is_main: false,
    },
    LanguageRuntime {
        language: "r",
        programs: &[plain_program("Rscript")],
        delivery: CodeDelivery::File,
        install_hint: "run `apt-get install r-base-core`",
        is_main: false,
    },
];

/// A runtime that is installed.
#[derive(Debug)]
pub struct InstalledRuntime {
    pub runtime: &'static LanguageRuntime,
    pub program: &'static InterpreterProgram,
    pub path: PathBuf,
}

impl LanguageRuntime {
    /// Returns the first of its programs in the directories that a run searches, except those
    /// hidden from the run. Starts nothing to find out.
    pub fn find_installed(&'static self, hidden: &[PathBuf]) -> Option<InstalledRuntime> {
        self.find_in_path(search_path(), hidden)
    }

    fn find_in_path(&'static self, path: &str, hidden: &[PathBuf]) -> Option<InstalledRuntime> {
        self.programs.iter().find_map(|program| {
            let path = find_on_path(program.name, path, |file| {
                !hidden.iter().any(|hidden_path| file.starts_with(hidden_path))
            })?;
            Some(InstalledRuntime { runtime: self, program, path })
        })
    }
}

/// Returns the first program of this name in the absolute directories of `path` that `is_allowed`
/// accepts.
pub fn find_on_path(name: &str, path: &str, is_allowed: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    directories
        .map(|directory| directory.join(name))
        .find(|file| is_program(file) && is_allowed(file))
}

/// Returns the `PATH` of a run. It follows from our own environment, which does not change.
pub fn search_path() -> &'static str {
    static SEARCH_PATH: LazyLock<String> = LazyLock::new(|| {
        let variables = env::build(&[]).unwrap_or_default();
        let path = variables.into_iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        path.unwrap_or_else(|| env::DEFAULT_PATH.to_owned())
    });
    &SEARCH_PATH
}

fn is_program(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// Returns the languages that can be run here, in the order of the table.
pub fn installed_languages() -> Vec<&'static str> {
    let path = search_path();
    let installed = RUNTIMES.iter().filter(|runtime| runtime.find_in_path(path, &[]).is_some());
    installed.map(|runtime| runtime.language).collect()
}

/// Returns whether any language can be run here.
pub fn is_any_installed() -> bool {
    RUNTIMES.iter().any(|runtime| runtime.find_installed(&[]).is_some())
}

/// Returns the runtime for `language`, or why it cannot be run.
pub fn find_runtime(language: &str, hidden: &[PathBuf]) -> Result<InstalledRuntime> {
    let languages: Vec<&str> = RUNTIMES.iter().map(|runtime| runtime.language).collect();
    let Some(runtime) = RUNTIMES.iter().find(|runtime| runtime.language == language) else {
        let hint = match suggest_name(language, &languages) {
            Some(suggestion) => format!("Did you mean `{suggestion}`?"),
            None => format!("Available: {}.", installed_languages().join(", ")),
        };
        return Err(Error::invalid_arguments("unknown `language`")
            .with_hint(hint)
            .with_fact("argument", "language"));
    };
    runtime.find_installed(hidden).ok_or_else(|| missing_error(runtime))
}

fn missing_error(runtime: &LanguageRuntime) -> Error {
    let names = runtime.programs.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    Error::new(
        Kind::Unavailable,
        format!("no interpreter for {} was found ({names})", runtime.language),
    )
    .with_reason("runtime_missing")
    .with_hint(format!(
        "To install one, {}. Installed languages: {}.",
        runtime.install_hint,
        installed_languages().join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_on_the_path_that_is_not_hidden_is_taken() {
        let dir = std::env::temp_dir().join(crate::base::ids::short_id("runtimes"));
        for folder in ["a", "b", "c"] {
            std::fs::create_dir_all(dir.join(folder)).unwrap();
        }
        let make = |name: &str, mode: u32| {
            std::fs::write(dir.join(name), "").unwrap();
            std::os::unix::fs::chown(dir.join(name), None, None).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(dir.join(name), mode).unwrap();
        };
        make("a/python3", 0o644);
        make("b/python3", 0o755);
        make("c/python3", 0o755);
        let python = &RUNTIMES[0];
        let path = format!("relative:{0}/a:{0}/b:{0}/c", dir.display());
        let found = |hidden: &[PathBuf]| python.find_in_path(&path, hidden).map(|found| found.path);
        assert_eq!(found(&[]), Some(dir.join("b/python3")));
        assert_eq!(found(&[dir.join("b")]), Some(dir.join("c/python3")));
        assert_eq!(found(std::slice::from_ref(&dir)), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_missing_language_says_how_to_install_it() {
        let error = missing_error(&RUNTIMES[1]);
        assert_eq!(
            (error.kind(), error.reason_name()),
            (Kind::Unavailable, Some("runtime_missing"))
        );
        assert!(error.hint_text().unwrap().contains("nodejs"), "{error:?}");
        let error = find_runtime("pyton", &[]).unwrap_err();
        assert_eq!(error.hint_text(), Some("Did you mean `python`?"));
    }
}
