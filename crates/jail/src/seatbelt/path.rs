//! Paths in the form in which the macOS kernel compares them.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::PolicyPathError;

/// Links into `/private` on every Mac; policy rules use the real path.
const PRIVATE_LINKS: [&str; 3] = ["/tmp", "/var", "/etc"];

pub(super) fn normalize_all(paths: &[PathBuf]) -> Result<BTreeSet<String>, PolicyPathError> {
    paths.iter().map(|path| normalize_path(path)).collect()
}

/// Returns the normal form: absolute, without `.` and without double or trailing slashes.
fn normalize_path(path: &Path) -> Result<String, PolicyPathError> {
    let path_error = |reason| PolicyPathError { path: path.to_owned(), reason };
    let text = path.to_str().ok_or_else(|| path_error("it is not UTF-8"))?;
    if text.contains('\0') {
        return Err(path_error("it contains a NUL byte"));
    }
    let mut normalized = String::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                normalized.push('/');
                normalized.push_str(name.to_str().unwrap_or_default());
            }
            // The target of `..` depends on links, so it cannot be removed from the text alone.
            Component::ParentDir => return Err(path_error("it contains `..`: resolve it first")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    if !path.has_root() {
        return Err(path_error("it is relative: make it absolute first"));
    }
    if PRIVATE_LINKS.iter().any(|link| Path::new(&normalized).starts_with(link)) {
        normalized.insert_str(0, "/private");
    }
    if normalized.is_empty() {
        normalized.push('/');
    }
    Ok(normalized)
}

/// Returns every directory above one of the paths, and the roots themselves.
pub(super) fn directories_above<'a>(
    paths: impl Iterator<Item = &'a String>,
    roots: &BTreeSet<String>,
) -> BTreeSet<String> {
    let ancestors = paths.flat_map(|path| Path::new(path).ancestors().skip(1));
    let ancestors =
        ancestors.filter_map(Path::to_str).filter(|path| *path != "/" && !path.is_empty());
    ancestors.map(str::to_owned).chain(roots.iter().cloned()).collect()
}

/// Returns a regular expression that matches the path in every spelling that the file system may
/// treat as the same, and rather too many than too few. It is pure ASCII, because it is unknown how
/// these expressions handle other characters.
pub(super) fn spelling_regex(path: &str, end: &str) -> String {
    let mut pattern = String::from("^");
    let mut letters = path.chars().peekable();
    while let Some(letter) = letters.next() {
        // An accent may be part of its letter or follow it; in both cases the letter is not
        // compared.
        let accented = letters.peek().is_some_and(|next| !next.is_ascii());
        if letter != '/' && (accented || !letter.is_ascii()) {
            while letters.next_if(|next| !next.is_ascii()).is_some() {}
            pattern.push_str("[^/]+");
            continue;
        }
        match letter {
            // Two characters outside ASCII, the Kelvin sign and the long s, are equal to these
            // letters.
            'k' | 'K' => pattern.push_str("([kK]|[^ -~]+)"),
            's' | 'S' => pattern.push_str("([sS]|[^ -~]+)"),
            _ if letter.is_ascii_alphabetic() => {
                pattern.extend([
                    '[',
                    letter.to_ascii_lowercase(),
                    letter.to_ascii_uppercase(),
                    ']',
                ]);
            }
            _ if r".^$*+?()[]{}|\".contains(letter) => pattern.extend(['\\', letter]),
            _ => pattern.push(letter),
        }
    }
    pattern + end + "$"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(path: &str) -> Result<String, &'static str> {
        normalize_path(Path::new(path)).map_err(|bad| bad.reason)
    }

    #[test]
    fn the_links_of_every_mac_are_resolved_and_only_those() {
        assert_eq!(plain("/tmp/x").unwrap(), "/private/tmp/x");
        assert_eq!(plain("/var").unwrap(), "/private/var");
        assert_eq!(plain("/etc/hosts").unwrap(), "/private/etc/hosts");
        assert_eq!(plain("/private/tmp/x").unwrap(), "/private/tmp/x");
        assert_eq!(plain("/variant/tmp").unwrap(), "/variant/tmp");
        assert_eq!(plain("//Users//me/./x/").unwrap(), "/Users/me/x");
        assert_eq!(plain("/").unwrap(), "/");
    }

    #[test]
    fn a_path_that_would_mean_something_else_is_refused() {
        assert!(plain("/a/../b").unwrap_err().contains(".."));
        assert!(plain("a/b").unwrap_err().contains("relative"));
        assert!(plain("").unwrap_err().contains("relative"));
        assert!(plain("/a\0b").unwrap_err().contains("NUL"));
        let broken: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"/a\xff");
        assert!(normalize_path(Path::new(broken)).unwrap_err().reason.contains("UTF-8"));
    }

    #[test]
    fn a_spelling_is_quoted_and_takes_any_case() {
        assert_eq!(spelling_regex("/a.b", "(/.*)?"), r"^/[aA]\.[bB](/.*)?$");
        assert_eq!(spelling_regex("/1-_ \"(x)*^\\[]", ""), r#"^/1-_ "\([xX]\)\*\^\\\[\]$"#);
        assert_eq!(spelling_regex("/ks", ""), "^/([kK]|[^ -~]+)([sS]|[^ -~]+)$");
        assert_eq!(spelling_regex("/caf\u{e9}/x", ""), "^/[cC][aA][^/]+/[xX]$");
        assert_eq!(spelling_regex("/cafe\u{301}/x", ""), "^/[cC][aA][fF][^/]+/[xX]$");
        assert_eq!(spelling_regex("/\u{e9}", ""), "^/[^/]+$");
    }

    /// Tests the pattern with an engine that has the same syntax.
    fn matches(pattern: &str, path: &str) -> bool {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let mut grep = Command::new("grep");
        grep.args(["-E", "-z", "-q", "-e", pattern]).env("LC_ALL", "C").stdin(Stdio::piped());
        let mut grep = grep.spawn().unwrap();
        grep.stdin.take().unwrap().write_all(path.as_bytes()).unwrap();
        grep.wait().unwrap().success()
    }

    #[test]
    fn every_spelling_of_a_path_is_met_and_no_other_path() {
        let pattern = spelling_regex("/Users/me/a (b)/.Risk", "(/.*)?");
        for same in [
            "/Users/me/a (b)/.Risk",
            "/users/ME/A (B)/.rIsK/x/y",
            "/U\u{17f}ers/me/a (b)/.Ris\u{212a}",
        ] {
            assert!(matches(&pattern, same), "{same}");
        }
        for other in [
            "/Users/me/a (b)/.Risks",
            "/Users/me/a b/.Risk",
            "/Users/me/a (b)/xRisk",
            "x/Users/me/a (b)/.Risk",
        ] {
            assert!(!matches(&pattern, other), "{other}");
        }
        let accented = spelling_regex("/caf\u{e9}", "");
        assert!(
            matches(&accented, "/cafe\u{301}")
                && matches(&accented, "/CAF\u{c9}")
                && !matches(&accented, "/tea")
        );
    }
}
