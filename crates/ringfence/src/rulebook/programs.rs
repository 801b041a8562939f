//! Which files of this host the first words of rules stand for.
//!
//! A name leads through the operator's search path to a file, or to the files that `host_executable` lists. What runs
//! later is known by its inode, not by what it calls itself, so every path that leads to that inode is noted too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ::policy::{File, Program, Table};

use super::files::Stamp;

/// No directory of programs holds more; one that does is looked at so far.
const MAX_ENTRIES: usize = 50_000;

/// What the answer depends on: when one of them changes, programs are looked up again.
#[derive(Debug, Default)]
pub struct Watched(Vec<(PathBuf, Option<Stamp>)>);

impl Watched {
    pub fn is_unchanged(&self) -> bool {
        self.0.iter().all(|(path, before)| &stamp(path) == before)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    path.metadata().ok().as_ref().map(Stamp::of)
}

/// The programs of this table.
pub fn find(table: &Table, search_path: &OsStr) -> (BTreeMap<String, Program>, Watched) {
    let words: BTreeSet<&str> = table.prefixes.iter().map(|rule| rule.program.as_str()).collect();
    if words.is_empty() {
        return Default::default();
    }
    // A relative one would be found in whatever directory somebody stands in.
    let dirs: Vec<PathBuf> =
        std::env::split_paths(search_path).filter(|dir| dir.is_absolute()).collect();
    // Always before the look itself: what changes in between is then seen the next time.
    let mut watched: Vec<(PathBuf, Option<Stamp>)> =
        dirs.iter().map(|dir| (dir.clone(), stamp(dir))).collect();
    let entries = Entries::scan(&dirs);
    let mut programs = BTreeMap::new();
    for word in words {
        let (candidates, further) = candidates(table, &dirs, word);
        watched.extend(candidates.iter().chain(&further).map(|path| (path.clone(), stamp(path))));
        let mut program = Program::default();
        for (path, own) in candidates
            .iter()
            .map(|path| (path, true))
            .chain(further.iter().map(|path| (path, false)))
        {
            if let Some((file, id)) = executable(path) {
                let known = entries.0.get(&id).into_iter().flatten().map(PathBuf::as_path);
                let paths = known
                    .chain([path.as_path(), Path::new(&file.path)])
                    .filter_map(|path| path.to_str());
                program.paths.extend(paths.map(str::to_owned));
                match own {
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
        programs.insert(word.to_owned(), program);
    }
    (programs, Watched(watched))
}

/// The file that this word would run, started from here with this search path.
pub fn locate(word: &str, search_path: &OsStr) -> Option<File> {
    if word.contains('/') {
        return executable(Path::new(word)).map(|(file, _)| file);
    }
    std::env::split_paths(search_path)
        .find_map(|dir| executable(&dir.join(word)))
        .map(|(file, _)| file)
}

/// The paths that a word stands for, whether they are there or not; and others that go by it.
fn candidates(table: &Table, dirs: &[PathBuf], word: &str) -> (Vec<PathBuf>, Vec<PathBuf>) {
    if word.starts_with('/') {
        return (vec![PathBuf::from(word)], Vec::new());
    }
    // A path from here to there names another file wherever somebody stands; a rule on one is for text alone.
    if word.is_empty() || word.contains('/') {
        return Default::default();
    }
    let mut found = dirs.iter().map(|dir| dir.join(word)).filter(|path| executable(path).is_some());
    match table.host_executables.get(word) {
        Some(listed) => (listed.iter().map(PathBuf::from).collect(), found.collect()),
        None => (found.next().into_iter().collect(), found.collect()),
    }
}

type Id = (u64, u64);

fn is_executable(about: &Metadata) -> bool {
    about.is_file() && about.permissions().mode() & 0o111 != 0
}

/// The file that a path leads to in the end, if it can be run.
fn executable(path: &Path) -> Option<(File, Id)> {
    let real = path.canonicalize().ok()?;
    let about = real.metadata().ok().filter(is_executable)?;
    let (device, inode, size) = (about.dev(), about.ino(), about.size());
    Some((File { path: real.to_str()?.to_owned(), device, inode, size }, (device, inode)))
}

/// Every path in the directories of programs, by the file that it leads to.
struct Entries(HashMap<Id, Vec<PathBuf>>);

impl Entries {
    fn scan(dirs: &[PathBuf]) -> Entries {
        let mut entries: HashMap<Id, Vec<PathBuf>> = HashMap::new();
        for dir in dirs {
            let Ok(listed) = std::fs::read_dir(dir) else { continue };
            for entry in listed.take(MAX_ENTRIES).flatten() {
                let path = entry.path();
                if let Some(about) = path.metadata().ok().filter(is_executable) {
                    entries.entry((about.dev(), about.ino())).or_default().push(path);
                }
            }
        }
        Entries(entries)
    }
}
