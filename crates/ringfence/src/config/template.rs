//! Templates of a command's arguments and variables: text, `{argument}` of the call, and `${VAR}`
//! or `${secret:NAME}`.

pub mod fill;

use crate::config::secrets::SecretRef;

/// Part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePart {
    Text(String),
    /// An argument of the call.
    Argument(String),
    /// Reference to a value that must not be shown.
    Secret(SecretRef),
}

/// Template of one argument. It never becomes more than one, unless it is a list from the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueTemplate {
    /// As written in the file, and safe to show.
    pub text: String,
    pub parts: Vec<TemplatePart>,
}

impl ValueTemplate {
    /// Parses a template with `{name}` for arguments; `{{` and `}}` are braces.
    pub fn with_arguments(text: &str) -> Result<ValueTemplate, String> {
        ValueTemplate::parse(text, true)
    }

    /// Parses a template that takes nothing from the call.
    pub fn without_arguments(text: &str) -> Result<ValueTemplate, String> {
        ValueTemplate::parse(text, false)
    }

    fn parse(text: &str, allow_arguments: bool) -> Result<ValueTemplate, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(index) = rest.find(['{', '}', '$']) {
            literal.push_str(&rest[..index]);
            rest = &rest[index..];
            // With arguments, a literal `${` is written `${{`; without them, it is written `$${`.
            if let Some(after) = rest.strip_prefix("$${").filter(|_| !allow_arguments) {
                literal.push_str("${");
                rest = after;
            } else if rest.starts_with("${") && !(allow_arguments && rest.starts_with("${{")) {
                let (name, after) = rest[2..].split_once('}').ok_or("`${` has no `}`")?;
                flush_text(&mut literal, &mut parts);
                parts.push(TemplatePart::Secret(SecretRef::parse(name)?));
                rest = after;
            } else if !allow_arguments || rest.starts_with('$') {
                let (sign, after) = rest.split_at(1);
                literal.push_str(sign);
                rest = after;
            } else if let Some(after) = rest.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = rest.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let (name, after) = after
                    .split_once('}')
                    .ok_or("`{` has no `}`; a brace itself is written `{{`")?;
                if name.is_empty() || name.contains('{') {
                    return Err(
                        "`{}` names no argument; braces themselves are written `{{` and `}}`"
                            .to_owned(),
                    );
                }
                flush_text(&mut literal, &mut parts);
                parts.push(TemplatePart::Argument(name.to_owned()));
                rest = after;
            } else {
                return Err("`}` has no `{`; a brace itself is written `}}`".to_owned());
            }
        }
        literal.push_str(rest);
        flush_text(&mut literal, &mut parts);
        if text.contains('\0') {
            return Err("a program cannot be given a NUL".to_owned());
        }
        Ok(ValueTemplate { text: text.to_owned(), parts })
    }

    /// Returns the arguments of the call that it uses.
    pub fn argument_names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Argument(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Returns the secrets that it refers to.
    pub fn secret_refs(&self) -> impl Iterator<Item = &SecretRef> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Secret(one) => Some(one),
            _ => None,
        })
    }
}

fn flush_text(literal: &mut String, parts: &mut Vec<TemplatePart>) {
    if !literal.is_empty() {
        parts.push(TemplatePart::Text(std::mem::take(literal)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<TemplatePart> {
        ValueTemplate::with_arguments(text).unwrap().parts
    }

    fn text(text: &str) -> TemplatePart {
        TemplatePart::Text(text.to_owned())
    }

    #[test]
    fn braces_name_arguments_and_doubled_ones_are_braces() {
        assert_eq!(
            parts("--path={path}"),
            [text("--path="), TemplatePart::Argument("path".into())]
        );
        assert_eq!(
            parts("{{\"a\": {a}}}"),
            [text("{\"a\": "), TemplatePart::Argument("a".into()), text("}")]
        );
        assert_eq!(parts("a $ b $x"), [text("a $ b $x")]);
        assert_eq!(parts(""), []);
        for wrong in ["{", "}", "{}", "a{b", "{a{b}}", "${", "${}", "${secret:}", "${a b}", "x\0"] {
            assert!(ValueTemplate::with_arguments(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dollar_braces_name_secrets() {
        let stored = TemplatePart::Secret(SecretRef::Stored("DB".into()));
        assert_eq!(
            parts("pg://u:${secret:DB}@h/{db}"),
            [text("pg://u:"), stored, text("@h/"), TemplatePart::Argument("db".into())]
        );
        assert_eq!(parts("${HOME}"), [TemplatePart::Secret(SecretRef::Variable("HOME".into()))]);
        assert_eq!(parts("${{HOME}}"), [text("${HOME}")]);
        let plain = ValueTemplate::without_arguments("{a} $${b} ${C}").unwrap();
        assert_eq!(
            plain.parts,
            [text("{a} ${b} "), TemplatePart::Secret(SecretRef::Variable("C".into()))]
        );
    }
}
