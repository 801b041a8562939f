//! Compiles a caller's pattern to a matcher, or returns an error that says where it is wrong.

use grep_regex::{RegexMatcher, RegexMatcherBuilder};

use super::Args;
use crate::base::{Error, Result};

const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Limit on the size of a compiled pattern. A pattern that needs more is an attack or a mistake.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// Builds the matcher for the pattern and the flags in `args`.
pub fn build_matcher(args: &Args) -> Result<RegexMatcher> {
    let pattern_error =
        |reason: String| Error::invalid_arguments(reason).with_fact("argument", "pattern");
    if args.pattern.is_empty() || args.pattern.len() > MAX_PATTERN_BYTES {
        return Err(pattern_error(format!(
            "`pattern` must be between 1 and {MAX_PATTERN_BYTES} bytes long"
        )));
    }
    let multiline = args.multiline.unwrap_or(false);
    let mut builder = RegexMatcherBuilder::new();
    builder
        .multi_line(true)
        .unicode(true)
        .octal(false)
        .case_insensitive(args.ignore_case.unwrap_or(false))
        .word(args.word.unwrap_or(false))
        .fixed_strings(args.literal.unwrap_or(false))
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(2 * MAX_COMPILED_BYTES);
    // Treat `\r\n` as a line ending. A pattern that contains `\r` itself does not compile in this
    // mode; the fallback below compiles it without, so that it can match.
    builder.crlf(true);
    if multiline {
        builder.line_terminator(None);
    }
    let built = builder.build(&args.pattern).or_else(|_| {
        builder.crlf(false).line_terminator((!multiline).then_some(b'\n'));
        builder.build(&args.pattern)
    });
    built.map_err(|error| {
        // The matcher builder wraps the pattern in characters of its own, which would shift the
        // reported position. So take the error of the plain pattern.
        let plain = regex::bytes::RegexBuilder::new(&args.pattern).size_limit(MAX_COMPILED_BYTES).build();
        let text = plain.err().map_or_else(|| error.to_string(), |error| error.to_string());
        let (reason, position) = parse_regex_error(&text);
        let at = position.map_or(String::new(), |at| format!(" at character {at}"));
        let hint = match text.contains("not allowed in a regex") {
            true => "A pattern that spans lines needs `multiline: true`.",
            false if text.contains("size limit") => {
                "Simplify it: fewer or smaller repetitions, `[0-9A-Za-z_]` instead of `\\w`, or `(?-u)`."
            }
            false => "Set `literal: true` to search for plain text, or escape special characters with `\\`.",
        };
        let error = pattern_error(format!("`pattern` is not a valid regular expression: {reason}{at}")).with_reason("bad_pattern").with_hint(hint);
        match position {
            Some(at) => error.with_fact("position", at),
            None => error,
        }
    })
}

/// Extracts the reason from a parser's message, and the position (in characters, from 1) that its
/// caret points at.
fn parse_regex_error(text: &str) -> (String, Option<u64>) {
    let reason =
        text.lines().rev().find_map(|line| line.trim().strip_prefix("error: ")).unwrap_or(text);
    // The line before the caret is the pattern, which may contain a caret as well.
    let caret = text
        .lines()
        .rev()
        .find(|line| line.contains('^') && line.trim_matches([' ', '^']).is_empty());
    // A single-line pattern is indented by four characters.
    let position = caret.and_then(|line| line.find('^')).and_then(|at| at.checked_sub(4));
    (reason.chars().take(300).collect(), position.map(|at| at as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(pattern: &str) -> Error {
        build_matcher(&Args { pattern: pattern.to_owned(), ..Args::default() }).unwrap_err()
    }

    #[test]
    fn what_people_write_is_small_enough() {
        for pattern in [
            r"(?i)\b(pub|fn|struct)\s+(\w+)\s*<\s*(\w+)\s*>\s*\(\s*(\w+)\s*:\s*(\w+)\s*\)\s*->\s*(\w+)",
            r"\w{1,12}-\d{1,12}",
            r"^[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,63}$",
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            r".{0,200}TODO.{0,200}",
            r"\p{Lu}\p{Ll}+(?:\s\p{Lu}\p{Ll}+){0,4}",
        ] {
            for ignore_case in [false, true] {
                let args = Args {
                    pattern: pattern.to_owned(),
                    ignore_case: Some(ignore_case),
                    ..Args::default()
                };
                assert!(
                    build_matcher(&args).is_ok(),
                    "{pattern}: {:?}",
                    build_matcher(&args).err()
                );
            }
        }
    }

    #[test]
    fn a_bad_pattern_is_pointed_at() {
        let bad = error("ab(c");
        assert_eq!(
            bad.message(),
            "`pattern` is not a valid regular expression: unclosed group at character 3"
        );
        assert!(bad.hint_text().unwrap().contains("literal: true"), "{bad:?}");
        assert_eq!(bad.to_body(&crate::base::TraceId::generate())["position"], 3);
        assert_eq!(error("^ab(c").to_body(&crate::base::TraceId::generate())["position"], 4);
        assert!(error("x{2,1}").message().contains("at character 2"), "{}", error("x{2,1}"));
        assert!(error("a\\nb").hint_text().unwrap().contains("multiline"), "{:?}", error("a\\nb"));
        assert!(error("").message().contains("between 1 and"));
        assert!(error(&"(".repeat(17_000)).message().len() < 600);
        assert!(
            build_matcher(&Args { pattern: "ab(c".into(), literal: Some(true), ..Args::default() })
                .is_ok()
        );
        // A pattern that would need gigabytes is refused quickly.
        assert!(error("((a{1000}){1000}){1000}").message().len() < 600);
    }
}
