//! Worker threads of a walk, sharing one stack of jobs.
//!
//! The last job on the stack is taken first, so that a walk goes deep before it goes wide and few
//! directories are open at a time, whatever the shape of the tree.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use rustix::io::Errno;

use super::{DirListing, MAX_OPEN_DIRS, TreeDir, TreeEntry, WorkspaceTree};
use crate::base::CancelToken;
use crate::base::IgnorePoison;

/// Number of entries that one thread takes at a time.
const CHUNK_ENTRIES: usize = 64;

/// Receives what a walk finds. Several threads may call it at once.
pub trait TreeVisitor: Sync {
    /// State private to each thread.
    type ThreadState;

    /// Creates a thread's private state.
    fn new_thread_state(&self) -> Self::ThreadState;

    /// Receives a directory with all its visible entries, and decides where to continue.
    fn visit_dir(
        &self,
        tree: &WorkspaceTree,
        directory: &TreeDir,
        listing: DirListing,
    ) -> NextSteps;

    /// Processes some of the entries that [`TreeVisitor::visit_dir`] returned as work.
    fn process_entries(
        &self,
        thread_state: &mut Self::ThreadState,
        tree: &WorkspaceTree,
        directory: &TreeDir,
        entries: Vec<TreeEntry>,
    );

    /// Receives a directory that could not be entered.
    fn dir_failed(&self, parent: &Path, name: &std::ffi::OsStr, depth: usize, errno: Errno);
}

/// How a walk continues from a directory.
#[derive(Debug, Default)]
pub struct NextSteps {
    /// Directories to enter.
    pub descend: Vec<TreeEntry>,
    /// Entries to process, in parallel if there are many.
    pub process: Vec<TreeEntry>,
}

/// Tells a walk to stop before it is complete.
pub struct WalkStop {
    cancel: CancelToken,
    deadline: Option<Instant>,
    stopped: AtomicBool,
}

impl WalkStop {
    /// Creates a halt with a cancellation token and an optional time limit.
    pub fn new(cancel: CancelToken, deadline: Option<Instant>) -> WalkStop {
        WalkStop { cancel, deadline, stopped: AtomicBool::new(false) }
    }

    /// Tells the walk to stop.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether the walk has to stop now.
    pub fn is_stopped(&self) -> bool {
        if self.stopped.load(Ordering::Relaxed) {
            return true;
        }
        let should_stop = self.is_past_deadline() || self.cancel.is_cancelled();
        if should_stop {
            self.stop();
        }
        should_stop
    }

    /// Returns the remaining time, if it is limited.
    pub fn time_left(&self) -> Option<std::time::Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the time limit has passed.
    pub fn is_past_deadline(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

enum WalkJob {
    Enter { parent: Arc<TreeDir>, entry: TreeEntry },
    Work { directory: Arc<TreeDir>, entries: Vec<TreeEntry> },
}

struct WalkWorkers<'a, V: TreeVisitor> {
    tree: &'a WorkspaceTree,
    visitor: &'a V,
    stop: &'a WalkStop,
    state: Mutex<JobQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: Vec<WalkJob>,
    busy: usize,
    idle: usize,
}

/// Walks the tree and returns when all threads have finished.
pub fn run_workers<V: TreeVisitor>(
    tree: &WorkspaceTree,
    visitor: &V,
    threads: usize,
    stop: &WalkStop,
) {
    let workers =
        WalkWorkers { tree, visitor, stop, state: Mutex::default(), changed: Condvar::new() };
    // This thread reads the first directory alone: there is nothing to share yet, and often nothing
    // more to do.
    let mut buffer = Vec::new();
    let mut thread_state = visitor.new_thread_state();
    if let Ok(root) = tree.reopen_root() {
        workers.visit_directory(root, &mut thread_state, &mut buffer);
    }
    let jobs = workers.lock().jobs.len();
    std::thread::scope(|scope| {
        for _ in 1..threads.min(jobs + 1) {
            // If no thread can be started, the existing ones do the work.
            if std::thread::Builder::new()
                .spawn_scoped(scope, || workers.run_jobs(visitor.new_thread_state()))
                .is_err()
            {
                break;
            }
        }
        workers.run_jobs(thread_state);
    });
}

impl<V: TreeVisitor> WalkWorkers<'_, V> {
    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.state.lock().ignore_poison()
    }

    fn run_jobs(&self, mut thread_state: V::ThreadState) {
        let mut buffer = Vec::new();
        while let Some(job) = self.next_job() {
            // Threads that wait must not wait for one that panicked.
            let _done = JobGuard(self);
            match job {
                WalkJob::Enter { parent, entry } => match self.tree.open_child(&parent, &entry) {
                    Ok(directory) => {
                        drop(parent);
                        self.visit_directory(directory, &mut thread_state, &mut buffer);
                    }
                    Err(errno) => self.visitor.dir_failed(
                        parent.path(),
                        &entry.name,
                        parent.depth() + 1,
                        errno,
                    ),
                },
                WalkJob::Work { directory, entries } => {
                    self.visitor.process_entries(&mut thread_state, self.tree, &directory, entries)
                }
            }
        }
    }

    fn next_job(&self) -> Option<WalkJob> {
        let mut state = self.lock();
        loop {
            if self.stop.is_stopped() {
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
            state = self.changed.wait(state).ignore_poison();
            state.idle -= 1;
        }
    }

    /// Reads a directory, shows it to the visitor, and pushes the jobs below it onto the stack.
    fn visit_directory(
        &self,
        mut directory: TreeDir,
        thread_state: &mut V::ThreadState,
        buffer: &mut Vec<u8>,
    ) {
        let listing = match self.tree.read_dir(&mut directory, buffer, self.stop) {
            Ok(listing) => listing,
            Err(errno) => {
                let path = directory.path();
                let name = path.file_name().unwrap_or_default();
                self.visitor.dir_failed(
                    path.parent().unwrap_or(Path::new("")),
                    name,
                    directory.depth(),
                    errno,
                );
                return;
            }
        };
        let NextSteps { descend, process: mut unprocessed } =
            self.visitor.visit_dir(self.tree, &directory, listing);
        let directory = Arc::new(directory);
        let too_many_open = self.tree.open_dirs.load(Ordering::Relaxed) > MAX_OPEN_DIRS;
        let mut jobs = Vec::new();
        if !descend.is_empty() {
            let parent = if too_many_open {
                Arc::new(directory.without_fd())
            } else {
                Arc::clone(&directory)
            };
            jobs.extend(
                descend
                    .into_iter()
                    .map(|entry| WalkJob::Enter { parent: Arc::clone(&parent), entry }),
            );
            // The last job is taken immediately, so it may keep its parent open: descending
            // straight down is cheap.
            if let Some(WalkJob::Enter { parent, .. }) = jobs.last_mut() {
                *parent = Arc::clone(&directory);
            }
        }
        let mut inline_batches = Vec::new();
        if too_many_open {
            inline_batches.push(unprocessed);
        } else {
            while unprocessed.len() > CHUNK_ENTRIES {
                let batch = unprocessed.split_off(unprocessed.len() - CHUNK_ENTRIES);
                jobs.push(WalkJob::Work { directory: Arc::clone(&directory), entries: batch });
            }
            inline_batches.push(unprocessed);
        }
        self.push_jobs(jobs);
        for entries in inline_batches.into_iter().filter(|entries| !entries.is_empty()) {
            self.visitor.process_entries(thread_state, self.tree, &directory, entries);
        }
    }

    fn push_jobs(&self, jobs: Vec<WalkJob>) {
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

struct JobGuard<'a, 'c, V: TreeVisitor>(&'a WalkWorkers<'c, V>);

impl<V: TreeVisitor> Drop for JobGuard<'_, '_, V> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 || self.0.stop.is_stopped() {
            self.0.changed.notify_all();
        }
    }
}
