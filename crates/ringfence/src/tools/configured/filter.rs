//! `[surface] cwd` and `arguments`: where an operator's commands may work, and which paths they may be given.
//!
//! A filter is about what is asked for; what is touched is the fence's matter.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use crate::base::{Error, Result};
use crate::config::{Entry, Surface};

pub struct Filter {
    cwd: PathBuf,
    places: Vec<PathBuf>,
    arguments: Vec<PathBuf>,
    /// Properties that hold a path, or a list of them.
    paths: Vec<Argument>,
}

struct Argument {
    name: String,
    /// All that it can be, where the schema says so and it must be given.
    only: Option<Vec<String>>,
}

impl Filter {
    pub fn new(entry: &Entry, surface: &Surface) -> Filter {
        let required: Vec<&str> = entry
            .input_schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let properties = entry.input_schema.get("properties").and_then(Value::as_object);
        let is_path = |schema: &Value| schema["format"] == "path" || schema["items"]["format"] == "path";
        let paths = properties.into_iter().flatten().filter(|(_, schema)| is_path(schema));
        let paths = paths.map(|(name, schema)| Argument {
            name: name.clone(),
            only: choices(schema).filter(|_| required.contains(&name.as_str())),
        });
        Filter {
            cwd: entry.cwd.clone().unwrap_or_default(),
            places: surface.cwd.clone(),
            arguments: surface.arguments.clone(),
            paths: paths.collect(),
        }
    }

    /// What can never be called is not shown.
    pub fn shows(&self, workspace: &Path) -> bool {
        let cwd = settle(workspace, &self.cwd);
        let possible = |argument: &Argument| match &argument.only {
            Some(only) => only.iter().any(|path| self.takes(workspace, &cwd, path)),
            None => true,
        };
        cwd.starts_with(workspace) && among(workspace, &self.places, &cwd) && self.paths.iter().all(possible)
    }

    /// Whether this call may be made: `cwd` is where it would really start.
    pub fn check(&self, workspace: &Path, cwd: &Path, arguments: &Map<String, Value>) -> Result<()> {
        if !among(workspace, &self.places, cwd) {
            return Err(Error::permission_denied(
                "surface_cwd",
                "the operator does not let commands start in this directory",
            )
            .hint("Start it in another directory of the workspace."));
        }
        for argument in &self.paths {
            let texts: Vec<&str> = match arguments.get(&argument.name) {
                Some(Value::String(path)) => vec![path],
                Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
                _ => continue,
            };
            if texts.iter().any(|path| !self.takes(workspace, cwd, path)) {
                let message = format!("the operator does not let `{}` name a path there", argument.name);
                return Err(Error::permission_denied("surface_path", message)
                    .hint("Name a path inside the workspace, where the operator allows it."));
            }
        }
        Ok(())
    }

    fn takes(&self, workspace: &Path, cwd: &Path, path: &str) -> bool {
        if self.arguments.is_empty() {
            return true;
        }
        let path = settle(cwd, Path::new(path));
        // By its name, and by where that leads now.
        among(workspace, &self.arguments, &path) && among(workspace, &self.arguments, &follow(&path))
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
    places.iter().any(|place| path.starts_with(settle(workspace, place)))
}

/// Without `.` and `..`; a relative one starts at `base`.
fn settle(base: &Path, path: &Path) -> PathBuf {
    let mut settled = PathBuf::new();
    for part in base.join(path).components() {
        match part {
            Component::ParentDir => drop(settled.pop()),
            Component::CurDir => {}
            part => settled.push(part),
        }
    }
    settled
}

/// Links followed as far as the path exists.
fn follow(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match found {
        Some((above, real)) => real.join(path.strip_prefix(above).unwrap_or(Path::new(""))),
        None => path.to_owned(),
    }
}
