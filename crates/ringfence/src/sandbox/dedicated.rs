//! Dedicated sandbox of a tool, for one that may touch other things than its session's commands
//! may.
//!
//! It shares nothing with them: its namespaces, its network, its /tmp and its HOME are its own, so
//! that it never works with what a session's commands leave behind, least of all while it holds a
//! secret.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::config::SandboxConfig;
use super::env::merge_env;
use super::launcher::Launcher;
use super::profile;
use super::session_sandbox::SessionSandbox;
use crate::base::IgnorePoison;
use crate::base::Result;
use crate::base::workspace::Workspace;
use crate::config::secrets::{SecretRef, SecretValues};
use crate::config::{
    DeclaredAccess, EscalationMode, FlagEntryCounts, ProfileSetting, SandboxSettings, SideEffect,
};
use crate::redact::secret::Secret;
use crate::session::Session;

/// Hash of a tool's definition. Computed when it is first needed, because few of many tools are
/// called. Clones share it.
#[derive(Clone)]
pub struct LazyDefinition(Arc<LazyLock<String, DefinitionBuilder>>);

type DefinitionBuilder = Box<dyn FnOnce() -> String + Send + Sync>;

impl LazyDefinition {
    /// Creates the hash that `compute` returns.
    pub fn new(compute: impl FnOnce() -> String + Send + Sync + 'static) -> LazyDefinition {
        LazyDefinition(Arc::new(LazyLock::new(Box::new(compute))))
    }
}

impl From<&str> for LazyDefinition {
    fn from(definition: &str) -> LazyDefinition {
        let definition = definition.to_owned();
        LazyDefinition::new(|| definition)
    }
}

impl Deref for LazyDefinition {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Dedicated sandbox of a tool that the operator configured.
pub struct DedicatedSandbox {
    /// Name of the tool.
    tool_name: String,
    config_table: String,
    /// Definition of the tool: another one may not use this sandbox.
    definition: LazyDefinition,
    /// Its settings: only what its entry declares.
    pub sandbox_config: Arc<SandboxConfig>,
    secrets: Arc<SecretValues>,
    read_only: bool,
    idle_timeout: Duration,
    /// Variables that its entry sets.
    own_variables: Vec<String>,
    /// Secrets that its command gets.
    secret_refs: Vec<SecretRef>,
    /// Directories that it may read although they are hidden.
    readable: Vec<PathBuf>,
}

/// What a dedicated sandbox is made from.
pub struct DedicatedSpec<'a> {
    /// Name of the tool or server, unique among those with a dedicated sandbox.
    pub name: &'a str,
    /// The config table that declares its access, such as `[mcp.lint]` or `[upstream.git]`.
    pub config_table: String,
    /// Definition of the tool or server: another one may not use this sandbox.
    pub definition: LazyDefinition,
    /// Its access.
    pub access: &'a DeclaredAccess,
    /// Secrets that its program gets.
    pub secret_refs: Vec<SecretRef>,
    /// Variables that its entry sets.
    pub own_variables: Vec<String>,
    /// Directories that it may read although they are hidden, such as the one that its program is
    /// installed in. They must exist when its first run starts.
    pub readable: Vec<PathBuf>,
}

/// Time after which an unused sandbox is dropped, with its processes and its /tmp. The next run
/// creates another.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Sandboxes that a session keeps for tools with a dedicated one.
pub struct DedicatedSandboxes {
    session: Arc<Session>,
    cache: Mutex<HashMap<String, CachedSandbox>>,
}

struct CachedSandbox {
    definition: String,
    workspace: Arc<Workspace>,
    sandbox: Option<Arc<SessionSandbox>>,
    /// Time of the last use.
    last_used: Instant,
}

impl DedicatedSandboxes {
    pub(super) fn new(session: Arc<Session>) -> DedicatedSandboxes {
        DedicatedSandboxes { session, cache: Mutex::default() }
    }

    fn lock_cache(&self) -> MutexGuard<'_, HashMap<String, CachedSandbox>> {
        self.cache.lock().ignore_poison()
    }

    /// Drops the sandboxes of tools that no longer exist.
    pub(super) fn release_stale(&self, is_current: impl Fn(&str, &str) -> bool) {
        self.lock_cache().retain(|name, cached| is_current(name, &cached.definition));
    }

    /// Drops the sandbox of this tool once it is idle.
    async fn release_when_idle(
        sandboxes: Weak<DedicatedSandboxes>,
        name: String,
        sandbox: Weak<SessionSandbox>,
        idle_timeout: Duration,
    ) {
        loop {
            tokio::time::sleep(idle_timeout).await;
            let (Some(sandboxes), Some(watched_sandbox)) = (sandboxes.upgrade(), sandbox.upgrade())
            else {
                return;
            };
            let mut sandboxes = sandboxes.lock_cache();
            let Some(cached) = sandboxes.get_mut(&name) else { return };
            if !cached
                .sandbox
                .as_ref()
                .is_some_and(|sandbox| Arc::ptr_eq(sandbox, &watched_sandbox))
            {
                return;
            }
            // One of the two references is ours; a run has its own.
            if cached.last_used.elapsed() >= idle_timeout
                && Arc::strong_count(&watched_sandbox) == 2
            {
                cached.sandbox = None;
                return;
            }
        }
    }
}

impl DedicatedSandbox {
    /// Creates the sandbox. It contains only what the entry declares.
    pub fn new(
        default_config: &SandboxConfig,
        secrets: &Arc<SecretValues>,
        spec: DedicatedSpec<'_>,
    ) -> Result<DedicatedSandbox> {
        let access = spec.access;
        let may_write = access.has_effect(SideEffect::FilesystemWrite);
        let default_settings = &default_config.settings;
        let settings = SandboxSettings {
            profile: access.effective_profile(default_settings.profile),
            allow_network: access.allow_network,
            allow_domains: access.allow_domains.clone(),
            allow_addresses: access.allow_addresses.clone(),
            flag_entries: FlagEntryCounts::default(),
            deny_domains: if access.allow_network {
                Vec::new()
            } else {
                default_settings.deny_domains.clone()
            },
            writable: if may_write { default_settings.writable.clone() } else { Vec::new() },
            ..default_settings.clone()
        };
        let sandbox_config = SandboxConfig {
            // The tool gets what it declares and no more: no rule lets a part of it leave the
            // sandbox.
            escalate: EscalationMode::Off,
            ..default_config.with_settings(settings)
        };
        profile::check_profile(&sandbox_config)?;
        Ok(DedicatedSandbox {
            tool_name: spec.name.to_owned(),
            config_table: spec.config_table,
            definition: spec.definition,
            sandbox_config: Arc::new(sandbox_config),
            secrets: Arc::clone(secrets),
            read_only: !may_write,
            idle_timeout: IDLE_TIMEOUT,
            secret_refs: spec.secret_refs,
            own_variables: spec.own_variables,
            readable: spec.readable,
        })
    }

    /// Returns the config table that declares its access, such as `[mcp.lint]`.
    pub fn config_table(&self) -> &str {
        &self.config_table
    }

    /// Returns whether its entry declares no writing, which makes the workspace read-only for it.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns those of its secrets that are too short to be searched for in its output.
    pub fn short_secrets(&self) -> Vec<(String, Secret)> {
        self.secrets.short_secrets(&self.secret_refs)
    }

    /// Returns the session's workspace, restricted to what this tool may touch.
    pub fn restricted_workspace(
        &self,
        sandboxes: &Arc<DedicatedSandboxes>,
    ) -> Result<Arc<Workspace>> {
        self.with_cached(sandboxes, |cached| Ok(Arc::clone(&cached.workspace)))
    }

    /// Returns this environment as a run of the tool gets it.
    pub fn run_environment(
        &self,
        sandboxes: &Arc<DedicatedSandboxes>,
        env: Vec<(String, String)>,
    ) -> Result<Vec<(String, String)>> {
        if self.sandbox_config.settings.profile == ProfileSetting::None {
            return Ok(env);
        }
        let workspace = self.restricted_workspace(sandboxes)?;
        let mut sandbox_env =
            profile::sandbox_environment(&self.sandbox_config, workspace.rights());
        sandbox_env.retain(|(name, _)| !self.own_variables.contains(name));
        Ok(merge_env(env, sandbox_env))
    }

    /// Returns the sandbox, which is created with its first run.
    pub fn get_sandbox(
        &self,
        sandboxes: &Arc<DedicatedSandboxes>,
        launcher: &Launcher,
    ) -> Result<Arc<SessionSandbox>> {
        self.with_cached(sandboxes, |cached| {
            cached.last_used = Instant::now();
            if let Some(sandbox) = &cached.sandbox {
                return Ok(Arc::clone(sandbox));
            }
            let mut sandbox = SessionSandbox::from_rights(
                cached.workspace.rights().clone(),
                &self.sandbox_config,
                launcher.clone(),
            )?;
            sandbox.env.retain(|(name, _)| !self.own_variables.contains(name));
            let sandbox = Arc::clone(cached.sandbox.insert(Arc::new(sandbox)));
            let watch = DedicatedSandboxes::release_when_idle(
                Arc::downgrade(sandboxes),
                self.tool_name.clone(),
                Arc::downgrade(&sandbox),
                self.idle_timeout,
            );
            tokio::spawn(watch);
            Ok(sandbox)
        })
    }

    fn with_cached<T>(
        &self,
        sandboxes: &Arc<DedicatedSandboxes>,
        work: impl FnOnce(&mut CachedSandbox) -> Result<T>,
    ) -> Result<T> {
        let session = &sandboxes.session;
        let mut cache = sandboxes.lock_cache();
        // A sandbox that was made for another definition goes with its last run.
        let is_current = |cached: &&mut CachedSandbox| {
            cached.definition == *self.definition
                && profile::hides_private_paths(cached.workspace.rights(), &self.sandbox_config)
        };
        if let Some(cached) = cache.get_mut(&self.tool_name).filter(is_current) {
            return work(cached);
        }
        let path = session.workspace.path();
        // Another definition or another caller could have left anything there.
        let owner =
            [self.tool_name.as_str(), &self.definition, &session.principal.directory_name()];
        let mut rights = profile::tool_rights(&self.sandbox_config, path, &owner)?;
        rights.read_only = self.read_only;
        rights.readable.clone_from(&self.readable);
        let workspace = Arc::new(
            session.workspace.with_restrictions(|current_rights| *current_rights = rights),
        );
        let mut cached = CachedSandbox {
            definition: String::from(&*self.definition),
            workspace,
            sandbox: None,
            last_used: Instant::now(),
        };
        let result = work(&mut cached);
        cache.insert(self.tool_name.clone(), cached);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::CancelToken;
    use crate::config::scratch::Scratch;
    use crate::config::{Config, ConfigFlags, ProcessEnv, resolve_config};
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
            let flags = ConfigFlags {
                config: Some(file),
                root: Some(scratch.path().join("root")),
                ..ConfigFlags::default()
            };
            let config = resolve_config(
                &flags,
                &ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("ws")),
            )
            .unwrap();
            let workspace = Workspace::open(&scratch.dir("ws"), &[]).unwrap();
            Place { _scratch: scratch, config, workspace: Arc::new(workspace) }
        }

        fn sandboxes(&self, principal: &str) -> Arc<DedicatedSandboxes> {
            let principal = Principal::from_name(principal);
            Arc::new(DedicatedSandboxes::new(Arc::new(Session::new(
                principal,
                "http",
                Arc::clone(&self.workspace),
                &self.config.root,
                CancelToken::new(),
            ))))
        }

        fn ground(&self, definition: &str) -> DedicatedSandbox {
            let default_config = SandboxConfig::from_config(&self.config);
            let (secrets, entry) = (&self.config.secrets, &self.config.commands[0]);
            let spec = DedicatedSpec {
                name: &entry.name,
                config_table: "[mcp.a]".to_owned(),
                definition: definition.into(),
                access: &entry.access,
                secret_refs: Vec::new(),
                own_variables: Vec::new(),
                readable: Vec::new(),
            };
            DedicatedSandbox::new(&default_config, secrets, spec).unwrap()
        }
    }

    #[test]
    fn a_home_is_for_one_definition_and_one_caller() {
        let place = Place::new();
        let home = |principal: &str, definition: &str| {
            let workspace =
                place.ground(definition).restricted_workspace(&place.sandboxes(principal)).unwrap();
            workspace.rights().home.clone().unwrap()
        };
        assert_eq!(home("ann", "one"), home("ann", "one"));
        assert_ne!(home("ann", "one"), home("ben", "one"));
        assert_ne!(home("ann", "one"), home("ann", "two"));
    }

    #[tokio::test]
    async fn what_is_idle_or_not_there_any_more_goes() {
        let place = Place::new();
        let (sandboxes, mut ground) = (place.sandboxes("ann"), place.ground("one"));
        ground.idle_timeout = Duration::from_millis(1);
        let get = |ground: &DedicatedSandbox| {
            ground.get_sandbox(&sandboxes, &Launcher::from_current_exe()).unwrap()
        };
        let running = get(&ground);
        let cell = Arc::downgrade(&running);
        tokio::time::sleep(ground.idle_timeout * 50).await;
        assert!(Arc::ptr_eq(&running, &get(&ground)), "a run has it");
        drop(running);
        let gone = async {
            while cell.strong_count() > 0 {
                tokio::time::sleep(ground.idle_timeout).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap();
        let ground = place.ground("one");
        let cell = Arc::downgrade(&get(&ground));
        sandboxes.release_stale(|name, definition| (name, definition) == ("a", "one"));
        assert!(cell.upgrade().is_some());
        sandboxes.release_stale(|_, definition| definition == "two");
        assert!(cell.upgrade().is_none());
    }
}
