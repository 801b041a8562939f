//! Worker threads of a walk, sharing one stack of jobs.
//!
//! The last job on the stack is taken first, so that a walk goes deep before it goes wide and few
//! directories are open at a time, whatever the shape of the tree.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;

use super::{Directory, Entry, MAX_HELD, Seen, Tree};
use crate::base::Cancel;

/// Number of entries that one thread takes at a time.
const CHUNK: usize = 64;

/// Receives what a walk finds. Several threads may call it at once.
pub trait Visitor: Sync {
    /// State private to each thread.
    type Own;

    /// Creates a thread's private state.
    fn own(&self) -> Self::Own;

    /// Receives a directory with all its visible entries, and decides where to continue.
    fn enter(&self, tree: &Tree, directory: &Directory, seen: Seen) -> Next;

    /// Processes some of the entries that [`Visitor::enter`] returned as work.
    fn work(&self, own: &mut Self::Own, tree: &Tree, directory: &Directory, entries: Vec<Entry>);

    /// Receives a directory that could not be entered.
    fn lost(&self, parent: &Path, name: &std::ffi::OsStr, depth: usize, errno: Errno);
}

/// How a walk continues from a directory.
#[derive(Debug, Default)]
pub struct Next {
    /// Directories to enter.
    pub descend: Vec<Entry>,
    /// Entries to process, in parallel if there are many.
    pub work: Vec<Entry>,
}

/// Tells a walk to stop before it is complete.
pub struct Halt {
    cancel: Cancel,
    until: Option<Instant>,
    called: AtomicBool,
}

impl Halt {
    /// Creates a halt with a cancellation token and an optional time limit.
    pub fn new(cancel: Cancel, until: Option<Instant>) -> Halt {
        Halt { cancel, until, called: AtomicBool::new(false) }
    }

    /// Tells the walk to stop.
    pub fn call(&self) {
        self.called.store(true, Ordering::Relaxed);
    }

    /// Returns whether the walk has to stop now.
    pub fn is_called(&self) -> bool {
        if self.called.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.is_late() || self.cancel.is_cancelled();
        if now {
            self.call();
        }
        now
    }

    /// Returns the remaining time, if it is limited.
    pub fn left(&self) -> Option<std::time::Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the time limit has passed.
    pub fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

enum Job {
    Enter { parent: Arc<Directory>, entry: Entry },
    Work { directory: Arc<Directory>, entries: Vec<Entry> },
}

struct Crew<'a, V: Visitor> {
    tree: &'a Tree,
    visitor: &'a V,
    halt: &'a Halt,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    busy: usize,
    idle: usize,
}

/// Walks the tree and returns when all threads have finished.
pub fn run<V: Visitor>(tree: &Tree, visitor: &V, threads: usize, halt: &Halt) {
    let crew = Crew { tree, visitor, halt, state: Mutex::default(), changed: Condvar::new() };
    // This thread reads the first directory alone: there is nothing to share yet, and often nothing
    // more to do.
    let mut buffer = Vec::new();
    let mut own = visitor.own();
    if let Ok(first) = tree.again() {
        crew.show(first, &mut own, &mut buffer);
    }
    let jobs = crew.lock().jobs.len();
    std::thread::scope(|scope| {
        for _ in 1..threads.min(jobs + 1) {
            // If no thread can be started, the existing ones do the work.
            if std::thread::Builder::new()
                .spawn_scoped(scope, || crew.labour(visitor.own()))
                .is_err()
            {
                break;
            }
        }
        crew.labour(own);
    });
}

impl<V: Visitor> Crew<'_, V> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn labour(&self, mut own: V::Own) {
        let mut buffer = Vec::new();
        while let Some(job) = self.take() {
            // Threads that wait must not wait for one that panicked.
            let _done = Done(self);
            match job {
                Job::Enter { parent, entry } => match self.tree.open(&parent, &entry) {
                    Ok(directory) => {
                        drop(parent);
                        self.show(directory, &mut own, &mut buffer);
                    }
                    Err(errno) => {
                        self.visitor.lost(parent.path(), &entry.name, parent.depth() + 1, errno)
                    }
                },
                Job::Work { directory, entries } => {
                    self.visitor.work(&mut own, self.tree, &directory, entries)
                }
            }
        }
    }

    fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if self.halt.is_called() {
                state.jobs.clear();
            }
            if let Some(job) = state.jobs.pop() {
                state.busy += 1;
                return Some(job);
            }
            if state.busy == 0 {
                self.changed.notify_all();
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Reads a directory, shows it to the visitor, and pushes the jobs below it onto the stack.
    fn show(&self, mut directory: Directory, own: &mut V::Own, buffer: &mut Vec<u8>) {
        let seen = match self.tree.read(&mut directory, buffer, self.halt) {
            Ok(seen) => seen,
            Err(errno) => {
                let path = directory.path();
                let name = path.file_name().unwrap_or_default();
                self.visitor.lost(
                    path.parent().unwrap_or(Path::new("")),
                    name,
                    directory.depth(),
                    errno,
                );
                return;
            }
        };
        let Next { descend, mut work } = self.visitor.enter(self.tree, &directory, seen);
        let directory = Arc::new(directory);
        let crowded = self.tree.held.load(Ordering::Relaxed) > MAX_HELD;
        let mut jobs = Vec::new();
        if !descend.is_empty() {
            let parent =
                if crowded { Arc::new(directory.released()) } else { Arc::clone(&directory) };
            jobs.extend(
                descend.into_iter().map(|entry| Job::Enter { parent: Arc::clone(&parent), entry }),
            );
            // The last job is taken immediately, so it may keep its parent open: descending
            // straight down is cheap.
            if let Some(Job::Enter { parent, .. }) = jobs.last_mut() {
                *parent = Arc::clone(&directory);
            }
        }
        let mut mine = Vec::new();
        if crowded {
            mine.push(work);
        } else {
            while work.len() > CHUNK {
                let rest = work.split_off(work.len() - CHUNK);
                jobs.push(Job::Work { directory: Arc::clone(&directory), entries: rest });
            }
            mine.push(work);
        }
        self.give(jobs);
        for entries in mine.into_iter().filter(|entries| !entries.is_empty()) {
            self.visitor.work(own, self.tree, &directory, entries);
        }
    }

    fn give(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let count = jobs.len();
        let mut state = self.lock();
        state.jobs.extend(jobs);
        for _ in 0..count.min(state.idle) {
            self.changed.notify_one();
        }
    }
}

struct Done<'a, 'c, V: Visitor>(&'a Crew<'c, V>);

impl<V: Visitor> Drop for Done<'_, '_, V> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 || self.0.halt.is_called() {
            self.0.changed.notify_all();
        }
    }
}
