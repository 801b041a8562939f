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

use crate::base::IgnorePoison;
use crate::call::Pipeline;
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
        let mut points = BTreeSet::new();
        if let Some(reloader) = &self.reloader {
            points.extend(reloader.file_stamps().file_paths().flat_map(watch_points));
        }
        points.extend(config.policy.rules.iter().flat_map(|file| watch_points(file)));
        for rules in &config.policy.rules_dirs.effective {
            points.extend(watch_points(rules));
            points.insert((rules.clone(), None));
        }
        points
    }
}

async fn watch_files(pipeline: Arc<Pipeline>) {
    let mut watcher = match ConfigFileWatcher::new() {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(
                "cannot watch the config; changes take effect with the next call: {error}"
            );
            return;
        }
    };
    loop {
        watcher.set_watch_points(pipeline.watch_points());
        // After the watches are in place, so that no change in between is missed.
        pipeline.reload_if_changed().await;
        if let Some(workspace) = &pipeline.state().config.workspace {
            // Reading the rules logs the errors in new ones.
            pipeline.policy.current_rules(workspace).await;
        }
        if watcher.differs_from(&pipeline.watch_points()) {
            continue;
        }
        watcher.wakeup.notified().await;
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
        let wakeup = Arc::new(Notify::new());
        let points = Arc::new(Mutex::new(BTreeSet::new()));
        let watcher = notify::recommended_watcher({
            let (wakeup, points) = (Arc::clone(&wakeup), Arc::clone(&points));
            move |event: notify::Result<notify::Event>| {
                let points = points.lock().ignore_poison();
                // An error may mean that events were lost.
                if event.map_or(true, |event| is_relevant(&event, &points)) {
                    wakeup.notify_one();
                }
            }
        })?;
        Ok(ConfigFileWatcher {
            watcher,
            wakeup,
            watch_points: points,
            directories: BTreeMap::new(),
            has_warned: false,
        })
    }

    fn differs_from(&self, points: &BTreeSet<WatchPoint>) -> bool {
        *self.watch_points.lock().ignore_poison() != *points
    }

    fn set_watch_points(&mut self, points: BTreeSet<WatchPoint>) {
        let device_and_inode = |directory: &Path| {
            std::fs::metadata(directory).ok().map(|metadata| (metadata.dev(), metadata.ino()))
        };
        let new_directories: BTreeMap<PathBuf, (u64, u64)> = points
            .iter()
            .filter_map(|(directory, _)| Some((directory.clone(), device_and_inode(directory)?)))
            .collect();
        *self.watch_points.lock().ignore_poison() = points;
        for directory in self
            .directories
            .iter()
            .filter(|(directory, id)| new_directories.get(*directory) != Some(id))
            .map(|(directory, _)| directory)
        {
            // A directory that no longer exists has already lost its watch.
            let _ = self.watcher.unwatch(directory);
        }
        self.directories.retain(|directory, id| new_directories.get(directory) == Some(id));
        for (directory, id) in new_directories {
            if self.directories.contains_key(&directory) {
                continue;
            }
            match self.watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.directories.insert(directory, id)),
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

fn is_relevant(event: &notify::Event, points: &BTreeSet<WatchPoint>) -> bool {
    if matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
    {
        return false;
    }
    let is_watched = |path: &PathBuf| {
        points.iter().any(|(directory, name)| match name {
            _ if path == directory => true,
            Some(name) => path.parent() == Some(directory) && path.file_name() == Some(name),
            None => path.parent() == Some(directory),
        })
    };
    event.need_rescan() || event.paths.is_empty() || event.paths.iter().any(is_watched)
}
