//! Explains why an edit did not match, in a way that helps to correct it: where else it matches,
//! what is most similar, and what the difference is.

use regex::RegexBuilder;
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use super::document::TextDocument;
use super::edit::{CompiledEdit, MatchTally};
use super::similar_regions::{self, TextFold, TextRegion};
use crate::base::{CancelToken, Error, Kind, Result};

const MAX_REGIONS: usize = 3;
/// Maximum length of one region's diff.
const MAX_DIFF: usize = 500;
const MAX_LINE: usize = 120;
/// Bytes of the text that are searched for similar regions.
const MAX_TEXT: usize = 4 << 20;
/// Limits on the text that is searched with a modified pattern, and on the compiled pattern.
const MAX_PROBED_BYTES: usize = 32 << 10;
const MAX_COMPILED_BYTES: usize = 256 << 10;

/// Returns the message for a pattern that does not compile.
pub fn bad_pattern_message(index: usize, error: &regex::Error) -> String {
    let text: String = error.to_string().chars().take(300).collect();
    format!("the pattern of `edits[{index}]` is not valid: {text}")
}

/// Returns the error for the edit at index `index`, whose number of matches `tally` is not the
/// required one.
pub fn mismatch_error(
    document: &TextDocument<'_>,
    edits: &[CompiledEdit],
    index: usize,
    tally: &MatchTally,
    cancel: &CancelToken,
) -> Result<Error> {
    let edit = &edits[index];
    let expected = edit.expected_count.unwrap_or_default();
    if tally.count > 0 {
        return Ok(ambiguous_error(index, expected, tally));
    }
    let text = text_head(document.text());
    let cause = if edit.is_regex() {
        explain_pattern(edit.search_text(), text)
    } else {
        explain_literal(edit.search_text(), text)
    };
    let (folded, regions) = match edit.is_regex() {
        true => (None, Vec::new()),
        false => similar_regions::find_nearest(edit.search_text(), text, MAX_REGIONS, cancel)?,
    };
    let cause = cause.or_else(|| {
        folded.and_then(|fold| explain_difference(fold, edit.search_text(), text, regions.first()))
    });
    let order_note =
        if index > 0 { " (each edit applies to the result of the previous ones)" } else { "" };
    let mut error =
        Error::new(Kind::NotFound, format!("`edits[{index}].old` is not in the file{order_note}"))
            .with_reason("no_match")
            .with_fact("edit", index);
    if let Some(cause) = &cause {
        error = error.with_fact("cause", cause.as_str());
    }
    if !regions.is_empty() {
        let nearest: Vec<Value> =
            regions.iter().map(|region| render_region(edit.search_text(), text, region)).collect();
        error = error.with_fact("nearest", nearest);
    }
    Ok(error.with_hint(match (cause, regions.is_empty()) {
        (Some(cause), _) => format!("Nothing was written. {cause}"),
        (None, false) => "Nothing was written. Copy `old` exactly from `nearest` (lines with + are the file's) or \
            from a new file.read."
            .to_owned(),
        (None, true) => "Nothing was written. Read the file again and copy `old` exactly from it.".to_owned(),
    }))
}

fn ambiguous_error(index: usize, expected: u64, tally: &MatchTally) -> Error {
    let MatchTally { count, lines } = tally;
    let times = |n: u64| if n == 1 { "once".to_owned() } else { format!("{n} times") };
    let message =
        format!("`edits[{index}].old` matches {}, not {}", times(*count), times(expected));
    let hint = if *count > expected {
        format!(
            "Nothing was written. Add surrounding text to `old`, or set expect to {count} (0: any number)."
        )
    } else {
        format!(
            "Nothing was written. Set expect to {count}, or reduce `old` to what all places have in common."
        )
    };
    Error::new(Kind::Conflict, message)
        .with_reason("ambiguous_match")
        .with_hint(hint)
        .with_fact("edit", index)
        .with_fact("count", *count)
        .with_fact("expected", expected)
        .with_fact("lines", json!(lines))
}

fn text_head(text: &str) -> &str {
    let end =
        (0..=MAX_TEXT.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

fn line_number(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count()
}

/// Returns whether a text is short enough to probe. A regex search cannot be interrupted, so a
/// pattern that the caller did not ask for is tried only on a short text.
fn is_probeable(text: &str) -> bool {
    text.len() <= MAX_PROBED_BYTES
}

/// Explains which small change to the pattern would make it match.
fn explain_pattern(pattern: &str, text: &str) -> Option<String> {
    if let Some(at) = text.find(pattern) {
        return Some(format!(
            "The literal text is in line {}: set regex to false.",
            line_number(text, at)
        ));
    }
    if pattern.contains(r"\r\n") {
        return Some(r"Every line ending is matched as \n: leave \r out.".to_owned());
    }
    if !is_probeable(text) {
        return None;
    }
    let find_line = |change: fn(&mut RegexBuilder) -> &mut RegexBuilder| {
        let built =
            change(RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES)).build().ok()?;
        built.find(text).map(|found| line_number(text, found.start()))
    };
    if let Some(line) = find_line(|builder| builder.case_insensitive(true)) {
        return Some(format!("The case differs in line {line}: start the pattern with (?i)."));
    }
    if let Some(line) = find_line(|builder| builder.multi_line(true)) {
        return Some(format!(
            "^ and $ match only at the ends of the file: with (?m) it matches in line {line}."
        ));
    }
    let line = find_line(|builder| builder.dot_matches_new_line(true))?;
    Some(format!("`.` does not match a line ending: with (?s) it matches in line {line}."))
}

/// Explains what is wrong with a literal `old`.
fn explain_literal(old: &str, text: &str) -> Option<String> {
    let unescaped = old.replace("\\n", "\n").replace("\\t", "\t").replace("\\\"", "\"");
    if unescaped != old && text.contains(&unescaped) {
        return Some(
            "`old` contains a backslash and a letter where the file has the character itself."
                .to_owned(),
        );
    }
    let is_numbered =
        |line: &str| line.split_once('\t').is_some_and(|(n, _)| n.trim().parse::<u64>().is_ok());
    if old.lines().all(is_numbered) {
        let bare: Vec<&str> =
            old.lines().filter_map(|line| Some(line.split_once('\t')?.1)).collect();
        if text.contains(&bare.join("\n")) {
            return Some(
                "`old` begins its lines with line numbers, which are not in the file.".to_owned(),
            );
        }
    }
    let metacharacters = old.contains(['\\', '*', '+', '[', '(', '|', '^', '$']);
    if metacharacters
        && is_probeable(text)
        && let Ok(regex) = RegexBuilder::new(old).size_limit(MAX_COMPILED_BYTES).build()
    {
        let found = regex.find(text).filter(|found| !found.is_empty())?;
        return Some(format!(
            "As a pattern it matches in line {}: set regex to true.",
            line_number(text, found.start())
        ));
    }
    None
}

/// Describes how `old` differs from the region that is equal to it apart from `fold`.
fn explain_difference(
    fold: TextFold,
    old: &str,
    text: &str,
    region: Option<&TextRegion>,
) -> Option<String> {
    let region = region?;
    // If `old` starts with whitespace, compare it with the region including its indentation.
    let region_text = if old.starts_with([' ', '\t']) {
        region.indented_text(text)
    } else {
        region.match_text(text)
    };
    let line = region.first_line;
    let has_tabs = |text: &str| text.contains('\t');
    let trimmed_lines = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    };
    let difference = match fold {
        TextFold::Case => "case",
        TextFold::LookAlikes => "quotes, dashes or other characters that only look alike",
        TextFold::Space if region_text.contains('\r') && !old.contains('\r') => {
            "carriage returns without a line feed"
        }
        TextFold::Space if has_tabs(region_text) && !has_tabs(old) => {
            "whitespace (the file has tabs)"
        }
        TextFold::Space if has_tabs(old) && !has_tabs(region_text) => {
            "whitespace (the file has spaces, not tabs)"
        }
        TextFold::Space if region_text.contains('\u{a0}') => {
            "whitespace (the file has no-break spaces)"
        }
        TextFold::Space if trimmed_lines(old) == trimmed_lines(region_text) => {
            "whitespace at the end of a line"
        }
        TextFold::Space => "whitespace",
        TextFold::All => "whitespace and case, or characters that look alike",
    };
    Some(format!("Line {line} differs only in {difference}: copy it exactly."))
}

/// Renders a region with the lines in which it differs: `-` is `old`, `+` is the file.
fn render_region(old: &str, text: &str, region: &TextRegion) -> Value {
    let region_text = region.whole_lines(text);
    let diff = TextDiff::from_lines(old, region_text);
    let mut rendered = String::new();
    for change in diff.iter_all_changes() {
        let sign = match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        };
        let line = change.value().trim_end_matches('\n');
        let shown_line: String = line.chars().take(MAX_LINE).collect();
        let ellipsis = if shown_line.len() < line.len() { "…" } else { "" };
        if rendered.len() + shown_line.len() > MAX_DIFF {
            rendered.push_str("…\n");
            break;
        }
        rendered.push_str(&format!("{sign}{shown_line}{ellipsis}\n"));
    }
    json!({"line": region.first_line, "end_line": region.last_line, "diff": rendered})
}
