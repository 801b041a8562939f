//! Python's layout: one directory that is both library path and home of the programs, because a
//! virtual environment cannot be moved.

use std::path::{Path, PathBuf};

use super::manager::{
    InstallPaths, InstalledVersion, ManagerCommand, read_json, too_many_programs,
};
use super::request::PackageRequest;
use crate::base::{Error, Result};

/// Most programs that an error lists.
const MAX_LISTED: usize = 20;
/// File in which pip reports what it installed.
const REPORT_FILE: &str = "report.json";
const DIST_INFO: &str = ".dist-info";

/// Package manager for Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonManager {
    /// `uv`.
    Uv(PathBuf),
    /// `python3`, with pip.
    Pip(PathBuf),
}

impl PythonManager {
    /// Returns the command that installs the packages.
    pub fn install_command(
        &self,
        request: &PackageRequest,
        paths: &InstallPaths,
        run_scripts: bool,
    ) -> ManagerCommand {
        let mut command = match self {
            PythonManager::Uv(uv) => uv_command(uv, request, paths),
            PythonManager::Pip(python) => pip_command(python, paths),
        };
        // A source archive runs its own code when it is built; a wheel runs none.
        if !run_scripts {
            command.args.push("--only-binary=:all:".to_owned());
        }
        command.args.push(format!("--target={}", paths.tree.display()));
        command.args.push("--".to_owned());
        command.args.extend(request.packages.iter().cloned());
        command
    }
}

fn uv_command(uv: &Path, request: &PackageRequest, paths: &InstallPaths) -> ManagerCommand {
    let version = request.python.as_deref().unwrap_or("3");
    let args = ["pip", "install", "--no-progress", "--link-mode=copy", "--compile-bytecode"];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.push(format!("--python={version}"));
    args.push(format!("--cache-dir={}", paths.cache.display()));
    // An interpreter of its own would not survive the move of the tree.
    let env = [("UV_NO_CONFIG", "1"), ("UV_PYTHON_DOWNLOADS", "never")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    ManagerCommand { program: uv.to_owned(), args, files: Vec::new(), env: env.into() }
}

fn pip_command(python: &Path, paths: &InstallPaths) -> ManagerCommand {
    let args = ["-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        .into_iter()
        .chain(["--no-cache-dir", "--progress-bar=off", "--retries=1", "--ignore-installed"]);
    let mut args: Vec<String> = args.map(str::to_owned).collect();
    args.push(format!("--report={}", paths.staging.join(REPORT_FILE).display()));
    ManagerCommand { program: python.to_owned(), args, files: Vec::new(), env: Vec::new() }
}

/// Returns what was installed of the first package: its version by its metadata, the hash of its
/// archive by pip's report.
pub fn installed_version(
    paths: &InstallPaths,
    request: &PackageRequest,
) -> Result<InstalledVersion> {
    let name = normalize_name(request.package_name());
    let entries = std::fs::read_dir(&paths.tree).into_iter().flatten();
    let mut directories = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let version = directories.find_map(|directory| {
        let (found, version) = directory.strip_suffix(DIST_INFO)?.split_once('-')?;
        (normalize_name(found) == name).then(|| version.to_owned())
    });
    let version = version.ok_or_else(|| {
        Error::internal(format!("no version of `{name}` was recorded by the package manager"))
    })?;
    Ok(InstalledVersion { version, integrity: reported_hash(paths, &name) })
}

/// Returns the hash of the archive. Only pip reports it.
fn reported_hash(paths: &InstallPaths, name: &str) -> Option<String> {
    let path = paths.staging.join(REPORT_FILE);
    // A package may have put something else there while it was built.
    if !path.symlink_metadata().ok()?.is_file() {
        return None;
    }
    let report = read_json(&path).ok()?;
    let mut installed = report["install"].as_array()?.iter();
    let entry = installed.find(|entry| {
        entry["metadata"]["name"].as_str().is_some_and(|found| normalize_name(found) == name)
    })?;
    let archive = &entry["download_info"]["archive_info"];
    match archive["hashes"]["sha256"].as_str() {
        Some(hash) => Some(format!("sha256:{hash}")),
        None => Some(archive["hash"].as_str()?.replacen('=', ":", 1)),
    }
}

/// Returns a name as the index compares it.
fn normalize_name(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// Returns the program with the name that the arguments give.
pub fn find_program(tree: &Path, request: &PackageRequest) -> Result<PathBuf> {
    let name = request.program.as_deref().unwrap_or_else(|| request.package_name());
    let program = tree.join("bin").join(name);
    if program.is_file() {
        return Ok(program);
    }
    let entries = std::fs::read_dir(tree.join("bin")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let option = match request.runner.name() {
        "pipx" => "--spec",
        _ => "--from",
    };
    Err(too_many_programs(
        format!("the package `{}` has no program `{name}`", request.package_name()),
        names.take(MAX_LISTED).collect(),
        &format!("Choose one with `{option} PACKAGE PROGRAM` in the server's arguments"),
    ))
}

/// Returns the variables of a start. Compiled files are part of the tree; a cache elsewhere would
/// be code that no one has checked.
pub fn start_env(tree: &Path) -> Vec<(String, String)> {
    let tree = tree.display().to_string();
    [
        ("PYTHONPATH", tree.as_str()),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONNOUSERSITE", "1"),
        ("UV_OFFLINE", "1"),
        ("PIP_NO_INDEX", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_as_the_index_does() {
        for name in ["mcp-server-git", "MCP_Server.git", "mcp--server__git"] {
            assert_eq!(normalize_name(name), "mcp-server-git");
        }
    }
}
