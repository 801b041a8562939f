//! Questions of a server, asked at the terminal: approvals, forms and addresses to visit.
//!
//! Nothing is accepted by a mere Enter, and what was typed before a question was on the screen does
//! not answer it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::base::{Error, Kind, Result, visible};
use crate::cli::console::ApproverConsole;

/// Time after which a reader looks whether the question is still open.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Whether a question is still open. The server may withdraw it while someone types.
#[derive(Clone, Default)]
pub struct QuestionState(Arc<AtomicBool>);

impl QuestionState {
    /// Ends the question: its reader stops.
    pub fn close(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Asks one question (`elicitation/create`) and returns its answer.
pub fn ask_question(
    params: &Value,
    console: &mut dyn ApproverConsole,
    state: &QuestionState,
) -> Result<Value> {
    let mut asker = QuestionAsker { console, state };
    let message = params["message"].as_str().unwrap_or_default();
    asker.show(&format!("\n{}\n", visible::escape_lines(message.trim_end())))?;
    asker.console.discard_input();
    let answer = match params["mode"].as_str() {
        Some("url") => asker.ask_for_visit(params["url"].as_str().unwrap_or_default()),
        _ => asker.ask_form(&params["requestedSchema"]),
    };
    match answer {
        Ok(answer) => Ok(answer),
        // The end of input closes the question, as closing a dialog does.
        Err(error) if error.reason_name() == Some("end_of_input") => {
            Ok(json!({"action": "cancel"}))
        }
        Err(error) => Err(error),
    }
}

struct QuestionAsker<'a> {
    console: &'a mut dyn ApproverConsole,
    state: &'a QuestionState,
}

/// One of the values that a field offers.
struct FieldChoice {
    value: Value,
    label: String,
}

impl QuestionAsker<'_> {
    fn show(&mut self, text: &str) -> Result<()> {
        self.console.show_message(text)
    }

    /// Shows a prompt and returns the line that was typed, without white space around it.
    fn prompt(&mut self, prompt: &str) -> Result<String> {
        self.show(prompt)?;
        loop {
            if self.state.is_closed() {
                return Err(Error::new(Kind::Cancelled, "the question was withdrawn"));
            }
            match self.console.read_line(POLL_INTERVAL)? {
                Some(line) if line.is_empty() => {
                    return Err(
                        Error::new(Kind::Cancelled, "the input ended").with_reason("end_of_input")
                    );
                }
                Some(line) => return Ok(line.trim().to_owned()),
                None => {}
            }
        }
    }

    /// Asks until the answer is yes or no.
    fn confirm(&mut self, yes: &str) -> Result<bool> {
        loop {
            let line = self.prompt(&format!("[y] {yes}  [n] Decline: "))?;
            match line.to_ascii_lowercase().as_str() {
                "y" | "yes" => return Ok(true),
                "n" | "no" => return Ok(false),
                _ => {}
            }
        }
    }

    fn ask_for_visit(&mut self, url: &str) -> Result<Value> {
        self.show(&format!(
            "Open this address in a browser, if you trust it:\n  {}\n",
            visible::escape_to_line(url)
        ))?;
        Ok(match self.confirm("Continue")? {
            true => json!({"action": "accept"}),
            false => decline(),
        })
    }

    fn ask_form(&mut self, schema: &Value) -> Result<Value> {
        let empty = Map::new();
        let fields = schema["properties"].as_object().unwrap_or(&empty);
        let choices = match fields.iter().next() {
            Some((_, field)) if fields.len() == 1 && field["type"] != "array" => {
                list_choices(field)
            }
            _ => Vec::new(),
        };
        if let (Some((name, _)), false) = (fields.iter().next(), choices.is_empty()) {
            return Ok(match self.ask_choice(&choices)? {
                Some(value) => json!({"action": "accept", "content": {name: value}}),
                None => decline(),
            });
        }
        if !self.confirm(if fields.is_empty() { "Accept" } else { "Answer" })? {
            return Ok(decline());
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut content = Map::new();
        for (name, field) in fields {
            if let Some(value) = self.ask_field(name, field, required.contains(&name.as_str()))? {
                content.insert(name.clone(), value);
            }
        }
        Ok(json!({"action": "accept", "content": content}))
    }

    /// Asks for one of the choices, by number or by name; `None` declines.
    fn ask_choice(&mut self, choices: &[FieldChoice]) -> Result<Option<Value>> {
        let labels: String = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| format!("[{}] {}  ", index + 1, choice.label))
            .collect();
        loop {
            let line = self.prompt(&format!("{labels}[n] Decline: "))?;
            if matches!(line.to_ascii_lowercase().as_str(), "n" | "no") {
                return Ok(None);
            }
            if let Some(value) = pick_choice(choices, &line) {
                return Ok(Some(value));
            }
        }
    }

    /// Asks for one field until its value is of the right type; `None` leaves it out.
    fn ask_field(&mut self, name: &str, field: &Value, is_required: bool) -> Result<Option<Value>> {
        let items = if field["type"] == "array" { &field["items"] } else { field };
        let choices = list_choices(items);
        let prompt = format_field(name, field, &choices, is_required);
        loop {
            let line = self.prompt(&prompt)?;
            if line.is_empty() {
                match (field.get("default"), is_required) {
                    (Some(default), _) => return Ok(Some(default.clone())),
                    (None, false) => return Ok(None),
                    (None, true) => continue,
                }
            }
            match convert_field(&line, field, &choices) {
                Some(value) => return Ok(Some(value)),
                None => self.show("That value does not fit.\n")?,
            }
        }
    }
}

fn decline() -> Value {
    json!({"action": "decline"})
}

/// Returns the values of an `enum`, or of constants with titles.
fn list_choices(field: &Value) -> Vec<FieldChoice> {
    let label = |name: &Value| {
        visible::escape_to_line(&name.as_str().map_or_else(|| name.to_string(), str::to_owned))
    };
    if let Some(values) = field["enum"].as_array() {
        let names = &field["enumNames"];
        return values
            .iter()
            .enumerate()
            .map(|(index, value)| FieldChoice {
                label: label(names.get(index).unwrap_or(value)),
                value: value.clone(),
            })
            .collect();
    }
    let constants = ["oneOf", "anyOf"].iter().find_map(|key| field[*key].as_array());
    let choice = |constant: &Value| {
        let value = constant.get("const")?.clone();
        Some(FieldChoice { label: label(constant.get("title").unwrap_or(&value)), value })
    };
    constants.into_iter().flatten().filter_map(choice).collect()
}

fn pick_choice(choices: &[FieldChoice], text: &str) -> Option<Value> {
    let by_number = || choices.get(text.parse::<usize>().ok()?.checked_sub(1)?);
    let by_name = || choices.iter().find(|choice| choice.value == text);
    by_name().or_else(by_number).map(|choice| choice.value.clone())
}

fn format_field(name: &str, field: &Value, choices: &[FieldChoice], is_required: bool) -> String {
    let mut prompt = visible::escape_to_line(field["title"].as_str().unwrap_or(name));
    if let Some(description) = field["description"].as_str() {
        prompt.push_str(&format!(" ({})", visible::escape_to_line(description)));
    }
    for (index, choice) in choices.iter().enumerate() {
        prompt.push_str(&format!("\n  [{}] {}", index + 1, choice.label));
    }
    if !choices.is_empty() {
        prompt.push('\n');
    }
    match (field.get("default"), is_required) {
        (Some(default), _) => {
            prompt.push_str(&format!(" [{}]", visible::escape_to_line(&default.to_string())))
        }
        (None, true) => {}
        (None, false) => prompt.push_str(" [leave out]"),
    }
    format!("{prompt}: ")
}

fn convert_field(line: &str, field: &Value, choices: &[FieldChoice]) -> Option<Value> {
    match (field["type"].as_str(), choices.is_empty()) {
        (Some("array"), _) => {
            let parts = line.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts
                .map(|part| pick_choice(choices, part))
                .collect::<Option<Vec<_>>>()
                .map(Value::from)
        }
        (_, false) => pick_choice(choices, line),
        (Some("boolean"), true) => match line.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => Some(Value::Bool(true)),
            "n" | "no" | "false" => Some(Value::Bool(false)),
            _ => None,
        },
        (Some("integer"), true) => line.parse::<i64>().ok().map(Value::from),
        (Some("number"), true) => serde_json::from_str::<Value>(line).ok().filter(Value::is_number),
        _ => Some(Value::from(line)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A person who types these lines; the end of the script is the end of input.
    struct TypingPerson {
        lines: VecDeque<&'static str>,
        seen: String,
    }

    impl ApproverConsole for TypingPerson {
        fn is_interactive(&self) -> bool {
            true
        }

        fn show_message(&mut self, text: &str) -> Result<()> {
            self.seen.push_str(text);
            Ok(())
        }

        fn print_output(&mut self, text: &str) -> Result<()> {
            self.show_message(text)
        }

        fn discard_input(&mut self) {
            self.seen.push_str("<flush>");
        }

        fn read_line(&mut self, _timeout: Duration) -> Result<Option<String>> {
            Ok(Some(self.lines.pop_front().map(|line| format!("{line}\n")).unwrap_or_default()))
        }
    }

    fn ask(params: &Value, lines: &[&'static str]) -> (Value, String) {
        let mut person =
            TypingPerson { lines: lines.iter().copied().collect(), seen: String::new() };
        let answer = ask_question(params, &mut person, &QuestionState::default()).unwrap();
        assert!(
            person.seen.contains("<flush>") && !person.seen.contains('\u{1b}'),
            "{}",
            person.seen
        );
        (answer, person.seen)
    }

    #[test]
    fn an_approval_needs_more_than_enter() {
        let approval = json!({"message": "Allow \u{1b}[8m`x`?", "requestedSchema": {"type": "object", "properties": {
            "choice": {"type": "string", "enum": ["once", "session"], "enumNames": ["Allow once", "Allow for this session"], "default": "once"}
        }}});
        let (answer, seen) = ask(&approval, &["", "7", "y", "1"]);
        assert_eq!(answer, json!({"action": "accept", "content": {"choice": "once"}}));
        assert!(
            seen.contains("[1] Allow once  [2] Allow for this session  [n] Decline: "),
            "{seen}"
        );
        assert_eq!(ask(&approval, &["session"]).0["content"]["choice"], "session");
        assert_eq!(ask(&approval, &["n"]).0, json!({"action": "decline"}));
        assert_eq!(ask(&approval, &[""]).0, json!({"action": "cancel"}));
        let empty =
            json!({"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}});
        assert_eq!(ask(&empty, &["", "y"]).0, json!({"action": "accept", "content": {}}));
    }

    #[test]
    fn a_form_is_filled_in_field_by_field() {
        let form = json!({"message": "Who?", "requestedSchema": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "title": "Name", "description": "In full"},
            "age": {"type": "integer"},
            "ok": {"type": "boolean", "default": true},
            "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
        }}});
        let (answer, seen) = ask(&form, &["y", "", "Ann", "old", "41", "", "2", "1, c"]);
        let content =
            json!({"name": "Ann", "age": 41, "ok": true, "size": "l", "tags": ["a", "c"]});
        assert_eq!(answer, json!({"action": "accept", "content": content}));
        assert!(seen.contains("Name (In full): ") && seen.contains("does not fit"), "{seen}");
        assert_eq!(
            ask(&form, &["y", "Ann", "", "", "", ""]).0["content"],
            json!({"name": "Ann", "ok": true})
        );
        assert_eq!(ask(&form, &["no"]).0, decline());
        assert_eq!(ask(&form, &["y", "Ann"]).0, json!({"action": "cancel"}));
    }

    #[test]
    fn an_address_is_shown_and_not_opened() {
        let visit =
            json!({"mode": "url", "message": "Log in", "url": "https://example.com/?a=\u{202e}b"});
        let (answer, seen) = ask(&visit, &["y"]);
        assert_eq!(answer, json!({"action": "accept"}));
        assert!(seen.contains("https://example.com/?a=\\u{202e}b"), "{seen}");
    }

    #[test]
    fn a_question_that_was_withdrawn_is_not_answered() {
        let mut person = TypingPerson { lines: ["y"].into(), seen: String::new() };
        let state = QuestionState::default();
        state.close();
        assert!(ask_question(&json!({"message": "?"}), &mut person, &state).is_err());
        assert_eq!(person.lines.len(), 1);
    }
}
