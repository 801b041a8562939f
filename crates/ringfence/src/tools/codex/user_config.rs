//! The user's Codex configuration: read once per call, and given to the run as copies.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use serde_json::{Value, json};

use super::settings::{SANDBOX_MODE, SandboxMode, check_allowed, check_profile};
use crate::base::call::digest_json;
use crate::base::{Error, Kind, Result};
use crate::redact::known_secrets;
use crate::redact::secret::Secret;
use crate::sandbox::env;

/// Maximum bytes of one file.
const MAX_FILE_BYTES: u64 = 1 << 20;
const CONFIG_FILE: &str = "config.toml";
const AUTH_FILE: &str = "auth.json";
/// Files that are copied unchanged.
const PLAIN_FILES: &[&str] =
    &["AGENTS.md", "AGENTS.override.md", "managed_config.toml", "requirements.toml"];
/// Members of `auth.json` that describe how it is used and are not secret.
const PUBLIC_AUTH_FIELDS: &[&str] = &["auth_mode", "last_refresh"];

/// The user's Codex configuration.
#[derive(Default)]
pub struct UserConfig {
    config: toml::Table,
    profile: toml::Table,
    files: Vec<(String, Vec<u8>)>,
    auth: Option<Vec<u8>>,
}

impl UserConfig {
    /// Reads the user's CODEX_HOME, with at most one profile.
    pub fn load(home: Option<&Path>, profile: Option<&str>) -> Result<UserConfig> {
        let mut user_config = UserConfig::default();
        let read_home_file = |name: &str| home.map_or(Ok(None), |home| read_file(home, name));
        if let Some(bytes) = read_home_file(CONFIG_FILE)? {
            user_config.config = parse_table(CONFIG_FILE, &bytes)?;
            // The user's trust decisions are about the user's own work, and a hostile directory
            // could easily appear under a trusted path.
            user_config.config.remove("projects");
            let text = toml::to_string(&user_config.config)
                .map_err(|error| unreadable_error(CONFIG_FILE).with_source(error))?;
            user_config.files.push((CONFIG_FILE.to_owned(), text.into_bytes()));
        }
        if let Some(profile) = profile {
            check_profile(profile)?;
            let name = format!("{profile}.{CONFIG_FILE}");
            let bytes = read_home_file(&name)?.ok_or_else(|| {
                Error::invalid_arguments("there is no such profile in CODEX_HOME")
                    .with_hint("It is the <name> of a `<name>.config.toml` there.")
                    .with_fact("argument", "profile")
            })?;
            user_config.profile = parse_table(&name, &bytes)?;
            let settings = serde_json::to_value(&user_config.profile)
                .map_err(|error| unreadable_error(&name).with_source(error))?;
            check_allowed("profile", "", &settings)?;
            user_config.files.push((name, bytes));
        }
        for name in PLAIN_FILES {
            user_config
                .files
                .extend(read_home_file(name)?.map(|bytes| ((*name).to_owned(), bytes)));
        }
        user_config.auth = read_home_file(AUTH_FILE)?;
        Ok(user_config)
    }

    /// Returns the sandbox mode of the profile, else that of the configuration.
    pub fn sandbox_mode(&self) -> Option<SandboxMode> {
        let mode_in =
            |table: &toml::Table| SandboxMode::from_name(table.get(SANDBOX_MODE)?.as_str()?);
        mode_in(&self.profile).or_else(|| mode_in(&self.config))
    }

    /// Returns the files to copy, with their names.
    pub fn config_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let files = self.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        files.chain(self.auth.as_deref().map(|auth| (AUTH_FILE, auth)))
    }

    /// Returns a digest of everything except the credentials, which are renewed from time to time.
    pub fn digest(&self) -> String {
        let texts =
            self.files.iter().map(|(name, bytes)| json!([name, String::from_utf8_lossy(bytes)]));
        digest_json(&texts.collect())
    }

    /// Registers the credentials as secrets, so that they are redacted everywhere.
    pub fn register_secrets(&self) {
        let keys = env::codex_keys().into_iter().map(|(name, value)| (name, Secret::new(value)));
        let mut secrets: Vec<(String, Secret)> = keys.collect();
        let auth = self.auth.as_deref().and_then(|auth| serde_json::from_slice(auth).ok());
        collect_secrets(&auth.unwrap_or(Value::Null), &mut secrets);
        known_secrets::register_secrets(
            secrets.iter().map(|(name, secret)| (name.as_str(), secret)),
        );
    }
}

fn collect_secrets(value: &Value, secrets: &mut Vec<(String, Secret)>) {
    match value {
        Value::String(text) => secrets.push((AUTH_FILE.to_owned(), Secret::new(text.as_str()))),
        Value::Array(items) => items.iter().for_each(|item| collect_secrets(item, secrets)),
        Value::Object(map) => {
            let secret_fields =
                map.iter().filter(|(name, _)| !PUBLIC_AUTH_FIELDS.contains(&name.as_str()));
            secret_fields.for_each(|(_, value)| collect_secrets(value, secrets));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Reads one of the user's files, which may be a symlink.
fn read_file(home: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    // Never block on anything that is not a regular file, such as a FIFO.
    let file =
        open(home.join(name), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let file = match file {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(unreadable_error(name).with_source(error)),
    };
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(unreadable_error(name));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable_error(name).with_source(error))?;
    match bytes.len() as u64 > MAX_FILE_BYTES {
        true => Err(unreadable_error(name).with_source("it is longer than 1 MiB")),
        false => Ok(Some(bytes)),
    }
}

fn parse_table(name: &str, bytes: &[u8]) -> Result<toml::Table> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| unreadable_error(name).with_source(error))?;
    // The error must not repeat the content: it may be a key.
    toml::from_str(text).map_err(|error: toml::de::Error| {
        unreadable_error(name).with_source(error.message().to_owned())
    })
}

fn unreadable_error(name: &str) -> Error {
    Error::new(Kind::Unavailable, format!("`{name}` in CODEX_HOME cannot be read"))
        .with_reason("codex_home")
        .with_hint("It must be a file of at most 1 MiB that Codex can read.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn the_users_files_are_taken_without_whom_the_user_trusts() {
        let scratch = Scratch::new();
        let home = scratch.dir("codex");
        assert_eq!(UserConfig::load(Some(&home), None).unwrap().config_files().count(), 0);
        scratch.file(
            "codex/config.toml",
            "model = \"x\"\nsandbox_mode = \"workspace-write\"\n[projects.\"/w\"]\ntrust_level = \"trusted\"\n",
        );
        scratch.file("codex/.env", "LD_PRELOAD=x\n");
        scratch.file("codex/auth.json", "{}");
        let users = UserConfig::load(Some(&home), None).unwrap();
        let names: Vec<&str> = users.config_files().map(|(name, _)| name).collect();
        assert_eq!(names, ["config.toml", "auth.json"]);
        let text = String::from_utf8(users.config_files().next().unwrap().1.to_vec()).unwrap();
        assert!(text.contains("model = \"x\"") && !text.contains("projects"), "{text}");
        assert_eq!(users.sandbox_mode(), Some(SandboxMode::WorkspaceWrite));
        // A change to anything but the credentials, which are renewed, changes the digest.
        let before = users.digest();
        scratch.file("codex/auth.json", "{\"a\": 1}");
        assert_eq!(UserConfig::load(Some(&home), None).unwrap().digest(), before);
        scratch.file("codex/AGENTS.md", "be brief");
        assert_ne!(UserConfig::load(Some(&home), None).unwrap().digest(), before);
        for text in ["sandbox_mode = [".to_owned(), format!("x = \"{}\"", "x".repeat(1 << 20))] {
            scratch.file("codex/config.toml", &text);
            assert!(UserConfig::load(Some(&home), None).is_err());
        }
    }

    #[test]
    fn a_profile_is_held_to_what_a_call_may_say() {
        let scratch = Scratch::new();
        let home = scratch.dir("codex");
        let read = || UserConfig::load(Some(&home), Some("work"));
        assert_eq!(read().err().unwrap().kind(), Kind::InvalidArguments);
        scratch.file(
            "codex/work.config.toml",
            "model = \"x\"\nsandbox_mode = \"danger-full-access\"\n",
        );
        let users = read().unwrap();
        assert_eq!(users.sandbox_mode(), Some(SandboxMode::DangerFullAccess));
        assert_eq!(users.config_files().next().unwrap().0, "work.config.toml");
        for text in
            ["[mcp_servers.x]\ncommand = \"sh\"\n", "model_provider = \"x\"\n", "[mcp_servers"]
        {
            scratch.file("codex/work.config.toml", text);
            assert!(read().is_err(), "{text}");
        }
    }
}
