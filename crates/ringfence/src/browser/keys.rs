//! Converts key names and characters to key events.

use serde_json::{Value, json};

use crate::base::suggest::suggest_name;
use crate::base::{Error, Result};

/// Key: name, code, virtual key code, and the text it produces.
struct NamedKey(&'static str, &'static str, u32, &'static str);

const KEYS: &[NamedKey] = &[
    NamedKey("Enter", "Enter", 13, "\r"),
    NamedKey("Tab", "Tab", 9, ""),
    NamedKey("Escape", "Escape", 27, ""),
    NamedKey("Backspace", "Backspace", 8, ""),
    NamedKey("Delete", "Delete", 46, ""),
    NamedKey("Insert", "Insert", 45, ""),
    NamedKey("Home", "Home", 36, ""),
    NamedKey("End", "End", 35, ""),
    NamedKey("PageUp", "PageUp", 33, ""),
    NamedKey("PageDown", "PageDown", 34, ""),
    NamedKey("ArrowUp", "ArrowUp", 38, ""),
    NamedKey("ArrowDown", "ArrowDown", 40, ""),
    NamedKey("ArrowLeft", "ArrowLeft", 37, ""),
    NamedKey("ArrowRight", "ArrowRight", 39, ""),
    NamedKey("Space", "Space", 32, " "),
    NamedKey("F1", "F1", 112, ""),
    NamedKey("F2", "F2", 113, ""),
    NamedKey("F3", "F3", 114, ""),
    NamedKey("F4", "F4", 115, ""),
    NamedKey("F5", "F5", 116, ""),
    NamedKey("F6", "F6", 117, ""),
    NamedKey("F7", "F7", 118, ""),
    NamedKey("F8", "F8", 119, ""),
    NamedKey("F9", "F9", 120, ""),
    NamedKey("F10", "F10", 121, ""),
    NamedKey("F11", "F11", 122, ""),
    NamedKey("F12", "F12", 123, ""),
    NamedKey("Shift", "ShiftLeft", 16, ""),
    NamedKey("Control", "ControlLeft", 17, ""),
    NamedKey("Alt", "AltLeft", 18, ""),
    NamedKey("Meta", "MetaLeft", 91, ""),
];

const MODIFIERS: &[(&str, u32)] =
    &[("Alt", 1), ("Control", 2), ("Ctrl", 2), ("Meta", 4), ("Shift", 8)];

/// The two events of a key press: down and up.
#[derive(Debug, PartialEq)]
pub struct KeyStroke {
    /// Event for pressing the key.
    pub down: Value,
    /// Event for releasing it.
    pub up: Value,
}

/// Parses a key or key combination: `Enter`, `a`, `Control+Shift+K`.
pub fn parse_combination(text: &str) -> Result<KeyStroke> {
    let (mut modifiers, mut rest) = (0, text);
    while let Some((name, bit, remainder)) = MODIFIERS.iter().find_map(|(name, bit)| {
        let remainder =
            rest.strip_prefix(name)?.strip_prefix('+').filter(|remainder| !remainder.is_empty())?;
        Some((name, bit, remainder))
    }) {
        debug_assert!(!name.is_empty());
        modifiers |= bit;
        rest = remainder;
    }
    let mut characters = rest.chars();
    match (characters.next(), characters.next()) {
        (Some(character), None) => Ok(character_stroke(character, modifiers)),
        _ => named_stroke(rest, modifiers),
    }
}

fn named_stroke(name: &str, modifiers: u32) -> Result<KeyStroke> {
    let named_key = KEYS.iter().find(|key| key.0.eq_ignore_ascii_case(name));
    let NamedKey(key, code, key_code, text) = named_key.ok_or_else(|| {
        let names: Vec<&str> = KEYS.iter().map(|key| key.0).collect();
        let hint = match suggest_name(name, &names) {
            Some(suggestion) => format!("Did you mean `{suggestion}`?"),
            None => "Use one character, or a name such as Enter, Tab, Escape, ArrowDown, with Control+ before it."
                .to_owned(),
        };
        Error::invalid_arguments("`key` is not a known key").with_hint(hint).with_fact("argument", "key")
    })?;
    let key = if *key == "Space" { " " } else { key };
    Ok(build_stroke(key, code, *key_code, text, modifiers))
}

/// Returns the key press that produces this character.
pub fn character_stroke(character: char, modifiers: u32) -> KeyStroke {
    if character == '\n' || character == '\r' {
        return build_stroke("Enter", "Enter", 13, "\r", modifiers);
    }
    if character == '\t' {
        return build_stroke("Tab", "Tab", 9, "", modifiers);
    }
    let upper = character.to_ascii_uppercase();
    let (code, key_code) = match upper {
        'A'..='Z' => (format!("Key{upper}"), upper as u32),
        '0'..='9' => (format!("Digit{upper}"), upper as u32),
        ' ' => ("Space".to_owned(), 32),
        _ => (String::new(), 0),
    };
    let shifted_modifiers = if character.is_ascii_uppercase() { modifiers | 8 } else { modifiers };
    build_stroke(&character.to_string(), &code, key_code, &character.to_string(), shifted_modifiers)
}

fn build_stroke(key: &str, code: &str, key_code: u32, text: &str, modifiers: u32) -> KeyStroke {
    // With Alt, Control or Meta held, a key is a command and produces no text.
    let text = if modifiers & 7 != 0 { "" } else { text };
    let common = json!({"key": key, "code": code, "windowsVirtualKeyCode": key_code, "modifiers": modifiers});
    let (mut down, mut up) = (common.clone(), common);
    down["type"] = json!(if text.is_empty() { "rawKeyDown" } else { "keyDown" });
    if !text.is_empty() {
        down["text"] = json!(text);
    }
    up["type"] = json!("keyUp");
    KeyStroke { down, up }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_read() {
        let plain = parse_combination("a").unwrap();
        assert_eq!(
            (plain.down["text"].as_str(), plain.down["code"].as_str()),
            (Some("a"), Some("KeyA"))
        );
        let all = parse_combination("Control+Shift+K").unwrap();
        assert_eq!((all.down["modifiers"].as_u64(), all.down.get("text")), (Some(10), None));
        assert_eq!(parse_combination("ctrl+a").unwrap_err().reason_name(), None);
        assert_eq!(parse_combination("Ctrl+a").unwrap().down["modifiers"], 2);
        assert_eq!(parse_combination("enter").unwrap().down["text"], "\r");
        assert_eq!(parse_combination("+").unwrap().down["text"], "+");
        assert_eq!(parse_combination("Control++").unwrap().down["key"], "+");
        assert_eq!(parse_combination("ü").unwrap().down["text"], "ü");
        let wrong = parse_combination("ArowDown").unwrap_err();
        assert_eq!(wrong.hint_text(), Some("Did you mean `ArrowDown`?"));
        assert!(parse_combination("").is_err());
    }
}
