//! Hot reload. Every request first looks whether a file that decides has changed (a few `stat`s), and then makes the
//! whole state again before it goes on; a watcher (see [`super::watch`]) only pokes the same look. What a call was given
//! it keeps: a [`State`] never changes.

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

/// What counts from the start to the end of a server: sockets, places and fences have been made of it.
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

/// Secrets that could not be read are looked up again with a call, but not with every one.
const RETRY: Duration = Duration::from_secs(1);

/// How the config is made again, and what the last look has found.
pub struct Reload {
    made: Arc<Made>,
    first: Arc<Config>,
    /// The files that decide, as they were before what holds now was read.
    seen: Mutex<Prints>,
    /// Calls that come together make one reload. Counts those that have begun.
    turn: tokio::sync::Mutex<()>,
    begun: AtomicU64,
    /// Somebody wants one, whatever the files look like.
    wanted: AtomicBool,
    /// When secrets that could not be read were last tried.
    tried: Mutex<Option<Instant>>,
    found: RwLock<Found>,
}

/// Why the files are looked at again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Changed,
    /// A keyring may have been opened by now.
    Missed,
}

/// What there is to say about the operator's files beside what they come to.
#[derive(Clone, Default)]
pub struct Found {
    /// Why the newest state of the files is not the one that holds.
    pub fault: Option<Value>,
    /// Keys whose new values count after a restart.
    pub restart_needed: Vec<&'static str>,
}

impl Reload {
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
    /// Makes the state again when a file that decides has changed. Whoever looks at the state afterwards sees every edit
    /// that had returned before.
    pub async fn refresh(&self) {
        let Some(reload) = &self.reload else { return };
        if reload.is_due(&self.state()).is_none() {
            return;
        }
        let begun = reload.begun.load(Ordering::Acquire);
        let _turn = reload.turn.lock().await;
        // One that has begun since has seen what we have. Whoever never stops to write holds nobody up for long.
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
            // Only a panic ends it early; what is seen stays as it was, so that the next request tries again.
            Err(error) => tracing::error!("the config cannot be looked at: {error}"),
        }
    }

    /// The same, whether something has changed or not.
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
            "the config was loaded again"
        );
        state.log_dropped();
        if !restart_needed.is_empty() && restart_needed != reload.found().restart_needed {
            tracing::warn!("these keys count after a restart: {}", restart_needed.join(", "));
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
            "the config is broken, and the last good one stays: {}",
            error.log_line()
        );
        self.record(
            json!({"outcome": "broken", "generation": generation, "dropped": dropped(now)}),
        );
        reload.set_found(Found { fault: Some(about(error)), ..reload.found() });
    }

    /// A reload is not refused because nobody can write it down: a call will be.
    fn record(&self, fields: Value) {
        if let Err(error) = self.audit.event("config.reload", fields) {
            tracing::error!("{}", error.log_line());
        }
    }

    /// The state of the operator's files as a client may see it: files by their names, nothing of the host.
    pub fn about_config(&self, state: &State) -> Value {
        let found = self.reload.as_ref().map(Reload::found).unwrap_or_default();
        let row = |tool: Option<&str>, line: usize, message: &str| json!({"tool": tool, "line": line, "message": without_paths(message)});
        let written = state.config.dropped.iter();
        let made = state.registry.dropped.iter();
        let dropped: Vec<Value> = written
            .map(|fault| row(fault.entry.as_deref(), fault.line, &fault.message))
            .chain(made.map(|(entry, error)| row(Some(&entry.name), entry.line, error.message())))
            // What is denied does not exist, broken or not.
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

/// The new state, and the keys that wait for a restart.
type Outcome = Result<(State, Vec<&'static str>)>;

/// Everything that blocks: waits, reads, resolves, and makes the tools.
fn make(made: &Made, first: &Config, now: &State, seen: &Prints) -> (Outcome, Prints) {
    let (config, prints) = made.again(first, &now.config, seen);
    let state = config.and_then(|mut config| {
        let file = made.file();
        // Without a file there are defaults; but somebody who removes one has hardly asked for those.
        if now.config.file.is_some() && config.file.is_none() {
            return Err(gone(file.as_deref()));
        }
        crate::sandbox::profile::check(&config)?;
        let restart_needed = hold_to_start(&mut config, first, &now.config);
        config.generation = now.config.generation + 1;
        Ok((State::new(Arc::new(config)).after(now), restart_needed))
    });
    (state, prints)
}

fn gone(file: Option<&Path>) -> Error {
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    Error::new(Kind::NotFound, format!("the config file {file} is gone"))
        .reason("config_gone")
        .hint("Put it back, or start again without it.")
}

/// Puts back what cannot change any more, and names the keys that would have.
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
    // The port that was asked for is not always the one that was given.
    let mut differ: Vec<&'static str> = all
        .filter(|key| **key != "http.listen" && before.get(*key) != after.get(*key))
        .copied()
        .collect();
    // What has no row of its own.
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
    // What was private may still be in use, and a value that was replaced is still one.
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

/// What is said of each tool, and what a call of it would do.
pub(super) fn definitions(state: &State) -> BTreeMap<String, String> {
    let tools = state.registry.tools().iter();
    tools
        .map(|tool| (tool.spec().name.clone(), format!("{} {:?}", tool.definition(), tool.spec())))
        .collect()
}

/// What lists show, in their order.
fn listing(state: &State) -> Vec<String> {
    let config = &state.config;
    let workspace = config.workspace.as_deref();
    let shown = state.registry.listed(workspace);
    let tools = shown.map(|(tool, _)| {
        format!("{} {:?} {}", tool.definition(), tool.spec(), asks(config, &**tool))
    });
    let names = config.tool_names.name().to_owned();
    // With a workspace for each principal, where tools may work decides what each of them sees.
    let places = match workspace {
        Some(_) => String::new(),
        None => format!("{:?} {:?}", config.surface.cwd, config.surface.arguments),
    };
    tools.chain([names, places]).collect()
}

/// The names of the operator's commands that are not there.
fn dropped(state: &State) -> BTreeSet<&str> {
    let written = state.config.dropped.iter().filter_map(|fault| fault.entry.as_deref());
    written.chain(state.registry.dropped.iter().map(|(entry, _)| entry.name.as_str())).collect()
}

/// A fault as a client may see it.
fn about(error: &Error) -> Value {
    let Some(message) = error.fact("fault").and_then(Value::as_str) else {
        let why = error.reason_name().unwrap_or_else(|| error.kind().name());
        return json!({"message": format!("the config was refused ({why}); the server's log says why")});
    };
    let name = error.fact("file").and_then(Value::as_str).map(Path::new).and_then(Path::file_name);
    json!({
        "file": name.map(|name| name.to_string_lossy()),
        "line": error.fact("line"),
        "column": error.fact("column"),
        "message": without_paths(message),
    })
}

/// The same words with `…` in place of everything that is a path of this host.
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
