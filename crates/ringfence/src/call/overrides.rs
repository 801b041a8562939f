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
    overrides: &Overrides,
    config: &Config,
    workspace: &Workspace,
) -> Result<Overrides> {
    let mut checked = overrides.clone();
    if let Some(cwd) = &overrides.cwd {
        if !config.override_policy.allows_cwd {
            return Err(not_allowed_error("`cwd_override`", "session.cwd_override = true"));
        }
        let (_, relative_cwd) = workspace.open_dir(cwd)?;
        checked.cwd = Some(if relative_cwd.is_empty() { ".".to_owned() } else { relative_cwd });
    }
    if overrides.env.len() > MAX_VARIABLES
        || overrides.env.iter().any(|(_, value)| value.len() > MAX_VALUE_BYTES)
    {
        return Err(Error::invalid_arguments("`env_overrides` is too large").with_hint(format!(
            "Set at most {MAX_VARIABLES} variables of at most {MAX_VALUE_BYTES} bytes each."
        )));
    }
    for (name, value) in &overrides.env {
        env::check_override(name, value)?;
        if !config.override_policy.allows_variable(name) {
            let printable_name: String =
                name.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(not_allowed_error(
                &format!("the variable `{printable_name}`"),
                "its name in `session.env_overrides`",
            ));
        }
    }
    Ok(checked)
}

fn not_allowed_error(subject: &str, required_setting: &str) -> Error {
    Error::permission_denied(
        "override_not_allowed",
        format!("the operator does not allow clients to set {subject}"),
    )
    .with_hint(format!(
        "Leave it out (null removes it), or ask the operator for {required_setting}."
    ))
}

/// `_meta` key on every result of a call that ran with overrides.
pub const OVERRIDES_META: &str = "dev.ringfence/overrides";

/// Describes the active overrides, without the values of variables.
pub fn describe_overrides(overrides: &Overrides) -> Value {
    let names: Vec<&String> = overrides.env.iter().map(|(name, _)| name).collect();
    json!({"cwd_override": overrides.cwd, "env_overrides": names})
}

/// Merges two sets of overrides. The upper directory replaces the lower one; variables are
/// combined, and the upper ones take precedence.
pub fn merge_overrides(call_overrides: Overrides, session_overrides: &Overrides) -> Overrides {
    Overrides {
        cwd: call_overrides.cwd.or_else(|| session_overrides.cwd.clone()),
        env: env::merge_env(session_overrides.env.clone(), call_overrides.env),
    }
}
