//! The words of a question. They show everything that decides, and nothing that is secret.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::call::Prepared;
use crate::base::known;
use crate::session::Session;

/// One question to a human. It is data, so that every asker shows the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Prompt {
    pub id: String,
    pub trace_id: String,
    pub tool: String,
    /// What is asked about, where it is less than the whole call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub description: String,
    pub why: String,
    pub principal: String,
    pub session: String,
    pub workspace: String,
    /// What would be run, where the arguments do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub cwd: String,
    #[serde(default)]
    pub env: Vec<String>,
    pub profile: String,
    pub effects: Vec<String>,
    pub arguments: Value,
    /// The answer can be kept for the session. The gate sets it: a call without a session that lasts keeps nothing.
    #[serde(default)]
    pub offers_session: bool,
    /// The question is about a command that would leave the sandbox, and "run it inside" is one of the answers.
    #[serde(default)]
    pub offers_inside: bool,
    pub expires_unix_ms: u64,
}

impl Prompt {
    pub fn of(call: &Prepared, why: &str, session: &Session) -> Self {
        Prompt {
            id: crate::base::ids::short("a"),
            trace_id: call.trace_id.to_string(),
            tool: call.tool.clone(),
            subject: None,
            description: call.description.clone(),
            why: why.to_owned(),
            principal: session.principal.name().to_owned(),
            session: session.id.clone(),
            workspace: session.workspace.display(),
            command: call.shown_command.clone(),
            cwd: call.cwd.clone(),
            env: call.shown_env.clone(),
            profile: call.profile.to_owned(),
            effects: call.effects.iter().map(|effect| (*effect).to_owned()).collect(),
            arguments: call.shown_arguments.clone(),
            offers_session: false,
            offers_inside: false,
            expires_unix_ms: 0,
        }
    }

    /// A question about one step of a running call: the call's own words, with what this step would do.
    pub fn step(call: &Prepared, why: &str, arguments: Value, session: &Session) -> Self {
        Prompt { arguments, ..Prompt::of(call, why, session) }
    }

    /// A question about one program that a call wants to start. It shows what decides about that program, and not what
    /// the call as a whole was given.
    pub fn exec(call: &Prepared, subject: String, why: &str, arguments: Value, session: &Session) -> Self {
        let whole = Prompt::step(call, why, arguments, session);
        Prompt {
            subject: Some(subject),
            command: None,
            cwd: String::new(),
            env: Vec::new(),
            profile: String::new(),
            effects: Vec::new(),
            ..whole
        }
    }

    /// Without the values of secrets, whoever put them in.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        for text in [&mut self.tool, &mut self.description, &mut self.why, &mut self.cwd, &mut self.workspace]
            .into_iter()
            .chain(&mut self.subject)
            .chain(&mut self.command)
            .chain(&mut self.env)
            .chain(&mut self.effects)
        {
            known::redact_text(text);
        }
        known::redact_value(&mut self.arguments);
        self
    }

    /// What it is called in an answer.
    pub fn name(&self) -> &str {
        self.subject.as_deref().unwrap_or(&self.tool)
    }

    /// The question as text: the first line alone is enough to decide in a hurry.
    pub fn text(&self) -> String {
        let first = format!("Allow `{}`? {}\n", one_line(self.name()), one_line(&self.why));
        let (own, arguments) = (self.own_lines(), self.argument_lines());
        // What is given comes first where it is all there is to see. Where we know what will run, that comes first: the
        // rest is words of the caller's choice, names included.
        match self.command {
            Some(_) => first + &own + &arguments,
            None => first + &arguments + &own,
        }
    }

    fn own_lines(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            if !value.is_empty() {
                text.push_str(&labelled(name, value));
            }
        };
        line("runs", self.command.as_deref().unwrap_or_default());
        line("cwd", &self.cwd);
        line("whole environment", &self.env.join(" "));
        line("sandbox", &self.profile);
        line("side effects", &self.effects.join(", "));
        if self.subject.is_some() {
            line("started by", &self.tool);
        }
        let (about, _) = self.description.split_once(". ").unwrap_or((&self.description, ""));
        line("tool", about);
        line("who", &format!("{} in session {}, workspace {}", self.principal, self.session, self.workspace));
        line("trace", &self.trace_id);
        text
    }

    fn argument_lines(&self) -> String {
        let Value::Object(arguments) = &self.arguments else { return String::new() };
        let mut text = String::new();
        let mut left = 0;
        let mut line = |name: &str, value: &str| {
            // None may pass for a line of ours. About one program we say everything ourselves.
            let is_ours = self.subject.is_none() && OURS.iter().any(|ours| name.trim().eq_ignore_ascii_case(ours));
            match text.len() < ARGUMENTS {
                true if is_ours || self.command.is_some() => {
                    text.push_str(&labelled(&format!("argument {name:?}"), value))
                }
                true => text.push_str(&labelled(name, value)),
                false => left += 1,
            }
        };
        for (name, value) in arguments {
            match value {
                Value::String(value) => line(name, value),
                // One by one, so that none can hide among the others.
                Value::Object(members) => {
                    for (member, value) in members {
                        line(&format!("{name} {member}"), value.as_str().unwrap_or(&value.to_string()));
                    }
                }
                other => line(name, &other.to_string()),
            }
        }
        if left > 0 {
            text.push_str(&format!("[{left} MORE ARGUMENTS ARE NOT SHOWN HERE]\n"));
        }
        text
    }
}

/// More than any prompt shows of one value, of which the end counts as much as the beginning.
const LONGEST: usize = 20_000;
const END: usize = 4_000;

/// Bytes of arguments after which the rest is only counted.
const ARGUMENTS: usize = 64 << 10;

/// The names of our own lines.
const OURS: [&str; 9] =
    ["runs", "cwd", "whole environment", "sandbox", "side effects", "started by", "tool", "who", "trace"];

/// A value under its name. Lines of the value are set in, so that none can pass for a line of the question.
fn labelled(name: &str, value: &str) -> String {
    let name = one_line(name);
    match value.trim_end_matches('\n').contains('\n') {
        false => format!("{name}: {}\n", one_line(value)),
        true => {
            let lines: String = value.lines().map(|line| format!("    | {}\n", one_line(line))).collect();
            format!("{name}:\n{lines}")
        }
    }
}

/// Control characters could redraw a terminal or hide a line of the question, and so could bidi overrides; a run of
/// spaces could push the rest out of sight.
fn one_line(value: &str) -> String {
    const SPACES: usize = 16;
    let value = value.trim_end_matches('\n');
    let count = value.chars().count();
    if count > LONGEST {
        let beginning: String = value.chars().take(LONGEST - END).collect();
        let end: String = value.chars().skip(count - END).collect();
        return format!(
            "{} … [{} CHARACTERS ARE NOT SHOWN HERE] … {}",
            one_line(&beginning),
            count - LONGEST,
            one_line(&end)
        );
    }
    let mut text = String::new();
    let mut spaces = 0;
    for c in value.chars().chain(['\0']) {
        if c == ' ' {
            spaces += 1;
            continue;
        }
        match std::mem::take(&mut spaces) {
            many @ SPACES.. => text.push_str(&format!(" [{many} spaces] ")),
            few => text.push_str(&" ".repeat(few)),
        }
        match c {
            '\0' => {}
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c if c.is_control() || is_invisible(c) => text.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_cannot_be_redrawn_by_its_arguments() {
        let shown = one_line("ls\u{1b}[2K\rrm -rf ~\u{202e}\nAllow");
        assert_eq!(shown, "ls\\u{1b}[2K\\u{d}rm -rf ~\\u{202e}\\nAllow");
        let long = one_line(&format!("{}{}", "x".repeat(LONGEST), "the end"));
        assert!(long.contains("[7 CHARACTERS ARE NOT SHOWN HERE]") && long.ends_with("the end"), "{long}");
        assert_eq!(one_line(&format!("make{};evil", " ".repeat(2100))), "make [2100 spaces] ;evil");
        assert_eq!(one_line("a\u{e0041}\u{2800}b\0"), "a\\u{e0041}\\u{2800}b");
        assert_eq!(
            labelled("command", "echo ok # note\nrm -rf x\n"),
            "command:\n    | echo ok # note\n    | rm -rf x\n"
        );
        assert_eq!(labelled("command", "echo 'a\\nb'"), "command: echo 'a\\nb'\n");
    }
}
