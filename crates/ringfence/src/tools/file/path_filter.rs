//! Filters paths by globs, as in ripgrep and git, and by file type.
//!
//! Filters only select among the paths that may be seen. Unlike in ripgrep, a glob never brings
//! back ignored or hidden files: a model that asks for `**/*` does not mean the build directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::types::{Types, TypesBuilder};

use crate::base::suggest::suggest_name;
use crate::base::{Error, Result};

const MAX_GLOBS: usize = 100;
const MAX_GLOB_BYTES: usize = 1024;

/// Filter for the paths that a caller asked for.
#[derive(Debug)]
pub struct PathFilter {
    include: Option<Gitignore>,
    exclude: Option<Gitignore>,
    types: Option<Types>,
    /// A glob names a component that starts with a dot.
    pub names_hidden: bool,
}

impl PathFilter {
    /// Builds a filter from globs to include, globs to exclude and a ripgrep file type.
    pub fn new(
        include: &[String],
        exclude: &[String],
        file_type: Option<&str>,
    ) -> Result<PathFilter> {
        // A glob that starts with `!` excludes, as in ripgrep.
        let negated = include.iter().filter_map(|glob| glob.strip_prefix('!'));
        let exclude: Vec<&str> = exclude.iter().map(String::as_str).chain(negated).collect();
        let include: Vec<&str> =
            include.iter().map(String::as_str).filter(|glob| !glob.starts_with('!')).collect();
        let is_hidden_glob = |glob: &&str| {
            glob.split('/').any(|name| name.starts_with('.') && name != "." && name != "..")
        };
        Ok(PathFilter {
            names_hidden: include.iter().any(is_hidden_glob),
            include: build_glob_matcher("glob", &include, true)?,
            exclude: build_glob_matcher("exclude", &exclude, false)?,
            types: file_type.map(build_type_matcher).transpose()?,
        })
    }

    /// Returns whether there are globs to include.
    pub fn has_globs(&self) -> bool {
        self.include.is_some()
    }

    /// Returns whether a path, relative to the base of the globs, is excluded together with
    /// everything below it.
    pub fn excludes(&self, path: &[u8], is_dir: bool) -> bool {
        matches_glob(self.exclude.as_ref(), path, is_dir).unwrap_or(false)
    }

    /// Returns whether a path that is not excluded is selected.
    pub fn includes(&self, path: &[u8], is_dir: bool) -> bool {
        let matches_type = || {
            self.types
                .as_ref()
                .is_none_or(|types| !types.matched(as_path(path), is_dir).is_ignore())
        };
        matches_glob(self.include.as_ref(), path, is_dir).unwrap_or(true) && matches_type()
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn matches_glob(matcher: Option<&Gitignore>, path: &[u8], is_dir: bool) -> Option<bool> {
    Some(matcher?.matched(as_path(path), is_dir).is_ignore())
}

fn build_glob_matcher(
    argument: &str,
    globs: &[&str],
    include_contents: bool,
) -> Result<Option<Gitignore>> {
    if globs.is_empty() {
        return Ok(None);
    }
    let argument_error =
        |reason: String| Error::invalid_arguments(reason).with_fact("argument", argument);
    if globs.len() > MAX_GLOBS || globs.iter().any(|glob| glob.len() > MAX_GLOB_BYTES) {
        let limit_message =
            format!("`{argument}` takes up to {MAX_GLOBS} globs of {MAX_GLOB_BYTES} bytes");
        return Err(argument_error(limit_message));
    }
    let glob_error = |glob: &str, reason: String| {
        argument_error(format!("`{}` in `{argument}` is not a valid glob: {reason}", crate::base::workspace::quote_path(glob).trim_matches('`')))
            .with_hint("Globs are written as in .gitignore: `*.rs`, `src/**/*.ts`, `{a,b}/*`. Escape special characters with `\\`.")
    };
    let mut builder = GitignoreBuilder::new(".");
    // An unclosed bracket is a mistake, not a literal name.
    builder.allow_unclosed_class(false);
    for glob in globs {
        let plain = glob.strip_prefix("./").unwrap_or(glob);
        if plain.trim().is_empty() {
            return Err(glob_error(glob, "it is empty".to_owned()));
        }
        // Escape characters that are special only at the start of a line in an ignore file.
        let mut line = match plain.starts_with(['#', '!']) {
            true => format!("\\{plain}"),
            false => plain.to_owned(),
        };
        if include_contents && line.ends_with('/') {
            line.push_str("**");
        }
        builder.add_line(None, &line).map_err(|error| glob_error(glob, error.to_string()))?;
    }
    builder.build().map(Some).map_err(|error| {
        argument_error(format!("the globs in `{argument}` cannot be compiled: {error}"))
    })
}

fn build_type_matcher(name: &str) -> Result<Types> {
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    let known_types = builder.definitions();
    let known_types: Vec<&str> = known_types.iter().map(ignore::types::FileTypeDef::name).collect();
    if !known_types.contains(&name) {
        let hint = match suggest_name(name, &known_types) {
            Some(suggestion) => format!("Did you mean `{suggestion}`?"),
            None => {
                "Types are ripgrep's: rust, py, js, ts, go, java, c, cpp, md, json … or use `glob`."
                    .to_owned()
            }
        };
        return Err(Error::invalid_arguments("the argument `type` is not a known file type")
            .with_hint(hint)
            .with_fact("argument", "type"));
    }
    builder.select(name);
    builder.build().map_err(|error| {
        Error::internal("the file type filter could not be built").with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(include: &[&str], exclude: &[&str]) -> PathFilter {
        let own = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>();
        PathFilter::new(&own(include), &own(exclude), None).unwrap()
    }

    #[test]
    fn globs_are_those_of_git() {
        let wanted =
            |globs: &[&str], path: &str| selection(globs, &[]).includes(path.as_bytes(), false);
        for (glob, path, matches) in [
            ("*.rs", "a.rs", true),
            ("*.rs", "src/deep/a.rs", true),
            ("/*.rs", "src/a.rs", false),
            ("src/*.rs", "src/a.rs", true),
            ("./src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/deep/a.rs", false),
            ("src/**/*.rs", "src/deep/er/a.rs", true),
            ("src/**/*.rs", "src/a.rs", true),
            ("src/", "src/deep/a.rs", true),
            ("**/*", "a", true),
            ("*.{ts,tsx}", "x/a.tsx", true),
            ("#x", "#x", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
        ] {
            assert_eq!(wanted(&[glob], path), matches, "{glob} {path}");
        }
        assert!(wanted(&["*.c", "*.h"], "x.h"));
        assert!(wanted(&[], "anything"));
        let less = selection(&["*.rs", "!gen.rs"], &["vendor/", "*.min.js"]);
        assert!(less.excludes(b"a/gen.rs", false) && less.excludes(b"x/vendor", true));
        assert!(!less.excludes(b"x/vendor", false) && less.excludes(b"a.min.js", false));
        assert!(
            selection(&[".github/**"], &[]).names_hidden
                && !selection(&["./a/*.rs"], &[]).names_hidden
        );
    }

    #[test]
    fn what_is_no_glob_is_named() {
        for wrong in ["[a", "{a", ""] {
            let error = PathFilter::new(&[wrong.to_owned()], &[], None).unwrap_err();
            assert_eq!(error.kind(), crate::base::Kind::InvalidArguments, "{wrong}");
        }
        assert!(PathFilter::new(&vec!["a".to_owned(); 101], &[], None).is_err());
    }

    #[test]
    fn types_are_those_of_ripgrep() {
        let typed = PathFilter::new(&[], &[], Some("rust")).unwrap();
        assert!(typed.includes(b"src/a.rs", false) && !typed.includes(b"a.py", false));
        let error = PathFilter::new(&[], &[], Some("pythn")).unwrap_err();
        assert_eq!(error.hint_text(), Some("Did you mean `python`?"));
    }
}
