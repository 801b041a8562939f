//! Content of an open file: read in chunks, hashed and inspected, and never held in memory as a
//! whole unless it is small.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use encoding_rs::Encoding;
use rustix::fs::{Stat, fstat};
use rustix::io::Errno;

use super::text::{self, CodeUnit, EncodingGuesser, HEAD_BYTES, TextDetector, TextFormat};
use crate::base::ids::to_hex;
use crate::base::workspace::quick_read::read_cached;
use crate::base::workspace::{OpenedFile, os_error};
use crate::base::{CancelCause, CancelToken, Error, Kind, Result};

/// Largest file that is hashed and read through to count its lines. A larger file gets a weak etag.
pub const MAX_HASHED_BYTES: u64 = 64 << 20;
const CHUNK_BYTES: usize = 256 << 10;
/// Largest file that is read on the thread that serves clients: its text is inspected and redacted
/// there in a fraction of a millisecond.
const MAX_CACHED_BYTES: usize = 64 << 10;
const MAX_OFFSET: u64 = i64::MAX as u64 / 2;

/// Stops blocking work between two chunks once the call has been cancelled or has timed out.
pub fn check_cancelled(cancel: &CancelToken) -> Result<()> {
    match cancel.is_cancelled().then(|| cancel.cause()) {
        None => Ok(()),
        Some(Some(CancelCause::Deadline)) => {
            Err(Error::new(Kind::DeadlineExceeded, "the file operation timed out"))
        }
        Some(_) => Err(Error::new(Kind::Cancelled, "the call was cancelled")),
    }
}

/// Open file, together with all of its bytes if it is small.
pub struct FileContent {
    file: File,
    pub stat: Stat,
    pub path: String,
    /// The bytes as of one moment. A larger file has no snapshot and may change between two reads;
    /// see [`FileContent::has_changed`].
    snapshot: Option<Vec<u8>>,
}

/// Result of reading through a file once.
#[derive(Debug)]
pub struct ContentSurvey {
    pub etag: String,
    pub size: u64,
    pub head: Vec<u8>,
    pub format: TextFormat,
    /// Length of the byte order mark in bytes.
    pub bom_len: usize,
    /// The whole file was read, so counts are exact.
    pub is_complete: bool,
}

impl FileContent {
    /// Wraps an open file and takes a snapshot of its bytes if there are at most `max_snapshot`.
    pub fn new(file: File, path: String, max_snapshot: u64) -> Result<FileContent> {
        let stat = fstat(&file).map_err(|errno| os_error(errno, &path))?;
        let mut content = FileContent { file, stat, path, snapshot: None };
        if content.size() <= max_snapshot {
            // Reading one extra byte detects a file that has grown past the limit in the meantime.
            let bytes =
                content.read(0, usize::try_from(max_snapshot).unwrap_or(usize::MAX - 1) + 1)?;
            if bytes.len() as u64 <= max_snapshot {
                content.snapshot = Some(bytes);
            }
        }
        Ok(content)
    }

    /// Takes a snapshot of a small file that is in the kernel's cache.
    pub fn from_cache(opened: OpenedFile) -> Option<FileContent> {
        let stat = fstat(&opened.file).ok()?;
        let size = usize::try_from(stat.st_size).ok().filter(|size| *size <= MAX_CACHED_BYTES)?;
        let snapshot = Some(read_cached(&opened.file, size)?);
        Some(FileContent { file: opened.file, stat, path: opened.path, snapshot })
    }

    /// Returns the size in bytes: of the snapshot if there is one, otherwise as of the last stat.
    pub fn size(&self) -> u64 {
        match &self.snapshot {
            Some(bytes) => bytes.len() as u64,
            None => u64::try_from(self.stat.st_size).unwrap_or(0),
        }
    }

    /// Returns all bytes of the file if they were held.
    pub fn snapshot_bytes(&self) -> Option<&[u8]> {
        self.snapshot.as_deref()
    }

    /// Returns the underlying open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the modification time as of the last stat.
    pub fn modified(&self) -> SystemTime {
        let seconds = Duration::from_secs(u64::try_from(self.stat.st_mtime).unwrap_or(0));
        SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(self.stat.st_mtime_nsec)
    }

    /// Reads up to `len` bytes starting at `offset`; returns fewer only at the end of the file.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        if let Some(bytes) = &self.snapshot {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let end = start.saturating_add(len).min(bytes.len());
            return Ok(bytes[start..end].to_vec());
        }
        let mut buffer = Vec::new();
        // No file is that long, and the kernel rejects such an offset.
        if offset > MAX_OFFSET {
            return Ok(buffer);
        }
        while buffer.len() < len {
            let filled = buffer.len();
            // For a small file, allocate only what it holds plus one byte to detect its end:
            // zeroing a whole chunk costs more than the read.
            let rest = usize::try_from(self.size().saturating_sub(offset + filled as u64))
                .unwrap_or(CHUNK_BYTES);
            buffer.resize(len.min(filled + rest.saturating_add(1).clamp(512, CHUNK_BYTES)), 0);
            let count = match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                    buffer.truncate(filled);
                    continue;
                }
                Err(error) => return Err(self.read_error(&error)),
            };
            buffer.truncate(filled + count);
            if count == 0 {
                break;
            }
        }
        Ok(buffer)
    }

    fn read_error(&self, error: &std::io::Error) -> Error {
        os_error(Errno::from_io_error(error).unwrap_or(Errno::IO), &self.path)
    }

    /// Reads through the file (only its head if it is large). `known_encoding` is the encoding the
    /// caller asked for, if any.
    pub fn inspect_text(
        &self,
        known_encoding: Option<&'static Encoding>,
        cancel: &CancelToken,
    ) -> Result<ContentSurvey> {
        let head = self.read(0, HEAD_BYTES)?;
        let detected_bom = text::detect_bom(&head);
        let bom_len = detected_bom
            .filter(|(bom_encoding, _)| {
                known_encoding.is_none_or(|known_encoding| known_encoding == *bom_encoding)
            })
            .map_or(0, |(_, len)| len);
        let mut detector =
            TextDetector::new(known_encoding.or(detected_bom.map(|(encoding, _)| encoding)));
        if self.size() > MAX_HASHED_BYTES {
            detector.feed(&head[bom_len..]);
            let format =
                detector.finish(false, || self.guess_encoding(HEAD_BYTES as u64, cancel))?;
            return Ok(self.build_survey(self.weak_etag(), head, format, bom_len, false));
        }
        let mut hasher = blake3::Hasher::new();
        let mut offset = 0;
        loop {
            check_cancelled(cancel)?;
            let chunk = self.read(offset, CHUNK_BYTES)?;
            hasher.update(&chunk);
            detector.feed(if offset == 0 {
                chunk.get(bom_len..).unwrap_or_default()
            } else {
                &chunk
            });
            offset += chunk.len() as u64;
            // Stop at a bound so that a file that keeps growing cannot keep us reading.
            if chunk.len() < CHUNK_BYTES || offset > MAX_HASHED_BYTES + CHUNK_BYTES as u64 {
                break;
            }
        }
        let etag = if offset == self.size() { etag_from_hasher(&hasher) } else { self.weak_etag() };
        let format = detector.finish(true, || self.guess_encoding(MAX_HASHED_BYTES, cancel))?;
        Ok(self.build_survey(etag, head, format, bom_len, true))
    }

    /// Guesses the encoding of text that is not UTF-8 from the bytes before `end`.
    fn guess_encoding(&self, end: u64, cancel: &CancelToken) -> Result<&'static Encoding> {
        let mut guesser = EncodingGuesser::default();
        let mut offset = 0;
        while guesser.wants_more() && offset < end {
            check_cancelled(cancel)?;
            let chunk = self.read(offset, HEAD_BYTES)?;
            if chunk.is_empty() {
                break;
            }
            guesser.feed(&chunk);
            offset += chunk.len() as u64;
        }
        Ok(guesser.best_encoding())
    }

    fn build_survey(
        &self,
        etag: String,
        head: Vec<u8>,
        format: TextFormat,
        bom_len: usize,
        is_complete: bool,
    ) -> ContentSurvey {
        ContentSurvey { etag, size: self.size(), head, format, bom_len, is_complete }
    }

    /// Returns whether the file has changed since it was opened. A snapshot never changes.
    pub fn has_changed(&self) -> Result<bool> {
        if self.snapshot.is_some() {
            return Ok(false);
        }
        let current_stat = fstat(&self.file).map_err(|errno| os_error(errno, &self.path))?;
        Ok(!is_same_state(&current_stat, &self.stat))
    }

    /// Updates the stored stat to the current state of the file.
    pub fn refresh_stat(&mut self) -> Result<()> {
        self.stat = fstat(&self.file).map_err(|errno| os_error(errno, &self.path))?;
        Ok(())
    }

    /// Returns the weak etag of the file as of the last stat.
    pub fn weak_etag(&self) -> String {
        weak_etag_from_stat(&self.stat)
    }

    /// Returns the offset at which line `line` (from 1) starts, or `None` if the file has fewer
    /// lines.
    pub fn find_line_start(
        &self,
        line: u64,
        survey: &ContentSurvey,
        cancel: &CancelToken,
    ) -> Result<Option<u64>> {
        let unit = CodeUnit::from_encoding(survey.format.encoding);
        let mut offset = survey.bom_len as u64;
        let mut lines_left = line.saturating_sub(1);
        while lines_left > 0 {
            check_cancelled(cancel)?;
            let chunk = self.read(offset, CHUNK_BYTES)?;
            let newlines = unit.count_newlines(&chunk);
            if newlines < lines_left {
                lines_left -= newlines;
                offset += chunk.len() as u64;
                if chunk.len() < CHUNK_BYTES {
                    return Ok(None);
                }
                continue;
            }
            let mut rest = chunk.as_slice();
            while lines_left > 0
                && let Some(after) = unit.position_after_newline(rest)
            {
                rest = &rest[after..];
                offset += after as u64;
                lines_left -= 1;
            }
        }
        // The newline that ends the last line does not start another one.
        Ok((offset < self.size() || line == 1).then_some(offset))
    }

    /// Returns the offset at which the `count`-th line from the end starts, searching backwards.
    pub fn find_line_start_from_end(
        &self,
        count: u64,
        survey: &ContentSurvey,
        cancel: &CancelToken,
    ) -> Result<u64> {
        let first = survey.bom_len as u64;
        // The newline at the end of the file ends its last line; it does not start another one.
        let mut end = self.size().saturating_sub(1).max(first);
        let mut lines_left = count;
        while end > first {
            check_cancelled(cancel)?;
            let start = end.saturating_sub(CHUNK_BYTES as u64).max(first);
            let chunk = self.read(start, usize::try_from(end - start).unwrap_or(CHUNK_BYTES))?;
            for (index, byte) in chunk.iter().enumerate().rev() {
                if *byte == b'\n' {
                    lines_left -= 1;
                    if lines_left == 0 {
                        return Ok(start + index as u64 + 1);
                    }
                }
            }
            end = start;
        }
        Ok(first)
    }
}

/// Returns the strong etag of bytes that are in memory.
pub fn etag_from_bytes(bytes: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(bytes);
    etag_from_hasher(&hasher)
}

fn etag_from_hasher(hasher: &blake3::Hasher) -> String {
    format!("b3:{}", to_hex(&hasher.finalize().as_bytes()[..16]))
}

/// Returns the etag of a file that is too large to hash, based on its metadata.
pub fn weak_etag_from_stat(stat: &Stat) -> String {
    format!("w:{:x}-{:x}.{:x}-{:x}", stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ino)
}

/// Returns whether two stats describe the same state of the same file.
pub fn is_same_state(a: &Stat, b: &Stat) -> bool {
    let key = |s: &Stat| {
        (s.st_dev, s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec)
    };
    key(a) == key(b)
}
