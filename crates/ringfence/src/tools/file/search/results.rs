//! Results of a search so far: everything is counted, but only what may be shown is kept.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering as Atomic};
use std::sync::{Mutex, MutexGuard};

use super::{Reply, SearchHit, SearchOutput, SkippedCounts};
use crate::base::IgnorePoison;
use crate::base::workspace::tree::compare_paths;
use crate::redact::known_secrets;
use crate::tools::file::cursor::CursorQuery;

/// Extra files kept before those that cannot be shown are discarded.
const SPARE_FILES: usize = 256;

/// Position of the last result on the previous page.
#[derive(Debug, Clone)]
pub struct SearchPosition {
    pub path: Vec<u8>,
    pub line: u64,
}

/// Results shared by all search threads.
pub struct SearchResults {
    max_results: usize,
    max_bytes: usize,
    page_start: Option<SearchPosition>,
    kept: Mutex<KeptResults>,
    matches: AtomicU64,
    files: AtomicU64,
    searched: AtomicU64,
    /// Number of results after the cursor, shown or not.
    available: AtomicU64,
    binary: AtomicU64,
    unreadable: AtomicU64,
    non_utf8: AtomicU64,
    left_out: AtomicU64,
}

#[derive(Default)]
struct KeptResults {
    files: Vec<FileHits>,
    hits: usize,
    bytes: usize,
    /// Last path worth keeping, once there are enough results.
    last_path: Option<Vec<u8>>,
}

struct FileHits {
    path: Vec<u8>,
    hits: Vec<SearchHit>,
    bytes: usize,
}

/// Limits on what one file may still contribute.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileQuota {
    pub hits: usize,
    pub bytes: usize,
    /// Lines up to this one were shown on earlier pages.
    pub after_line: u64,
}

/// Matches found in one file.
#[derive(Debug, Default)]
pub struct FileFinding {
    pub hits: Vec<SearchHit>,
    pub count: u64,
    /// Number of results after the cursor.
    pub available: u64,
    pub binary: bool,
}

impl SearchResults {
    /// Creates an empty set of results with `max_bytes` bytes for the shown ones.
    pub fn new(
        max_results: usize,
        max_bytes: usize,
        page_start: Option<SearchPosition>,
    ) -> SearchResults {
        SearchResults {
            max_results,
            max_bytes,
            page_start,
            kept: Mutex::default(),
            matches: AtomicU64::new(0),
            files: AtomicU64::new(0),
            searched: AtomicU64::new(0),
            available: AtomicU64::new(0),
            binary: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            non_utf8: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    fn lock_kept(&self) -> MutexGuard<'_, KeptResults> {
        self.kept.lock().ignore_poison()
    }

    /// Returns the number of files searched so far.
    pub fn files_searched(&self) -> u64 {
        self.searched.load(Atomic::Relaxed)
    }

    /// Counts names that were skipped because they are ignored or hidden.
    pub fn count_left_out(&self, count: u64) {
        self.left_out.fetch_add(count, Atomic::Relaxed);
    }

    /// Returns the number of names that were skipped.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Atomic::Relaxed)
    }

    /// Counts a file with text that is not UTF-8.
    pub fn count_non_utf8(&self) {
        self.non_utf8.fetch_add(1, Atomic::Relaxed);
    }

    /// Counts a file or directory that could not be read.
    pub fn count_unreadable(&self) {
        self.unreadable.fetch_add(1, Atomic::Relaxed);
    }

    /// Returns the limits for a file. `by_line` says that a page may end within a file.
    pub fn quota_for(&self, path: &[u8], by_line: bool) -> FileQuota {
        let after_line = match &self.page_start {
            Some(page_start) => match compare_paths(path, &page_start.path) {
                Ordering::Less => u64::MAX,
                Ordering::Equal if by_line => page_start.line,
                Ordering::Equal => u64::MAX,
                Ordering::Greater => 0,
            },
            None => 0,
        };
        let is_beyond = self
            .lock_kept()
            .last_path
            .as_ref()
            .is_some_and(|last_path| compare_paths(path, last_path) == Ordering::Greater);
        match is_beyond || after_line == u64::MAX {
            true => FileQuota { hits: 0, bytes: 0, after_line },
            false => FileQuota { hits: self.max_results, bytes: self.max_bytes, after_line },
        }
    }

    /// Adds the matches of one file.
    pub fn add_file(&self, path: &[u8], finding: FileFinding) {
        self.searched.fetch_add(1, Atomic::Relaxed);
        if finding.binary {
            self.binary.fetch_add(1, Atomic::Relaxed);
        }
        if finding.count == 0 {
            return;
        }
        self.matches.fetch_add(finding.count, Atomic::Relaxed);
        self.files.fetch_add(1, Atomic::Relaxed);
        self.available.fetch_add(finding.available, Atomic::Relaxed);
        if finding.hits.is_empty() {
            return;
        }
        let bytes = finding.hits.iter().map(hit_size).sum();
        let mut kept = self.lock_kept();
        kept.hits += finding.hits.len();
        kept.bytes += bytes;
        kept.files.push(FileHits { path: path.to_vec(), hits: finding.hits, bytes });
        if kept.files.len() > self.max_results + SPARE_FILES
            || kept.hits > 4 * self.max_results + SPARE_FILES
            || kept.bytes > 8 * self.max_bytes + (1 << 20)
        {
            kept.prune(self.max_results, self.max_bytes);
        }
    }

    /// Fills the reply with the first results in order.
    pub fn fill_reply(
        self,
        reply: &mut Reply,
        cursor_query: &CursorQuery,
        mode: SearchOutput,
        halted: bool,
    ) {
        let mut kept = self.kept.into_inner().ignore_poison();
        kept.prune(self.max_results, self.max_bytes);
        let mut bytes_left = self.max_bytes;
        let mut last_position = None;
        let mut is_shrunk = false;
        'all: for file in kept.files {
            for mut hit in file.hits {
                if reply.matches.is_empty() {
                    is_shrunk = shrink_hit(&mut hit, bytes_left);
                }
                let bytes = hit_size(&hit);
                let is_full = reply.matches.len() >= self.max_results || bytes > bytes_left;
                if is_full && !reply.matches.is_empty() {
                    break 'all;
                }
                bytes_left = bytes_left.saturating_sub(bytes);
                last_position = Some((file.path.clone(), hit.line.unwrap_or(0)));
                reply.matches.push(hit);
            }
        }
        if is_shrunk {
            reply.warnings.push(
                "the first match does not fit with all of its context: raise `max_bytes`"
                    .to_owned(),
            );
        }
        let available = self.available.into_inner();
        reply.truncated = available > reply.matches.len() as u64;
        reply.timed_out = halted;
        // After an incomplete search there may be matches before the last one shown: continuing
        // after it would skip them.
        reply.next_cursor = last_position
            .filter(|_| reply.truncated && !halted)
            .map(|(path, line)| cursor_query.encode_cursor(&path, line));
        reply.truncated |= halted;
        reply.total_matches = (mode != SearchOutput::Files).then(|| self.matches.into_inner());
        reply.files_matched = self.files.into_inner();
        reply.files_searched = self.searched.into_inner();
        let non_utf8_count = self.non_utf8.into_inner();
        if non_utf8_count > 0 {
            reply.warnings.push(format!(
                "{non_utf8_count} files are not UTF-8, and only the ASCII part of a pattern can match in them: read them with file.read"
            ));
        }
        reply.skipped = SkippedCounts {
            binary: self.binary.into_inner(),
            unreadable: self.unreadable.into_inner(),
        };
    }
}

impl KeptResults {
    /// Keeps the first files that fill a page, with all of their hits.
    fn prune(&mut self, max_results: usize, max_bytes: usize) {
        self.files.sort_by(|one, two| compare_paths(&one.path, &two.path));
        let (mut hits, mut bytes, mut files) = (0, 0, 0);
        for file in &self.files {
            if hits > max_results || bytes > max_bytes {
                break;
            }
            hits += file.hits.len();
            bytes += file.bytes;
            files += 1;
        }
        self.files.truncate(files);
        (self.hits, self.bytes) = (hits, bytes);
        if hits > max_results || bytes > max_bytes {
            self.last_path = self.files.last().map(|file| file.path.clone());
        }
    }
}

/// Shortens a hit to fit: first drops the most distant context, then text. Returns whether anything
/// was dropped.
fn shrink_hit(hit: &mut SearchHit, max_bytes: usize) -> bool {
    let mut is_shrunk = false;
    while hit_size(hit) > max_bytes {
        if hit.before.len() > hit.after.len() {
            hit.before.remove(0);
        } else if hit.after.pop().is_none() {
            let Some(text) = &mut hit.text else { break };
            // Redact before cutting, because a fragment of a secret is not found any more.
            known_secrets::redact_text(text);
            let keep_chars = text.chars().count() / 2;
            if keep_chars == 0 {
                break;
            }
            *text = text.chars().take(keep_chars).chain(['…']).collect();
        }
        is_shrunk = true;
    }
    is_shrunk
}

/// Returns the size of a hit in a result, in bytes.
pub fn hit_size(hit: &SearchHit) -> usize {
    serde_json::to_string(hit).map_or(0, |json| json.len() + 1)
}
