//! Finds the regions of a text that are most similar to a text that does not occur in it.

use std::time::{Duration, Instant};

use crate::base::{CancelToken, Result};
use crate::tools::file::content::check_cancelled;

/// Time limit of the similarity search.
const SIMILARITY_TIMEOUT: Duration = Duration::from_millis(250);
/// Minimum similarity of a line.
const MIN_SIMILARITY: f32 = 0.5;
const MAX_LINE: usize = 200;
const MAX_CANDIDATES: usize = 8;

/// Range of lines (from 1, inclusive), and the byte range of the match within them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextRegion {
    pub first_line: usize,
    pub last_line: usize,
    start: usize,
    end: usize,
}

impl TextRegion {
    /// Returns the matching text.
    pub fn match_text<'t>(&self, text: &'t str) -> &'t str {
        &text[self.start..self.end]
    }

    /// Returns the matching text together with the whitespace before it.
    pub fn indented_text<'t>(&self, text: &'t str) -> &'t str {
        let start = text[..self.start].trim_end_matches([' ', '\t']).len();
        &text[start..self.end]
    }

    /// Returns the whole lines that contain the match.
    pub fn whole_lines<'t>(&self, text: &'t str) -> &'t str {
        let start = text[..self.start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[self.end..].find('\n').map_or(text.len(), |at| self.end + at + 1);
        &text[start..end]
    }
}

/// Differences that are ignored to find the same text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFold {
    Space,
    Case,
    LookAlikes,
    All,
}

impl TextFold {
    fn ignores_space(self) -> bool {
        matches!(self, TextFold::Space | TextFold::All)
    }

    fn fold_char(self, c: char) -> char {
        let c = if matches!(self, TextFold::LookAlikes | TextFold::All) {
            match c {
                '\u{2018}' | '\u{2019}' | '\u{201b}' | '\u{2032}' => '\'',
                '\u{201c}' | '\u{201d}' | '\u{2033}' => '"',
                '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
                '\u{a0}' => ' ',
                other => other,
            }
        } else {
            c
        };
        if matches!(self, TextFold::Case | TextFold::All) {
            c.to_lowercase().next().unwrap_or(c)
        } else {
            c
        }
    }

    /// Returns the folded text, and for each of its bytes the offset of the original character.
    fn fold_text(self, text: &str) -> (String, Vec<u32>) {
        let (mut folded, mut offsets) = (String::new(), Vec::new());
        for (offset, c) in text.char_indices() {
            if self.ignores_space() && c.is_whitespace() {
                continue;
            }
            let c = self.fold_char(c);
            folded.push(c);
            offsets.resize(folded.len(), u32::try_from(offset).unwrap_or(u32::MAX));
        }
        (folded, offsets)
    }
}

/// Finds up to `max_regions` regions that are most similar to `old`. Also returns which difference
/// must be ignored, if that alone makes them equal.
pub fn find_nearest(
    old: &str,
    text: &str,
    max_regions: usize,
    cancel: &CancelToken,
) -> Result<(Option<TextFold>, Vec<TextRegion>)> {
    for fold in [TextFold::Space, TextFold::Case, TextFold::LookAlikes, TextFold::All] {
        check_cancelled(cancel)?;
        let (needle, _) = fold.fold_text(old);
        if needle.trim().len() < 2 {
            continue;
        }
        let (folded, offsets) = fold.fold_text(text);
        let regions: Vec<TextRegion> = folded
            .match_indices(&needle)
            .take(max_regions)
            .filter_map(|(index, _)| {
                let start = *offsets.get(index)? as usize;
                let last = *offsets.get(index + needle.len() - 1)? as usize;
                let end = last + text[last..].chars().next().map_or(0, char::len_utf8);
                Some(region_at(text, start, end))
            })
            .collect();
        if !regions.is_empty() {
            return Ok((Some(fold), regions));
        }
    }
    Ok((None, find_similar(old, text, max_regions, cancel)?))
}

fn region_at(text: &str, start: usize, end: usize) -> TextRegion {
    let count = |part: &str| part.as_bytes().iter().filter(|byte| **byte == b'\n').count();
    let first_line = 1 + count(&text[..start]);
    TextRegion { first_line, last_line: first_line + count(&text[start..end]), start, end }
}

/// Finds regions in which a line is similar to the longest line of `old`, best first.
fn find_similar(
    old: &str,
    text: &str,
    max_regions: usize,
    cancel: &CancelToken,
) -> Result<Vec<TextRegion>> {
    let old_lines: Vec<&str> = old.lines().collect();
    let Some((anchor, line)) =
        old_lines.iter().enumerate().max_by_key(|(_, line)| line.trim().len())
    else {
        return Ok(Vec::new());
    };
    let anchor_pairs = character_pairs(line);
    let deadline = Instant::now() + SIMILARITY_TIMEOUT;
    let mut line_starts = vec![0];
    let mut best: Vec<(f32, usize)> = Vec::new();
    for (line_index, line) in text.split_inclusive('\n').enumerate() {
        line_starts.push(line_starts[line_index] + line.len());
        if line_index.is_multiple_of(1024) {
            check_cancelled(cancel)?;
            if Instant::now() > deadline {
                break;
            }
        }
        let score = pair_similarity(&anchor_pairs, &character_pairs(line));
        if score >= MIN_SIMILARITY {
            best.push((score, line_index));
            best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            best.truncate(MAX_CANDIDATES);
        }
    }
    let old_pairs = character_pairs(&old.replace('\n', " "));
    let mut regions: Vec<(f32, TextRegion)> = Vec::new();
    for (_, line_index) in best {
        let first = line_index.saturating_sub(anchor);
        let last = (first + old_lines.len()).min(line_starts.len() - 1);
        let (start, end) = (line_starts[first], line_starts[last]);
        let score =
            pair_similarity(&old_pairs, &character_pairs(&text[start..end].replace('\n', " ")));
        let end = if text[..end].ends_with('\n') { end - 1 } else { end };
        let candidate = region_at(text, start, end.max(start));
        if regions.iter().all(|(_, other)| {
            other.last_line < candidate.first_line || candidate.last_line < other.first_line
        }) {
            regions.push((score, candidate));
        }
    }
    regions.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.first_line.cmp(&b.1.first_line)));
    regions.truncate(max_regions);
    Ok(regions.into_iter().map(|(_, region)| region).collect())
}

/// Returns the sorted pairs of adjacent characters of a line without its whitespace.
fn character_pairs(line: &str) -> Vec<(char, char)> {
    let characters: Vec<char> = line
        .chars()
        .filter(|c| !c.is_whitespace())
        .flat_map(char::to_lowercase)
        .take(MAX_LINE)
        .collect();
    let mut pairs: Vec<_> = characters.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.sort_unstable();
    pairs
}

/// Returns the similarity, from 0 (nothing in common) to 1 (the same pairs).
fn pair_similarity(a: &[(char, char)], b: &[(char, char)]) -> f32 {
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let (mut i, mut j, mut common) = (0, 0, 0u16);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                common += 1;
                (i, j) = (i + 1, j + 1);
            }
        }
    }
    2.0 * f32::from(common) / (a.len() + b.len()) as f32
}
