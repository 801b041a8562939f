//! `[surface]` and `[session]`: which tools are available, where they may work, and what a client
//! may override for its session.

use std::path::PathBuf;
use std::time::Duration;

use super::{Layers, SettingPicker};
use crate::base::Result;
use crate::config::parse::raw;
use crate::config::values::NameGlob;

/// Available tools, and the directories in which commands may work.
#[derive(Debug, Clone)]
pub struct ToolSurface {
    /// False leaves only the legacy pair of tools.
    pub enabled: bool,
    pub allow: Vec<NameGlob>,
    pub deny: Vec<NameGlob>,
    /// A command whose directory is in none of these is not available. Relative paths start at the
    /// workspace.
    pub command_dirs: Vec<PathBuf>,
    /// Arguments that are paths must be in one of these; if empty, they are not restricted.
    pub argument_dirs: Vec<PathBuf>,
    /// Time limit of a command without one of its own.
    pub default_timeout: Duration,
}

impl ToolSurface {
    /// Returns whether a tool of this name is available. Deny takes precedence.
    pub fn allows_tool(&self, name: &str) -> bool {
        let matches_any =
            |patterns: &[NameGlob]| patterns.iter().any(|pattern| pattern.matches_tool(name));
        matches_any(&self.allow) && !matches_any(&self.deny)
    }

    /// Returns whether a tool is available and named in full, not merely matched by a pattern.
    pub fn names_tool(&self, name: &str) -> bool {
        let spellings = [name.to_owned(), name.replace('.', "_")];
        self.allow.iter().any(|pattern| spellings.iter().any(|name| pattern.as_str() == name))
            && self.allows_tool(name)
    }
}

/// Settings that a client may override for its own session: none, unless the operator lists them.
#[derive(Debug, Clone, Default)]
pub struct OverridePolicy {
    pub allows_cwd: bool,
    pub variables: Vec<NameGlob>,
}

impl OverridePolicy {
    /// Returns whether a client may set this variable.
    pub fn allows_variable(&self, variable: &str) -> bool {
        self.variables.iter().any(|pattern| pattern.matches(variable))
    }
}

fn texts(names: &[NameGlob]) -> String {
    names.iter().map(NameGlob::as_str).collect::<Vec<_>>().join(", ")
}

fn patterns(written: &Option<Vec<raw::NamePattern>>) -> Option<Vec<NameGlob>> {
    written.as_ref().map(|all| all.iter().map(|one| one.0.clone()).collect::<Vec<_>>())
}

/// Resolves `[surface]`.
pub fn resolve_surface(
    picker: &mut SettingPicker<'_>,
    enabled: bool,
    file: &raw::SurfaceSection,
    defaults: &raw::SurfaceSection,
) -> Result<ToolSurface> {
    macro_rules! names {
        ($field:ident) => {{
            let layers = Layers::file_only(patterns(&file.$field), patterns(&defaults.$field));
            picker.pick(concat!("surface.", stringify!($field)), layers, |all| texts(all))?.0
        }};
    }
    macro_rules! paths {
        ($field:ident) => {{
            let layers = Layers::file_only(file.$field.clone(), defaults.$field.clone());
            picker
                .pick(concat!("surface.", stringify!($field)), layers, |all: &Vec<PathBuf>| {
                    all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
                })?
                .0
        }};
    }
    let timeout = Layers::file_only(file.default_timeout_ms, defaults.default_timeout_ms);
    Ok(ToolSurface {
        enabled,
        allow: names!(allow),
        deny: names!(deny),
        command_dirs: paths!(cwd),
        argument_dirs: paths!(arguments),
        default_timeout: Duration::from_millis(
            picker.pick("surface.default_timeout_ms", timeout, |value| value.0.to_string())?.0.0,
        ),
    })
}

/// Resolves `[session]`.
pub fn resolve_overrides(
    picker: &mut SettingPicker<'_>,
    file: &raw::SessionSection,
    defaults: &raw::SessionSection,
) -> Result<OverridePolicy> {
    let cwd = Layers::file_only(file.cwd_override, defaults.cwd_override);
    let patterns = |written: &Option<Vec<raw::VariablePattern>>| {
        written.as_ref().map(|all| all.iter().map(|one| one.0.clone()).collect::<Vec<_>>())
    };
    let env = Layers::file_only(patterns(&file.env_overrides), patterns(&defaults.env_overrides));
    Ok(OverridePolicy {
        allows_cwd: picker.pick("session.cwd_override", cwd, bool::to_string)?.0,
        variables: picker.pick("session.env_overrides", env, |all| texts(all))?.0,
    })
}
