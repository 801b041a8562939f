//! The rules in force: which files they come from, what they say, and which programs of this host they speak of.
//!
//! Nobody watches the files. Every call asks [`Policy::current`], which looks whether anything has changed since and
//! reads again only then. What a call was given it keeps: a [`Rulebook`] never changes.

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

/// More workspaces than this are forgotten and looked at anew; they cost memory, not truth.
const MAX_WORKSPACES: usize = 256;

/// Where the operator's rules are, and where programs are looked for.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Every `*.rules` in these.
    pub dirs: Vec<PathBuf>,
    /// The same of other homes of Codex: what is in there does not count.
    pub unused_dirs: Vec<PathBuf>,
    /// And these, wherever they are.
    pub files: Vec<PathBuf>,
    /// The operator's PATH.
    pub search_path: OsString,
}

impl Places {
    /// Where Codex keeps its rules, and files that were named.
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

    /// As the operator's config has them.
    pub fn of_config(config: &Config) -> Places {
        let policy = &config.policy;
        Places {
            dirs: policy.rules_dirs.used.clone(),
            unused_dirs: policy.rules_dirs.unused.clone(),
            files: policy.rules.clone(),
            search_path: search_path(&Env::of_process()),
        }
    }

    /// Only files that were named, by the names that they were given.
    pub fn only(variables: &Env, files: Vec<PathBuf>) -> Places {
        Places { files, search_path: search_path(variables), ..Places::default() }
    }
}

impl Places {
    /// Every place where files are looked for, for a reader.
    pub fn shown(&self) -> String {
        let dirs = self.dirs.iter().map(|dir| dir.join("*.rules").display().to_string());
        dirs.chain(self.files.iter().map(|file| file.display().to_string()))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Why there may be no rules although the operator has written some: they are in a home of Codex that is not the one
    /// that counts. Nothing to say where rules were found.
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
            "no rules were found in {}, and those in {} do not count: set CODEX_HOME for this server, or name the files \
             with --rules",
            self.shown(),
            dir.display()
        ))
    }
}

fn search_path(variables: &Env) -> OsString {
    variables.get(env::PATH).map_or_else(|| DEFAULT_PATH.into(), OsString::from)
}

/// One per server; its clones are the same one.
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

struct Inner {
    places: Places,
    launcher: Launcher,
    books: Mutex<HashMap<PathBuf, Shelf>>,
    generation: AtomicU64,
    /// Workspaces whose whole repository a run could write although a rule is about git.
    open_repositories: Mutex<HashSet<PathBuf>>,
}

/// The newest rulebook of a workspace. It is locked while it is made, so that calls that come together make one, and
/// a repository whose rules take long to read holds up nobody else.
type Shelf = Arc<tokio::sync::Mutex<Option<Kept>>>;

struct Kept {
    found: Found,
    watched: programs::Watched,
    book: Arc<Rulebook>,
}

impl Policy {
    pub fn new(places: Places) -> Policy {
        Policy::with(places, Launcher::own())
    }

    /// With another binary to read rules in.
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

    /// Notes that a run in this workspace may write all of `.git`, because nothing could leave when it began. git must
    /// not trust that repository later, for as long as this server lives.
    pub fn note_open_repository(&self, workspace: &Path) {
        self.0
            .open_repositories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(workspace.to_owned());
    }

    /// Whether a run in this workspace could write all of `.git`.
    pub fn has_open_repository(&self, workspace: &Path) -> bool {
        self.0.open_repositories.lock().unwrap_or_else(PoisonError::into_inner).contains(workspace)
    }

    /// The rules as they are now, in this workspace.
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

    /// Where rules are looked for.
    pub fn places(&self) -> &Places {
        &self.0.places
    }

    /// The rules as they are now, read for one question and not kept; without a workspace the operator's alone.
    pub async fn read_once(&self, workspace: Option<&Path>) -> Rulebook {
        let found = match workspace {
            Some(workspace) => self.look(workspace, None).await.0,
            None => files::find(&self.0.places, None),
        };
        book::make(&self.0.launcher, &self.0.places, &found, workspace, 1).await.0
    }

    /// What there is now; with what was kept when it still holds.
    async fn look(&self, workspace: &Path, kept: Option<Kept>) -> (Found, Option<Kept>) {
        let (places, workspace) = (self.0.places.clone(), workspace.to_owned());
        let look = tokio::task::spawn_blocking(move || {
            let found = files::find(&places, Some(&workspace));
            let still = kept.filter(|kept| kept.found == found && kept.watched.is_unchanged());
            (found, still)
        });
        // Only a panic ends such a task early; then nothing that was kept counts.
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
