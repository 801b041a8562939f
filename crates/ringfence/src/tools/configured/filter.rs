//! `[surface] cwd` and `arguments`: where an operator's commands may start, and which paths callers
//! may pass to them.
//!
//! A filter checks arguments only; the sandbox enforces actual access.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::schema_paths;
use crate::base::workspace::quote_path;
use crate::base::{Error, Kind, Result, lexical};
use crate::config::{CommandTool, ToolSurface};

/// Maximum number of paths in one call, because each is resolved on disk.
const MAX_PATHS: usize = 4096;
/// The kernel's limit on symlinks in one path.
const MAX_LINKS: usize = 40;

/// Filter of one tool.
pub struct SurfaceFilter {
    cwd: PathBuf,
    allowed_dirs: Vec<PathBuf>,
    allowed_paths: Vec<PathBuf>,
    /// The schema, if it marks any value as a path.
    schema: Option<Value>,
    /// The possible values of each required path whose schema lists them.
    required_choices: Vec<Vec<String>>,
}

impl SurfaceFilter {
    /// Creates the filter of a tool.
    pub fn new(entry: &CommandTool, surface: &ToolSurface) -> SurfaceFilter {
        let list = entry.input_schema.get("required").and_then(Value::as_array);
        let required: Vec<&str> = list.into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = entry.input_schema.get("properties").and_then(Value::as_object);
        let is_required_path =
            |name: &str, schema: &Value| schema["format"] == "path" && required.contains(&name);
        let required_paths = properties
            .into_iter()
            .flatten()
            .filter(|(name, schema)| is_required_path(name, schema));
        SurfaceFilter {
            cwd: entry.cwd.clone().unwrap_or_default(),
            allowed_dirs: surface.command_dirs.clone(),
            allowed_paths: surface.argument_dirs.clone(),
            required_choices: required_paths
                .filter_map(|(_, schema)| possible_values(schema))
                .collect(),
            schema: schema_paths::has_paths(&entry.input_schema)
                .then(|| Value::Object(entry.input_schema.clone())),
        }
    }

    /// Returns whether the tool is listed. A tool that could never be called is not.
    pub fn allows_listing(&self, workspace: &Path) -> bool {
        let cwd = lexical::normalize_path(workspace, &self.cwd);
        let has_allowed_choice = |choices: &Vec<String>| {
            choices.iter().any(|path| self.allows_path(workspace, &cwd, path))
        };
        cwd.starts_with(workspace)
            && is_beneath_any(workspace, &self.allowed_dirs, &cwd)
            && self.required_choices.iter().all(has_allowed_choice)
    }

    /// Checks whether this call may be made; `cwd` is the resolved directory it would start in.
    pub fn check_call(
        &self,
        workspace: &Path,
        cwd: &Path,
        arguments: &Map<String, Value>,
    ) -> Result<()> {
        if !is_beneath_any(workspace, &self.allowed_dirs, cwd) {
            return Err(Error::permission_denied(
                "surface_cwd",
                "the operator does not let commands start in this directory",
            )
            .with_hint("Start it in another directory of the workspace."));
        }
        let Some(schema) = self.schema.as_ref().filter(|_| !self.allowed_paths.is_empty()) else {
            return Ok(());
        };
        let arguments = Value::Object(arguments.clone());
        let marked_paths = schema_paths::find_paths(schema, &arguments);
        if marked_paths.len() > MAX_PATHS {
            return Err(Error::new(
                Kind::TooLarge,
                format!("the call names more than {MAX_PATHS} paths"),
            )
            .with_hint("Name fewer in one call."));
        }
        for marked in marked_paths {
            if !self.allows_path(workspace, cwd, marked.path) {
                let message = format!(
                    "the operator does not let {} name a path there",
                    quote_path(&marked.location)
                );
                return Err(Error::permission_denied("surface_path", message)
                    .with_hint("Name a path inside the workspace, where the operator allows it."));
            }
        }
        Ok(())
    }

    /// Returns whether a path is allowed, both as written and as it resolves now.
    fn allows_path(&self, workspace: &Path, cwd: &Path, path: &str) -> bool {
        if self.allowed_paths.is_empty() {
            return true;
        }
        is_beneath_any(
            workspace,
            &self.allowed_paths,
            &lexical::normalize_path(cwd, Path::new(path)),
        ) && resolve_path(&cwd.join(path))
            .is_some_and(|real| is_beneath_any(workspace, &self.allowed_paths, &real))
    }
}

fn possible_values(schema: &Value) -> Option<Vec<String>> {
    if let Some(constant) = schema["const"].as_str() {
        return Some(vec![constant.to_owned()]);
    }
    let values = schema["enum"].as_array()?;
    Some(values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

fn is_beneath_any(workspace: &Path, dirs: &[PathBuf], path: &Path) -> bool {
    dirs.iter().any(|dir| path.starts_with(lexical::normalize_path(workspace, dir)))
}

/// Resolves a path as the kernel would, one component at a time: `..` is the parent of a symlink's
/// target, not of the symlink. Components after a missing one are kept as they are. Returns `None`
/// if the result cannot be determined.
fn resolve_path(path: &Path) -> Option<PathBuf> {
    let mut resolved = PathBuf::from("/");
    let mut pending_steps: VecDeque<PathStep> = path_steps(path).collect();
    let (mut link_count, mut is_missing) = (0, false);
    while let Some(step) = pending_steps.pop_front() {
        let name = match step {
            PathStep::Root => {
                resolved = PathBuf::from("/");
                continue;
            }
            PathStep::Parent if is_missing || !resolved.is_dir() => return None,
            PathStep::Parent => {
                resolved.pop();
                continue;
            }
            PathStep::Child(name) => name,
        };
        let next = resolved.join(&name);
        if is_missing {
            resolved = next;
            continue;
        }
        match next.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                link_count += 1;
                if link_count > MAX_LINKS {
                    return None;
                }
                let target = next.read_link().ok()?;
                path_steps(&target).rev().for_each(|step| pending_steps.push_front(step));
            }
            Ok(_) => resolved = next,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                is_missing = true;
                resolved = next;
            }
            Err(_) => return None,
        }
    }
    Some(resolved)
}

enum PathStep {
    Root,
    Parent,
    Child(OsString),
}

fn path_steps(path: &Path) -> impl DoubleEndedIterator<Item = PathStep> {
    path.components().filter_map(|part| match part {
        Component::RootDir => Some(PathStep::Root),
        Component::ParentDir => Some(PathStep::Parent),
        Component::Normal(name) => Some(PathStep::Child(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}
