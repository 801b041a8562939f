//! The supported interpreters, and how to find those that are installed.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::base::nearest::nearest;
use crate::base::{Error, Kind, Result};
use crate::sandbox::env;

/// A language and the programs that run it, best first.
#[derive(Debug)]
pub struct Runtime {
    pub language: &'static str,
    pub programs: &'static [Program],
    pub way: Way,
    /// How to install it.
    pub install: &'static str,
    /// `ringfence doctor` reports it if it is missing.
    pub is_main: bool,
}

/// A program that runs a language.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    /// Arguments before the file.
    pub words: &'static [&'static str],
}

/// How the code reaches the interpreter. Never on the command line, which is limited in length and
/// visible to every user of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Python,
    JavaScript,
    Bash,
    /// As a file without a name.
    File,
    /// Through standard input, for programs that require a file name with their own extension.
    Stdin,
}

impl Way {
    /// Returns whether we have a driver for it that receives code over a socket: the interpreter
    /// can then stay alive, and it reports more than an exit code.
    pub fn has_driver(self) -> bool {
        matches!(self, Way::Python | Way::JavaScript | Way::Bash)
    }
}

const fn plain(name: &'static str) -> Program {
    Program { name, words: &[] }
}

/// The supported languages.
pub const RUNTIMES: &[Runtime] = &[
    Runtime {
        language: "python",
        programs: &[plain("python3"), plain("python")],
        way: Way::Python,
        install: "`apt-get install python3` (or dnf, apk, brew)",
        is_main: true,
    },
    Runtime {
        language: "javascript",
        programs: &[plain("node"), plain("nodejs")],
        way: Way::JavaScript,
        install: "`apt-get install nodejs`, or https://nodejs.org",
        is_main: true,
    },
    Runtime {
        language: "bash",
        programs: &[plain("bash")],
        way: Way::Bash,
        install: "`apt-get install bash` (or dnf, apk, brew)",
        is_main: true,
    },
    Runtime {
        language: "typescript",
        programs: &[
            Program { name: "deno", words: &["run", "-A"] },
            Program { name: "bun", words: &["run"] },
        ],
        way: Way::Stdin,
        install: "deno (https://deno.com) or bun (https://bun.sh)",
        is_main: false,
    },
    Runtime {
        language: "ruby",
        programs: &[plain("ruby")],
        way: Way::File,
        install: "`apt-get install ruby`",
        is_main: false,
    },
    Runtime {
        language: "perl",
        programs: &[plain("perl")],
        way: Way::File,
        install: "`apt-get install perl`",
        is_main: false,
    },
    Runtime {
        language: "php",
        programs: &[plain("php")],
        way: Way::File,
        install: "`apt-get install php-cli`",
        is_main: false,
    },
    Runtime {
        language: "lua",
        programs: &[plain("lua"), plain("lua5.4"), plain("lua5.3"), plain("luajit")],
        way: Way::File,
        install: "`apt-get install lua5.4`",
        is_main: false,
    },
    Runtime {
        language: "r",
        programs: &[plain("Rscript")],
        way: Way::File,
        install: "`apt-get install r-base-core`",
        is_main: false,
    },
];

/// A runtime that is installed.
#[derive(Debug)]
pub struct Found {
    pub runtime: &'static Runtime,
    pub program: &'static Program,
    pub path: PathBuf,
}

impl Runtime {
    /// Returns the first of its programs in the directories that a run searches, except those
    /// hidden from the run. Starts nothing to find out.
    pub fn find(&'static self, hidden: &[PathBuf]) -> Option<Found> {
        self.find_in(&search_path(), hidden)
    }

    fn find_in(&'static self, path: &str, hidden: &[PathBuf]) -> Option<Found> {
        self.programs.iter().find_map(|program| {
            let path = on_path(program.name, path, |file| {
                !hidden.iter().any(|place| file.starts_with(place))
            })?;
            Some(Found { runtime: self, program, path })
        })
    }
}

/// Returns the first program of this name in the absolute directories of `path` that `may_be`
/// accepts.
pub fn on_path(name: &str, path: &str, may_be: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(name)).find(|file| is_program(file) && may_be(file))
}

/// Returns the `PATH` of a run.
pub fn search_path() -> String {
    let built = env::build(&[]).unwrap_or_default();
    let path = built.into_iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
    path.unwrap_or_else(|| env::DEFAULT_PATH.to_owned())
}

fn is_program(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// Returns the languages that can be run here, in the order of the table.
pub fn languages() -> Vec<&'static str> {
    RUNTIMES
        .iter()
        .filter(|runtime| runtime.find(&[]).is_some())
        .map(|runtime| runtime.language)
        .collect()
}

/// Returns the runtime for `language`, or why it cannot be run.
pub fn find(language: &str, hidden: &[PathBuf]) -> Result<Found> {
    let known: Vec<&str> = RUNTIMES.iter().map(|runtime| runtime.language).collect();
    let Some(runtime) = RUNTIMES.iter().find(|runtime| runtime.language == language) else {
        let hint = match nearest(language, &known) {
            Some(near) => format!("Did you mean `{near}`?"),
            None => format!("Available: {}.", languages().join(", ")),
        };
        return Err(Error::invalid_arguments("unknown `language`")
            .hint(hint)
            .with("argument", "language"));
    };
    runtime.find(hidden).ok_or_else(|| missing(runtime))
}

fn missing(runtime: &Runtime) -> Error {
    let names = runtime.programs.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    Error::new(
        Kind::Unavailable,
        format!("no interpreter for {} was found ({names})", runtime.language),
    )
    .reason("runtime_missing")
    .hint(format!("Install {}, or use one of {}.", runtime.install, languages().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_on_the_path_that_is_not_hidden_is_taken() {
        let dir = std::env::temp_dir().join(crate::base::ids::short("runtimes"));
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
        let found = |hidden: &[PathBuf]| python.find_in(&path, hidden).map(|found| found.path);
        assert_eq!(found(&[]), Some(dir.join("b/python3")));
        assert_eq!(found(&[dir.join("b")]), Some(dir.join("c/python3")));
        assert_eq!(found(std::slice::from_ref(&dir)), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_missing_language_says_how_to_install_it() {
        let error = missing(&RUNTIMES[1]);
        assert_eq!(
            (error.kind(), error.reason_name()),
            (Kind::Unavailable, Some("runtime_missing"))
        );
        assert!(error.hint_text().unwrap().contains("nodejs"), "{error:?}");
        let error = find("pyton", &[]).unwrap_err();
        assert_eq!(error.hint_text(), Some("Did you mean `python`?"));
    }
}
