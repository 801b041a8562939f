//! Glob patterns over whole paths: `*` and `?` within a name, `**` for any number of names, `[a-z]`
//! and `{one,two}`.
//!
//! A pattern is translated to a regular expression, which matches in linear time. `globset` would
//! change the dialect: its `?` and sets match single bytes, its sets match `/`, and it panics on a
//! pattern that is too large. A client's sandbox denies paths by these patterns, so a name outside
//! ASCII must not escape `?`.

use std::path::{Path, PathBuf};

use regex::Regex;

/// Maximum number of alternatives in one pattern; no realistic pattern has more.
const MAX_ALTERNATIVES: usize = 64;

/// Maximum length of all alternatives together: bounds the time that a client's pattern takes to
/// compile.
const MAX_EXPANDED_BYTES: usize = 16 * 1024;

/// Absolute pattern over whole paths.
#[derive(Debug, Clone)]
pub struct Glob {
    text: String,
    /// Longest prefix without wildcards: a plain path.
    base: PathBuf,
    /// The rest, for names that each end with `/`.
    below_base: Regex,
}

impl PartialEq for Glob {
    fn eq(&self, other: &Glob) -> bool {
        // The regular expression follows from the text.
        self.text == other.text && self.base == other.base
    }
}

impl Eq for Glob {}

impl Glob {
    /// Parses an absolute pattern; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Glob> {
        if !text.starts_with('/') || text.contains(['\0', '\\']) {
            return None;
        }
        let names: Vec<&str> = text.split('/').filter(|name| !name.is_empty()).collect();
        if names.iter().any(|name| matches!(*name, "." | "..")) {
            return None;
        }
        let plain_count =
            names.iter().take_while(|name| !name.contains(['*', '?', '[', '{', '}'])).count();
        let base =
            names[..plain_count].iter().fold(PathBuf::from("/"), |base, name| base.join(name));
        let mut alternatives = Vec::new();
        expand_braces(&names[plain_count..].join("/"), &mut alternatives)?;
        if alternatives.iter().map(String::len).sum::<usize>() > MAX_EXPANDED_BYTES {
            return None;
        }
        let regexes: Vec<String> =
            alternatives.iter().map(|one| translate_alternative(one)).collect::<Option<_>>()?;
        let below_base = Regex::new(&format!(r"\A(?:{})\z", regexes.join("|"))).ok()?;
        Some(Glob { text: text.to_owned(), base, below_base })
    }

    /// Returns the path that contains (or is) everything the pattern can match.
    pub fn base_path(&self) -> &Path {
        &self.base
    }

    /// Returns the same pattern below another base, which is another name of the same directory.
    pub fn with_base(&self, base: PathBuf) -> Glob {
        Glob { base, ..self.clone() }
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern matches this path itself; a match on a directory above it is not
    /// enough.
    pub fn matches(&self, path: &Path) -> bool {
        let Ok(relative_path) = path.strip_prefix(&self.base) else { return false };
        let mut names = String::new();
        for name in relative_path {
            names.push_str(&name.to_string_lossy());
            names.push('/');
        }
        self.below_base.is_match(&names)
    }
}

/// Expands `{one,two}`; `None` for unbalanced braces and for too many alternatives.
fn expand_braces(text: &str, alternatives: &mut Vec<String>) -> Option<()> {
    let Some(open) = text.find('{') else {
        if text.contains('}') || alternatives.len() >= MAX_ALTERNATIVES {
            return None;
        }
        alternatives.push(text.to_owned());
        return Some(());
    };
    let (mut depth, mut start) = (0, open + 1);
    let mut parts = Vec::new();
    for (index, c) in text.char_indices().skip_while(|(index, _)| *index < open) {
        match c {
            '{' => depth += 1,
            ',' if depth == 1 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            '}' if depth == 1 => {
                parts.push(&text[start..index]);
                for part in parts {
                    expand_braces(
                        &format!("{}{part}{}", &text[..open], &text[index + 1..]),
                        alternatives,
                    )?;
                }
                return Some(());
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Translates one alternative to a regular expression over names that each end with `/`; `None` if
/// a set in it is malformed.
fn translate_alternative(alternative: &str) -> Option<String> {
    let mut regex = String::new();
    for name in alternative.split('/').filter(|name| !name.is_empty()) {
        match name {
            "." | ".." => return None,
            "**" => regex.push_str("(?:[^/]+/)*"),
            name => {
                translate_name(name, &mut regex)?;
                regex.push('/');
            }
        }
    }
    Some(regex)
}

fn translate_name(name: &str, regex: &mut String) -> Option<()> {
    let mut rest = name.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '[' => {
                let text = rest.as_str();
                // A bracket directly after the opening one is a member of the set.
                let (end, _) = text.char_indices().skip(1).find(|(_, c)| *c == ']')?;
                translate_set(&text[..end], regex)?;
                rest = text[end + 1..].chars();
            }
            c => push_literal(c, regex),
        }
    }
    Some(())
}

fn translate_set(set: &str, regex: &mut String) -> Option<()> {
    let (start, members, end) = match set.strip_prefix(['!', '^']) {
        Some(members) => ("[^/", members, "]"),
        // A range such as `[+-9]` contains the separator.
        None => ("[", set, "&&[^/]]"),
    };
    if members.contains('[') {
        return None;
    }
    regex.push_str(start);
    let members: Vec<char> = members.chars().collect();
    let mut rest = members.as_slice();
    while let [from, after @ ..] = rest {
        let (to, after) = match after {
            ['-', to, after @ ..] => (to, after),
            after => (from, after),
        };
        // A range that ends before it begins has no members.
        if from <= to {
            push_literal(*from, regex);
            regex.push('-');
            push_literal(*to, regex);
        }
        rest = after;
    }
    regex.push_str(end);
    Some(())
}

fn push_literal(c: char, regex: &mut String) {
    regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_what_they_say() {
        let cases = [
            ("/w/**/*.env", "/w/.env", true),
            ("/w/**/*.env", "/w/a/b/x.env", true),
            ("/w/**/*.env", "/w/a/x.env/y", false),
            ("/w/**/*.env", "/x/.env", false),
            ("/w/*.env", "/w/a/x.env", false),
            ("/w/**", "/w/a/b", true),
            ("/**/secret*", "/w/deep/secrets", true),
            ("/w/a?c", "/w/abc", true),
            ("/w/a?c", "/w/ac", false),
            ("/w/[a-c]x", "/w/bx", true),
            ("/w/[!a-c]x", "/w/bx", false),
            ("/w/[]]x", "/w/]x", true),
            ("/w/[a-]x", "/w/-x", true),
            ("/w/[z-a]x", "/w/mx", false),
            ("/w/a?c", "/w/aéc", true),
            ("/w/[à-ü]x", "/w/éx", true),
            ("/w/[!a]x", "/w/éx", true),
            ("/w/a?c", "/w/a/c", false),
            ("/w/a[!b]c", "/w/a/c", false),
            ("/w/a[+-9]c", "/w/a/c", false),
            ("/w/a[+-9]c", "/w/a5c", true),
            ("/w/a+(b)|.*", "/w/a+(b)|.x", true),
            ("/w/a+(b)|.*", "/w/aab", false),
            ("/w/a*/**", "/w/ab", true),
            ("/w/a*/**", "/w/ab/c/d", true),
            ("/w/{a,**}/b", "/w/x/y/b", true),
            ("/w/{,a}", "/w", true),
            ("/w/*", "/w/line\nbreak", true),
            ("/w/*.{pem,key}", "/w/id.key", true),
            ("/w/*.{pem,key}", "/w/id.pub", false),
            ("/w/{a,b{c,d}}/x", "/w/bd/x", true),
            ("/w/*a*b*", "/w/xxaxxbxx", true),
            ("/w/*a*b*", "/w/xxbxxaxx", false),
            ("/w/exact", "/w/exact", true),
            ("/w/exact", "/w/exact/x", false),
            ("/w/exact", "/w", false),
        ];
        for (pattern, path, expected) in cases {
            assert_eq!(
                Glob::parse(pattern).unwrap().matches(Path::new(path)),
                expected,
                "{pattern} {path}"
            );
        }
    }

    #[test]
    fn a_pattern_that_cannot_be_understood_is_none() {
        for bad in [
            "relative/*",
            "",
            "/w/{a",
            "/w/a}",
            "/w/[a",
            "/w/[]",
            "/w/[[a]",
            "/w/{.,a}/x",
            "/w/../x",
            "/w/\\*",
            "/w/{{a,b},{c,d}}{1,2,3,4,5,6,7,8,9,0}{1,2,3,4,5,6,7,8}",
            &format!("/{}", "*a".repeat(MAX_EXPANDED_BYTES)),
        ] {
            assert_eq!(Glob::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_longer_than_others() {
        let glob = Glob::parse(&format!("/{}b", "**/*a*a*a*/".repeat(40))).unwrap();
        assert!(!glob.matches(Path::new(&"/aaaaaaaaaaaaaaaaaaaaaaaa".repeat(100))));
    }
}
