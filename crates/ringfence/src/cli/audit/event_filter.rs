//! Selects events. A log may have millions, and most do not match: those are recognized by their
//! bytes, and only what may match is parsed.

use std::borrow::Cow;

use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::Value;

use super::AuditArgs;
use crate::audit::read::LoggedEvent;
use crate::tools::with_underscores;

/// The filters of one query.
pub struct EventFilter {
    since: Option<String>,
    session: Option<MemberText>,
    trace: Option<MemberText>,
    tool: Option<ToolName>,
}

/// Text that a member begins with, and what its line must therefore contain.
struct MemberText {
    text: String,
    finder: Finder<'static>,
}

/// Name of a tool, in underscores.
struct ToolName {
    name: String,
    escaped: Vec<u8>,
    finder: Finder<'static>,
}

/// The members of an event that filters compare. Anything unusual about them, such as one that is not
/// a string or comes twice, makes it an error to read them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FilteredMembers<'a> {
    #[serde(borrow)]
    ts: Cow<'a, str>,
    #[serde(borrow)]
    trace_id: Cow<'a, str>,
    #[serde(borrow)]
    session: Cow<'a, str>,
    #[serde(borrow)]
    tool: Cow<'a, str>,
}

/// What stands in a line before the name of its tool. No string of a record has these bytes in it,
/// because JSON escapes quotation marks.
pub(super) const TOOL_MEMBER: &[u8] = b"\"tool\":\"";

impl EventFilter {
    /// Creates the filter for these arguments.
    pub fn new(args: &AuditArgs) -> EventFilter {
        EventFilter {
            since: args.since.clone(),
            session: args.session.as_deref().map(|text| MemberText::new("session", text)),
            trace: args.trace.as_deref().map(|text| MemberText::new("trace_id", text)),
            tool: args.tool.as_deref().map(ToolName::new),
        }
    }

    fn has_filters(&self) -> bool {
        self.since.is_some()
            || self.session.is_some()
            || self.trace.is_some()
            || self.tool.is_some()
    }

    /// Returns whether an event matches. An event that is not JSON matches no filter.
    pub fn matches(&self, event: &LoggedEvent<'_>) -> bool {
        if !self.may_match(event) {
            return false;
        }
        match serde_json::from_slice::<FilteredMembers<'_>>(event.raw) {
            Ok(members) => self.matches_members(&members),
            Err(_) => self.matches_value(event.parse().as_ref()),
        }
    }

    /// Returns false if an event cannot match, by its bytes alone.
    fn may_match(&self, event: &LoggedEvent<'_>) -> bool {
        let is_too_old = |since: &String| event.time().is_some_and(|time| time < since.as_str());
        !self.since.as_ref().is_some_and(is_too_old)
            && self.trace.as_ref().is_none_or(|trace| trace.is_in(event.raw))
            && self.session.as_ref().is_none_or(|session| session.is_in(event.raw))
            && self.tool.as_ref().is_none_or(|tool| tool.is_in(event.raw))
    }

    fn matches_value(&self, value: Option<&Value>) -> bool {
        let Some(value) = value else { return !self.has_filters() };
        let text = |name: &str| Cow::Borrowed(value[name].as_str().unwrap_or_default());
        self.matches_members(&FilteredMembers {
            ts: text("ts"),
            trace_id: text("trace_id"),
            session: text("session"),
            tool: text("tool"),
        })
    }

    fn matches_members(&self, members: &FilteredMembers<'_>) -> bool {
        self.since.as_ref().is_none_or(|since| *members.ts >= **since)
            && self.trace.as_ref().is_none_or(|trace| members.trace_id.starts_with(&trace.text))
            && self.session.as_ref().is_none_or(|session| members.session == session.text)
            && self.tool.as_ref().is_none_or(|tool| with_underscores(&members.tool) == tool.name)
    }
}

impl MemberText {
    fn new(member: &str, text: &str) -> MemberText {
        let needle = [b"\"", member.as_bytes(), b"\":\"", &escape_json(text)].concat();
        MemberText { text: text.to_owned(), finder: Finder::new(&needle).into_owned() }
    }

    fn is_in(&self, line: &[u8]) -> bool {
        self.finder.find(line).is_some()
    }
}

impl ToolName {
    fn new(name: &str) -> ToolName {
        let name = with_underscores(name);
        let escaped = escape_json(&name);
        ToolName { name, escaped, finder: Finder::new(TOOL_MEMBER) }
    }

    fn is_in(&self, line: &[u8]) -> bool {
        let is_spelled =
            |byte: &u8, wanted: &u8| byte == wanted || (*byte, *wanted) == (b'.', b'_');
        self.finder.find_iter(line).any(|start| {
            let rest = &line[start + TOOL_MEMBER.len()..];
            rest.get(self.escaped.len()) == Some(&b'"')
                && rest.iter().zip(&self.escaped).all(|(byte, wanted)| is_spelled(byte, wanted))
        })
    }
}

/// Returns a text as the log has it in a string.
fn escape_json(text: &str) -> Vec<u8> {
    let quoted = Value::from(text).to_string().into_bytes();
    quoted[1..quoted.len() - 1].to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filter(since: &str, session: &str, trace: &str, tool: &str) -> EventFilter {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        EventFilter::new(&AuditArgs {
            command: None,
            follow: false,
            tool: given(tool),
            session: given(session),
            trace: given(trace),
            since: given(since),
            json: false,
            root: None,
        })
    }

    /// The bytes may say yes where the record says no, never the reverse.
    #[test]
    fn what_matches_is_never_left_out_by_its_bytes() {
        let names =
            ["a.b", "a_b", "ab", "a.b.c", "a\"b", "\\", "\u{1b}\u{e4}", "", "a.b\",\"tool\":\"x"];
        let times = ["2026-11-15T21:40:03.000000Z", "2026-11-16T00:00:00.000000Z"];
        let mut lines = vec!["not JSON".to_owned(), r#"{"tool":"a.b"}"#.to_owned()];
        for (index, name) in names.iter().enumerate() {
            let ts = times[index % 2];
            for value in [
                json!({"seq": index, "ts": ts, "event": "call.start", "session": name, "tool": "x"}),
                json!({"seq": index, "ts": ts, "trace_id": name, "denials": [{"tool": "y"}], "tool": name}),
                json!({"ts": ts, "seq": index, "tool": [name], "client": r#""tool":"a_b""#}),
            ] {
                lines.push(value.to_string());
            }
        }
        let mut found = 0;
        for line in &lines {
            let event = LoggedEvent { file: "f", line: 1, raw: line.as_bytes() };
            let value = event.parse();
            for name in names.iter().chain(&["x", "y"]) {
                for filter in [
                    filter(times[1], "", "", ""),
                    filter("", name, "", ""),
                    filter("", "", name, ""),
                    filter("", "", "", name),
                    filter(times[0], "x", name, name),
                ] {
                    let matches = filter.matches_value(value.as_ref());
                    assert_eq!(matches, filter.matches(&event), "{line} {name}");
                    found += usize::from(matches && filter.has_filters());
                }
            }
        }
        assert!(found > 40, "{found}");
    }

    #[test]
    fn most_of_what_does_not_match_is_recognized_by_its_bytes() {
        let line = json!({"seq": 1, "ts": "2026-11-15T21:40:03.000000Z", "session": "s-1", "trace_id": "abc", "tool": "file.read"});
        let line = line.to_string();
        let event = LoggedEvent { file: "f", line: 1, raw: line.as_bytes() };
        for [since, session, trace, tool] in [
            ["2026-11-15T21:40:04", "", "", ""],
            ["", "s-2", "", ""],
            ["", "", "abcd", ""],
            ["", "", "", "file.rea"],
            ["", "", "", "file_read_"],
        ] {
            assert!(!filter(since, session, trace, tool).may_match(&event));
        }
        assert!(filter("2026", "s-1", "ab", "file_read").may_match(&event));
    }
}
