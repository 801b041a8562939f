//! What a write changed, in lines.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

/// Past this a diff is approximate; it is still a true one.
const DEADLINE: Duration = Duration::from_millis(200);
/// Longer texts are not compared at all.
const MAX_TEXT: usize = 8 << 20;
const MAX_DIFF: usize = 4 << 10;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: u64,
    pub removed: u64,
    /// In unified form, when asked for, cut at a line end.
    pub unified: Option<String>,
    pub cut: bool,
}

/// The lines that differ; None when the texts are too long to compare.
pub fn changes(path: &str, old: &str, new: &str, unified: bool) -> Option<Changes> {
    if old.len().max(new.len()) > MAX_TEXT {
        return None;
    }
    let diff = TextDiff::configure().timeout(DEADLINE).diff_lines(old, new);
    let mut changes = Changes::default();
    for change in diff.iter_all_changes() {
        match change.tag() {
            ChangeTag::Insert => changes.added += 1,
            ChangeTag::Delete => changes.removed += 1,
            ChangeTag::Equal => {}
        }
    }
    if unified {
        let text = diff.unified_diff().context_radius(3).header(&format!("a/{path}"), &format!("b/{path}")).to_string();
        changes.cut = text.len() > MAX_DIFF;
        changes.unified = Some(if changes.cut { cut(&text) } else { text });
    }
    Some(changes)
}

fn cut(text: &str) -> String {
    let boundary = (0..=MAX_DIFF).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let end = text[..boundary].rfind('\n').map_or(boundary, |at| at + 1);
    format!("{}… [{} bytes omitted]\n", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_counts_lines_and_is_cut() {
        let found = changes("x", "a\nb\nc\n", "a\nB\nc\nd\n", true).unwrap();
        assert_eq!((found.added, found.removed, found.cut), (2, 1, false));
        let unified = found.unified.unwrap();
        assert!(unified.starts_with("--- a/x\n+++ b/x\n@@ ") && unified.contains("\n-b\n+B\n c\n+d\n"), "{unified}");

        let long: String = (0..2000).map(|line| format!("zeile {line} ü\n")).collect();
        let found = changes("x", "", &long, true).unwrap();
        assert_eq!((found.added, found.cut), (2000, true));
        let unified = found.unified.unwrap();
        assert!(unified.len() <= MAX_DIFF + 40 && unified.contains("bytes omitted]"), "{}", unified.len());
    }
}
