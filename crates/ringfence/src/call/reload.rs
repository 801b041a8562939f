//! Hot reload. Every request first checks whether a configuration file has changed (a few `stat`
//! calls), and if so rebuilds the whole state before it continues; the watcher (see
//! [`super::watch`]) only triggers the same check. A call keeps the state it started with: a
//! [`State`] never changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Pipeline, State, asks};
use crate::base::change::Change;
use crate::base::{Error, Kind, Result};
use crate::config::{AuthKey, Config, Made, Prints};

/// Keys that are fixed while a server runs: sockets, directories and sandboxes have been created
/// from them.
const AT_START: &[&str] = &[
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
const RETRY: Duration = Duration::from_secs(1);

/// Source of the config for reloads, and the outcome of the last one.
pub struct Reload {
    made: Arc<Made>,
    first: Arc<Config>,
    /// The configuration files as they were before the current state was read.
    seen: Mutex<Prints>,
    /// Held during a reload, so that concurrent calls share one.
    turn: tokio::sync::Mutex<()>,
    /// Number of reloads that have started.
    begun: AtomicU64,
    /// A reload is wanted even if no file has changed.
    wanted: AtomicBool,
    /// Time of the last attempt to read missing secrets.
    tried: Mutex<Option<Instant>>,
    found: RwLock<Found>,
}

/// Reason for a reload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Changed,
    /// Secrets were missing; a keyring may have been unlocked by now.
    Missed,
}

/// Status of the operator's files, other than their content.
#[derive(Clone, Default)]
pub struct Found {
    /// Why the newest version of the files is not in effect.
    pub fault: Option<Value>,
    /// Keys whose new values need a restart.
    pub restart_needed: Vec<&'static str>,
}

impl Reload {
    /// Creates the reloader for a config that was just read.
    pub fn new(made: Made, seen: Prints, first: Arc<Config>) -> Reload {
        let made = Arc::new(made);
        Reload {
            made,
            first,
            seen: Mutex::new(seen),
            turn: tokio::sync::Mutex::default(),
            begun: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            tried: Mutex::default(),
            found: RwLock::default(),
        }
    }

    pub(super) fn seen(&self) -> Prints {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_due(&self, now: &State) -> Option<Why> {
        if self.wanted.load(Ordering::Acquire)
            || self.seen.lock().unwrap_or_else(PoisonError::into_inner).have_changed()
        {
            return Some(Why::Changed);
        }
        let tried = *self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = tried.is_none_or(|tried| tried.elapsed() >= RETRY);
        (now.config.secrets.are_missed() && is_time).then_some(Why::Missed)
    }

    fn set_seen(&self, prints: Prints) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = prints;
    }

    fn found(&self) -> Found {
        self.found.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_found(&self, found: Found) {
        *self.found.write().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

impl Pipeline {
    /// Rebuilds the state if a configuration file has changed. The state read afterwards includes
    /// every edit that completed before the call.
    pub async fn refresh(&self) {
        let Some(reload) = &self.reload else { return };
        if reload.is_due(&self.state()).is_none() {
            return;
        }
        let begun = reload.begun.load(Ordering::Acquire);
        let _turn = reload.turn.lock().await;
        // A reload that has started since has seen the same files. Without this check, constant
        // edits would make callers wait for one reload after the other.
        if reload.begun.load(Ordering::Acquire) > begun {
            return;
        }
        let now = self.state();
        let Some(why) = reload.is_due(&now) else { return };
        reload.begun.fetch_add(1, Ordering::AcqRel);
        reload.wanted.store(false, Ordering::Release);
        *reload.tried.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let work = tokio::task::spawn_blocking({
            let (made, first, now, seen) = (
                Arc::clone(&reload.made),
                Arc::clone(&reload.first),
                Arc::clone(&now),
                reload.seen(),
            );
            move || make(&made, &first, &now, &seen)
        });
        match work.await {
            Ok((Ok((state, _)), prints))
                if why == Why::Missed && state.config.secrets.are_missed() =>
            {
                reload.set_seen(prints);
            }
            Ok((Ok((state, restart_needed)), prints)) => {
                self.take(reload, &now, state, restart_needed);
                reload.set_seen(prints);
            }
            Ok((Err(error), prints)) => {
                self.keep(reload, &now, &error);
                reload.set_seen(prints);
            }
            // Only a panic gets here. The file stamps stay as they were, so that the next request
            // tries again.
            Err(error) => tracing::error!("cannot reload the config: {error}"),
        }
    }

    /// Reloads even if nothing has changed.
    pub async fn reload_now(&self) {
        if let Some(reload) = &self.reload {
            reload.wanted.store(true, Ordering::Release);
        }
        self.refresh().await;
    }

    fn take(&self, reload: &Reload, now: &State, state: State, restart_needed: Vec<&'static str>) {
        let generation = state.config.generation;
        let (before, after) = (definitions(now), definitions(&state));
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
        state.log_dropped();
        if !restart_needed.is_empty() && restart_needed != reload.found().restart_needed {
            tracing::warn!("these keys take effect after a restart: {}", restart_needed.join(", "));
        }
        let dropped = json!(dropped(&state));
        let differs = listing(now) != listing(&state);
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        self.record(json!({
            "outcome": "ok", "generation": generation, "added": added, "removed": removed, "changed": changed,
            "dropped": dropped, "restart_needed": restart_needed,
        }));
        reload.set_found(Found { fault: None, restart_needed });
        if differs {
            self.changes.announce(Change::Tools);
        }
    }

    fn keep(&self, reload: &Reload, now: &State, error: &Error) {
        let generation = now.config.generation;
        tracing::error!(
            generation,
            "the config is broken; keeping the last valid one: {}",
            error.log_line()
        );
        self.record(
            json!({"outcome": "broken", "generation": generation, "dropped": dropped(now)}),
        );
        reload.set_found(Found { fault: Some(about(error)), ..reload.found() });
    }

    /// Writes an audit event. A reload is not refused when it cannot be recorded; a call will be.
    fn record(&self, fields: Value) {
        if let Err(error) = self.audit.event("config.reload", fields) {
            tracing::error!("{}", error.log_line());
        }
    }

    /// Returns the state of the operator's files as a client may see it: files by name, and no
    /// paths of the host.
    pub fn about_config(&self, state: &State) -> Value {
        let found = self.reload.as_ref().map(Reload::found).unwrap_or_default();
        let row = |tool: Option<&str>, line: usize, message: &str| json!({"tool": tool, "line": line, "message": without_paths(message)});
        let written = state.config.dropped.iter();
        let made = state.registry.dropped.iter();
        let dropped: Vec<Value> = written
            .map(|fault| row(fault.entry.as_deref(), fault.line, &fault.message))
            .chain(made.map(|(entry, error)| row(Some(&entry.name), entry.line, error.message())))
            // A denied tool must look like a missing one, broken or not.
            .filter(|row| row["tool"].as_str().is_none_or(|name| state.config.surface.shows(name)))
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
type Outcome = Result<(State, Vec<&'static str>)>;

/// Does everything that blocks: waits until the files are stable, reads and resolves them, and
/// builds the tools.
fn make(made: &Made, first: &Config, now: &State, seen: &Prints) -> (Outcome, Prints) {
    let (config, prints) = made.again(first, &now.config, seen);
    let state = config.and_then(|mut config| {
        let file = made.file();
        // Without a file the defaults apply, but an operator who removes the file hardly asks for
        // those.
        if now.config.file.is_some() && config.file.is_none() {
            return Err(gone(file.as_deref()));
        }
        crate::sandbox::profile::check_profile(&config)?;
        let restart_needed = hold_to_start(&mut config, first, &now.config);
        config.generation = now.config.generation + 1;
        Ok((State::new(Arc::new(config)).after(now), restart_needed))
    });
    (state, prints)
}

fn gone(file: Option<&Path>) -> Error {
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    Error::new(Kind::NotFound, format!("the config file {file} no longer exists"))
        .reason("config_gone")
        .hint("Restore it, or restart the server without it.")
}

/// Restores what cannot change while the server runs, and returns the keys that would have changed.
fn hold_to_start(config: &mut Config, first: &Config, now: &Config) -> Vec<&'static str> {
    let at_start = |key: &str| {
        AT_START.iter().any(|one| key == *one || (one.ends_with('.') && key.starts_with(one)))
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
        ("auth.jwt_secret_file", secret(first) == secret(config)),
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
    config.closed.clone_from(&first.closed);
    config.http = first.http.clone();
    config.auth = first.auth.clone();
    config.approval.terminal = first.approval.terminal;
    config.sandbox = first.sandbox.clone();
    config.policy = first.policy.clone();
    config.limits.message_bytes = first.limits.message_bytes;
    config.limits.audit_rotate_bytes = first.limits.audit_rotate_bytes;
    config.log = first.log.clone();
    // Files that were private may still be in use, and a replaced secret is still a secret.
    config.private.extend(first.private.iter().chain(&now.private).cloned());
    config.private.sort();
    config.private.dedup();
    differ
}

fn secret(config: &Config) -> Option<&[u8]> {
    match &config.auth.as_ref()?.key {
        AuthKey::Secret(secret) => Some(secret.expose()),
        AuthKey::PublicPem(_) => None,
    }
}

/// Returns what is published about each tool, and what a call of it would do.
pub(super) fn definitions(state: &State) -> BTreeMap<String, String> {
    let tools = state.registry.tools().iter();
    tools
        .map(|tool| (tool.spec().name.clone(), format!("{} {:?}", tool.definition(), tool.spec())))
        .collect()
}

/// Returns what lists show, in order.
fn listing(state: &State) -> Vec<String> {
    let config = &state.config;
    let workspace = config.workspace.as_deref();
    let shown = state.registry.listed(workspace);
    let tools = shown.map(|(tool, _)| {
        format!("{} {:?} {}", tool.definition(), tool.spec(), asks(config, &**tool))
    });
    let names = config.tool_names.name().to_owned();
    // If each principal has its own workspace, the permitted directories decide what each of them
    // sees.
    let places = match workspace {
        Some(_) => String::new(),
        None => format!("{:?} {:?}", config.surface.cwd, config.surface.arguments),
    };
    tools.chain([names, places]).collect()
}

/// Returns the names of the operator commands that were not loaded.
fn dropped(state: &State) -> BTreeSet<&str> {
    let written = state.config.dropped.iter().filter_map(|fault| fault.entry.as_deref());
    written.chain(state.registry.dropped.iter().map(|(entry, _)| entry.name.as_str())).collect()
}

/// Describes an error as a client may see it.
fn about(error: &Error) -> Value {
    let Some(message) = error.fact("fault").and_then(Value::as_str) else {
        let why = error.reason_name().unwrap_or_else(|| error.kind().name());
        return json!({"message": format!("the config was refused ({why}); see the server's log")});
    };
    let name = error.fact("file").and_then(Value::as_str).map(Path::new).and_then(Path::file_name);
    json!({
        "file": name.map(|name| name.to_string_lossy()),
        "line": error.fact("line"),
        "column": error.fact("column"),
        "message": without_paths(message),
    })
}

/// Replaces every path of this host in a text with `…`.
fn without_paths(text: &str) -> String {
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
#[path = "reload_tests.rs"]
mod tests;
