//! From the words of an entry and the arguments of a call to what a program is given.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::base::{Error, Result};
use crate::config::secrets::Ref;
use crate::config::{Part, Secrets, Template};

/// One word of a command, with what must not be shown still apart.
pub struct Word(Vec<Piece>);

enum Piece {
    Text(String),
    /// Of this argument.
    Argument(String, String),
    Secret(Ref),
}

impl Word {
    /// As the program gets it.
    pub fn text(&self, reveal: impl Fn(&Ref) -> Result<String>) -> Result<String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(part) | Piece::Argument(_, part) => text.push_str(part),
                Piece::Secret(one) => text.push_str(&reveal(one)?),
            }
        }
        Ok(text)
    }

    /// As a human may see it.
    pub fn shown(&self, hidden: &BTreeSet<String>) -> String {
        let show = |piece: &Piece| match piece {
            Piece::Argument(name, _) if hidden.contains(name) => "[not shown]".to_owned(),
            Piece::Text(part) | Piece::Argument(_, part) => part.clone(),
            Piece::Secret(one) => format!("[secret {}]", one.name()),
        };
        self.0.iter().map(show).collect()
    }
}

/// Every word of the command. One that speaks of an argument which was not given is left out; a list that stands alone
/// becomes a word for each item.
pub fn expand(templates: &[Template], arguments: &Map<String, Value>) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    // Behind this word nothing is an option any more.
    let mut only_operands = false;
    for template in templates {
        only_operands |= template.text == "--";
        if let [Part::Argument(name)] = template.parts.as_slice()
            && let Some(Value::Array(items)) = arguments.get(name)
        {
            for item in items {
                words.push(word(template, only_operands, |_| Some(item))?);
            }
            continue;
        }
        let given = |name: &str| arguments.get(name).filter(|value| !value.is_null());
        if template.arguments().all(|name| given(name).is_some()) {
            words.push(word(template, only_operands, given)?);
        }
    }
    let words: Vec<Option<Word>> = words;
    Ok(words.into_iter().flatten().collect())
}

fn word<'a>(
    template: &Template,
    only_operands: bool,
    given: impl Fn(&str) -> Option<&'a Value>,
) -> Result<Option<Word>> {
    let mut pieces = Vec::new();
    for part in &template.parts {
        let piece = match part {
            Part::Text(text) => Piece::Text(text.clone()),
            Part::Secret(one) => Piece::Secret(one.clone()),
            Part::Argument(name) => {
                let Some(value) = given(name) else { return Ok(None) };
                let text = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                if text.contains('\0') {
                    return Err(Error::invalid_arguments(format!(
                        "`{name}` holds a NUL, which no program can be given"
                    )));
                }
                // A program would take it for one of its options, which the operator did not offer.
                if pieces.is_empty() && !only_operands && text.starts_with('-') && value.is_string() {
                    return Err(Error::invalid_arguments(format!("`{name}` begins with `-` and would be read as an option"))
                        .reason("option")
                        .hint("Write a path that begins with `-` as `./-…`. The operator can allow it with a word `--` before, or as `--option={…}`."));
                }
                Piece::Argument(name.clone(), text)
            }
        };
        pieces.push(piece);
    }
    Ok(Some(Word(pieces)))
}

/// The value of a variable.
pub fn value(template: &Template, reveal: impl Fn(&Ref) -> Result<String>) -> Result<String> {
    let mut text = String::new();
    for part in &template.parts {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Secret(one) => text.push_str(&reveal(one)?),
            Part::Argument(_) => {}
        }
    }
    Ok(text)
}

/// A secret as a program gets it.
pub fn reveal(secrets: &Secrets, one: &Ref) -> Result<String> {
    let secret = secrets.get(one)?;
    let text = std::str::from_utf8(secret.expose()).ok().filter(|text| !text.contains('\0'));
    text.map(str::to_owned).ok_or_else(|| {
        Error::new(crate::base::Kind::Unauthenticated, format!("the secret `{}` is not text", one.name()))
            .reason("bad_secret")
            .hint("Have the operator set it again.")
    })
}

/// A command as one line, quoted where a reader could be misled.
pub fn line(program: &str, words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:@%+,".contains(c);
    let quote = |word: &str| match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    [program].into_iter().chain(words.iter().map(String::as_str)).map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(args: &[&str], arguments: Value) -> Result<Vec<String>> {
        let templates: Vec<Template> = args.iter().map(|one| Template::with_arguments(one).unwrap()).collect();
        let Value::Object(arguments) = arguments else { unreachable!() };
        expand(&templates, &arguments)?.iter().map(|word| word.text(|one| Ok(format!("<{}>", one.name())))).collect()
    }

    #[test]
    fn every_argument_is_one_word_whatever_it_holds() {
        let hostile = "a b; rm -rf / $(id) `id` \"' \n*";
        assert_eq!(run(&["--path", "{path}"], json!({"path": hostile})).unwrap(), ["--path", hostile]);
        assert_eq!(run(&["x={a}{b}{{}}"], json!({"a": 1, "b": true})).unwrap(), ["x=1true{}"]);
        assert_eq!(run(&["{o}"], json!({"o": {"k": [1]}})).unwrap(), ["{\"k\":[1]}"]);
        assert_eq!(run(&["{s}"], json!({"s": ""})).unwrap(), [""]);
    }

    #[test]
    fn what_was_not_given_is_left_out_with_its_word() {
        assert_eq!(run(&["a", "--n={n}", "{p}", "b"], json!({"p": null})).unwrap(), ["a", "b"]);
        assert_eq!(run(&["{a}:{b}"], json!({"a": "1"})).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_list_becomes_a_word_for_each_item() {
        assert_eq!(run(&["{files}", "end"], json!({"files": ["a b", "c", 3]})).unwrap(), ["a b", "c", "3", "end"]);
        assert_eq!(run(&["{files}"], json!({"files": []})).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_argument_never_becomes_an_option() {
        for (args, arguments) in [
            (vec!["{p}"], json!({"p": "--exec=id"})),
            (vec!["{p}x"], json!({"p": "-"})),
            (vec!["{list}"], json!({"list": ["a", "-rf"]})),
        ] {
            assert_eq!(run(&args, arguments).unwrap_err().reason_name(), Some("option"), "{args:?}");
        }
        assert_eq!(run(&["--p={p}"], json!({"p": "-x"})).unwrap(), ["--p=-x"]);
        assert_eq!(run(&["--", "{p}"], json!({"p": "-x"})).unwrap(), ["--", "-x"]);
        assert_eq!(run(&["{n}"], json!({"n": -5})).unwrap(), ["-5"]);
        assert!(run(&["{p}"], json!({"p": "a\0b"})).is_err());
    }

    #[test]
    fn secrets_are_shown_by_name_and_marked_arguments_not_at_all() {
        let template = Template::with_arguments("${secret:DB}:{key}:{q}").unwrap();
        let Value::Object(arguments) = json!({"key": "hunter2", "q": "x"}) else { unreachable!() };
        let words = expand(&[template], &arguments).unwrap();
        let hidden = BTreeSet::from(["key".to_owned()]);
        assert_eq!(words[0].shown(&hidden), "[secret DB]:[not shown]:x");
        assert_eq!(line("ls", &["a b".to_owned(), "it's".to_owned(), String::new()]), "ls 'a b' 'it'\\''s' ''");
    }
}
