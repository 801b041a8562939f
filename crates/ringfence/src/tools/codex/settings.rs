//! Settings that a caller may give for a Codex session, and the `codex exec` arguments for them.
//!
//! Names and meaning are those of the removed `codex mcp-server`, so that configuration files and
//! prompts written for it still work. A setting without its own flag is passed as an override
//! (`--config key=value`), whose value is TOML.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::user_config::UserConfig;
use crate::base::{Error, Kind, Result};

/// Maximum bytes of one argument; the kernel's limit is 128 KiB.
pub const MAX_ARG_BYTES: usize = 120 << 10;
/// Maximum bytes of all arguments together.
const MAX_ARGS_BYTES: usize = 512 << 10;

/// Settings of a Codex session.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CodexSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_policy: Option<ApprovalPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_instructions: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub developer_instructions: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact_prompt: Option<String>,
}

/// Accepted but without effect: `codex exec` has no one to ask, so Codex never asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalPolicy {
    Untrusted,
    OnFailure,
    OnRequest,
    Never,
}

/// The Codex setting with the same meaning as `sandbox`.
pub const SANDBOX_MODE: &str = "sandbox_mode";
/// Settings that a call may change: how the model thinks and talks. Any other setting could make
/// Codex run programs outside its own sandbox, disable that sandbox, or send prompts and
/// credentials elsewhere. This is an allow-list because every version adds settings.
const ALLOWED_SETTINGS: &[&str] = &[
    SANDBOX_MODE,
    // Without effect, because our own value comes last.
    "approval_policy",
    "compact_prompt",
    "developer_instructions",
    "hide_agent_reasoning",
    "instructions",
    "model",
    "model_auto_compact_token_limit",
    "model_context_window",
    "model_max_output_tokens",
    "model_reasoning_effort",
    "model_reasoning_summary",
    "model_supports_reasoning_summaries",
    "model_verbosity",
    "personality",
    "plan_mode_reasoning_effort",
    "project_doc_max_bytes",
    "review_model",
    "service_tier",
    "show_raw_agent_reasoning",
    "tool_output_token_limit",
    "tools.update_plan",
    "tools.view_image",
    "tools.web_search",
    "tools.web_search.allowed_domains",
    "tools.web_search.context_size",
    "web_search",
];

/// Mode of Codex's own sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

impl SandboxMode {
    /// Parses the name of a mode.
    pub fn from_name(name: &str) -> Option<SandboxMode> {
        use SandboxMode::{DangerFullAccess, ReadOnly, WorkspaceWrite};
        [ReadOnly, WorkspaceWrite, DangerFullAccess].into_iter().find(|mode| mode.name() == name)
    }

    /// Returns the name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            SandboxMode::ReadOnly => "read-only",
            SandboxMode::WorkspaceWrite => "workspace-write",
            SandboxMode::DangerFullAccess => "danger-full-access",
        }
    }
}

impl CodexSettings {
    /// Returns the mode of Codex's own sandbox: the caller's choice, else the user's configuration,
    /// else the strictest. Decided here, because our sandbox depends on it.
    pub fn sandbox_mode(&self, user_config: &UserConfig) -> SandboxMode {
        let configured_mode =
            || self.config.as_ref()?.get(SANDBOX_MODE)?.as_str().and_then(SandboxMode::from_name);
        self.sandbox
            .or_else(configured_mode)
            .or_else(|| user_config.sandbox_mode())
            .unwrap_or(SandboxMode::ReadOnly)
    }

    /// Returns the arguments for everything but the prompt. `sandbox` is the mode of Codex's own
    /// sandbox.
    pub fn build_args(&self, sandbox: SandboxMode, cwd: &Path) -> Result<Vec<String>> {
        let mut args = Vec::new();
        // Flag and value are one argument, so that no value can be taken for a flag.
        let mut add_flag = |name: &str, value: &str| args.push(format!("--{name}={value}"));
        if let Some(model) = &self.model {
            add_flag("model", model);
        }
        if let Some(profile) = &self.profile {
            check_profile(profile)?;
            add_flag("profile", profile);
        }
        add_flag("sandbox", sandbox.name());
        for (key, value) in self.config.iter().flatten().filter(|(key, _)| *key != SANDBOX_MODE) {
            check_key(key)?;
            check_allowed("config", key, value)?;
            add_flag("config", &format!("{key}={}", to_toml(value)));
        }
        let texts = [
            ("instructions", &self.base_instructions),
            ("developer_instructions", &self.developer_instructions),
            ("compact_prompt", &self.compact_prompt),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                add_flag("config", &format!("{key}={}", quote_toml(text)));
            }
        }
        // Comes last and therefore applies: there is no one to ask.
        add_flag("config", "approval_policy=\"never\"");
        // Nothing is trusted either: files in the workspace must not start programs outside Codex's
        // sandbox.
        add_flag("config", &format!("projects={}", to_toml(&untrusted_projects(cwd))));
        check_args(&args)?;
        Ok(args)
    }
}

/// Marks every directory that Codex could take for the project as untrusted.
fn untrusted_projects(cwd: &Path) -> Value {
    let mut directories: Vec<String> =
        cwd.ancestors().map(|directory| directory.display().to_string()).collect();
    directories.extend(cwd.ancestors().filter_map(main_worktree));
    directories.sort();
    directories.dedup();
    directories
        .into_iter()
        .map(|directory| (directory, json!({"trust_level": "untrusted"})))
        .collect::<Map<_, _>>()
        .into()
}

/// Returns the main working tree of a worktree, by which Codex identifies it.
fn main_worktree(directory: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(directory.join(".git"))
        .ok()
        .filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()))?
        .take(4096)
        .read_to_string(&mut text)
        .ok()?;
    let git_dir = directory.join(text.strip_prefix("gitdir:")?.trim());
    let real_git_dir = git_dir.canonicalize().unwrap_or(git_dir);
    let git = real_git_dir.ancestors().find(|directory| directory.ends_with(".git"))?;
    Some(git.parent()?.display().to_string())
}

/// Refuses a setting that a call may not give, at any depth.
pub fn check_allowed(argument: &str, key: &str, value: &Value) -> Result<()> {
    match value {
        Value::Object(map) if !map.is_empty() || key.is_empty() => {
            map.iter().try_for_each(|(name, value)| {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                check_allowed(argument, &key, value)
            })
        }
        _ if ALLOWED_SETTINGS.contains(&key) => Ok(()),
        _ => {
            let shown_key: String = key.chars().take(100).collect();
            let message = format!("a call may not set `{shown_key}` of the Codex settings");
            Err(Error::permission_denied("codex_config", message)
                .with_hint("A call may say how the model thinks and talks (`model_reasoning_effort`, `model_verbosity`, `tools.web_search` …). Have the user put the rest in CODEX_HOME/config.toml.")
                .with_fact("argument", argument))
        }
    }
}

/// Checks the name of a profile.
pub fn check_profile(profile: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !profile.is_empty() && profile.chars().all(is_plain) && !profile.starts_with('.') {
        true => Ok(()),
        false => Err(Error::invalid_arguments("`profile` is not the name of a profile")
            .with_hint("It is the <name> of a `<name>.config.toml` in CODEX_HOME: letters, digits, `-`, `_` and `.`.")
            .with_fact("argument", "profile")),
    }
}

fn check_key(key: &str) -> Result<()> {
    match key.is_empty() || key.contains('=') || key.chars().any(|c| c.is_control() || c.is_whitespace()) {
        false => Ok(()),
        true => Err(Error::invalid_arguments("`config` has a key that is not a Codex setting")
            .with_hint("Keys are dotted paths of CODEX_HOME/config.toml, such as `model_reasoning_effort` or `tools.web_search`.")
            .with_fact("argument", "config")),
    }
}

fn check_args(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err(Error::invalid_arguments("an argument cannot contain a NUL byte")
            .with_hint("Leave the character out."));
    }
    if args.iter().any(|arg| arg.len() > MAX_ARG_BYTES)
        || args.iter().map(String::len).sum::<usize>() > MAX_ARGS_BYTES
    {
        return Err(Error::new(Kind::TooLarge, "the settings do not fit on a command line")
            .with_hint("Instructions and each value of `config` may be 120 KiB long; put longer text into the prompt."));
    }
    Ok(())
}

/// Formats a value as TOML on one line. TOML has no null; the removed server made it an empty
/// string.
fn to_toml(value: &Value) -> String {
    match value {
        Value::Null => quote_toml(""),
        Value::Bool(_) => value.to_string(),
        Value::Number(number) if number.is_u64() && number.as_i64().is_none() => {
            quote_toml(&number.to_string())
        }
        Value::Number(number) => number.to_string(),
        Value::String(text) => quote_toml(text),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(to_toml).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let pairs =
                map.iter().map(|(key, value)| format!("{} = {}", quote_toml(key), to_toml(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Quotes a string. A JSON string is also a TOML string, except for one control character.
fn quote_toml(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(value: Value) -> CodexSettings {
        serde_json::from_value(value).unwrap()
    }

    const NOBODY: &str = r#"--config=projects={"/" = {"trust_level" = "untrusted"}, "/w" = {"trust_level" = "untrusted"}}"#;

    fn words(value: Value) -> Vec<String> {
        let settings = settings(value);
        settings.build_args(settings.sandbox_mode(&UserConfig::default()), Path::new("/w")).unwrap()
    }

    #[test]
    fn every_setting_is_a_flag_or_an_override() {
        let all = words(json!({
            "model": "gpt-5.5", "profile": "work", "sandbox": "read-only", "approval-policy": "on-request",
            "base-instructions": "be \"brief\"\n", "developer-instructions": "tabs\u{7f}", "compact-prompt": "sum up",
            "config": {"tools.web_search": true, "model_reasoning_effort": "high"},
        }));
        assert_eq!(
            all,
            [
                "--model=gpt-5.5",
                "--profile=work",
                "--sandbox=read-only",
                "--config=tools.web_search=true",
                "--config=model_reasoning_effort=\"high\"",
                "--config=instructions=\"be \\\"brief\\\"\\n\"",
                "--config=developer_instructions=\"tabs\\u007f\"",
                "--config=compact_prompt=\"sum up\"",
                "--config=approval_policy=\"never\"",
                NOBODY,
            ]
        );
        assert_eq!(
            words(json!({})),
            ["--sandbox=read-only", "--config=approval_policy=\"never\"", NOBODY]
        );
    }

    #[test]
    fn no_value_can_pass_for_a_flag_and_no_override_outlasts_ours() {
        let sly = words(json!({
            "model": "--dangerously-bypass-approvals-and-sandbox", "config": {"approval_policy": "on-request"},
        }));
        assert_eq!(sly[0], "--model=--dangerously-bypass-approvals-and-sandbox");
        assert_eq!(sly[sly.len() - 2..], ["--config=approval_policy=\"never\"", NOBODY]);
        let known = ["--model=", "--sandbox=", "--config="];
        assert!(sly.iter().all(|word| known.iter().any(|flag| word.starts_with(flag))));
    }

    #[test]
    fn values_are_toml_whatever_they_hold() {
        let value = json!({"a b": [1, -2.5, null, "x\ny", {"c": true}], "n": 18_446_744_073_709_551_615_u64});
        let text = to_toml(&value);
        assert_eq!(
            text,
            r#"{"a b" = [1, -2.5, "", "x\ny", {"c" = true}], "n" = "18446744073709551615"}"#
        );
        let read: toml::Table =
            toml::from_str(&format!("x = {text}\ny = {}", quote_toml("\u{0}\u{7f}\u{85}ü\"\\")))
                .unwrap();
        assert_eq!(read["x"]["a b"][3].as_str(), Some("x\ny"));
        assert_eq!(read["y"].as_str(), Some("\u{0}\u{7f}\u{85}ü\"\\"));
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let refused = |value: Value| {
            settings(value).build_args(SandboxMode::ReadOnly, Path::new("/w")).unwrap_err().kind()
        };
        assert_eq!(refused(json!({"profile": "../evil"})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"profile": ""})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"config": {"a=b": 1}})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"config": {"": 1}})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"model": "a\u{0}b"})), Kind::InvalidArguments);
        assert_eq!(
            refused(json!({"base-instructions": "x".repeat(MAX_ARG_BYTES)})),
            Kind::TooLarge
        );
        let many =
            ["model", "personality", "instructions", "service_tier", "web_search", "review_model"];
        let many: Map<String, Value> =
            many.iter().map(|key| ((*key).to_owned(), json!("x".repeat(100 << 10)))).collect();
        assert_eq!(refused(json!({"config": many})), Kind::TooLarge);
    }

    /// The fence depends on it, so it is never left to chance.
    #[test]
    fn the_mode_is_the_callers_then_the_users_then_the_least() {
        let scratch = crate::config::scratch::Scratch::new();
        let home = scratch.dir("codex");
        let mode = |value: Value| {
            settings(value).sandbox_mode(&UserConfig::load(Some(&home), None).unwrap())
        };
        assert_eq!(mode(json!({})), SandboxMode::ReadOnly);
        std::fs::write(
            home.join("config.toml"),
            "model = \"x\"\nsandbox_mode = \"danger-full-access\"\n",
        )
        .unwrap();
        assert_eq!(mode(json!({})), SandboxMode::DangerFullAccess);
        assert_eq!(
            mode(json!({"config": {"sandbox_mode": "workspace-write"}})),
            SandboxMode::WorkspaceWrite
        );
        let both =
            json!({"sandbox": "read-only", "config": {"sandbox_mode": "danger-full-access"}});
        assert_eq!(mode(both.clone()), SandboxMode::ReadOnly);
        let words = settings(both).build_args(SandboxMode::ReadOnly, Path::new("/w")).unwrap();
        assert!(!words.iter().any(|word| word.contains("danger")), "{words:?}");
    }

    #[test]
    fn a_call_sets_how_the_model_thinks_and_nothing_else() {
        for config in [
            json!({"mcp_servers": {"x": {"command": "sh"}}}),
            json!({"mcp_servers.x.command": "sh"}),
            json!({"notify": ["sh"]}),
            json!({"hooks.x": 1}),
            json!({"model_provider": "x"}),
            json!({"model_providers.x.base_url": "http://x"}),
            json!({"openai_base_url": "http://x"}),
            json!({"chatgpt_base_url": "http://x"}),
            json!({"otel": {"exporter": "x"}}),
            json!({"projects": {"/w": {"trust_level": "trusted"}}}),
            json!({"shell_environment_policy.inherit": "all"}),
            json!({"sandbox_workspace_write": {"writable_roots": ["/"]}}),
            json!({"tools": {"web_search": true, "x": {"y": 1}}}),
            json!({"tools.web_search": {"proxy": "http://x"}}),
            json!({"profile": "x"}),
            json!({"features.x": true}),
            json!({"no_such": 1}),
            json!({"shell_environment_policy": {}}),
        ] {
            for mode in [SandboxMode::WorkspaceWrite, SandboxMode::DangerFullAccess] {
                let error = settings(json!({"config": config}))
                    .build_args(mode, Path::new("/w"))
                    .unwrap_err();
                let told = (error.kind(), error.reason_name());
                assert_eq!(told, (Kind::PermissionDenied, Some("codex_config")), "{config}");
            }
        }
        words(
            json!({"config": {"tools": {"web_search": {"context_size": "low"}}, "model_verbosity": "low"}}),
        );
    }

    #[test]
    fn every_place_that_could_be_the_project_is_nobodys() {
        let scratch = crate::config::scratch::Scratch::new();
        let main = scratch.dir("main/.git/worktrees/one").ancestors().nth(3).unwrap().to_owned();
        let tree = scratch.dir("tree/sub");
        scratch.file("tree/.git", &format!("gitdir: {}/.git/worktrees/one\n", main.display()));
        let all = untrusted_projects(&tree);
        for place in [tree.as_path(), tree.parent().unwrap(), &main, Path::new("/")] {
            assert_eq!(all[place.display().to_string()]["trust_level"], "untrusted", "{place:?}");
        }
    }
}
