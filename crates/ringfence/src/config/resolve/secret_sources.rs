//! Resolves `[secrets]`: the env file, the key file of the store, and the keyring.

use std::path::PathBuf;

use super::directories::make_absolute;
use super::picker::{Layers, SettingPicker};
use crate::base::Result;
use crate::config::env::{self, ProcessEnv};
use crate::config::parse::raw;
use crate::config::secrets::{Keyring, SecretSources, SecretStore};

/// Resolves where secrets come from.
pub fn resolve_secret_sources<'a>(
    picker: &mut SettingPicker<'_>,
    env: &'a ProcessEnv,
    file: &raw::SecretsSection,
    defaults: &raw::SecretsSection,
    store: SecretStore,
) -> Result<SecretSources<'a>> {
    let configured_path =
        file.env_file.as_deref().map(|path| picker.resolve_file_path(path)).transpose()?;
    let format_path = |path: &PathBuf| path.display().to_string();
    let env_file = picker
        .pick_optional("secrets.env_file", Layers::file_only(configured_path, None), format_path)
        .map(|(path, _)| path);
    let keyring_layers = Layers::file_only(file.keyring, defaults.keyring);
    let keyring = picker
        .pick("secrets.keyring", keyring_layers, bool::to_string)?
        .0
        .then(|| Keyring::detect(env))
        .flatten();
    Ok(SecretSources { env, env_file, store, keyring })
}

/// Returns the key file of the store, if it is not in its default location.
pub fn resolve_key_file(flag: Option<&PathBuf>, env: &ProcessEnv) -> Result<Option<PathBuf>> {
    let key_path =
        flag.map(PathBuf::as_path).or_else(|| env.get_path(env::RINGFENCE_SECRETS_KEY_FILE));
    key_path.map(|path| make_absolute(path, env.cwd.as_deref(), None)).transpose()
}
