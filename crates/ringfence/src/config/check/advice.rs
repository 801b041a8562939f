//! Warnings: settings that work, but perhaps not as intended.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::{Look, Severity};
use crate::base::nearest::nearest;
use crate::config::parse::places::{child, item};
use crate::config::parse::read::entry_key;
use crate::config::show::written_as;
use crate::config::{
    Config, Effect, Entry, Env, Names, OURS, OwnToolsAsk, Part, Profile, ProgramFault, Template,
    env,
};
use crate::redact::secret::is_sensitive;

/// A warning that has no position yet.
struct Advice {
    key: String,
    message: String,
    hint: String,
}

pub(super) fn give(look: &mut Look, env: &Env) {
    let Some(config) = &look.config else { return };
    let mut all = patterns(config);
    let key = "surface.default_timeout_ms";
    if config.settings.iter().any(|setting| setting.key == key && setting.origin.is_named()) {
        all.extend(ceiling(key, config, config.surface.default_timeout));
    }
    all.extend(exposed(config));
    for entry in config.entries.iter() {
        all.extend(of_entry(config, entry, env));
    }
    for Advice { key, message, hint } in all {
        look.find(Severity::Warning, &key, message, hint);
    }
}

fn advice(key: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) -> Advice {
    Advice { key: key.into(), message: message.into(), hint: hint.into() }
}

/// Describes the patterns that match no tool: they are mistyped, or left over.
pub fn idle_patterns(config: &Config) -> Vec<String> {
    patterns(config)
        .into_iter()
        .map(|one| format!("{}: {}. {}", one.key, one.message, one.hint))
        .collect()
}

fn patterns(config: &Config) -> Vec<Advice> {
    let dropped = config.dropped.iter().filter_map(|fault| fault.entry.as_deref());
    let names: Vec<&str> = OURS
        .iter()
        .copied()
        .chain(config.entries.iter().map(|entry| entry.name.as_str()))
        .chain(dropped)
        .collect();
    let listed = "`ringfence config show` lists the tools of the file.";
    let mut all = idle("surface.allow", &config.surface.allow, &names, listed);
    all.extend(idle("surface.deny", &config.surface.deny, &names, listed));
    if let OwnToolsAsk::Named(patterns) = &config.approval.own_tools {
        // Tools that the operator added have a key of their own for this.
        let elsewhere = "This key is for built-in tools; for a tool of the file, set `requires_approval = true`.";
        all.extend(idle("approval.own_tools", patterns, OURS, elsewhere));
    }
    all
}

/// Returns a warning for each pattern of one list that matches none of the names.
fn idle(key: &str, patterns: &[Names], names: &[&str], otherwise: &str) -> Vec<Advice> {
    let idle =
        patterns.iter().enumerate().filter(|(_, one)| !names.iter().any(|name| one.fits(name)));
    idle.map(|(at, pattern)| {
        let near = nearest(pattern.text(), names);
        let hint =
            near.map_or_else(|| otherwise.to_owned(), |near| format!("Did you mean `{near}`?"));
        advice(item(key, at), format!("`{}` matches no tool", pattern.text()), hint)
    })
    .collect()
}

/// Warns about files of secrets whose directory contains other files too.
fn exposed(config: &Config) -> Option<Advice> {
    let file = config.exposed.first()?;
    let is_key = config.key_files.iter().any(|key| key.file_name() == file.file_name());
    let key = if is_key { "auth.jwt_secret_file" } else { "secrets.env_file" };
    let message =
        format!("{} is hidden from runs, but other files next to it are not", file.display());
    let hint = "While the file is being replaced, a running command could read the new one. Keep secrets in a directory of their own.";
    Some(advice(key, message, hint))
}

fn ceiling(key: &str, config: &Config, timeout: std::time::Duration) -> Option<Advice> {
    let most = config.limits.timeout_ceiling;
    let hint = "Raise `limits.timeout_ms`, or lower this.";
    (timeout > most).then(|| {
        advice(
            key,
            format!("no call runs longer than {} ms (`limits.timeout_ms`)", most.as_millis()),
            hint,
        )
    })
}

fn of_entry(config: &Config, entry: &Arc<Entry>, env: &Env) -> Vec<Advice> {
    let key = |name: &str| format!("{}.{name}", entry_key(&entry.name));
    let mut all: Vec<Advice> = command(entry, config, env)
        .map(|(message, hint)| advice(key("command"), message, hint))
        .into_iter()
        .collect();
    all.extend(
        ceiling(&key("timeout_ms"), config, entry.timeout)
            .filter(|_| entry.timeout != config.surface.default_timeout),
    );
    let templates = (entry.args.iter().enumerate().map(|(at, one)| (item(&key("args"), at), one)))
        .chain(entry.env.iter().map(|(name, one)| (child(&key("env"), name), one)));
    for (at, template) in templates {
        for error in
            template.refs().filter_map(|wanted| Some((wanted, config.secrets.get(wanted).err()?)))
        {
            let (wanted, error) = error;
            let message = format!("`{}`: {}", written_as(wanted), error.message());
            all.push(advice(at.clone(), message, error.hint_text().unwrap_or_default()));
        }
    }
    if let (false, Some(risk)) = (entry.requires_approval, entry.risk()) {
        let message = format!("approval is still required. {risk}");
        let hint = "Remove the line; a human may trust the tool for a session.";
        all.push(advice(key("requires_approval"), message, hint));
    }
    if entry.profile == Profile::Seatbelt && cfg!(not(target_os = "macos")) {
        let hint = "Use `default`, the strongest sandbox that a system supports.";
        all.push(advice(
            key("sandbox_profile"),
            "the profile `seatbelt` is for macOS: this tool cannot run here",
            hint,
        ));
    }
    all.extend(lone_options(entry).map(|(at, option, name)| {
        let message =
            format!("if `{name}` is not given, the option `{option}` before it has no value");
        advice(
            item(&key("args"), at),
            message,
            format!("Write both as one argument: `{option}={{{name}}}`."),
        )
    }));
    let literal = |value: &Template| !value.text.is_empty() && value.refs().next().is_none();
    for (name, _) in entry.env.iter().filter(|(name, value)| is_sensitive(name) && literal(value)) {
        let message = format!("`{name}` looks like a secret, but its value is written in the file");
        let hint = format!("Run `ringfence secret set {name}` and write `${{secret:{name}}}`.");
        all.push(advice(child(&key("env"), name), message, hint));
    }
    if entry.allow_network && !entry.allow_domains.is_empty() {
        let hint = "Remove `allow_network` to restrict it to the list.";
        all.push(advice(
            key("allow_domains"),
            "with `allow_network` every name can be reached",
            hint,
        ));
    }
    if entry.side_effects.contains(&Effect::Network)
        && !entry.reaches_out()
        && entry.profile != Profile::None
    {
        let hint =
            "List what it may reach in `allow_domains` or `allow_addresses`, or remove `network`.";
        all.push(advice(
            key("side_effects"),
            "`network` is declared, but the tool may reach nothing",
            hint,
        ));
    }
    all
}

/// Finds arguments that are a bare option, with the value in the next argument, which may be left
/// out.
fn lone_options(entry: &Entry) -> impl Iterator<Item = (usize, &str, &str)> {
    let listed = |name: &str| {
        let required = entry.input_schema.get("required").and_then(Value::as_array);
        required.is_some_and(|all| all.iter().any(|one| one == name))
    };
    let given = move |name: &str| {
        listed(name)
            || entry
                .input_schema
                .get("properties")
                .is_some_and(|all| all[name].get("default").is_some())
    };
    let options = entry.args.iter().take_while(|word| word.text != "--");
    options.zip(entry.args.iter().enumerate().skip(1)).filter_map(move |(option, (at, word))| {
        let [Part::Argument(name)] = word.parts.as_slice() else { return None };
        let [Part::Text(option)] = option.parts.as_slice() else { return None };
        let is_option = option.starts_with('-') && option.len() > 1 && !option.contains('=');
        (is_option && !given(name)).then_some((at, option.as_str(), name.as_str()))
    })
}

/// Returns what is wrong with the program, if anything.
fn command(entry: &Entry, config: &Config, env: &Env) -> Option<(String, String)> {
    let command = &entry.command;
    let own =
        entry.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.text.as_str());
    let folders: Vec<PathBuf> = match own {
        Some(path) => std::env::split_paths(path).filter(|folder| folder.is_absolute()).collect(),
        None => config.browser.path.iter().filter(|folder| folder.is_absolute()).cloned().collect(),
    };
    let fault = config.program_search(entry, &folders).fault(command)?;
    let hint = match &fault {
        ProgramFault::Missing if command.contains('/') => {
            "Correct the path; a relative path starts at the directory of this file.".to_owned()
        }
        ProgramFault::Missing if env.get(env::PATH).is_none() => {
            "PATH is not set; give the full path.".to_owned()
        }
        ProgramFault::Missing => "Install it, or give its full path.".to_owned(),
        ProgramFault::NotExecutable => format!("Run `chmod +x {command}`."),
        ProgramFault::NoInterpreter(_) => {
            "Install the interpreter, or correct the first line of the script.".to_owned()
        }
        ProgramFault::Replaced(_) => {
            "Move it to a directory that commands can see, such as the one of this file.".to_owned()
        }
    };
    Some((format!("`{command}` {}", fault.describe()), hint))
}
