//! File watcher: checks for a reload as soon as a configuration file may have changed, so that
//! clients learn of new tools without a call. It decides nothing itself; if it is unavailable,
//! every call still checks.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::Pipeline;
use crate::base::IgnorePoison;
use crate::config::link_chain::{WatchPoint, watch_points};

/// Events within this time are handled together.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Running watcher. Dropping it stops the watcher.
pub struct ConfigWatch(tokio::task::JoinHandle<()>);

impl Drop for ConfigWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pipeline {
    /// Starts watching the operator's files for changes.
    pub fn watch_config(self: &Arc<Self>) -> ConfigWatch {
        ConfigWatch(tokio::spawn(watch_files(Arc::clone(self))))
    }

    fn watch_points(&self) -> BTreeSet<WatchPoint> {
        let config = &self.state().config;
        let mut spots = BTreeSet::new();
        if let Some(reload) = &self.reloader {
            spots.extend(reload.file_stamps().file_paths().flat_map(watch_points));
        }
        spots.extend(config.policy.rules.iter().flat_map(|file| watch_points(file)));
        for rules in &config.policy.rules_dirs.effective {
            spots.extend(watch_points(rules));
            spots.insert((rules.clone(), None));
        }
        spots
    }
}

async fn watch_files(pipeline: Arc<Pipeline>) {
    let mut eyes = match ConfigFileWatcher::new() {
        Ok(eyes) => eyes,
        Err(error) => {
            tracing::warn!(
                "cannot watch the config; changes take effect with the next call: {error}"
            );
            return;
        }
    };
    loop {
        eyes.set_watch_points(pipeline.watch_points());
        // After the watches are in place, so that no change in between is missed.
        pipeline.reload_if_changed().await;
        if let Some(workspace) = &pipeline.state().config.workspace {
            // Reading the rules logs the errors in new ones.
            pipeline.policy.current_rules(workspace).await;
        }
        if eyes.differs_from(&pipeline.watch_points()) {
            continue;
        }
        eyes.wakeup.notified().await;
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// The watcher, and what it watches.
struct ConfigFileWatcher {
    watcher: RecommendedWatcher,
    wakeup: Arc<Notify>,
    watch_points: Arc<Mutex<BTreeSet<WatchPoint>>>,
    /// Each directory with its device and inode, which tell it from another of the same name.
    directories: BTreeMap<PathBuf, (u64, u64)>,
    has_warned: bool,
}

impl ConfigFileWatcher {
    fn new() -> notify::Result<ConfigFileWatcher> {
        let poked = Arc::new(Notify::new());
        let spots = Arc::new(Mutex::new(BTreeSet::new()));
        let watcher = notify::recommended_watcher({
            let (poked, spots) = (Arc::clone(&poked), Arc::clone(&spots));
            move |event: notify::Result<notify::Event>| {
                let spots = spots.lock().ignore_poison();
                // An error may mean that events were lost.
                if event.map_or(true, |event| is_relevant(&event, &spots)) {
                    poked.notify_one();
                }
            }
        })?;
        Ok(ConfigFileWatcher {
            watcher,
            wakeup: poked,
            watch_points: spots,
            directories: BTreeMap::new(),
            has_warned: false,
        })
    }

    fn differs_from(&self, spots: &BTreeSet<WatchPoint>) -> bool {
        *self.watch_points.lock().ignore_poison() != *spots
    }

    fn set_watch_points(&mut self, spots: BTreeSet<WatchPoint>) {
        let of =
            |folder: &Path| std::fs::metadata(folder).ok().map(|facts| (facts.dev(), facts.ino()));
        let wanted: BTreeMap<PathBuf, (u64, u64)> =
            spots.iter().filter_map(|(folder, _)| Some((folder.clone(), of(folder)?))).collect();
        *self.watch_points.lock().ignore_poison() = spots;
        for folder in self
            .directories
            .iter()
            .filter(|(folder, id)| wanted.get(*folder) != Some(id))
            .map(|(folder, _)| folder)
        {
            // A directory that no longer exists has already lost its watch.
            let _ = self.watcher.unwatch(folder);
        }
        self.directories.retain(|folder, id| wanted.get(folder) == Some(id));
        for (folder, id) in wanted {
            if self.directories.contains_key(&folder) {
                continue;
            }
            match self.watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.directories.insert(folder, id)),
                Err(error) if !self.has_warned => {
                    self.has_warned = true;
                    tracing::warn!(
                        "cannot watch all of the config; some changes take effect with the next call: {error}"
                    );
                }
                Err(_) => {}
            }
        }
    }
}

fn is_relevant(event: &notify::Event, spots: &BTreeSet<WatchPoint>) -> bool {
    if matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
    {
        return false;
    }
    let is_spot = |path: &PathBuf| {
        spots.iter().any(|(folder, name)| match name {
            _ if path == folder => true,
            Some(name) => path.parent() == Some(folder) && path.file_name() == Some(name),
            None => path.parent() == Some(folder),
        })
    };
    event.need_rescan() || event.paths.is_empty() || event.paths.iter().any(is_spot)
}
