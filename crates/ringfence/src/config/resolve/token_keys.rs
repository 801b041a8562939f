//! `[auth]`: whether tokens are required, and the key with which they are checked.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Layers, SettingPicker};
use crate::base::{Error, Kind, Result};
use crate::config::env::{self, ProcessEnv};
use crate::config::parse::raw;
use crate::config::{AuthKey, AuthSettings, SettingOrigin};
use crate::redact::known_secrets;
use crate::redact::secret::Secret;

/// Description of the one kind of key file that is not secret.
pub const PUBLIC_KEY_FILE: &str = "the token key file";
/// No key is longer; a file named by mistake may be.
const MAX_KEY_FILE_BYTES: u64 = 64 * 1024;

/// Resolved `[auth]`, and the files from which it was read.
pub struct ResolvedAuth {
    pub auth: Option<AuthSettings>,
    pub files: Vec<(&'static str, PathBuf)>,
}

/// Resolves `[auth]`, reading the key files.
pub fn resolve_auth(
    picker: &mut SettingPicker<'_>,
    env: &ProcessEnv,
    file: &raw::AuthSection,
    defaults: &raw::AuthSection,
) -> Result<ResolvedAuth> {
    let layers = Layers {
        flag: None,
        env: env.get_bool(env::MCP_AUTH_ENABLED)?.map(|value| (value, env::MCP_AUTH_ENABLED)),
        file: file.enabled,
        default: defaults.enabled,
    };
    let (enabled, _) = picker.pick("auth.enabled", layers, |value| value.to_string())?;
    if !enabled {
        return Ok(ResolvedAuth { auth: None, files: Vec::new() });
    }
    let mut files = Vec::new();
    let secret = read_token_secret(picker, env, file, &mut files)?;
    known_secrets::register_secrets(secret.iter().map(|secret| (env::MCP_AUTH_JWT_SECRET, secret)));
    let public_key = read_public_key(picker, env, file, &mut files)?;
    let key = match (secret, public_key) {
        (Some(secret), None) => AuthKey::Secret(secret),
        (None, Some(pem)) => AuthKey::PublicPem(pem),
        (Some(_), Some(_)) => {
            return Err(key_choice_error(
                "both MCP_AUTH_JWT_SECRET and MCP_AUTH_JWT_PUBLIC_KEY are set",
            ));
        }
        (None, None) => {
            return Err(key_choice_error(
                "neither MCP_AUTH_JWT_SECRET nor MCP_AUTH_JWT_PUBLIC_KEY is set",
            ));
        }
    };
    let audience =
        pick_text(picker, "auth.audience", env, env::MCP_AUTH_AUDIENCE, file.audience.clone())?;
    let issuer = pick_text(picker, "auth.issuer", env, env::MCP_AUTH_ISSUER, file.issuer.clone())?;
    Ok(ResolvedAuth { auth: Some(AuthSettings { key, audience, issuer }), files })
}

fn key_choice_error(problem: &str) -> Error {
    Error::new(Kind::InvalidArguments, format!("auth is enabled, but {problem}"))
        .with_reason("auth_key")
        .with_hint("Set exactly one of MCP_AUTH_JWT_SECRET and MCP_AUTH_JWT_PUBLIC_KEY (or `jwt_secret_file`, `jwt_public_key` under [auth]).")
}

fn pick_text(
    picker: &mut SettingPicker<'_>,
    key: &'static str,
    env: &ProcessEnv,
    name: &'static str,
    file: Option<String>,
) -> Result<Option<String>> {
    let from_env = env.get_text(name)?.map(|value| (value, name));
    let layers = Layers {
        flag: None,
        env: from_env,
        file: file.filter(|text| !text.is_empty()),
        default: None,
    };
    Ok(picker.pick_optional(key, layers, String::clone).map(|(value, _)| value))
}

fn read_token_secret(
    picker: &mut SettingPicker<'_>,
    env: &ProcessEnv,
    file: &raw::AuthSection,
    files: &mut Vec<(&'static str, PathBuf)>,
) -> Result<Option<Secret>> {
    if let Some(value) = env.get(env::MCP_AUTH_JWT_SECRET) {
        picker.record_setting(
            "auth.jwt_secret",
            "set".to_owned(),
            SettingOrigin::Env(env::MCP_AUTH_JWT_SECRET),
        );
        return Ok(Some(Secret::new(value.as_bytes())));
    }
    let Some(path) = &file.jwt_secret_file else { return Ok(None) };
    let path = picker.resolve_file_path(path)?;
    let mut bytes = read_key_file(&path, "jwt_secret_file")?;
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
        tracing::warn!(
            "the token secret in {} can be read by others; run `chmod 600` on it",
            path.display()
        );
    }
    // Editors and `echo` end a file with a newline that is not part of the secret.
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        bytes.pop_if(|last| *last == b'\r');
    }
    picker.record_setting("auth.jwt_secret", "set".to_owned(), picker.file_origin());
    files.push(("the token secret file", path));
    Ok(Some(Secret::new(bytes)))
}

fn read_public_key(
    picker: &mut SettingPicker<'_>,
    env: &ProcessEnv,
    file: &raw::AuthSection,
    files: &mut Vec<(&'static str, PathBuf)>,
) -> Result<Option<String>> {
    let (value, origin) = match env.get_text(env::MCP_AUTH_JWT_PUBLIC_KEY)? {
        Some(value) => (value, SettingOrigin::Env(env::MCP_AUTH_JWT_PUBLIC_KEY)),
        None => match &file.jwt_public_key {
            Some(value) => (value.clone(), picker.file_origin()),
            None => return Ok(None),
        },
    };
    if value.contains("-----BEGIN ") {
        picker.record_setting("auth.jwt_public_key", "PEM text".to_owned(), origin);
        // Env files often cannot contain line breaks, which are then written as `\n`.
        return Ok(Some(value.replace("\\n", "\n")));
    }
    let path = match origin {
        SettingOrigin::File(_) => picker.resolve_file_path(Path::new(&value))?,
        _ => super::directories::make_absolute(Path::new(&value), env.cwd.as_deref(), None)?,
    };
    let bytes = read_key_file(&path, "MCP_AUTH_JWT_PUBLIC_KEY")?;
    let pem = String::from_utf8(bytes).map_err(|_| {
        Error::invalid_arguments("the file named by MCP_AUTH_JWT_PUBLIC_KEY is not PEM text")
            .with_hint("Convert it with `openssl pkey -pubin -inform der -in key.der`.")
    })?;
    picker.record_setting("auth.jwt_public_key", path.display().to_string(), origin);
    files.push((PUBLIC_KEY_FILE, path));
    Ok(Some(pem))
}

fn read_key_file(path: &Path, name: &str) -> Result<Vec<u8>> {
    // The value may be a secret given by mistake, so the error names the setting and not its value.
    let failed = || {
        Error::new(Kind::NotFound, format!("the file named by {name} cannot be read"))
            .with_hint(format!("Check that {name} names a file that this user can read."))
    };
    let mut file = File::open(path).map_err(|error| failed().with_source(error))?;
    let metadata = file.metadata().map_err(|error| failed().with_source(error))?;
    if !metadata.is_file() || metadata.len() > MAX_KEY_FILE_BYTES {
        return Err(failed());
    }
    if metadata.mode() & 0o002 != 0 {
        return Err(Error::permission_denied(
            "open_key",
            format!("the file named by {name} is writable by everyone"),
        )
        .with_hint("Remove write permission for others (`chmod o-w`)."));
    }
    let mut bytes = Vec::new();
    file.by_ref()
        .take(MAX_KEY_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| failed().with_source(error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{Config, ConfigFlags};

    const SECRET: &str = "a-secret-that-must-not-be-shown-anywhere";
    const PEM: &str = "-----BEGIN PUBLIC KEY-----\\nMCow\\n-----END PUBLIC KEY-----";

    fn config(scratch: &Scratch, variables: &[(&str, &str)], file: &str) -> Result<Config> {
        let config = scratch.file("etc/config.toml", file);
        let flags = ConfigFlags {
            config: Some(config),
            root: Some(scratch.path().join("root")),
            ..ConfigFlags::default()
        };
        crate::config::resolve_config(
            &flags,
            &ProcessEnv::new(variables.iter().copied(), scratch.dir("project")),
        )
    }

    #[test]
    fn exactly_one_key_and_both_names_in_the_error() {
        let scratch = Scratch::new();
        let on = ("MCP_AUTH_ENABLED", "yes");
        let secret = ("MCP_AUTH_JWT_SECRET", SECRET);
        let key = ("MCP_AUTH_JWT_PUBLIC_KEY", PEM);
        for variables in [vec![on], vec![on, secret, key], vec![on, ("MCP_AUTH_JWT_SECRET", "")]] {
            let error = config(&scratch, &variables, "").unwrap_err();
            assert!(error.message().contains("MCP_AUTH_JWT_SECRET"), "{error}");
            assert!(error.message().contains("MCP_AUTH_JWT_PUBLIC_KEY"), "{error}");
        }
        assert!(config(&scratch, &[secret, key], "").unwrap().auth.is_none());
        let auth =
            config(&scratch, &[on, secret], "[auth]\naudience = \"me\"").unwrap().auth.unwrap();
        assert!(
            matches!(&auth.key, AuthKey::Secret(secret) if secret.expose() == SECRET.as_bytes())
        );
        assert_eq!(auth.audience.as_deref(), Some("me"));
        let auth = config(&scratch, &[on, key, ("MCP_AUTH_ISSUER", "https://i")], "")
            .unwrap()
            .auth
            .unwrap();
        assert!(
            matches!(&auth.key, AuthKey::PublicPem(pem) if pem.starts_with("-----BEGIN PUBLIC KEY-----\nMCow\n"))
        );
        assert_eq!(auth.issuer.as_deref(), Some("https://i"));
    }

    #[test]
    fn keys_come_from_files_too_and_no_secret_is_shown() {
        let scratch = Scratch::new();
        scratch.file("etc/secret", &format!("{SECRET}\n"));
        let config_of = |file: &str| config(&scratch, &[], file);
        let resolved = config_of("[auth]\nenabled = true\njwt_secret_file = \"secret\"").unwrap();
        let AuthKey::Secret(secret) = &resolved.auth.as_ref().unwrap().key else {
            panic!("a secret")
        };
        assert_eq!(secret.expose(), SECRET.as_bytes());
        assert!(!format!("{resolved:?}").contains(SECRET));
        let shown =
            resolved.settings.iter().find(|setting| setting.key == "auth.jwt_secret").unwrap();
        assert_eq!(shown.value, "set");
        assert_eq!(known_secrets::redact_str(SECRET), "[secret:MCP_AUTH_JWT_SECRET]");

        let key = scratch
            .file("etc/key.pem", "-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n");
        let from_file = format!("[auth]\nenabled = true\njwt_public_key = \"{}\"", key.display());
        assert!(matches!(config_of(&from_file).unwrap().auth.unwrap().key, AuthKey::PublicPem(_)));
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o646)).unwrap();
        assert_eq!(config_of(&from_file).unwrap_err().reason_name(), Some("open_key"));

        // A secret given where a file name belongs is not repeated.
        let error =
            config(&scratch, &[("MCP_AUTH_ENABLED", "1"), ("MCP_AUTH_JWT_PUBLIC_KEY", SECRET)], "")
                .unwrap_err();
        assert!(!format!("{error:?}").contains(SECRET));
    }

    #[test]
    fn a_key_file_inside_the_workspace_is_refused() {
        let scratch = Scratch::new();
        scratch.file("project/secret", SECRET);
        let error = config(
            &scratch,
            &[],
            "[auth]\nenabled = true\njwt_secret_file = \"../project/secret\"",
        )
        .unwrap_err();
        assert_eq!(error.reason_name(), Some("bad_workspace"), "{error:?}");
    }
}
