//! Client overrides: the working directory and environment that a client chooses for its commands.
//! They are checked against what the operator allows each time they are used.

use serde_json::{Value, json};

use crate::base::workspace::Workspace;
use crate::base::{Error, Result};
use crate::config::Config;
use crate::sandbox::env;
use crate::session::Overrides;

/// Longest value: a variable holds a word, not a file.
const MAX_VALUE_BYTES: usize = 32 << 10;
const MAX_VARIABLES: usize = 64;

/// Checks overrides and returns them with the directory relative to the workspace.
pub fn check_overrides(
    shape: &Overrides,
    config: &Config,
    workspace: &Workspace,
) -> Result<Overrides> {
    let mut checked = shape.clone();
    if let Some(cwd) = &shape.cwd {
        if !config.override_policy.allows_cwd {
            return Err(not_allowed_error("`cwd_override`", "session.cwd_override = true"));
        }
        let (_, below) = workspace.open_dir(cwd)?;
        checked.cwd = Some(if below.is_empty() { ".".to_owned() } else { below });
    }
    if shape.env.len() > MAX_VARIABLES
        || shape.env.iter().any(|(_, value)| value.len() > MAX_VALUE_BYTES)
    {
        return Err(Error::invalid_arguments("`env_overrides` is too large").with_hint(format!(
            "Set at most {MAX_VARIABLES} variables of at most {MAX_VALUE_BYTES} bytes each."
        )));
    }
    for (name, value) in &shape.env {
        env::check_override(name, value)?;
        if !config.override_policy.allows_variable(name) {
            let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(not_allowed_error(
                &format!("the variable `{shown}`"),
                "its name in `session.env_overrides`",
            ));
        }
    }
    Ok(checked)
}

fn not_allowed_error(what: &str, how: &str) -> Error {
    Error::permission_denied(
        "override_not_allowed",
        format!("the operator does not allow clients to set {what}"),
    )
    .with_hint(format!("Leave it out (null removes it), or ask the operator for {how}."))
}

/// `_meta` key on every result of a call that ran with overrides.
pub const OVERRIDES_META: &str = "dev.ringfence/overrides";

/// Describes the active overrides, without the values of variables.
pub fn describe_overrides(shape: &Overrides) -> Value {
    let names: Vec<&String> = shape.env.iter().map(|(name, _)| name).collect();
    json!({"cwd_override": shape.cwd, "env_overrides": names})
}

/// Merges two sets of overrides. The upper directory replaces the lower one; variables are
/// combined, and the upper ones take precedence.
pub fn merge_overrides(upper: Overrides, lower: &Overrides) -> Overrides {
    Overrides {
        cwd: upper.cwd.or_else(|| lower.cwd.clone()),
        env: env::merge_env(lower.env.clone(), upper.env),
    }
}
