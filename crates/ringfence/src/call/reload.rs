//! Hot reload. Every request first checks whether a configuration file has changed (a few `stat`
//! calls), and if so rebuilds the whole state before it continues; the watcher (see
//! [`watch`]) only triggers the same check. A call keeps the state it started with: a
//! [`PipelineState`] never changes.

mod fixed_settings;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Pipeline, PipelineState, needs_approval};
use crate::base::IgnorePoison;
use crate::base::list_changes::ChangedList;
use crate::base::{Error, Kind, Result};
use crate::config::{Config, ConfigSource, FileStamps};
use crate::sandbox::{SandboxConfig, profile};
use crate::tools::DynTool;
use crate::upstream::UpstreamPool;
use fixed_settings::restore_fixed_settings;

/// Secrets that could not be read are tried again with a call, but at most this often.
const SECRET_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Source of the config for reloads, and the outcome of the last one.
pub struct ConfigReloader {
    source: Arc<ConfigSource>,
    initial_config: Arc<Config>,
    /// The configuration files as they were before the current state was read.
    file_stamps: Mutex<FileStamps>,
    /// Held during a reload, so that concurrent calls share one.
    pub(super) reload_lock: tokio::sync::Mutex<()>,
    /// Number of reloads that have started.
    started_count: AtomicU64,
    /// A reload is wanted even if no file has changed.
    is_requested: AtomicBool,
    /// Time of the last attempt to read missing secrets.
    last_secret_retry: Mutex<Option<Instant>>,
    status: RwLock<ReloadStatus>,
}

/// Reason for a reload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReloadReason {
    Changed,
    /// Secrets were missing; a keyring may have been unlocked by now.
    SecretsMissing,
}

/// Status of the operator's files, other than their content.
#[derive(Clone, Default)]
pub struct ReloadStatus {
    /// Why the newest version of the files is not in effect.
    pub fault: Option<Value>,
    /// Keys whose new values need a restart.
    pub restart_needed: Vec<&'static str>,
}

impl ConfigReloader {
    /// Creates the reloader for a config that was just read.
    pub fn new(
        source: ConfigSource,
        stamps: FileStamps,
        initial_config: Arc<Config>,
    ) -> ConfigReloader {
        let source = Arc::new(source);
        ConfigReloader {
            source,
            initial_config,
            file_stamps: Mutex::new(stamps),
            reload_lock: tokio::sync::Mutex::default(),
            started_count: AtomicU64::new(0),
            is_requested: AtomicBool::new(false),
            last_secret_retry: Mutex::default(),
            status: RwLock::default(),
        }
    }

    pub(super) fn file_stamps(&self) -> FileStamps {
        self.file_stamps.lock().ignore_poison().clone()
    }

    fn due_reason(&self, state: &PipelineState) -> Option<ReloadReason> {
        if self.is_requested.load(Ordering::Acquire)
            || self.file_stamps.lock().ignore_poison().have_changed()
        {
            return Some(ReloadReason::Changed);
        }
        let last_retry = *self.last_secret_retry.lock().ignore_poison();
        let is_retry_due =
            last_retry.is_none_or(|last_retry| last_retry.elapsed() >= SECRET_RETRY_INTERVAL);
        (state.config.secrets.has_unreadable() && is_retry_due)
            .then_some(ReloadReason::SecretsMissing)
    }

    fn set_file_stamps(&self, stamps: FileStamps) {
        *self.file_stamps.lock().ignore_poison() = stamps;
    }

    fn status(&self) -> ReloadStatus {
        self.status.read().ignore_poison().clone()
    }

    fn set_status(&self, status: ReloadStatus) {
        *self.status.write().ignore_poison() = status;
    }
}

impl Pipeline {
    /// Rebuilds the state if a configuration file has changed. The state read afterwards includes
    /// every edit that completed before the call.
    pub async fn reload_if_changed(&self) {
        let Some(reloader) = &self.reloader else { return };
        if reloader.due_reason(&self.state()).is_none() {
            return;
        }
        let started_before = reloader.started_count.load(Ordering::Acquire);
        let _reload_guard = reloader.reload_lock.lock().await;
        // A reload that has started since has seen the same files. Without this check, constant
        // edits would make callers wait for one reload after the other.
        if reloader.started_count.load(Ordering::Acquire) > started_before {
            return;
        }
        let current = self.state();
        let Some(reason) = reloader.due_reason(&current) else { return };
        reloader.started_count.fetch_add(1, Ordering::AcqRel);
        reloader.is_requested.store(false, Ordering::Release);
        *reloader.last_secret_retry.lock().ignore_poison() = Some(Instant::now());
        let work = tokio::task::spawn_blocking({
            let (source, initial_config, current, old_stamps) = (
                Arc::clone(&reloader.source),
                Arc::clone(&reloader.initial_config),
                Arc::clone(&current),
                reloader.file_stamps(),
            );
            let upstreams = Arc::clone(&self.upstreams);
            move || rebuild_state(&source, &initial_config, &current, &old_stamps, &upstreams)
        });
        match work.await {
            Ok((Ok((state, _)), new_stamps))
                if reason == ReloadReason::SecretsMissing
                    && state.config.secrets.has_unreadable() =>
            {
                reloader.set_file_stamps(new_stamps);
            }
            Ok((Ok((state, restart_needed)), new_stamps)) => {
                self.install_state(reloader, &current, state, restart_needed);
                reloader.set_file_stamps(new_stamps);
            }
            Ok((Err(error), new_stamps)) => {
                self.keep_last_good(reloader, &current, &error);
                reloader.set_file_stamps(new_stamps);
            }
            // Only a panic gets here. The file stamps stay as they were, so that the next request
            // tries again.
            Err(error) => tracing::error!("cannot reload the config: {error}"),
        }
    }

    /// Reloads even if nothing has changed.
    pub async fn reload_now(&self) {
        if let Some(reloader) = &self.reloader {
            reloader.is_requested.store(true, Ordering::Release);
        }
        self.reload_if_changed().await;
    }

    fn install_state(
        &self,
        reloader: &ConfigReloader,
        current: &PipelineState,
        state: PipelineState,
        restart_needed: Vec<&'static str>,
    ) {
        let generation = state.config.generation;
        let (before, after) = (tool_definitions(current), tool_definitions(&state));
        let names_only_in =
            |one: &BTreeMap<String, String>, other: &BTreeMap<String, String>| -> Vec<String> {
                one.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
            };
        let (added, removed) = (names_only_in(&after, &before), names_only_in(&before, &after));
        let is_changed = |(name, definition): &(&String, &String)| {
            before.get(*name).is_some_and(|old_definition| old_definition != *definition)
        };
        let changed: Vec<String> =
            after.iter().filter(is_changed).map(|(name, _)| name.clone()).collect();
        tracing::info!(
            generation,
            added = added.join(", "),
            removed = removed.join(", "),
            changed = changed.join(", "),
            "config reloaded"
        );
        state.log_failed_commands();
        if !restart_needed.is_empty() && restart_needed != reloader.status().restart_needed {
            tracing::warn!("these keys take effect after a restart: {}", restart_needed.join(", "));
        }
        let dropped = json!(failed_command_names(&state));
        let lists_differ = self.replace_state(current, state);
        self.record_reload(json!({
            "outcome": "ok", "generation": generation, "added": added, "removed": removed, "changed": changed,
            "dropped": dropped, "restart_needed": restart_needed,
        }));
        reloader.set_status(ReloadStatus { fault: None, restart_needed });
        if lists_differ {
            self.list_changes.announce_change(ChangedList::Tools);
        }
    }

    /// Replaces the state. Returns whether lists differ from then on.
    pub(super) fn replace_state(&self, current: &PipelineState, state: PipelineState) -> bool {
        let lists_differ = list_contents(current) != list_contents(&state);
        let tools = &state.registry.upstreams;
        self.upstreams.release_outdated(|id, definition| tools.is_current(id, definition));
        *self.state.write().ignore_poison() = Arc::new(state);
        self.state_changed.notify_one();
        lists_differ
    }

    fn keep_last_good(&self, reloader: &ConfigReloader, current: &PipelineState, error: &Error) {
        let generation = current.config.generation;
        tracing::error!(
            generation,
            "the config is broken; keeping the last valid one: {}",
            error.log_line()
        );
        self.record_reload(
            json!({"outcome": "broken", "generation": generation, "dropped": failed_command_names(current)}),
        );
        reloader
            .set_status(ReloadStatus { fault: Some(describe_error(error)), ..reloader.status() });
    }

    /// Writes an audit event. A reload is not refused when it cannot be recorded; a call will be.
    fn record_reload(&self, fields: Value) {
        if let Err(error) = self.audit.write_event("config.reload", fields) {
            tracing::error!("{}", error.log_line());
        }
    }

    /// Returns the state of the operator's files as a client may see it: files by name, and no
    /// paths of the host.
    pub fn describe_config(&self, state: &PipelineState) -> Value {
        let status = self.reloader.as_ref().map(ConfigReloader::status).unwrap_or_default();
        let row = |tool: Option<&str>, line: usize, message: &str| json!({"tool": tool, "line": line, "message": strip_paths(message)});
        let command_errors = state.config.command_errors.iter();
        let failed_commands = state.registry.failed_commands.iter();
        let dropped: Vec<Value> = command_errors
            .map(|fault| row(fault.tool.as_deref(), fault.line, &fault.message))
            .chain(
                failed_commands
                    .map(|(entry, error)| row(Some(&entry.name), entry.line, error.message())),
            )
            // A denied tool must look like a missing one, broken or not.
            .filter(|row| {
                row["tool"].as_str().is_none_or(|name| state.config.surface.allows_tool(name))
            })
            .collect();
        let mut description = json!({
            "generation": state.config.generation,
            "state": if status.fault.is_some() { "broken" } else { "ok" },
            "dropped": dropped,
            "restart_needed": status.restart_needed,
        });
        if let Some(fault) = status.fault {
            description["fault"] = fault;
        }
        description
    }
}

/// The new state, and the keys that need a restart.
type ReloadResult = Result<(PipelineState, Vec<&'static str>)>;

/// Does everything that blocks: waits until the files are stable, reads and resolves them, and
/// builds the tools.
fn rebuild_state(
    source: &ConfigSource,
    initial_config: &Config,
    current: &PipelineState,
    old_stamps: &FileStamps,
    upstreams: &Arc<UpstreamPool>,
) -> (ReloadResult, FileStamps) {
    let (config, new_stamps) = source.resolve_again(initial_config, &current.config, old_stamps);
    let state = config.and_then(|mut config| {
        let file = source.config_file();
        // Without a file the defaults apply, but an operator who removes the file hardly asks for
        // those.
        if current.config.file.is_some() && config.file.is_none() {
            return Err(config_gone_error(file.as_deref()));
        }
        profile::check_profile(&SandboxConfig::from_config(&config))?;
        let restart_needed = restore_fixed_settings(&mut config, initial_config, &current.config);
        config.generation = current.config.generation + 1;
        let state = PipelineState::new(Arc::new(config), upstreams).succeeding(current);
        Ok((state, restart_needed))
    });
    (state, new_stamps)
}

fn config_gone_error(file: Option<&Path>) -> Error {
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    Error::new(Kind::NotFound, format!("the config file {file} no longer exists"))
        .with_reason("config_gone")
        .with_hint("Restore it, or restart the server without it.")
}

/// Returns what is published about each tool, and what a call of it would do.
pub(super) fn tool_definitions(state: &PipelineState) -> BTreeMap<String, String> {
    let tools = state.registry.listed_tools().iter().map(|tool| &**tool as &dyn DynTool);
    let searchable = state.registry.upstreams.searchable.iter();
    tools
        .chain(searchable.map(|tool| &**tool as &dyn DynTool))
        .map(|tool| {
            (tool.spec().name.clone(), format!("{} {:?}", tool.definition_hash(), tool.spec()))
        })
        .collect()
}

/// Returns what lists show, in order.
fn list_contents(state: &PipelineState) -> Vec<String> {
    let config = &state.config;
    let workspace = config.workspace.as_deref();
    let visible_tools = state.registry.visible_tools(workspace);
    let tools = visible_tools.map(|tool| {
        format!("{} {:?} {}", tool.definition_hash(), tool.spec(), needs_approval(config, &**tool))
    });
    let names = config.tool_names.name().to_owned();
    // If each principal has its own workspace, the permitted directories decide what each of them
    // sees.
    let surface_dirs = match workspace {
        Some(_) => String::new(),
        None => format!("{:?} {:?}", config.surface.command_dirs, config.surface.argument_dirs),
    };
    tools.chain([names, surface_dirs]).collect()
}

/// Returns the names of the operator commands that were not loaded.
fn failed_command_names(state: &PipelineState) -> BTreeSet<&str> {
    let invalid_entries =
        state.config.command_errors.iter().filter_map(|error| error.tool.as_deref());
    invalid_entries
        .chain(state.registry.failed_commands.iter().map(|(entry, _)| entry.name.as_str()))
        .collect()
}

/// Describes an error as a client may see it.
fn describe_error(error: &Error) -> Value {
    let Some(message) = error.get_fact("fault").and_then(Value::as_str) else {
        let reason = error.reason_name().unwrap_or_else(|| error.kind().name());
        return json!({"message": format!("the config was refused ({reason}); see the server's log")});
    };
    let name =
        error.get_fact("file").and_then(Value::as_str).map(Path::new).and_then(Path::file_name);
    json!({
        "file": name.map(|name| name.to_string_lossy()),
        "line": error.get_fact("line"),
        "column": error.get_fact("column"),
        "message": strip_paths(message),
    })
}

/// Replaces every path of this host in a text with `…`.
fn strip_paths(text: &str) -> String {
    let is_boundary = |c: char| c.is_whitespace() || "`'\"()[]{},;=".contains(c);
    text.split_inclusive(is_boundary)
        .map(|word| {
            let bare = word.trim_end_matches(is_boundary);
            let is_path = bare.len() > 1 && (bare.starts_with('/') || bare.starts_with("~/"));
            if is_path { word.replacen(bare, "…", 1) } else { word.to_owned() }
        })
        .collect()
}

#[cfg(test)]
mod tests;
