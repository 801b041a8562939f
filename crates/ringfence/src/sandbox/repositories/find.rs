//! Finds the repositories in what a run can write, by location: `.git` in a directory, the layout
//! of a bare repository, and the directories in which a repository keeps those of its submodules
//! and work trees.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jail::rights::{Rights, StandInText};

use super::super::bounded_read::read_bounded;
use super::ask::{RepositoryAnswer, RepositoryQuery};
use super::hooks::{hook_directories, hook_files};
use super::is_writable_by_run;
use crate::base::lexical;

/// Maximum number of directories in the work tree that are examined, from the top down. People call
/// git near the top of what they work on.
const MAX_DIRECTORIES: usize = 256;
const MAX_DEPTH: usize = 4;
/// Maximum number of directories below `.git/modules` that are examined.
const MAX_MODULE_DIRECTORIES: usize = 4000;
/// Directories full of other people's code, in which no one calls git.
const SKIPPED_DIRECTORIES: &[&str] = &["node_modules", "target", ".venv", "__pycache__"];

/// Names that make a directory a repository for git.
const REPOSITORY_NAMES: &[&str] = &["HEAD", "objects", "refs"];

/// Repositories found in the writable places.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundRepositories {
    work_trees: Vec<PathBuf>,
    /// Directories with the layout of a repository.
    bare: Vec<PathBuf>,
}

/// Scans directories, and reads again only those that have changed.
#[derive(Default)]
pub struct RepositoryScanner {
    known: HashMap<PathBuf, ScannedDirectory>,
}

/// Contents of one directory when it was last read.
struct ScannedDirectory {
    stamp: ChangeStamp,
    is_work_tree: bool,
    is_bare: bool,
    below: Vec<PathBuf>,
}

impl RepositoryScanner {
    /// Scans the upper directories of every writable place except HOME and the directory for
    /// temporary files, which only runs use.
    pub fn scan_roots(&mut self, rights: &Rights) -> FoundRepositories {
        let roots = rights.writable_roots().filter(|root| Some(*root) != rights.home.as_deref());
        let roots = roots.filter(|root| Some(*root) != rights.scratch.as_deref());
        let mut queue: VecDeque<(PathBuf, usize)> =
            roots.map(|root| (root.to_owned(), 0)).collect();
        let (mut found, mut scanned) = (FoundRepositories::default(), HashMap::new());
        for _ in 0..MAX_DIRECTORIES {
            let Some((directory, depth)) = queue.pop_front() else { break };
            let stamp = current_stamp(&directory);
            let scan = self.known.remove(&directory).filter(|scan| scan.stamp == stamp);
            let scan = scan.unwrap_or_else(|| scan_directory(&directory, stamp));
            found.work_trees.extend(
                (scan.is_work_tree && !is_vacant(&directory.join(".git")))
                    .then(|| directory.clone()),
            );
            found.bare.extend(scan.is_bare.then(|| directory.clone()));
            if depth < MAX_DEPTH {
                queue.extend(scan.below.iter().map(|path| (path.clone(), depth + 1)));
            }
            scanned.insert(directory, scan);
        }
        self.known = scanned;
        found
    }
}

/// Reads one directory.
fn scan_directory(directory: &Path, stamp: ChangeStamp) -> ScannedDirectory {
    let (mut below, mut names) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_skipped = SKIPPED_DIRECTORIES.iter().any(|skipped| name == *skipped);
        if is_dir && name != ".git" && !is_skipped && !is_object_directory(&entry.path()) {
            below.push(entry.path());
        }
        if name == ".git"
            || name == "commondir"
            || REPOSITORY_NAMES.iter().any(|part| name == *part)
        {
            names.push(name);
        }
    }
    below.sort();
    // No need to remember more than are ever examined.
    below.truncate(MAX_DIRECTORIES);
    let has = |part: &str| names.iter().any(|name| name == part);
    ScannedDirectory {
        stamp,
        is_work_tree: has(".git"),
        is_bare: has("HEAD") && (has("commondir") || REPOSITORY_NAMES.iter().all(|part| has(part))),
        below,
    }
}

/// Returns whether the path is absent or empty. A stand-in for a missing path is empty, and exists
/// while runs live.
pub fn is_vacant(path: &Path) -> bool {
    match path.symlink_metadata() {
        Err(_) => true,
        Ok(metadata) if metadata.is_dir() => {
            fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
        }
        Ok(metadata) => metadata.is_file() && metadata.len() == 0,
    }
}

impl FoundRepositories {
    /// Returns what to ask git about, beginning with the workspace's own repository.
    pub fn to_queries(&self, rights: &Rights) -> Vec<RepositoryQuery> {
        let trees = self.work_trees.iter().cloned().map(RepositoryQuery::WorkTree);
        let bare = self.bare.iter().cloned().map(RepositoryQuery::GitDir);
        let mut queries: Vec<RepositoryQuery> = trees.chain(bare).collect();
        // A repository elsewhere, of which the workspace is a work tree.
        let linked = rights
            .repositories
            .iter()
            .filter(|path| path.is_dir() && path.file_name().is_none_or(|name| name != ".git"));
        queries.extend(linked.cloned().map(RepositoryQuery::GitDir));
        // A repository around the workspace may have its hooks in it.
        let enclosing = rights
            .workspace
            .ancestors()
            .skip(1)
            .find(|ancestor| !is_vacant(&ancestor.join(".git")));
        queries.extend(enclosing.map(Path::to_owned).map(RepositoryQuery::WorkTree));
        // The workspace's own comes first, since what comes last may stay without an answer.
        queries.sort_by_key(|query| query.query_path() != rights.workspace);
        queries
    }
}

/// Returns other repositories that an answer leads to: submodules, and other work trees.
pub fn linked_queries(rights: &Rights, answer: &RepositoryAnswer) -> Vec<RepositoryQuery> {
    let Some(settings) = &answer.settings else { return Vec::new() };
    let has_git = |path: &Path| path.join(".git").symlink_metadata().is_ok();
    let mut queries: Vec<RepositoryQuery> = Vec::new();
    if let RepositoryQuery::WorkTree(top) = &answer.query {
        let links = answer.submodules.iter().map(|link| lexical::normalize_path(top, link));
        queries.extend(links.filter(|path| has_git(path)).map(RepositoryQuery::WorkTree));
    }
    let trees = answer.work_trees.iter().filter(|path| has_git(path)).cloned();
    queries.extend(trees.map(RepositoryQuery::WorkTree));
    // The work tree that a submodule's repository names, whatever the index contains now.
    let configured_trees =
        settings.entries.iter().filter(|(_, key, _)| key.eq_ignore_ascii_case("core.worktree"));
    let configured_trees = configured_trees.map(|(_, _, value)| {
        lexical::normalize_path(&settings.git_dir, &PathBuf::from(OsStr::from_bytes(value)))
    });
    queries.extend(configured_trees.filter(|path| has_git(path)).map(RepositoryQuery::WorkTree));
    queries.extend(
        submodule_repositories(&settings.common_dir)
            .into_iter()
            .flatten()
            .map(RepositoryQuery::GitDir),
    );
    queries.extend(
        submodule_repositories(&settings.git_dir)
            .into_iter()
            .flatten()
            .map(RepositoryQuery::GitDir),
    );
    queries.retain(|query| is_writable_by_run(rights, query.query_path()));
    queries
}

/// Returns the repositories of submodules, at any depth; `None` if there is too much to examine.
/// The search continues below a repository that was found: a run can plant the signs of one in
/// every directory that was not one before.
pub fn submodule_repositories(repository: &Path) -> Option<Vec<PathBuf>> {
    let (mut repositories, mut pending) = (Vec::new(), vec![repository.join("modules")]);
    let mut scanned_count = 0;
    while let Some(directory) = pending.pop() {
        scanned_count += 1;
        if scanned_count > MAX_MODULE_DIRECTORIES {
            return None;
        }
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            // git follows a link here, and its target could change, so no search would be complete.
            if kind.is_symlink() {
                return None;
            }
            if !kind.is_dir() {
                continue;
            }
            let path = entry.path();
            if may_be_repository(&path) {
                repositories.push(path.clone());
            }
            if !is_object_directory(&path) {
                pending.push(path);
            }
        }
    }
    repositories.sort();
    Some(repositories)
}

/// Returns whether a directory must be protected as a repository. Any of the first names is enough:
/// they are covered in every run, so no run can remove them to be left out of the next.
fn may_be_repository(path: &Path) -> bool {
    let has = |name: &&str| path.join(name).symlink_metadata().is_ok();
    ["config", "hooks", "commondir"].iter().any(has) || REPOSITORY_NAMES.iter().all(has)
}

/// Returns whether this is one of `objects/00` to `objects/ff`, of which there are many.
fn is_object_directory(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let in_objects =
        path.parent().and_then(Path::file_name).is_some_and(|above| above == "objects");
    let is_hex = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Only in a repository; elsewhere a submodule may have that name.
    in_objects
        && is_hex
        && path
            .ancestors()
            .nth(2)
            .is_some_and(|above| above.join("HEAD").symlink_metadata().is_ok())
}

/// State of a file. A process that changes the file cannot set its change time back; but clocks of
/// file systems are coarse, and a change at nearly the same time would go unseen. So a file that
/// has changed just now is equal to nothing.
#[derive(Debug, Clone, Copy)]
enum ChangeStamp {
    Absent,
    Fresh,
    Seen { device: u64, inode: u64, size: u64, changed: (i64, i64) },
}

impl PartialEq for ChangeStamp {
    fn eq(&self, other: &ChangeStamp) -> bool {
        match (self, other) {
            (ChangeStamp::Absent, ChangeStamp::Absent) => true,
            (
                ChangeStamp::Seen { device, inode, size, changed },
                ChangeStamp::Seen {
                    device: device2,
                    inode: inode2,
                    size: size2,
                    changed: changed2,
                },
            ) => (device, inode, size, changed) == (device2, inode2, size2, changed2),
            _ => false,
        }
    }
}

/// Minimum age of a change time that can be relied on: coarser than any clock of a local file
/// system.
const CLOCK_MARGIN: Duration = Duration::from_millis(50);

/// How long an unfinished answer of git counts. To ask again may take as long as the first time, and
/// until there is an answer the repository is read-only.
const RETRY_AFTER: Duration = Duration::from_secs(10);

fn current_stamp(path: &Path) -> ChangeStamp {
    stamp_at(path, SystemTime::now())
}

/// Returns the state at this time: a file that has changed since, or shortly before, is fresh.
fn stamp_at(path: &Path, taken_at: SystemTime) -> ChangeStamp {
    let Ok(metadata) = path.symlink_metadata() else { return ChangeStamp::Absent };
    // A stand-in for what is missing comes and goes with runs, those of other sessions too.
    if is_vacant(path) || is_own_common_dir(path, &metadata) {
        return ChangeStamp::Absent;
    }
    let now = taken_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed = Duration::new(
        metadata.ctime().unsigned_abs(),
        u32::try_from(metadata.ctime_nsec()).unwrap_or(0),
    );
    if now.saturating_sub(changed) < CLOCK_MARGIN {
        return ChangeStamp::Fresh;
    }
    ChangeStamp::Seen {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.len(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// Returns whether this is a `commondir` that leads to its own directory, as if there were none.
fn is_own_common_dir(path: &Path, metadata: &fs::Metadata) -> bool {
    let text = StandInText::Dot.as_bytes();
    path.file_name().is_some_and(|name| name == "commondir")
        && metadata.is_file()
        && metadata.len() == text.len() as u64
        && read_bounded(path, metadata.len())
            .is_ok_and(|content| content.is_some_and(|content| content == text))
}

/// State of everything that an answer depends on, from before git was asked.
#[derive(Debug, Default)]
pub struct AnswerStamps {
    found: FoundRepositories,
    files: Vec<(PathBuf, ChangeStamp)>,
    /// When git is asked again although nothing has changed: it may have been too slow.
    retry_at: Option<SystemTime>,
}

impl AnswerStamps {
    /// Creates a record of what was found, without files.
    pub fn from_found(found: &FoundRepositories) -> AnswerStamps {
        let found =
            FoundRepositories { work_trees: found.work_trees.clone(), bare: found.bare.clone() };
        AnswerStamps { found, files: Vec::new(), retry_at: None }
    }

    /// Adds the files that this answer depends on.
    pub fn add_answer(&mut self, answer: &RepositoryAnswer, queried_at: SystemTime) {
        if answer.settings.is_some() && !answer.is_complete {
            self.retry_at = Some(queried_at + RETRY_AFTER);
        }
        let protected_path = answer.query.as_protected().path;
        // A directory changes whenever a stand-in for a file appears in it, and the files that
        // matter are listed below.
        let mut files: Vec<PathBuf> = Some(protected_path)
            .filter(|protected_path| answer.settings.is_none() || !protected_path.is_dir())
            .into_iter()
            .collect();
        if let Some(settings) = &answer.settings {
            files.extend(settings.entries.iter().map(|(file, ..)| file.clone()));
            for directory in [&settings.git_dir, &settings.common_dir] {
                let names = [
                    "HEAD",
                    "config",
                    "config.worktree",
                    "index",
                    "modules",
                    "worktrees",
                    "commondir",
                    "gitdir",
                ];
                files.extend(names.iter().map(|name| directory.join(name)));
            }
            files.extend(hook_directories(settings));
            files.extend(hook_files(settings));
        } else {
            files.push(answer.query_path().join("config"));
            files.push(answer.query_path().join(".git/config"));
        }
        // Both the links and their targets matter.
        files.extend(files.clone().iter().filter_map(|file| file.canonicalize().ok()));
        files.sort();
        files.dedup();
        self.files.extend(
            files
                .into_iter()
                .map(|file| (stamp_at(&file, queried_at), file))
                .map(|(stamp, file)| (file, stamp)),
        );
    }

    /// Returns whether nothing has changed. A fresh file is equal to nothing, so that it is
    /// examined once more.
    pub fn is_current(&self, found: &FoundRepositories) -> bool {
        self.retry_at.is_none_or(|at| SystemTime::now() < at)
            && self.found == *found
            && self.files.iter().all(|(file, stamp)| current_stamp(file) == *stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::GitSettings;
    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn an_unfinished_answer_counts_for_a_while() {
        let found = FoundRepositories::default();
        let is_current_after = |is_complete: bool, seconds: u64| {
            let settings = GitSettings {
                git_dir: "/nowhere/.git".into(),
                common_dir: "/nowhere/.git".into(),
                hooks: "/nowhere/.git/hooks".into(),
                top: None,
                entries: Vec::new(),
            };
            let answer = RepositoryAnswer {
                settings: Some(settings),
                is_complete,
                ..RepositoryAnswer::new_unknown(RepositoryQuery::WorkTree("/nowhere".into()))
            };
            let mut stamps = AnswerStamps::from_found(&found);
            stamps.add_answer(&answer, SystemTime::now() - Duration::from_secs(seconds));
            stamps.is_current(&found)
        };
        assert!(is_current_after(true, 3600) && is_current_after(false, 0));
        assert!(!is_current_after(false, 11));
    }

    #[test]
    fn a_stand_in_is_as_good_as_nothing() {
        let scratch = Scratch::new();
        let equals_absent = |path: &Path| current_stamp(path) == ChangeStamp::Absent;
        let commondir = scratch.file("repo/.git/commondir", ".\n");
        assert!(equals_absent(&commondir) && equals_absent(&commondir.with_file_name("none")));
        assert!(equals_absent(&scratch.file("repo/.git/config.worktree", "")));
        assert!(!equals_absent(&scratch.file("repo/.git/config", ".\n")));
        fs::write(&commondir, "x\n").unwrap();
        assert!(!equals_absent(&commondir));
        let worktrees = commondir.with_file_name("worktrees");
        fs::create_dir(&worktrees).unwrap();
        assert!(equals_absent(&worktrees));
        fs::create_dir(worktrees.join("one")).unwrap();
        assert!(!equals_absent(&worktrees));
    }

    #[test]
    fn a_planted_sign_hides_no_submodule_below_it() {
        let scratch = Scratch::new();
        let top = scratch.file("repo/HEAD", "").parent().unwrap().to_owned();
        for file in [
            "modules/libs/config",
            "modules/libs/one/config",
            "modules/libs/one/modules/two/config",
            "modules/a/hooks/x",
            "modules/a/objects/ab/x",
            "modules/a/logs/HEAD",
        ] {
            scratch.file(&format!("repo/{file}"), "x");
        }
        let found = submodule_repositories(&top).unwrap();
        let below: Vec<String> = found
            .iter()
            .map(|path| path.strip_prefix(&top).unwrap().display().to_string())
            .collect();
        assert_eq!(
            below,
            ["modules/a", "modules/libs", "modules/libs/one", "modules/libs/one/modules/two"]
        );
    }
}
