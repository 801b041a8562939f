//! What a caller may set for a Codex session, and how `codex exec` is told of it.
//!
//! Names and meaning are those of the removed `codex mcp-server`: whatever configuration file or prompt was written for
//! that one fits. What has no flag of its own is an override (`--config key=value`), whose value is TOML.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::base::{Error, Kind, Result};

/// Of one word of a command line: the kernel takes 128 KiB.
pub const WORD: usize = 120 << 10;
/// Of all of them together.
const WORDS: usize = 512 << 10;

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
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

/// Taken and without effect: `codex exec` has nobody to ask, so Codex never asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalPolicy {
    Untrusted,
    OnFailure,
    OnRequest,
    Never,
}

/// The setting of Codex that says the same.
const SANDBOX_MODE: &str = "sandbox_mode";
/// Of CODEX_HOME/config.toml, when it is looked at.
const FILE: u64 = 1 << 20;
/// Settings with which Codex starts programs outside its own sandbox, or does without one. A caller may give them only
/// where ours is as tight as any command's.
const OUTSIDE: &[&str] = &[
    "mcp_servers",
    "notify",
    "hooks",
    "plugins",
    "apps",
    "model_providers",
    "permissions",
    "default_permissions",
    "profiles",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

/// A file of the user's own configuration; nothing where it cannot be read.
fn table(file: &Path) -> Option<toml::Table> {
    let mut text = String::new();
    std::fs::File::open(file).ok()?.take(FILE).read_to_string(&mut text).ok()?;
    toml::from_str(&text).ok()
}

impl SandboxMode {
    fn named(name: &str) -> Option<SandboxMode> {
        use SandboxMode::{DangerFullAccess, ReadOnly, WorkspaceWrite};
        [ReadOnly, WorkspaceWrite, DangerFullAccess].into_iter().find(|mode| mode.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            SandboxMode::ReadOnly => "read-only",
            SandboxMode::WorkspaceWrite => "workspace-write",
            SandboxMode::DangerFullAccess => "danger-full-access",
        }
    }
}

impl Settings {
    /// What Codex shall hold its commands to: the caller's word, or what the user has configured, or the least. It is
    /// settled here, since the fence depends on it.
    pub fn mode(&self, home: Option<&Path>) -> SandboxMode {
        let given = || self.config.as_ref()?.get(SANDBOX_MODE)?.as_str().and_then(SandboxMode::named);
        let in_file = |file: &Path| SandboxMode::named(table(file)?.get(SANDBOX_MODE)?.as_str()?);
        let in_profile = || in_file(&self.profile_in(home?)?);
        let in_home = || in_file(&home?.join("config.toml"));
        self.sandbox.or_else(given).or_else(in_profile).or_else(in_home).unwrap_or(SandboxMode::ReadOnly)
    }

    /// The file of the profile.
    fn profile_in(&self, home: &Path) -> Option<PathBuf> {
        let name = self.profile.as_ref().filter(|name| check_profile(name).is_ok())?;
        Some(home.join(format!("{name}.config.toml")))
    }

    /// Refuses what would have programs run outside Codex's own sandbox, where that matters. A profile may be the work of
    /// an earlier run, which writes in the same home.
    pub fn check_for(&self, mode: SandboxMode, home: Option<&Path>) -> Result<()> {
        if mode == SandboxMode::DangerFullAccess {
            return Ok(());
        }
        let first = |key: &str| key.split('.').next().unwrap_or_default().to_owned();
        let given = self.config.iter().flatten().map(|(key, _)| ("config", first(key)));
        let profile = home.and_then(|home| self.profile_in(home)).map(|file| {
            table(&file).ok_or_else(|| {
                Error::invalid_arguments("there is no such profile in CODEX_HOME, or it cannot be read")
                    .hint("It is the <name> of a `<name>.config.toml` there.")
                    .with("argument", "profile")
            })
        });
        let profile = profile.transpose()?.unwrap_or_default();
        let mut keys = given.chain(profile.keys().map(|key| ("profile", first(key))));
        match keys.find(|(_, key)| OUTSIDE.contains(&key.as_str())) {
            Some((argument, key)) => {
                let message = format!("a call may not give `{key}`: it has Codex run programs outside its own sandbox");
                Err(Error::permission_denied("codex_config", message)
                    .hint("Put it into CODEX_HOME/config.toml, or use `sandbox: danger-full-access`, where our fence holds everything alike.")
                    .with("argument", argument))
            }
            None => Ok(()),
        }
    }

    /// The words of the command line that say all of it but the prompt. `sandbox` is what Codex itself shall keep to.
    pub fn words(&self, sandbox: SandboxMode) -> Result<Vec<String>> {
        let mut words = Vec::new();
        // One word each, so that no value can pass for a flag.
        let mut flag = |name: &str, value: &str| words.push(format!("--{name}={value}"));
        if let Some(model) = &self.model {
            flag("model", model);
        }
        if let Some(profile) = &self.profile {
            check_profile(profile)?;
            flag("profile", profile);
        }
        flag("sandbox", sandbox.name());
        for (key, value) in self.config.iter().flatten().filter(|(key, _)| *key != SANDBOX_MODE) {
            check_key(key)?;
            flag("config", &format!("{key}={}", toml(value)));
        }
        let texts = [
            ("instructions", &self.base_instructions),
            ("developer_instructions", &self.developer_instructions),
            ("compact_prompt", &self.compact_prompt),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                flag("config", &format!("{key}={}", quoted(text)));
            }
        }
        // The last word: there is nobody to ask.
        flag("config", "approval_policy=\"never\"");
        check_words(&words)?;
        Ok(words)
    }
}

fn check_profile(profile: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !profile.is_empty() && profile.chars().all(plain) && !profile.starts_with('.') {
        true => Ok(()),
        false => Err(Error::invalid_arguments("`profile` is not the name of a profile")
            .hint("It is the <name> of a `<name>.config.toml` in CODEX_HOME: letters, digits, `-`, `_` and `.`.")
            .with("argument", "profile")),
    }
}

fn check_key(key: &str) -> Result<()> {
    match key.is_empty() || key.contains('=') || key.chars().any(|c| c.is_control() || c.is_whitespace()) {
        false => Ok(()),
        true => Err(Error::invalid_arguments("`config` has a key that names no setting of Codex")
            .hint("Keys are dotted paths of CODEX_HOME/config.toml, such as `model_reasoning_effort` or `tools.web_search`.")
            .with("argument", "config")),
    }
}

fn check_words(words: &[String]) -> Result<()> {
    if words.iter().any(|word| word.contains('\0')) {
        return Err(Error::invalid_arguments("an argument cannot hold a NUL").hint("Leave the character out."));
    }
    if words.iter().any(|word| word.len() > WORD) || words.iter().map(String::len).sum::<usize>() > WORDS {
        return Err(Error::new(Kind::TooLarge, "the settings do not fit on a command line")
            .hint("Instructions and each value of `config` may be 120 KiB long; put longer text into the prompt."));
    }
    Ok(())
}

/// A value in TOML, in one line. There is no null in TOML; the removed server made it an empty text.
fn toml(value: &Value) -> String {
    match value {
        Value::Null => quoted(""),
        Value::Bool(_) => value.to_string(),
        Value::Number(number) if number.is_u64() && number.as_i64().is_none() => quoted(&number.to_string()),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| format!("{} = {}", quoted(key), toml(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

/// JSON's own form of a text is one of TOML's, but for one control character.
fn quoted(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(value: Value) -> Settings {
        serde_json::from_value(value).unwrap()
    }

    fn words(value: Value) -> Vec<String> {
        let settings = settings(value);
        settings.words(settings.mode(None)).unwrap()
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
            ]
        );
        assert_eq!(words(json!({})), ["--sandbox=read-only", "--config=approval_policy=\"never\""]);
    }

    #[test]
    fn no_value_can_pass_for_a_flag_and_no_override_outlasts_ours() {
        let sly = words(json!({
            "model": "--dangerously-bypass-approvals-and-sandbox", "config": {"approval_policy": "on-request"},
        }));
        assert_eq!(sly[0], "--model=--dangerously-bypass-approvals-and-sandbox");
        assert_eq!(sly.last().unwrap(), "--config=approval_policy=\"never\"");
        let known = ["--model=", "--sandbox=", "--config="];
        assert!(sly.iter().all(|word| known.iter().any(|flag| word.starts_with(flag))));
    }

    #[test]
    fn values_are_toml_whatever_they_hold() {
        let value = json!({"a b": [1, -2.5, null, "x\ny", {"c": true}], "n": 18_446_744_073_709_551_615_u64});
        let text = toml(&value);
        assert_eq!(text, r#"{"a b" = [1, -2.5, "", "x\ny", {"c" = true}], "n" = "18446744073709551615"}"#);
        let read: toml::Table =
            toml::from_str(&format!("x = {text}\ny = {}", quoted("\u{0}\u{7f}\u{85}ü\"\\"))).unwrap();
        assert_eq!(read["x"]["a b"][3].as_str(), Some("x\ny"));
        assert_eq!(read["y"].as_str(), Some("\u{0}\u{7f}\u{85}ü\"\\"));
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let refused = |value: Value| settings(value).words(SandboxMode::ReadOnly).unwrap_err().kind();
        assert_eq!(refused(json!({"profile": "../evil"})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"profile": ""})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"config": {"a=b": 1}})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"config": {"": 1}})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"model": "a\u{0}b"})), Kind::InvalidArguments);
        assert_eq!(refused(json!({"base-instructions": "x".repeat(WORD)})), Kind::TooLarge);
        let many: Map<String, Value> = (0..9).map(|at| (format!("k{at}"), json!("x".repeat(100 << 10)))).collect();
        assert_eq!(refused(json!({"config": many})), Kind::TooLarge);
    }

    /// The fence depends on it, so it is never left to chance.
    #[test]
    fn the_mode_is_the_callers_then_the_users_then_the_least() {
        let scratch = crate::config::scratch::Scratch::new();
        let home = scratch.dir("codex");
        let mode = |value: Value| settings(value).mode(Some(&home));
        assert_eq!(mode(json!({})), SandboxMode::ReadOnly);
        std::fs::write(home.join("config.toml"), "model = \"x\"\nsandbox_mode = \"danger-full-access\"\n").unwrap();
        assert_eq!(mode(json!({})), SandboxMode::DangerFullAccess);
        assert_eq!(mode(json!({"config": {"sandbox_mode": "workspace-write"}})), SandboxMode::WorkspaceWrite);
        let both = json!({"sandbox": "read-only", "config": {"sandbox_mode": "danger-full-access"}});
        assert_eq!(mode(both.clone()), SandboxMode::ReadOnly);
        let words = settings(both).words(SandboxMode::ReadOnly).unwrap();
        assert!(!words.iter().any(|word| word.contains("danger")), "{words:?}");
        std::fs::write(home.join("config.toml"), "sandbox_mode = [").unwrap();
        assert_eq!(mode(json!({})), SandboxMode::ReadOnly);
    }

    #[test]
    fn what_runs_programs_outside_codex_needs_the_whole_fence() {
        for key in
            ["mcp_servers", "mcp_servers.x.command", "notify", "hooks.x", "model_providers.x", "default_permissions"]
        {
            let given = settings(json!({"config": {"model": "x", key: "y"}}));
            let error = given.check_for(SandboxMode::WorkspaceWrite, None).unwrap_err();
            assert_eq!((error.kind(), error.reason_name()), (Kind::PermissionDenied, Some("codex_config")), "{key}");
            given.check_for(SandboxMode::DangerFullAccess, None).unwrap();
        }
        settings(json!({"config": {"model_reasoning_effort": "high"}})).check_for(SandboxMode::ReadOnly, None).unwrap();
    }

    #[test]
    fn a_profile_is_looked_into_since_a_run_may_have_written_it() {
        let scratch = crate::config::scratch::Scratch::new();
        let home = scratch.dir("codex");
        let given = settings(json!({"profile": "work"}));
        let check = |mode| given.check_for(mode, Some(&home));
        assert_eq!(check(SandboxMode::ReadOnly).unwrap_err().kind(), Kind::InvalidArguments);
        std::fs::write(home.join("work.config.toml"), "model = \"x\"\nsandbox_mode = \"workspace-write\"\n").unwrap();
        check(SandboxMode::WorkspaceWrite).unwrap();
        assert_eq!(given.mode(Some(&home)), SandboxMode::WorkspaceWrite);
        std::fs::write(home.join("work.config.toml"), "[mcp_servers.x]\ncommand = \"sh\"\n").unwrap();
        assert_eq!(check(SandboxMode::WorkspaceWrite).unwrap_err().reason_name(), Some("codex_config"));
        check(SandboxMode::DangerFullAccess).unwrap();
        std::fs::write(home.join("work.config.toml"), "[mcp_servers").unwrap();
        assert!(check(SandboxMode::WorkspaceWrite).is_err());
    }
}
