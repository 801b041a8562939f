//! Finds directories that contain secrets and nothing that a run needs; those are hidden as a
//! whole. A cover on a file alone is lost when another file replaces it by a rename, and does not
//! cover the new file while it is being written next to it.

use std::path::{Path, PathBuf};

use crate::config::{CommandTool, Config};

/// System directories that programs need, with everything in them.
const SYSTEM_DIRS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/dev",
    "/proc",
    "/sys",
    "/nix",
    "/snap",
    "/System",
    "/Library",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/alternatives",
    "/etc/ld.so.conf.d",
];
/// Directories shared by many programs. All direct children of `/` count as such, too.
const SHARED_DIRS: &[&str] = &[
    "/var/lib",
    "/var/tmp",
    "/var/cache",
    "/var/log",
    "/var/run",
    "/run/user",
    "/run/lock",
    "/private/etc",
];
/// Paths in the home directory that a run may read.
const HOME_DIRS_IN_USE: &[&str] =
    &[".config/git", ".cargo/bin", ".local/bin", ".local/lib", ".local/share"];

/// Paths and commands in use by runs.
pub struct PathsInUse<'a> {
    paths: Vec<PathBuf>,
    commands: Vec<&'a CommandTool>,
}

impl<'a> PathsInUse<'a> {
    /// Collects the paths that the config uses.
    pub fn from_config(config: &'a Config) -> PathsInUse<'a> {
        let mut paths = vec![config.root.clone()];
        paths.extend(config.workspace.iter().cloned());
        paths.extend(
            config
                .default_sandbox
                .writable
                .iter()
                .flat_map(|path| [Some(path.clone()), path.canonicalize().ok()])
                .flatten(),
        );
        paths.extend(config.browser.search_path.iter().chain(&config.browser.program).cloned());
        paths.extend(config.codex_home.iter().chain(&config.rustup_home).cloned());
        if let Some(home) = &config.home {
            paths.push(home.clone());
            paths.extend(HOME_DIRS_IN_USE.iter().map(|relative_path| home.join(relative_path)));
        }
        let canonical_paths: Vec<PathBuf> =
            paths.iter().filter_map(|path| path.canonicalize().ok()).collect();
        paths.extend(canonical_paths);
        PathsInUse { paths, commands: config.commands.iter().map(AsRef::as_ref).collect() }
    }

    /// Returns whether nothing in this directory is used.
    pub fn is_unused(&self, folder: &Path) -> bool {
        let is_common = folder.components().count() <= 2
            || SHARED_DIRS.iter().any(|path| folder == Path::new(path));
        let is_system = is_system_path(folder);
        let is_used = self.paths.iter().any(|used_path| used_path.starts_with(folder));
        !is_common
            && !is_system
            && !is_used
            && !self.commands.iter().any(|entry| mentions_path(entry, folder))
    }
}

/// Returns whether a path is in a system directory, which programs need.
pub fn is_system_path(path: &Path) -> bool {
    SYSTEM_DIRS.iter().any(|system| path.starts_with(system))
}

fn mentions_path(entry: &CommandTool, folder: &Path) -> bool {
    let name = folder.display().to_string();
    let mut texts = entry
        .args
        .iter()
        .chain(entry.env.iter().map(|(_, value)| value))
        .map(|word| word.text.as_str());
    Path::new(&entry.command).starts_with(folder)
        || entry.cwd.as_ref().is_some_and(|cwd| cwd.starts_with(folder))
        || texts.any(|word| word.contains(&name))
}

/// Splits files of secrets into directories to hide as a whole, and files whose directory cannot be
/// hidden.
pub fn split_secret_files(
    files: &[PathBuf],
    paths_in_use: &PathsInUse<'_>,
) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut hidden, mut exposed) = (Vec::new(), Vec::new());
    for file in files {
        match file.parent() {
            Some(folder) if paths_in_use.is_unused(folder) => hidden.push(folder.to_owned()),
            _ => exposed.push(file.clone()),
        }
    }
    (hidden, exposed)
}
