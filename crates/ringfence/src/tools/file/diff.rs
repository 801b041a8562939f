//! Line-based diffs of what a write changed.

use std::io::Write;
use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use crate::base::Error;
use crate::session::OutputStore;

/// After this time the diff is approximate, but still correct.
const DIFF_TIMEOUT: Duration = Duration::from_millis(200);
/// Longer texts are not compared.
const MAX_TEXT_BYTES: usize = 8 << 20;
pub(super) const MAX_DIFF_BYTES: usize = 4 << 10;

/// Lines that a write added and removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LineChanges {
    pub added: u64,
    pub removed: u64,
    /// Unified diff, if requested.
    pub unified_diff: Option<String>,
}

/// Compares two texts line by line. Returns `None` if they are too long to compare.
pub fn diff_lines(path: &str, old: &str, new: &str, unified: bool) -> Option<LineChanges> {
    if old.len().max(new.len()) > MAX_TEXT_BYTES {
        return None;
    }
    // Split on `\n` only: everywhere else in the file tools a lone carriage return does not end a
    // line.
    let lines = |text| -> Vec<&str> { str::split_inclusive(text, '\n').collect() };
    let (old, new) = (lines(old), lines(new));
    let diff = TextDiff::configure()
        .timeout(DIFF_TIMEOUT)
        .newline_terminated(true)
        .diff_slices(&old, &new);
    let mut changes = LineChanges::default();
    for change in diff.iter_all_changes() {
        match change.tag() {
            ChangeTag::Insert => changes.added += 1,
            ChangeTag::Delete => changes.removed += 1,
            ChangeTag::Equal => {}
        }
    }
    if unified {
        let text = diff
            .unified_diff()
            .context_radius(3)
            .header(&format!("a/{path}"), &format!("b/{path}"))
            .to_string();
        changes.unified_diff = Some(text);
    }
    Some(changes)
}

/// Cuts a diff that is too long for a result at the end of a line and stores the full text. Returns
/// whether it was cut, and the handle of the stored text.
pub fn fit_diff(diff: &mut Option<String>, outputs: &OutputStore) -> (bool, Option<String>) {
    let Some(full_diff) = diff.as_ref().filter(|diff| diff.len() > MAX_DIFF_BYTES) else {
        return (false, None);
    };
    let stored = store_text(full_diff, outputs);
    let truncated = cut_at_line(full_diff);
    *diff = Some(truncated);
    (true, stored)
}

/// Stores a text that is too long for a result and returns its handle.
pub fn store_text(text: &str, outputs: &OutputStore) -> Option<String> {
    let stored = outputs.create_output().and_then(|mut output| {
        let storage_error =
            |error| Error::internal("cannot store a part of a result").with_source(error);
        match output.write_all(text.as_bytes()) {
            Ok(()) => Ok(output.handle.clone()),
            Err(error) => {
                output.discard();
                Err(storage_error(error))
            }
        }
    });
    // The requested change has been made; failing to store a text must not make it look as if it
    // had not.
    stored
        .inspect_err(|error| {
            tracing::warn!("cannot store the full text of a result: {}", error.log_line())
        })
        .ok()
}

fn cut_at_line(text: &str) -> String {
    let boundary = (0..=MAX_DIFF_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let end = text[..boundary].rfind('\n').map_or(boundary, |at| at + 1);
    format!("{}… [{} bytes omitted]\n", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_diff_counts_lines_and_is_cut() {
        let found = diff_lines("x", "a\nb\nc\n", "a\nB\nc\nd\n", true).unwrap();
        assert_eq!((found.added, found.removed), (2, 1));
        let unified = found.unified_diff.unwrap();
        assert!(
            unified.starts_with("--- a/x\n+++ b/x\n@@ ") && unified.contains("\n-b\n+B\n c\n+d\n"),
            "{unified}"
        );

        // A carriage return alone ends no line.
        let found = diff_lines("x", "a\rb\nc", "a\rB\nc", true).unwrap();
        assert_eq!((found.added, found.removed), (1, 1));
        assert!(
            found
                .unified_diff
                .unwrap()
                .ends_with("@@ -1,2 +1,2 @@\n-a\rb\n+a\rB\n c\n\\ No newline at end of file\n")
        );

        let long: String = (0..2000).map(|line| format!("zeile {line} ü\n")).collect();
        let found = diff_lines("x", "", &long, true).unwrap();
        assert_eq!(found.added, 2000);
        let whole = found.unified_diff.unwrap();
        let (mut diff, dir) =
            (Some(whole.clone()), std::env::temp_dir().join(crate::base::ids::short_id("diff")));
        let (cut, handle) = {
            let outputs = OutputStore::new(dir.clone());
            let (cut, handle) = fit_diff(&mut diff, &outputs);
            let mut stored = String::new();
            outputs
                .open_output(handle.as_ref().unwrap())
                .unwrap()
                .read_to_string(&mut stored)
                .unwrap();
            assert_eq!(stored, whole);
            (cut, handle)
        };
        let shown = diff.unwrap();
        assert!(
            cut && handle.is_some()
                && shown.len() <= MAX_DIFF_BYTES + 40
                && shown.contains("bytes omitted]")
        );
        let mut short = Some("x".to_owned());
        assert_eq!(fit_diff(&mut short, &OutputStore::new(dir)), (false, None));
    }
}
