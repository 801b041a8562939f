//! Fills the argument templates of an entry with the arguments of a call.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::base::{Error, Kind, Result};
use crate::config::secrets::SecretRef;
use crate::config::{SecretValues, TemplatePart, ValueTemplate};
use crate::redact::arguments::redact_arguments;

/// One argument of a command, with secrets still kept separate.
pub struct FilledArgument(Vec<ArgumentPiece>);

enum ArgumentPiece {
    Text(String),
    /// From an argument of the call: as the program gets it, and as a human may see it.
    Argument {
        text: String,
        shown: String,
    },
    Secret(SecretRef),
}

impl FilledArgument {
    /// Returns the text that the program gets.
    pub fn reveal_text(&self, reveal: impl Fn(&SecretRef) -> Result<String>) -> Result<String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                ArgumentPiece::Text(piece_text)
                | ArgumentPiece::Argument { text: piece_text, .. } => text.push_str(piece_text),
                ArgumentPiece::Secret(secret_ref) => text.push_str(&reveal(secret_ref)?),
            }
        }
        Ok(text)
    }

    /// Returns the text that a human may see.
    pub fn display_text(&self) -> String {
        let show = |piece: &ArgumentPiece| match piece {
            ArgumentPiece::Text(shown) | ArgumentPiece::Argument { shown, .. } => shown.clone(),
            ArgumentPiece::Secret(one) => format!("[secret {}]", one.name()),
        };
        self.0.iter().map(show).collect()
    }
}

/// How the arguments of a call are to be treated, apart from their values.
#[derive(Default)]
pub struct ArgvOptions<'a> {
    /// Arguments that are lists according to the schema.
    pub list_arguments: BTreeSet<String>,
    pub hidden_arguments: Option<&'a BTreeSet<String>>,
}

impl ArgvOptions<'_> {
    /// Formats an argument as a human may see it.
    fn display_argument(&self, name: &str, value: &Value) -> String {
        let no_names = BTreeSet::new();
        let single = Map::from_iter([(name.to_owned(), value.clone())]);
        value_text(&redact_arguments(&single, self.hidden_arguments.unwrap_or(&no_names))[name])
    }
}

/// Formats a value as one argument.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Fills all templates. A template with an argument that was not given is left out; a list that
/// makes up a whole template becomes one argument per item.
pub fn fill_templates(
    templates: &[ValueTemplate],
    arguments: &Map<String, Value>,
    options: &ArgvOptions<'_>,
) -> Result<Vec<FilledArgument>> {
    let mut filled_arguments = Vec::new();
    // After `--` nothing is parsed as an option.
    let mut only_operands = false;
    for template in templates {
        only_operands |= template.text == "--";
        if let [TemplatePart::Argument(name)] = template.parts.as_slice()
            && options.list_arguments.contains(name)
            && let Some(Value::Array(items)) = arguments.get(name)
        {
            for item in items {
                filled_arguments.push(fill_one(template, only_operands, options, |_| Some(item))?);
            }
            continue;
        }
        let look_up = |name: &str| arguments.get(name).filter(|value| !value.is_null());
        if template.argument_names().all(|name| look_up(name).is_some()) {
            filled_arguments.push(fill_one(template, only_operands, options, look_up)?);
        }
    }
    check_size(&filled_arguments)?;
    Ok(filled_arguments)
}

fn fill_one<'a>(
    template: &ValueTemplate,
    only_operands: bool,
    options: &ArgvOptions<'_>,
    look_up: impl Fn(&str) -> Option<&'a Value>,
) -> Result<FilledArgument> {
    let mut pieces = Vec::new();
    let mut is_empty = true;
    for part in &template.parts {
        let piece = match part {
            TemplatePart::Text(text) => ArgumentPiece::Text(text.clone()),
            TemplatePart::Secret(secret_ref) => ArgumentPiece::Secret(secret_ref.clone()),
            TemplatePart::Argument(name) => {
                let value = look_up(name).unwrap_or(&Value::Null);
                let text = value_text(value);
                if text.contains('\0') {
                    return Err(Error::invalid_arguments(format!(
                        "`{name}` contains a NUL byte, which no program can receive"
                    )));
                }
                // A program would parse it as an option, which the operator did not offer.
                if is_empty && !only_operands && text.starts_with('-') && value.is_string() {
                    return Err(Error::invalid_arguments(format!("`{name}` begins with `-` and would be read as an option"))
                        .with_reason("option")
                        .with_hint("Write a path that begins with `-` as `./-…`. The operator can allow it by putting `--` before it in `args`, or by writing `--option={…}`."));
                }
                ArgumentPiece::Argument { shown: options.display_argument(name, value), text }
            }
        };
        is_empty &= matches!(&piece, ArgumentPiece::Text(text) | ArgumentPiece::Argument { text, .. } if text.is_empty());
        pieces.push(piece);
    }
    Ok(FilledArgument(pieces))
}

/// The kernel's limits: for one argument, and for all of them together with the environment.
const MAX_ARG_BYTES: usize = (128 << 10) - 1;
const MAX_ARGS_BYTES: usize = 1 << 20;

/// Checked before the user is asked, so that the caller gets a clear error.
fn check_size(arguments: &[FilledArgument]) -> Result<()> {
    let size = |argument: &FilledArgument| -> usize {
        let bytes = |piece: &ArgumentPiece| match piece {
            ArgumentPiece::Text(text) | ArgumentPiece::Argument { text, .. } => text.len(),
            ArgumentPiece::Secret(_) => 0,
        };
        argument.0.iter().map(bytes).sum()
    };
    let total: usize = arguments.iter().map(|argument| size(argument) + 1).sum();
    if arguments.iter().any(|argument| size(argument) > MAX_ARG_BYTES) || total > MAX_ARGS_BYTES {
        return Err(Error::new(Kind::TooLarge, "the arguments are longer than a command line can be").with_hint(format!(
            "One argument may have at most {MAX_ARG_BYTES} bytes, all together {MAX_ARGS_BYTES}. Pass long text through a file."
        )));
    }
    Ok(())
}

/// Returns the value of an environment variable.
pub fn fill_variable(
    template: &ValueTemplate,
    reveal: impl Fn(&SecretRef) -> Result<String>,
) -> Result<String> {
    let mut text = String::new();
    for part in &template.parts {
        match part {
            TemplatePart::Text(part) => text.push_str(part),
            TemplatePart::Secret(secret_ref) => text.push_str(&reveal(secret_ref)?),
            TemplatePart::Argument(_) => {}
        }
    }
    Ok(text)
}

/// Returns a secret as a program gets it.
pub fn reveal_secret(secrets: &SecretValues, secret_ref: &SecretRef) -> Result<String> {
    let secret = secrets.get(secret_ref)?;
    let text = std::str::from_utf8(secret.expose()).ok().filter(|text| !text.contains('\0'));
    text.map(str::to_owned).ok_or_else(|| {
        Error::new(Kind::Unauthenticated, format!("the secret `{}` is not text", secret_ref.name()))
            .with_reason("bad_secret")
            .with_hint("Have the operator set it again.")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(args: &[&str], arguments: Value) -> Result<Vec<String>> {
        let templates: Vec<ValueTemplate> =
            args.iter().map(|one| ValueTemplate::with_arguments(one).unwrap()).collect();
        let Value::Object(arguments) = arguments else { unreachable!() };
        let about = ArgvOptions {
            list_arguments: BTreeSet::from(["files", "list"].map(str::to_owned)),
            hidden_arguments: None,
        };
        fill_templates(&templates, &arguments, &about)?
            .iter()
            .map(|word| word.reveal_text(|one| Ok(format!("<{}>", one.name()))))
            .collect()
    }

    #[test]
    fn every_argument_is_one_word_whatever_it_holds() {
        let hostile = "a b; rm -rf / $(id) `id` \"' \n*";
        assert_eq!(
            run(&["--path", "{path}"], json!({"path": hostile})).unwrap(),
            ["--path", hostile]
        );
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
        assert_eq!(
            run(&["{files}", "end"], json!({"files": ["a b", "c", 3]})).unwrap(),
            ["a b", "c", "3", "end"]
        );
        assert_eq!(run(&["{files}"], json!({"files": []})).unwrap(), Vec::<String>::new());
        // Only where the schema says that it is one.
        assert_eq!(run(&["{other}"], json!({"other": ["a", "b"]})).unwrap(), ["[\"a\",\"b\"]"]);
    }

    #[test]
    fn an_argument_never_becomes_an_option() {
        for (args, arguments) in [
            (vec!["{p}"], json!({"p": "--exec=id"})),
            (vec!["{p}x"], json!({"p": "-"})),
            (vec!["{list}"], json!({"list": ["a", "-rf"]})),
            (vec!["{p}{q}"], json!({"p": "", "q": "--exec"})),
        ] {
            assert_eq!(
                run(&args, arguments).unwrap_err().reason_name(),
                Some("option"),
                "{args:?}"
            );
        }
        assert_eq!(run(&["--p={p}"], json!({"p": "-x"})).unwrap(), ["--p=-x"]);
        assert_eq!(run(&["--", "{p}"], json!({"p": "-x"})).unwrap(), ["--", "-x"]);
        assert_eq!(run(&["{n}"], json!({"n": -5})).unwrap(), ["-5"]);
        assert!(run(&["{p}"], json!({"p": "a\0b"})).is_err());
    }

    #[test]
    fn secrets_are_shown_by_name_and_marked_arguments_not_at_all() {
        let template = ValueTemplate::with_arguments("${secret:DB}:{key}:{q}").unwrap();
        let Value::Object(arguments) = json!({"key": "hunter2", "q": "x"}) else { unreachable!() };
        let hidden = BTreeSet::from(["key".to_owned()]);
        let about = ArgvOptions { hidden_arguments: Some(&hidden), ..ArgvOptions::default() };
        let words = fill_templates(&[template], &arguments, &about).unwrap();
        assert_eq!(
            words[0].display_text(),
            "[secret DB]:[not shown, 7 characters given by this call]:x"
        );
        // Inside of what is written as one word as well, and by the names that tell.
        let template = ValueTemplate::with_arguments("{o} --token={api_token}").unwrap();
        let Value::Object(arguments) =
            json!({"o": {"key": "hunter2", "n": 1}, "api_token": "hunter2"})
        else {
            unreachable!()
        };
        let shown = fill_templates(&[template], &arguments, &about).unwrap()[0].display_text();
        assert!(!shown.contains("hunter2") && shown.contains("\"n\":1"), "{shown}");
        let long = ValueTemplate::with_arguments("{q}").unwrap();
        let Value::Object(arguments) = json!({"q": "x".repeat(MAX_ARG_BYTES + 1)}) else {
            unreachable!()
        };
        assert_eq!(
            fill_templates(&[long], &arguments, &about).err().map(|error| error.kind()),
            Some(Kind::TooLarge)
        );
    }
}
