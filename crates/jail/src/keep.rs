//! Keeps covers on. A cover is a mount, and a mount goes when somebody outside renames another file over what it
//! covers, as `git config` on the host does, and whatever saves by renaming. That cannot be prevented, so it is watched for, and the cover is put on
//! again at once, over what is there then.

use std::collections::{BTreeSet, HashSet};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::mounts;
use crate::rights::Rights;

/// Events that are read in one go.
const AT_ONCE: usize = 64;
const INTERVAL: Duration = Duration::from_millis(20);

/// The watch over a run's covers.
pub struct Keeper {
    rights: Rights,
    covers: Vec<PathBuf>,
    /// The last names of everything that is watched.
    names: HashSet<Vec<u8>>,
    watch: Option<OwnedFd>,
}

impl Keeper {
    /// Watches from now on.
    pub fn new(rights: &Rights, covers: &[PathBuf]) -> Keeper {
        let mut keeper = Keeper { rights: rights.clone(), covers: covers.to_vec(), names: HashSet::new(), watch: None };
        let names = keeper.watched().filter_map(Path::file_name).map(|name| name.as_encoded_bytes().to_vec());
        keeper.names = names.collect();
        keeper.watch = keeper.begin().ok();
        keeper
    }

    /// For a run that nothing is covered in.
    pub fn of_nothing() -> Keeper {
        Keeper { rights: Rights::default(), covers: Vec::new(), names: HashSet::new(), watch: None }
    }

    /// Everything whose replacing would take a cover off: what is covered, and the directories that lead there.
    fn watched(&self) -> impl Iterator<Item = &Path> {
        let above = self.covers.iter().flat_map(|cover| mounts::ancestors(&self.rights, cover));
        above.chain(self.covers.iter().chain(&self.rights.hidden).map(PathBuf::as_path))
    }

    /// Through the supervisor's own mounts: the directories are the same ones.
    fn begin(&self) -> io::Result<OwnedFd> {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let parents: BTreeSet<&Path> = self.watched().filter_map(Path::parent).collect();
        for parent in parents {
            match inotify::add_watch(&watch, parent, WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::ONLYDIR) {
                // What is not there, or not ours to see, has nothing hidden in it yet.
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(watch)
    }

    /// How long to wait at most before looking by ourselves. A user may have used up all that can be watched, and a
    /// look costs a few microseconds.
    pub fn interval(&self) -> Option<Duration> {
        (self.watch.is_none() && !self.covers.is_empty()).then_some(INTERVAL)
    }

    /// Ready to be read when something has changed.
    pub fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Puts covers on again where they are missing, and gives what had none for a moment. The thread has to be where
    /// the run's mounts are.
    pub fn look(&self) -> Vec<PathBuf> {
        let concerned = self.watch.as_ref().is_none_or(|watch| self.concerns(watch));
        if !concerned {
            return Vec::new();
        }
        // What is not there cannot be covered; what comes in its place is told of again.
        let open = self.covers.iter().filter(|cover| mounts::cover_again(&self.rights, cover).unwrap_or(false));
        let open: Vec<PathBuf> = open.cloned().collect();
        let hidden = self.rights.hidden.iter().filter(|hidden| !mounts::holds_writable(&self.rights, hidden));
        let shown = hidden.filter(|hidden| mounts::hide_again(hidden).unwrap_or(false));
        open.into_iter().chain(shown.cloned()).collect()
    }

    /// Whether anything that has happened is about what is watched.
    fn concerns(&self, watch: &OwnedFd) -> bool {
        let is_watched = |name: &CStr| self.names.contains(name.to_bytes());
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut space);
        let mut concerned = false;
        // A run can rename faster than anybody reads, and others wait for this thread too.
        for count in 0.. {
            // What has been read already would be lost.
            if count >= AT_ONCE && events.is_buffer_empty() {
                break;
            }
            let Ok(event) = events.next() else { break };
            let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            concerned |= lost || event.file_name().is_some_and(is_watched);
        }
        concerned
    }
}
