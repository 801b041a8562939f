//! How the human behind a client answers.

use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approve {
    Once,
    Session,
    Always,
    /// One of the choices of the form, by its name.
    Choice(&'static str),
    Decline,
    Cancel,
    /// Says nothing; the test answers by itself, or nobody does.
    Never,
}

impl Approve {
    pub fn answer(self) -> Option<Value> {
        let accept = |persist: &str| json!({"action": "accept", "content": {}, "_meta": {"persist": persist}});
        match self {
            Approve::Once => Some(json!({"action": "accept", "content": {}})),
            Approve::Session => Some(accept("session")),
            Approve::Always => Some(accept("always")),
            Approve::Choice(name) => Some(json!({"action": "accept", "content": {"choice": name}})),
            Approve::Decline => Some(json!({"action": "decline"})),
            Approve::Cancel => Some(json!({"action": "cancel"})),
            Approve::Never => None,
        }
    }

    pub fn named(name: &str) -> Approve {
        match name {
            "once" => Approve::Once,
            "session" => Approve::Session,
            "always" => Approve::Always,
            "decline" => Approve::Decline,
            "cancel" => Approve::Cancel,
            "never" => Approve::Never,
            other => panic!("nobody answers `{other}`"),
        }
    }
}
