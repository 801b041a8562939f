//! Protects what git on the host would execute or include, as far as a run can write it.
//!
//! A user who calls git outside the sandbox runs what a repository says: its hooks, and the
//! programs that its settings name. So every repository in the writable places is found (`find`),
//! the host's own git is asked what it would read there, in a read-only sandbox (`ask`), and all of
//! it is protected (`cover`). Only this module decides what is covered for git. What git would
//! execute is compared before and after a run (`compare`): a run may create its own repositories,
//! and the host may change one meanwhile. This module never reads git's files itself.

mod ask;
mod compare;
mod cover;
mod find;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use jail::rights::{ProtectedPath, Rights};

use super::session_sandbox::SessionSandbox;
use crate::base::IgnorePoison;
use crate::base::Result;
use crate::config::ProfileSetting;
use crate::session::Session;
use ask::{RepositoryAnswer, RepositoryQuery};
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
    /// Returns the session's findings.
    pub fn for_session(session: &Session) -> Result<Arc<SessionRepositories>> {
        session.get_or_create(|| Ok(SessionRepositories::default()))
    }

    /// Returns the current findings. git is not asked while nothing has changed that an answer
    /// depends on.
    pub async fn current_findings(
        &self,
        cell: &SessionSandbox,
        home: Option<&Path>,
    ) -> Result<Option<Arc<RepositoryFindings>>> {
        if cell.profile != ProfileSetting::Default {
            return Ok(None);
        }
        let places = cell.rights.writable_roots().map(Path::to_owned).collect();
        let knowledge = Arc::clone(self.0.lock().ignore_poison().entry(places).or_default());
        // One query at a time: calls that start together would ask the same.
        let mut knowledge = knowledge.lock().await;
        let found = knowledge.scanner.scan_roots(&cell.rights);
        if let Some(known) =
            knowledge.last_findings.as_ref().filter(|known| known.stamps.is_current(&found))
        {
            return Ok(Some(Arc::clone(known)));
        }
        let fresh =
            Arc::new(query_findings(cell, home, found, knowledge.last_findings.as_deref()).await?);
        for warning in &fresh.warnings {
            tracing::warn!("{warning}");
        }
        knowledge.last_findings = Some(Arc::clone(&fresh));
        Ok(Some(fresh))
    }
}

impl RepositoryFindings {
    /// Describes what git would execute differently from before, one line for each change.
    pub fn changes_since(&self, before: &RepositoryFindings) -> Vec<String> {
        self.snapshot.changes_since(&before.snapshot)
    }
}

/// Determines what must be covered, and what git would execute.
async fn query_findings(
    cell: &SessionSandbox,
    home: Option<&Path>,
    found: find::FoundRepositories,
    last: Option<&RepositoryFindings>,
) -> Result<RepositoryFindings> {
    let (rights, asked) = (&cell.rights, SystemTime::now());
    let (mut answers, rest) = query_all(cell, home, found.to_queries(rights)).await?;
    let mut warnings = Vec::new();
    if !rest.is_empty() {
        warnings.push(
            "there are more repositories than can be asked about; the rest can only be read"
                .to_owned(),
        );
    }
    let mut covered = cover::cover_without_repository(rights);
    let mut stamps = AnswerStamps::from_found(&found);
    for answer in &answers {
        if answer.settings.is_none() && matches!(answer.query, RepositoryQuery::WorkTree(_)) {
            let place = display_path(rights, answer.query_path());
            warnings.push(format!(
                "git could not be asked about {place}; its repository can only be read"
            ));
        }
        covered.extend(cover::cover_repository(rights, home, answer, &mut warnings)?);
        stamps.add_answer(answer, asked);
    }
    // A repository that no longer answers may still have hooks elsewhere, which only its answer
    // named.
    if answers.iter().any(|answer| answer.settings.is_none()) {
        covered.extend(last.iter().flat_map(|last| last.covered.clone()));
    }
    covered.extend(rest.iter().map(RepositoryQuery::as_protected));
    covered.sort_by(|one, other| one.path.cmp(&other.path));
    covered.dedup_by(|one, other| one.path == other.path);
    answers.extend(rest.into_iter().map(RepositoryAnswer::new_unknown));
    let picture = GitSnapshot::from_answers(rights, &answers);
    Ok(RepositoryFindings { covered, warnings, snapshot: picture, stamps })
}

/// Asks about these and about everything that the answers lead to. Also returns what exceeds the
/// limit and was not asked about.
async fn query_all(
    cell: &SessionSandbox,
    home: Option<&Path>,
    first: Vec<RepositoryQuery>,
) -> Result<(Vec<RepositoryAnswer>, Vec<RepositoryQuery>)> {
    let (mut answers, mut rest) = (Vec::<RepositoryAnswer>::new(), Vec::new());
    let mut next = first;
    loop {
        let mut fresh: Vec<RepositoryQuery> = Vec::new();
        for question in next {
            let is_known = fresh.contains(&question)
                || answers.iter().any(|answer| answer.answers_query(&question));
            if !is_known {
                fresh.push(question);
            }
        }
        rest.extend(fresh.split_off(fresh.len().min(MAX_REPOSITORIES - answers.len())));
        if fresh.is_empty() {
            return Ok((answers, rest));
        }
        let told = ask::query_git(cell, home, &fresh).await?;
        next = told.iter().flat_map(|answer| find::linked_queries(&cell.rights, answer)).collect();
        answers.extend(told);
    }
}

/// Returns a path as the caller knows it.
fn display_path(rights: &Rights, path: &Path) -> String {
    let below = path.strip_prefix(&rights.workspace).unwrap_or(path);
    let text =
        if below.as_os_str().is_empty() { ".".to_owned() } else { below.display().to_string() };
    text.escape_debug().to_string()
}

/// Returns whether a run could write the path, by its name or by its target.
fn is_writable_by_run(rights: &Rights, path: &Path) -> bool {
    let is_in = |path: &Path| rights.writable_roots().any(|root| path.starts_with(root));
    is_in(path) || path.canonicalize().is_ok_and(|real| is_in(&real))
}
