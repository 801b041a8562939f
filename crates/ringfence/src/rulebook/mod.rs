//! The rules in force: the files they come from, what they say, and which programs on this host
//! they refer to.
//!
//! There is no file watcher. Every call asks [`Policy::current`], which checks whether anything has
//! changed and only then reads the files again. A call keeps the rules that it started with: a
//! [`Rulebook`] never changes.

mod book;
mod files;
pub mod leaving;
pub mod lint;
mod programs;
mod project;
pub mod unasked;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use book::{Ignored, Rulebook};
pub use leaving::Leaving;
pub use programs::locate;

use crate::config::{Config, Env, env, rules_dirs};
use crate::sandbox::Launcher;
use crate::sandbox::env::DEFAULT_PATH;
use files::Found;

/// Maximum number of cached workspaces. Beyond it the cache is cleared and rules are read again,
/// which costs time but never gives a stale answer.
const MAX_WORKSPACES: usize = 256;

/// Locations of the operator's rules, and the search path for programs.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Directories from which every `*.rules` file is read.
    pub dirs: Vec<PathBuf>,
    /// Rules directories of other Codex homes, whose files are ignored.
    pub unused_dirs: Vec<PathBuf>,
    /// Additional rules files.
    pub files: Vec<PathBuf>,
    /// The operator's PATH.
    pub search_path: OsString,
}

impl Places {
    /// Returns the locations where Codex keeps its rules, plus files that were named explicitly.
    pub fn of(variables: &Env, files: Vec<PathBuf>) -> Places {
        let cwd = variables.cwd.clone().unwrap_or_default();
        let mut dirs = rules_dirs(variables, variables.cwd.as_deref());
        if let Some(codex) = variables.path(env::CODEX_HOME).filter(|codex| codex.is_relative()) {
            dirs.used.truncate(1);
            dirs.used.push(cwd.join(codex).join("rules"));
        }
        Places {
            dirs: dirs.used,
            unused_dirs: dirs.unused,
            files: files.into_iter().map(|file| cwd.join(file)).collect(),
            search_path: search_path(variables),
        }
    }

    /// Returns the locations from the operator's config.
    pub fn of_config(config: &Config) -> Places {
        let policy = &config.policy;
        Places {
            dirs: policy.rules_dirs.used.clone(),
            unused_dirs: policy.rules_dirs.unused.clone(),
            files: policy.rules.clone(),
            search_path: search_path(&Env::of_process()),
        }
    }

    /// Returns only the named files, under the names that were given.
    pub fn only(variables: &Env, files: Vec<PathBuf>) -> Places {
        Places { files, search_path: search_path(variables), ..Places::default() }
    }
}

impl Places {
    /// Returns all locations as text for a reader.
    pub fn shown(&self) -> String {
        let dirs = self.dirs.iter().map(|dir| dir.join("*.rules").display().to_string());
        dirs.chain(self.files.iter().map(|file| file.display().to_string()))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns a warning if no rules were found although the operator has written some in a Codex
    /// home that is not in use. Returns nothing if rules were found.
    pub fn overlooked(&self, book: &Rulebook) -> Option<String> {
        let is_rules = |entry: &std::fs::DirEntry| {
            entry.path().extension().is_some_and(|ending| ending == "rules")
        };
        let count = |dir: &PathBuf| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter(is_rules).count()
        };
        let dir = self.unused_dirs.iter().find(|dir| book.files.is_empty() && count(dir) > 0)?;
        Some(format!(
            "no rules were found in {}, and those in {} are ignored: set CODEX_HOME for this server, or name the files \
             with --rules",
            self.shown(),
            dir.display()
        ))
    }
}

fn search_path(variables: &Env) -> OsString {
    variables.get(env::PATH).map_or_else(|| DEFAULT_PATH.into(), OsString::from)
}

/// Cache of rulebooks. There is one per server; clones share it.
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

struct Inner {
    places: Places,
    launcher: Launcher,
    books: Mutex<HashMap<PathBuf, Shelf>>,
    generation: AtomicU64,
    /// Workspaces in which a run could write all of `.git` although a rule concerns git.
    open_repositories: Mutex<HashSet<PathBuf>>,
}

/// Newest rulebook of a workspace. It stays locked while it is being loaded, so that concurrent
/// calls load it once, and a repository whose rules are slow to read delays no other workspace.
type Shelf = Arc<tokio::sync::Mutex<Option<Kept>>>;

struct Kept {
    found: Found,
    watched: programs::Watched,
    book: Arc<Rulebook>,
}

impl Policy {
    /// Creates a cache that evaluates rules with this server's own binary.
    pub fn new(places: Places) -> Policy {
        Policy::with(places, Launcher::from_current_exe())
    }

    /// Creates a cache that evaluates rules with another binary.
    pub fn with(places: Places, launcher: Launcher) -> Policy {
        let books = Mutex::new(HashMap::new());
        let open_repositories = Mutex::default();
        Policy(Arc::new(Inner {
            places,
            launcher,
            books,
            generation: AtomicU64::new(0),
            open_repositories,
        }))
    }

    /// Records that a run in this workspace may write all of `.git`, because nothing could leave
    /// the sandbox when it began. For as long as this server lives, git must not trust that
    /// repository.
    pub fn note_open_repository(&self, workspace: &Path) {
        self.0
            .open_repositories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(workspace.to_owned());
    }

    /// Returns whether a run in this workspace could write all of `.git`.
    pub fn has_open_repository(&self, workspace: &Path) -> bool {
        self.0.open_repositories.lock().unwrap_or_else(PoisonError::into_inner).contains(workspace)
    }

    /// Returns the current rules for a workspace.
    pub async fn current(&self, workspace: &Path) -> Arc<Rulebook> {
        let shelf = self.shelf(workspace);
        let mut kept = shelf.lock().await;
        let (found, still) = self.look(workspace, kept.take()).await;
        if let Some(still) = still {
            return Arc::clone(&kept.insert(still).book);
        }
        let generation = self.0.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let (book, watched) =
            book::make(&self.0.launcher, &self.0.places, &found, Some(workspace), generation).await;
        book.log();
        Arc::clone(&kept.insert(Kept { found, watched, book: Arc::new(book) }).book)
    }

    /// Returns the locations of rules.
    pub fn places(&self) -> &Places {
        &self.0.places
    }

    /// Reads the current rules without caching them. Without a workspace, reads only the
    /// operator's.
    pub async fn read_once(&self, workspace: Option<&Path>) -> Rulebook {
        let found = match workspace {
            Some(workspace) => self.look(workspace, None).await.0,
            None => files::find(&self.0.places, None),
        };
        book::make(&self.0.launcher, &self.0.places, &found, workspace, 1).await.0
    }

    /// Inspects the rules files. Also returns the cached rulebook if it is still valid.
    async fn look(&self, workspace: &Path, kept: Option<Kept>) -> (Found, Option<Kept>) {
        let (places, workspace) = (self.0.places.clone(), workspace.to_owned());
        let look = tokio::task::spawn_blocking(move || {
            let found = files::find(&places, Some(&workspace));
            let still = kept.filter(|kept| kept.found == found && kept.watched.is_unchanged());
            (found, still)
        });
        // Only a panic ends such a task early; the cached rulebook is then discarded.
        look.await.unwrap_or_else(|_| (Found::unknown(), None))
    }

    fn shelf(&self, workspace: &Path) -> Shelf {
        let mut books = self.0.books.lock().unwrap_or_else(PoisonError::into_inner);
        if books.len() >= MAX_WORKSPACES && !books.contains_key(workspace) {
            books.clear();
        }
        Arc::clone(books.entry(workspace.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests;
