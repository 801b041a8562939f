//! Dedicated sandbox of a tool, for one that may touch other things than its session's commands
//! may.
//!
//! It shares nothing with them: its namespaces, its network, its /tmp and its HOME are its own, so
//! that it never works with what a session's commands leave behind, least of all while it holds a
//! secret.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::cell::Cell;
use super::env::merge;
use super::launch::Launcher;
use super::profile;
use crate::base::Result;
use crate::base::workspace::Workspace;
use crate::config::secrets::Ref;
use crate::config::{Config, Effect, Entry, Escalate, Profile, Sandbox};
use crate::redact::secret::Secret;
use crate::session::Session;

/// Dedicated sandbox of a tool that the operator configured.
pub struct Ground {
    /// Name of the tool.
    name: String,
    /// Definition of the tool: another one may not use this sandbox.
    definition: String,
    /// The operator's settings, as far as they apply to this tool.
    pub config: Arc<Config>,
    read_only: bool,
    idle: Duration,
    /// Variables that its entry sets.
    variables: Vec<String>,
    /// Secrets that its command gets.
    refs: Vec<Ref>,
}

/// Time after which an unused sandbox is dropped, with its processes and its /tmp. The next run
/// creates another.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// Sandboxes that a session keeps for tools with a dedicated one.
#[derive(Default)]
struct Grounds(Mutex<HashMap<String, Kept>>);

struct Kept {
    definition: String,
    workspace: Arc<Workspace>,
    cell: Option<Arc<Cell>>,
    /// Time of the last use.
    used: Instant,
}

impl Grounds {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the sandbox of this tool once it is idle.
    async fn watch(grounds: Weak<Grounds>, name: String, cell: Weak<Cell>, idle: Duration) {
        loop {
            tokio::time::sleep(idle).await;
            let (Some(grounds), Some(known)) = (grounds.upgrade(), cell.upgrade()) else { return };
            let mut grounds = grounds.lock();
            let Some(kept) = grounds.get_mut(&name) else { return };
            if !kept.cell.as_ref().is_some_and(|cell| Arc::ptr_eq(cell, &known)) {
                return;
            }
            // One of the two references is ours; a run has its own.
            if kept.used.elapsed() >= idle && Arc::strong_count(&known) == 2 {
                kept.cell = None;
                return;
            }
        }
    }
}

impl Ground {
    /// Builds the sandbox for a configured tool. It contains only what the entry declares.
    pub fn of_entry(config: &Config, entry: &Entry, definition: &str) -> Result<Ground> {
        let writes = entry.declares(Effect::FilesystemWrite);
        let everybodys = &config.sandbox;
        let sandbox = Sandbox {
            profile: entry.profile_beside(everybodys.profile),
            allow_network: entry.allow_network,
            allow_domains: entry.allow_domains.clone(),
            allow_addresses: entry.allow_addresses.clone(),
            deny_domains: if entry.allow_network {
                Vec::new()
            } else {
                everybodys.deny_domains.clone()
            },
            writable: if writes { everybodys.writable.clone() } else { Vec::new() },
            ..everybodys.clone()
        };
        let mut config = Config { sandbox, settings: Vec::new(), ..config.clone() };
        // The tool gets what it declares and no more: no rule lets a part of it leave the sandbox.
        config.policy.escalate = Escalate::Off;
        profile::check(&config)?;
        Ok(Ground {
            name: entry.name.clone(),
            definition: definition.to_owned(),
            config: Arc::new(config),
            read_only: !writes,
            idle: IDLE,
            refs: entry.refs().cloned().collect(),
            variables: entry.env.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    /// Drops what a session keeps for tools that no longer exist. A run in progress keeps its own
    /// until it ends.
    pub fn tidy(session: &Session, is_there: impl Fn(&str, &str) -> bool) -> Result<()> {
        let grounds = session.keep(|| Ok(Grounds::default()))?;
        grounds.lock().retain(|name, kept| is_there(name, &kept.definition));
        Ok(())
    }

    /// Returns the config table that defines the tool.
    pub fn section(&self) -> String {
        format!("[mcp.{}]", self.name)
    }

    /// Returns whether its entry declares no writing, which makes the workspace read-only for it.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns those of its secrets that are too short to be searched for in its output.
    pub fn short_secrets(&self) -> Vec<(String, Secret)> {
        self.config.secrets.short(&self.refs)
    }

    /// Returns the session's workspace, restricted to what this tool may touch.
    pub fn workspace(&self, session: &Session) -> Result<Arc<Workspace>> {
        self.with(session, |_, kept| Ok(Arc::clone(&kept.workspace)))
    }

    /// Returns this environment as a run of the tool gets it.
    pub fn environment(
        &self,
        session: &Session,
        env: Vec<(String, String)>,
    ) -> Result<Vec<(String, String)>> {
        if self.config.sandbox.profile == Profile::None {
            return Ok(env);
        }
        let workspace = self.workspace(session)?;
        let mut more = profile::environment(&self.config, workspace.rights());
        more.retain(|(name, _)| !self.variables.contains(name));
        Ok(merge(env, more))
    }

    /// Returns the sandbox, which is created with its first run.
    pub fn cell(&self, session: &Session, launcher: &Launcher) -> Result<Arc<Cell>> {
        self.with(session, |grounds, kept| {
            kept.used = Instant::now();
            if let Some(cell) = &kept.cell {
                return Ok(Arc::clone(cell));
            }
            let mut cell =
                Cell::with(kept.workspace.rights().clone(), &self.config, launcher.clone())?;
            cell.env.retain(|(name, _)| !self.variables.contains(name));
            let cell = Arc::clone(kept.cell.insert(Arc::new(cell)));
            let watch = Grounds::watch(
                Arc::downgrade(grounds),
                self.name.clone(),
                Arc::downgrade(&cell),
                self.idle,
            );
            tokio::spawn(watch);
            Ok(cell)
        })
    }

    fn with<T>(
        &self,
        session: &Session,
        work: impl FnOnce(&Arc<Grounds>, &mut Kept) -> Result<T>,
    ) -> Result<T> {
        let all = session.keep(|| Ok(Grounds::default()))?;
        let mut grounds = all.lock();
        // A sandbox that was made for another definition goes with its last run.
        let fits = |kept: &&mut Kept| {
            kept.definition == self.definition
                && profile::hides(kept.workspace.rights(), &self.config)
        };
        if let Some(kept) = grounds.get_mut(&self.name).filter(fits) {
            return work(&all, kept);
        }
        let path = session.workspace.path();
        // Another definition or another caller could have left anything there.
        let owner = [self.name.as_str(), &self.definition, &session.principal.directory()];
        let mut rights = profile::rights_apart(&self.config, path, &owner)?;
        rights.read_only = self.read_only;
        let workspace = Arc::new(session.workspace.guarded(|held| *held = rights));
        let mut kept = Kept {
            definition: self.definition.clone(),
            workspace,
            cell: None,
            used: Instant::now(),
        };
        let result = work(&all, &mut kept);
        grounds.insert(self.name.clone(), kept);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Cancel;
    use crate::config::scratch::Scratch;
    use crate::config::{Env, Flags, resolve};
    use crate::session::Principal;

    struct Place {
        _scratch: Scratch,
        config: Config,
        workspace: Arc<Workspace>,
    }

    impl Place {
        fn new() -> Place {
            let scratch = Scratch::new();
            let file = scratch.file("config/config.toml", "[mcp.a]\ncommand = \"true\"\n");
            let flags = Flags {
                config: Some(file),
                root: Some(scratch.path().join("root")),
                ..Flags::default()
            };
            let config =
                resolve(&flags, &Env::new([("HOME", "/nonexistent")], scratch.dir("ws"))).unwrap();
            let workspace = Workspace::open(&scratch.dir("ws"), &[]).unwrap();
            Place { _scratch: scratch, config, workspace: Arc::new(workspace) }
        }

        fn session(&self, principal: &str) -> Session {
            let principal = Principal::named(principal);
            Session::new(
                principal,
                "http",
                Arc::clone(&self.workspace),
                &self.config.root,
                Cancel::new(),
            )
        }

        fn ground(&self, definition: &str) -> Ground {
            Ground::of_entry(&self.config, &self.config.entries[0], definition).unwrap()
        }
    }

    /// With a copy for each entry, 10,000 entries take 800 MB.
    #[test]
    fn entries_are_shared_with_the_config() {
        let place = Place::new();
        assert!(Arc::ptr_eq(&place.ground("one").config.entries, &place.config.entries));
    }

    #[test]
    fn a_home_is_for_one_definition_and_one_caller() {
        let place = Place::new();
        let home = |principal: &str, definition: &str| {
            let workspace = place.ground(definition).workspace(&place.session(principal)).unwrap();
            workspace.rights().home.clone().unwrap()
        };
        assert_eq!(home("ann", "one"), home("ann", "one"));
        assert_ne!(home("ann", "one"), home("ben", "one"));
        assert_ne!(home("ann", "one"), home("ann", "two"));
    }

    #[tokio::test]
    async fn what_is_idle_or_not_there_any_more_goes() {
        let place = Place::new();
        let (session, mut ground) = (place.session("ann"), place.ground("one"));
        ground.idle = Duration::from_millis(1);
        let get = |ground: &Ground| ground.cell(&session, &Launcher::own()).unwrap();
        let running = get(&ground);
        let cell = Arc::downgrade(&running);
        tokio::time::sleep(ground.idle * 50).await;
        assert!(Arc::ptr_eq(&running, &get(&ground)), "a run has it");
        drop(running);
        let gone = async {
            while cell.strong_count() > 0 {
                tokio::time::sleep(ground.idle).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap();
        let ground = place.ground("one");
        let cell = Arc::downgrade(&get(&ground));
        Ground::tidy(&session, |name, definition| (name, definition) == ("a", "one")).unwrap();
        assert!(cell.upgrade().is_some());
        Ground::tidy(&session, |_, definition| definition == "two").unwrap();
        assert!(cell.upgrade().is_none());
    }
}
