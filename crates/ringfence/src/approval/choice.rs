//! Answers that a question offers: how a client is asked to choose, and how its choice is
//! interpreted.
//!
//! Anything that was not offered is a denial. A client's answer is untrusted input like any other.

use serde_json::{Value, json};

use super::pending::Answer;
use super::prompt::Prompt;

impl Prompt {
    /// Returns the ways to approve that this question offers, the narrowest first.
    pub fn choices(&self) -> Vec<Answer> {
        let mut choices = vec![Answer::Once];
        if self.offers_session {
            choices.push(Answer::Session);
        }
        if self.offers_inside {
            choices.push(Answer::Inside);
        }
        choices
    }

    /// Returns the label that a human reads for a choice.
    pub fn choice_title(&self, choice: Answer) -> &'static str {
        match (choice, self.offers_inside) {
            (Answer::Once, false) => "Allow once",
            (Answer::Session, false) => "Allow for this session",
            (Answer::Once, true) => "Run it outside the sandbox, once",
            (Answer::Session, true) => "Run it outside the sandbox, for this session",
            (Answer::Inside, _) => "Run it inside the sandbox",
            (Answer::Deny, _) => "Deny",
        }
    }

    /// Builds the parameters of `elicitation/create`.
    ///
    /// Codex (`has_menu`) turns an empty form into Allow, Allow for this session, Deny. It also
    /// shows a form with a choice, so a question with one more answer uses that. It cancels any
    /// form with a schema-level title without showing it.
    pub fn elicitation(&self, has_menu: bool) -> Value {
        if has_menu && !self.offers_inside {
            return json!({
                "mode": "form",
                "message": self.text(),
                "requestedSchema": {"type": "object", "properties": {}},
                "_meta": {"persist": ["session"]},
            });
        }
        let choices = self.choices();
        let names: Vec<&str> = choices.iter().map(|choice| choice.name()).collect();
        let titles: Vec<&str> = choices.iter().map(|choice| self.choice_title(*choice)).collect();
        // `enumNames` is in the schema of every protocol version that has forms; `oneOf` came with
        // 2025-11-25.
        let choice = json!({
            "type": "string", "title": "Answer", "enum": names, "enumNames": titles, "default": Answer::Once.name(),
        });
        json!({
            "mode": "form",
            "message": self.text(),
            "requestedSchema": {"type": "object", "properties": {"choice": choice}},
        })
    }
}

/// Reads a client's answer to an elicitation. Anything but a clear yes is a denial.
pub(super) fn read_answer(answer: &Value, choices: &[Answer]) -> Answer {
    if answer["action"] != "accept" {
        return Answer::Deny;
    }
    match &answer["content"]["choice"] {
        // Codex returns the choice of its menu outside `content`. We offer "session" only, so
        // "always" means no more than that.
        Value::Null => match answer["_meta"]["persist"].as_str() {
            Some("session" | "always") => Answer::Session,
            _ => Answer::Once,
        },
        Value::String(name) => {
            choices.iter().copied().find(|choice| choice.name() == name).unwrap_or(Answer::Deny)
        }
        _ => Answer::Deny,
    }
}

/// Limits an answer to what was offered. An approval for the session that was not offered becomes
/// an approval of this one question.
pub(super) fn settle(answer: Answer, choices: &[Answer]) -> Answer {
    match answer {
        Answer::Session if !choices.contains(&Answer::Session) => Answer::Once,
        Answer::Inside if !choices.contains(&Answer::Inside) => Answer::Deny,
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Answer; 3] = [Answer::Once, Answer::Session, Answer::Inside];

    #[test]
    fn a_choice_that_was_not_offered_is_a_no() {
        let accept = |content: Value| json!({"action": "accept", "content": content});
        for (content, answer) in [
            (json!({}), Answer::Once),
            (json!(null), Answer::Once),
            (json!({"choice": null}), Answer::Once),
            (json!({"choice": "once"}), Answer::Once),
            (json!({"choice": "session"}), Answer::Session),
            (json!({"choice": "inside"}), Answer::Inside),
            (json!({"choice": "deny"}), Answer::Deny),
            (json!({"choice": "always"}), Answer::Deny),
            (json!({"choice": "Once"}), Answer::Deny),
            (json!({"choice": ""}), Answer::Deny),
            (json!({"choice": ["once"]}), Answer::Deny),
            (json!({"choice": true}), Answer::Deny),
        ] {
            assert_eq!(read_answer(&accept(content.clone()), &ALL), answer, "{content}");
        }
        for name in ["session", "inside"] {
            assert_eq!(
                read_answer(&accept(json!({"choice": name})), &[Answer::Once]),
                Answer::Deny,
                "{name}"
            );
        }
        for action in ["decline", "cancel", "Accept", ""] {
            let answer = json!({"action": action, "content": {"choice": "once"}, "_meta": {"persist": "session"}});
            assert_eq!(read_answer(&answer, &ALL), Answer::Deny, "{action}");
        }
    }

    #[test]
    fn a_choice_in_the_form_decides_over_persist() {
        let answer = |choice: Value| json!({"action": "accept", "content": {"choice": choice}, "_meta": {"persist": "session"}});
        assert_eq!(read_answer(&answer(json!("inside")), &ALL), Answer::Inside);
        assert_eq!(read_answer(&answer(json!("once")), &ALL), Answer::Once);
        assert_eq!(read_answer(&answer(json!(null)), &ALL), Answer::Session);
        assert_eq!(settle(Answer::Session, &[Answer::Once]), Answer::Once);
        assert_eq!(settle(Answer::Inside, &[Answer::Once, Answer::Session]), Answer::Deny);
    }
}
