//! Files of the workspace for a page. The browser does not see the workspace, so it gets copies of what was named, and
//! they go with the session's pages.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

use super::process::Browser;
use crate::base::ids::short;
use crate::base::workspace::{Place, Workspace, os_error};
use crate::base::{Error, Kind, Result};

/// For one file input.
pub const FILES: usize = 20;
/// So many of the largest there may be are copied for one session.
const LARGEST: u64 = 4;
/// Copies of one session.
const COPIES: usize = 1000;

/// The copies that were made for one session.
pub struct Uploads {
    /// The browser's directory, as we open it and as the browser names it.
    files: Arc<Workspace>,
    dir: PathBuf,
    /// From there down.
    below: String,
    largest: u64,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    paths: Vec<String>,
    bytes: u64,
}

impl Uploads {
    pub fn new(browser: &Browser, largest: u64) -> Arc<Uploads> {
        Uploads::in_folder(Arc::clone(&browser.files), browser.dir.clone(), largest)
    }

    fn in_folder(files: Arc<Workspace>, dir: PathBuf, largest: u64) -> Arc<Uploads> {
        Arc::new(Uploads {
            files,
            dir,
            below: format!("uploads/{}", short("u")),
            largest,
            made: Mutex::default(),
        })
    }

    /// Copies files of the workspace to where the browser can read them, and says where that is.
    pub fn hand_over(&self, workspace: &Workspace, paths: &[String]) -> Result<Vec<PathBuf>> {
        if paths.len() > FILES {
            return Err(Error::invalid_arguments(format!(
                "at most {FILES} files can be uploaded at once"
            )));
        }
        paths.iter().map(|path| self.copy(workspace, path)).collect()
    }

    fn copy(&self, workspace: &Workspace, path: &str) -> Result<PathBuf> {
        let opened = workspace.open_read(path)?;
        let name = opened.path.rsplit('/').next().unwrap_or("file").to_owned();
        let mut made = self.lock();
        let left = self.largest.saturating_mul(LARGEST).saturating_sub(made.bytes);
        if made.paths.len() >= COPIES || left == 0 {
            return Err(Error::new(
                Kind::ResourceExhausted,
                "this session has uploaded as much as it may",
            )
            .hint("Close its pages with browser.tabs close_all, and with them the copies."));
        }
        let below = format!("{}/{}/{name}", self.below, short("u"));
        let failed = |error: io::Error| {
            Error::internal("the file cannot be handed to the browser").source(error)
        };
        // The browser can write here too, so the place is opened as any other that somebody else may have changed.
        let Place::Ready { dir, name, .. } = self.files.place(&below, true)? else {
            return Err(Error::internal("there is no place for uploads"));
        };
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(&dir, &name, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| os_error(errno, path))?;
        made.paths.push(below.clone());
        let mut to = std::fs::File::from(to);
        let most = self.largest.min(left);
        let copied = io::copy(&mut opened.file.take(most + 1), &mut to).map_err(failed)?;
        if copied > most {
            to.set_len(0).map_err(failed)?;
            let (one, all) = (self.largest >> 20, (self.largest * LARGEST) >> 20);
            let message =
                format!("files to upload may have {one} MiB, and {all} MiB in one session");
            return Err(Error::new(Kind::TooLarge, message));
        }
        made.bytes += copied;
        to.flush().map_err(failed)?;
        Ok(self.dir.join(below))
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        // Each by its descriptor: the browser may have put a link in the way.
        let remove = |path: &str, flags: AtFlags| {
            if let Some((above, name)) = path.rsplit_once('/')
                && let Ok((dir, _)) = self.files.open_dir(above)
            {
                // What is not there any more is as well.
                let _ = unlinkat(&dir, name, flags);
            }
        };
        let paths = std::mem::take(&mut self.lock().paths);
        for path in &paths {
            remove(path, AtFlags::empty());
            remove(path.rsplit_once('/').map_or("", |(folder, _)| folder), AtFlags::REMOVEDIR);
        }
        if !paths.is_empty() {
            remove(&self.below, AtFlags::REMOVEDIR);
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
            Uploads::in_folder(Arc::new(Workspace::open(&dir, &[]).unwrap()), dir.clone(), 8);
        let copies = uploads.hand_over(&workspace, &["a.txt".into(), "a.txt".into()]).unwrap();
        assert!(copies.iter().all(|copy| std::fs::read(copy).unwrap() == b"12345678"));
        assert_eq!(
            uploads.hand_over(&workspace, &["big.txt".into()]).unwrap_err().kind(),
            Kind::TooLarge
        );
        uploads.hand_over(&workspace, &["a.txt".into(), "a.txt".into()]).unwrap();
        assert_eq!(
            uploads.hand_over(&workspace, &["a.txt".into()]).unwrap_err().kind(),
            Kind::ResourceExhausted
        );
        drop(uploads);
        assert_eq!(std::fs::read_dir(dir.join("uploads")).unwrap().count(), 0);
    }
}
