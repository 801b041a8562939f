//! The rules in force: the files they come from, what they say, and which programs on this host
//! they refer to.
//!
//! There is no file watcher. Every call asks [`RulebookCache::current_rules`], which checks whether
//! anything has changed and only then reads the files again. A call keeps the rules that it started
//! with: a [`Rulebook`] never changes.

pub mod escalation;
pub mod escalation_risk;
mod files;
pub mod lint;
mod loader;
mod programs;
mod project;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use escalation::EscalationStatus;
pub use loader::{IgnoredRule, Rulebook};
pub use programs::locate_program;

use crate::base::{Error, IgnorePoison, Result};
use crate::config::{Config, ProcessEnv, env, find_rules_dirs};
use crate::sandbox::Launcher;
use crate::sandbox::env::DEFAULT_PATH;
use files::FoundRules;

/// Maximum number of cached workspaces. Beyond it the cache is cleared and rules are read again,
/// which costs time but never gives a stale answer.
const MAX_WORKSPACES: usize = 256;

/// Locations of the operator's rules, and the search path for programs.
#[derive(Debug, Clone, Default)]
pub struct RuleLocations {
    /// Directories from which every `*.rules` file is read.
    pub dirs: Vec<PathBuf>,
    /// Rules directories of other Codex homes, whose files are ignored.
    pub unused_dirs: Vec<PathBuf>,
    /// Additional rules files.
    pub files: Vec<PathBuf>,
    /// The operator's PATH.
    pub search_path: OsString,
}

impl RuleLocations {
    /// Returns the locations where Codex keeps its rules, plus files that were named explicitly.
    pub fn from_env(variables: &ProcessEnv, files: Vec<PathBuf>) -> RuleLocations {
        let cwd = variables.cwd.clone().unwrap_or_default();
        let mut dirs = find_rules_dirs(variables, variables.cwd.as_deref());
        if let Some(codex_home) =
            variables.get_path(env::CODEX_HOME).filter(|codex_home| codex_home.is_relative())
        {
            dirs.effective.truncate(1);
            dirs.effective.push(cwd.join(codex_home).join("rules"));
        }
        RuleLocations {
            dirs: dirs.effective,
            unused_dirs: dirs.ignored,
            files: files.into_iter().map(|file| cwd.join(file)).collect(),
            search_path: search_path(variables),
        }
    }

    /// Returns the locations from the operator's config.
    pub fn from_config(config: &Config) -> RuleLocations {
        let policy = &config.policy;
        RuleLocations {
            dirs: policy.rules_dirs.effective.clone(),
            unused_dirs: policy.rules_dirs.ignored.clone(),
            files: policy.rules.clone(),
            search_path: search_path(&ProcessEnv::from_process()),
        }
    }

    /// Returns only the named files, under the names that were given.
    pub fn from_files(variables: &ProcessEnv, files: Vec<PathBuf>) -> RuleLocations {
        RuleLocations { files, search_path: search_path(variables), ..RuleLocations::default() }
    }
}

impl RuleLocations {
    /// Fails if a file that the operator named does not exist: without it, nothing that it forbids
    /// would be forbidden.
    pub fn check_named_files(&self) -> Result<()> {
        let is_missing = |file: &PathBuf| {
            file.metadata().is_err_and(|error| {
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            })
        };
        match self.files.iter().position(is_missing) {
            None => Ok(()),
            Some(index) => Err(Error::invalid_arguments(format!(
                "the rules file {} does not exist",
                self.files[index].display()
            ))
            .with_reason("bad_config")
            .with_fact("key", format!("policy.rules[{index}]"))
            .with_hint(
                "Create it, or correct its name in `--rules` or in `rules` under [policy].",
            )),
        }
    }

    /// Returns all locations as text for a reader.
    pub fn display_text(&self) -> String {
        let dirs = self.dirs.iter().map(|dir| dir.join("*.rules").display().to_string());
        dirs.chain(self.files.iter().map(|file| file.display().to_string()))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns a warning if no rules were found although the operator has written some in a Codex
    /// home that is not in use. Returns nothing if rules were found.
    pub fn unused_rules_warning(&self, rulebook: &Rulebook) -> Option<String> {
        let is_rules = |entry: &std::fs::DirEntry| {
            entry.path().extension().is_some_and(|extension| extension == "rules")
        };
        let count = |dir: &PathBuf| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter(is_rules).count()
        };
        let dir =
            self.unused_dirs.iter().find(|dir| rulebook.files.is_empty() && count(dir) > 0)?;
        Some(format!(
            "no rules were found in {}, and those in {} are ignored: set CODEX_HOME for this server, or name the files \
             with --rules",
            self.display_text(),
            dir.display()
        ))
    }
}

fn search_path(variables: &ProcessEnv) -> OsString {
    variables.get(env::PATH).map_or_else(|| DEFAULT_PATH.into(), OsString::from)
}

/// Cache of rulebooks. There is one per server; clones share it.
#[derive(Clone)]
pub struct RulebookCache(Arc<RulebookCacheInner>);

struct RulebookCacheInner {
    locations: RuleLocations,
    launcher: Launcher,
    slots: Mutex<HashMap<PathBuf, RulebookSlot>>,
    generation: AtomicU64,
    /// Workspaces in which a run could write all of `.git` although a rule concerns git.
    open_repositories: Mutex<HashSet<PathBuf>>,
}

/// Newest rulebook of a workspace. It stays locked while it is being loaded, so that concurrent
/// calls load it once, and a repository whose rules are slow to read delays no other workspace.
type RulebookSlot = Arc<tokio::sync::Mutex<Option<CachedRulebook>>>;

struct CachedRulebook {
    found: FoundRules,
    watched_paths: programs::WatchedPaths,
    book: Arc<Rulebook>,
}

impl RulebookCache {
    /// Creates a cache that evaluates rules with this server's own binary.
    pub fn new(locations: RuleLocations) -> RulebookCache {
        RulebookCache::with_launcher(locations, Launcher::from_current_exe())
    }

    /// Creates a cache that evaluates rules with another binary.
    pub fn with_launcher(locations: RuleLocations, launcher: Launcher) -> RulebookCache {
        let slots = Mutex::new(HashMap::new());
        let open_repositories = Mutex::default();
        RulebookCache(Arc::new(RulebookCacheInner {
            locations,
            launcher,
            slots,
            generation: AtomicU64::new(0),
            open_repositories,
        }))
    }

    /// Records that a run in this workspace may write all of `.git`, because nothing could leave
    /// the sandbox when it began. For as long as this server lives, git must not trust that
    /// repository.
    pub fn note_open_repository(&self, workspace: &Path) {
        self.0.open_repositories.lock().ignore_poison().insert(workspace.to_owned());
    }

    /// Returns whether a run in this workspace could write all of `.git`.
    pub fn has_open_repository(&self, workspace: &Path) -> bool {
        self.0.open_repositories.lock().ignore_poison().contains(workspace)
    }

    /// Returns the current rules for a workspace.
    pub async fn current_rules(&self, workspace: &Path) -> Arc<Rulebook> {
        let slot = self.slot_for(workspace);
        let mut cached = slot.lock().await;
        let (found, unchanged) = self.inspect_files(workspace, cached.take()).await;
        if let Some(unchanged) = unchanged {
            return Arc::clone(&cached.insert(unchanged).book);
        }
        let generation = self.0.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let (rulebook, watched_paths) = loader::load_rulebook(
            &self.0.launcher,
            &self.0.locations,
            &found,
            Some(workspace),
            generation,
        )
        .await;
        rulebook.log_summary();
        Arc::clone(
            &cached.insert(CachedRulebook { found, watched_paths, book: Arc::new(rulebook) }).book,
        )
    }

    /// Returns the locations of rules.
    pub fn locations(&self) -> &RuleLocations {
        &self.0.locations
    }

    /// Reads the current rules without caching them. Without a workspace, reads only the
    /// operator's.
    pub async fn load_once(&self, workspace: Option<&Path>) -> Rulebook {
        let found = match workspace {
            Some(workspace) => self.inspect_files(workspace, None).await.0,
            None => files::find_rule_files(&self.0.locations, None),
        };
        loader::load_rulebook(&self.0.launcher, &self.0.locations, &found, workspace, 1).await.0
    }

    /// Inspects the rules files. Also returns the cached rulebook if it is still valid.
    async fn inspect_files(
        &self,
        workspace: &Path,
        cached: Option<CachedRulebook>,
    ) -> (FoundRules, Option<CachedRulebook>) {
        let (locations, workspace) = (self.0.locations.clone(), workspace.to_owned());
        let inspection = tokio::task::spawn_blocking(move || {
            let found = files::find_rule_files(&locations, Some(&workspace));
            let unchanged = cached
                .filter(|cached| cached.found == found && cached.watched_paths.is_unchanged());
            (found, unchanged)
        });
        // Only a panic ends such a task early; the cached rulebook is then discarded.
        inspection.await.unwrap_or_else(|_| (FoundRules::from_failure(), None))
    }

    fn slot_for(&self, workspace: &Path) -> RulebookSlot {
        let mut slots = self.0.slots.lock().ignore_poison();
        if slots.len() >= MAX_WORKSPACES && !slots.contains_key(workspace) {
            slots.clear();
        }
        Arc::clone(slots.entry(workspace.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests;
