//! Renders matches as text: each path once, followed by its lines.

use super::Reply;
use crate::base::workspace::tree::escape_name;

/// Renders a reply as text.
pub fn render_results(reply: &Reply) -> String {
    let mut text = String::new();
    let mut current_path = None;
    for hit in &reply.matches {
        let (Some(line), Some(matched_text)) = (hit.line, &hit.text) else {
            // An entry of a list of files, with or without a count.
            text.push_str(&escape_name(&hit.path));
            if let Some(count) = hit.count {
                text.push_str(&format!(": {count}"));
            }
            text.push('\n');
            continue;
        };
        if current_path != Some(&hit.path) {
            text.push_str(&escape_name(&hit.path));
            text.push('\n');
            current_path = Some(&hit.path);
        }
        let first = line.saturating_sub(hit.before.len() as u64);
        let mut number = first;
        for before in &hit.before {
            text.push_str(&format!("{number}- {before}\n"));
            number += 1;
        }
        text.push_str(&format!("{line}: {matched_text}\n"));
        number = line + matched_text.lines().count().max(1) as u64;
        for after in &hit.after {
            text.push_str(&format!("{number}- {after}\n"));
            number += 1;
        }
    }
    text.push_str(&format!("[{}]", build_notes(reply).join("; ")));
    text
}

fn build_notes(reply: &Reply) -> Vec<String> {
    let files = match reply.files_searched {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    let mut notes = vec![match reply.total_matches {
        _ if reply.files_matched == 0 => format!("no match in {files}"),
        Some(total) => format!("{total} matches in {} of {files}", reply.files_matched),
        None => format!("{} of {files} match", reply.files_matched),
    }];
    if reply.truncated && !reply.matches.is_empty() {
        notes.push(format!("showing the first {} from here", reply.matches.len()));
    }
    if reply.timed_out {
        notes.push("timed out before all files were searched".to_owned());
    }
    if reply.skipped.binary > 0 {
        notes.push(format!("{} binary", reply.skipped.binary));
    }
    if reply.skipped.unreadable > 0 {
        notes.push(format!("{} could not be read", reply.skipped.unreadable));
    }
    notes.extend(reply.warnings.iter().cloned());
    if let Some(cursor) = &reply.next_cursor {
        notes.push(format!("next cursor {cursor}"));
    }
    notes
}
