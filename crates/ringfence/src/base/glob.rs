//! Glob patterns over whole paths: `*` and `?` within a name, `**` for any number of names, `[a-z]`
//! and `{one,two}`.

use std::path::{Path, PathBuf};

/// Maximum number of alternatives in one pattern; no realistic pattern has more.
const MAX_ALTERNATIVES: usize = 64;

/// Absolute pattern over whole paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    /// Longest prefix without wildcards: a plain path.
    base: PathBuf,
    /// The rest, each alternative as a list of names.
    alternatives: Vec<Vec<String>>,
}

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
        let plain =
            names.iter().take_while(|name| !name.contains(['*', '?', '[', '{', '}'])).count();
        let base = names[..plain].iter().fold(PathBuf::from("/"), |base, name| base.join(name));
        let mut alternatives = Vec::new();
        expand_braces(&names[plain..].join("/"), &mut alternatives)?;
        let split = |one: &String| {
            one.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let alternatives: Vec<Vec<String>> = alternatives.iter().map(split).collect();
        let sound = |name: &String| {
            !matches!(name.as_str(), "." | "..")
                && name.matches('[').count() == count_closed_sets(name)
        };
        alternatives.iter().flatten().all(sound).then(|| Glob {
            text: text.to_owned(),
            base,
            alternatives,
        })
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
        let Ok(below) = path.strip_prefix(&self.base) else { return false };
        let names: Vec<_> = below.iter().map(|name| name.to_string_lossy()).collect();
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        self.alternatives.iter().any(|pattern| matches_names(pattern, &names))
    }
}

fn count_closed_sets(name: &str) -> usize {
    let mut rest = name;
    let mut count = 0;
    while let Some((_, after)) = rest.split_once('[') {
        // A bracket directly after the opening one is a member of the set.
        let Some(end) = after.char_indices().skip(1).find(|(_, c)| *c == ']') else { break };
        count += 1;
        rest = &after[end.0..];
    }
    count
}

/// Expands `{one,two}`; `None` for unbalanced braces and for too many alternatives.
fn expand_braces(text: &str, found: &mut Vec<String>) -> Option<()> {
    let Some(open) = text.find('{') else {
        if text.contains('}') || found.len() >= MAX_ALTERNATIVES {
            return None;
        }
        found.push(text.to_owned());
        return Some(());
    };
    let (mut depth, mut start) = (0, open + 1);
    let mut parts = Vec::new();
    for (at, c) in text.char_indices().skip_while(|(at, _)| *at < open) {
        match c {
            '{' => depth += 1,
            ',' if depth == 1 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            '}' if depth == 1 => {
                parts.push(&text[start..at]);
                for part in parts {
                    expand_braces(&format!("{}{part}{}", &text[..open], &text[at + 1..]), found)?;
                }
                return Some(());
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Matches row by row (dynamic programming), so that the time is bounded by the length of the
/// pattern times that of the path.
fn matches_names(pattern: &[String], names: &[&str]) -> bool {
    let mut row = vec![false; names.len() + 1];
    row[0] = true;
    for part in pattern {
        let mut next = vec![false; names.len() + 1];
        if part == "**" {
            let mut any = false;
            for (at, reached) in row.iter().enumerate() {
                any |= reached;
                next[at] = any;
            }
        } else {
            let part: Vec<char> = part.chars().collect();
            for at in 0..names.len() {
                next[at + 1] = row[at] && matches_name(&part, names[at]);
            }
        }
        row = next;
    }
    row[names.len()]
}

fn matches_name(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // Where to resume when a star has consumed one character too few.
    let mut retry = None;
    loop {
        let step = match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some(_) if n < name.len() => matches_one(&pattern[p..], name[n]),
            None if n == name.len() => return true,
            _ => None,
        };
        match (step, &mut retry) {
            (Some(taken), _) => (p, n) = (p + taken, n + 1),
            (None, Some((after, from))) if *from < name.len() => {
                *from += 1;
                (p, n) = (*after, *from);
            }
            (None, _) => return false,
        }
    }
}

/// Returns how many characters of the pattern match `c`, if they do.
fn matches_one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['[', rest @ ..] => {
            let end = 1 + rest.iter().skip(1).position(|c| *c == ']')?;
            let (negated, set) = match &rest[..end] {
                ['!' | '^', set @ ..] => (true, set),
                set => (false, set),
            };
            let mut at = 0;
            let mut found = false;
            while let Some(from) = set.get(at) {
                match (set.get(at + 1), set.get(at + 2)) {
                    (Some('-'), Some(to)) => {
                        found |= (*from..=*to).contains(&c);
                        at += 3;
                    }
                    _ => {
                        found |= *from == c;
                        at += 1;
                    }
                }
            }
            (found != negated).then_some(end + 2)
        }
        [other, ..] => (*other == c).then_some(1),
        [] => None,
    }
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
            "/w/../x",
            "/w/\\*",
            "/w/{{a,b},{c,d}}{1,2,3,4,5,6,7,8,9,0}{1,2,3,4,5,6,7,8}",
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
