//! Sandboxes for calls that a client restricts to less than their session may touch.
//!
//! The runs of a session share the loopback, shared memory, /tmp and terminals. Through these, a
//! restricted call could reach a run that may do more, and that run's proxy. So it shares none of
//! them: calls under the same restriction share one sandbox, calls under another restriction have
//! another. Runs in progress stay in theirs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use super::config::SandboxConfig;
use super::profile;
use super::session_sandbox::SessionSandbox;
use crate::base::IgnorePoison;
use crate::base::Result;
use crate::base::client_sandbox::ClientSandbox;
use crate::base::workspace::Workspace;

/// Maximum number of sandboxes in which nothing runs. Beyond it the least recently used one goes,
/// with its /tmp.
const MAX_IDLE: usize = 4;

/// Restricted sandboxes of a session, the most recently used one last.
#[derive(Default)]
pub(super) struct RestrictedSandboxes(Mutex<Vec<RestrictedSandbox>>);

struct RestrictedSandbox {
    /// The unrestricted sandbox: the session's, or that of a tool that the operator configured.
    parent: Weak<SessionSandbox>,
    client_sandbox: Arc<ClientSandbox>,
    sandbox: Arc<SessionSandbox>,
}

impl RestrictedSandboxes {
    /// Returns the sandbox for a call whose workspace has these rights: `parent`, or a separate one
    /// next to it.
    pub(super) fn sandbox_for_call(
        &self,
        parent: Arc<SessionSandbox>,
        config: &SandboxConfig,
        workspace: &Workspace,
    ) -> Result<Arc<SessionSandbox>> {
        // Without namespaces runs share those of the host in any case.
        let Some(client_sandbox) =
            workspace.stricter_client_sandbox().filter(|_| parent.zygote.is_some())
        else {
            return Ok(parent);
        };
        // A run with more rights executes what it finds in the workspace or in HOME. A call that
        // may write the workspace shares HOME too, for its caches; a call that may not has another
        // HOME.
        let home = match (&parent.rights.home, workspace.rights().read_only) {
            (Some(home), true) => Some(profile::cache_home(config, home, Some(&["read-only"]))?),
            _ => None,
        };
        Ok(self.get_or_create(&parent, client_sandbox, home))
    }

    fn get_or_create(
        &self,
        parent: &Arc<SessionSandbox>,
        client_sandbox: &Arc<ClientSandbox>,
        home: Option<PathBuf>,
    ) -> Arc<SessionSandbox> {
        let mut sandboxes = self.0.lock().ignore_poison();
        sandboxes.retain(|entry| entry.parent.strong_count() > 0);
        let matches_call = |entry: &RestrictedSandbox| {
            std::ptr::eq(entry.parent.as_ptr(), Arc::as_ptr(parent))
                && entry.client_sandbox == *client_sandbox
        };
        let selected = sandboxes.iter().position(matches_call).map(|index| sandboxes.remove(index));
        let selected = selected.unwrap_or_else(|| RestrictedSandbox {
            parent: Arc::downgrade(parent),
            client_sandbox: Arc::clone(client_sandbox),
            sandbox: Arc::new(parent.clone_isolated(home)),
        });
        let sandbox = Arc::clone(&selected.sandbox);
        sandboxes.push(selected);
        let is_idle = |entry: &RestrictedSandbox| Arc::strong_count(&entry.sandbox) == 1;
        let mut surplus =
            sandboxes.iter().filter(|entry| is_idle(entry)).count().saturating_sub(MAX_IDLE);
        sandboxes.retain(|entry| {
            let is_dropped = surplus > 0 && is_idle(entry);
            surplus -= usize::from(is_dropped);
            !is_dropped
        });
        sandbox
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProfileSetting;
    use crate::sandbox::tests::{Place, launcher, sandbox_config};

    fn narrowing(mode: &str) -> Arc<ClientSandbox> {
        Arc::new(ClientSandbox { mode: mode.to_owned(), ..ClientSandbox::most_restrictive() })
    }

    #[test]
    fn calls_under_the_same_word_share_one_and_idle_ones_are_few() {
        let place = Place::new();
        let whole = place
            .sandboxes
            .own_sandbox(&sandbox_config(&place.dir, ProfileSetting::Default), &launcher())
            .unwrap();
        let cells = RestrictedSandboxes::default();
        let busy = cells.get_or_create(&whole, &narrowing("busy"), None);
        assert!(
            Arc::ptr_eq(&busy, &cells.get_or_create(&whole, &narrowing("busy"), None))
                && !Arc::ptr_eq(&busy, &whole)
        );
        let first = Arc::downgrade(&cells.get_or_create(&whole, &narrowing("first"), None));
        for number in 0..MAX_IDLE {
            assert!(first.upgrade().is_some(), "{number}");
            cells.get_or_create(&whole, &narrowing(&number.to_string()), None);
        }
        cells.get_or_create(&whole, &narrowing("one more"), None);
        assert!(first.upgrade().is_none());
        assert!(
            Arc::ptr_eq(&busy, &cells.get_or_create(&whole, &narrowing("busy"), None)),
            "a run has it"
        );
    }
}
