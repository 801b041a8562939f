//! File watcher: checks for a reload as soon as a configuration file may have changed, so that
//! clients learn of new tools without a call. It decides nothing itself; if it is unavailable,
//! every call still checks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

use crate::call::Pipeline;
use crate::config::link_chain::{WatchPoint, watch_points};

/// Events within this time are handled together.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Events that are read at once: the thread that reads them serves clients.
const MAX_EVENTS: usize = 256;

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
        if let Err(error) = watcher.wait_for_change().await {
            tracing::warn!(
                "the config is no longer watched; changes take effect with the next call: {error}"
            );
            return;
        }
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// Changes of a directory and of what it contains. Reading is none.
const CHANGES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF);
/// Enough for several events with the longest names.
const EVENT_BYTES: usize = 2048;

/// The watcher, and what it watches.
struct ConfigFileWatcher {
    /// Read like a pipe, which is all that the runtime needs of it.
    inotify: Receiver,
    watch_points: BTreeSet<WatchPoint>,
    directories: BTreeMap<PathBuf, WatchedDirectory>,
    has_warned: bool,
}

struct WatchedDirectory {
    /// Device and inode, which tell it from another of the same name.
    id: (u64, u64),
    watch: i32,
}

/// What a number of events say together.
#[derive(Default)]
struct EventBatch {
    is_relevant: bool,
    /// Watches of directories that no longer exist.
    lost_watches: Vec<i32>,
}

impl ConfigFileWatcher {
    fn new() -> io::Result<ConfigFileWatcher> {
        Ok(ConfigFileWatcher {
            inotify: Receiver::from_owned_fd_unchecked(inotify::init(
                CreateFlags::CLOEXEC | CreateFlags::NONBLOCK,
            )?)?,
            watch_points: BTreeSet::new(),
            directories: BTreeMap::new(),
            has_warned: false,
        })
    }

    fn differs_from(&self, points: &BTreeSet<WatchPoint>) -> bool {
        self.watch_points != *points
    }

    fn set_watch_points(&mut self, points: BTreeSet<WatchPoint>) {
        let device_and_inode = |directory: &Path| {
            std::fs::metadata(directory).ok().map(|metadata| (metadata.dev(), metadata.ino()))
        };
        let new_directories: BTreeMap<PathBuf, (u64, u64)> = points
            .iter()
            .filter_map(|(directory, _)| Some((directory.clone(), device_and_inode(directory)?)))
            .collect();
        self.watch_points = points;
        let inotify = &self.inotify;
        self.directories.retain(|path, directory| {
            let stays = new_directories.get(path) == Some(&directory.id);
            if !stays {
                // A directory that no longer exists has already lost its watch.
                let _ = inotify::remove_watch(inotify, directory.watch);
            }
            stays
        });
        for (path, id) in new_directories {
            if self.directories.contains_key(&path) {
                continue;
            }
            match inotify::add_watch(inotify, &path, CHANGES) {
                Ok(watch) => drop(self.directories.insert(path, WatchedDirectory { id, watch })),
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

    /// Returns once something that is watched may have changed.
    async fn wait_for_change(&mut self) -> io::Result<()> {
        loop {
            self.inotify.readable().await?;
            let mut batch = EventBatch::default();
            let result = self.inotify.try_io(|| self.read_events(&mut batch));
            // A new directory may have the inode of the one that is gone.
            self.directories.retain(|_, directory| !batch.lost_watches.contains(&directory.watch));
            match result {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ if batch.is_relevant => return Ok(()),
                _ => {}
            }
        }
    }

    /// Reads events until none is waiting, which is the error `WouldBlock`, or until there are too
    /// many to look at: then something relevant may be among the rest.
    fn read_events(&self, batch: &mut EventBatch) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        for count in 0.. {
            // Between two events of one read nothing is lost by stopping.
            if count >= MAX_EVENTS && reader.is_buffer_empty() {
                batch.is_relevant = true;
                break;
            }
            let event = match reader.next() {
                Err(rustix::io::Errno::INTR) => continue,
                event => event?,
            };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            batch.is_relevant |= self.is_relevant(event.wd(), event.events(), name);
            if event.events().contains(ReadFlags::IGNORED) {
                batch.lost_watches.push(event.wd());
            }
        }
        Ok(())
    }

    fn is_relevant(&self, watch: i32, events: ReadFlags, name: Option<&OsStr>) -> bool {
        // Events were lost.
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            return true;
        }
        let is_watch = |directory: &PathBuf| {
            self.directories.get(directory).is_some_and(|directory| directory.watch == watch)
        };
        self.watch_points.iter().any(|(directory, watched_name)| {
            let is_named = match (watched_name, name) {
                (Some(watched_name), Some(name)) => watched_name == name,
                // Every entry of the directory, or the directory itself.
                (None, _) | (_, None) => true,
            };
            is_named && is_watch(directory)
        })
    }
}

impl Drop for ConfigFileWatcher {
    fn drop(&mut self) {
        // If it fails, the descriptor is closed as any other.
        let _ = jail::packet::close_in_background(self.inotify.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::config::scratch::Scratch;

    /// Reads the events of what has happened; the kernel queues them before a change returns.
    fn read_batch(watcher: &ConfigFileWatcher) -> EventBatch {
        let mut batch = EventBatch::default();
        let end = watcher.read_events(&mut batch).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::WouldBlock);
        batch
    }

    #[tokio::test]
    async fn only_changes_of_watched_names_count() {
        let scratch = Scratch::new();
        let directory = scratch.dir("settings");
        let (file, other) = (directory.join("config.toml"), directory.join("other.toml"));
        let mut watcher = ConfigFileWatcher::new().unwrap();
        let name = OsString::from("config.toml");
        watcher.set_watch_points(BTreeSet::from([(directory.clone(), Some(name))]));
        std::fs::write(&other, "a").unwrap();
        assert!(!read_batch(&watcher).is_relevant, "another name");
        std::fs::write(&file, "a").unwrap();
        assert!(read_batch(&watcher).is_relevant, "created");
        assert_eq!(std::fs::read(&file).unwrap(), b"a");
        assert!(!read_batch(&watcher).is_relevant, "read");
        std::fs::rename(&other, &file).unwrap();
        assert!(read_batch(&watcher).is_relevant, "replaced");
        watcher.set_watch_points(BTreeSet::from([(directory.clone(), None)]));
        std::fs::write(&other, "a").unwrap();
        assert!(read_batch(&watcher).is_relevant, "any name");
    }

    #[tokio::test]
    async fn a_directory_that_is_made_again_is_watched_again() {
        let scratch = Scratch::new();
        let directory = scratch.dir("settings");
        let points = BTreeSet::from([(directory.clone(), None)]);
        let mut watcher = ConfigFileWatcher::new().unwrap();
        watcher.set_watch_points(points.clone());
        std::fs::remove_dir(&directory).unwrap();
        scratch.dir("settings");
        watcher.wait_for_change().await.unwrap();
        watcher.set_watch_points(points);
        std::fs::write(directory.join("config.toml"), "a").unwrap();
        assert!(read_batch(&watcher).is_relevant);
    }
}
