//! Restores covers that disappear while a run is alive.
//!
//! A cover is a mount, and the kernel drops a mount when a process outside renames another file
//! over the covered path. `git config` on the host does this, as does every program that saves by
//! renaming. A hidden path may also be created during a run, together with the directories that
//! lead to it, for example by `aws configure`. Neither can be prevented, so both are watched with
//! inotify, and the cover is restored immediately over whatever exists then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::mounts;
use crate::rights::Rights;
use crate::sys;

/// Polling interval where inotify is unavailable.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of symbolic links in one path, the same as in the kernel.
const MAX_LINKS: usize = 40;

/// Events that can replace a name or make it reachable.
const WATCHED_EVENTS: WatchFlags =
    WatchFlags::MOVED_TO.union(WatchFlags::CREATE).union(WatchFlags::ATTRIB);

/// Names to watch, by directory.
type WatchedNames = BTreeMap<PathBuf, BTreeSet<OsString>>;

/// Watches the covers of a run and restores them.
pub struct CoverGuard {
    rights: Rights,
    covers: Vec<PathBuf>,
    watch: Option<NameWatch>,
}

/// An inotify instance and the relevant names in each directory that it watches.
struct NameWatch {
    fd: OwnedFd,
    names: HashMap<i32, BTreeSet<OsString>>,
}

impl CoverGuard {
    /// Starts to watch everything that leads to a hidden path, and to the files that every run mounts.
    pub fn new(rights: &Rights) -> CoverGuard {
        let mut guard = CoverGuard { rights: rights.clone(), covers: Vec::new(), watch: None };
        guard.watch = NameWatch::start(&guard.watched_names()).ok();
        guard
    }

    /// Watches these covers as well.
    pub fn add_covers(&mut self, covers: &[PathBuf]) {
        self.covers = covers.to_vec();
        let names = self.cover_names();
        if self.watch.as_mut().is_some_and(|watch| watch.watch_directories(&names).is_err()) {
            self.watch = None;
        }
    }

    /// Returns whether something that is watched may have changed since the last check.
    pub fn may_have_changed(&mut self) -> bool {
        self.watch.as_mut().is_none_or(NameWatch::has_relevant_event)
    }

    /// Creates a guard for a run without covers.
    pub fn without_covers() -> CoverGuard {
        CoverGuard { rights: Rights::default(), covers: Vec::new(), watch: None }
    }

    /// Returns every name whose replacement or creation would remove a cover or expose a hidden
    /// path: covered paths and the directories that lead to them inside a writable root, and hidden
    /// paths with all directories that lead to them. Also the name server's address, which every run
    /// with its own network covers.
    fn watched_names(&self) -> WatchedNames {
        let mut collector = NameCollector {
            rights: &self.rights,
            names: self.cover_names(),
            links: HashMap::new(),
        };
        for hidden in &self.rights.hidden {
            collector.add_path_names(hidden, MAX_LINKS);
        }
        collector.add_path_names(Path::new(mounts::RESOLV_CONF), MAX_LINKS);
        collector.names
    }

    /// Returns the names of the covers, and of the directories that lead to them inside a writable
    /// root.
    fn cover_names(&self) -> WatchedNames {
        let mut names = WatchedNames::new();
        for cover in &self.covers {
            let ancestors = mounts::ancestors_in_root(&self.rights, cover);
            ancestors
                .into_iter()
                .chain([cover.as_path()])
                .for_each(|path| add_name(&mut names, path));
        }
        names
    }

    /// Returns whether there is nothing to watch.
    pub fn is_idle(&self) -> bool {
        self.covers.is_empty() && self.rights.hidden.is_empty()
    }

    /// Restores covers until the run is over, and reports each path that was briefly uncovered.
    ///
    /// The thread enters the run's mount namespace. If it cannot, it covers nothing: in any other
    /// namespace the covers would affect processes outside the run.
    pub fn restore_until_end(
        mut self,
        mount_namespace: &OwnedFd,
        listener: &OwnedFd,
        report_uncovered: impl Fn(&Path),
    ) {
        let entered = sys::unshare(UnshareFlags::FS).and_then(|()| {
            Ok(move_into_link_name_space(mount_namespace.as_fd(), Some(LinkNameSpaceType::Mount))?)
        });
        if entered.is_err() {
            return;
        }
        while self.wait_for_change(listener) {
            self.restore_missing(&report_uncovered);
        }
    }

    /// Waits until the covers must be checked. Returns false when the run is over, that is when no
    /// process uses its seccomp filter any more.
    fn wait_for_change(&self, listener: &OwnedFd) -> bool {
        // Another thread handles the system calls pending on this descriptor. Only its hang-up
        // matters here, which poll reports even if no events are requested.
        let mut poll_fds = vec![PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::empty())];
        poll_fds.extend(
            self.watch
                .as_ref()
                .map(|watch| PollFd::from_borrowed_fd(watch.fd.as_fd(), PollFlags::IN)),
        );
        // The user's inotify quota may be exhausted; then poll, since a check costs only a few
        // microseconds.
        let timeout = self
            .watch
            .is_none()
            .then(|| Timespec { tv_sec: 0, tv_nsec: i64::from(POLL_INTERVAL.subsec_nanos()) });
        match poll(&mut poll_fds, timeout.as_ref()) {
            Ok(_) => poll_fds[0].revents().is_empty(),
            Err(errno) => errno == Errno::INTR,
        }
    }

    /// Restores missing covers and reports each of them.
    fn restore_missing(&mut self, report_uncovered: &impl Fn(&Path)) {
        if !self.may_have_changed() {
            return;
        }
        // Update the watches before checking the covers: a new directory has had no watch, so a
        // change made between check and watch would go unnoticed.
        let names = self.watched_names();
        if let Some(watch) = &mut self.watch
            && watch.watch_directories(&names).is_err()
        {
            self.watch = None;
        }
        // A path that does not exist cannot be covered; its creation triggers another event.
        let restored_covers = self
            .covers
            .iter()
            .filter(|cover| mounts::restore_cover(&self.rights, cover).unwrap_or(false));
        restored_covers.for_each(|path| report_uncovered(path));
        let hidden = self
            .rights
            .hidden
            .iter()
            .filter(|hidden| !mounts::contains_opened(&self.rights, hidden));
        let restored_hidden =
            hidden.filter(|hidden| mounts::restore_hidden(hidden).unwrap_or(false));
        restored_hidden.for_each(|path| report_uncovered(path));
    }
}

/// Collects the names that lead to a path.
struct NameCollector<'a> {
    rights: &'a Rights,
    names: WatchedNames,
    /// Cache of link targets.
    links: HashMap<PathBuf, Option<PathBuf>>,
}

impl NameCollector<'_> {
    /// Adds every name on the way to a path, following links: each of them could be created or
    /// replaced.
    fn add_path_names(&mut self, path: &Path, max_links: usize) {
        let mut current_path = PathBuf::from("/");
        let mut rest = path.components();
        while let Some(component) = rest.next() {
            match component {
                Component::Normal(name) => current_path.push(name),
                Component::ParentDir => drop(current_path.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
            add_name(&mut self.names, &current_path);
            if let Some(target) = self.read_link(&current_path) {
                current_path.pop();
                if max_links > 0 {
                    self.add_path_names(
                        &current_path.join(target).join(rest.as_path()),
                        max_links - 1,
                    );
                }
                return;
            }
        }
    }

    fn read_link(&mut self, path: &Path) -> Option<PathBuf> {
        // A link created by the run leads only to what it can read anyway, and could form a chain
        // long enough to keep us busy.
        if self.rights.writable_roots().any(|root| path.starts_with(root)) {
            return None;
        }
        self.links.entry(path.to_owned()).or_insert_with(|| std::fs::read_link(path).ok()).clone()
    }
}

fn add_name(names: &mut WatchedNames, path: &Path) {
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        names.entry(parent.to_owned()).or_default().insert(name.to_owned());
    }
}

impl NameWatch {
    fn start(names: &WatchedNames) -> io::Result<NameWatch> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = NameWatch { fd, names: HashMap::new() };
        watch.watch_directories(names)?;
        Ok(watch)
    }

    /// Watches these directories, outermost first. The first call sees the supervisor's mounts and
    /// later calls the run's; the directories are the same in both.
    fn watch_directories(&mut self, names: &WatchedNames) -> io::Result<()> {
        for (directory, names) in names {
            match inotify::add_watch(&self.fd, directory, WATCHED_EVENTS | WatchFlags::ONLYDIR) {
                // Two paths may lead to one directory.
                Ok(id) => self.names.entry(id).or_default().extend(names.iter().cloned()),
                // A directory that is missing or inaccessible contains nothing hidden yet; its
                // creation triggers an event.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads pending events and returns whether any of them affects a watched name.
    fn has_relevant_event(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.fd, &mut buffer);
        let mut is_relevant = false;
        while !is_relevant || !events.is_buffer_empty() {
            let Ok(event) = events.next() else { break };
            let has_overflowed = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            if event.events().contains(ReadFlags::IGNORED) {
                // The directory is gone, and its watch id is not reused.
                self.names.remove(&event.wd());
            }
            let names = self.names.get(&event.wd());
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            is_relevant |=
                has_overflowed || name.zip(names).is_some_and(|(name, names)| names.contains(name));
        }
        is_relevant
    }
}

impl Drop for NameWatch {
    fn drop(&mut self) {
        // Otherwise it is closed a little later.
        let _ = crate::packet::close_in_background(self.fd.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an empty directory for one test.
    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("ringfence-keep-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder.canonicalize().unwrap()
    }

    fn keeper(hidden: &Path) -> CoverGuard {
        let rights = Rights {
            workspace: "/nowhere".into(),
            hidden: vec![hidden.to_owned()],
            ..Rights::default()
        };
        CoverGuard::new(&rights)
    }

    /// Returns whether a relevant event was seen, and updates the watches.
    fn is_told(keeper: &mut CoverGuard) -> bool {
        let told = keeper.watch.as_mut().unwrap().has_relevant_event();
        let names = keeper.watched_names();
        keeper.watch.as_mut().unwrap().watch_directories(&names).unwrap();
        told
    }

    #[test]
    fn every_step_on_the_way_to_a_hidden_place_is_told_of() {
        let home = folder("steps");
        let mut keeper = keeper(&home.join("a/b/secret"));
        assert!(!is_told(&mut keeper));
        std::fs::write(home.join("other"), "").unwrap();
        assert!(!is_told(&mut keeper), "a name that leads nowhere");
        for step in ["a", "a/b"] {
            std::fs::create_dir(home.join(step)).unwrap();
            assert!(is_told(&mut keeper), "{step}");
        }
        std::fs::write(home.join("a/other"), "").unwrap();
        assert!(!is_told(&mut keeper));
        std::fs::write(home.join("a/b/secret"), "").unwrap();
        assert!(is_told(&mut keeper));
        std::fs::create_dir_all(home.join("new/b")).unwrap();
        std::fs::rename(home.join("a"), home.join("old")).unwrap();
        assert!(!is_told(&mut keeper), "what goes away needs no cover");
        std::fs::rename(home.join("new"), home.join("a")).unwrap();
        assert!(is_told(&mut keeper));
        std::fs::write(home.join("a/b/secret"), "").unwrap();
        assert!(is_told(&mut keeper), "the directory that came is watched, too");
        std::fs::remove_dir_all(home).unwrap();
    }

    #[test]
    fn the_way_goes_through_links_and_a_circle_of_them_ends() {
        let home = folder("links");
        std::os::unix::fs::symlink("deep/../target", home.join("link")).unwrap();
        std::os::unix::fs::symlink("two", home.join("one")).unwrap();
        std::os::unix::fs::symlink("one", home.join("two")).unwrap();
        let mut keeper = keeper(&home.join("link/secret"));
        std::fs::create_dir(home.join("target")).unwrap();
        assert!(is_told(&mut keeper));
        std::fs::write(home.join("target/secret"), "").unwrap();
        assert!(is_told(&mut keeper));
        keeper.rights.hidden = vec![home.join("one/secret")];
        assert!(keeper.watched_names()[&home].contains(OsStr::new("two")));
        keeper.rights.workspace.clone_from(&home);
        assert!(
            !keeper.watched_names()[&home].contains(OsStr::new("two")),
            "a link that a run could have made"
        );
        std::fs::remove_dir_all(home).unwrap();
    }
}
