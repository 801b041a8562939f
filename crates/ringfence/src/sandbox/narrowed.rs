//! Sandboxes of calls that a client lets touch less than their session may.
//!
//! What the runs of a session have in common (the loopback, shared memory, /tmp, terminals) would lead such a call to a
//! run that may do more, and to that one's proxy. So it shares none of it: calls under the same word of the client have
//! one sandbox, calls under another word another. Runs that are under way stay in theirs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::cell::Cell;
use super::profile;
use crate::base::Result;
use crate::base::narrowing::Narrowing;
use crate::base::workspace::Workspace;
use crate::config::Config;
use crate::session::Session;

/// Those that nothing runs in. Beyond them the one that was used longest ago goes, with its /tmp.
const IDLE: usize = 4;

/// A session's, the one used last at the end.
#[derive(Default)]
struct NarrowedCells(Mutex<Vec<NarrowedCell>>);

struct NarrowedCell {
    /// The one it stands beside: the session's, or that of a tool of the operator's.
    whole: Weak<Cell>,
    narrowing: Arc<Narrowing>,
    cell: Arc<Cell>,
}

/// What a call runs in whose workspace is held to this: `whole`, or a sandbox beside it.
pub(super) fn cell(
    session: &Session,
    whole: Arc<Cell>,
    config: &Config,
    workspace: &Workspace,
) -> Result<Arc<Cell>> {
    // Without namespaces runs share those of the host, whatever is done here.
    let Some(narrowing) = workspace.taken_away().filter(|_| whole.zygote.is_some()) else {
        return Ok(whole);
    };
    // What a wider run executes it finds in the workspace or in HOME. Who may write the one shares the other, for its
    // caches; who may not has another.
    let home = match (&whole.rights.home, workspace.rights().read_only) {
        (Some(home), true) => Some(profile::cache_home(config, home, Some(&["read-only"]))?),
        _ => None,
    };
    Ok(session.keep(|| Ok(NarrowedCells::default()))?.get(&whole, narrowing, home))
}

impl NarrowedCells {
    fn get(
        &self,
        whole: &Arc<Cell>,
        narrowing: &Arc<Narrowing>,
        home: Option<PathBuf>,
    ) -> Arc<Cell> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.whole.strong_count() > 0);
        let is_it = |known: &NarrowedCell| {
            std::ptr::eq(known.whole.as_ptr(), Arc::as_ptr(whole)) && known.narrowing == *narrowing
        };
        let found = all.iter().position(is_it).map(|at| all.remove(at));
        let found = found.unwrap_or_else(|| NarrowedCell {
            whole: Arc::downgrade(whole),
            narrowing: Arc::clone(narrowing),
            cell: Arc::new(whole.beside(home)),
        });
        let cell = Arc::clone(&found.cell);
        all.push(found);
        let is_idle = |known: &NarrowedCell| Arc::strong_count(&known.cell) == 1;
        let mut surplus = all.iter().filter(|known| is_idle(known)).count().saturating_sub(IDLE);
        all.retain(|known| {
            let goes = surplus > 0 && is_idle(known);
            surplus -= usize::from(goes);
            !goes
        });
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Profile;
    use crate::sandbox::tests::{Place, config, launcher};

    fn narrowing(mode: &str) -> Arc<Narrowing> {
        Arc::new(Narrowing { mode: mode.to_owned(), ..Narrowing::most_restrictive() })
    }

    #[test]
    fn calls_under_the_same_word_share_one_and_idle_ones_are_few() {
        let place = Place::new();
        let whole =
            Cell::of(&place.session, &config(&place.dir, Profile::Default), &launcher()).unwrap();
        let cells = NarrowedCells::default();
        let busy = cells.get(&whole, &narrowing("busy"), None);
        assert!(
            Arc::ptr_eq(&busy, &cells.get(&whole, &narrowing("busy"), None))
                && !Arc::ptr_eq(&busy, &whole)
        );
        let first = Arc::downgrade(&cells.get(&whole, &narrowing("first"), None));
        for number in 0..IDLE {
            assert!(first.upgrade().is_some(), "{number}");
            cells.get(&whole, &narrowing(&number.to_string()), None);
        }
        cells.get(&whole, &narrowing("one more"), None);
        assert!(first.upgrade().is_none());
        assert!(Arc::ptr_eq(&busy, &cells.get(&whole, &narrowing("busy"), None)), "a run has it");
    }
}
