//! `[surface] cwd` and `arguments`: where an operator's commands may start, and which paths callers
//! may pass to them.
//!
//! A filter checks arguments only; the sandbox enforces actual access.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::marks;
use crate::base::workspace::quoted;
use crate::base::{Error, Kind, Result, lexical};
use crate::config::{Entry, Surface};

/// Maximum number of paths in one call, because each is resolved on disk.
const PATHS: usize = 4096;
/// The kernel's limit on symlinks in one path.
const LINKS: usize = 40;

/// Filter of one tool.
pub struct Filter {
    cwd: PathBuf,
    places: Vec<PathBuf>,
    arguments: Vec<PathBuf>,
    /// The schema, if it marks any value as a path.
    schema: Option<Value>,
    /// The possible values of each required path whose schema lists them.
    only: Vec<Vec<String>>,
}

impl Filter {
    /// Creates the filter of a tool.
    pub fn new(entry: &Entry, surface: &Surface) -> Filter {
        let list = entry.input_schema.get("required").and_then(Value::as_array);
        let required: Vec<&str> = list.into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = entry.input_schema.get("properties").and_then(Value::as_object);
        let must =
            |name: &str, schema: &Value| schema["format"] == "path" && required.contains(&name);
        let only = properties.into_iter().flatten().filter(|(name, schema)| must(name, schema));
        let schema = Value::Object(entry.input_schema.clone());
        Filter {
            cwd: entry.cwd.clone().unwrap_or_default(),
            places: surface.cwd.clone(),
            arguments: surface.arguments.clone(),
            only: only.filter_map(|(_, schema)| choices(schema)).collect(),
            schema: marks::has_paths(&schema).then_some(schema),
        }
    }

    /// Returns whether the tool is listed. A tool that could never be called is not.
    pub fn shows(&self, workspace: &Path) -> bool {
        let cwd = lexical::normalize(workspace, &self.cwd);
        let possible =
            |only: &Vec<String>| only.iter().any(|path| self.takes(workspace, &cwd, path));
        cwd.starts_with(workspace)
            && among(workspace, &self.places, &cwd)
            && self.only.iter().all(possible)
    }

    /// Checks whether this call may be made; `cwd` is the resolved directory it would start in.
    pub fn check(
        &self,
        workspace: &Path,
        cwd: &Path,
        arguments: &Map<String, Value>,
    ) -> Result<()> {
        if !among(workspace, &self.places, cwd) {
            return Err(Error::permission_denied(
                "surface_cwd",
                "the operator does not let commands start in this directory",
            )
            .hint("Start it in another directory of the workspace."));
        }
        let Some(schema) = self.schema.as_ref().filter(|_| !self.arguments.is_empty()) else {
            return Ok(());
        };
        let arguments = Value::Object(arguments.clone());
        let found = marks::find(schema, &arguments);
        if found.len() > PATHS {
            return Err(Error::new(
                Kind::TooLarge,
                format!("the call names more than {PATHS} paths"),
            )
            .hint("Name fewer in one call."));
        }
        for marked in found {
            if !self.takes(workspace, cwd, marked.path) {
                let message = format!(
                    "the operator does not let {} name a path there",
                    quoted(&marked.place)
                );
                return Err(Error::permission_denied("surface_path", message)
                    .hint("Name a path inside the workspace, where the operator allows it."));
            }
        }
        Ok(())
    }

    /// Returns whether a path is allowed, both as written and as it resolves now.
    fn takes(&self, workspace: &Path, cwd: &Path, path: &str) -> bool {
        if self.arguments.is_empty() {
            return true;
        }
        among(workspace, &self.arguments, &lexical::normalize(cwd, Path::new(path)))
            && follow(&cwd.join(path)).is_some_and(|real| among(workspace, &self.arguments, &real))
    }
}

fn choices(schema: &Value) -> Option<Vec<String>> {
    if let Some(only) = schema["const"].as_str() {
        return Some(vec![only.to_owned()]);
    }
    let all = schema["enum"].as_array()?;
    Some(all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

fn among(workspace: &Path, places: &[PathBuf], path: &Path) -> bool {
    places.iter().any(|place| path.starts_with(lexical::normalize(workspace, place)))
}

/// Resolves a path as the kernel would, one component at a time: `..` is the parent of a symlink's
/// target, not of the symlink. Components after a missing one are kept as they are. Returns `None`
/// if the result cannot be determined.
fn follow(path: &Path) -> Option<PathBuf> {
    let mut real = PathBuf::from("/");
    let mut left: VecDeque<Step> = steps(path).collect();
    let (mut links, mut is_missing) = (0, false);
    while let Some(step) = left.pop_front() {
        let name = match step {
            Step::Top => {
                real = PathBuf::from("/");
                continue;
            }
            Step::Up if is_missing || !real.is_dir() => return None,
            Step::Up => {
                real.pop();
                continue;
            }
            Step::Down(name) => name,
        };
        let next = real.join(&name);
        if is_missing {
            real = next;
            continue;
        }
        match next.symlink_metadata() {
            Ok(facts) if facts.is_symlink() => {
                links += 1;
                if links > LINKS {
                    return None;
                }
                let target = next.read_link().ok()?;
                steps(&target).rev().for_each(|step| left.push_front(step));
            }
            Ok(_) => real = next,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                is_missing = true;
                real = next;
            }
            Err(_) => return None,
        }
    }
    Some(real)
}

enum Step {
    Top,
    Up,
    Down(OsString),
}

fn steps(path: &Path) -> impl DoubleEndedIterator<Item = Step> {
    path.components().filter_map(|part| match part {
        Component::RootDir => Some(Step::Top),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Down(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}
