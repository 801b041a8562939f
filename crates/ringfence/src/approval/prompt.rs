//! Text of an approval question. It shows everything that matters for the decision, and nothing
//! that is secret.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::call::Prepared;
use crate::base::visible::escape_to_line;
use crate::base::{Error, Kind, Result};
use crate::redact::known_secrets;
use crate::session::Session;

/// Question to a human. It is data, so that every front end shows the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ApprovalPrompt {
    pub id: String,
    pub trace_id: String,
    pub tool: String,
    /// Subject of the question, if it is less than the whole call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub description: String,
    pub why: String,
    pub principal: String,
    pub session: String,
    pub workspace: String,
    /// Command that would run, in our own words; the `arguments` are in the caller's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub cwd: String,
    /// Where it runs: in which sandbox, or without one.
    #[serde(default)]
    pub place: String,
    /// `PATH` of the command: it decides which programs the words of the command refer to.
    #[serde(default)]
    pub search_path: String,
    #[serde(default)]
    pub env: Vec<String>,
    pub profile: String,
    pub effects: Vec<String>,
    pub arguments: Value,
    /// Arguments that `command` shows in full, which a reader need not see twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command_covers: Vec<String>,
    /// The answer can be kept for the session. Set by the gate: a call without a persistent session
    /// keeps nothing.
    #[serde(default)]
    pub offers_session: bool,
    /// The question is about a command that would leave the sandbox, and "run it inside" is one of
    /// the answers.
    #[serde(default)]
    pub offers_inside: bool,
    #[serde(default)]
    pub asked_unix_ms: u64,
    pub expires_unix_ms: u64,
}

impl ApprovalPrompt {
    /// Longest text of a question, in bytes. Longer ones are refused, because a human would not
    /// read them to the end.
    pub const MAX_BYTES: usize = 64 << 10;

    /// Builds the question whether a call may run.
    pub fn for_call(call: &Prepared, why: &str, session: &Session) -> Self {
        let is_path = |variable: &&String| variable.starts_with("PATH=");
        let search_path =
            call.shown_env.iter().find(is_path).map(|path| path["PATH=".len()..].to_owned());
        let search_path = search_path.unwrap_or_default();
        let env = call.shown_env.iter().filter(|variable| !is_path(variable)).cloned().collect();
        ApprovalPrompt {
            id: crate::base::ids::short_id("a"),
            trace_id: call.trace_id.to_string(),
            tool: call.tool.clone(),
            subject: None,
            description: call.description.clone(),
            why: why.to_owned(),
            principal: session.principal.name().to_owned(),
            session: session.id.clone(),
            workspace: session.workspace.display_path(),
            command: call.shown_command.clone(),
            cwd: call.cwd.clone(),
            place: match call.profile {
                "none" => "without a sandbox",
                "remote" => "on a remote server",
                _ => "in the sandbox",
            }
            .to_owned(),
            search_path,
            env,
            profile: call.profile.to_owned(),
            effects: call.effects.iter().map(|effect| (*effect).to_owned()).collect(),
            arguments: call.shown_arguments.clone(),
            command_covers: call
                .arguments_in_command
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            offers_session: false,
            offers_inside: false,
            asked_unix_ms: 0,
            expires_unix_ms: 0,
        }
    }

    /// Builds a question about one step of a running call: the texts of the call, with the
    /// arguments of this step.
    pub fn for_step(call: &Prepared, why: &str, arguments: Value, session: &Session) -> Self {
        ApprovalPrompt { arguments, ..ApprovalPrompt::for_call(call, why, session) }
    }

    /// Builds a question about one program that a call wants to start. It shows what matters for
    /// that program, not the arguments of the call as a whole. The arguments `command`, `in`,
    /// `runs` and `PATH` say what would run, where, and with which search path; they come first.
    pub fn for_exec(
        call: &Prepared,
        subject: String,
        why: &str,
        mut arguments: Value,
        session: &Session,
    ) -> Self {
        let mut take_text = |name: &str| match arguments
            .as_object_mut()
            .and_then(|members| members.shift_remove(name))
        {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let (command, cwd, place, search_path) =
            (take_text("command"), take_text("in"), take_text("runs"), take_text("PATH"));
        let prompt = ApprovalPrompt::for_step(call, why, arguments, session);
        ApprovalPrompt {
            subject: Some(subject),
            command,
            cwd: cwd.unwrap_or_default(),
            place: place.unwrap_or_default(),
            search_path: search_path.unwrap_or_default(),
            command_covers: Vec::new(),
            env: Vec::new(),
            profile: String::new(),
            effects: Vec::new(),
            ..prompt
        }
    }

    /// Removes the values of secrets, wherever they came from.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        for text in [
            &mut self.tool,
            &mut self.description,
            &mut self.why,
            &mut self.cwd,
            &mut self.workspace,
        ]
        .into_iter()
        .chain([&mut self.place, &mut self.search_path])
        .chain(&mut self.subject)
        .chain(&mut self.command)
        .chain(&mut self.env)
        .chain(&mut self.effects)
        {
            known_secrets::redact_text(text);
        }
        known_secrets::redact_value(&mut self.arguments);
        self
    }

    /// Returns the name that answers and errors use for the subject.
    pub fn name(&self) -> &str {
        self.subject.as_deref().unwrap_or(&self.tool)
    }

    /// Renders the question as text. Some clients show three lines of it, so those are decisive:
    /// what is asked, why and how much there is to read; the command; where it runs. The rest
    /// follows, and nothing is left out.
    pub fn render_text(&self) -> String {
        let body = self.decisive_lines() + &self.argument_lines() + &self.detail_lines();
        let length = match body.lines().count() + 1 {
            count if body.len() > LONG_TEXT_BYTES => {
                format!("{count} lines, {} characters; {READ_ALL}", body.chars().count())
            }
            count => format!("{count} lines; {READ_ALL}"),
        };
        format!(
            "Allow `{}`? ({length}) {}\n{body}",
            escape_to_line(self.name()),
            escape_to_line(&self.why)
        )
    }

    /// Refuses a question that no human would read to the end. Shortened, it could be a question
    /// about something else.
    pub fn check_length(&self) -> Result<()> {
        let length = self.render_text().len();
        if length <= Self::MAX_BYTES {
            return Ok(());
        }
        Err(Error::new(Kind::TooLarge, format!("`{}` needs approval and is too long to be shown in full", self.name()))
            .with_hint(format!(
                "A question may have {} bytes and this one needs {length}. Write the long text to a file first, in several \
                 calls if writing needs approval too, then run or use that file.",
                Self::MAX_BYTES
            ))
            .with_fact("limit_bytes", Self::MAX_BYTES)
            .with_fact("bytes", length))
    }

    fn decisive_lines(&self) -> String {
        let command = self
            .command
            .as_deref()
            .map(|command| format_value("command", command))
            .unwrap_or_default();
        let directory = (!self.cwd.is_empty()).then(|| format!("directory: {}", self.cwd));
        let place: Vec<&str> =
            [self.place.as_str()].into_iter().chain(directory.as_deref()).collect();
        let place =
            place.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        let place = format_value_if_any("runs", &place);
        // A command of many lines would push the line that says where it runs out of sight.
        let main_lines = match command.lines().nth(1) {
            None => command + &place,
            Some(_) => place + &command,
        };
        main_lines + &format_value_if_any("PATH", &self.search_path)
    }

    fn argument_lines(&self) -> String {
        let Value::Object(arguments) = &self.arguments else { return String::new() };
        let line = |name: &str, value: &str| match &self.subject {
            // In a question about one program, all labels are our own.
            Some(_) => format_value(name, value),
            // Argument names come from the caller; none may pass for one of our own lines.
            None => format_value(&format!("argument {name:?}"), value),
        };
        let mut text = String::new();
        for (name, value) in
            arguments.iter().filter(|(name, _)| !self.command_covers.contains(name))
        {
            match value {
                Value::String(value) => text.push_str(&line(name, value)),
                // One line each, so that none can hide among the others.
                Value::Object(members) if !members.is_empty() => {
                    for (member, value) in members {
                        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                        text.push_str(&line(&format!("{name} {member}"), &value));
                    }
                }
                other => text.push_str(&line(name, &other.to_string())),
            }
        }
        text
    }

    fn detail_lines(&self) -> String {
        let mut text = format_value_if_any("environment", &self.env.join(" "));
        text += &format_value_if_any("sandbox", &self.profile);
        text += &format_value_if_any("side effects", &self.effects.join(", "));
        if self.subject.is_some() {
            text += &format_value("started by", &self.tool);
        }
        let (summary, _) = self.description.split_once(". ").unwrap_or((&self.description, ""));
        text += &format_value_if_any("tool", summary);
        let requester =
            format!("{} in session {}, workspace {}", self.principal, self.session, self.workspace);
        text + &format_value("requested by", &requester) + &format_value("trace", &self.trace_id)
    }
}

/// Follows the length of a question in its first line.
const READ_ALL: &str = "read all of them before you answer";

/// Bytes above which the number of lines alone does not say how long a question is.
const LONG_TEXT_BYTES: usize = 2000;

fn format_value_if_any(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format_value(name, value) }
}

/// Formats a value under its name. Lines of the value are indented, so that none can pass for a
/// line of the question. A run of blank lines is replaced by its count, without the bar that marks
/// a line of the value.
fn format_value(name: &str, value: &str) -> String {
    let name = escape_to_line(name);
    let value = value.strip_suffix('\n').unwrap_or(value);
    if !value.contains('\n') {
        return format!("{name}: {}\n", escape_to_line(value));
    }
    let mut text = format!("{name}:\n");
    let mut blank = 0;
    for line in value.split('\n').map(Some).chain([None]) {
        if line.is_some_and(|line| line.trim_matches(' ').is_empty()) {
            blank += 1;
            continue;
        }
        match std::mem::take(&mut blank) {
            0 => {}
            1 => text.push_str("    |\n"),
            many => text.push_str(&format!("    [{many} blank lines]\n")),
        }
        if let Some(line) = line {
            text.push_str(&format!("    | {}\n", escape_to_line(line)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompt(command: Option<&str>, arguments: Value) -> ApprovalPrompt {
        serde_json::from_value(json!({
            "id": "a-1", "trace_id": "t", "tool": "shell.exec", "description": "Run it. More.", "why": "It asks.",
            "principal": "ada", "session": "s-1", "workspace": "/w", "command": command, "cwd": "/w/sub",
            "place": "without a sandbox", "search_path": "/usr/bin", "profile": "none", "effects": ["exec"],
            "arguments": arguments, "expires_unix_ms": 5,
        }))
        .unwrap()
    }

    #[test]
    fn the_first_three_lines_decide() {
        let text = prompt(Some("rm -rf x"), json!({"stdin": "\n".repeat(500), "env": {"A": "1"}}))
            .render_text();
        assert_eq!(
            text,
            "Allow `shell.exec`? (12 lines; read all of them before you answer) It asks.\ncommand: rm -rf x\n\
             runs: without a sandbox; directory: /w/sub\nPATH: /usr/bin\n\
             argument \"stdin\":\n    [500 blank lines]\nargument \"env A\": 1\nsandbox: none\nside effects: exec\n\
             tool: Run it\nrequested by: ada in session s-1, workspace /w\ntrace: t\n"
        );
        let text = prompt(Some("true\nrm -rf x"), json!({})).render_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..5],
            [
                "runs: without a sandbox; directory: /w/sub",
                "command:",
                "    | true",
                "    | rm -rf x"
            ]
        );
        assert!(
            lines[0]
                .starts_with(&format!("Allow `shell.exec`? ({} lines; {READ_ALL})", lines.len())),
            "{text}"
        );
    }

    #[test]
    fn a_question_is_whole_or_not_asked() {
        let fits = prompt(Some(&format!("{} evil", "x".repeat(60_000))), json!({}));
        fits.check_length().unwrap();
        assert!(
            fits.render_text().contains("x evil\n") && fits.render_text().contains("60"),
            "the end is shown"
        );
        assert!(fits.render_text().lines().next().unwrap().contains(" characters; read all"));
        let long = prompt(Some("ls"), json!({"stdin": "x".repeat(ApprovalPrompt::MAX_BYTES)}));
        let error = long.check_length().unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge);
        assert!(error.hint_text().unwrap().contains("Write the long text to a file first"));
        // Escapes count as what is read.
        assert!(prompt(Some(&"\u{202e}".repeat(10_000)), json!({})).check_length().is_err());
    }

    #[test]
    fn no_line_of_a_value_passes_for_a_line_of_the_question() {
        assert_eq!(
            format_value("command", "echo ok # note\nrm -rf x\n"),
            "command:\n    | echo ok # note\n    | rm -rf x\n"
        );
        assert_eq!(format_value("command", "echo 'a\\nb'"), "command: echo 'a\\nb'\n");
        assert_eq!(
            format_value("c", "a\r\n\n   \n\nb\n\nc"),
            "c:\n    | a\\u{d}\n    [3 blank lines]\n    | b\n    |\n    | c\n"
        );
        assert_eq!(format_value("c", "a\n\n\n\n"), "c:\n    | a\n    [3 blank lines]\n");
        let text =
            prompt(Some("ls"), json!({"runs": "in the sandbox", "x\nruns": "y", "PATH": "/evil"}))
                .render_text();
        for label in ["\nruns: ", "\nPATH: ", "\ncommand: "] {
            assert_eq!(text.matches(label).count(), 1, "{label}: {text}");
        }
    }
}
