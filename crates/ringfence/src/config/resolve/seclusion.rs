//! Finds directories that contain secrets and nothing that a run needs; those are hidden as a
//! whole. A cover on a file alone is lost when another file replaces it by a rename, and does not
//! cover the new file while it is being written next to it.

use std::path::{Path, PathBuf};

use crate::config::{Config, Entry};

/// System directories that programs need, with everything in them.
const SYSTEM: &[&str] = &[
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
const COMMON: &[&str] = &[
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
const OF_HOME: &[&str] = &[".config/git", ".cargo/bin", ".local/bin", ".local/lib", ".local/share"];

/// Paths and commands in use by runs.
pub struct Needs<'a> {
    places: Vec<PathBuf>,
    entries: Vec<&'a Entry>,
}

impl<'a> Needs<'a> {
    /// Collects the paths that the config uses.
    pub fn of(config: &'a Config) -> Needs<'a> {
        let mut places = vec![config.root.clone()];
        places.extend(config.workspace.iter().cloned());
        places.extend(
            config
                .sandbox
                .writable
                .iter()
                .flat_map(|path| [Some(path.clone()), path.canonicalize().ok()])
                .flatten(),
        );
        places.extend(config.browser.path.iter().chain(&config.browser.program).cloned());
        places.extend(config.codex_home.iter().chain(&config.rustup_home).cloned());
        if let Some(home) = &config.home {
            places.push(home.clone());
            places.extend(OF_HOME.iter().map(|below| home.join(below)));
        }
        let linked: Vec<PathBuf> =
            places.iter().filter_map(|path| path.canonicalize().ok()).collect();
        places.extend(linked);
        Needs { places, entries: config.entries.iter().map(AsRef::as_ref).collect() }
    }

    /// Returns whether nothing in this directory is used.
    pub fn spare(&self, folder: &Path) -> bool {
        let is_common =
            folder.components().count() <= 2 || COMMON.iter().any(|path| folder == Path::new(path));
        let is_system = is_system(folder);
        let is_used = self.places.iter().any(|place| place.starts_with(folder));
        !is_common
            && !is_system
            && !is_used
            && !self.entries.iter().any(|entry| speaks_of(entry, folder))
    }
}

/// Returns whether a path is in a system directory, which programs need.
pub fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|system| path.starts_with(system))
}

fn speaks_of(entry: &Entry, folder: &Path) -> bool {
    let name = folder.display().to_string();
    let mut words = entry
        .args
        .iter()
        .chain(entry.env.iter().map(|(_, value)| value))
        .map(|word| word.text.as_str());
    Path::new(&entry.command).starts_with(folder)
        || entry.cwd.as_ref().is_some_and(|cwd| cwd.starts_with(folder))
        || words.any(|word| word.contains(&name))
}

/// Splits files of secrets into directories to hide as a whole, and files whose directory cannot be
/// hidden.
pub fn folders(files: &[PathBuf], needs: &Needs<'_>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut hidden, mut beside) = (Vec::new(), Vec::new());
    for file in files {
        match file.parent() {
            Some(folder) if needs.spare(folder) => hidden.push(folder.to_owned()),
            _ => beside.push(file.clone()),
        }
    }
    (hidden, beside)
}
