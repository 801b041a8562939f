//! Reads the log back: all files as one stream in order of time, now and as they grow.
//!
//! Does not verify anything; see `verify` for that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::store::{LOG_SUFFIX, MAX_LINE, list_names, open_regular, read_line};

/// Line of the log.
#[derive(Debug)]
pub struct LoggedEvent {
    /// Name of its file.
    pub file: String,
    /// Line number, counted from 1.
    pub line: u64,
    /// Bytes as stored in the file, without the newline.
    pub raw: Vec<u8>,
    /// Parsed line; None if it is not JSON.
    pub value: Option<Value>,
}

/// Reader that remembers how far each file was read.
pub struct LogReader {
    dir: PathBuf,
    positions: BTreeMap<String, ReadPosition>,
}

#[derive(Clone, Copy, Default)]
struct ReadPosition {
    offset: u64,
    line: u64,
}

/// File that is being read, and its next line.
struct MergeSource {
    name: String,
    file: BufReader<File>,
    position: ReadPosition,
    next: LoggedEvent,
}

impl LogReader {
    /// Creates a reader for the log below `root`. It starts at the beginning.
    pub fn new(root: &Path) -> Self {
        LogReader { dir: super::log_directory(root), positions: BTreeMap::new() }
    }

    /// Passes every complete line that was not passed before to `on_event`, oldest first.
    pub fn read(
        &mut self,
        mut on_event: impl FnMut(LoggedEvent) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut pending_files = self.find_grown_files()?;
        let mut sources: Vec<Option<MergeSource>> = Vec::new();
        // The next line of each open file, by time; files with the same time in the order they were
        // opened.
        let mut heap: BinaryHeap<Reverse<(String, usize)>> = BinaryHeap::new();
        loop {
            // Open a file only when its time has come, so that a long history needs few open files
            // at once.
            while let Some(name) = pending_files.front()
                && heap.peek().is_none_or(|Reverse((ts, _))| opened_at(name) <= *ts)
            {
                let source = self.open_source(name)?;
                pending_files.pop_front();
                if let Some(source) = source {
                    heap.push(Reverse((source.next_time(), sources.len())));
                    sources.push(Some(source));
                }
            }
            let Some(Reverse((ts, index))) = heap.pop() else { return Ok(()) };
            let Some(mut source) = sources.get_mut(index).and_then(Option::take) else { continue };
            match source.advance()? {
                (event, true) => {
                    on_event(event)?;
                    // Within a file the order of the lines is the order of events, even if the
                    // clock changed.
                    heap.push(Reverse((source.next_time().max(ts), index)));
                    sources[index] = Some(source);
                }
                (event, false) => {
                    self.positions.insert(source.name, source.position);
                    on_event(event)?;
                }
            }
        }
    }

    /// Returns the files that have grown, in the order they were opened.
    fn find_grown_files(&mut self) -> io::Result<VecDeque<String>> {
        let mut grown = VecDeque::new();
        for name in list_names(&self.dir)?.into_iter().filter(|name| name.ends_with(LOG_SUFFIX)) {
            let size = std::fs::metadata(self.dir.join(&name)).map_or(0, |metadata| metadata.len());
            let position = self.positions.entry(name.clone()).or_default();
            if size > position.offset {
                grown.push_back(name);
            }
        }
        Ok(grown)
    }

    fn open_source(&self, name: &str) -> io::Result<Option<MergeSource>> {
        let mut position = self.positions.get(name).copied().unwrap_or_default();
        let mut file = match open_regular(&self.dir.join(name)) {
            // Not a regular file: `verify` reports it. Not found: it was pruned after the directory
            // was listed.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound) =>
            {
                return Ok(None);
            }
            file => BufReader::new(file?),
        };
        file.seek(SeekFrom::Start(position.offset))?;
        let next = next_line(&mut file, &mut position, name)?;
        Ok(next.map(|next| MergeSource { name: name.to_owned(), file, position, next }))
    }
}

impl MergeSource {
    fn next_time(&self) -> String {
        let ts = self.next.value.as_ref().and_then(|value| value["ts"].as_str());
        ts.map_or_else(|| opened_at(&self.name), str::to_owned)
    }

    /// Returns the current line and whether there is another.
    fn advance(&mut self) -> io::Result<(LoggedEvent, bool)> {
        match next_line(&mut self.file, &mut self.position, &self.name)? {
            Some(next) => Ok((std::mem::replace(&mut self.next, next), true)),
            None => {
                let empty_event =
                    LoggedEvent { file: String::new(), line: 0, raw: Vec::new(), value: None };
                Ok((std::mem::replace(&mut self.next, empty_event), false))
            }
        }
    }
}

/// Reads the next complete line. A line without a newline is still being written, or torn: it is
/// not yet, or never will be, a record.
fn next_line(
    file: &mut BufReader<File>,
    position: &mut ReadPosition,
    name: &str,
) -> io::Result<Option<LoggedEvent>> {
    let mut raw = Vec::new();
    let mut count = read_line(file, &mut raw)?;
    // Skip a line that is too long for a record in pieces that fit into memory, and report it as
    // unreadable: its last piece may look like a record.
    let mut is_too_long = false;
    while raw.len() == MAX_LINE && raw.last() != Some(&b'\n') {
        is_too_long = true;
        raw.clear();
        count += read_line(file, &mut raw)?;
    }
    if raw.pop_if(|end| *end == b'\n').is_none() {
        return Ok(None);
    }
    if is_too_long {
        raw.clear();
    }
    position.offset += count as u64;
    position.line += 1;
    // Nothing is left of a line that was too long, so it does not parse as JSON.
    let value = serde_json::from_slice(&raw).ok();
    Ok(Some(LoggedEvent { file: name.to_owned(), line: position.line, raw, value }))
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
    use serde_json::json;

    use super::super::AuditLog;
    use super::super::testing::Dir;
    use super::*;

    fn numbers(reader: &mut LogReader) -> Vec<u64> {
        let mut numbers = Vec::new();
        reader
            .read(|event| {
                numbers.extend(event.value.and_then(|value| value["n"].as_u64()));
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
