//! Writes the log: one file of this process at a time, its head, and the rotation to the next file.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::chain::{self, AuditEntry, FIRST_MAC, Mac, RecordLink, RecordMembers, SealedLine};
use super::store::{
    AuditDirectory, LATEST, NEW_LATEST, NEW_LOG, create_new, head_name, new_file_name,
};
use super::to_object;
use crate::base::workspace::quick_read::is_on_local_file_system;

/// Maximum number of records kept in memory until they can be written.
const MAX_BACKLOG: usize = 4096;

pub(super) struct AuditSink {
    store: AuditDirectory,
    rotate_bytes: u64,
    /// None if a rotation failed half way: the next record opens a file.
    current: Option<LogFile>,
    backlog: VecDeque<AuditEntry>,
    closed: bool,
}

impl AuditSink {
    pub(super) fn open(root: &Path, rotate_bytes: u64) -> io::Result<Self> {
        let (store, _lock) = AuditDirectory::create(root)?;
        let file = LogFile::open(&store)?;
        Ok(AuditSink {
            store,
            rotate_bytes,
            current: Some(file),
            backlog: VecDeque::new(),
            closed: false,
        })
    }

    /// Writes the backlog and then this entry. If it returns an error, nothing of `entry` is in the
    /// log.
    pub(super) fn write(&mut self, entry: &AuditEntry) -> io::Result<()> {
        self.write_backlog()?;
        self.append_entry(entry)
    }

    /// Writes an entry about something that has already happened and must not be lost: if it cannot
    /// be written now, it is written before the next record.
    pub(super) fn write_or_queue(&mut self, entry: AuditEntry) -> io::Result<()> {
        let result = self.write(&entry);
        if result.is_err() {
            if self.backlog.len() < MAX_BACKLOG {
                self.backlog.push_back(entry);
            } else {
                let lost = Value::Object(entry.members().parse());
                tracing::error!("too many audit records are waiting to be written; lost: {lost}");
            }
        }
        result
    }

    pub(super) fn close(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        self.write_backlog()?;
        if let Some(file) = &mut self.current {
            file.write(&self.store, &closing_entry())?;
        }
        self.closed = true;
        match self.current.take() {
            // Only a sync can tell whether another machine has stored the records.
            Some(file) if !is_on_local_file_system(&file.file) => file.sync(&self.store),
            Some(file) => {
                file.start_writeback();
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write_backlog(&mut self) -> io::Result<()> {
        while let Some(entry) = self.backlog.pop_front() {
            if let Err(error) = self.append_entry(&entry) {
                self.backlog.push_front(entry);
                return Err(error);
            }
        }
        Ok(())
    }

    fn append_entry(&mut self, entry: &AuditEntry) -> io::Result<()> {
        if self.closed {
            return Err(io::Error::other("the audit log was closed"));
        }
        // If rotation is not possible now (no room for a file, the lock is taken), keep using the
        // old file.
        if let Some(file) =
            self.current.take_if(|file| file.seq > 1 && file.size >= self.rotate_bytes)
        {
            self.current = self.rotate_file(file);
        }
        let file = match &mut self.current {
            Some(file) => file,
            slot => {
                let _lock = self.store.lock()?;
                slot.insert(LogFile::open(&self.store)?)
            }
        };
        file.write(&self.store, entry)
    }

    /// Starts the next file if the current one was started at least `age` ago, so that a server
    /// that runs for months leaves files that can be pruned.
    pub(super) fn rotate_older_than(&mut self, age: Duration) {
        let is_old = |file: &LogFile| file.opened.elapsed().is_ok_and(|elapsed| elapsed >= age);
        if let Some(file) = self.current.take_if(|file| file.seq > 1 && is_old(file)) {
            self.current = self.rotate_file(file);
        }
    }

    /// Returns the file to continue with: the next one; or the same one, if it was not closed; or
    /// none, if it was closed and the next one could not be created.
    fn rotate_file(&self, mut old: LogFile) -> Option<LogFile> {
        let warn = |error: io::Error| tracing::warn!("the audit log was not rotated: {error}");
        let _lock = match self.store.try_lock() {
            Ok(Some(lock)) => lock,
            Ok(None) => return Some(old),
            Err(error) => {
                warn(error);
                return Some(old);
            }
        };
        let name = new_file_name();
        // The next header links the closing record, so the closing record's mac is computed before
        // it is written. It is written only once the next file has its space on disk.
        let closing_line = old.seal_entry(
            &self.store,
            &new_entry("close", &to_object(json!({"reason": "rotate", "next": name}))),
        );
        let closing_link = RecordLink::new(&old.name, closing_line.seq, &closing_line.mac);
        let next_file = match NewLogFile::prepare(&self.store, &name, Some(closing_link)) {
            Ok(next_file) => next_file,
            Err(error) => {
                warn(error);
                return Some(old);
            }
        };
        if let Err(error) = old.append_line(&self.store, &closing_line) {
            warn(error);
            next_file.discard();
            return Some(old);
        }
        if let Err(error) = old.file.sync_all() {
            tracing::warn!("the closed audit file may not be on disk yet: {error}");
        }
        next_file.publish().map_err(warn).ok()
    }
}

fn new_entry(event: &'static str, fields: &Map<String, Value>) -> AuditEntry {
    AuditEntry::new(event, RecordMembers::unredacted(fields))
}

/// Returns the closing record of a file that ends in order.
fn closing_entry() -> AuditEntry {
    new_entry("close", &to_object(json!({"reason": "end"})))
}

/// Log file that this process writes.
pub(super) struct LogFile {
    name: String,
    path: PathBuf,
    /// Locked as long as the process lives: that is how a reader distinguishes a file in use from a
    /// crashed one.
    file: File,
    head: File,
    identity: (u64, u64),
    size: u64,
    seq: u64,
    mac: Mac,
    /// True if bytes of a failed write may follow the last record.
    torn: bool,
    opened: SystemTime,
}

impl LogFile {
    /// Opens a new file. The caller holds the directory lock.
    pub(super) fn open(store: &AuditDirectory) -> io::Result<LogFile> {
        NewLogFile::prepare(store, &new_file_name(), None)?.publish()
    }

    /// Writes a record in full or not at all, as [`LogFile::append_line`].
    pub(super) fn write(&mut self, store: &AuditDirectory, entry: &AuditEntry) -> io::Result<()> {
        let line = self.seal_entry(store, entry);
        self.append_line(store, &line)
    }

    /// Returns once records, head and file names are on disk.
    pub(super) fn sync(&self, store: &AuditDirectory) -> io::Result<()> {
        self.file.sync_all()?;
        self.head.sync_all()?;
        store.sync_directory()
    }

    /// Has the kernel write the records to the disk now and not within its half minute, but does
    /// not wait for it: the client of a server waits for the server's end. This is no more than a
    /// hint, so a file system that does not take it is no error.
    fn start_writeback(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// Writes the closing record and syncs the file.
    pub(super) fn close(mut self, store: &AuditDirectory) -> io::Result<()> {
        self.write(store, &closing_entry())?;
        self.sync(store)
    }

    fn seal_entry(&self, store: &AuditDirectory, entry: &AuditEntry) -> SealedLine {
        chain::seal_entry(&store.key, &self.mac, self.seq + 1, entry)
    }

    /// Appends a line in full or not at all: after an error the file is truncated to the previous
    /// record, now or before the next write.
    fn append_line(&mut self, store: &AuditDirectory, line: &SealedLine) -> io::Result<()> {
        self.truncate_torn()?;
        self.check_identity()?;
        let result = write_once(&mut self.file, &line.bytes).and_then(|()| {
            self.head.write_all_at(&store.format_head(&self.name, line.seq, &line.mac), 0)
        });
        if let Err(error) = result {
            self.torn = true;
            // If this fails too, the next append retries it first.
            let _ = self.truncate_torn();
            return Err(error);
        }
        self.size += line.bytes.len() as u64;
        self.seq = line.seq;
        self.mac = line.mac;
        Ok(())
    }

    fn truncate_torn(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.size)?;
            self.torn = false;
        }
        Ok(())
    }

    /// Checks that the name still refers to this file, as we left it: a write to a removed file
    /// would succeed and be lost.
    fn check_identity(&self) -> io::Result<()> {
        let metadata = fs::symlink_metadata(&self.path)?;
        if (metadata.dev(), metadata.ino()) != self.identity {
            return Err(io::Error::other("the audit file was removed or replaced"));
        }
        if metadata.len() != self.size {
            return Err(io::Error::other("the audit file was changed by another process"));
        }
        Ok(())
    }
}

/// Writes with a single write(2), so that a record is never split unless the disk is full.
fn write_once(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    loop {
        match file.write(bytes) {
            Ok(count) if count == bytes.len() => return Ok(()),
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "only a part of the record was written",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// New file with its header, complete except for its name. A crash may interrupt these steps
/// anywhere: a head for a header alone without its file, or a file that `latest` does not name yet,
/// does no harm.
struct NewLogFile {
    log: LogFile,
    temporary_path: PathBuf,
    latest: NewLatest,
    head_path: PathBuf,
}

/// How `latest` gets its new content. To rename over an existing file makes some file systems write
/// its data to the disk at once, and a client waits for that when a server starts.
enum NewLatest {
    InPlace { file: File, content: Vec<u8> },
    Renamed { from: PathBuf, to: PathBuf },
}

impl NewLatest {
    fn prepare(store: &AuditDirectory, name: &str) -> io::Result<NewLatest> {
        let content = store.format_latest(name);
        if let Some(file) = store.open_latest() {
            return Ok(NewLatest::InPlace { file, content });
        }
        let (from, mut file) = store.create_temporary(NEW_LATEST)?;
        let latest = NewLatest::Renamed { from: from.clone(), to: store.file_path(LATEST) };
        if let Err(error) = file.write_all(&content) {
            drop(CreatedFiles(vec![from]));
            return Err(error);
        }
        Ok(latest)
    }

    fn publish(&self) -> io::Result<()> {
        match self {
            NewLatest::InPlace { file, content } => file.write_all_at(content, 0),
            NewLatest::Renamed { from, to } => fs::rename(from, to),
        }
    }

    fn temporary_path(&self) -> Option<&PathBuf> {
        match self {
            NewLatest::InPlace { .. } => None,
            NewLatest::Renamed { from, .. } => Some(from),
        }
    }
}

impl NewLogFile {
    fn prepare(
        store: &AuditDirectory,
        name: &str,
        closing_link: Option<RecordLink>,
    ) -> io::Result<NewLogFile> {
        let (mut predecessor, damage) = store.newest_link()?;
        // The file opened last may be the one about to be closed: then its last record is the
        // closing one.
        if let (Some(last), Some(closing)) = (&predecessor, &closing_link)
            && last.file == closing.file
        {
            predecessor = closing_link.clone();
        }
        let mut header = to_object(json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "file": name,
            "predecessor": predecessor.as_ref().map(RecordLink::to_json),
        }));
        if let Some(closing) = &closing_link {
            header.insert("continues".into(), closing.to_json());
        }
        if let Some(description) = damage {
            header.insert("latest_damaged".into(), description.into());
        }
        let line = chain::seal_entry(&store.key, &FIRST_MAC, 1, &new_entry("open", &header));

        let mut created_files = CreatedFiles(Vec::new());
        let head_path = store.file_path(&head_name(name));
        let head = create_new(&head_path, false)?;
        created_files.0.push(head_path.clone());
        head.write_all_at(&store.format_head(name, line.seq, &line.mac), 0)?;
        let latest = NewLatest::prepare(store, name)?;
        created_files.0.extend(latest.temporary_path().cloned());
        let (temporary_path, mut file) = store.create_temporary(NEW_LOG)?;
        created_files.0.push(temporary_path.clone());
        file.lock()?;
        write_once(&mut file, &line.bytes)?;
        let identity = file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))?;
        created_files.0.clear();

        let log = LogFile {
            name: name.to_owned(),
            path: store.file_path(name),
            file,
            head,
            identity,
            size: line.bytes.len() as u64,
            seq: line.seq,
            mac: line.mac,
            torn: false,
            opened: SystemTime::now(),
        };
        Ok(NewLogFile { log, temporary_path, latest, head_path })
    }

    fn publish(self) -> io::Result<LogFile> {
        let renamed = fs::rename(&self.temporary_path, &self.log.path);
        if let Err(error) = renamed.and_then(|()| self.latest.publish()) {
            self.discard();
            return Err(error);
        }
        Ok(self.log)
    }

    fn discard(self) {
        let mut created_files = vec![self.temporary_path, self.log.path, self.head_path];
        created_files.extend(self.latest.temporary_path().cloned());
        drop(CreatedFiles(created_files));
    }
}

/// Removes the created files on drop, unless cleared. The log is removed before its head, as after
/// a crash.
struct CreatedFiles(Vec<PathBuf>);

impl Drop for CreatedFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("left over in the audit directory: {error}");
            }
        }
    }
}
