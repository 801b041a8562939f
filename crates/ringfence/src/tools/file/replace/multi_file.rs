//! Edits in many files.
//!
//! All files are read and their matches counted first; then all new files are written next to the
//! old ones; only then are they exchanged. A failure before the exchange leaves everything as it
//! was, and a failure during it is rolled back.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use serde_json::json;

use super::edit::{CompiledEdit, MAX_LINES, MatchTally};
use super::single_file::{EditOutcome, EditTarget};
use super::{Args, EditReply, FileReply, Reply};
use crate::base::IgnorePoison;
use crate::base::workspace::tree::{
    DirListing, NextSteps, TreeDir, TreeEntry, TreeVisitor, WalkFilter, WalkStart, WalkStop,
    WorkspaceTree, compare_paths, thread_count,
};
use crate::base::workspace::{Workspace, os_error, quote_path};
use crate::base::{CancelToken, Error, Kind, Result};
use crate::tools::file::atomic_write::{self, ExchangedFile, TempFile};
use crate::tools::file::content::check_cancelled;
use crate::tools::file::old_file::{FileFingerprint, OldFile, stale_error};
use crate::tools::file::path_filter::PathFilter;

/// Maximum number of files examined in one call.
const MAX_SELECTED_FILES: usize = 20_000;
/// Maximum bytes of all their paths.
const MAX_PATH_BYTES: usize = 8 << 20;
/// Maximum number of files changed in one call.
pub const MAX_FILES: usize = 200;
/// Maximum bytes of all diffs together.
const MAX_DIFF: usize = 8 << 20;
/// Maximum bytes kept in memory to restore files that are written in place.
const MAX_RESTORE_BYTES: usize = 64 << 20;

/// Edits the selected files below the directory in `args`.
pub fn replace_in_files(
    workspace: &Arc<Workspace>,
    args: &Args,
    cancel: &CancelToken,
) -> Result<Reply> {
    let edits = args.compile_edits()?;
    let (dir, paths, skipped) = select_files(workspace, args, cancel)?;
    let mut reply = Reply { path: dir, skipped, dry_run: args.is_dry_run(), ..Reply::default() };
    let mut seen_inodes = HashSet::new();
    let mut tallies = vec![MatchTally::default(); edits.len()];
    for path in &paths {
        check_cancelled(cancel)?;
        match preview_file(workspace, path, &edits, args, &mut seen_inodes, &mut reply, cancel) {
            Ok(counts) => {
                counts.iter().zip(&mut tallies).for_each(|(count, tally)| tally.count += count)
            }
            // A file that cannot be edited is skipped and counted, because among many files there
            // usually are some.
            Err(error) if is_single_file_error(&error) => reply.skipped += 1,
            Err(error) => return Err(error.with_fact("path", path.as_str())),
        }
    }
    check_counts(&edits, &tallies, &reply)?;
    args.check_total(reply.replacements)?;
    reply.edits = tallies.into_iter().map(EditReply::from).collect();
    if !args.is_dry_run() && !reply.files.is_empty() {
        commit_files(stage_files(workspace, &edits, &reply.files, cancel)?, cancel)?;
    }
    Ok(reply)
}

fn is_single_file_error(error: &Error) -> bool {
    let is_binary = matches!(error.reason_name(), Some("binary_file"));
    is_binary || matches!(error.kind(), Kind::PermissionDenied | Kind::NotFound | Kind::TooLarge)
}

/// Returns how often each edit matches in one file, and adds the file to the reply if it would
/// change.
fn preview_file(
    workspace: &Workspace,
    path: &str,
    edits: &[CompiledEdit],
    args: &Args,
    seen_inodes: &mut HashSet<(u64, u64)>,
    reply: &mut Reply,
    cancel: &CancelToken,
) -> Result<Vec<u64>> {
    let file = EditTarget::open(workspace, path, cancel)?;
    let stat = &file.old.content.stat;
    if stat.st_nlink > 1 && !seen_inodes.insert((stat.st_dev, stat.st_ino)) {
        // Another hard link to a file that was already counted.
        return Ok(Vec::new());
    }
    let outcome = file.preview_edits(edits, false, cancel)?;
    if outcome.bytes.is_some() {
        OldFile::check_writable(&file.old.object)?;
    }
    reply.replacements += outcome.total_matches();
    if outcome.bytes.is_some() {
        if reply.files.len() >= MAX_FILES {
            return Err(Error::invalid_arguments(format!("more than {MAX_FILES} files would be changed"))
                .with_reason("too_many_files")
                .with_hint("Nothing was written. Select fewer with `glob` or `path`, and make one call for each part."));
        }
        add_changes(&outcome, path, args, reply);
        reply.files.push(FileReply {
            path: path.to_owned(),
            replacements: outcome.total_matches(),
            etag: outcome.etag.clone(),
            previous_etag: file.old.survey.etag.clone(),
        });
    }
    Ok(outcome.tallies.iter().map(|tally| tally.count).collect())
}

fn add_changes(outcome: &EditOutcome, path: &str, args: &Args, reply: &mut Reply) {
    let Some(changes) = outcome.line_changes(path, args.diff.unwrap_or_default()) else { return };
    *reply.lines_added.get_or_insert(0) += changes.added;
    *reply.lines_removed.get_or_insert(0) += changes.removed;
    if let Some(unified) = changes.unified_diff {
        let diff = reply.diff.get_or_insert_default();
        if diff.len() + unified.len() <= MAX_DIFF {
            diff.push_str(&unified);
        } else {
            diff.push_str(&format!("… {path} is omitted\n"));
        }
    }
}

/// Checks that each edit matches as often as required in all files together.
fn check_counts(edits: &[CompiledEdit], tallies: &[MatchTally], reply: &Reply) -> Result<()> {
    let mismatch = edits
        .iter()
        .zip(tallies)
        .position(|(edit, tally)| edit.expected_count.is_some_and(|n| n != tally.count));
    let Some(index) = mismatch else { return Ok(()) };
    let (count, expected) = (tallies[index].count, edits[index].expected_count.unwrap_or_default());
    let (kind, reason) =
        if count == 0 { (Kind::NotFound, "no_match") } else { (Kind::Conflict, "ambiguous_match") };
    let files: Vec<_> = reply
        .files
        .iter()
        .take(MAX_LINES)
        .map(|file| json!([file.path, file.replacements]))
        .collect();
    Err(Error::new(kind, format!("`edits[{index}].old` matches {count} times in total, not {expected}"))
        .with_reason(reason)
        .with_hint("Nothing was written. Check with dry_run and diff unified, then correct `old`, `expect` or `glob`.")
        .with_fact("edit", index)
        .with_fact("count", count)
        .with_fact("expected", expected)
        .with_fact("files", files))
}

/// Returns the directory, the paths below it that the globs select, sorted, and the number of files
/// and directories that could not be examined.
fn select_files(
    workspace: &Arc<Workspace>,
    args: &Args,
    cancel: &CancelToken,
) -> Result<(String, Vec<String>, u64)> {
    let filter = PathFilter::new(args.glob.as_deref().unwrap_or_default(), &[], None)?;
    let sight =
        WalkFilter { skip_ignored: true, show_hidden: filter.names_hidden, inverted: false };
    let tree = match WorkspaceTree::find_start(workspace, &args.path, sight)? {
        WalkStart::Tree(tree) => tree,
        WalkStart::File(..) => {
            return Err(os_error(Errno::NOTDIR, &args.path)
                .with_hint("With `glob`, `path` must be a directory."));
        }
    };
    let start = tree.path().to_owned();
    let prefix_len = start.as_os_str().len() + usize::from(!start.as_os_str().is_empty());
    let halt = WalkStop::without_deadline(cancel);
    let selector = PathSelector {
        filter,
        prefix_len,
        halt: &halt,
        selected: Mutex::default(),
        skipped: AtomicU64::new(0),
    };
    tree.walk(&selector, thread_count(), &halt);
    check_cancelled(cancel)?;
    let SelectedPaths { mut paths, is_full, .. } = selector.selected.into_inner().ignore_poison();
    if is_full {
        return Err(Error::new(
            Kind::TooLarge,
            format!("more than {MAX_SELECTED_FILES} files are selected, or their names are too long"),
        )
        .with_hint("Select fewer with `glob` or `path`; use file.search to find out where the matches are."));
    }
    paths.sort_by(|one, two| compare_paths(one.as_bytes(), two.as_bytes()));
    let shown_dir =
        if prefix_len == 0 { ".".to_owned() } else { start.to_string_lossy().into_owned() };
    Ok((shown_dir, paths, selector.skipped.into_inner()))
}

#[derive(Default)]
struct SelectedPaths {
    paths: Vec<String>,
    bytes: usize,
    /// There are more paths than allowed.
    is_full: bool,
}

struct PathSelector<'h> {
    filter: PathFilter,
    /// Length of the leading part of a path that the globs do not apply to.
    prefix_len: usize,
    halt: &'h WalkStop,
    selected: Mutex<SelectedPaths>,
    /// Number of directories and files that could not be examined.
    skipped: AtomicU64,
}

impl PathSelector<'_> {
    fn add_path(&self, path: String) {
        let mut selected = self.selected.lock().ignore_poison();
        selected.bytes += path.len();
        if selected.paths.len() >= MAX_SELECTED_FILES || selected.bytes > MAX_PATH_BYTES {
            selected.is_full = true;
            self.halt.stop();
            return;
        }
        selected.paths.push(path);
    }

    fn count_skipped(&self, count: u64) {
        self.skipped.fetch_add(count, Ordering::Relaxed);
    }
}

impl TreeVisitor for PathSelector<'_> {
    type ThreadState = ();

    fn new_thread_state(&self) {}

    fn visit_dir(&self, _: &WorkspaceTree, directory: &TreeDir, listing: DirListing) -> NextSteps {
        let mut steps = NextSteps::default();
        self.count_skipped(listing.too_long + u64::from(listing.is_truncated));
        for entry in listing.entries {
            let path = directory.path().join(&entry.name);
            let relative_path =
                path.as_os_str().as_bytes().get(self.prefix_len..).unwrap_or_default();
            match entry.kind {
                FileType::Directory if !self.filter.excludes(relative_path, true) => {
                    steps.descend.push(entry)
                }
                FileType::RegularFile
                    if !self.filter.excludes(relative_path, false)
                        && self.filter.includes(relative_path, false) =>
                {
                    // A path that is not UTF-8 can neither be named in a result nor by a caller.
                    match path.into_os_string().into_string() {
                        Ok(path) => self.add_path(path),
                        Err(_) => self.count_skipped(1),
                    }
                    if self.halt.is_stopped() {
                        return NextSteps::default();
                    }
                }
                _ => {}
            }
        }
        steps
    }

    fn process_entries(&self, (): &mut (), _: &WorkspaceTree, _: &TreeDir, _: Vec<TreeEntry>) {}

    fn dir_failed(&self, _: &Path, _: &OsStr, _: usize, errno: Errno) {
        // A directory that has disappeared or changed its type does not count as skipped, and
        // neither does one that must not be entered.
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) {
            self.count_skipped(1);
        }
    }
}

/// File that is ready to be exchanged.
pub struct StagedFile {
    path: String,
    change: StagedChange,
}

enum StagedChange {
    Exchange {
        temporary: TempFile,
        name: OsString,
        old: Box<FileFingerprint>,
    },
    /// The file has other hard links, which must show the new bytes too.
    InPlace {
        file: Box<EditTarget>,
        bytes: Vec<u8>,
    },
}

/// Writes every new file next to the old one.
pub fn stage_files(
    workspace: &Workspace,
    edits: &[CompiledEdit],
    files: &[FileReply],
    cancel: &CancelToken,
) -> Result<Vec<StagedFile>> {
    let mut dirs: HashMap<(u64, u64), Arc<OwnedFd>> = HashMap::new();
    let mut held_bytes = 0;
    let mut staged = Vec::new();
    for FileReply { path, previous_etag, .. } in files {
        check_cancelled(cancel)?;
        let mut file = EditTarget::open_to_write(workspace, path, cancel)?;
        if file.old.survey.etag != *previous_etag {
            return Err(stale_error(path, Some(&file.old.survey.etag)));
        }
        let bytes = file.preview_edits(edits, false, cancel)?.bytes.unwrap_or_default();
        let stat = fstat(&file.dir).map_err(|errno| os_error(errno, path))?;
        file.dir = Arc::clone(dirs.entry((stat.st_dev, stat.st_ino)).or_insert(file.dir));
        let change = if file.old.content.stat.st_nlink > 1 {
            held_bytes += bytes.len() + file.old.content.snapshot_bytes().map_or(0, <[u8]>::len);
            if held_bytes > MAX_RESTORE_BYTES {
                return Err(Error::new(
                    Kind::TooLarge,
                    "there is too much to change in files with several hard links",
                ));
            }
            StagedChange::InPlace { file: Box::new(file), bytes }
        } else {
            let temporary = file.old.stage_replacement(
                &file.dir,
                &file.name,
                &bytes,
                file.old.permission_bits(),
                cancel,
            )?;
            StagedChange::Exchange {
                temporary,
                name: file.name,
                old: Box::new(file.old.into_fingerprint()),
            }
        };
        staged.push(StagedFile { path: path.clone(), change });
    }
    Ok(staged)
}

enum CommittedChange {
    Exchanged(ExchangedFile),
    InPlace(Box<EditTarget>, Vec<u8>),
}

impl CommittedChange {
    /// Undoes the change and returns whether everything is as it was before.
    fn undo(self) -> bool {
        match self {
            CommittedChange::Exchanged(exchanged) => exchanged.undo_exchange().unwrap_or(false),
            CommittedChange::InPlace(file, bytes) => {
                restore_in_place(&file, &bytes).unwrap_or(false)
            }
        }
    }
}

/// Puts all files in place, or none.
pub fn commit_files(staged: Vec<StagedFile>, cancel: &CancelToken) -> Result<()> {
    let mut committed: Vec<(String, CommittedChange)> = Vec::new();
    for StagedFile { path, change } in staged {
        let result = check_cancelled(cancel).and_then(|()| match change {
            StagedChange::Exchange { temporary, name, old } => {
                let Some(exchanged) = temporary.exchange_with(&name, &old.stat)? else {
                    return Ok(None);
                };
                Ok(exchanged
                    .confirm_or_restore(old.is_unchanged())?
                    .map(CommittedChange::Exchanged))
            }
            StagedChange::InPlace { file, bytes } => {
                let write = |target: &std::fs::File| {
                    atomic_write::overwrite_in_place(
                        target,
                        file.old.content.snapshot_bytes(),
                        &bytes,
                        &path,
                    )
                };
                let written = file.old.write_in_place(file.old.permission_bits(), cancel, write)?;
                Ok(written.map(|_| CommittedChange::InPlace(file, bytes)))
            }
        });
        let error = match result {
            Ok(Some(change)) => {
                committed.push((path, change));
                continue;
            }
            Ok(None) => Error::new(
                Kind::Conflict,
                format!("{} was changed by another process in the meantime", quote_path(&path)),
            )
            .with_reason("stale"),
            Err(error) => error,
        };
        return Err(roll_back(error, committed));
    }
    Ok(())
}

/// Rolls back what was done and reports what could not be restored.
fn roll_back(error: Error, done: Vec<(String, CommittedChange)>) -> Error {
    let not_restored: Vec<String> =
        done.into_iter().rev().filter_map(|(path, done)| (!done.undo()).then_some(path)).collect();
    // The error for a file that was kept under another name has its own hint.
    if not_restored.is_empty() && error.reason_name() == Some("displaced") {
        return error;
    }
    if not_restored.is_empty() {
        return error.with_hint("Nothing was changed: files that had been written were restored. Check the files and repeat the call.");
    }
    error
        .with_hint("The files in `written` keep their edits: another process changed them in the meantime, or they could not be restored.")
        .with_fact("written_count", not_restored.len())
        .with_fact("written", not_restored.into_iter().take(MAX_LINES).collect::<Vec<_>>())
}

fn restore_in_place(file: &EditTarget, written: &[u8]) -> Result<bool> {
    let cancel = CancelToken::new();
    let old = file.old.content.snapshot_bytes().unwrap_or_default();
    let Some(current) = file.old.inspect_again(written.len() as u64, &cancel)? else {
        return Ok(false);
    };
    if current.content.snapshot_bytes() != Some(written) {
        return Ok(false);
    }
    let path = &file.old.object.path;
    let write =
        |target: &std::fs::File| atomic_write::overwrite_in_place(target, Some(written), old, path);
    Ok(current.write_in_place(file.old.content.stat.st_mode & 0o7777, &cancel, write)?.is_some())
}
