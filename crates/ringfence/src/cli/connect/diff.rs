//! Shows what an edit changes, before it is made.

use similar::{ChangeTag, TextDiff};

use crate::base::visible;

/// Lines shown before and after a change.
const CONTEXT_LINES: usize = 2;

/// Returns the difference of two texts for a terminal. A project's file is untrusted text: what
/// cannot be seen is written as an escape.
pub fn show_difference(path: &str, old: Option<&str>, new: Option<&str>, colour: bool) -> String {
    let before = if old.is_some() { path } else { "/dev/null" };
    let after = if new.is_some() { path } else { "/dev/null" };
    let mut shown = format!(
        "--- {}\n+++ {}\n",
        visible::escape_to_line(before),
        visible::escape_to_line(after)
    );
    let diff = TextDiff::from_lines(old.unwrap_or_default(), new.unwrap_or_default());
    for group in diff.grouped_ops(CONTEXT_LINES) {
        let first = group.first().map(|op| (op.old_range().start + 1, op.new_range().start + 1));
        let (old_line, new_line) = first.unwrap_or((1, 1));
        shown.push_str(&format!("@@ line {old_line}, now {new_line} @@\n"));
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (sign, style) = match change.tag() {
                ChangeTag::Delete => ('-', "\x1b[31m"),
                ChangeTag::Insert => ('+', "\x1b[32m"),
                ChangeTag::Equal => (' ', ""),
            };
            let line = escape_line(change.value());
            match colour && !style.is_empty() {
                true => shown.push_str(&format!("{style}{sign}{line}\x1b[0m\n")),
                false => shown.push_str(&format!("{sign}{line}\n")),
            }
        }
    }
    shown
}

fn escape_line(line: &str) -> String {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    line.split('\t').map(visible::escape_to_line).collect::<Vec<_>>().join("\t")
}
