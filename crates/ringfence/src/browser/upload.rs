//! Files of the workspace for a page. The browser does not see the workspace, so it gets copies of what was named.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, openat};

use super::process::Browser;
use crate::base::ids::short;
use crate::base::workspace::{Place, Workspace, os_error};
use crate::base::{Error, Kind, Result};

/// For one file input.
pub const FILES: usize = 20;

impl Browser {
    /// Copies files of the workspace to where the browser can read them, and says where that is.
    pub fn hand_over(&self, workspace: &Workspace, paths: &[String], largest: u64) -> Result<Vec<PathBuf>> {
        if paths.len() > FILES {
            return Err(Error::invalid_arguments(format!("at most {FILES} files can be uploaded at once")));
        }
        paths.iter().map(|path| self.copy(workspace, path, largest)).collect()
    }

    fn copy(&self, workspace: &Workspace, path: &str, largest: u64) -> Result<PathBuf> {
        let opened = workspace.open_read(path)?;
        let name = opened.path.rsplit('/').next().unwrap_or("file").to_owned();
        let below = format!("uploads/{}/{name}", short("u"));
        let failed = |error: io::Error| Error::internal("the file cannot be handed to the browser").source(error);
        // The browser can write here too, so the place is opened as any other that somebody else may have changed.
        let Place::Ready { dir, name, .. } = self.files.place(&below, true)? else {
            return Err(Error::internal("there is no place for uploads"));
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(&dir, &name, flags, Mode::from_raw_mode(0o600)).map_err(|errno| os_error(errno, path))?;
        let mut to = std::fs::File::from(to);
        let copied = io::copy(&mut opened.file.take(largest + 1), &mut to).map_err(failed)?;
        if copied > largest {
            return Err(Error::new(Kind::TooLarge, format!("files to upload may have {} MiB", largest >> 20)));
        }
        to.flush().map_err(failed)?;
        Ok(self.dir.join(below))
    }
}
