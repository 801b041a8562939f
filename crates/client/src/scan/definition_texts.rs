//! All texts of a server that a model may read: every string at any depth, and every key.

use serde_json::Value;

use crate::lock::LockedServer;

/// Text of a server, with its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerText<'a> {
    /// Tool that has the text, `None` for texts of the server.
    pub(super) tool: Option<&'a str>,
    pub(super) text: &'a str,
    /// A name or key, in which no invisible character has a reason.
    pub(super) is_name: bool,
    pub(super) is_tool_name: bool,
    /// Text about what to pass to a parameter.
    pub(super) is_about_parameter: bool,
}

/// Returns the texts of a server.
pub(super) fn server_texts(server: &LockedServer) -> Vec<ServerText<'_>> {
    let mut texts = Vec::new();
    if let Some(text) = &server.instructions {
        let place = ServerText {
            tool: None,
            text,
            is_name: false,
            is_tool_name: false,
            is_about_parameter: false,
        };
        texts.push(place);
    }
    add_value_texts(None, &server.identity, &mut texts);
    for (name, definition) in &server.tools {
        let place = ServerText {
            tool: Some(name),
            text: name,
            is_name: true,
            is_tool_name: true,
            is_about_parameter: false,
        };
        texts.push(place);
        add_value_texts(Some(name), definition, &mut texts);
    }
    texts
}

/// Adds all strings and keys of a value. A stack of its own keeps deep values from exhausting the
/// one of the thread.
pub(super) fn add_value_texts<'a>(
    tool: Option<&'a str>,
    value: &'a Value,
    texts: &mut Vec<ServerText<'a>>,
) {
    let mut pending = vec![(value, false)];
    while let Some((value, is_about_parameter)) = pending.pop() {
        let place = |text: &'a str, is_name: bool| ServerText {
            tool,
            text,
            is_name,
            is_tool_name: false,
            is_about_parameter,
        };
        match value {
            Value::String(text) => texts.push(place(text, false)),
            Value::Array(items) => {
                pending.extend(items.iter().rev().map(|item| (item, is_about_parameter)));
            }
            Value::Object(members) => {
                texts.extend(members.keys().map(|key| place(key, true)));
                pending.extend(
                    members
                        .iter()
                        .rev()
                        .map(|(key, member)| (member, is_about_parameter || key == "inputSchema")),
                );
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
