//! Passes files of the workspace to a page. The browser does not see the workspace, so it gets
//! copies of the named files; they are removed with the session's pages.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

use super::process::BrowserProcess;
use crate::base::IgnorePoison;
use crate::base::ids::short_id;
use crate::base::workspace::{Workspace, WriteTarget, os_error};
use crate::base::{Error, Kind, Result};

/// Maximum number of files per upload.
pub const MAX_FILES: usize = 20;
/// The total size per session is limited to this many times the maximum size of one file.
const SESSION_SIZE_FACTOR: u64 = 4;
/// Maximum number of copies per session.
const MAX_COPIES: usize = 1000;

/// Copies of files made for one session.
pub struct SessionUploads {
    /// The browser's private directory, for opening files safely: the browser can write there, too.
    browser_dir: Arc<Workspace>,
    /// Its path, which has the same name inside and outside the sandbox.
    dir: PathBuf,
    /// Directory of the copies, relative to it.
    relative_dir: String,
    max_file_bytes: u64,
    copies: Mutex<CopiedFiles>,
}

#[derive(Default)]
struct CopiedFiles {
    paths: Vec<String>,
    bytes: u64,
}

impl SessionUploads {
    /// Creates the store for the copies of one session; `max_file_bytes` limits the size of one
    /// file.
    pub fn new(browser: &BrowserProcess, max_file_bytes: u64) -> Arc<SessionUploads> {
        SessionUploads::in_dir(Arc::clone(&browser.files), browser.dir.clone(), max_file_bytes)
    }

    fn in_dir(
        browser_dir: Arc<Workspace>,
        dir: PathBuf,
        max_file_bytes: u64,
    ) -> Arc<SessionUploads> {
        Arc::new(SessionUploads {
            browser_dir,
            dir,
            relative_dir: format!("uploads/{}", short_id("u")),
            max_file_bytes,
            copies: Mutex::default(),
        })
    }

    /// Copies files of the workspace to where the browser can read them, and returns the paths of
    /// the copies.
    pub fn copy_for_browser(
        &self,
        workspace: &Workspace,
        paths: &[String],
    ) -> Result<Vec<PathBuf>> {
        if paths.len() > MAX_FILES {
            return Err(Error::invalid_arguments(format!(
                "at most {MAX_FILES} files can be uploaded at once"
            )));
        }
        paths.iter().map(|path| self.copy_file(workspace, path)).collect()
    }

    fn copy_file(&self, workspace: &Workspace, path: &str) -> Result<PathBuf> {
        let opened = workspace.open_read(path)?;
        let name = opened.path.rsplit('/').next().unwrap_or("file").to_owned();
        let mut copies = self.lock_copies();
        let remaining_bytes =
            self.max_file_bytes.saturating_mul(SESSION_SIZE_FACTOR).saturating_sub(copies.bytes);
        if copies.paths.len() >= MAX_COPIES || remaining_bytes == 0 {
            return Err(Error::new(
                Kind::ResourceExhausted,
                "this session has reached its upload limit",
            )
            .with_hint(
                "Close its pages with browser.tabs close_all, which also removes the copies.",
            ));
        }
        let relative_path = format!("{}/{}/{name}", self.relative_dir, short_id("u"));
        let copy_error = |error: io::Error| {
            Error::internal("the file cannot be passed to the browser").with_source(error)
        };
        // The browser can write here, too, so open it like any untrusted path.
        let WriteTarget::Ready { dir, name, .. } =
            self.browser_dir.find_write_target(&relative_path, true)?
        else {
            return Err(Error::internal("cannot create the directory for uploads"));
        };
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(&dir, &name, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| os_error(errno, path))?;
        copies.paths.push(relative_path.clone());
        let mut target = std::fs::File::from(target);
        let max_bytes = self.max_file_bytes.min(remaining_bytes);
        let copied =
            io::copy(&mut opened.file.take(max_bytes + 1), &mut target).map_err(copy_error)?;
        if copied > max_bytes {
            target.set_len(0).map_err(copy_error)?;
            let (file_mib, session_mib) =
                (self.max_file_bytes >> 20, (self.max_file_bytes * SESSION_SIZE_FACTOR) >> 20);
            let message = format!(
                "an uploaded file may have at most {file_mib} MiB, and all of a session {session_mib} MiB"
            );
            return Err(Error::new(Kind::TooLarge, message));
        }
        copies.bytes += copied;
        target.flush().map_err(copy_error)?;
        Ok(self.dir.join(relative_path))
    }

    fn lock_copies(&self) -> MutexGuard<'_, CopiedFiles> {
        self.copies.lock().ignore_poison()
    }
}

impl Drop for SessionUploads {
    fn drop(&mut self) {
        // Open each parent by descriptor: the browser may have put a link in the way.
        let remove = |path: &str, flags: AtFlags| {
            if let Some((parent, name)) = path.rsplit_once('/')
                && let Ok((dir, _)) = self.browser_dir.open_dir(parent)
            {
                // A file that no longer exists needs no removal.
                let _ = unlinkat(&dir, name, flags);
            }
        };
        let paths = std::mem::take(&mut self.lock_copies().paths);
        for path in &paths {
            remove(path, AtFlags::empty());
            remove(path.rsplit_once('/').map_or("", |(folder, _)| folder), AtFlags::REMOVEDIR);
        }
        if !paths.is_empty() {
            remove(&self.relative_dir, AtFlags::REMOVEDIR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn copies_are_bounded_and_go_with_their_session() {
        let scratch = Scratch::new();
        let (work, dir) = (scratch.dir("work"), scratch.dir("browser"));
        std::fs::write(work.join("a.txt"), "12345678").unwrap();
        std::fs::write(work.join("big.txt"), "123456789").unwrap();
        let workspace = Workspace::open(&work, &[]).unwrap();
        let uploads =
            SessionUploads::in_dir(Arc::new(Workspace::open(&dir, &[]).unwrap()), dir.clone(), 8);
        let copies =
            uploads.copy_for_browser(&workspace, &["a.txt".into(), "a.txt".into()]).unwrap();
        assert!(copies.iter().all(|copy| std::fs::read(copy).unwrap() == b"12345678"));
        assert_eq!(
            uploads.copy_for_browser(&workspace, &["big.txt".into()]).unwrap_err().kind(),
            Kind::TooLarge
        );
        uploads.copy_for_browser(&workspace, &["a.txt".into(), "a.txt".into()]).unwrap();
        assert_eq!(
            uploads.copy_for_browser(&workspace, &["a.txt".into()]).unwrap_err().kind(),
            Kind::ResourceExhausted
        );
        drop(uploads);
        assert_eq!(std::fs::read_dir(dir.join("uploads")).unwrap().count(), 0);
    }
}
