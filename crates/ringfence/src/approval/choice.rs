//! Answers that a question offers: how a client is asked to choose, and how its choice is
//! interpreted.
//!
//! A `choice` that was not offered is a denial; `persist: session` where the session was not
//! offered allows this one call. A client's answer is untrusted input like any other.

use serde_json::{Value, json};

use super::pending::ApprovalAnswer;
use super::prompt::ApprovalPrompt;

impl ApprovalPrompt {
    /// Returns the ways to approve that this question offers, the narrowest first.
    pub fn offered_answers(&self) -> Vec<ApprovalAnswer> {
        let mut choices = vec![ApprovalAnswer::Once];
        if self.offers_session {
            choices.push(ApprovalAnswer::Session);
        }
        if self.offers_inside {
            choices.push(ApprovalAnswer::Inside);
        }
        choices
    }

    /// Returns the label that a human reads for a choice.
    pub fn answer_label(&self, choice: ApprovalAnswer) -> &'static str {
        match (choice, self.offers_inside) {
            (ApprovalAnswer::Once, false) => "Allow once",
            (ApprovalAnswer::Session, false) => "Allow for this session",
            (ApprovalAnswer::Once, true) => "Run it outside the sandbox, once",
            (ApprovalAnswer::Session, true) => "Run it outside the sandbox, for this session",
            (ApprovalAnswer::Inside, _) => "Run it inside the sandbox",
            (ApprovalAnswer::Deny, _) => "Deny",
        }
    }

    /// Builds the parameters of `elicitation/create`.
    ///
    /// Codex (`has_menu`) turns an empty form into Allow, Allow for this session, Deny. It also
    /// shows a form with a choice, so a question with one more answer uses that. It cancels any
    /// form with a schema-level title without showing it.
    pub fn elicitation_params(&self, has_menu: bool) -> Value {
        if has_menu && !self.offers_inside {
            return json!({
                "mode": "form",
                "message": self.render_text(),
                "requestedSchema": {"type": "object", "properties": {}},
                "_meta": {"persist": ["session"]},
            });
        }
        let choices = self.offered_answers();
        let names: Vec<&str> = choices.iter().map(|choice| choice.name()).collect();
        let titles: Vec<&str> = choices.iter().map(|choice| self.answer_label(*choice)).collect();
        // `enumNames` is in the schema of every protocol version that has forms; `oneOf` came with
        // 2025-11-25.
        let choice = json!({
            "type": "string", "title": "Answer", "enum": names, "enumNames": titles, "default": ApprovalAnswer::Once.name(),
        });
        json!({
            "mode": "form",
            "message": self.render_text(),
            "requestedSchema": {"type": "object", "properties": {"choice": choice}},
        })
    }
}

/// Reads a client's answer to an elicitation. Anything but a clear yes is a denial.
pub(super) fn read_answer(answer: &Value, choices: &[ApprovalAnswer]) -> ApprovalAnswer {
    if answer["action"] != "accept" {
        return ApprovalAnswer::Deny;
    }
    match &answer["content"]["choice"] {
        // Codex returns the choice of its menu outside `content`. We offer "session" only, so
        // "always" means no more than that.
        Value::Null => match answer["_meta"]["persist"].as_str() {
            Some("session" | "always") => ApprovalAnswer::Session,
            _ => ApprovalAnswer::Once,
        },
        Value::String(name) => choices
            .iter()
            .copied()
            .find(|choice| choice.name() == name)
            .unwrap_or(ApprovalAnswer::Deny),
        _ => ApprovalAnswer::Deny,
    }
}

/// Limits an answer to what was offered. An approval for the session that was not offered becomes
/// an approval of this one question.
pub(super) fn limit_to_offered(
    answer: ApprovalAnswer,
    choices: &[ApprovalAnswer],
) -> ApprovalAnswer {
    match answer {
        ApprovalAnswer::Session if !choices.contains(&ApprovalAnswer::Session) => {
            ApprovalAnswer::Once
        }
        ApprovalAnswer::Inside if !choices.contains(&ApprovalAnswer::Inside) => {
            ApprovalAnswer::Deny
        }
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ApprovalAnswer; 3] =
        [ApprovalAnswer::Once, ApprovalAnswer::Session, ApprovalAnswer::Inside];

    #[test]
    fn a_choice_that_was_not_offered_is_a_no() {
        let accept = |content: Value| json!({"action": "accept", "content": content});
        for (content, answer) in [
            (json!({}), ApprovalAnswer::Once),
            (json!(null), ApprovalAnswer::Once),
            (json!({"choice": null}), ApprovalAnswer::Once),
            (json!({"choice": "once"}), ApprovalAnswer::Once),
            (json!({"choice": "session"}), ApprovalAnswer::Session),
            (json!({"choice": "inside"}), ApprovalAnswer::Inside),
            (json!({"choice": "deny"}), ApprovalAnswer::Deny),
            (json!({"choice": "always"}), ApprovalAnswer::Deny),
            (json!({"choice": "Once"}), ApprovalAnswer::Deny),
            (json!({"choice": ""}), ApprovalAnswer::Deny),
            (json!({"choice": ["once"]}), ApprovalAnswer::Deny),
            (json!({"choice": true}), ApprovalAnswer::Deny),
        ] {
            assert_eq!(read_answer(&accept(content.clone()), &ALL), answer, "{content}");
        }
        for name in ["session", "inside"] {
            assert_eq!(
                read_answer(&accept(json!({"choice": name})), &[ApprovalAnswer::Once]),
                ApprovalAnswer::Deny,
                "{name}"
            );
        }
        for action in ["decline", "cancel", "Accept", ""] {
            let answer = json!({"action": action, "content": {"choice": "once"}, "_meta": {"persist": "session"}});
            assert_eq!(read_answer(&answer, &ALL), ApprovalAnswer::Deny, "{action}");
        }
    }

    #[test]
    fn a_choice_in_the_form_decides_over_persist() {
        let answer = |choice: Value| json!({"action": "accept", "content": {"choice": choice}, "_meta": {"persist": "session"}});
        assert_eq!(read_answer(&answer(json!("inside")), &ALL), ApprovalAnswer::Inside);
        assert_eq!(read_answer(&answer(json!("once")), &ALL), ApprovalAnswer::Once);
        assert_eq!(read_answer(&answer(json!(null)), &ALL), ApprovalAnswer::Session);
        assert_eq!(
            limit_to_offered(ApprovalAnswer::Session, &[ApprovalAnswer::Once]),
            ApprovalAnswer::Once
        );
        assert_eq!(
            limit_to_offered(
                ApprovalAnswer::Inside,
                &[ApprovalAnswer::Once, ApprovalAnswer::Session]
            ),
            ApprovalAnswer::Deny
        );
    }
}
