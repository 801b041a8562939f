//! Hot reload. Every request first checks whether a configuration file has changed (a few `stat`
//! calls), and if so rebuilds the whole state before it continues; the watcher (see
//! [`super::watch`]) only triggers the same check. A call keeps the state it started with: a
//! [`PipelineState`] never changes.

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
use crate::config::{AuthKey, Config, ConfigSource, FileStamps};

/// Keys that are fixed while a server runs: sockets, directories and sandboxes have been created
/// from them.
const FIXED_KEYS: &[&str] = &[
    "root",
    "workspace",
    "shared_workspace",
    "http.",
    "auth.",
    "approval.terminal",
    "sandbox.",
    "policy.",
    "log.",
    "limits.message_mb",
    "limits.audit_rotate_mb",
];

/// Secrets that could not be read are tried again with a call, but at most this often.
const SECRET_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Source of the config for reloads, and the outcome of the last one.
pub struct ConfigReloader {
    source: Arc<ConfigSource>,
    initial_config: Arc<Config>,
    /// The configuration files as they were before the current state was read.
    file_stamps: Mutex<FileStamps>,
    /// Held during a reload, so that concurrent calls share one.
    reload_lock: tokio::sync::Mutex<()>,
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
    pub fn new(made: ConfigSource, seen: FileStamps, first: Arc<Config>) -> ConfigReloader {
        let made = Arc::new(made);
        ConfigReloader {
            source: made,
            initial_config: first,
            file_stamps: Mutex::new(seen),
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

    fn due_reason(&self, now: &PipelineState) -> Option<ReloadReason> {
        if self.is_requested.load(Ordering::Acquire)
            || self.file_stamps.lock().ignore_poison().have_changed()
        {
            return Some(ReloadReason::Changed);
        }
        let tried = *self.last_secret_retry.lock().ignore_poison();
        let is_time = tried.is_none_or(|tried| tried.elapsed() >= SECRET_RETRY_INTERVAL);
        (now.config.secrets.has_unreadable() && is_time).then_some(ReloadReason::SecretsMissing)
    }

    fn set_file_stamps(&self, prints: FileStamps) {
        *self.file_stamps.lock().ignore_poison() = prints;
    }

    fn status(&self) -> ReloadStatus {
        self.status.read().ignore_poison().clone()
    }

    fn set_status(&self, found: ReloadStatus) {
        *self.status.write().ignore_poison() = found;
    }
}

impl Pipeline {
    /// Rebuilds the state if a configuration file has changed. The state read afterwards includes
    /// every edit that completed before the call.
    pub async fn reload_if_changed(&self) {
        let Some(reload) = &self.reloader else { return };
        if reload.due_reason(&self.state()).is_none() {
            return;
        }
        let begun = reload.started_count.load(Ordering::Acquire);
        let _turn = reload.reload_lock.lock().await;
        // A reload that has started since has seen the same files. Without this check, constant
        // edits would make callers wait for one reload after the other.
        if reload.started_count.load(Ordering::Acquire) > begun {
            return;
        }
        let now = self.state();
        let Some(why) = reload.due_reason(&now) else { return };
        reload.started_count.fetch_add(1, Ordering::AcqRel);
        reload.is_requested.store(false, Ordering::Release);
        *reload.last_secret_retry.lock().ignore_poison() = Some(Instant::now());
        let work = tokio::task::spawn_blocking({
            let (made, first, now, seen) = (
                Arc::clone(&reload.source),
                Arc::clone(&reload.initial_config),
                Arc::clone(&now),
                reload.file_stamps(),
            );
            move || rebuild_state(&made, &first, &now, &seen)
        });
        match work.await {
            Ok((Ok((state, _)), prints))
                if why == ReloadReason::SecretsMissing && state.config.secrets.has_unreadable() =>
            {
                reload.set_file_stamps(prints);
            }
            Ok((Ok((state, restart_needed)), prints)) => {
                self.install_state(reload, &now, state, restart_needed);
                reload.set_file_stamps(prints);
            }
            Ok((Err(error), prints)) => {
                self.keep_last_good(reload, &now, &error);
                reload.set_file_stamps(prints);
            }
            // Only a panic gets here. The file stamps stay as they were, so that the next request
            // tries again.
            Err(error) => tracing::error!("cannot reload the config: {error}"),
        }
    }

    /// Reloads even if nothing has changed.
    pub async fn reload_now(&self) {
        if let Some(reload) = &self.reloader {
            reload.is_requested.store(true, Ordering::Release);
        }
        self.reload_if_changed().await;
    }

    fn install_state(
        &self,
        reload: &ConfigReloader,
        now: &PipelineState,
        state: PipelineState,
        restart_needed: Vec<&'static str>,
    ) {
        let generation = state.config.generation;
        let (before, after) = (tool_definitions(now), tool_definitions(&state));
        let only =
            |one: &BTreeMap<String, String>, other: &BTreeMap<String, String>| -> Vec<String> {
                one.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
            };
        let (added, removed) = (only(&after, &before), only(&before, &after));
        let is_other =
            |(name, made): &(&String, &String)| before.get(*name).is_some_and(|was| was != *made);
        let changed: Vec<String> =
            after.iter().filter(is_other).map(|(name, _)| name.clone()).collect();
        tracing::info!(
            generation,
            added = added.join(", "),
            removed = removed.join(", "),
            changed = changed.join(", "),
            "config reloaded"
        );
        state.log_failed_commands();
        if !restart_needed.is_empty() && restart_needed != reload.status().restart_needed {
            tracing::warn!("these keys take effect after a restart: {}", restart_needed.join(", "));
        }
        let dropped = json!(failed_command_names(&state));
        let differs = list_contents(now) != list_contents(&state);
        *self.state.write().ignore_poison() = Arc::new(state);
        self.record_reload(json!({
            "outcome": "ok", "generation": generation, "added": added, "removed": removed, "changed": changed,
            "dropped": dropped, "restart_needed": restart_needed,
        }));
        reload.set_status(ReloadStatus { fault: None, restart_needed });
        if differs {
            self.list_changes.announce_change(ChangedList::Tools);
        }
    }

    fn keep_last_good(&self, reload: &ConfigReloader, now: &PipelineState, error: &Error) {
        let generation = now.config.generation;
        tracing::error!(
            generation,
            "the config is broken; keeping the last valid one: {}",
            error.log_line()
        );
        self.record_reload(
            json!({"outcome": "broken", "generation": generation, "dropped": failed_command_names(now)}),
        );
        reload.set_status(ReloadStatus { fault: Some(describe_error(error)), ..reload.status() });
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
        let found = self.reloader.as_ref().map(ConfigReloader::status).unwrap_or_default();
        let row = |tool: Option<&str>, line: usize, message: &str| json!({"tool": tool, "line": line, "message": strip_paths(message)});
        let written = state.config.command_errors.iter();
        let made = state.registry.failed_commands.iter();
        let dropped: Vec<Value> = written
            .map(|fault| row(fault.tool.as_deref(), fault.line, &fault.message))
            .chain(made.map(|(entry, error)| row(Some(&entry.name), entry.line, error.message())))
            // A denied tool must look like a missing one, broken or not.
            .filter(|row| {
                row["tool"].as_str().is_none_or(|name| state.config.surface.allows_tool(name))
            })
            .collect();
        let mut about = json!({
            "generation": state.config.generation,
            "state": if found.fault.is_some() { "broken" } else { "ok" },
            "dropped": dropped,
            "restart_needed": found.restart_needed,
        });
        if let Some(fault) = found.fault {
            about["fault"] = fault;
        }
        about
    }
}

/// The new state, and the keys that need a restart.
type ReloadResult = Result<(PipelineState, Vec<&'static str>)>;

/// Does everything that blocks: waits until the files are stable, reads and resolves them, and
/// builds the tools.
fn rebuild_state(
    made: &ConfigSource,
    first: &Config,
    now: &PipelineState,
    seen: &FileStamps,
) -> (ReloadResult, FileStamps) {
    let (config, prints) = made.resolve_again(first, &now.config, seen);
    let state = config.and_then(|mut config| {
        let file = made.config_file();
        // Without a file the defaults apply, but an operator who removes the file hardly asks for
        // those.
        if now.config.file.is_some() && config.file.is_none() {
            return Err(config_gone_error(file.as_deref()));
        }
        crate::sandbox::profile::check_profile(&config)?;
        let restart_needed = restore_fixed_settings(&mut config, first, &now.config);
        config.generation = now.config.generation + 1;
        Ok((PipelineState::new(Arc::new(config)).succeeding(now), restart_needed))
    });
    (state, prints)
}

fn config_gone_error(file: Option<&Path>) -> Error {
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    Error::new(Kind::NotFound, format!("the config file {file} no longer exists"))
        .with_reason("config_gone")
        .with_hint("Restore it, or restart the server without it.")
}

/// Restores what cannot change while the server runs, and returns the keys that would have changed.
fn restore_fixed_settings(config: &mut Config, first: &Config, now: &Config) -> Vec<&'static str> {
    let at_start = |key: &str| {
        FIXED_KEYS.iter().any(|one| key == *one || (one.ends_with('.') && key.starts_with(one)))
    };
    let rows = |config: &Config| -> BTreeMap<&'static str, String> {
        let rows = config.settings.iter().filter(|row| at_start(row.key));
        rows.map(|row| (row.key, row.value.clone())).collect()
    };
    let (before, after) = (rows(first), rows(config));
    let all = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    // The port that was configured is not always the one that was assigned.
    let mut differ: Vec<&'static str> = all
        .filter(|key| **key != "http.listen" && before.get(*key) != after.get(*key))
        .copied()
        .collect();
    // Settings without a row of their own.
    for (name, same) in [
        ("policy", format!("{:?}", first.policy) == format!("{:?}", config.policy)),
        ("auth.jwt_secret_file", jwt_secret(first) == jwt_secret(config)),
        ("auth", format!("{:?}", first.auth) == format!("{:?}", config.auth)),
    ] {
        if !same && !differ.iter().any(|key| key.starts_with(name)) {
            differ.push(name);
        }
    }
    config.settings.retain(|row| !at_start(row.key));
    config.settings.extend(first.settings.iter().filter(|row| at_start(row.key)).cloned());
    config.root.clone_from(&first.root);
    config.workspace.clone_from(&first.workspace);
    config.shared_workspace = first.shared_workspace;
    config.closed_paths.clone_from(&first.closed_paths);
    config.http = first.http.clone();
    config.auth = first.auth.clone();
    config.approval.allows_terminal = first.approval.allows_terminal;
    config.sandbox = first.sandbox.clone();
    config.policy = first.policy.clone();
    config.limits.message_bytes = first.limits.message_bytes;
    config.limits.audit_rotate_bytes = first.limits.audit_rotate_bytes;
    config.log = first.log.clone();
    // Files that were private may still be in use, and a replaced secret is still a secret.
    config.private_paths.extend(first.private_paths.iter().chain(&now.private_paths).cloned());
    config.private_paths.sort();
    config.private_paths.dedup();
    differ
}

fn jwt_secret(config: &Config) -> Option<&[u8]> {
    match &config.auth.as_ref()?.key {
        AuthKey::Secret(secret) => Some(secret.expose()),
        AuthKey::PublicPem(_) => None,
    }
}

/// Returns what is published about each tool, and what a call of it would do.
pub(super) fn tool_definitions(state: &PipelineState) -> BTreeMap<String, String> {
    let tools = state.registry.listed_tools().iter();
    tools
        .map(|tool| {
            (tool.spec().name.clone(), format!("{} {:?}", tool.definition_hash(), tool.spec()))
        })
        .collect()
}

/// Returns what lists show, in order.
fn list_contents(state: &PipelineState) -> Vec<String> {
    let config = &state.config;
    let workspace = config.workspace.as_deref();
    let shown = state.registry.visible_tools(workspace);
    let tools = shown.map(|(tool, _)| {
        format!("{} {:?} {}", tool.definition_hash(), tool.spec(), needs_approval(config, &**tool))
    });
    let names = config.tool_names.name().to_owned();
    // If each principal has its own workspace, the permitted directories decide what each of them
    // sees.
    let places = match workspace {
        Some(_) => String::new(),
        None => format!("{:?} {:?}", config.surface.command_dirs, config.surface.argument_dirs),
    };
    tools.chain([names, places]).collect()
}

/// Returns the names of the operator commands that were not loaded.
fn failed_command_names(state: &PipelineState) -> BTreeSet<&str> {
    let written = state.config.command_errors.iter().filter_map(|fault| fault.tool.as_deref());
    written
        .chain(state.registry.failed_commands.iter().map(|(entry, _)| entry.name.as_str()))
        .collect()
}

/// Describes an error as a client may see it.
fn describe_error(error: &Error) -> Value {
    let Some(message) = error.get_fact("fault").and_then(Value::as_str) else {
        let why = error.reason_name().unwrap_or_else(|| error.kind().name());
        return json!({"message": format!("the config was refused ({why}); see the server's log")});
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
    let ends = |c: char| c.is_whitespace() || "`'\"()[]{},;=".contains(c);
    text.split_inclusive(ends)
        .map(|word| {
            let bare = word.trim_end_matches(ends);
            let is_path = bare.len() > 1 && (bare.starts_with('/') || bare.starts_with("~/"));
            if is_path { word.replacen(bare, "…", 1) } else { word.to_owned() }
        })
        .collect()
}

#[cfg(test)]
mod tests;
