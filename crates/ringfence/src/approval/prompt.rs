//! The words of a question. They show everything that decides, and nothing that is secret.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::call::Prepared;
use crate::session::Session;

/// One question to a human. It is data, so that every asker shows the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Prompt {
    pub id: String,
    pub trace_id: String,
    pub tool: String,
    pub description: String,
    pub why: String,
    pub principal: String,
    pub session: String,
    pub workspace: String,
    pub cwd: String,
    #[serde(default)]
    pub env: Vec<String>,
    pub profile: String,
    pub effects: Vec<String>,
    pub arguments: Value,
    pub expires_unix_ms: u64,
}

impl Prompt {
    pub fn of(call: &Prepared, why: &str, session: &Session) -> Self {
        Prompt {
            id: crate::base::ids::short("a"),
            trace_id: call.trace_id.to_string(),
            tool: call.tool.clone(),
            description: call.description.clone(),
            why: why.to_owned(),
            principal: session.principal.name().to_owned(),
            session: session.id.clone(),
            workspace: session.workspace.display(),
            cwd: call.cwd.clone(),
            env: call.shown_env.clone(),
            profile: call.profile.to_owned(),
            effects: call.effects.iter().map(|effect| (*effect).to_owned()).collect(),
            arguments: call.shown_arguments.clone(),
            expires_unix_ms: 0,
        }
    }

    /// A question about one step of a running call: the call's own words, with what this step would do.
    pub fn step(call: &Prepared, why: &str, arguments: Value, session: &Session) -> Self {
        Prompt { arguments, ..Prompt::of(call, why, session) }
    }

    /// The question as text: the first line alone is enough to decide in a hurry.
    pub fn text(&self) -> String {
        let mut text = format!("Allow `{}`? {}\n", one_line(&self.tool), one_line(&self.why));
        let mut line = |name: &str, value: &str| {
            if !value.is_empty() {
                text.push_str(&format!("{name}: {}\n", one_line(value)));
            }
        };
        match &self.arguments {
            Value::Object(map) => {
                // The environment has a line of its own below, with what is added to it.
                for (name, value) in map.iter().filter(|(name, _)| *name != "env" || self.env.is_empty()) {
                    match value {
                        Value::String(value) => line(name, value),
                        other => line(name, &other.to_string()),
                    }
                }
            }
            other => line("arguments", &other.to_string()),
        }
        line("cwd", &self.cwd);
        line("env", &self.env.join(" "));
        line("sandbox", &self.profile);
        line("side effects", &self.effects.join(", "));
        let (about, _) = self.description.split_once(". ").unwrap_or((&self.description, ""));
        line("tool", about);
        line("who", &format!("{} in session {}, workspace {}", self.principal, self.session, self.workspace));
        line("trace", &self.trace_id);
        text
    }

    /// The elicitation that current Codex really shows: an empty form without a title. It turns into Allow,
    /// Allow for this session, Deny; we never offer "always".
    pub fn elicitation(&self) -> Value {
        json!({
            "mode": "form",
            "message": self.text(),
            "requestedSchema": {"type": "object", "properties": {}},
            "_meta": {"persist": ["session"]},
        })
    }
}

/// Control characters could redraw a terminal or hide a line of the question, and so could bidi overrides.
fn one_line(value: &str) -> String {
    let mut text = String::new();
    for c in value.chars().take(2000) {
        match c {
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c if c.is_control() || is_invisible(c) => text.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => text.push(c),
        }
    }
    if value.chars().nth(2000).is_some() {
        text.push_str(" … [cut]");
    }
    text
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_cannot_be_redrawn_by_its_arguments() {
        let shown = one_line("ls\u{1b}[2K\rrm -rf ~\u{202e}\nAllow");
        assert_eq!(shown, "ls\\u{1b}[2K\\u{d}rm -rf ~\\u{202e}\\nAllow");
        assert!(one_line(&"x".repeat(3000)).ends_with("[cut]"));
    }
}
