//! Copies of images in the texts of a result. A model would read them as text, at a high price.

use std::collections::HashSet;

use serde_json::Value;

use crate::base::call::{OutputBlock, ToolOutput};

/// Shorter data is not looked for.
const MIN_CHARS: usize = 1_000;
const REPLACEMENT: &str = "[see the image]";

/// Data of the images of one result, in base64.
#[derive(Default)]
pub struct RepeatedMedia(HashSet<String>);

impl RepeatedMedia {
    /// Adds the data of an image.
    pub fn add(&mut self, data: &str) {
        if data.len() >= MIN_CHARS {
            self.0.insert(data.to_owned());
        }
    }

    /// Removes copies from texts and structured content.
    pub fn remove_copies(&self, output: &mut ToolOutput) {
        if self.0.is_empty() {
            return;
        }
        for block in &mut output.content {
            if let OutputBlock::Text(text) = block {
                self.shorten_text(text);
            }
        }
        output.structured.iter_mut().for_each(|value| self.shorten_value(value));
    }

    fn shorten_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.shorten_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.shorten_value(item)),
            Value::Object(members) => {
                members.values_mut().for_each(|member| self.shorten_value(member));
            }
            _ => {}
        }
    }

    /// Compares each stretch of base64 as a whole, so that the time does not grow with the number of
    /// images.
    fn shorten_text(&self, text: &mut String) {
        if text.len() < MIN_CHARS {
            return;
        }
        let mut shortened = String::new();
        let mut copied = 0;
        let mut start = 0;
        for (end, byte) in text.bytes().chain([b' ']).enumerate() {
            if is_base64(byte) {
                continue;
            }
            if end - start >= MIN_CHARS && self.0.contains(&text[start..end]) {
                shortened.push_str(&text[copied..start]);
                shortened.push_str(REPLACEMENT);
                copied = end;
            }
            start = end + 1;
        }
        if copied > 0 {
            shortened.push_str(&text[copied..]);
            *text = shortened;
        }
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shorten(media: &[&str], text: &str) -> String {
        let mut repeated = RepeatedMedia::default();
        media.iter().for_each(|data| repeated.add(data));
        let mut text = text.to_owned();
        repeated.shorten_text(&mut text);
        text
    }

    #[test]
    fn whole_copies_are_removed_and_nothing_else() {
        let (image, other) = ("A".repeat(1_200), "B".repeat(1_200));
        assert_eq!(shorten(&[&image], &image), REPLACEMENT);
        let text = format!("ä data:image/png;base64,{image}, {other} {image}!");
        let expected = format!("ä data:image/png;base64,{REPLACEMENT}, {other} {REPLACEMENT}!");
        assert_eq!(shorten(&[&image], &text), expected);
        assert_eq!(
            shorten(&[&image, &other], &format!("{image}{other}")),
            format!("{image}{other}")
        );
        let short = "C".repeat(MIN_CHARS - 1);
        assert_eq!(shorten(&[&short], &short), short);
    }
}
