//! Our own store: one sealed file that only its owner can open.
//!
//! The key is next to it unless it is named. So the file alone, in a backup or on a lost disk,
//! reveals nothing if the key is elsewhere; against the user who runs the server, and root, it
//! protects nothing. Logins to other servers are in a second file with the same key.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, openat, renameat,
    renameat_with, statat, unlinkat,
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::private_file::{self, TrustedOwner, io_error, refused_error};
use super::store_kind::StoreKind;
use super::{is_secret_name, unix_seconds};
use crate::base::ids::{random_bytes, short_id};
use crate::base::seal::Sealer;
use crate::base::{Error, Kind, Result};
use crate::redact::secret::Secret;

/// Maximum length of one value.
pub const MAX_VALUE_BYTES: usize = 64 << 10;
const MAX_SECRETS: usize = 1000;
const MAX_KEY_BYTES: u64 = 128;
const FORMAT_VERSION: u32 = 1;

/// A secret and its metadata.
#[derive(Debug, Clone)]
pub struct StoredSecret {
    pub value: Secret,
    /// Seconds since 1970.
    pub set_at: u64,
    pub expires_at: Option<u64>,
}

/// A store below a server's root.
#[derive(Debug, Clone)]
pub struct SecretStore {
    kind: StoreKind,
    root: PathBuf,
    key_file: Option<PathBuf>,
}

/// The file on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreFile {
    version: u32,
    sealed: String,
}

/// The sealed contents. Values are in base64, since they need not be text.
#[derive(Default, Serialize, Deserialize)]
struct StoreContents(BTreeMap<String, SealedSecret>);

#[derive(Serialize, Deserialize)]
struct SealedSecret {
    value: String,
    set: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

impl Drop for SealedSecret {
    fn drop(&mut self) {
        self.value.zeroize();
    }
}

impl SecretStore {
    /// Creates the store of the operator's secrets in this root, with its key at another location if
    /// one is given.
    pub fn new(root: &Path, key_file: Option<PathBuf>) -> SecretStore {
        SecretStore { kind: StoreKind::Secrets, root: root.to_owned(), key_file }
    }

    /// Returns the store of logins, which has the same key.
    pub fn to_login_store(&self) -> SecretStore {
        SecretStore { kind: StoreKind::Logins, ..self.clone() }
    }

    /// Returns the directory of the store.
    pub fn directory(&self) -> PathBuf {
        self.root.join(self.kind.directory())
    }

    /// Returns the files to watch for changes.
    pub fn watched_files(&self) -> Vec<PathBuf> {
        vec![self.directory(), self.directory().join("store"), self.key_path()]
    }

    fn key_dir(&self) -> PathBuf {
        self.root.join(StoreKind::Secrets.directory())
    }

    fn key_path(&self) -> PathBuf {
        self.key_file.clone().unwrap_or_else(|| self.key_dir().join("key"))
    }

    fn display_name(&self) -> String {
        let path = self.directory().join("store");
        match self.kind {
            StoreKind::Secrets => format!("the secret store {}", path.display()),
            StoreKind::Logins => format!("the store of logins {}", path.display()),
        }
    }

    /// Reads all secrets. A store that was never written is empty.
    pub fn read_all(&self) -> Result<BTreeMap<String, StoredSecret>> {
        let Some(dir) = open_private_dir(&self.directory())? else { return Ok(BTreeMap::new()) };
        let contents = self.read_contents(&dir)?;
        contents
            .0
            .into_iter()
            .map(|(name, sealed)| Ok((name, self.decode_secret(&sealed)?)))
            .collect()
    }

    fn decode_secret(&self, sealed: &SealedSecret) -> Result<StoredSecret> {
        let value = URL_SAFE_NO_PAD.decode(sealed.value.as_bytes());
        let value = value.map_err(|error| self.damaged_error().with_source(error))?;
        Ok(StoredSecret {
            value: Secret::new(value),
            set_at: sealed.set,
            expires_at: sealed.expires,
        })
    }

    /// Opens a file to lock, next to the store.
    pub fn open_lock_file(&self, name: &str) -> Result<File> {
        let dir = self.create_dir(&self.directory())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&dir, name, flags, Mode::from_raw_mode(0o600));
        file.map(File::from).map_err(|error| {
            io_error(&format!("a lock of {}", self.display_name()), "cannot be opened", error)
        })
    }

    /// Writes a value, replacing any value of that name.
    pub fn put_secret(&self, name: &str, value: &Secret, expires: Option<u64>) -> Result<()> {
        match self.kind {
            StoreKind::Secrets => check_secret(name, value)?,
            StoreKind::Logins => check_length(name, value)?,
        }
        self.change_contents(|contents| {
            let value = URL_SAFE_NO_PAD.encode(value.expose());
            contents
                .0
                .insert(name.to_owned(), SealedSecret { value, set: unix_seconds(), expires });
            true
        })
        .map(|_| ())
    }

    /// Removes a value. Returns whether it existed.
    pub fn remove(&self, name: &str) -> Result<bool> {
        match open_private_dir(&self.directory())? {
            None => Ok(false),
            Some(_) => self.change_contents(|contents| contents.0.remove(name).is_some()),
        }
    }

    /// Changes the contents under the lock and replaces the file atomically. A store that cannot be
    /// read is left unchanged.
    fn change_contents(&self, change: impl FnOnce(&mut StoreContents) -> bool) -> Result<bool> {
        let failed =
            |error: rustix::io::Errno| io_error(&self.display_name(), "cannot be written", error);
        let (dir, key_dir) =
            (self.create_dir(&self.directory())?, self.create_dir(&self.key_dir())?);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // One lock for all stores, because they share a key that the first change creates.
        let lock = openat(&key_dir, "lock", flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(failed)?;
        let mut contents = self.read_contents(&dir)?;
        if !change(&mut contents) {
            return Ok(false);
        }
        if contents.0.len() > MAX_SECRETS {
            return Err(too_large_error(&format!("the store already holds {MAX_SECRETS} secrets")));
        }
        let sealer = match self.load_sealer()? {
            Some(sealer) => sealer,
            None => self.create_key(&key_dir)?,
        };
        let sealed = sealer.seal(self.kind.seal_purpose(), &contents)?;
        let store_file = StoreFile { version: FORMAT_VERSION, sealed };
        let text = serde_json::to_vec(&store_file)
            .map_err(|error| io_error(&self.display_name(), "cannot be written", error))?;
        if text.len() as u64 > self.kind.max_bytes() {
            return Err(too_large_error(match self.kind {
                StoreKind::Secrets => "all secrets together are too large",
                StoreKind::Logins => "all logins together are too large",
            }));
        }
        self.replace_file(&dir, &text)
            .map_err(|error| io_error(&self.display_name(), "cannot be written", error))?;
        Ok(true)
    }

    fn replace_file(&self, dir: &OwnedFd, text: &[u8]) -> std::io::Result<()> {
        // Left behind by a process that was killed at this point; we hold the lock.
        match unlinkat(dir, "store.new", AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        write_new_file(dir, Path::new("store.new"), text)?;
        renameat(dir, "store.new", dir, "store")?;
        Ok(rustix::fs::fsync(dir)?)
    }

    fn create_dir(&self, path: &Path) -> Result<OwnedFd> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|error| io_error(&self.display_name(), "cannot be made", error))?;
        open_private_dir(path)?
            .ok_or_else(|| refused_error(&self.display_name(), "has no directory"))
    }

    fn read_contents(&self, dir: &OwnedFd) -> Result<StoreContents> {
        let Some(bytes) = private_file::read_private_file(
            dir,
            Path::new("store"),
            &self.display_name(),
            TrustedOwner::Us,
            self.kind.max_bytes(),
        )?
        else {
            return Ok(StoreContents::default());
        };
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let version: Version = serde_json::from_slice(&bytes)
            .map_err(|error| self.damaged_error().with_source(error))?;
        if version.version > FORMAT_VERSION {
            return Err(refused_error(&self.display_name(), "was written by a newer version")
                .with_hint("Use that version of ringfence."));
        }
        let store_file: StoreFile = serde_json::from_slice(&bytes)
            .map_err(|error| self.damaged_error().with_source(error))?;
        let Some(sealer) = self.load_sealer()? else {
            return Err(refused_error(&format!("the key of {}", self.display_name()), "is missing").with_hint(format!(
                "Put it back at {}, or name it with RINGFENCE_SECRETS_KEY_FILE. If it is lost, move the store away and set the secrets again.",
                self.key_path().display()
            )));
        };
        sealer
            .open(self.kind.seal_purpose(), &store_file.sealed)
            .ok_or_else(|| self.damaged_error())
    }

    fn damaged_error(&self) -> Error {
        refused_error(&self.display_name(), "is damaged, or this is not its key").with_hint(format!(
            "Check that {} is its key, or restore both from a backup; else move the store away and set the secrets again. It is never overwritten.",
            self.key_path().display()
        ))
    }

    fn load_sealer(&self) -> Result<Option<Sealer>> {
        let label = format!("the key of the secrets {}", self.key_path().display());
        let bytes = match (&self.key_file, open_private_dir(&self.key_dir())?) {
            (Some(path), _) => private_file::read_private_file(
                CWD,
                path,
                &label,
                TrustedOwner::UsOrRoot,
                MAX_KEY_BYTES,
            )?,
            (None, Some(dir)) => private_file::read_private_file(
                &dir,
                Path::new("key"),
                &label,
                TrustedOwner::Us,
                MAX_KEY_BYTES,
            )?,
            (None, None) => None,
        };
        let Some(bytes) = bytes.map(Zeroizing::new) else { return Ok(None) };
        // Created but never written, because the disk was full or the machine stopped. If a store
        // exists, the key is lost.
        if bytes.is_empty() && !self.has_any_store() {
            return Ok(None);
        }
        let key = URL_SAFE_NO_PAD.decode(bytes.trim_ascii()).ok().map(Zeroizing::new);
        let key = key.and_then(|key| <[u8; 32]>::try_from(&key[..]).ok()).ok_or_else(|| {
            refused_error(&label, "is not a valid key").with_hint(
                "It must hold 43 base64 characters, as written by `ringfence secret set`.",
            )
        })?;
        Sealer::with_key(&key).map(Some)
    }

    /// Returns whether anything was sealed with the key of this root.
    fn has_any_store(&self) -> bool {
        StoreKind::ALL.into_iter().any(|kind| {
            let file = self.root.join(kind.directory()).join("store");
            statat(CWD, &file, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        })
    }

    /// Creates the key of a root that has none yet. Never replaces another.
    fn create_key(&self, dir: &OwnedFd) -> Result<Sealer> {
        let label = format!("the key of the secrets {}", self.key_path().display());
        if self.has_any_store() {
            return Err(refused_error(&label, "is missing"));
        }
        let key = Zeroizing::new(random_bytes::<32>());
        let text = Zeroizing::new(format!("{}\n", URL_SAFE_NO_PAD.encode(&key[..])));
        let write_result = match &self.key_file {
            Some(path) => create_atomically(CWD, path, text.as_bytes()),
            None => create_atomically(dir, Path::new("key"), text.as_bytes()),
        };
        write_result.map_err(|error| io_error(&label, "cannot be written", error))?;
        Sealer::with_key(&key)
    }
}

/// Opens a directory that only its owner can enter; `None` before anything was stored.
fn open_private_dir(path: &Path) -> Result<Option<OwnedFd>> {
    let label = format!("the directory of secrets {}", path.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Ok(dir) => {
            let stat = fstat(&dir).map_err(|error| io_error(&label, "cannot be opened", error))?;
            private_file::check_permissions(&stat, &label, TrustedOwner::Us, "700")?;
            Ok(Some(dir))
        }
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(io_error(&label, "cannot be opened", error)),
    }
}

/// Creates a file atomically. It replaces nothing but an empty file.
fn create_atomically(dir: impl AsFd, path: &Path, text: &[u8]) -> std::io::Result<()> {
    let dir = dir.as_fd();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary_path = path.with_file_name(format!(".{name}.{}", short_id("new")));
    write_new_file(dir, &temporary_path, text)?;
    let publish = || {
        if statat(dir, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_size == 0) {
            unlinkat(dir, path, AtFlags::empty())?;
        }
        renameat_with(dir, &temporary_path, dir, path, RenameFlags::NOREPLACE)?;
        let folder =
            path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        rustix::fs::fsync(openat(
            dir,
            folder,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    };
    publish().map_err(|error| {
        let _ = unlinkat(dir, &temporary_path, AtFlags::empty());
        error.into()
    })
}

fn write_new_file(dir: impl AsFd, path: &Path, text: &[u8]) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(dir, path, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(text)?;
    file.sync_all()
}

/// Checks that a name and a value can be a secret at all: programs get it as a variable or an
/// argument.
pub(super) fn check_secret(name: &str, value: &Secret) -> Result<()> {
    if !is_secret_name(name) {
        return Err(Error::invalid_arguments("that is not a valid name for a secret")
            .with_hint("Use up to 128 letters, digits and `_`, not starting with a digit: `ringfence secret set DB_PASSWORD`."));
    }
    let value_error =
        |problem: &str| Error::invalid_arguments(format!("the value of `{name}` {problem}"));
    match value.expose() {
        [] => Err(value_error("is empty").with_hint("Type it, or send it to standard input.")),
        bytes if bytes.contains(&0) => {
            Err(value_error("contains a NUL, which cannot be passed to a program")
                .with_hint("Encode it."))
        }
        _ => check_length(name, value),
    }
}

fn check_length(name: &str, value: &Secret) -> Result<()> {
    match value.expose().len() > MAX_VALUE_BYTES {
        true => Err(too_large_error(&format!(
            "the value of `{name}` has more than {MAX_VALUE_BYTES} bytes"
        ))),
        false => Ok(()),
    }
}

fn too_large_error(message: &str) -> Error {
    Error::new(Kind::TooLarge, message).with_hint("Store less.")
}
