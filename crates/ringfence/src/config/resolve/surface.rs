//! `[surface]` and `[session]`: which tools are available, where they may work, and what a client
//! may override for its session.

use std::path::PathBuf;
use std::time::Duration;

use super::{Layers, Picker};
use crate::base::Result;
use crate::base::glob::Glob;
use crate::config::parse::raw;

/// Pattern over names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    text: String,
    glob: Glob,
}

impl Names {
    /// Parses a pattern; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Names> {
        if text.is_empty() || text.contains('/') {
            return None;
        }
        Some(Names { text: text.to_owned(), glob: Glob::parse(&format!("/{text}"))? })
    }

    /// Returns whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        !name.contains('/') && self.glob.matches(&PathBuf::from(format!("/{name}")))
    }

    /// Returns whether a tool's name matches in either spelling.
    pub fn fits(&self, tool: &str) -> bool {
        self.matches(tool) || self.matches(&tool.replace('.', "_"))
    }

    /// Returns the pattern as written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Available tools, and the directories in which commands may work.
#[derive(Debug, Clone)]
pub struct Surface {
    /// False leaves only the legacy pair of tools.
    pub enabled: bool,
    pub allow: Vec<Names>,
    pub deny: Vec<Names>,
    /// A command whose directory is in none of these is not available. Relative paths start at the
    /// workspace.
    pub cwd: Vec<PathBuf>,
    /// Arguments that are paths must be in one of these; if empty, they are not restricted.
    pub arguments: Vec<PathBuf>,
    /// Time limit of a command without one of its own.
    pub default_timeout: Duration,
}

impl Surface {
    /// Returns whether a tool of this name is available. Deny takes precedence.
    pub fn shows(&self, name: &str) -> bool {
        let any = |patterns: &[Names]| patterns.iter().any(|pattern| pattern.fits(name));
        any(&self.allow) && !any(&self.deny)
    }

    /// Returns whether a tool is available and named in full, not merely matched by a pattern.
    pub fn names(&self, name: &str) -> bool {
        let spelled = [name.to_owned(), name.replace('.', "_")];
        self.allow.iter().any(|pattern| spelled.iter().any(|name| pattern.text() == name))
            && self.shows(name)
    }
}

/// Settings that a client may override for its own session: none, unless the operator lists them.
#[derive(Debug, Clone, Default)]
pub struct Shaping {
    pub cwd: bool,
    pub env: Vec<Names>,
}

impl Shaping {
    /// Returns whether a client may set this variable.
    pub fn lets_set(&self, variable: &str) -> bool {
        self.env.iter().any(|pattern| pattern.matches(variable))
    }
}

fn texts(names: &[Names]) -> String {
    names.iter().map(Names::text).collect::<Vec<_>>().join(", ")
}

fn patterns(written: &Option<Vec<raw::NamePattern>>) -> Option<Vec<Names>> {
    written.as_ref().map(|all| all.iter().map(|one| one.0.clone()).collect::<Vec<_>>())
}

/// Resolves `[surface]`.
pub fn resolve(
    p: &mut Picker<'_>,
    enabled: bool,
    file: &raw::Surface,
    defaults: &raw::Surface,
) -> Result<Surface> {
    macro_rules! names {
        ($field:ident) => {{
            let layers = Layers::file_only(patterns(&file.$field), patterns(&defaults.$field));
            p.pick(concat!("surface.", stringify!($field)), layers, |all| texts(all))?.0
        }};
    }
    macro_rules! paths {
        ($field:ident) => {{
            let layers = Layers::file_only(file.$field.clone(), defaults.$field.clone());
            p.pick(concat!("surface.", stringify!($field)), layers, |all: &Vec<PathBuf>| {
                all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
            })?
            .0
        }};
    }
    let timeout = Layers::file_only(file.default_timeout_ms, defaults.default_timeout_ms);
    Ok(Surface {
        enabled,
        allow: names!(allow),
        deny: names!(deny),
        cwd: paths!(cwd),
        arguments: paths!(arguments),
        default_timeout: Duration::from_millis(
            p.pick("surface.default_timeout_ms", timeout, |value| value.0.to_string())?.0.0,
        ),
    })
}

/// Resolves `[session]`.
pub fn shaping(
    p: &mut Picker<'_>,
    file: &raw::Session,
    defaults: &raw::Session,
) -> Result<Shaping> {
    let cwd = Layers::file_only(file.cwd_override, defaults.cwd_override);
    let patterns = |written: &Option<Vec<raw::VariablePattern>>| {
        written.as_ref().map(|all| all.iter().map(|one| one.0.clone()).collect::<Vec<_>>())
    };
    let env = Layers::file_only(patterns(&file.env_overrides), patterns(&defaults.env_overrides));
    Ok(Shaping {
        cwd: p.pick("session.cwd_override", cwd, bool::to_string)?.0,
        env: p.pick("session.env_overrides", env, |all| texts(all))?.0,
    })
}
