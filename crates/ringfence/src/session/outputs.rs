//! Full outputs that were too long for a result. They are stored under the root directory while
//! their session exists, so that `file.read output:<id>` can read the rest.
//!
//! A quota limits the total per session and per principal across its sessions. The oldest outputs
//! are dropped to make room for new ones. An output that is still being written is never dropped,
//! because that would not free its disk space; if only such outputs are left, the new one stops
//! growing.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::Principal;
use crate::base::IgnorePoison;
use crate::base::held_dir::HeldDir;
use crate::base::ids::short_id;
use crate::base::{Error, Kind, Result};

/// Quota of one session, in outputs of maximum length (`output_file_mb`).
pub const FILES_PER_SESSION: u64 = 16;
/// Quota of one principal, in outputs of maximum length.
pub const FILES_PER_PRINCIPAL: u64 = 32;
/// Minimum charge for an output, so that the quota also limits the number of small ones.
const MIN_CHARGE_BYTES: u64 = 64 << 10;
/// Number of dropped outputs that are remembered, so that their handles get a specific error.
const MAX_REMEMBERED: usize = 4096;
/// Maximum length of an output where no config sets one.
const DEFAULT_FILE_BYTES: u64 = 64 << 20;

/// Quota and usage of the outputs of one principal, across all its sessions.
pub struct OutputQuota {
    session_bytes: u64,
    principal_bytes: u64,
    ledger: Mutex<OutputLedger>,
}

#[derive(Default)]
struct OutputLedger {
    /// From oldest to newest.
    stored: VecDeque<StoredOutput>,
    dropped: VecDeque<OutputFile>,
}

/// Stored file of a session. Files belong to the same session if they share the `Arc` of its
/// directory.
#[derive(Clone)]
struct OutputFile {
    dir: Arc<PathBuf>,
    id: String,
}

impl OutputFile {
    fn is_in(&self, dir: &Arc<PathBuf>) -> bool {
        Arc::ptr_eq(&self.dir, dir)
    }

    fn remove_file(&self) {
        if let Err(error) = std::fs::remove_file(self.dir.join(&self.id)) {
            tracing::warn!("a stored output cannot be removed: {error}");
        }
    }
}

struct StoredOutput {
    file: OutputFile,
    bytes: u64,
    is_open: bool,
}

impl OutputQuota {
    /// Creates a quota for outputs of at most `file_bytes` bytes each.
    pub fn new(file_bytes: u64) -> Arc<Self> {
        Arc::new(OutputQuota {
            session_bytes: file_bytes.saturating_mul(FILES_PER_SESSION),
            principal_bytes: file_bytes.saturating_mul(FILES_PER_PRINCIPAL),
            ledger: Mutex::default(),
        })
    }

    /// Reserves up to `requested_bytes` more bytes for an output and returns how many it got. Drops
    /// other outputs if necessary.
    fn reserve_bytes(&self, file: &OutputFile, requested_bytes: u64) -> u64 {
        let mut ledger = self.lock();
        let Some(current_bytes) =
            ledger.stored.iter().find(|entry| entry.file.id == file.id).map(|entry| entry.bytes)
        else {
            return 0;
        };
        let needed = current_bytes.saturating_add(requested_bytes).max(MIN_CHARGE_BYTES);
        let granted_bytes = loop {
            let in_session = |entry: &StoredOutput| entry.file.is_in(&file.dir);
            let is_other = |entry: &StoredOutput| entry.file.id != file.id;
            let session_available = self
                .session_bytes
                .saturating_sub(ledger.charged_bytes(|entry| in_session(entry) && is_other(entry)));
            let available = session_available
                .min(self.principal_bytes.saturating_sub(ledger.charged_bytes(is_other)));
            // A session at its own limit drops its own outputs, however old those of other sessions
            // are.
            let is_session_full = session_available < needed;
            if needed <= available
                || !ledger.drop_oldest(|entry| !is_session_full || in_session(entry))
            {
                break available.saturating_sub(current_bytes).min(requested_bytes);
            }
        };
        if let Some(entry) = ledger.stored.iter_mut().find(|entry| entry.file.id == file.id) {
            entry.bytes += granted_bytes;
        }
        granted_bytes
    }

    fn lock(&self) -> MutexGuard<'_, OutputLedger> {
        self.ledger.lock().ignore_poison()
    }
}

impl OutputLedger {
    fn charged_bytes(&self, is_counted: impl Fn(&StoredOutput) -> bool) -> u64 {
        self.stored
            .iter()
            .filter(|entry| is_counted(entry))
            .map(|entry| entry.bytes.max(MIN_CHARGE_BYTES))
            .sum()
    }

    /// Drops the oldest finished output that `may_drop` accepts. Returns whether there was one.
    fn drop_oldest(&mut self, may_drop: impl Fn(&StoredOutput) -> bool) -> bool {
        let oldest = self.stored.iter().position(|entry| !entry.is_open && may_drop(entry));
        let Some(entry) = oldest.and_then(|index| self.stored.remove(index)) else { return false };
        entry.file.remove_file();
        if self.dropped.len() == MAX_REMEMBERED {
            self.dropped.pop_front();
        }
        self.dropped.push_back(entry.file);
        true
    }
}

/// Quotas of all principals that have a session.
#[derive(Default)]
pub struct OutputQuotas(Mutex<HashMap<Principal, Weak<OutputQuota>>>);

impl OutputQuotas {
    /// Returns the quota that all sessions of a principal share.
    pub fn for_principal(&self, principal: &Principal, file_bytes: u64) -> Arc<OutputQuota> {
        let mut quotas = self.0.lock().ignore_poison();
        if let Some(existing) = quotas.get(principal).and_then(Weak::upgrade) {
            return existing;
        }
        quotas.retain(|_, quota| quota.strong_count() > 0);
        let quota = OutputQuota::new(file_bytes);
        quotas.insert(principal.clone(), Arc::downgrade(&quota));
        quota
    }
}

/// Stored outputs of one session.
pub struct OutputStore {
    dir: Arc<PathBuf>,
    quota: Arc<OutputQuota>,
    /// Created with the first output.
    held_dir: Mutex<Option<HeldDir>>,
}

impl OutputStore {
    /// Creates a store whose quota is not shared with any other session.
    pub fn new(dir: PathBuf) -> Self {
        OutputStore::with_quota(dir, OutputQuota::new(DEFAULT_FILE_BYTES))
    }

    /// Creates a store that shares `quota` with other sessions.
    pub fn with_quota(dir: PathBuf, quota: Arc<OutputQuota>) -> Self {
        OutputStore { dir: Arc::new(dir), quota, held_dir: Mutex::default() }
    }

    /// Creates an empty output.
    pub fn create_output(&self) -> Result<OpenOutput> {
        let storage_error =
            |error: io::Error| Error::internal("cannot store the output").with_source(error);
        let mut held_dir = self.held_dir.lock().ignore_poison();
        if held_dir.is_none() {
            *held_dir = Some(HeldDir::create(self.dir.to_path_buf()).map_err(storage_error)?);
        }
        drop(held_dir);
        let id = short_id("o");
        let path = self.dir.join(&id);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(storage_error)?;
        let output_file = OutputFile { dir: Arc::clone(&self.dir), id: id.clone() };
        self.quota.lock().stored.push_back(StoredOutput {
            file: output_file.clone(),
            bytes: 0,
            is_open: true,
        });
        let output = OpenOutput {
            handle: format!("output:{id}"),
            file,
            output_file,
            quota: Arc::clone(&self.quota),
        };
        // Charge the minimum even if the output stays empty.
        output.reserve_bytes(0);
        Ok(output)
    }

    /// Opens the output `output:<id>` of this session.
    pub fn open_output(&self, handle: &str) -> Result<File> {
        let not_found = || {
            Error::new(Kind::NotFound, "there is no such output in this session")
                .with_hint("Use the `output:` handle exactly as a result gave it; outputs end with their session.")
        };
        let id = handle.strip_prefix("output:").ok_or_else(not_found)?;
        // Accept only ids in our own format, so that no text from a caller becomes a path.
        let is_well_formed = id
            .strip_prefix("o-")
            .is_some_and(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        if !is_well_formed {
            return Err(not_found());
        }
        let is_dropped =
            || self.quota.lock().dropped.iter().any(|file| file.id == id && file.is_in(&self.dir));
        File::open(self.dir.join(id)).map_err(|error| match is_dropped() {
            true => Error::new(
                Kind::NotFound,
                "this output was dropped to make room for newer ones",
            )
            .with_reason("output_dropped")
            .with_hint(
                "Run the command again and read its output before other long outputs follow.",
            ),
            false => not_found().with_source(error),
        })
    }
}

impl Drop for OutputStore {
    fn drop(&mut self) {
        let mut ledger = self.quota.lock();
        ledger.stored.retain(|entry| !entry.file.is_in(&self.dir));
        ledger.dropped.retain(|file| !file.is_in(&self.dir));
    }
}

/// Output that is being written. When this is dropped the file stays, and may then be dropped to
/// make room.
pub struct OpenOutput {
    /// Handle to read it by (`output:o-…`).
    pub handle: String,
    file: File,
    output_file: OutputFile,
    quota: Arc<OutputQuota>,
}

impl OpenOutput {
    /// Reserves up to `requested_bytes` bytes of the quota and returns how many may be written.
    pub fn reserve_bytes(&self, requested_bytes: u64) -> u64 {
        self.quota.reserve_bytes(&self.output_file, requested_bytes)
    }

    /// Returns another descriptor of the file, for a writer that makes its own reservations.
    pub fn clone_file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Removes the file and invalidates its handle.
    pub fn discard(self) {
        self.quota.lock().stored.retain(|entry| entry.file.id != self.output_file.id);
        self.output_file.remove_file();
    }
}

impl Write for OpenOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let accepted =
            usize::try_from(self.reserve_bytes(bytes.len() as u64)).unwrap_or(usize::MAX);
        match accepted {
            0 if !bytes.is_empty() => Err(io::ErrorKind::QuotaExceeded.into()),
            // Write everything that was reserved, or the usage would be wrong.
            _ => self.file.write_all(&bytes[..accepted]).map(|()| accepted),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OpenOutput {
    fn drop(&mut self) {
        if let Some(entry) =
            self.quota.lock().stored.iter_mut().find(|entry| entry.file.id == self.output_file.id)
        {
            entry.is_open = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    const FILE: u64 = 100_000;

    fn store(outputs: &OutputStore, bytes: u64) -> String {
        let mut output = outputs.create_output().unwrap();
        output.write_all(&vec![b'x'; bytes as usize]).unwrap();
        output.handle.clone()
    }

    fn reason(outputs: &OutputStore, handle: &str) -> Option<&'static str> {
        outputs.open_output(handle).err().map(|error| error.reason_name().unwrap_or("none"))
    }

    fn on_disk(dir: &std::path::Path) -> u64 {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }

    #[test]
    fn the_oldest_outputs_of_a_session_are_dropped_and_say_so() {
        let scratch = Scratch::new();
        let dir = scratch.path().join("s-1");
        let outputs = OutputStore::with_quota(dir.clone(), OutputQuota::new(FILE));
        let handles: Vec<String> =
            (0..FILES_PER_SESSION + 2).map(|_| store(&outputs, FILE)).collect();
        assert_eq!(on_disk(&dir), FILES_PER_SESSION * FILE);
        for (at, handle) in handles.iter().enumerate() {
            assert_eq!(reason(&outputs, handle), (at < 2).then_some("output_dropped"), "{at}");
        }
        let error = outputs.open_output(&handles[0]).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.hint_text().is_some_and(|hint| hint.contains("again")));
        assert_eq!(reason(&outputs, "output:o-0123456789abcdef"), Some("none"));
    }

    #[test]
    fn small_and_empty_outputs_count_too() {
        let scratch = Scratch::new();
        let outputs =
            OutputStore::with_quota(scratch.path().join("s-1"), OutputQuota::new(MIN_CHARGE_BYTES));
        let handles: Vec<String> =
            (0..=FILES_PER_SESSION).map(|at| store(&outputs, at % 2)).collect();
        assert_eq!(reason(&outputs, &handles[0]), Some("output_dropped"));
        assert_eq!(reason(&outputs, &handles[1]), None);
    }

    #[test]
    fn what_is_being_written_stays_and_the_new_one_stops() {
        let scratch = Scratch::new();
        let dir = scratch.path().join("s-1");
        let outputs = OutputStore::with_quota(dir.clone(), OutputQuota::new(FILE));
        let mut open: Vec<OpenOutput> =
            (0..FILES_PER_SESSION).map(|_| outputs.create_output().unwrap()).collect();
        for output in &mut open {
            output.write_all(&vec![b'x'; FILE as usize]).unwrap();
        }
        let mut late = outputs.create_output().unwrap();
        let refused = late.write_all(b"more").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        assert_eq!(on_disk(&dir), FILES_PER_SESSION * FILE);
        // One that has ended makes room.
        let ended = open.remove(0).handle.clone();
        late.write_all(b"more").unwrap();
        assert_eq!(reason(&outputs, &ended), Some("output_dropped"));
        late.discard();
        assert_eq!(on_disk(&dir), (FILES_PER_SESSION - 1) * FILE);
    }

    #[test]
    fn the_sessions_of_a_principal_share_a_total_and_an_ended_one_gives_its_part_back() {
        let scratch = Scratch::new();
        let quotas = OutputQuotas::default();
        let session = |principal: &str, id: &str| {
            let quota = quotas.for_principal(&Principal::from_name(principal), FILE);
            OutputStore::with_quota(scratch.path().join(id), quota)
        };
        let (first, second, third) =
            (session("anna", "s-1"), session("anna", "s-2"), session("anna", "s-3"));
        let other = session("bert", "s-4");
        let of_other = store(&other, FILE);
        let oldest = store(&first, FILE);
        for outputs in [&first, &second] {
            for _ in 1..FILES_PER_SESSION {
                store(outputs, FILE);
            }
        }
        let last = store(&second, FILE);
        assert_eq!(reason(&first, &oldest), None, "the principal has its total");
        let more = store(&third, FILE);
        assert_eq!(reason(&first, &oldest), Some("output_dropped"));
        assert_eq!(
            (reason(&second, &last), reason(&third, &more), reason(&other, &of_other)),
            (None, None, None)
        );
        drop(first);
        let kept = store(&third, FILE);
        for _ in 3..FILES_PER_SESSION {
            store(&third, FILE);
        }
        assert_eq!((reason(&second, &last), reason(&third, &kept)), (None, None));
    }
}
