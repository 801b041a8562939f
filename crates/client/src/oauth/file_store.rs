//! Logins in files that only their owner can read.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::BoxFuture;

use super::secret::SecretText;
use super::store::{CredentialStore, StoreLock};
use crate::error::{ClientError, ErrorKind, Result};

/// Longest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Time between two attempts to take a lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Keeps each login in a file of its own (mode 0600, replaced atomically), in a directory that only
/// its owner can enter. The tokens are not encrypted.
#[derive(Debug, Clone)]
pub struct FileCredentialStore {
    directory: PathBuf,
}

impl FileCredentialStore {
    /// Creates the store. The directory is created with the first login.
    pub fn new(directory: impl Into<PathBuf>) -> FileCredentialStore {
        FileCredentialStore { directory: directory.into() }
    }

    /// Returns the file of a server. Its name shows the id, and a digest makes it unique.
    fn path(&self, server_id: &str, extension: &str) -> PathBuf {
        let shown = server_id.chars().take(40);
        let shown = shown.map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' });
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, server_id.as_bytes());
        let digest: String = digest.as_ref().iter().take(8).map(|b| format!("{b:02x}")).collect();
        self.directory.join(format!("{}-{digest}.{extension}", shown.collect::<String>()))
    }

    fn create_directory(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)
    }
}

impl CredentialStore for FileCredentialStore {
    fn load<'a>(&'a self, server_id: &'a str) -> BoxFuture<'a, Result<Option<SecretText>>> {
        let path = self.path(server_id, "json");
        Box::pin(run_blocking("read", path.clone(), move || read_file(&path)))
    }

    fn save<'a>(&'a self, server_id: &'a str, text: SecretText) -> BoxFuture<'a, Result<()>> {
        let (store, path) = (self.clone(), self.path(server_id, "json"));
        Box::pin(run_blocking("write", path.clone(), move || {
            store.create_directory()?;
            replace_file(&path, text.expose())
        }))
    }

    fn clear<'a>(&'a self, server_id: &'a str) -> BoxFuture<'a, Result<()>> {
        let path = self.path(server_id, "json");
        Box::pin(run_blocking("remove", path.clone(), move || match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }))
    }

    fn lock<'a>(&'a self, server_id: &'a str) -> BoxFuture<'a, Result<StoreLock>> {
        let path = self.path(server_id, "lock");
        Box::pin(async move {
            let (store, lock_path) = (self.clone(), path.clone());
            let file = run_blocking("lock", path.clone(), move || {
                store.create_directory()?;
                private_file().create(true).truncate(false).open(lock_path)
            })
            .await?;
            // A thread that waits for the lock in the kernel could not be told to stop waiting.
            loop {
                match file.try_lock() {
                    Ok(()) => return Ok(StoreLock::new(file)),
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_INTERVAL).await,
                    Err(TryLockError::Error(error)) => {
                        return Err(store_error("lock", &path, &error));
                    }
                }
            }
        })
    }
}

/// Runs file work where it does not hold up other tasks.
async fn run_blocking<T: Send + 'static>(
    verb: &str,
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::other);
    done.flatten().map_err(|error| store_error(verb, &path, &error))
}

fn store_error(verb: &str, path: &Path, error: &io::Error) -> ClientError {
    let message = format!("cannot {verb} the login in {}: {error}", path.display());
    ClientError::new(ErrorKind::Unavailable, message)
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

fn read_file(path: &Path) -> io::Result<Option<SecretText>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    let length = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    match length as u64 > MAX_FILE_BYTES {
        true => Err(io::Error::other("it is too long")),
        false => Ok(Some(SecretText::new(text))),
    }
}

/// Replaces a file. Callers hold the lock, so that the name of the new file is not in use.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let new_path = path.with_extension("new");
    // What a crash left behind may have another mode.
    match fs::remove_file(&new_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private_file().create_new(true).open(&new_path)?;
    let replaced = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new_path, path));
    if replaced.is_err() {
        // The first error matters.
        let _ = fs::remove_file(&new_path);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::scratch::Scratch;

    #[tokio::test]
    async fn a_login_is_kept_for_its_owner_alone() {
        let scratch = Scratch::new();
        let store = FileCredentialStore::new(scratch.path().join("a/b"));
        assert!(store.load("x").await.unwrap().is_none());
        store.clear("x").await.unwrap();
        for text in ["one", "two"] {
            let _lock = store.lock("../x y").await.unwrap();
            store.save("../x y", SecretText::new(text)).await.unwrap();
            assert_eq!(store.load("../x y").await.unwrap().unwrap().expose(), text);
        }
        assert!(store.load(".. x y").await.unwrap().is_none());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let directory = scratch.path().join("a/b");
        assert_eq!(mode(&directory), 0o700);
        let files: Vec<PathBuf> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 2, "{files:?}");
        assert!(files.iter().all(|path| mode(path) == 0o600));
        store.clear("../x y").await.unwrap();
        assert!(store.load("../x y").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn one_at_a_time_has_the_lock_of_a_server() {
        let scratch = Scratch::new();
        let store = FileCredentialStore::new(scratch.path());
        let lock = store.lock("a").await.unwrap();
        let _other = store.lock("b").await.unwrap();
        let waiting = store.lock("a");
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(60), &mut waiting).await.is_err());
        drop(lock);
        assert!(waiting.await.is_ok());
    }

    #[tokio::test]
    async fn a_broken_directory_is_reported() {
        let scratch = Scratch::new();
        fs::write(scratch.path().join("file"), "").unwrap();
        let store = FileCredentialStore::new(scratch.path().join("file/x"));
        let error = store.save("a", SecretText::new("token")).await.unwrap_err();
        assert!(error.message().starts_with("cannot write the login in "), "{error}");
        assert!(store.lock("a").await.is_err());
    }
}
