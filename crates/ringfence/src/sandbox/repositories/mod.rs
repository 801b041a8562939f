//! Protects what git on the host would execute or include, as far as a run can write it.
//!
//! A user who calls git outside the sandbox runs what a repository says: its hooks, and the
//! programs that its settings name. So every repository in the writable places is found (`find`),
//! the host's own git is asked what it would read there, in a read-only sandbox (`ask`), and all of
//! it is protected (`cover`). Only this module decides what is covered for git. What git would
//! execute is compared before and after a run (`compare`): a run may create its own repositories,
//! and the host may change one meanwhile. This module never reads git's files itself.

mod ask;
mod baseline;
mod compare;
mod cover;
mod find;
mod hooks;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use jail::rights::{ProtectedPath, Rights};

use super::session_sandbox::SessionSandbox;
use crate::base::IgnorePoison;
use crate::base::Result;
use crate::config::ProfileSetting;
use ask::{RepositoryAnswer, RepositoryQuery};
pub use baseline::GitBaseline;
use compare::GitSnapshot;
pub use compare::NEW_REPOSITORY;
pub use cover::UNPROTECTABLE;
use find::AnswerStamps;

/// Maximum number of repositories that git is asked about; the directories of further ones are
/// read-only.
const MAX_REPOSITORIES: usize = 64;

/// Findings of a session about the repositories that its runs can write, for each set of writable
/// places: a tool that the operator configured may write less than a command, and a wider sandbox
/// more.
#[derive(Default)]
pub struct SessionRepositories(
    Mutex<HashMap<Vec<PathBuf>, Arc<tokio::sync::Mutex<RepositoryCache>>>>,
);

#[derive(Default)]
struct RepositoryCache {
    scanner: find::RepositoryScanner,
    last_findings: Option<Arc<RepositoryFindings>>,
}

/// Findings at one moment.
pub struct RepositoryFindings {
    /// Paths that must be protected in every run.
    pub covered: Vec<ProtectedPath>,
    /// Gaps in the findings, for the log and the result.
    pub warnings: Vec<String>,
    snapshot: GitSnapshot,
    stamps: AnswerStamps,
}

impl SessionRepositories {
    /// Returns the current findings. git is not asked while nothing has changed that an answer
    /// depends on.
    pub async fn current_findings(
        &self,
        sandbox: &SessionSandbox,
        home: Option<&Path>,
    ) -> Result<Option<Arc<RepositoryFindings>>> {
        if sandbox.profile != ProfileSetting::Default {
            return Ok(None);
        }
        let roots = sandbox.rights.writable_roots().map(Path::to_owned).collect();
        let cache = Arc::clone(self.0.lock().ignore_poison().entry(roots).or_default());
        // One query at a time: calls that start together would ask the same.
        let mut cache = cache.lock().await;
        let found = cache.scanner.scan_roots(&sandbox.rights);
        if let Some(findings) =
            cache.last_findings.as_ref().filter(|findings| findings.stamps.is_current(&found))
        {
            return Ok(Some(Arc::clone(findings)));
        }
        let new_findings =
            Arc::new(query_findings(sandbox, home, found, cache.last_findings.as_deref()).await?);
        for warning in &new_findings.warnings {
            tracing::warn!("{warning}");
        }
        cache.last_findings = Some(Arc::clone(&new_findings));
        Ok(Some(new_findings))
    }
}

impl RepositoryFindings {
    /// Describes what git would execute differently from before, one line for each change.
    pub fn changes_since(&self, previous: &RepositoryFindings) -> Vec<String> {
        self.snapshot.changes_since(&previous.snapshot)
    }
}

/// Determines what must be covered, and what git would execute.
async fn query_findings(
    sandbox: &SessionSandbox,
    home: Option<&Path>,
    found: find::FoundRepositories,
    previous: Option<&RepositoryFindings>,
) -> Result<RepositoryFindings> {
    let (rights, queried_at) = (&sandbox.rights, SystemTime::now());
    let (mut answers, unqueried) = query_all(sandbox, home, found.to_queries(rights)).await?;
    let mut warnings = Vec::new();
    if !unqueried.is_empty() {
        warnings.push(
            "there are more repositories than git can be asked about; the rest are read-only"
                .to_owned(),
        );
    }
    let mut covered = cover::cover_without_repository(rights);
    let mut stamps = AnswerStamps::from_found(&found);
    for answer in &answers {
        if !answer.is_certain() && matches!(answer.query, RepositoryQuery::WorkTree(_)) {
            let location = display_path(rights, answer.query_path());
            warnings.push(format!(
                "cannot determine which files git would execute in {location}, so its repository is read-only"
            ));
        }
        covered.extend(cover::cover_repository(rights, home, answer, &mut warnings)?);
        stamps.add_answer(answer, queried_at);
    }
    // A repository that no longer answers may still have hooks elsewhere, which only its answer
    // named.
    if !answers.iter().all(RepositoryAnswer::is_certain) {
        covered.extend(previous.iter().flat_map(|previous| previous.covered.clone()));
    }
    covered.extend(unqueried.iter().map(RepositoryQuery::as_protected));
    covered.sort_by(|one, other| one.path.cmp(&other.path));
    covered.dedup_by(|one, other| one.path == other.path);
    answers.extend(unqueried.into_iter().map(RepositoryAnswer::new_unknown));
    let snapshot = GitSnapshot::from_answers(rights, &answers);
    Ok(RepositoryFindings { covered, warnings, snapshot, stamps })
}

/// Asks about these and about everything that the answers lead to. Also returns what exceeds the
/// limit and was not asked about.
async fn query_all(
    sandbox: &SessionSandbox,
    home: Option<&Path>,
    initial: Vec<RepositoryQuery>,
) -> Result<(Vec<RepositoryAnswer>, Vec<RepositoryQuery>)> {
    let (mut answers, mut unqueried) = (Vec::<RepositoryAnswer>::new(), Vec::new());
    let mut pending = initial;
    loop {
        let mut batch: Vec<RepositoryQuery> = Vec::new();
        for query in pending {
            let is_known =
                batch.contains(&query) || answers.iter().any(|answer| answer.answers_query(&query));
            if !is_known {
                batch.push(query);
            }
        }
        unqueried.extend(batch.split_off(batch.len().min(MAX_REPOSITORIES - answers.len())));
        if batch.is_empty() {
            return Ok((answers, unqueried));
        }
        let batch_answers = ask::query_git(sandbox, home, &batch).await?;
        pending = batch_answers
            .iter()
            .flat_map(|answer| find::linked_queries(&sandbox.rights, answer))
            .collect();
        answers.extend(batch_answers);
    }
}

/// Returns a path as the caller knows it.
fn display_path(rights: &Rights, path: &Path) -> String {
    let relative_path = path.strip_prefix(&rights.workspace).unwrap_or(path);
    let text = if relative_path.as_os_str().is_empty() {
        ".".to_owned()
    } else {
        relative_path.display().to_string()
    };
    text.escape_debug().to_string()
}

/// Returns whether a run could write the path, by its name or by its target.
fn is_writable_by_run(rights: &Rights, path: &Path) -> bool {
    let is_under_root = |path: &Path| rights.writable_roots().any(|root| path.starts_with(root));
    is_under_root(path) || path.canonicalize().is_ok_and(|real_path| is_under_root(&real_path))
}
