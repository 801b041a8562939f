//! Detects changes to the files that a config depends on, and resolves the config again.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::resolve::{resolve_config, resolve_reload};
use super::{Config, ConfigFlags, ProcessEnv, config_path};
use crate::base::Result;

/// A file that was modified more recently than this may still be incomplete.
const QUIET_TIME: Duration = Duration::from_millis(50);
/// A file that has become empty or was removed is most likely about to be written.
const QUIET_TIME_IF_EMPTY: Duration = Duration::from_millis(500);
/// Maximum time to wait for files to settle.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// File system timestamps advance at least this often: a file that was modified longer ago cannot
/// change without getting a new timestamp.
const TIMESTAMP_TICK: Duration = Duration::from_millis(12);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of attempts when files change while they are read.
const MAX_ATTEMPTS: usize = 8;

/// Flags and environment from which a config was resolved, kept to resolve it again.
pub struct ConfigSource {
    flags: ConfigFlags,
    env: ProcessEnv,
}

/// Metadata that identifies a version of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn from_path(path: &Path) -> Option<FileStamp> {
        let metadata = std::fs::metadata(path).ok()?;
        if metadata.is_dir() {
            // Files in it have stamps of their own. For the directory only access matters.
            let changed = (i64::from(metadata.mode()), i64::from(metadata.uid()));
            return Some(FileStamp {
                device: metadata.dev(),
                inode: metadata.ino(),
                size: 1,
                written: (0, 0),
                changed,
            });
        }
        Some(FileStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Returns the time since the last modification; zero for a time in the future.
    fn time_since_write(&self) -> Duration {
        let (seconds, nanos) = (u64::try_from(self.written.0), u32::try_from(self.written.1));
        let (Ok(seconds), Ok(nanos)) = (seconds, nanos) else { return Duration::MAX };
        let written = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos));
        written
            .and_then(|written| SystemTime::now().duration_since(written).ok())
            .unwrap_or_default()
    }
}

/// Metadata of every file that the config depends on, at one moment. Links are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStamps(Vec<(PathBuf, Option<FileStamp>)>);

impl FileStamps {
    fn capture(files: &[PathBuf]) -> FileStamps {
        FileStamps(files.iter().map(|file| (file.clone(), FileStamp::from_path(file))).collect())
    }

    /// Returns the paths of the files.
    pub fn file_paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(file, _)| file.as_path())
    }

    /// Returns whether a file differs from when the metadata was taken.
    pub fn have_changed(&self) -> bool {
        self.0.iter().any(|(file, stamp)| FileStamp::from_path(file) != *stamp)
    }

    /// Returns whether a file that had content before is empty or missing now.
    fn lost_content_since(&self, before: &FileStamps) -> bool {
        let size = |stamps: &FileStamps, file: &Path| {
            stamps
                .0
                .iter()
                .find(|(other, _)| other == file)
                .and_then(|(_, stamp)| stamp.map(|stamp| stamp.size))
        };
        self.file_paths()
            .any(|file| size(self, file).unwrap_or(0) == 0 && size(before, file).unwrap_or(0) > 0)
    }

    fn time_since_last_write(&self) -> Duration {
        self.0
            .iter()
            .filter_map(|(_, stamp)| stamp.map(|stamp| stamp.time_since_write()))
            .min()
            .unwrap_or(Duration::MAX)
    }
}

impl ConfigSource {
    /// Keeps flags and environment.
    pub fn new(flags: ConfigFlags, env: ProcessEnv) -> ConfigSource {
        ConfigSource { flags, env }
    }

    /// Resolves the config, and returns the files' metadata from before they were read. Blocks.
    pub fn resolve_first(&self) -> (Result<Config>, FileStamps) {
        self.resolve_stable(
            self.source_files(None),
            || resolve_config(&self.flags, &self.env),
            |files| {
                let deadline = Instant::now() + TIMESTAMP_TICK;
                loop {
                    let stamps = FileStamps::capture(files);
                    if stamps.time_since_last_write() >= TIMESTAMP_TICK
                        || Instant::now() >= deadline
                    {
                        return stamps;
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
            },
        )
    }

    /// Resolves the config again after a change since the start. Blocks until the files have
    /// settled.
    pub fn resolve_again(
        &self,
        first: &Config,
        now: &Config,
        before: &FileStamps,
    ) -> (Result<Config>, FileStamps) {
        let read_config = || resolve_reload(&self.flags, &self.env, first);
        let deadline = Instant::now() + MAX_WAIT;
        self.resolve_stable(self.source_files(Some(now)), read_config, |files| {
            wait_until_settled(files, before, deadline)
        })
    }

    /// Returns the path of the config file, whether it exists or not.
    pub fn config_file(&self) -> Option<PathBuf> {
        config_path(&self.flags, &self.env).ok().flatten().map(|(path, _)| path)
    }

    fn resolve_stable(
        &self,
        mut files: Vec<PathBuf>,
        read_config: impl Fn() -> Result<Config>,
        capture_stamps: impl Fn(&[PathBuf]) -> FileStamps,
    ) -> (Result<Config>, FileStamps) {
        let mut attempts = 0;
        loop {
            let stamps = capture_stamps(&files);
            let result = read_config();
            let named_files = result
                .as_ref()
                .map_or_else(|_| files.clone(), |config| self.source_files(Some(config)));
            attempts += 1;
            if (named_files == files && !stamps.have_changed()) || attempts == MAX_ATTEMPTS {
                return (result, stamps);
            }
            files = named_files;
        }
    }

    /// Returns the files that the config depends on, which in turn depends on what the config says.
    fn source_files(&self, config: Option<&Config>) -> Vec<PathBuf> {
        // New token keys take effect only at a restart, but their change is reported.
        let named_files = config.into_iter().flat_map(|config| {
            let upstream_files = &config.upstreams.watched_files;
            let secret_files = config.secrets.watched_files().iter().chain(&config.key_files);
            secret_files.chain(upstream_files).cloned()
        });
        self.config_file().into_iter().chain(named_files).collect()
    }
}

/// Waits until no process seems to be writing the files any more.
fn wait_until_settled(files: &[PathBuf], before: &FileStamps, deadline: Instant) -> FileStamps {
    let start = Instant::now();
    let (mut stamps, mut unchanged_since) = (FileStamps::capture(files), start);
    loop {
        let quiet_time =
            if stamps.lost_content_since(before) { QUIET_TIME_IF_EMPTY } else { QUIET_TIME };
        // The modification time is useless for a file that is missing or has a time from another
        // clock, so time without a change counts too.
        let has_settled = unchanged_since.elapsed() >= quiet_time;
        let is_old = stamps.time_since_last_write() >= quiet_time
            && stamps.0.iter().all(|(_, stamp)| stamp.is_some());
        if has_settled || is_old || Instant::now() >= deadline {
            return stamps;
        }
        std::thread::sleep(POLL_INTERVAL);
        let new_stamps = FileStamps::capture(files);
        if new_stamps != stamps {
            (stamps, unchanged_since) = (new_stamps, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::scratch::Scratch;
    use super::*;

    fn age(path: &Path, by: Duration) {
        let file = std::fs::File::options().append(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - by).unwrap();
    }

    #[test]
    fn every_way_to_change_a_file_is_seen() {
        let scratch = Scratch::new();
        let file = scratch.file("etc/config.toml", "tools = 'all'");
        let take = || FileStamps::capture(std::slice::from_ref(&file));
        age(&file, Duration::from_secs(60));
        let before = take();
        assert!(!before.have_changed());
        // The same length, at the same time as far as anybody can set it.
        let time = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::write(&file, "tools = 'ALL'").unwrap();
        std::fs::File::options().append(true).open(&file).unwrap().set_modified(time).unwrap();
        assert!(before.have_changed());
        let before = take();
        let other = scratch.file("etc/other", "tools = 'all'");
        std::fs::rename(other, &file).unwrap();
        assert!(before.have_changed());
        let before = take();
        std::fs::remove_file(&file).unwrap();
        assert!(before.have_changed() && take().lost_content_since(&before));
        let missing = take();
        symlink(scratch.file("data/1/config.toml", "x"), &file).unwrap();
        assert!(missing.have_changed() && !take().lost_content_since(&missing));
    }

    #[test]
    fn what_is_being_written_is_waited_for_and_not_for_ever() {
        let scratch = Scratch::new();
        let file = scratch.file("config.toml", "one");
        let files = [file.clone()];
        let before = FileStamps::capture(&files);
        age(&file, Duration::from_secs(60));
        let begun = Instant::now();
        let settled = |files: &[PathBuf], before: &FileStamps| {
            wait_until_settled(files, before, Instant::now() + MAX_WAIT)
        };
        settled(&files, &before);
        assert!(begun.elapsed() < QUIET_TIME, "what was written long ago is settled");
        // Emptied now, and written a while later.
        std::fs::write(&file, "").unwrap();
        let writer = std::thread::spawn({
            let file = file.clone();
            move || {
                std::thread::sleep(QUIET_TIME_IF_EMPTY / 4);
                std::fs::write(file, "two").unwrap();
            }
        });
        let after = settled(&files, &before);
        writer.join().unwrap();
        assert_eq!(after.0[0].1.unwrap().size, 3);
        assert!(!after.have_changed());
        // Somebody who never stops is not waited for.
        let begun = Instant::now();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::write(&file, "three").unwrap();
                }
            });
            settled(&files, &before);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(begun.elapsed() < MAX_WAIT * 3);
    }
}
