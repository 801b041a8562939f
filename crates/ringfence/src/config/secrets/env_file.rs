//! The env file: `NAME=value` lines, as written by a service manager or a rotation job.
//!
//! Nothing in it is expanded or executed: a `$` is a `$`. Errors name the line by its number, never
//! by its text.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::CWD;

use super::is_secret_name;
use super::private_file::{self, TrustedOwner};
use crate::base::{Error, Kind, Result};
use crate::redact::secret::Secret;

const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) fn read_env_file(path: &Path) -> Result<BTreeMap<String, Secret>> {
    let label = format!("the env file {}", path.display());
    let Some(bytes) =
        private_file::read_private_file(CWD, path, &label, TrustedOwner::UsOrRoot, MAX_FILE_BYTES)?
    else {
        return Err(Error::new(Kind::NotFound, format!("{label} does not exist"))
            .with_reason("secret_store")
            .with_hint("Name another file with `env_file` under [secrets], or remove the key."));
    };
    let line_error = |line: usize, reason: &str| {
        Error::invalid_arguments(format!("{label}, line {line}: {reason}"))
            .with_reason("secret_store")
            .with_hint(
                "Write `NAME=value`, with quotes around a value that has blanks or several lines.",
            )
    };
    let text = String::from_utf8(bytes).map_err(|_| line_error(1, "the file is not UTF-8 text"))?;
    parse_lines(&text).map_err(|(line, reason)| line_error(line, reason))
}

type LineError = (usize, &'static str);

fn parse_lines(text: &str) -> Result<BTreeMap<String, Secret>, LineError> {
    let mut secrets = BTreeMap::new();
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut line, mut counted_from) = (1, rest);
    while !rest.is_empty() {
        line += counted_from[..counted_from.len() - rest.len()].matches('\n').count();
        counted_from = rest;
        let start = rest.trim_start_matches([' ', '\t', '\r']);
        if start.is_empty() || start.starts_with(['\n', '#']) {
            rest = skip_line(start);
            continue;
        }
        let assignment = match start.strip_prefix("export") {
            Some(more) if more.starts_with([' ', '\t']) => more.trim_start_matches([' ', '\t']),
            _ => start,
        };
        let end = assignment.find(['=', '\n']).unwrap_or(assignment.len());
        let (name, after) = assignment.split_at(end);
        let name = name.trim_end_matches([' ', '\t']);
        let after = after.strip_prefix('=').ok_or((line, "there is no `=`"))?;
        if !is_secret_name(name) {
            return Err((
                line,
                "a name consists of letters, digits and `_`, and does not start with a digit",
            ));
        }
        let (value, after) =
            parse_value(after.trim_start_matches([' ', '\t'])).map_err(|reason| (line, reason))?;
        if value.contains('\0') {
            return Err((line, "a program cannot be given a NUL"));
        }
        // An empty value counts as unset, as in the environment.
        match value.is_empty() {
            true => drop(secrets.remove(name)),
            false => drop(secrets.insert(name.to_owned(), Secret::new(value))),
        }
        rest = after;
    }
    Ok(secrets)
}

/// Parses a value. Returns it and the text after its line.
fn parse_value(text: &str) -> Result<(String, &str), &'static str> {
    let (value, after) = match text.chars().next() {
        Some('\'') => {
            let (value, after) = text[1..].split_once('\'').ok_or("the quote is not closed")?;
            (value.to_owned(), after)
        }
        Some('"') => parse_quoted(&text[1..])?,
        _ => {
            let line = &text[..text.find('\n').unwrap_or(text.len())];
            let comment = line
                .char_indices()
                .find(|(index, c)| *c == '#' && (*index == 0 || is_after_blank(line, *index)));
            let value = &line[..comment.map_or(line.len(), |(index, _)| index)];
            return Ok((value.trim_end().to_owned(), skip_line(text)));
        }
    };
    let line = &after[..after.find('\n').unwrap_or(after.len())];
    match line.trim_start() {
        "" => Ok((value, skip_line(after))),
        more if more.starts_with('#') => Ok((value, skip_line(after))),
        _ => Err("there is something after the closing quote"),
    }
}

fn is_after_blank(line: &str, index: usize) -> bool {
    line[..index].ends_with([' ', '\t'])
}

fn parse_quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => return Ok((value, &text[index + 1..])),
            '\\' => match letters.next().map(|(_, letter)| letter) {
                Some('n') => value.push('\n'),
                Some('r') => value.push('\r'),
                Some('t') => value.push('\t'),
                Some(letter @ ('"' | '\\' | '$' | '`')) => value.push(letter),
                // Line continuation.
                Some('\n') => {}
                Some(letter) => value.extend(['\\', letter]),
                None => break,
            },
            letter => value.push(letter),
        }
    }
    Err("the quote is not closed")
}

fn skip_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, after)| after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<(String, String)> {
        let text_of = |secret: &Secret| String::from_utf8(secret.expose().to_vec()).unwrap();
        parse_lines(text)
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), text_of(value)))
            .collect()
    }

    fn value_of(text: &str) -> String {
        let [(_, value)] = &values(text)[..] else { panic!("{text}") };
        value.clone()
    }

    #[test]
    fn lines_are_read_as_they_are_usually_written() {
        let text = "\u{feff}# comment\n\nA=one\r\n  export B = two words  # comment\n\texport\tC='it is $A # no comment'\n_D1=\"x\" # comment\nA=last\nE=";
        let wanted =
            [("A", "last"), ("B", "two words"), ("C", "it is $A # no comment"), ("_D1", "x")];
        assert_eq!(values(text), wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(value_of("A=a#b=c"), "a#b=c");
        assert_eq!(value_of("A=$(rm -rf ~)`x`${B}"), "$(rm -rf ~)`x`${B}");
        assert_eq!(value_of("A=\"a\\nb\\t\\\"\\\\\\$c\\d\"\n"), "a\nb\t\"\\$c\\d");
        assert_eq!(value_of("export=plain"), "plain");
        assert_eq!(values(""), []);
        assert_eq!(values("A=#nothing\nB=''\n"), []);
    }

    #[test]
    fn a_value_in_quotes_may_have_lines() {
        let pem = "-----BEGIN KEY-----\nAAAA=\n-----END KEY-----\n";
        for quote in ['"', '\''] {
            let text = format!("KEY={quote}{pem}{quote}\nNEXT=1\n");
            assert_eq!(
                values(&text),
                [("KEY".to_owned(), pem.to_owned()), ("NEXT".to_owned(), "1".to_owned())]
            );
        }
    }

    /// A file of as many lines as there can be is read in one go.
    #[test]
    fn many_lines_are_read_as_fast_as_few() {
        let begun = std::time::Instant::now();
        let text = "\n".repeat(usize::try_from(MAX_FILE_BYTES).unwrap() - 1) + "x";
        assert_eq!(parse_lines(&text).unwrap_err().0, usize::try_from(MAX_FILE_BYTES).unwrap());
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_is_wrong_is_told_by_its_line() {
        for (text, line) in [
            ("A=1\nhunter2", 2),
            ("A=1\n\n2B=hunter2", 3),
            ("A='1\n2'\nB=\"hunter2", 3),
            ("A='x'hunter2", 1),
            ("A B=hunter2", 1),
            ("=hunter2", 1),
            ("A=hun\0ter2", 1),
        ] {
            assert_eq!(parse_lines(text).unwrap_err().0, line, "{text}");
        }
    }
}
