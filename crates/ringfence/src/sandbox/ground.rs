//! A fence of a tool's own, for one that may touch something else than its session's commands may.
//!
//! It shares nothing with them: its namespaces, its network, its /tmp and its HOME are its own, so that what a session's
//! commands leave behind is not what it works with, least of all with a secret in its hands.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::cell::Cell;
use super::env::merge;
use super::launch::Launcher;
use super::profile;
use crate::base::Result;
use crate::base::secret::Secret;
use crate::base::workspace::Workspace;
use crate::config::secrets::Ref;
use crate::config::{Config, Effect, Entry, Escalate, Profile, Sandbox};
use crate::session::Session;

pub struct Ground {
    /// The tool.
    name: String,
    /// And which definition of it: another one is not let in here.
    definition: String,
    /// The operator's word, as far as this tool goes.
    pub config: Arc<Config>,
    read_only: bool,
    /// Variables that are its own to set.
    variables: Vec<String>,
    /// What its command is given.
    refs: Vec<Ref>,
}

/// What a session keeps of each tool with a ground of its own.
#[derive(Default)]
struct Grounds(Mutex<HashMap<String, Kept>>);

struct Kept {
    definition: String,
    workspace: Arc<Workspace>,
    cell: Option<Arc<Cell>>,
}

impl Ground {
    /// What an entry does not declare is not in it.
    pub fn of_entry(config: &Config, entry: &Entry, definition: &str) -> Result<Ground> {
        let writes = entry.declares(Effect::FilesystemWrite);
        let everybodys = &config.sandbox;
        let sandbox = Sandbox {
            profile: entry.profile_beside(everybodys.profile),
            allow_network: entry.allow_network,
            allow_domains: entry.allow_domains.clone(),
            allow_addresses: entry.allow_addresses.clone(),
            deny_domains: if entry.allow_network { Vec::new() } else { everybodys.deny_domains.clone() },
            writable: if writes { everybodys.writable.clone() } else { Vec::new() },
            ..everybodys.clone()
        };
        let mut config = Config { sandbox, settings: Vec::new(), ..config.clone() };
        // What it declares is all it gets: no rule lets a part of it out.
        config.policy.escalate = Escalate::Off;
        profile::check(&config)?;
        Ok(Ground {
            name: entry.name.clone(),
            definition: definition.to_owned(),
            config: Arc::new(config),
            read_only: !writes,
            refs: entry.refs().cloned().collect(),
            variables: entry.env.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    /// Lets go of what a session keeps for tools that are not there any more. A run that is still going keeps its own
    /// until it ends.
    pub fn tidy(session: &Session, is_there: impl Fn(&str, &str) -> bool) -> Result<()> {
        let grounds = session.keep(|| Ok(Grounds::default()))?;
        let mut grounds = grounds.0.lock().unwrap_or_else(PoisonError::into_inner);
        grounds.retain(|name, kept| is_there(name, &kept.definition));
        Ok(())
    }

    /// Those of its values that cannot be searched for in what it says.
    pub fn short_secrets(&self) -> Vec<(String, Secret)> {
        self.config.secrets.short(&self.refs)
    }

    /// The session's workspace, held to what this tool may touch.
    pub fn workspace(&self, session: &Session) -> Result<Arc<Workspace>> {
        self.with(session, |kept| Ok(Arc::clone(&kept.workspace)))
    }

    /// This environment as a run of it gets it.
    pub fn environment(&self, session: &Session, env: Vec<(String, String)>) -> Result<Vec<(String, String)>> {
        if self.config.sandbox.profile == Profile::None {
            return Ok(env);
        }
        let workspace = self.workspace(session)?;
        let mut more = profile::environment(&self.config, workspace.rights());
        more.retain(|(name, _)| !self.variables.contains(name));
        Ok(merge(env, more))
    }

    /// Made with its first run.
    pub fn cell(&self, session: &Session, launcher: &Launcher) -> Result<Arc<Cell>> {
        self.with(session, |kept| {
            if let Some(cell) = &kept.cell {
                return Ok(Arc::clone(cell));
            }
            let mut cell = Cell::with(kept.workspace.rights().clone(), &self.config, launcher.clone())?;
            cell.env.retain(|(name, _)| !self.variables.contains(name));
            Ok(Arc::clone(kept.cell.insert(Arc::new(cell))))
        })
    }

    fn with<T>(&self, session: &Session, work: impl FnOnce(&mut Kept) -> Result<T>) -> Result<T> {
        let grounds = session.keep(|| Ok(Grounds::default()))?;
        let mut grounds = grounds.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was made for another definition goes when its last run does.
        let fits = |kept: &&mut Kept| {
            kept.definition == self.definition && profile::hides(kept.workspace.rights(), &self.config)
        };
        if let Some(kept) = grounds.get_mut(&self.name).filter(fits) {
            return work(kept);
        }
        let path = session.workspace.path();
        // What another definition, or another caller, has left there could be anything.
        let owner = [self.name.as_str(), &self.definition, &session.principal.directory()];
        let mut rights = profile::rights_apart(&self.config, path, &owner)?;
        rights.read_only = self.read_only;
        let workspace = Arc::new(session.workspace.guarded(|held| *held = rights));
        let mut kept = Kept { definition: self.definition.clone(), workspace, cell: None };
        let result = work(&mut kept);
        grounds.insert(self.name.clone(), kept);
        result
    }
}
