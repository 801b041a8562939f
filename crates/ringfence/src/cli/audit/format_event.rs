//! Records of the audit log as lines for people.

use serde_json::Value;

use super::{format_count, format_files_and_records, format_time};
use crate::base::visible;
use crate::cli::screen::{shorten_end, wrap_line};

/// Width of a terminal from which on whole lines are shown. Details may still be longer.
pub(super) const FULL_LINE_WIDTH: usize = 160;
/// Characters of a trace id that are shown on a narrow terminal; `--trace` accepts them.
const SHORT_TRACE_ID: usize = 8;

/// Formats a record for a narrow terminal: time to the second without its year, event, tool, status, the beginning of
/// the trace id, and the details. What does not fit continues on indented lines.
pub(super) fn format_event_narrow(value: &Value, width: usize) -> String {
    let text = |name: &str| escape_line(value[name].as_str().unwrap_or_default());
    let status = ["status", "outcome", "ran"].into_iter().map(text).find(|text| !text.is_empty());
    let time: String = format_time(&text("ts")).chars().skip("2026-".len()).collect();
    let trace_id: String = text("trace_id").chars().take(SHORT_TRACE_ID).collect();
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    // The local user is the one who reads.
    let principal = Some(text("principal")).filter(|name| !name.is_empty() && name != "local");
    let details = principal.into_iter().chain([format_details(value)]);
    let details: Vec<String> = details.filter(|detail| !detail.is_empty()).collect();
    let line = format!(
        "{time:<14}  {:<12}  {:<14}  {:<9}  {:<SHORT_TRACE_ID$}  {}",
        text("event"),
        shorten_end(&or_dash(text("tool")), 24),
        or_dash(status.unwrap_or_default()),
        or_dash(trace_id),
        details.join(", ")
    );
    wrap_line(line.trim_end(), Some(width), 4)
}

/// Formats a record as one line: time, event, tool, status, principal and session, trace id,
/// details.
pub(super) fn format_event(value: &Value) -> String {
    let text = |name: &str| escape_line(value[name].as_str().unwrap_or_default());
    let non_empty_or =
        |first: String, second: String| if first.is_empty() { second } else { first };
    let actor = [text("principal"), text("session")]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>();
    let line = format!(
        "{:<26}  {:<12}  {:<16}  {:<9}  {:<28}  {:<32}  {}",
        text("ts").trim_end_matches('Z').replacen('T', " ", 1),
        text("event"),
        non_empty_or(text("tool"), "-".into()),
        non_empty_or(
            non_empty_or(non_empty_or(text("status"), text("outcome")), text("ran")),
            "-".into()
        ),
        non_empty_or(actor.join("/"), "-".into()),
        non_empty_or(text("trace_id"), "-".into()),
        format_details(value)
    );
    line.trim_end().to_owned()
}

fn format_details(value: &Value) -> String {
    const DETAIL_FIELDS: [(&str, &str); 10] = [
        ("exit_code", "exit "),
        ("signal", "signal "),
        ("error", ""),
        ("reason", ""),
        ("cause", "by "),
        ("by", "by "),
        ("mode", ""),
        ("file", ""),
        ("next", "next "),
        ("duration_ms", "ms "),
    ];
    let details = DETAIL_FIELDS.iter().filter_map(|(name, label)| match value.get(*name)? {
        Value::String(text) => Some(format!("{label}{}", escape_line(text))),
        Value::Number(number) => Some(format!("{label}{number}")),
        _ => None,
    });
    let counts = format_counts(value);
    let denials = value["denials"].as_array().into_iter().flatten();
    let denials = denials.filter_map(|denial| {
        Some(format!("refused {}", escape_line(denial.get("name")?.as_str()?)))
    });
    format_exec(value)
        .into_iter()
        .chain(counts)
        .chain(details)
        .chain(denials)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the counts of a summary record: pruned files, or refused calls.
fn format_counts(value: &Value) -> Vec<String> {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    if let Some(removed) = value["removed"].as_array().filter(|_| value["event"] == "prune") {
        let records = removed.iter().map(|file| number(&file["records"])).sum();
        let before = format_time(value["before"].as_str().unwrap_or_default());
        return vec![format!(
            "{} before {before}",
            format_files_and_records(removed.len() as u64, records)
        )];
    }
    let calls = value["count"].as_u64().map(|calls| format_count(calls, "call"));
    let errors = value["errors"].as_object().into_iter().flatten();
    let errors = errors.map(|(kind, calls)| format!("{} {}", escape_line(kind), number(calls)));
    calls.into_iter().chain(errors).collect()
}

/// Returns the words of a command and the rule that decided about it.
fn format_exec(value: &Value) -> Option<String> {
    let command_text = value["command"].as_array()?.iter().filter_map(Value::as_str);
    let command_text = escape_line(&command_text.collect::<Vec<_>>().join(" "));
    let rule = &value["rule"];
    Some(match (rule["file"].as_str(), &rule["line"]) {
        (Some(file), line) => format!("{command_text} ({}:{line})", escape_line(file)),
        (None, _) => command_text,
    })
}

/// Escapes control characters. Names in the log come from clients and models and must not drive the
/// terminal.
pub(super) fn escape_line(text: &str) -> String {
    visible::escape_to_line(text)
}
