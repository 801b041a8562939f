//! Converts key names and characters to key events.

use serde_json::{Value, json};

use crate::base::nearest::nearest;
use crate::base::{Error, Result};

/// Key: name, code, virtual key code, and the text it produces.
struct Key(&'static str, &'static str, u32, &'static str);

const KEYS: &[Key] = &[
    Key("Enter", "Enter", 13, "\r"),
    Key("Tab", "Tab", 9, ""),
    Key("Escape", "Escape", 27, ""),
    Key("Backspace", "Backspace", 8, ""),
    Key("Delete", "Delete", 46, ""),
    Key("Insert", "Insert", 45, ""),
    Key("Home", "Home", 36, ""),
    Key("End", "End", 35, ""),
    Key("PageUp", "PageUp", 33, ""),
    Key("PageDown", "PageDown", 34, ""),
    Key("ArrowUp", "ArrowUp", 38, ""),
    Key("ArrowDown", "ArrowDown", 40, ""),
    Key("ArrowLeft", "ArrowLeft", 37, ""),
    Key("ArrowRight", "ArrowRight", 39, ""),
    Key("Space", "Space", 32, " "),
    Key("F1", "F1", 112, ""),
    Key("F2", "F2", 113, ""),
    Key("F3", "F3", 114, ""),
    Key("F4", "F4", 115, ""),
    Key("F5", "F5", 116, ""),
    Key("F6", "F6", 117, ""),
    Key("F7", "F7", 118, ""),
    Key("F8", "F8", 119, ""),
    Key("F9", "F9", 120, ""),
    Key("F10", "F10", 121, ""),
    Key("F11", "F11", 122, ""),
    Key("F12", "F12", 123, ""),
    Key("Shift", "ShiftLeft", 16, ""),
    Key("Control", "ControlLeft", 17, ""),
    Key("Alt", "AltLeft", 18, ""),
    Key("Meta", "MetaLeft", 91, ""),
];

const MODIFIERS: &[(&str, u32)] =
    &[("Alt", 1), ("Control", 2), ("Ctrl", 2), ("Meta", 4), ("Shift", 8)];

/// The two events of a key press: down and up.
#[derive(Debug, PartialEq)]
pub struct Stroke {
    /// Event for pressing the key.
    pub down: Value,
    /// Event for releasing it.
    pub up: Value,
}

/// Parses a key or key combination: `Enter`, `a`, `Control+Shift+K`.
pub fn combination(text: &str) -> Result<Stroke> {
    let (mut modifiers, mut rest) = (0, text);
    while let Some((name, bit, after)) = MODIFIERS.iter().find_map(|(name, bit)| {
        let after = rest.strip_prefix(name)?.strip_prefix('+').filter(|after| !after.is_empty())?;
        Some((name, bit, after))
    }) {
        debug_assert!(!name.is_empty());
        modifiers |= bit;
        rest = after;
    }
    let mut letters = rest.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => Ok(character(letter, modifiers)),
        _ => named(rest, modifiers),
    }
}

fn named(name: &str, modifiers: u32) -> Result<Stroke> {
    let found = KEYS.iter().find(|key| key.0.eq_ignore_ascii_case(name));
    let Key(key, code, number, text) = found.ok_or_else(|| {
        let names: Vec<&str> = KEYS.iter().map(|key| key.0).collect();
        let hint = match nearest(name, &names) {
            Some(near) => format!("Did you mean `{near}`?"),
            None => "Use one character, or a name such as Enter, Tab, Escape, ArrowDown, with Control+ before it."
                .to_owned(),
        };
        Error::invalid_arguments("`key` is not a known key").hint(hint).with("argument", "key")
    })?;
    let key = if *key == "Space" { " " } else { key };
    Ok(stroke(key, code, *number, text, modifiers))
}

/// Returns the key press that produces this character.
pub fn character(letter: char, modifiers: u32) -> Stroke {
    if letter == '\n' || letter == '\r' {
        return stroke("Enter", "Enter", 13, "\r", modifiers);
    }
    if letter == '\t' {
        return stroke("Tab", "Tab", 9, "", modifiers);
    }
    let upper = letter.to_ascii_uppercase();
    let (code, number) = match upper {
        'A'..='Z' => (format!("Key{upper}"), upper as u32),
        '0'..='9' => (format!("Digit{upper}"), upper as u32),
        ' ' => ("Space".to_owned(), 32),
        _ => (String::new(), 0),
    };
    let shift = if letter.is_ascii_uppercase() { modifiers | 8 } else { modifiers };
    stroke(&letter.to_string(), &code, number, &letter.to_string(), shift)
}

fn stroke(key: &str, code: &str, number: u32, text: &str, modifiers: u32) -> Stroke {
    // With Alt, Control or Meta held, a key is a command and produces no text.
    let text = if modifiers & 7 != 0 { "" } else { text };
    let common =
        json!({"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers});
    let (mut down, mut up) = (common.clone(), common);
    down["type"] = json!(if text.is_empty() { "rawKeyDown" } else { "keyDown" });
    if !text.is_empty() {
        down["text"] = json!(text);
    }
    up["type"] = json!("keyUp");
    Stroke { down, up }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_read() {
        let plain = combination("a").unwrap();
        assert_eq!(
            (plain.down["text"].as_str(), plain.down["code"].as_str()),
            (Some("a"), Some("KeyA"))
        );
        let all = combination("Control+Shift+K").unwrap();
        assert_eq!((all.down["modifiers"].as_u64(), all.down.get("text")), (Some(10), None));
        assert_eq!(combination("ctrl+a").unwrap_err().reason_name(), None);
        assert_eq!(combination("Ctrl+a").unwrap().down["modifiers"], 2);
        assert_eq!(combination("enter").unwrap().down["text"], "\r");
        assert_eq!(combination("+").unwrap().down["text"], "+");
        assert_eq!(combination("Control++").unwrap().down["key"], "+");
        assert_eq!(combination("ü").unwrap().down["text"], "ü");
        let wrong = combination("ArowDown").unwrap_err();
        assert_eq!(wrong.hint_text(), Some("Did you mean `ArrowDown`?"));
        assert!(combination("").is_err());
    }
}
