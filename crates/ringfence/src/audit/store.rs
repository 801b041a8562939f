//! The audit directory: lock, key, file names, heads, and the pointer to the file opened last.
//!
//! ```text
//! audit/            0700
//!   lock            held while a file is opened, so that each file links the one opened before it
//!   key             32 random bytes
//!   latest          the file opened last, with its mac; rewritten in place
//!   <name>.jsonl    the records of one process, or a part of them between two rotations
//!   <name>.head     the file's newest record {seq, mac}, with its own mac; rewritten in place
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::chain::{ChainKey, FIRST_MAC, Mac, RecordLink};
use crate::base::clock::now_utc;
use crate::base::ids::{random_bytes, to_hex};

pub(super) const LOG_SUFFIX: &str = ".jsonl";
pub(super) const HEAD_SUFFIX: &str = ".head";
pub(super) const LATEST: &str = "latest";
/// Names of incomplete files. Only the holder of the lock creates them, so fixed names are safe,
/// and a start does not have to list the whole directory to clean them up.
const TEMPORARIES: [&str; 3] = [NEW_KEY, NEW_LATEST, NEW_LOG];
const NEW_KEY: &str = "tmp-key";
pub(super) const NEW_LATEST: &str = "tmp-latest";
pub(super) const NEW_LOG: &str = "tmp-log";

/// Length of `latest` in bytes: more than its longest content, and within one block of any disk.
const LATEST_LENGTH: usize = 192;
/// Attempts to read a file that is rewritten in place.
const READ_ATTEMPTS: usize = 10;

pub(super) struct AuditDirectory {
    dir: PathBuf,
    pub(super) key: ChainKey,
}

/// State of the directory at one moment.
pub(super) struct DirectorySnapshot {
    /// Sorted.
    pub(super) names: Vec<String>,
    pub(super) latest: Option<Result<String, String>>,
}

impl AuditDirectory {
    /// Opens the directory under `root` and creates what is missing. Returns with the lock held.
    pub(super) fn create(root: &Path) -> io::Result<(AuditDirectory, File)> {
        let dir = super::log_directory(root);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        tighten_mode(&File::open(&dir)?, 0o700)?;
        let lock = open_lock(&dir)?;
        lock.lock()?;
        // Only the holder of the lock creates these, so any that exist were left by a dead process.
        for name in TEMPORARIES {
            remove_if_exists(&dir.join(name))?;
        }
        let key = match read_key(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if list_names(&dir)?.iter().any(|name| name.ends_with(LOG_SUFFIX)) {
                    return Err(io::Error::other(
                        "audit/key is missing, but records made with it exist: restore it, or move the audit directory away",
                    ));
                }
                create_key(&dir)?;
                read_key(&dir)?
            }
            other => other?,
        };
        tighten_mode(&File::open(dir.join("key"))?, 0o600)?;
        Ok((AuditDirectory { dir, key }, lock))
    }

    /// Opens an existing directory for reading.
    pub(super) fn open_existing(root: &Path) -> io::Result<AuditDirectory> {
        let dir = root.join("audit");
        let key = read_key(&dir)?;
        Ok(AuditDirectory { dir, key })
    }

    pub(super) fn file_path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn lock(&self) -> io::Result<File> {
        let lock = open_lock(&self.dir)?;
        lock.lock()?;
        Ok(lock)
    }

    /// Returns `None` if another process holds the lock.
    pub(super) fn try_lock(&self) -> io::Result<Option<File>> {
        let lock = open_lock(&self.dir)?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Reads the directory, under the lock if it can be opened, so that no file is seen half
    /// created.
    pub(super) fn take_snapshot(&self) -> io::Result<DirectorySnapshot> {
        let lock = open_regular(&self.file_path("lock")).ok();
        if let Some(lock) = &lock {
            lock.lock_shared()?;
        }
        self.list_contents()
    }

    /// Reads the directory without locking, for a caller that holds the lock or only needs the
    /// current content.
    pub(super) fn list_contents(&self) -> io::Result<DirectorySnapshot> {
        Ok(DirectorySnapshot { names: list_names(&self.dir)?, latest: self.read_latest() })
    }

    /// Returns whether one of these log files no longer exists. Pruning removes files while others
    /// read them.
    pub(super) fn has_lost_files(&self, names: &[String]) -> io::Result<bool> {
        let current_names = self.list_contents()?.names;
        Ok(names
            .iter()
            .any(|name| name.ends_with(LOG_SUFFIX) && current_names.binary_search(name).is_err()))
    }

    /// Returns whether the directory belongs to the user of this process.
    pub(super) fn is_owned_by_us(&self) -> io::Result<bool> {
        Ok(fs::metadata(&self.dir)?.uid() == rustix::process::geteuid().as_raw())
    }

    /// Syncs the directory, so that added and removed names survive a power failure.
    pub(super) fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// Returns the newest record of the file opened last, which the next header links, and what was
    /// wrong with `latest`. The header records the latter: `latest` is about to be replaced, and
    /// nothing else would show the damage afterwards.
    pub(super) fn newest_link(&self) -> io::Result<(Option<RecordLink>, Option<String>)> {
        let (file, damage) = match self.read_latest() {
            Some(Ok(file)) => (file, None),
            damaged => {
                let logs: Vec<_> = list_names(&self.dir)?
                    .into_iter()
                    .filter(|name| name.ends_with(LOG_SUFFIX))
                    .collect();
                let Some(file) = logs.last().cloned() else {
                    return Ok((None, damaged.and_then(Result::err)));
                };
                // The very first process may have died before writing it.
                let is_unused = damaged.is_none()
                    && logs.len() == 1
                    && matches!(self.read_head(&file), Ok((1, _)));
                let problem =
                    damaged.and_then(Result::err).unwrap_or_else(|| "it is missing".into());
                tracing::error!(
                    "audit/latest: {problem}; linking {file} instead (see `ringfence audit verify`)"
                );
                (file, (!is_unused).then_some(problem))
            }
        };
        let record = match self.read_head(&file) {
            Ok((seq, mac)) => Some((seq, to_hex(&mac))),
            Err(problem) => {
                tracing::error!("the head of {file}: {problem} (see `ringfence audit verify`)");
                None
            }
        };
        Ok((Some(RecordLink { file, record }), damage))
    }

    /// Returns the file that `latest` names, or what is wrong with it; `None` if it does not exist.
    pub(super) fn read_latest(&self) -> Option<Result<String, String>> {
        let path = self.file_path(LATEST);
        // Retry, because this read may coincide with a rewrite.
        for _ in 0..READ_ATTEMPTS {
            let bytes = match read_small(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                Err(error) => return Some(Err(error.to_string())),
            };
            let file = serde_json::from_slice::<Value>(&bytes)
                .ok()
                .and_then(|value| value["file"].as_str().map(str::to_owned));
            if let Some(file) = file.filter(|file| self.format_latest(file) == bytes) {
                return Some(Ok(file));
            }
            std::thread::yield_now();
        }
        Some(Err("it was changed: its mac does not fit".into()))
    }

    /// Formats the content of `latest`. It has a fixed length, so that it can be rewritten in place.
    pub(super) fn format_latest(&self, file: &str) -> Vec<u8> {
        let mac = to_hex(&self.key.compute_mac("latest", &[file.as_bytes()]));
        let text = json!({"file": file, "mac": mac}).to_string();
        format!("{text:<width$}\n", width = LATEST_LENGTH - 1).into_bytes()
    }

    /// Opens `latest` to rewrite it, if it is as this program writes it.
    pub(super) fn open_latest(&self) -> Option<File> {
        let flags = no_follow_flags();
        let file =
            OpenOptions::new().write(true).custom_flags(flags).open(self.file_path(LATEST)).ok()?;
        // Under another name it would be another file, too.
        let is_expected = |metadata: fs::Metadata| {
            metadata.is_file() && metadata.nlink() == 1 && metadata.len() == LATEST_LENGTH as u64
        };
        file.metadata().is_ok_and(is_expected).then_some(file)
    }

    /// Formats a head. It has a fixed length, so that it can be rewritten in place, and is bound to
    /// its file's name.
    pub(super) fn format_head(&self, file: &str, seq: u64, mac: &Mac) -> Vec<u8> {
        let mut head = Vec::with_capacity(192);
        // Writing to memory does not fail.
        let _ = write!(head, "{{\"seq\":\"{seq:020}\",\"mac\":\"");
        head.extend_from_slice(to_hex(mac).as_bytes());
        head.push(b'"');
        let check = self.key.compute_mac("head", &[file.as_bytes(), b"\n", &head]);
        head.extend_from_slice(b",\"check\":\"");
        head.extend_from_slice(to_hex(&check).as_bytes());
        head.extend_from_slice(b"\"}\n");
        head
    }

    /// Returns the newest record of `file` according to its head, or what is wrong with the head.
    pub(super) fn read_head(&self, file: &str) -> Result<(u64, Mac), String> {
        let path = self.file_path(&head_name(file));
        // Retry, because this read may coincide with a rewrite; a damaged head stays damaged.
        for _ in 0..READ_ATTEMPTS {
            let bytes = match read_small(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err("it is missing".into());
                }
                Err(error) => return Err(error.to_string()),
            };
            if let Some((seq, mac)) = parse_head(&bytes)
                && self.format_head(file, seq, &mac) == bytes
            {
                return Ok((seq, mac));
            }
            std::thread::yield_now();
        }
        Err("it was changed: its mac does not fit".into())
    }

    /// Creates a file that no other process can have open, to be renamed into place.
    pub(super) fn create_temporary(&self, name: &str) -> io::Result<(PathBuf, File)> {
        create_temporary_in(&self.dir, name)
    }
}

/// Returns a new file name, `20261115T214003.123456Z-<pid>-<random>.jsonl`: names sort by time and
/// are unique.
pub(super) fn new_file_name() -> String {
    let time: String = now_utc().chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{time}-{}-{}{LOG_SUFFIX}", std::process::id(), to_hex(&random_bytes::<4>()))
}

pub(super) fn head_name(file: &str) -> String {
    format!("{}{HEAD_SUFFIX}", file.strip_suffix(LOG_SUFFIX).unwrap_or(file))
}

pub(super) fn list_names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        // This program creates no names that are not UTF-8.
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Maximum length of one line in bytes, including its newline: far more than any record has, but
/// little enough to hold in memory.
pub(super) const MAX_LINE: usize = 16 << 20;

/// Reads up to and including a newline, but not more than [`MAX_LINE`] bytes.
pub(super) fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    file.take(MAX_LINE as u64).read_until(b'\n', line)
}

/// Opens a file of the log for reading. An attacker who can write to the directory can put anything
/// there: a pipe that blocks on open, or a device without an end.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let irregular = || io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file");
    if !fs::metadata(path)?.is_file() {
        return Err(irregular());
    }
    // The file may have been replaced since the check; NONBLOCK keeps open from blocking, and the
    // second check detects it.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(raw_flags(rustix::fs::OFlags::NONBLOCK))
        .open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

/// Reads `latest` or a head, which are a few hundred bytes at most.
fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(1 << 16).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates a file that only its owner may read. Never opens an existing one, never follows a link.
pub(super) fn create_new(path: &Path, append: bool) -> io::Result<File> {
    OpenOptions::new().write(true).append(append).create_new(true).mode(0o600).open(path)
}

fn create_temporary_in(dir: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let path = dir.join(name);
    remove_if_exists(&path)?;
    let file = create_new(&path, true)?;
    Ok((path, file))
}

/// Removes a file; succeeds if it does not exist.
pub(super) fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn open_lock(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(no_follow_flags())
        .open(dir.join("lock"))
}

/// Flags that neither follow a link nor block on a pipe.
fn no_follow_flags() -> i32 {
    raw_flags(rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK)
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "the flags fit, and this is the type that open(2) takes"
)]
fn raw_flags(flags: rustix::fs::OFlags) -> i32 {
    flags.bits() as i32
}

/// Creates the key. The file is complete before it gets its name, and if several processes do this,
/// the first one wins: `link` does not replace.
fn create_key(dir: &Path) -> io::Result<()> {
    let (path, mut file) = create_temporary_in(dir, NEW_KEY)?;
    file.write_all(&random_bytes::<32>())?;
    file.sync_all()?;
    let link_result = fs::hard_link(&path, dir.join("key"));
    fs::remove_file(&path)?;
    match link_result {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn read_key(dir: &Path) -> io::Result<ChainKey> {
    let mut file =
        OpenOptions::new().read(true).custom_flags(no_follow_flags()).open(dir.join("key"))?;
    let mut bytes = Vec::new();
    (&mut file).take(64).read_to_end(&mut bytes)?;
    let bytes: [u8; 32] = bytes
        .try_into()
        .map_err(|_| io::Error::other("audit/key is damaged: it is not 32 bytes"))?;
    Ok(ChainKey::new(&bytes))
}

fn tighten_mode(file: &File, mode: u32) -> io::Result<()> {
    let current_mode = file.metadata()?.permissions().mode() & 0o777;
    if current_mode & !mode != 0 {
        tracing::warn!(
            "the audit directory or key was accessible to others (mode {current_mode:o}); changed to {mode:o}"
        );
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn parse_head(bytes: &[u8]) -> Option<(u64, Mac)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let mac_hex = value["mac"].as_str()?.as_bytes();
    let mut mac = FIRST_MAC;
    if mac_hex.len() != 2 * mac.len() {
        return None;
    }
    for (byte, pair) in mac.iter_mut().zip(mac_hex.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((value["seq"].as_str()?.parse().ok()?, mac))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Dir;
    use super::*;

    #[test]
    fn concurrent_starters_agree_on_one_key() {
        let root = Dir::new();
        let keys: Vec<Mac> = std::thread::scope(|scope| {
            let starters: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        let (store, _lock) = AuditDirectory::create(root.path()).unwrap();
                        store.key.compute_mac("test", &[])
                    })
                })
                .collect();
            starters.into_iter().map(|starter| starter.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|mac| *mac == keys[0]));
        assert_eq!(
            list_names(&root.path().join("audit")).unwrap(),
            ["key", "lock"],
            "nothing is left over"
        );
    }

    #[test]
    fn modes_are_private_and_made_private_again() {
        let root = Dir::new();
        let mode =
            |name: &str| fs::metadata(root.path().join(name)).unwrap().permissions().mode() & 0o777;
        drop(AuditDirectory::create(root.path()).unwrap());
        assert_eq!([mode("audit"), mode("audit/key"), mode("audit/lock")], [0o700, 0o600, 0o600]);
        fs::set_permissions(root.path().join("audit"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(root.path().join("audit/key"), Permissions::from_mode(0o644)).unwrap();
        drop(AuditDirectory::create(root.path()).unwrap());
        assert_eq!([mode("audit"), mode("audit/key")], [0o700, 0o600]);
    }

    #[test]
    fn a_lost_or_damaged_key_is_not_replaced() {
        let root = Dir::new();
        drop(AuditDirectory::create(root.path()).unwrap());
        let key = root.path().join("audit/key");
        fs::write(&key, b"short").unwrap();
        assert!(AuditDirectory::create(root.path()).is_err());
        fs::remove_file(&key).unwrap();
        fs::write(root.path().join("audit/x.jsonl"), b"").unwrap();
        assert!(AuditDirectory::create(root.path()).is_err());
        assert!(!key.exists());
    }

    #[test]
    fn a_head_has_one_length_and_belongs_to_its_file() {
        let root = Dir::new();
        let (store, _lock) = AuditDirectory::create(root.path()).unwrap();
        let line = store.format_head("a.jsonl", 7, &[9; 32]);
        assert_eq!(line.len(), store.format_head("a.jsonl", u64::MAX, &[0; 32]).len());
        fs::write(store.file_path("a.head"), &line).unwrap();
        fs::write(store.file_path("b.head"), &line).unwrap();
        assert_eq!(store.read_head("a.jsonl"), Ok((7, [9; 32])));
        assert!(store.read_head("b.jsonl").is_err());
    }
}
