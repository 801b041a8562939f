//! Reads the log back: all files as one stream in order of time, now and as they grow.
//!
//! Does not verify anything; see `verify` for that. A log has millions of lines of which most
//! readers want a few, so lines are neither copied nor parsed here: their times are read from the
//! bytes that the chain writes in front.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::chain;
use super::line_reader::LineReader;
use super::store::{LOG_SUFFIX, list_names, open_regular};
use crate::base::clock::format_utc;

/// Line of the log.
#[derive(Clone, Copy)]
pub struct LoggedEvent<'a> {
    /// Name of its file.
    pub file: &'a str,
    /// Line number, counted from 1.
    pub line: u64,
    /// Bytes as stored in the file, without the newline. Empty if the line is too long.
    pub raw: &'a [u8],
}

impl LoggedEvent<'_> {
    /// Parses the line; None if it is not JSON.
    pub fn parse(&self) -> Option<Value> {
        serde_json::from_slice(self.raw).ok()
    }

    /// Returns the time stamp if the line begins as the chain writes it.
    pub fn time(&self) -> Option<&str> {
        chain::parse_time(self.raw)
    }
}

/// Reader that remembers how far each file was read.
pub struct LogReader {
    dir: PathBuf,
    positions: BTreeMap<String, ReadPosition>,
    /// Files that were last written before this time stamp are skipped.
    since: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct ReadPosition {
    offset: u64,
    line: u64,
}

/// File that is being read, and its next line.
struct MergeSource {
    name: String,
    lines: LineReader,
    line: u64,
}

/// Key by which lines are merged: the start of a time stamp, which sorts as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EventTime([u8; 32]);

impl EventTime {
    fn from_text(text: &str) -> EventTime {
        let mut time = EventTime([0; 32]);
        let length = text.len().min(time.0.len());
        time.0[..length].copy_from_slice(&text.as_bytes()[..length]);
        time
    }
}

/// The kernel stamps a write with a coarse clock, which may be behind that of the record.
const WRITE_TIME_TOLERANCE: Duration = Duration::from_secs(1);

impl LogReader {
    /// Creates a reader for the log below `root`. It starts at the beginning.
    pub fn new(root: &Path) -> Self {
        LogReader { dir: super::log_directory(root), positions: BTreeMap::new(), since: None }
    }

    /// Lets the reader skip files all of whose events are older than this time stamp. Other events
    /// that are older are not skipped.
    #[must_use]
    pub fn skip_files_before(mut self, since: Option<String>) -> Self {
        self.since = since;
        self
    }

    /// Passes every complete line that was not passed before to `on_event`, oldest first.
    pub fn read(
        &mut self,
        mut on_event: impl FnMut(LoggedEvent<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut pending_files = self.find_grown_files()?;
        let mut sources: Vec<Option<MergeSource>> = Vec::new();
        // The next line of each open file, by time; files with the same time in the order they were
        // opened.
        let mut heap: BinaryHeap<Reverse<(EventTime, usize)>> = BinaryHeap::new();
        loop {
            // Open a file only when its time has come, so that a long history needs few open files
            // at once.
            while let Some((name, opened)) = pending_files.front()
                && heap.peek().is_none_or(|Reverse((time, _))| opened <= time)
            {
                let source = self.open_source(name)?;
                pending_files.pop_front();
                if let Some(source) = source {
                    heap.push(Reverse((source.next_time(), sources.len())));
                    sources.push(Some(source));
                }
            }
            let Some(Reverse((time, index))) = heap.pop() else { return Ok(()) };
            let Some(source) = sources.get_mut(index).and_then(Option::as_mut) else { continue };
            on_event(source.next_event())?;
            if source.advance()? {
                // Within a file the order of the lines is the order of events, even if the clock
                // changed.
                heap.push(Reverse((source.next_time().max(time), index)));
            } else if let Some(source) = sources[index].take() {
                let position = source.position();
                self.positions.insert(source.name, position);
            }
        }
    }

    /// Returns the files that have grown and when they were opened, in that order.
    fn find_grown_files(&mut self) -> io::Result<VecDeque<(String, EventTime)>> {
        let mut grown = VecDeque::new();
        for name in list_names(&self.dir)?.into_iter().filter(|name| name.ends_with(LOG_SUFFIX)) {
            let Ok(metadata) = std::fs::metadata(self.dir.join(&name)) else { continue };
            // A file that is skipped keeps its position: if it grows, it is read from there.
            let latest_event =
                metadata.modified().ok().and_then(|time| time.checked_add(WRITE_TIME_TOLERANCE));
            if let (Some(since), Some(latest_event)) = (&self.since, latest_event)
                && format_utc(latest_event) < *since
            {
                continue;
            }
            let position = self.positions.entry(name.clone()).or_default();
            if metadata.len() > position.offset {
                let opened = EventTime::from_text(&opened_at(&name));
                grown.push_back((name, opened));
            }
        }
        Ok(grown)
    }

    fn open_source(&self, name: &str) -> io::Result<Option<MergeSource>> {
        let position = self.positions.get(name).copied().unwrap_or_default();
        let file = match open_regular(&self.dir.join(name)) {
            // Not a regular file: `verify` reports it. Not found: it was pruned after the directory
            // was listed.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound) =>
            {
                return Ok(None);
            }
            file => file?,
        };
        let lines = LineReader::new(file, position.offset)?;
        let mut source = MergeSource { name: name.to_owned(), lines, line: position.line };
        Ok(source.advance()?.then_some(source))
    }
}

impl MergeSource {
    fn next_event(&self) -> LoggedEvent<'_> {
        LoggedEvent { file: &self.name, line: self.line, raw: self.lines.line() }
    }

    fn next_time(&self) -> EventTime {
        let event = self.next_event();
        if let Some(time) = event.time() {
            return EventTime::from_text(time);
        }
        let value = event.parse();
        match value.as_ref().and_then(|value| value["ts"].as_str()) {
            Some(time) => EventTime::from_text(time),
            None => EventTime::from_text(&opened_at(&self.name)),
        }
    }

    /// Moves to the next line. Returns false at the end.
    fn advance(&mut self) -> io::Result<bool> {
        let has_line = self.lines.advance()?;
        self.line += u64::from(has_line);
        Ok(has_line)
    }

    fn position(&self) -> ReadPosition {
        ReadPosition { offset: self.lines.offset(), line: self.line }
    }
}

/// Converts a file name (`20261115T214003.123456Z-…`) to the format of time stamps in the log.
/// Returns an empty string, which sorts before everything, for a name not created by this program.
pub(super) fn opened_at(name: &str) -> String {
    match (name.get(..4), name.get(4..6), name.get(6..11), name.get(11..13), name.get(13..23)) {
        (Some(year), Some(month), Some(day), Some(minute), Some(rest)) => {
            let (day, hour) = day.split_at(2);
            format!("{year}-{month}-{day}{hour}:{minute}:{rest}")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::super::AuditLog;
    use super::super::testing::Dir;
    use super::*;

    fn numbers(reader: &mut LogReader) -> Vec<u64> {
        let mut numbers = Vec::new();
        reader
            .read(|event| {
                numbers.extend(event.parse().and_then(|value| value["n"].as_u64()));
                Ok(())
            })
            .unwrap();
        numbers
    }

    #[test]
    fn a_name_tells_its_time() {
        assert_eq!(opened_at("20261115T214003.123456Z-12-ab.jsonl"), "2026-11-15T21:40:03.123456Z");
        assert_eq!(opened_at("x.jsonl"), "");
    }

    #[test]
    fn files_are_merged_by_time_and_read_on_where_reading_stopped() {
        let root = Dir::new();
        let (one, two) = (
            AuditLog::open(root.path(), 600).unwrap(),
            AuditLog::open(root.path(), 1 << 20).unwrap(),
        );
        for n in 0..40 {
            [&one, &two][n % 3 % 2].write_event("test", json!({"n": n})).unwrap();
        }
        let mut reader = LogReader::new(root.path());
        assert_eq!(numbers(&mut reader), (0..40).collect::<Vec<_>>());
        assert!(numbers(&mut reader).is_empty());
        let three = AuditLog::open(root.path(), 1 << 20).unwrap();
        for n in 40..50 {
            [&one, &two, &three][n % 3].write_event("test", json!({"n": n})).unwrap();
        }
        assert_eq!(numbers(&mut reader), (40..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_skipped_file_is_read_once_it_grows() {
        let root = Dir::new();
        let audit = AuditLog::open(root.path(), 1 << 20).unwrap();
        audit.write_event("test", json!({"n": 1})).unwrap();
        let path = root.audit(&root.logs()[0]);
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        std::fs::File::open(&path).unwrap().set_modified(long_ago).unwrap();
        let since = format_utc(SystemTime::now() - Duration::from_secs(60));
        let mut reader = LogReader::new(root.path()).skip_files_before(Some(since));
        assert!(numbers(&mut reader).is_empty());
        audit.write_event("test", json!({"n": 2})).unwrap();
        assert_eq!(numbers(&mut reader), [1, 2]);
        assert!(numbers(&mut reader).is_empty());
    }

    #[test]
    fn a_line_not_written_by_the_chain_is_placed_by_its_own_time() {
        let root = Dir::new();
        std::fs::create_dir(root.path().join("audit")).unwrap();
        let line = |n: u64| format!("{{\"n\":{n},\"ts\":\"2026-01-0{n}T00:00:00.000000Z\"}}\n");
        for (file, numbers) in [("a.jsonl", [1, 3]), ("b.jsonl", [2, 4])] {
            std::fs::write(root.audit(file), numbers.map(line).concat()).unwrap();
        }
        assert_eq!(numbers(&mut LogReader::new(root.path())), [1, 2, 3, 4]);
    }

    #[test]
    fn an_unfinished_line_is_left_until_it_is_whole() {
        let root = Dir::new();
        let dir = root.path().join("audit");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("a.jsonl"), b"{\"n\":1}\n{\"n\"").unwrap();
        let mut reader = LogReader::new(root.path());
        assert_eq!(numbers(&mut reader), [1]);
        std::fs::write(dir.join("a.jsonl"), b"{\"n\":1}\n{\"n\":2}\n").unwrap();
        assert_eq!(numbers(&mut reader), [2]);
    }
}
