//! Checks the group references in a replacement, parsed the way the regex engine does.

use regex::Regex;

/// Returns the first group named in `new` that the pattern does not have, and what to write
/// instead.
pub fn find_unknown_group(regex: &Regex, new: &str) -> Option<(String, String)> {
    let is_known = |name: &str| match name.parse::<usize>() {
        Ok(number) => number < regex.captures_len(),
        Err(_) => regex.capture_names().flatten().any(|group| group == name),
    };
    let mut rest = new;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            rest = after;
            continue;
        }
        let (name, braced) = match rest.strip_prefix('{').and_then(|inside| inside.split_once('}'))
        {
            Some((name, _)) => (name, true),
            None => (&rest[..bare_name_len(rest)], false),
        };
        if !name.is_empty() && !is_known(name) {
            return Some((name.to_owned(), unknown_group_hint(name, braced, is_known)));
        }
    }
    None
}

/// Returns the length of a group name without braces.
fn bare_name_len(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

fn unknown_group_hint(name: &str, braced: bool, is_known: impl Fn(&str) -> bool) -> String {
    let intended = (1..name.len())
        .rev()
        .filter(|_| !braced)
        .find_map(|end| name.split_at_checked(end).filter(|(group, _)| is_known(group)));
    match intended {
        Some((group, tail)) => {
            format!("A group name extends as far as possible: write `${{{group}}}{tail}`.")
        }
        None => {
            "Name a group of the pattern, `${1}` or `${name}`; write a literal dollar sign as `$$`."
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_not_there_is_named_with_what_was_meant() {
        let regex = Regex::new(r"(\d+)(?P<unit>[a-z]+)").unwrap();
        for good in [
            "", "$1", "${1}px", "$unit-$2", "$$1px $", "${unit}s", "$0", "a$ b", "${", "$ {x}",
            "$$$1",
        ] {
            assert_eq!(find_unknown_group(&regex, good), None, "{good}");
        }
        for (bad, name, hint) in [
            ("$1px", "1px", "write `${1}px`"),
            ("x $units", "units", "write `${unit}s`"),
            ("$3", "3", "`${1}`"),
            ("${nothing}", "nothing", "`$$`"),
            ("$$$1_", "1_", "write `${1}_`"),
        ] {
            let (found, words) = find_unknown_group(&regex, bad).unwrap();
            assert!(found == name && words.contains(hint), "{bad}: {found} {words}");
            // The engine would have put nothing there.
            assert!(
                !regex.replace("12em", bad).contains("12px")
                    && !regex.replace("12em", bad).contains("ems")
            );
        }
    }
}
