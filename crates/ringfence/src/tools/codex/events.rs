//! Parses the output of `codex exec --json`: one event per line, turned into lines for people as
//! they arrive.
//!
//! The output comes from a sandboxed program and the model behind it, so it is untrusted: it is
//! bounded, and only believed about the session itself.

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::redact::known_secrets;

/// Maximum bytes of one event. A longer one is skipped, and the output says so.
pub const MAX_EVENT_BYTES: usize = 4 << 20;
/// Maximum bytes of an event that is forwarded unchanged, and how many events may be queued for a
/// slow client. Anything beyond is dropped.
const MAX_FORWARDED_BYTES: usize = 64 << 10;
const MAX_QUEUED_EVENTS: usize = 256;
/// Maximum bytes of the answer, which is in the result twice.
pub const MAX_ANSWER_BYTES: usize = 256 << 10;
/// Maximum characters of an item in a progress line.
const MAX_SHOWN_CHARS: usize = 300;
/// Maximum characters of a failure message.
const MAX_FAILURE_CHARS: usize = 4000;

/// State of the parser, and what it has found so far.
#[derive(Debug, Default)]
pub struct EventParser {
    /// The line that is not yet complete.
    partial_line: Vec<u8>,
    /// The current line is too long, and the rest of it is discarded.
    is_line_skipped: bool,
    pub thread_id: Option<String>,
    /// A thread was named, whether or not its id was valid.
    has_named_thread: bool,
    /// The last message of the agent, which is the answer.
    pub answer: Option<String>,
    /// Why the turn failed, if it did.
    pub failure: Option<String>,
    pub is_completed: bool,
    /// Receives each event unchanged, for clients written for the removed server.
    forwarder: Option<mpsc::Sender<Value>>,
}

/// The known fields of an event; all others are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CodexEvent {
    #[serde(rename = "type")]
    kind: String,
    thread_id: Option<String>,
    message: Option<String>,
    error: Option<CodexFailure>,
    item: Option<CodexItem>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CodexFailure {
    message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CodexItem {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    message: Option<String>,
    command: Option<Value>,
    exit_code: Option<i64>,
    status: Option<String>,
    server: Option<String>,
    tool: Option<String>,
    query: Option<String>,
    changes: Option<Vec<CodexFileChange>>,
    items: Option<Vec<CodexTodo>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CodexFileChange {
    path: String,
    kind: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CodexTodo {
    text: String,
    completed: bool,
}

impl EventParser {
    /// Stops forwarding events.
    pub fn without_forwarding(self) -> EventParser {
        EventParser { forwarder: None, ..self }
    }

    /// Returns a receiver of the events, unchanged, from now on.
    pub fn forward_events(&mut self) -> mpsc::Receiver<Value> {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_EVENTS);
        self.forwarder = Some(sender);
        receiver
    }

    /// Parses a piece of output and returns the lines to show for it.
    pub fn parse_chunk(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut summaries = String::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.buffer_bytes(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.partial_line);
            let summary = match std::mem::take(&mut self.is_line_skipped) {
                true => Some("[an event of Codex was too long to be read]".to_owned()),
                false => self.parse_line(&line),
            };
            if let Some(summary) = summary {
                summaries.push_str(&summary);
                summaries.push('\n');
            }
        }
        self.buffer_bytes(bytes);
        summaries.into_bytes()
    }

    fn buffer_bytes(&mut self, bytes: &[u8]) {
        if self.is_line_skipped || self.partial_line.len() + bytes.len() > MAX_EVENT_BYTES {
            self.is_line_skipped = true;
            self.partial_line = Vec::new();
            return;
        }
        self.partial_line.extend_from_slice(bytes);
    }

    fn parse_line(&mut self, line: &[u8]) -> Option<String> {
        if line.trim_ascii().is_empty() {
            return None;
        }
        // Redact the parsed strings, because JSON can spell a credential in many ways, and redact
        // them before they are cut, because a truncated credential would not be recognized.
        let parsed = serde_json::from_slice::<Value>(line).map(|mut event| {
            known_secrets::redact_value(&mut event);
            event
        });
        let Some((told, event)) =
            parsed.ok().and_then(|told| Some((CodexEvent::deserialize(&told).ok()?, told)))
        else {
            // Not an event, but for example a warning of some library.
            return Some(plain_line(
                &known_secrets::redact_str(&String::from_utf8_lossy(line)),
                MAX_SHOWN_CHARS,
            ));
        };
        if let Some(forwarder) =
            self.forwarder.as_ref().filter(|_| line.len() <= MAX_FORWARDED_BYTES)
        {
            // A client that does not keep up misses events; nothing waits for it.
            let _ = forwarder.try_send(event);
        }
        let event = told;
        match event.kind.as_str() {
            "thread.started" => {
                // Only the first one is accepted: Codex sends it before anything else runs that
                // could forge one.
                if std::mem::replace(&mut self.has_named_thread, true) {
                    return None;
                }
                self.thread_id = event.thread_id.filter(|id| is_thread_id(id));
                self.thread_id.as_ref().map(|id| format!("thread {id}"))
            }
            "turn.completed" => {
                self.is_completed = true;
                None
            }
            "turn.failed" | "error" => {
                let message = event.error.and_then(|error| error.message).or(event.message);
                let message = truncate_bytes(
                    message.as_deref().unwrap_or("it did not say why"),
                    MAX_FAILURE_CHARS,
                );
                let told = format!("failed: {}", plain_line(&message, MAX_SHOWN_CHARS));
                // Codex reports failed attempts as well; the last one is the reason.
                self.failure = Some(message);
                Some(told)
            }
            "item.started" | "item.completed" => {
                self.handle_item(event.kind == "item.completed", event.item?)
            }
            "item.updated" => event
                .item
                .filter(|item| item.kind == "todo_list")
                .and_then(|item| item.describe_item(false)),
            _ => None,
        }
    }

    fn handle_item(&mut self, is_over: bool, item: CodexItem) -> Option<String> {
        let summary = item.describe_item(is_over);
        if is_over && item.kind == "agent_message" {
            self.answer = Some(truncate_bytes(&item.text.unwrap_or_default(), MAX_ANSWER_BYTES));
        }
        summary
    }
}

impl CodexItem {
    fn describe_item(&self, is_over: bool) -> Option<String> {
        let text = |text: &Option<String>| {
            plain_line(text.as_deref().unwrap_or_default(), MAX_SHOWN_CHARS)
        };
        let state = || match self.status.as_deref() {
            Some("failed" | "declined") => ", failed",
            _ => "",
        };
        match (self.kind.as_str(), is_over) {
            ("agent_message", true) => Some(text(&self.text)),
            ("reasoning", true) => Some(format!("thinks: {}", text(&self.text))),
            ("error", true) => Some(format!("warning: {}", text(&self.message))),
            ("command_execution", false) => Some(format!("runs: {}", self.command_text())),
            ("command_execution", true) => Some(match self.exit_code {
                Some(code) => format!("exit code {code}: {}", self.command_text()),
                None => format!("ended{}: {}", state(), self.command_text()),
            }),
            ("file_change", true) => {
                let all = self.changes.iter().flatten();
                let kind =
                    |change: &CodexFileChange| change.kind.as_str().unwrap_or("change").to_owned();
                let all: Vec<_> =
                    all.take(20).map(|it| format!("{} {}", kind(it), it.path)).collect();
                Some(format!("files{}: {}", state(), plain_line(&all.join(", "), MAX_SHOWN_CHARS)))
            }
            ("mcp_tool_call", _) => {
                let verb = if is_over { "called" } else { "calls" };
                Some(format!("{verb} {} of {}{}", text(&self.tool), text(&self.server), state()))
            }
            ("web_search", true) => Some(format!("searched the web: {}", text(&self.query))),
            ("todo_list", _) => {
                let all = self.items.iter().flatten().take(20);
                let all: Vec<_> = all
                    .map(|it| format!("[{}] {}", if it.completed { "x" } else { " " }, it.text))
                    .collect();
                Some(format!("plan: {}", plain_line(&all.join(" "), MAX_SHOWN_CHARS)))
            }
            _ => None,
        }
    }

    fn command_text(&self) -> String {
        match &self.command {
            Some(Value::String(command)) => plain_line(command, MAX_SHOWN_CHARS),
            Some(other) => plain_line(&other.to_string(), MAX_SHOWN_CHARS),
            None => String::new(),
        }
    }
}

/// Returns whether this has the form of a Codex thread id. Codex would take anything else for a
/// thread's name, and start a new thread if there is none.
pub fn is_thread_id(id: &str) -> bool {
    let is_hex = |part: &str| {
        part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let parts: Vec<&str> = id.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.iter().all(|part| is_hex(part))
}

/// Returns one line without control characters that could redraw a terminal.
fn plain_line(text: &str, max_chars: usize) -> String {
    let mut line: String =
        text.trim().chars().take(max_chars).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().chars().nth(max_chars).is_some() {
        line.push('…');
    }
    line
}

/// Truncates text to a number of bytes.
fn truncate_bytes(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let mut end = max_bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}\n… [{} more bytes were left out]", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const THREAD: &str = "01a1e507-1a6d-7780-bad2-f3ce356a988a";

    fn lines(events: &[Value]) -> String {
        events.iter().map(|event| format!("{event}\n")).collect()
    }

    fn shown(events: &mut EventParser, bytes: &[u8]) -> String {
        String::from_utf8(events.parse_chunk(bytes)).unwrap()
    }

    #[test]
    fn a_session_becomes_lines_an_answer_and_a_thread() {
        let said = lines(&[
            json!({"type": "thread.started", "thread_id": THREAD}),
            json!({"type": "turn.started"}),
            json!({"type": "item.started", "item": {"id": "item_0", "type": "command_execution", "command": "bash -lc ls", "status": "in_progress"}}),
            json!({"type": "item.completed", "item": {"id": "item_0", "type": "command_execution", "command": "bash -lc ls", "aggregated_output": "a\n", "exit_code": 0, "status": "completed"}}),
            json!({"type": "item.completed", "item": {"type": "file_change", "changes": [{"path": "a.rs", "kind": "add"}], "status": "completed"}}),
            json!({"type": "item.completed", "item": {"type": "mcp_tool_call", "server": "s", "tool": "t", "status": "failed"}}),
            json!({"type": "item.completed", "item": {"type": "agent_message", "text": "first"}}),
            json!({"type": "item.completed", "item": {"type": "agent_message", "text": "It is\ndone."}}),
            json!({"type": "something.new", "x": 1}),
            json!({"type": "turn.completed", "usage": {}}),
        ]);
        let mut events = EventParser::default();
        let told = shown(&mut events, said.as_bytes());
        assert_eq!(
            told,
            format!(
                "thread {THREAD}\nruns: bash -lc ls\nexit code 0: bash -lc ls\nfiles: add a.rs\ncalled t of s, failed\n\
                 first\nIt is done.\n"
            )
        );
        assert_eq!(events.thread_id.as_deref(), Some(THREAD));
        assert_eq!(events.answer.as_deref(), Some("It is\ndone."));
        assert!(events.is_completed && events.failure.is_none());
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let said = lines(&[
            json!({"type": "thread.started", "thread_id": THREAD}),
            json!({"type": "item.completed", "item": {"type": "agent_message", "text": "grün 🦀"}}),
        ]);
        let (mut whole, mut bytewise) = (EventParser::default(), EventParser::default());
        let one = whole.parse_chunk(said.as_bytes());
        let other: Vec<u8> = said.bytes().flat_map(|byte| bytewise.parse_chunk(&[byte])).collect();
        assert_eq!(one, other);
        assert_eq!(bytewise.answer.as_deref(), Some("grün 🦀"));
    }

    #[test]
    fn a_failure_is_kept_with_its_words() {
        let mut events = EventParser::default();
        let told = shown(
            &mut events,
            lines(&[
                json!({"type": "error", "message": "Reconnecting... 1/5"}),
                json!({"type": "turn.failed", "error": {"message": "no\u{1b}[2J such model"}}),
            ])
            .as_bytes(),
        );
        assert_eq!(told, "failed: Reconnecting... 1/5\nfailed: no [2J such model\n");
        assert_eq!(events.failure.as_deref(), Some("no\u{1b}[2J such model"));
    }

    /// The set of known values belongs to the process, so this one is of this test alone.
    #[test]
    fn a_key_is_shown_nowhere_however_it_is_written() {
        let key = "sk-hunter2-\"of-events";
        known_secrets::register_secrets([("KEY", &crate::redact::secret::Secret::new(key))]);
        let escaped: String = key.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let mut events = EventParser::default();
        let mut told = events.forward_events();
        let said = format!(
            "{{\"type\":\"item.completed\",\"item\":{{\"type\":\"agent_message\",\"text\":\"it is {escaped}.\"}}}}\n{}plain {key}\n",
            lines(&[
                json!({"type": "item.started", "item": {"type": "command_execution", "command": format!("echo {key}")}}),
                json!({"type": "turn.failed", "error": {"message": format!("bad key {key}")}}),
            ]),
        );
        let shown = shown(&mut events, said.as_bytes());
        assert!(!shown.contains("hunter2") && shown.contains("echo [secret:KEY]"), "{shown}");
        assert_eq!(events.answer.as_deref(), Some("it is [secret:KEY]."));
        assert_eq!(events.failure.as_deref(), Some("bad key [secret:KEY]"));
        while let Ok(event) = told.try_recv() {
            assert!(!event.to_string().contains("hunter2"), "{event}");
        }
    }

    #[test]
    fn the_first_thread_is_the_one() {
        let mut events = EventParser::default();
        let other = "11111111-1a6d-7780-bad2-f3ce356a988a";
        let named = |id: &str| lines(&[json!({"type": "thread.started", "thread_id": id})]);
        let told = shown(&mut events, format!("{}{}", named(THREAD), named(other)).as_bytes());
        assert_eq!(
            (told, events.thread_id.as_deref()),
            (format!("thread {THREAD}\n"), Some(THREAD))
        );
        let mut events = EventParser::default();
        events.parse_chunk(format!("{}{}", named("nonsense"), named(other)).as_bytes());
        assert_eq!(events.thread_id, None);
    }

    #[test]
    fn hostile_events_are_bounded_and_never_believed() {
        for id in
            ["../../etc/passwd", "--last", "01a1e507", "", "01A1E507-1A6D-7780-BAD2-F3CE356A988A"]
        {
            let mut events = EventParser::default();
            events.parse_chunk(
                lines(&[json!({"type": "thread.started", "thread_id": id})]).as_bytes(),
            );
            assert_eq!(events.thread_id, None, "{id}");
        }
        let mut events = EventParser::default();
        // Wrong types, broken JSON, bytes that are not text, deep nesting: none of it is an event.
        for line in [
            "{\"type\": 7}\n".to_owned(),
            "{\"type\": \"item.completed\"}\n".to_owned(),
            "{\"type\": \"item.completed\", \"item\": []}\n".to_owned(),
            format!("{}\n", "[".repeat(100_000)),
            "{\"type\":\n".to_owned(),
        ] {
            let told = shown(&mut events, line.as_bytes());
            assert!(
                told.chars().count() <= MAX_SHOWN_CHARS + 2,
                "{} characters",
                told.chars().count()
            );
        }
        events.parse_chunk(b"\xff\xfe\x1b[31m\n");
        assert!(events.answer.is_none() && events.failure.is_none());

        // An event without an end keeps no memory, and the next one is heard.
        for _ in 0..100 {
            events.parse_chunk(&vec![b'x'; 100 << 10]);
            assert!(
                events.partial_line.capacity() <= 2 * MAX_EVENT_BYTES,
                "{}",
                events.partial_line.capacity()
            );
        }
        assert!(events.partial_line.is_empty());
        let told = shown(
            &mut events,
            format!("x\n{}", lines(&[json!({"type": "turn.completed"})])).as_bytes(),
        );
        assert_eq!(told, "[an event of Codex was too long to be read]\n");
        assert!(events.is_completed);

        let long = json!({"type": "item.completed", "item": {"type": "agent_message", "text": "ü".repeat(1 << 20)}});
        let told = shown(&mut events, lines(&[long]).as_bytes());
        assert!(told.chars().count() <= MAX_SHOWN_CHARS + 2);
        let answer = events.answer.unwrap();
        assert!(
            answer.len() < MAX_ANSWER_BYTES + 100 && answer.ends_with("more bytes were left out]"),
            "{}",
            answer.len()
        );
    }
}
