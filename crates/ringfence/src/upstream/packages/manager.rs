//! Package managers: which one installs a request, and what they have in common.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::start::StartContext;
use super::python::PythonManager;
use super::registry::public_registry;
use super::request::{PackageRequest, PackageRunner};
use super::tool_run::{ToolLaunch, run_tool};
use super::{PackageServer, npm, python};
use crate::base::{Error, Kind, Result};
use crate::sandbox::{InstallSpec, SandboxConfig, open_install_sandbox};
use crate::tools::run::program::{self, ProgramEntry};

/// Longest JSON file of a package manager.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// Program that installs packages.
pub enum PackageManager {
    Npm(PathBuf),
    Python(PythonManager),
}

/// Directories of one installation.
pub struct InstallPaths {
    /// Everything below is writable during the installation, and nothing else.
    pub staging: PathBuf,
    /// Files that are kept.
    pub tree: PathBuf,
    pub home: PathBuf,
    pub cache: PathBuf,
}

impl InstallPaths {
    /// Names the directories in `staging`.
    pub fn new(staging: &Path) -> InstallPaths {
        let join = |name: &str| staging.join(name);
        InstallPaths {
            staging: staging.to_owned(),
            tree: join(super::TREE_DIR),
            home: join("home"),
            cache: join("cache"),
        }
    }
}

/// Command of a package manager.
pub struct ManagerCommand {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Files that it expects in the tree.
    pub files: Vec<(&'static str, &'static str)>,
    pub env: Vec<(String, String)>,
}

/// What was installed of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledVersion {
    pub version: String,
    /// Hash of its archive, as the package manager gives it.
    pub integrity: Option<String>,
}

impl PackageManager {
    /// Finds the package manager for a request.
    pub fn find(
        package: &PackageServer,
        request: &PackageRequest,
        context: &StartContext,
    ) -> Result<PackageManager> {
        let find = |name: &str| find_tool(package, context, name);
        let python = || match &request.python {
            Some(version) => find(&format!("python{version}")),
            None => find("python3"),
        };
        let uv = || find("uv").map(PythonManager::Uv);
        let pip = || python().map(PythonManager::Pip);
        let (found, wanted) = match request.runner {
            PackageRunner::Npx | PackageRunner::Bunx => {
                (find("npm").map(PackageManager::Npm), "npm")
            }
            PackageRunner::Uvx => (uv().or_else(pip).map(PackageManager::Python), "uv"),
            PackageRunner::Pipx => {
                (pip().or_else(uv).map(PackageManager::Python), "Python with pip")
            }
        };
        found.ok_or_else(|| {
            Error::new(Kind::Unavailable, format!("{wanted} is not installed"))
                .with_reason("spawn_failed")
                .with_hint(format!(
                    "Install {wanted}; or install the package by hand and name its program as `command` of the server `{}`.",
                    package.server_id
                ))
        })
    }

    /// Returns the package manager without the wrapper of a version manager: after an installation
    /// such a wrapper (pyenv's `python3`) wants to write to directories of its own, and fails. What
    /// it leads to is started instead, so no agent may be able to change that.
    pub async fn without_wrapper(
        self,
        package: &PackageServer,
        context: &StartContext,
        staging: &Path,
    ) -> Result<PackageManager> {
        let PackageManager::Python(PythonManager::Pip(_)) = &self else { return Ok(self) };
        let args = ["-I", "-c", "import sys; print(sys.executable)"];
        let answer = self.query(&args, package, context, staging).await?;
        let Some(interpreter) = answer.filter(|path| Path::new(path).is_absolute()) else {
            return Ok(self);
        };
        let entry = ProgramEntry { command: &interpreter, path: None, is_privileged: true };
        let interpreter =
            program::find_program(&entry, &context.session_workspace).map_err(|_| {
                Error::permission_denied(
                    "command_in_workspace",
                    "the Python that installs packages is in a place where an agent can change it",
                )
                .with_hint("Use a Python outside of the workspace and of writable directories.")
            })?;
        Ok(PackageManager::Python(PythonManager::Pip(interpreter)))
    }

    /// Returns its program.
    pub fn program(&self) -> &Path {
        match self {
            PackageManager::Npm(program)
            | PackageManager::Python(PythonManager::Uv(program) | PythonManager::Pip(program)) => {
                program
            }
        }
    }

    /// Returns the command that installs the packages.
    pub fn install_command(
        &self,
        request: &PackageRequest,
        paths: &InstallPaths,
        run_scripts: bool,
    ) -> ManagerCommand {
        match self {
            PackageManager::Npm(npm) => npm::install_command(npm, request, paths, run_scripts),
            PackageManager::Python(manager) => manager.install_command(request, paths, run_scripts),
        }
    }

    /// Returns the variables that name the registry. Arguments would show a password to others.
    pub fn registry_env(&self, url: &str) -> Vec<(String, String)> {
        let names: &[&str] = match self {
            PackageManager::Npm(_) => &["npm_config_registry"],
            PackageManager::Python(_) => &["UV_DEFAULT_INDEX", "PIP_INDEX_URL"],
        };
        names.iter().map(|name| ((*name).to_owned(), url.to_owned())).collect()
    }

    /// Asks the package manager which registry the system's configuration names. It has no network
    /// and sees no configuration of the user, which may contain tokens.
    pub async fn ask_registry(
        &self,
        package: &PackageServer,
        context: &StartContext,
        staging: &Path,
    ) -> Result<Option<String>> {
        let args: &[&str] = match self {
            PackageManager::Npm(_) => &["config", "get", "registry"],
            PackageManager::Python(PythonManager::Pip(_)) => {
                &["-I", "-m", "pip", "config", "get", "global.index-url"]
            }
            // It cannot be asked.
            PackageManager::Python(PythonManager::Uv(_)) => return Ok(None),
        };
        let answer = self.query(args, package, context, staging).await?;
        let is_public = |url: &String| [true, false].map(public_registry).contains(&url.as_str());
        let configured = answer.filter(|url| url.contains("://"));
        Ok(configured.filter(|url| !is_public(url)))
    }

    /// Runs its program in a sandbox without network, and returns the first line that it prints if
    /// it succeeds.
    async fn query(
        &self,
        args: &[&str],
        package: &PackageServer,
        context: &StartContext,
        staging: &Path,
    ) -> Result<Option<String>> {
        let paths = InstallPaths::new(staging);
        let spec = InstallSpec {
            directory: &paths.staging,
            home: &paths.home,
            workspace: context.session_workspace.path(),
            programs: &[self.program().to_owned()],
            allow_domains: Vec::new(),
            allow_addresses: Vec::new(),
        };
        let sandbox = open_install_sandbox(&SandboxConfig::from_config(&context.config), spec)?;
        let launch = ToolLaunch {
            program: self.program().display().to_string(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: manager_env(package, context)?,
            directory: staging,
            merge_stderr: false,
        };
        let mut answer = None;
        let mut on_line = |line: &str| {
            answer.get_or_insert_with(|| line.to_owned());
        };
        let end = run_tool(context, &sandbox, launch, &mut on_line).await?;
        Ok(answer.filter(|_| end.has_succeeded))
    }

    /// Returns the program of an installed tree, and what was installed.
    pub fn inspect(
        &self,
        request: &PackageRequest,
        paths: &InstallPaths,
    ) -> Result<(PathBuf, InstalledVersion)> {
        match self {
            PackageManager::Npm(_) => Ok((
                npm::find_program(&paths.tree, request)?,
                npm::installed_version(&paths.tree, request)?,
            )),
            PackageManager::Python(_) => Ok((
                python::find_program(&paths.tree, request)?,
                python::installed_version(paths, request)?,
            )),
        }
    }
}

/// Reads a JSON file of an installed tree, which has been checked for special files.
pub fn read_json(path: &Path) -> Result<Value> {
    let name = path.file_name().unwrap_or_default().display().to_string();
    let read_error = |error: &dyn std::fmt::Display| {
        Error::new(Kind::Unavailable, format!("`{name}` of the package cannot be read: {error}"))
    };
    let file = std::fs::File::open(path).map_err(|error| read_error(&error))?;
    let mut text = Vec::new();
    let count = file.take(MAX_JSON_BYTES + 1).read_to_end(&mut text);
    match count.map_err(|error| read_error(&error))? as u64 {
        0..=MAX_JSON_BYTES => serde_json::from_slice(&text).map_err(|error| read_error(&error)),
        _ => Err(read_error(&"it is too long")),
    }
}

/// Returns the error for a program that cannot be told, with those that exist.
pub fn too_many_programs(message: String, programs: Vec<String>, advice: &str) -> Error {
    let listed = match programs.is_empty() {
        true => "it has none; name another package".to_owned(),
        false => programs.join(", "),
    };
    Error::new(Kind::Unavailable, message)
        .with_reason("package_program")
        .with_hint(format!("{advice}: {}.", ringfence_client::clean_text(&listed, 500)))
}

/// Returns the environment of a package manager. The directory of the runner comes first on PATH:
/// its interpreter is there.
pub fn manager_env(
    package: &PackageServer,
    context: &StartContext,
) -> Result<Vec<(String, String)>> {
    let base = program::base_env(&context.session_workspace)?;
    let mut env = prepend_path(base, package.runner_dir(&context.session_workspace).as_deref());
    // Interpreters that uv has installed for the user can be used, but not changed.
    if let Some(home) = &context.config.home {
        let interpreters = home.join(".local/share/uv/python").display().to_string();
        env.push(("UV_PYTHON_INSTALL_DIR".to_owned(), interpreters));
    }
    Ok(env)
}

/// Returns the environment with a directory before all others on PATH.
pub fn prepend_path(
    mut env: Vec<(String, String)>,
    directory: Option<&Path>,
) -> Vec<(String, String)> {
    if let Some(directory) = directory {
        for (_, path) in env.iter_mut().filter(|(name, _)| name == "PATH") {
            *path = format!("{}:{path}", directory.display());
        }
    }
    env
}

/// Finds a program next to the runner, or on PATH where no agent can write.
fn find_tool(package: &PackageServer, context: &StartContext, name: &str) -> Option<PathBuf> {
    let runner_dir = package.runner_dir(&context.session_workspace);
    let sibling = runner_dir.map(|dir| dir.join(name)).filter(|path| path.is_file());
    // A link next to the runner may lead to a place where an agent can write.
    let sibling = sibling.filter(|path| {
        let command = path.to_string_lossy();
        let entry = ProgramEntry { command: &command, path: None, is_privileged: true };
        program::find_program(&entry, &context.session_workspace).is_ok()
    });
    let entry = ProgramEntry { command: name, path: None, is_privileged: false };
    sibling.or_else(|| program::find_program(&entry, &context.session_workspace).ok())
}
