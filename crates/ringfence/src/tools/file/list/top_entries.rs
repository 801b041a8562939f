//! Selects the entries that a list shows: the first ones in sort order. Memory is bounded to a
//! small multiple of the number shown.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::{EntryType, ListEntry, ListOrder, Reply};
use crate::base::IgnorePoison;
use crate::base::clock::format_utc;
use crate::base::workspace::tree::{
    DirListing, NextSteps, TreeDir, TreeEntry, TreeVisitor, WorkspaceTree, compare_paths,
    escape_name,
};
use crate::tools::file::path_filter::PathFilter;

/// A directory below the listed one with more entries than this is collapsed into one entry.
pub(super) const MAX_DIR_ENTRIES: usize = 100;
/// Limit on the bytes of paths kept in memory: more than any client takes.
const MAX_PATH_BYTES: usize = 2 << 20;

/// Criteria for the entries to show.
pub struct ListQuery {
    /// Number of levels; 0 means all.
    pub depth: usize,
    pub kind: EntryType,
    pub sort: ListOrder,
    pub details: bool,
    pub limit: usize,
    /// Show only entries after this path.
    pub after_path: Option<Vec<u8>>,
    pub filter: PathFilter,
}

/// Visitor that collects the first entries in sort order.
pub struct EntryCollector<'w> {
    query: &'w ListQuery,
    /// Length of the leading part of a path that the globs do not apply to.
    prefix_len: usize,
    kept: Mutex<CollectedEntries>,
}

#[derive(Default)]
struct CollectedEntries {
    found: Vec<RankedEntry>,
    /// Total bytes of their paths.
    path_bytes: usize,
    /// Rank of the last entry worth keeping, once there are enough.
    last_rank: Option<EntryRank>,
    total: u64,
    already_shown: u64,
    ignored: u64,
    unreadable: u64,
    too_long: u64,
    truncated_dirs: u64,
}

struct RankedEntry {
    rank: EntryRank,
    item: ListEntry,
}

/// Sort position of an entry: by the sort key, largest first, then by path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EntryRank {
    key: i128,
    path: Vec<u8>,
}

impl EntryRank {
    fn compare(&self, other: &EntryRank) -> Ordering {
        other.key.cmp(&self.key).then_with(|| compare_paths(&self.path, &other.path))
    }
}

/// Result of a walk.
pub struct TopEntries {
    found: Vec<RankedEntry>,
    pub total: u64,
    /// How many of them were shown on earlier pages.
    pub already_shown: u64,
    pub ignored: u64,
    pub warnings: Vec<String>,
}

impl<'w> EntryCollector<'w> {
    /// Creates a collector for a walk that starts at `start`.
    pub fn new(query: &'w ListQuery, start: &Path) -> EntryCollector<'w> {
        let start = start.as_os_str().len();
        EntryCollector { query, prefix_len: start + usize::from(start > 0), kept: Mutex::default() }
    }

    fn lock_entries(&self) -> MutexGuard<'_, CollectedEntries> {
        self.kept.lock().ignore_poison()
    }

    fn relative_path<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        path.get(self.prefix_len..).unwrap_or_default()
    }

    /// Adds an entry if it meets the criteria. `stat` and `target` are called only for entries that
    /// may be shown.
    fn add_entry(
        &self,
        path: Vec<u8>,
        kind: FileType,
        children: Option<u64>,
        stat: impl Fn() -> Option<Stat>,
        target: impl Fn() -> Option<Vec<u8>>,
    ) {
        let is_dir = kind == FileType::Directory;
        if children.is_none()
            && !(self.matches_kind(kind)
                && self.query.filter.includes(self.relative_path(&path), is_dir))
        {
            return;
        }
        let needs_stat = self.query.sort != ListOrder::Name;
        let entry_stat = if needs_stat || self.query.details { stat() } else { None };
        let key = match (self.query.sort, &entry_stat) {
            (ListOrder::Mtime, Some(stat)) => {
                i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
            }
            (ListOrder::Size, Some(stat)) if kind == FileType::RegularFile => {
                i128::from(stat.st_size)
            }
            _ => 0,
        };
        let rank = EntryRank { key, path };
        {
            let mut collected = self.lock_entries();
            collected.total += 1;
            if self
                .query
                .after_path
                .as_ref()
                .is_some_and(|after| compare_paths(&rank.path, after) != Ordering::Greater)
            {
                collected.already_shown += 1;
                return;
            }
            if collected
                .last_rank
                .as_ref()
                .is_some_and(|last_rank| rank.compare(last_rank) == Ordering::Greater)
            {
                return;
            }
        }
        let details = entry_stat.filter(|_| self.query.details);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let item = ListEntry {
            path: text(&rank.path),
            kind: kind_name(kind),
            size: details
                .filter(|_| kind == FileType::RegularFile)
                .and_then(|stat| u64::try_from(stat.st_size).ok()),
            mtime: details.map(|stat| format_mtime(&stat)),
            target: (kind == FileType::Symlink).then(target).flatten().map(|target| text(&target)),
            children,
        };
        let mut collected = self.lock_entries();
        collected.path_bytes += rank.path.len();
        collected.found.push(RankedEntry { rank, item });
        if collected.found.len() > self.query.limit.saturating_mul(2) + 64
            || collected.path_bytes > 2 * MAX_PATH_BYTES
        {
            collected.prune(self.query.limit);
        }
    }

    fn matches_kind(&self, kind: FileType) -> bool {
        match self.query.kind {
            EntryType::Any => true,
            EntryType::File => kind == FileType::RegularFile,
            EntryType::Directory => kind == FileType::Directory,
            EntryType::Symlink => kind == FileType::Symlink,
        }
    }

    /// Returns whether large directories are collapsed. With a glob or a type the caller asked for
    /// the entries themselves, however many there are.
    fn collapses_large_dirs(&self) -> bool {
        self.query.kind == EntryType::Any && !self.query.filter.has_globs()
    }

    fn add_directory(&self, directory: &TreeDir, children: Option<u64>) {
        let path = directory.path().as_os_str().as_bytes().to_vec();
        self.add_entry(path, FileType::Directory, children, || directory.stat_self().ok(), || None);
    }

    /// Returns the collected entries and warnings.
    pub fn into_top_entries(self) -> TopEntries {
        let mut collected = self.kept.into_inner().ignore_poison();
        collected.prune(self.query.limit);
        let mut warnings = Vec::new();
        let mut warn = |count: u64, message: &str| {
            if count > 0 {
                warnings.push(format!("{count} {message}"));
            }
        };
        warn(collected.unreadable, "directories could not be read");
        warn(collected.truncated_dirs, "directories are too large to read completely");
        warn(collected.too_long, "paths are too long to be named");
        if collected.total == 0 && collected.ignored > 0 {
            let ignored_message =
                "names are ignored by git or hidden: try `gitignore: false` or `hidden: true`";
            warn(collected.ignored, ignored_message);
        }
        TopEntries {
            found: collected.found,
            total: collected.total,
            already_shown: collected.already_shown,
            ignored: collected.ignored,
            warnings,
        }
    }
}

impl CollectedEntries {
    fn prune(&mut self, limit: usize) {
        self.found.sort_by(|one, two| one.rank.compare(&two.rank));
        let mut bytes = 0;
        let fitting = self.found.iter().take_while(|entry| {
            bytes += entry.rank.path.len();
            bytes <= MAX_PATH_BYTES
        });
        let keep_count = fitting.count().min(limit);
        let is_full = keep_count == limit || keep_count < self.found.len();
        self.found.truncate(keep_count);
        self.path_bytes = self.found.iter().map(|entry| entry.rank.path.len()).sum();
        if is_full {
            self.last_rank = self.found.last().map(|last| last.rank.clone());
        }
    }
}

impl TreeVisitor for EntryCollector<'_> {
    type ThreadState = ();

    fn new_thread_state(&self) {}

    fn visit_dir(&self, _: &WorkspaceTree, directory: &TreeDir, listing: DirListing) -> NextSteps {
        {
            let mut collected = self.lock_entries();
            collected.ignored += listing.skipped;
            collected.too_long += listing.too_long;
            collected.truncated_dirs += u64::from(listing.is_truncated);
        }
        let mut path = directory.path().as_os_str().as_bytes().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let parent_len = path.len();
        let mut entries = Vec::new();
        for entry in listing.entries {
            path.truncate(parent_len);
            path.extend_from_slice(entry.name.as_bytes());
            if !self
                .query
                .filter
                .excludes(self.relative_path(&path), entry.kind == FileType::Directory)
            {
                entries.push(entry);
            }
        }
        let depth = directory.depth();
        if depth > 0 && entries.len() > MAX_DIR_ENTRIES && self.collapses_large_dirs() {
            self.add_directory(directory, u64::try_from(entries.len()).ok());
            return NextSteps::default();
        }
        if depth > 0 {
            self.add_directory(directory, None);
        }
        let descends = self.query.depth == 0 || depth + 1 < self.query.depth;
        let mut steps = NextSteps::default();
        for entry in entries {
            let (name, kind) = (&entry.name, entry.kind);
            path.truncate(parent_len);
            path.extend_from_slice(name.as_bytes());
            // A directory to descend into is added when it is entered: only then is it known
            // whether it is collapsed.
            if kind == FileType::Directory && descends {
                steps.descend.push(entry);
            } else {
                self.add_entry(
                    path.clone(),
                    kind,
                    None,
                    || directory.stat_entry(name).ok(),
                    || directory.read_link(name).ok(),
                );
            }
        }
        steps
    }

    fn process_entries(&self, (): &mut (), _: &WorkspaceTree, _: &TreeDir, _: Vec<TreeEntry>) {}

    fn dir_failed(&self, parent: &Path, name: &OsStr, depth: usize, errno: Errno) {
        // Ignore an entry that has disappeared or changed its type. Other directories exist but
        // cannot be read.
        if matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            return;
        }
        self.lock_entries().unreadable += 1;
        if depth > 0 {
            let path = parent.join(name).as_os_str().as_bytes().to_vec();
            self.add_entry(path, FileType::Directory, None, || None, || None);
        }
    }
}

impl TopEntries {
    /// Takes as many entries as fit into `bytes` bytes of JSON. Returns them, their number, and the
    /// path of the last one.
    pub fn take_fitting(&mut self, bytes: usize) -> (Vec<ListEntry>, u64, Option<Vec<u8>>) {
        let mut bytes_left = bytes;
        let (mut entries, mut last_path) = (Vec::with_capacity(self.found.len()), None);
        let mut json = Vec::new();
        for ranked in self.found.drain(..) {
            json.clear();
            let size =
                serde_json::to_writer(&mut json, &ranked.item).map_or(0, |()| json.len() + 1);
            if size > bytes_left && !entries.is_empty() {
                break;
            }
            bytes_left = bytes_left.saturating_sub(size);
            entries.push(ranked.item);
            last_path = Some(ranked.rank.path);
        }
        let count = entries.len() as u64;
        (entries, count, last_path)
    }
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "unknown",
    }
}

fn format_mtime(stat: &Stat) -> String {
    let since_epoch = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
    format_utc(UNIX_EPOCH + since_epoch)
}

/// Renders one entry per line, followed by notes in brackets.
pub fn render_list(reply: &Reply) -> String {
    let mut text = String::new();
    for item in &reply.entries {
        if let Some(mtime) = &item.mtime {
            let size = item.size.map_or("-".to_owned(), |size| size.to_string());
            text.push_str(&format!("{size:>10} {mtime} "));
        }
        text.push_str(&escape_name(&item.path));
        match (item.kind, &item.target, item.children) {
            ("directory", _, Some(children)) => text.push_str(&format!("/ ({children} entries)")),
            ("directory", ..) => text.push('/'),
            ("symlink", Some(target), _) => text.push_str(&format!(" -> {}", escape_name(target))),
            ("file", ..) => {}
            (other, ..) => text.push_str(&format!(" ({other})")),
        }
        text.push('\n');
    }
    let mut notes = vec![match (reply.total, reply.truncated) {
        (0, _) => "no entries".to_owned(),
        (total, false) => format!("{total} entries"),
        (total, true) => format!("{} of {total} entries", reply.entries.len()),
    }];
    if reply.ignored > 0 {
        notes.push(format!("{} ignored or hidden", reply.ignored));
    }
    notes.extend(reply.warnings.iter().cloned());
    if let Some(cursor) = &reply.next_cursor {
        notes.push(format!("next cursor {cursor}"));
    }
    text.push_str(&format!("[{}]", notes.join("; ")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_very_long_paths_is_bounded() {
        let mut kept = CollectedEntries::default();
        for number in 0..1000 {
            let path = format!("{}{number:04}", "x".repeat(4000)).into_bytes();
            kept.found
                .push(RankedEntry { rank: EntryRank { key: 0, path }, item: ListEntry::default() });
        }
        kept.prune(5000);
        let bytes: usize = kept.found.iter().map(|found| found.rank.path.len()).sum();
        assert!(
            bytes <= MAX_PATH_BYTES && kept.path_bytes == bytes && kept.found.len() > 500,
            "{bytes}"
        );
        // Entries after the last one kept are not added again.
        assert_eq!(kept.last_rank.as_ref(), kept.found.last().map(|found| &found.rank));
    }
}
