//! Keeps covers on. A cover is a mount, and a mount goes when somebody outside renames another file over what it
//! covers, as `git config` on the host does, and whatever saves by renaming. That cannot be prevented, so it is watched for, and the cover is put on
//! again at once, over what is there then.

use std::collections::{BTreeSet, HashSet};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::mounts;
use crate::rights::Rights;
use crate::sys;

/// How long to wait at most before looking by ourselves, where nothing can be watched.
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

    /// Whether there is nothing to keep.
    pub fn is_idle(&self) -> bool {
        self.covers.is_empty() && self.rights.hidden.is_empty()
    }

    /// Puts covers on again until the run is over, and names what had none for a moment. The thread moves to where the
    /// run's mounts are; if it cannot, nothing is covered, since from anywhere else it would cover what is everybody's.
    pub fn serve(&self, mounts: &OwnedFd, run: &OwnedFd, uncovered: impl Fn(&Path)) {
        let entered = sys::unshare(UnshareFlags::FS)
            .and_then(|()| Ok(move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?));
        if entered.is_err() {
            return;
        }
        while self.wait(run) {
            self.cover_missing(&uncovered);
        }
    }

    /// Waits until there is a reason to look. False when the run is over: no process uses its filter any more.
    fn wait(&self, run: &OwnedFd) -> bool {
        // Calls that wait there are another thread's; only its end is asked for, which is always told.
        let mut watched = vec![PollFd::from_borrowed_fd(run.as_fd(), PollFlags::empty())];
        watched.extend(self.watch.as_ref().map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
        // A user may have used up all that can be watched, and a look costs a few microseconds.
        let limit = self.watch.is_none().then(|| Timespec { tv_sec: 0, tv_nsec: i64::from(INTERVAL.subsec_nanos()) });
        match poll(&mut watched, limit.as_ref()) {
            Ok(_) => watched[0].revents().is_empty(),
            Err(errno) => errno == Errno::INTR,
        }
    }

    /// Puts covers on again where they are missing, and names each that was.
    fn cover_missing(&self, uncovered: &impl Fn(&Path)) {
        let concerned = self.watch.as_ref().is_none_or(|watch| self.concerns(watch));
        if !concerned {
            return;
        }
        // What is not there cannot be covered; what comes in its place is told of again.
        let open = self.covers.iter().filter(|cover| mounts::cover_again(&self.rights, cover).unwrap_or(false));
        open.for_each(|path| uncovered(path));
        let hidden = self.rights.hidden.iter().filter(|hidden| !mounts::holds_writable(&self.rights, hidden));
        let shown = hidden.filter(|hidden| mounts::hide_again(hidden).unwrap_or(false));
        shown.for_each(|path| uncovered(path));
    }

    /// Whether anything that has happened is about what is watched.
    fn concerns(&self, watch: &OwnedFd) -> bool {
        let is_watched = |name: &CStr| self.names.contains(name.to_bytes());
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut space);
        let mut concerned = false;
        while !concerned || !events.is_buffer_empty() {
            let Ok(event) = events.next() else { break };
            let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            concerned |= lost || event.file_name().is_some_and(is_watched);
        }
        concerned
    }
}
