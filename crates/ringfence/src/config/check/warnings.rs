//! Warnings: settings that work, but perhaps not as intended.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::upstream_warnings::upstream_warnings;
use super::{ConfigCheck, FindingSeverity};
use crate::base::suggest::suggest_name;
use crate::config::parse::config_text::command_key;
use crate::config::parse::key_spans::{child_path, item_path};
use crate::config::show::format_reference;
use crate::config::{
    BUILT_IN_TOOLS, CommandTool, Config, DeclaredAccess, NameGlob, OwnToolsApproval, ProcessEnv,
    ProfileSetting, ProgramError, SideEffect, TemplatePart, ValueTemplate, env,
};
use crate::redact::secret::is_sensitive;

/// A warning that has no position yet.
pub(super) struct ConfigWarning {
    pub key: String,
    pub message: String,
    hint: String,
    /// The file and the line, if it is about another file than config.toml.
    pub other_file: Option<(PathBuf, Option<usize>)>,
}

pub(super) fn add_warnings(check: &mut ConfigCheck, env: &ProcessEnv) {
    let Some(config) = &check.config else { return };
    let mut warnings = unmatched_patterns(config);
    let key = "surface.default_timeout_ms";
    if config.settings.iter().any(|setting| setting.key == key && setting.origin.is_explicit()) {
        warnings.extend(check_time_limit(key, config, config.surface.default_timeout));
    }
    warnings.extend(check_exposed_secrets(config));
    for entry in config.commands.iter() {
        warnings.extend(check_command(config, entry, env));
    }
    warnings.extend(upstream_warnings(config, &check.source.parsed.upstreams));
    for ConfigWarning { key, message, hint, other_file } in warnings {
        match other_file {
            Some(location) => check.add_other_finding(location, key, message, hint),
            None => check.add_finding(FindingSeverity::Warning, &key, message, hint),
        }
    }
}

pub(super) fn new_warning(
    key: impl Into<String>,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> ConfigWarning {
    ConfigWarning { key: key.into(), message: message.into(), hint: hint.into(), other_file: None }
}

/// Describes the patterns that match no tool: they are mistyped, or left over.
pub fn describe_unmatched_patterns(config: &Config) -> Vec<String> {
    unmatched_patterns(config)
        .into_iter()
        .map(|one| format!("{}: {}. {}", one.key, one.message, one.hint))
        .collect()
}

fn unmatched_patterns(config: &Config) -> Vec<ConfigWarning> {
    let failed_tools = config.command_errors.iter().filter_map(|error| error.tool.as_deref());
    let names: Vec<&str> = BUILT_IN_TOOLS
        .iter()
        .copied()
        .chain(config.commands.iter().map(|entry| entry.name.as_str()))
        .chain(failed_tools)
        .collect();
    let list_hint = "`ringfence config show` lists the tools of the file.";
    let mut warnings = find_unmatched("surface.allow", &config.surface.allow, &names, list_hint);
    warnings.extend(find_unmatched("surface.deny", &config.surface.deny, &names, list_hint));
    if let OwnToolsApproval::Named(patterns) = &config.approval.own_tools {
        // Tools that the operator added have a key of their own for this.
        let own_tools_hint = "This key is for built-in tools; for a tool of the file, set `requires_approval = true`.";
        warnings.extend(find_unmatched(
            "approval.own_tools",
            patterns,
            BUILT_IN_TOOLS,
            own_tools_hint,
        ));
    }
    warnings
}

/// Returns a warning for each pattern of one list that matches none of the names.
fn find_unmatched(
    key: &str,
    patterns: &[NameGlob],
    names: &[&str],
    default_hint: &str,
) -> Vec<ConfigWarning> {
    let unmatched = patterns
        .iter()
        .enumerate()
        .filter(|(_, one)| !names.iter().any(|name| one.matches_tool(name)));
    unmatched
        .map(|(index, pattern)| {
            let suggestion = suggest_name(pattern.as_str(), names);
            let hint = suggestion.map_or_else(
                || default_hint.to_owned(),
                |suggestion| format!("Did you mean `{suggestion}`?"),
            );
            new_warning(
                item_path(key, index),
                format!("`{}` matches no tool", pattern.as_str()),
                hint,
            )
        })
        .collect()
}

/// Warns about files of secrets whose directory contains other files too.
fn check_exposed_secrets(config: &Config) -> Option<ConfigWarning> {
    let file = config.exposed_secrets.first()?;
    let is_key = config.key_files.iter().any(|key| key.file_name() == file.file_name());
    let key = if is_key { "auth.jwt_secret_file" } else { "secrets.env_file" };
    let message =
        format!("{} is hidden from runs, but other files next to it are not", file.display());
    let hint = "While the file is being replaced, a running command could read the new one. Keep secrets in a directory of their own.";
    Some(new_warning(key, message, hint))
}

pub(super) fn check_time_limit(
    key: &str,
    config: &Config,
    timeout: std::time::Duration,
) -> Option<ConfigWarning> {
    let ceiling = config.limits.timeout_ceiling;
    let hint = "Raise `limits.timeout_ms`, or lower this.";
    (timeout > ceiling).then(|| {
        new_warning(
            key,
            format!("no call runs longer than {} ms (`limits.timeout_ms`)", ceiling.as_millis()),
            hint,
        )
    })
}

fn check_command(
    config: &Config,
    entry: &Arc<CommandTool>,
    env: &ProcessEnv,
) -> Vec<ConfigWarning> {
    let key = |name: &str| format!("{}.{name}", command_key(&entry.name));
    let mut warnings: Vec<ConfigWarning> = check_program(entry, config, env)
        .map(|(message, hint)| new_warning(key("command"), message, hint))
        .into_iter()
        .collect();
    warnings.extend(
        check_time_limit(&key("timeout_ms"), config, entry.timeout)
            .filter(|_| entry.timeout != config.surface.default_timeout),
    );
    let templates =
        (entry.args.iter().enumerate().map(|(at, one)| (item_path(&key("args"), at), one)))
            .chain(entry.env.iter().map(|(name, one)| (child_path(&key("env"), name), one)));
    for (at, template) in templates {
        warnings.extend(find_missing_secrets(config, &at, template));
    }
    if let (false, Some(risk)) = (entry.requires_approval, entry.access.high_risk_reason()) {
        let message = format!("approval is still required. {risk}");
        let hint = "Remove the line; a human may trust the tool for a session.";
        warnings.push(new_warning(key("requires_approval"), message, hint));
    }
    warnings.extend(check_access(&command_key(&entry.name), &entry.access));
    warnings.extend(find_lone_options(entry).map(|(at, option, name)| {
        let message =
            format!("if `{name}` is not given, the option `{option}` before it has no value");
        new_warning(
            item_path(&key("args"), at),
            message,
            format!("Write both as one argument: `{option}={{{name}}}`."),
        )
    }));
    warnings.extend(find_written_secrets(&key("env"), &entry.env));
    warnings
}

/// Warns about secrets that have no value.
pub(super) fn find_missing_secrets(
    config: &Config,
    key: &str,
    template: &ValueTemplate,
) -> Vec<ConfigWarning> {
    let errors = template
        .secret_refs()
        .filter_map(|secret_ref| Some((secret_ref, config.secrets.get(secret_ref).err()?)));
    errors
        .map(|(secret_ref, error)| {
            let message = format!("`{}`: {}", format_reference(secret_ref), error.message());
            new_warning(key, message, error.hint_text().unwrap_or_default())
        })
        .collect()
}

/// Warns about variables that look like secrets and have their value in the file.
pub(super) fn find_written_secrets(
    key: &str,
    variables: &[(String, ValueTemplate)],
) -> Vec<ConfigWarning> {
    let is_literal =
        |value: &ValueTemplate| !value.text.is_empty() && value.secret_refs().next().is_none();
    let written = variables.iter().filter(|(name, value)| is_sensitive(name) && is_literal(value));
    written
        .map(|(name, _)| {
            let message =
                format!("`{name}` looks like a secret, but its value is written in the file");
            let hint = format!("Run `ringfence secret set {name}` and write `${{secret:{name}}}`.");
            new_warning(child_path(key, name), message, hint)
        })
        .collect()
}

/// Warns about access that has no effect, of the command or server with this table.
pub(super) fn check_access(table: &str, access: &DeclaredAccess) -> Vec<ConfigWarning> {
    let key = |name: &str| format!("{table}.{name}");
    let mut warnings = Vec::new();
    if access.profile == ProfileSetting::Seatbelt && cfg!(not(target_os = "macos")) {
        let message = "the profile `seatbelt` is for macOS: this tool cannot run here";
        let hint = "Use `default`, the strongest sandbox that a system supports.";
        warnings.push(new_warning(key("sandbox_profile"), message, hint));
    }
    if access.allow_network && !access.allow_domains.is_empty() {
        let message = "with `allow_network` every name can be reached";
        let hint = "Remove `allow_network` to restrict it to the list.";
        warnings.push(new_warning(key("allow_domains"), message, hint));
    }
    if access.side_effects.contains(&SideEffect::Network)
        && !access.has_network()
        && access.profile != ProfileSetting::None
    {
        let message = "`network` is declared, but the tool may reach nothing";
        let hint =
            "List what it may reach in `allow_domains` or `allow_addresses`, or remove `network`.";
        warnings.push(new_warning(key("side_effects"), message, hint));
    }
    warnings
}

/// Finds arguments that are a bare option, with the value in the next argument, which may be left
/// out.
fn find_lone_options(entry: &CommandTool) -> impl Iterator<Item = (usize, &str, &str)> {
    let is_required = |name: &str| {
        let required = entry.input_schema.get("required").and_then(Value::as_array);
        required.is_some_and(|all| all.iter().any(|one| one == name))
    };
    let is_always_given = move |name: &str| {
        is_required(name)
            || entry
                .input_schema
                .get("properties")
                .is_some_and(|all| all[name].get("default").is_some())
    };
    let options = entry.args.iter().take_while(|arg| arg.text != "--");
    options.zip(entry.args.iter().enumerate().skip(1)).filter_map(move |(option, (index, arg))| {
        let [TemplatePart::Argument(name)] = arg.parts.as_slice() else { return None };
        let [TemplatePart::Text(option)] = option.parts.as_slice() else { return None };
        let is_option = option.starts_with('-') && option.len() > 1 && !option.contains('=');
        (is_option && !is_always_given(name)).then_some((index, option.as_str(), name.as_str()))
    })
}

/// Returns what is wrong with the program, if anything.
fn check_program(
    entry: &CommandTool,
    config: &Config,
    env: &ProcessEnv,
) -> Option<(String, String)> {
    let command = &entry.command;
    let tool_path =
        entry.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.text.as_str());
    let folders: Vec<PathBuf> = match tool_path {
        Some(path) => std::env::split_paths(path).filter(|folder| folder.is_absolute()).collect(),
        None => config
            .browser
            .search_path
            .iter()
            .filter(|folder| folder.is_absolute())
            .cloned()
            .collect(),
    };
    let error = config.program_search(entry).find_error(command, &folders)?;
    let hint = match &error {
        ProgramError::Missing if command.contains('/') => {
            "Correct the path; a relative path starts at the directory of this file.".to_owned()
        }
        ProgramError::Missing if env.get(env::PATH).is_none() => {
            "PATH is not set; give the full path.".to_owned()
        }
        ProgramError::Missing => "Install it, or give its full path.".to_owned(),
        ProgramError::NotExecutable => format!("Run `chmod +x {command}`."),
        ProgramError::NoInterpreter(_) => {
            "Install the interpreter, or correct the first line of the script.".to_owned()
        }
        ProgramError::Replaced(_) => {
            "Move it to a directory that commands can see, such as the one of this file.".to_owned()
        }
    };
    Some((format!("`{command}` {}", error.describe()), hint))
}
