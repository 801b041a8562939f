//! What a client chooses for its commands: checked against what the operator lets it choose, each time it is used.

use serde_json::{Value, json};

use crate::base::workspace::Workspace;
use crate::base::{Error, Result};
use crate::config::Config;
use crate::sandbox::env;
use crate::session::Shape;

/// A variable is a word, not a file.
const VALUE_BYTES: usize = 32 << 10;
const VARIABLES: usize = 64;

/// The same shape as it holds, with the directory as it is reached from the workspace.
pub fn check(shape: &Shape, config: &Config, workspace: &Workspace) -> Result<Shape> {
    let mut checked = shape.clone();
    if let Some(cwd) = &shape.cwd {
        if !config.shaping.cwd {
            return Err(not_allowed("`cwd_override`", "session.cwd_override = true"));
        }
        let (_, below) = workspace.open_dir(cwd)?;
        checked.cwd = Some(if below.is_empty() { ".".to_owned() } else { below });
    }
    if shape.env.len() > VARIABLES || shape.env.iter().any(|(_, value)| value.len() > VALUE_BYTES) {
        return Err(Error::invalid_arguments("`env_overrides` is too large").hint(format!(
            "Set at most {VARIABLES} variables of at most {VALUE_BYTES} bytes each."
        )));
    }
    for (name, value) in &shape.env {
        env::check_override(name, value)?;
        if !config.shaping.lets_set(name) {
            let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(not_allowed(
                &format!("the variable `{shown}`"),
                "its name in `session.env_overrides`",
            ));
        }
    }
    Ok(checked)
}

fn not_allowed(what: &str, how: &str) -> Error {
    Error::permission_denied(
        "override_not_allowed",
        format!("the operator does not let a client set {what}"),
    )
    .hint(format!("Leave it out (null takes it back), or ask the operator for {how}."))
}

/// On every result of a call that did not start where and with what it usually would.
pub const META: &str = "dev.ringfence/overrides";

/// What is active, without the values.
pub fn about(shape: &Shape) -> Value {
    let names: Vec<&String> = shape.env.iter().map(|(name, _)| name).collect();
    json!({"cwd_override": shape.cwd, "env_overrides": names})
}

/// One over the other: a directory in place of the other, variables beside the others.
pub fn over(upper: Shape, lower: &Shape) -> Shape {
    Shape {
        cwd: upper.cwd.or_else(|| lower.cwd.clone()),
        env: env::merge(lower.env.clone(), upper.env),
    }
}
