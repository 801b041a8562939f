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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use jail::rights::{ProtectedPath, Rights};

use super::cell::Cell;
use crate::base::Result;
use crate::config::Profile;
use crate::session::Session;
use ask::{Answer, Question};
pub use compare::MADE;
use compare::Picture;
pub use cover::UNPROTECTABLE;
use find::Stamps;

/// Maximum number of repositories that git is asked about; the directories of further ones are
/// read-only.
const REPOSITORIES: usize = 64;

/// Findings of a session about the repositories that its runs can write, for each set of writable
/// places: a tool that the operator configured may write less than a command, and a wider sandbox
/// more.
#[derive(Default)]
pub struct Repositories(Mutex<HashMap<Vec<PathBuf>, Arc<tokio::sync::Mutex<Knowledge>>>>);

#[derive(Default)]
struct Knowledge {
    scanner: find::Scanner,
    last: Option<Arc<Known>>,
}

/// Findings at one moment.
pub struct Known {
    /// Paths that must be protected in every run.
    pub covered: Vec<ProtectedPath>,
    /// Gaps in the findings, for the log and the result.
    pub warnings: Vec<String>,
    picture: Picture,
    stamps: Stamps,
}

impl Repositories {
    /// Returns the session's findings.
    pub fn of(session: &Session) -> Result<Arc<Repositories>> {
        session.keep(|| Ok(Repositories::default()))
    }

    /// Returns the current findings. git is not asked while nothing has changed that an answer
    /// depends on.
    pub async fn look(&self, cell: &Cell, home: Option<&Path>) -> Result<Option<Arc<Known>>> {
        if cell.profile != Profile::Default {
            return Ok(None);
        }
        let places = cell.rights.writable_roots().map(Path::to_owned).collect();
        let knowledge = Arc::clone(
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(places).or_default(),
        );
        // One query at a time: calls that start together would ask the same.
        let mut knowledge = knowledge.lock().await;
        let found = knowledge.scanner.scan(&cell.rights);
        if let Some(known) = knowledge.last.as_ref().filter(|known| known.stamps.hold(&found)) {
            return Ok(Some(Arc::clone(known)));
        }
        let fresh = Arc::new(learn(cell, home, found, knowledge.last.as_deref()).await?);
        for warning in &fresh.warnings {
            tracing::warn!("{warning}");
        }
        knowledge.last = Some(Arc::clone(&fresh));
        Ok(Some(fresh))
    }
}

impl Known {
    /// Describes what git would execute differently from before, one line for each change.
    pub fn changes_since(&self, before: &Known) -> Vec<String> {
        self.picture.changes_since(&before.picture)
    }
}

/// Determines what must be covered, and what git would execute.
async fn learn(
    cell: &Cell,
    home: Option<&Path>,
    found: find::Found,
    last: Option<&Known>,
) -> Result<Known> {
    let (rights, asked) = (&cell.rights, SystemTime::now());
    let (mut answers, rest) = ask_all(cell, home, found.questions(rights)).await?;
    let mut warnings = Vec::new();
    if !rest.is_empty() {
        warnings.push(
            "there are more repositories than can be asked about; the rest can only be read"
                .to_owned(),
        );
    }
    let mut covered = cover::without_repository(rights);
    let mut stamps = Stamps::of(&found);
    for answer in &answers {
        if answer.settings.is_none() && matches!(answer.question, Question::WorkTree(_)) {
            let place = shown(rights, answer.place());
            warnings.push(format!(
                "git could not be asked about {place}; its repository can only be read"
            ));
        }
        covered.extend(cover::covered(rights, home, answer, &mut warnings)?);
        stamps.add(answer, asked);
    }
    // A repository that no longer answers may still have hooks elsewhere, which only its answer
    // named.
    if answers.iter().any(|answer| answer.settings.is_none()) {
        covered.extend(last.iter().flat_map(|last| last.covered.clone()));
    }
    covered.extend(rest.iter().map(Question::closed));
    covered.sort_by(|one, other| one.path.cmp(&other.path));
    covered.dedup_by(|one, other| one.path == other.path);
    answers.extend(rest.into_iter().map(Answer::unknown));
    let picture = Picture::of(rights, &answers);
    Ok(Known { covered, warnings, picture, stamps })
}

/// Asks about these and about everything that the answers lead to. Also returns what exceeds the
/// limit and was not asked about.
async fn ask_all(
    cell: &Cell,
    home: Option<&Path>,
    first: Vec<Question>,
) -> Result<(Vec<Answer>, Vec<Question>)> {
    let (mut answers, mut rest) = (Vec::<Answer>::new(), Vec::new());
    let mut next = first;
    loop {
        let mut fresh: Vec<Question> = Vec::new();
        for question in next {
            let is_known = fresh.contains(&question)
                || answers.iter().any(|answer| answer.is_about(&question));
            if !is_known {
                fresh.push(question);
            }
        }
        rest.extend(fresh.split_off(fresh.len().min(REPOSITORIES - answers.len())));
        if fresh.is_empty() {
            return Ok((answers, rest));
        }
        let told = ask::ask(cell, home, &fresh).await?;
        next = told.iter().flat_map(|answer| find::lead_on(&cell.rights, answer)).collect();
        answers.extend(told);
    }
}

/// Returns a path as the caller knows it.
fn shown(rights: &Rights, path: &Path) -> String {
    let below = path.strip_prefix(&rights.workspace).unwrap_or(path);
    let text =
        if below.as_os_str().is_empty() { ".".to_owned() } else { below.display().to_string() };
    text.escape_debug().to_string()
}

/// Returns whether a run could write the path, by its name or by its target.
fn is_writable(rights: &Rights, path: &Path) -> bool {
    let is_in = |path: &Path| rights.writable_roots().any(|root| path.starts_with(root));
    is_in(path) || path.canonicalize().is_ok_and(|real| is_in(&real))
}
