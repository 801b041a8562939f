//! Resolves the first word of each rule to files on this host.
//!
//! A name is resolved through the operator's search path, or to the files that `host_executable`
//! lists. At run time a program is identified by its inode, not by the name it is called by, so
//! every path that leads to that inode is recorded too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ::policy::{HostFile, HostProgram, RuleTable};

use super::files::RuleFileStamp;

/// Maximum number of entries read per directory; further ones are ignored.
const MAX_ENTRIES: usize = 50_000;

/// Paths that the resolution depends on. If one of them changes, programs are looked up again.
#[derive(Debug, Default)]
pub struct WatchedPaths(Vec<(PathBuf, Option<RuleFileStamp>)>);

impl WatchedPaths {
    /// Returns whether none of the paths has changed.
    pub fn is_unchanged(&self) -> bool {
        self.0.iter().all(|(path, stamp)| &stamp_path(path) == stamp)
    }
}

fn stamp_path(path: &Path) -> Option<RuleFileStamp> {
    path.metadata().ok().as_ref().map(RuleFileStamp::from_metadata)
}

/// Resolves the programs of this table.
pub fn find_programs(
    table: &RuleTable,
    search_path: &OsStr,
) -> (BTreeMap<String, HostProgram>, WatchedPaths) {
    let names: BTreeSet<&str> = table.prefixes.iter().map(|rule| rule.program.as_str()).collect();
    if names.is_empty() {
        return Default::default();
    }
    // A relative directory would depend on the current directory.
    let dirs: Vec<PathBuf> =
        std::env::split_paths(search_path).filter(|dir| dir.is_absolute()).collect();
    // Take the stamps before the lookup, so that a change in between is noticed next time.
    let mut watched: Vec<(PathBuf, Option<RuleFileStamp>)> =
        dirs.iter().map(|dir| (dir.clone(), stamp_path(dir))).collect();
    let entries = ExecutableIndex::scan_dirs(&dirs);
    let mut programs = BTreeMap::new();
    for name in names {
        let (candidates, further_paths) = candidate_paths(table, &dirs, name);
        watched.extend(
            candidates.iter().chain(&further_paths).map(|path| (path.clone(), stamp_path(path))),
        );
        let mut program = HostProgram::default();
        for (path, is_candidate) in candidates
            .iter()
            .map(|path| (path, true))
            .chain(further_paths.iter().map(|path| (path, false)))
        {
            if let Some((file, id)) = resolve_executable(path) {
                let known_paths = entries.0.get(&id).into_iter().flatten().map(PathBuf::as_path);
                let paths = known_paths
                    .chain([path.as_path(), Path::new(&file.path)])
                    .filter_map(|path| path.to_str());
                program.paths.extend(paths.map(str::to_owned));
                match is_candidate {
                    true => program.files.push(file),
                    false => program.also.push(file),
                }
            }
        }
        program.paths.sort();
        program.paths.dedup();
        program.files.dedup();
        program.also.retain(|other| !program.files.contains(other));
        program.also.dedup();
        programs.insert(name.to_owned(), program);
    }
    (programs, WatchedPaths(watched))
}

/// Returns the file that this word would run, started from here with this search path.
pub fn locate_program(name: &str, search_path: &OsStr) -> Option<HostFile> {
    if name.contains('/') {
        return resolve_executable(Path::new(name)).map(|(file, _)| file);
    }
    std::env::split_paths(search_path)
        .find_map(|dir| resolve_executable(&dir.join(name)))
        .map(|(file, _)| file)
}

/// Returns the paths that a word refers to, whether they exist or not, and further paths with the
/// same name.
fn candidate_paths(
    table: &RuleTable,
    dirs: &[PathBuf],
    name: &str,
) -> (Vec<PathBuf>, Vec<PathBuf>) {
    if name.starts_with('/') {
        return (vec![PathBuf::from(name)], Vec::new());
    }
    // A relative path refers to a different file in every directory; a rule on one applies to text
    // only.
    if name.is_empty() || name.contains('/') {
        return Default::default();
    }
    let mut executables =
        dirs.iter().map(|dir| dir.join(name)).filter(|path| resolve_executable(path).is_some());
    match table.host_executables.get(name) {
        Some(listed_paths) => {
            (listed_paths.iter().map(PathBuf::from).collect(), executables.collect())
        }
        None => (executables.next().into_iter().collect(), executables.collect()),
    }
}

type InodeId = (u64, u64);

fn is_executable(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

/// Returns the file that a path finally leads to, if it is executable.
fn resolve_executable(path: &Path) -> Option<(HostFile, InodeId)> {
    let real_path = path.canonicalize().ok()?;
    let metadata = real_path.metadata().ok().filter(is_executable)?;
    let (device, inode, size) = (metadata.dev(), metadata.ino(), metadata.size());
    Some((HostFile { path: real_path.to_str()?.to_owned(), device, inode, size }, (device, inode)))
}

/// All paths in the program directories, grouped by the file that they lead to.
struct ExecutableIndex(HashMap<InodeId, Vec<PathBuf>>);

impl ExecutableIndex {
    fn scan_dirs(dirs: &[PathBuf]) -> ExecutableIndex {
        let mut entries: HashMap<InodeId, Vec<PathBuf>> = HashMap::new();
        for dir in dirs {
            let Ok(dir_entries) = std::fs::read_dir(dir) else { continue };
            for entry in dir_entries.take(MAX_ENTRIES).flatten() {
                let path = entry.path();
                if let Some(metadata) = path.metadata().ok().filter(is_executable) {
                    entries.entry((metadata.dev(), metadata.ino())).or_default().push(path);
                }
            }
        }
        ExecutableIndex(entries)
    }
}
