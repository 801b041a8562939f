//! The search itself: walks the selected files and searches each one line by line.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{
    BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind,
    SinkFinish, SinkMatch,
};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::cancellable::CancellableMatcher;
use super::results::{FileFinding, FileQuota, SearchResults};
use super::{SearchHit, SearchOutput};
use crate::base::workspace::tree::{
    DirListing, NextSteps, TreeDir, TreeEntry, TreeVisitor, WalkStop, WorkspaceTree,
};
use crate::redact::known_secrets;
use crate::tools::file::path_filter::PathFilter;

/// Characters shown of a line.
pub(super) const LINE_CHARS: usize = 300;
/// Characters shown of a match that spans lines.
const BLOCK_CHARS: usize = 1000;
/// Memory limit per search. A longer line (or file, with multiline) is not searched.
const MAX_HEAP_BYTES: usize = 64 << 20;

/// Pattern to search for and what to report about matches.
#[derive(Clone)]
pub struct SearchSpec {
    pub matcher: RegexMatcher,
    pub mode: SearchOutput,
    pub multiline: bool,
    /// The pattern contains characters that other encodings write differently.
    pub has_non_ascii: bool,
    pub before: usize,
    pub after: usize,
    pub max_per_file: Option<u64>,
}

impl SearchSpec {
    fn build_searcher(&self, binary: BinaryDetection) -> Searcher {
        SearcherBuilder::new()
            .line_terminator(self.matcher.line_terminator().unwrap_or_default())
            .line_number(self.mode == SearchOutput::Content)
            .multi_line(self.multiline)
            .before_context(self.before)
            .after_context(self.after)
            .max_matches(self.max_per_file)
            .binary_detection(binary)
            // A file that is truncated while it is mapped would kill the process with SIGBUS.
            .memory_map(MmapChoice::never())
            .heap_limit(Some(MAX_HEAP_BYTES))
            .build()
    }
}

/// Searches a file that the caller named, even if it is binary. Returns whether it is.
pub fn search_one_file(
    spec: &SearchSpec,
    file: &File,
    path: &str,
    results: &SearchResults,
    halt: &WalkStop,
) -> bool {
    let mut worker = WorkerSearcher {
        searcher: spec.build_searcher(BinaryDetection::convert(0)),
        matcher: spec.matcher.clone(),
    };
    worker.search_file(spec, file, path.as_bytes(), results, halt)
}

/// Tree visitor that searches the selected files.
pub struct SearchVisitor<'s> {
    spec: &'s SearchSpec,
    filter: &'s PathFilter,
    /// Length of the leading part of a path that the globs do not apply to.
    prefix_len: usize,
    results: &'s SearchResults,
    halt: &'s WalkStop,
}

impl<'s> SearchVisitor<'s> {
    /// Creates a visitor for a walk that starts at `start`.
    pub fn new(
        spec: &'s SearchSpec,
        filter: &'s PathFilter,
        start: &Path,
        results: &'s SearchResults,
        halt: &'s WalkStop,
    ) -> SearchVisitor<'s> {
        let start = start.as_os_str().len();
        SearchVisitor { spec, filter, prefix_len: start + usize::from(start > 0), results, halt }
    }
}

/// Searcher and matcher of one thread.
pub struct WorkerSearcher {
    searcher: Searcher,
    matcher: RegexMatcher,
}

impl TreeVisitor for SearchVisitor<'_> {
    type ThreadState = WorkerSearcher;

    fn new_thread_state(&self) -> WorkerSearcher {
        WorkerSearcher {
            searcher: self.spec.build_searcher(BinaryDetection::quit(0)),
            matcher: self.spec.matcher.clone(),
        }
    }

    fn visit_dir(&self, _: &WorkspaceTree, directory: &TreeDir, listing: DirListing) -> NextSteps {
        self.results.count_left_out(listing.skipped);
        for _ in 0..listing.too_long {
            self.results.count_unreadable();
        }
        if listing.is_truncated {
            self.results.count_unreadable();
        }
        let mut steps = NextSteps::default();
        let mut path = directory_prefix(directory);
        let parent_len = path.len();
        for entry in listing.entries {
            path.truncate(parent_len);
            path.extend_from_slice(entry.name.as_bytes());
            let relative_path = path.get(self.prefix_len..).unwrap_or_default();
            let is_dir = entry.kind == FileType::Directory;
            if self.filter.excludes(relative_path, is_dir) {
                continue;
            }
            if is_dir {
                steps.descend.push(entry);
            } else if entry.kind == FileType::RegularFile
                && self.filter.includes(relative_path, false)
            {
                steps.process.push(entry);
            }
        }
        steps
    }

    fn process_entries(
        &self,
        worker: &mut WorkerSearcher,
        tree: &WorkspaceTree,
        directory: &TreeDir,
        entries: Vec<TreeEntry>,
    ) {
        let mut path = directory_prefix(directory);
        let parent_len = path.len();
        for entry in entries {
            if self.halt.is_stopped() {
                return;
            }
            path.truncate(parent_len);
            path.extend_from_slice(entry.name.as_bytes());
            match tree.open_file(directory, &entry.name) {
                Ok((file, _)) => {
                    worker.search_file(self.spec, &file, &path, self.results, self.halt);
                }
                // The file has disappeared or been replaced, so it is not part of this tree.
                Err(Errno::NOENT | Errno::LOOP | Errno::INVAL | Errno::NXIO) => {}
                Err(_) => self.results.count_unreadable(),
            }
        }
    }

    fn dir_failed(&self, _: &Path, _: &OsStr, _: usize, errno: Errno) {
        // A directory that has disappeared or changed its type does not count as unreadable, and
        // neither does one that must not be entered.
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) {
            self.results.count_unreadable();
        }
    }
}

fn directory_prefix(directory: &TreeDir) -> Vec<u8> {
    let mut path = directory.path().as_os_str().as_bytes().to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path
}

impl WorkerSearcher {
    fn search_file(
        &mut self,
        spec: &SearchSpec,
        file: &File,
        path: &[u8],
        results: &SearchResults,
        halt: &WalkStop,
    ) -> bool {
        let by_line = spec.mode == SearchOutput::Content;
        let quota = results.quota_for(path, by_line);
        let matcher = CancellableMatcher::new(&self.matcher, !spec.multiline, halt);
        let mut sink = MatchCollector {
            spec,
            matcher: &matcher,
            path,
            quota,
            finding: FileFinding::default(),
            pending_context: Vec::new(),
            bytes: 0,
            keeps_context: false,
        };
        let saw_non_utf8 = Cell::new(false);
        let reader = HaltingReader {
            file,
            halt,
            saw_non_utf8: spec.has_non_ascii.then_some(&saw_non_utf8),
            has_started: false,
        };
        if self.searcher.search_reader(&matcher, reader, &mut sink).is_err() && !halt.is_stopped() {
            results.count_unreadable();
        }
        let finding = sink.into_finding();
        let is_binary = finding.binary;
        if saw_non_utf8.get() && !is_binary {
            results.count_non_utf8();
        }
        results.add_file(path, finding);
        is_binary
    }
}

/// Reader that fails once the search has to stop.
struct HaltingReader<'f> {
    file: &'f File,
    halt: &'f WalkStop,
    /// Set to true if something that was read is not UTF-8.
    saw_non_utf8: Option<&'f Cell<bool>>,
    has_started: bool,
}

impl Read for HaltingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.halt.is_stopped() {
            return Err(io::Error::other("the search has to end"));
        }
        let count = self.file.read(buffer)?;
        if let Some(saw_non_utf8) = self.saw_non_utf8 {
            let bytes = &buffer[..count];
            // The searcher converts text that starts with such a mark to UTF-8.
            if !self.has_started
                && (bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff"))
            {
                self.saw_non_utf8 = None;
            } else if !is_utf8(bytes) {
                saw_non_utf8.set(true);
            }
            self.has_started = true;
        }
        Ok(count)
    }
}

/// Sink that collects the matching lines of one file.
struct MatchCollector<'s> {
    spec: &'s SearchSpec,
    matcher: &'s CancellableMatcher<'s>,
    path: &'s [u8],
    quota: FileQuota,
    finding: FileFinding,
    /// Context lines before the next match.
    pending_context: Vec<String>,
    bytes: usize,
    /// The last match was kept, so the context after it is kept too.
    keeps_context: bool,
}

impl MatchCollector<'_> {
    fn path_text(&self) -> String {
        String::from_utf8_lossy(self.path).into_owned()
    }

    fn into_finding(mut self) -> FileFinding {
        if self.spec.mode != SearchOutput::Content && self.finding.count > 0 {
            self.finding.available = u64::from(self.quota.after_line == 0);
            if self.quota.hits > 0 {
                let count = (self.spec.mode == SearchOutput::Count).then_some(self.finding.count);
                self.finding.hits.push(SearchHit {
                    path: self.path_text(),
                    count,
                    ..SearchHit::default()
                });
            }
        }
        self.finding
    }

    fn keep_match(&mut self, sink_match: &SinkMatch<'_>) {
        let bytes = trim_line_ending(sink_match.bytes());
        // A match may include the line ending, so search the untrimmed line.
        let start = self
            .matcher
            .find(sink_match.bytes())
            .ok()
            .flatten()
            .map_or(0, |hit| hit.start().min(bytes.len()));
        let max_chars = if bytes.contains(&b'\n') { BLOCK_CHARS } else { LINE_CHARS };
        let (text, column) = cut_around(bytes, start, max_chars);
        let hit = SearchHit {
            path: self.path_text(),
            line: sink_match.line_number(),
            column: Some(column),
            text: Some(text),
            before: std::mem::take(&mut self.pending_context),
            ..SearchHit::default()
        };
        self.bytes += super::results::hit_size(&hit);
        self.finding.hits.push(hit);
    }
}

impl Sink for MatchCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, sink_match: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.finding.count += 1;
        if self.spec.mode != SearchOutput::Content {
            return Ok(self.spec.mode == SearchOutput::Count);
        }
        let is_new = sink_match.line_number().is_some_and(|line| line > self.quota.after_line);
        self.finding.available += u64::from(is_new);
        // Keep at most one match more than can be shown, and no context after it.
        self.keeps_context =
            is_new && self.finding.hits.len() <= self.quota.hits && self.bytes <= self.quota.bytes;
        self.keeps_context &= self.quota.hits > 0;
        match self.keeps_context {
            true => self.keep_match(sink_match),
            false => self.pending_context.clear(),
        }
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        // Context after a kept match is always kept, because the context before it may already have
        // used up the space.
        if self.quota.hits == 0 || self.bytes > self.quota.bytes && !self.keeps_context {
            return Ok(true);
        }
        let (text, _) = cut_around(trim_line_ending(context.bytes()), 0, LINE_CHARS);
        match context.kind() {
            SinkContextKind::Before => self.pending_context.push(text),
            SinkContextKind::After | SinkContextKind::Other => {
                if let Some(hit) = self.finding.hits.last_mut().filter(|_| self.keeps_context) {
                    self.bytes += text.len() + 4;
                    hit.after.push(text);
                }
            }
        }
        Ok(true)
    }

    fn binary_data(&mut self, searcher: &Searcher, _: u64) -> Result<bool, io::Error> {
        self.finding.binary = true;
        // With `quit` the search of this file ends here; a file that was named is searched to its
        // end.
        Ok(searcher.binary_detection().quit_byte().is_none())
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> Result<(), io::Error> {
        self.finding.binary |= finish.binary_byte_offset().is_some();
        Ok(())
    }
}

/// Returns whether a piece of text is UTF-8, ignoring characters that are cut off at its ends.
fn is_utf8(piece: &[u8]) -> bool {
    let continuation_bytes = piece.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    std::str::from_utf8(&piece[continuation_bytes..])
        .map_or_else(|error| error.error_len().is_none(), |_| true)
}

fn trim_line_ending(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Cuts a line to at most `max_chars` characters around byte `start`. Returns the text and the
/// position of `start` in characters, from 1.
fn cut_around(line: &[u8], start: usize, max_chars: usize) -> (String, u64) {
    // Only the part of a long line that may be shown is decoded.
    const WIDE: usize = 4;
    let chars_before = String::from_utf8_lossy(&line[..start]).chars().count();
    if line.len() <= max_chars {
        return (String::from_utf8_lossy(line).into_owned(), chars_before as u64 + 1);
    }
    let from = floor_char_start(line, start.saturating_sub(max_chars * WIDE));
    let to = floor_char_start(line, (start + max_chars * WIDE).min(line.len()));
    // Mask secrets before cutting, because a fragment would not be found any more.
    let overlap = known_secrets::max_overlap();
    let (first, last) = (from.saturating_sub(overlap), (to + overlap).min(line.len()));
    let masked = known_secrets::mask_secrets(&line[first..last]);
    let head: Vec<char> =
        String::from_utf8_lossy(&masked[from - first..start - first]).chars().collect();
    let tail: Vec<char> =
        String::from_utf8_lossy(&masked[start - first..to - first]).chars().collect();
    // Use a quarter for the text before the match, more if little follows it.
    let lead = (max_chars / 4).max(max_chars.saturating_sub(tail.len())).min(head.len());
    let follow = (max_chars - lead).min(tail.len());
    let mut text = String::new();
    if from > 0 || lead < head.len() {
        text.push('…');
    }
    text.extend(&head[head.len() - lead..]);
    text.extend(&tail[..follow]);
    if to < line.len() || follow < tail.len() {
        text.push('…');
    }
    (text, chars_before as u64 + 1)
}

/// Returns the start of the character that contains `offset`.
fn floor_char_start(line: &[u8], offset: usize) -> usize {
    let continuation_bytes =
        line[..offset].iter().rev().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    let is_inside_char = line.get(offset).is_some_and(|byte| byte & 0xc0 == 0x80);
    if is_inside_char { offset.saturating_sub(continuation_bytes + 1) } else { offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_around_its_match() {
        assert_eq!(cut_around(b"short", 2, 300), ("short".to_owned(), 3));
        let line = format!("{}HIT{}", "ä".repeat(5000), "漢".repeat(5000));
        let (text, column) = cut_around(line.as_bytes(), 10_000, 300);
        assert_eq!((text.chars().count(), column), (302, 5001));
        assert!(
            text.starts_with("…ää") && text.contains("äHIT漢") && text.ends_with("漢…"),
            "{text}"
        );
        let (text, _) = cut_around(line.as_bytes(), 0, 300);
        assert!(text.starts_with("ää") && text.chars().count() == 301, "{text}");
        let end = format!("{}HIT", "x".repeat(5000));
        let (text, column) = cut_around(end.as_bytes(), 5000, 300);
        assert_eq!((text.chars().count(), column), (301, 5001));
        assert!(text.ends_with("xHIT"));
    }

    #[test]
    fn no_part_of_a_secret_is_left_where_a_line_is_cut() {
        let value = "searched-for-in-halves-0123456789";
        known_secrets::register_secrets([("SEARCHED", &crate::redact::secret::Secret::new(value))]);
        for lead in 180..330 {
            let line =
                format!("HIT{}{value}{}{value}HIT", "x".repeat(lead), "y".repeat(3000 - lead));
            for start in [0, line.len() - 3] {
                let (text, _) = cut_around(line.as_bytes(), start, 300);
                assert!(
                    !(0..value.len() - 4).any(|at| text.contains(&value[at..at + 4])),
                    "{lead}: {text}"
                );
            }
        }
    }
}
