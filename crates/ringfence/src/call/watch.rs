//! File watcher: checks for a reload as soon as a configuration file may have changed, so that
//! clients learn of new tools without a call. It decides nothing itself; if it is unavailable,
//! every call still checks.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::Pipeline;
use crate::config::trail::{Spot, trail};

/// Events within this time are handled together.
const TOGETHER: Duration = Duration::from_millis(20);

/// Running watcher. Dropping it stops the watcher.
pub struct Watch(tokio::task::JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pipeline {
    /// Starts watching the operator's files for changes.
    pub fn watch(self: &Arc<Self>) -> Watch {
        Watch(tokio::spawn(keep_looking(Arc::clone(self))))
    }

    fn spots(&self) -> BTreeSet<Spot> {
        let config = &self.state().config;
        let mut spots = BTreeSet::new();
        if let Some(reload) = &self.reload {
            spots.extend(reload.seen().files().flat_map(trail));
        }
        spots.extend(config.policy.rules.iter().flat_map(|file| trail(file)));
        for rules in &config.policy.rules_dirs.used {
            spots.extend(trail(rules));
            spots.insert((rules.clone(), None));
        }
        spots
    }
}

async fn keep_looking(pipeline: Arc<Pipeline>) {
    let mut eyes = match Eyes::new() {
        Ok(eyes) => eyes,
        Err(error) => {
            tracing::warn!(
                "cannot watch the config; changes take effect with the next call: {error}"
            );
            return;
        }
    };
    loop {
        eyes.turn_to(pipeline.spots());
        // After the watches are in place, so that no change in between is missed.
        pipeline.refresh().await;
        if let Some(workspace) = &pipeline.state().config.workspace {
            // Reading the rules logs the errors in new ones.
            pipeline.policy.current(workspace).await;
        }
        if eyes.are_elsewhere(&pipeline.spots()) {
            continue;
        }
        eyes.poked.notified().await;
        tokio::time::sleep(TOGETHER).await;
    }
}

/// The watcher, and what it watches.
struct Eyes {
    watcher: RecommendedWatcher,
    poked: Arc<Notify>,
    spots: Arc<Mutex<BTreeSet<Spot>>>,
    /// Each directory with its device and inode, which tell it from another of the same name.
    folders: BTreeMap<PathBuf, (u64, u64)>,
    complained: bool,
}

impl Eyes {
    fn new() -> notify::Result<Eyes> {
        let poked = Arc::new(Notify::new());
        let spots = Arc::new(Mutex::new(BTreeSet::new()));
        let watcher = notify::recommended_watcher({
            let (poked, spots) = (Arc::clone(&poked), Arc::clone(&spots));
            move |event: notify::Result<notify::Event>| {
                let spots = spots.lock().unwrap_or_else(PoisonError::into_inner);
                // An error may mean that events were lost.
                if event.map_or(true, |event| matters(&event, &spots)) {
                    poked.notify_one();
                }
            }
        })?;
        Ok(Eyes { watcher, poked, spots, folders: BTreeMap::new(), complained: false })
    }

    fn are_elsewhere(&self, spots: &BTreeSet<Spot>) -> bool {
        *self.spots.lock().unwrap_or_else(PoisonError::into_inner) != *spots
    }

    fn turn_to(&mut self, spots: BTreeSet<Spot>) {
        let of =
            |folder: &Path| std::fs::metadata(folder).ok().map(|facts| (facts.dev(), facts.ino()));
        let wanted: BTreeMap<PathBuf, (u64, u64)> =
            spots.iter().filter_map(|(folder, _)| Some((folder.clone(), of(folder)?))).collect();
        *self.spots.lock().unwrap_or_else(PoisonError::into_inner) = spots;
        for folder in self
            .folders
            .iter()
            .filter(|(folder, id)| wanted.get(*folder) != Some(id))
            .map(|(folder, _)| folder)
        {
            // A directory that no longer exists has already lost its watch.
            let _ = self.watcher.unwatch(folder);
        }
        self.folders.retain(|folder, id| wanted.get(folder) == Some(id));
        for (folder, id) in wanted {
            if self.folders.contains_key(&folder) {
                continue;
            }
            match self.watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.folders.insert(folder, id)),
                Err(error) if !self.complained => {
                    self.complained = true;
                    tracing::warn!(
                        "cannot watch all of the config; some changes take effect with the next call: {error}"
                    );
                }
                Err(_) => {}
            }
        }
    }
}

fn matters(event: &notify::Event, spots: &BTreeSet<Spot>) -> bool {
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
