//! Values of `${VAR}` and `${secret:NAME}`, looked up when a config is loaded and again on every
//! reload.
//!
//! `${VAR}` comes from the env file or else from the server's environment, `${secret:NAME}` from
//! the store or else from the system keyring. A source that cannot be read is not skipped: the next
//! one may have an outdated value.

mod env_file;
mod keyring;
mod private_file;
mod store;
mod store_kind;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

pub use keyring::Keyring;
pub use store::{MAX_VALUE_BYTES, SecretStore, StoredSecret};

use super::{ProcessEnv, env};
use crate::base::{Error, Kind, Result};
use crate::redact::known_secrets;
use crate::redact::secret::Secret;

/// Reference in a config file to a value that it does not contain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretRef {
    /// `${NAME}`: from the env file or the environment.
    Variable(String),
    /// `${secret:NAME}`: from the store or the keyring.
    Stored(String),
}

impl SecretRef {
    /// Parses the text between the braces.
    pub fn parse(text: &str) -> Result<SecretRef, String> {
        let (kind, name): (fn(String) -> SecretRef, _) = match text.strip_prefix("secret:") {
            Some(name) => (SecretRef::Stored, name),
            None => (SecretRef::Variable, text),
        };
        match is_secret_name(name) {
            true => Ok(kind(name.to_owned())),
            false => {
                Err("`${…}` takes a name of letters, digits and `_`, or `secret:` and such a name"
                    .to_owned())
            }
        }
    }

    /// Returns whether its value is not a secret.
    fn is_public(&self) -> bool {
        matches!(self, SecretRef::Variable(name) if PUBLIC_VARIABLES.contains(&name.as_str()) || name.starts_with("LC_"))
    }

    /// Returns the name of the variable or secret.
    pub fn name(&self) -> &str {
        match self {
            SecretRef::Variable(name) | SecretRef::Stored(name) => name,
        }
    }
}

/// Returns whether a text can be the name of a secret or a variable.
pub fn is_secret_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty()
        && name.len() <= 128
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(is_allowed)
}

/// Variables that describe the user and the system. Their values occur everywhere, so redacting
/// them would only make output useless.
const PUBLIC_VARIABLES: &[&str] = &[
    "HOME",
    "PATH",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "PWD",
    "TMPDIR",
    "HOSTNAME",
    "DISPLAY",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// Sources of values.
pub struct SecretSources<'a> {
    pub env: &'a ProcessEnv,
    pub env_file: Option<PathBuf>,
    pub store: SecretStore,
    pub keyring: Option<Keyring>,
}

impl<'a> SecretSources<'a> {
    /// Returns all files that are read, whether they exist yet or not.
    fn source_files(&self, with_store: bool) -> Vec<PathBuf> {
        let store_files = with_store.then(|| self.store.watched_files()).into_iter().flatten();
        let all_files = self.env_file.iter().cloned().chain(store_files);
        let mut files: Vec<PathBuf> =
            all_files.flat_map(|file| [file.canonicalize().ok(), Some(file)]).flatten().collect();
        files.sort();
        files.dedup();
        files
    }
}

/// Every value that a config refers to, as it was at one moment.
#[derive(Debug, Clone, Default)]
pub struct SecretValues {
    values: HashMap<SecretRef, LookupResult>,
    files: Vec<PathBuf>,
}

#[derive(Debug, Clone)]
enum LookupResult {
    Value(Secret, Option<u64>),
    Missing,
    /// Its source cannot be read.
    Unreadable,
}

impl SecretValues {
    /// Looks up all references, registers the values for redaction, and logs warnings.
    pub fn look_up_all<'a>(
        refs: impl Iterator<Item = &'a SecretRef>,
        sources: &SecretSources<'_>,
    ) -> SecretValues {
        let mut secrets = SecretValues::default();
        let (mut variables, mut stored) =
            (VariableLookup::new(sources), StoredLookup::new(sources));
        for secret_ref in refs {
            if !secrets.values.contains_key(secret_ref) {
                let result = match secret_ref {
                    SecretRef::Variable(name) => variables.look_up(name),
                    SecretRef::Stored(name) => stored.look_up(name),
                };
                secrets.values.insert(secret_ref.clone(), result);
            }
        }
        secrets.files = sources.source_files(secrets.uses_store());
        let values =
            secrets.values.iter().filter_map(|(secret_ref, result)| match (secret_ref, result) {
                _ if secret_ref.is_public() => None,
                (_, LookupResult::Value(value, _)) => Some((secret_ref.name(), value)),
                _ => None,
            });
        known_secrets::register_secrets(values);
        for warning in secrets.list_warnings() {
            tracing::warn!("{warning}");
        }
        secrets
    }

    /// Returns the value, or the reason why there is none.
    pub fn get(&self, secret_ref: &SecretRef) -> Result<&Secret> {
        match self.values.get(secret_ref) {
            Some(LookupResult::Value(_, Some(expires))) if *expires <= unix_seconds() => {
                Err(expired_error(secret_ref))
            }
            Some(LookupResult::Value(secret, _)) => Ok(secret),
            Some(LookupResult::Unreadable) => Err(unreadable_error(secret_ref)),
            Some(LookupResult::Missing) | None => Err(missing_error(secret_ref)),
        }
    }

    /// Returns whether a source could not be read; a later attempt may succeed.
    pub fn has_unreadable(&self) -> bool {
        self.values.values().any(|found| matches!(found, LookupResult::Unreadable))
    }

    /// Returns those of these secrets that are too short to be searched for in output.
    pub fn short_secrets(&self, refs: &[SecretRef]) -> Vec<(String, Secret)> {
        let value = |one: &SecretRef| Some((one.name().to_owned(), self.get(one).ok()?.clone()));
        let secret = refs.iter().filter(|one| !one.is_public()).filter_map(value);
        secret.filter(|(_, value)| !known_secrets::is_searchable(value)).collect()
    }

    /// Returns the files to watch for changes; they need not exist yet.
    pub fn watched_files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns whether any value comes from the store.
    pub fn uses_store(&self) -> bool {
        self.values.keys().any(|one| matches!(one, SecretRef::Stored(_)))
    }

    /// Returns warnings for the operator, without any value.
    pub fn list_warnings(&self) -> Vec<String> {
        let mut warnings: Vec<(&SecretRef, String)> = Vec::new();
        for (secret_ref, result) in &self.values {
            let name = secret_ref.name();
            if let Err(error) = self.get(secret_ref) {
                warnings.push((
                    secret_ref,
                    format!("{error}: {}", error.hint_text().unwrap_or_default()),
                ));
            } else if let LookupResult::Value(value, _) = result
                && !known_secrets::is_searchable(value)
                && !secret_ref.is_public()
            {
                let shortest = known_secrets::MIN_SECRET_BYTES;
                let consequence = "so it cannot be redacted from output";
                warnings.push((
                    secret_ref,
                    format!("the secret `{name}` is shorter than {shortest} bytes, {consequence}"),
                ));
            }
        }
        warnings.sort();
        warnings.into_iter().map(|(_, text)| text).collect()
    }
}

/// Lookup of `${NAME}`.
struct VariableLookup<'a> {
    env: &'a ProcessEnv,
    file: Result<BTreeMap<String, Secret>>,
}

impl VariableLookup<'_> {
    fn new<'a>(sources: &SecretSources<'a>) -> VariableLookup<'a> {
        let file = match &sources.env_file {
            Some(path) => env_file::read_env_file(path),
            None => Ok(BTreeMap::new()),
        };
        if let Err(error) = &file {
            tracing::error!("{}", error.log_line());
        }
        VariableLookup { env: sources.env, file }
    }

    fn look_up(&mut self, name: &str) -> LookupResult {
        let Ok(file) = &self.file else { return LookupResult::Unreadable };
        match (file.get(name), self.env.get(name)) {
            (Some(value), _) => LookupResult::Value(value.clone(), None),
            (None, Some(value)) => LookupResult::Value(Secret::new(value.as_encoded_bytes()), None),
            (None, None) => LookupResult::Missing,
        }
    }
}

/// Lookup of `${secret:NAME}`. Nothing is opened before the first lookup.
struct StoredLookup<'a> {
    store: &'a SecretStore,
    keyring: Option<&'a Keyring>,
    items: Option<Result<BTreeMap<String, StoredSecret>>>,
    deadline: std::time::Instant,
}

impl StoredLookup<'_> {
    fn new<'a>(sources: &'a SecretSources<'_>) -> StoredLookup<'a> {
        let deadline = std::time::Instant::now() + keyring::LOOKUP_TIMEOUT;
        StoredLookup {
            store: &sources.store,
            keyring: sources.keyring.as_ref(),
            items: None,
            deadline,
        }
    }

    fn look_up(&mut self, name: &str) -> LookupResult {
        let store = self.store;
        let items_result = self.items.get_or_insert_with(|| {
            store.read_all().inspect_err(|error| {
                tracing::error!("{}", error.log_line());
            })
        });
        let Ok(items) = items_result else { return LookupResult::Unreadable };
        if let Some(item) = items.get(name) {
            return LookupResult::Value(item.value.clone(), item.expires_at);
        }
        match self.keyring.map(|keyring| keyring.get(name, self.deadline)) {
            Some(Ok(Some(value))) => LookupResult::Value(value, None),
            Some(Ok(None)) | None => LookupResult::Missing,
            Some(Err(error)) => {
                tracing::error!("{}", error.log_line());
                LookupResult::Unreadable
            }
        }
    }
}

/// Returns the seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn missing_error(secret_ref: &SecretRef) -> Error {
    let name = secret_ref.name();
    Error::new(Kind::Unauthenticated, format!("the secret `{name}` is not set"))
        .with_reason("missing_secret")
        .with_hint(setting_hint(secret_ref, "set"))
}

fn expired_error(secret_ref: &SecretRef) -> Error {
    let name = secret_ref.name();
    Error::new(Kind::Unauthenticated, format!("the secret `{name}` has expired"))
        .with_reason("expired_secret")
        .with_hint(setting_hint(secret_ref, "renew"))
}

fn setting_hint(secret_ref: &SecretRef, verb: &str) -> String {
    let name = secret_ref.name();
    match secret_ref {
        SecretRef::Variable(_) => {
            format!("Have the operator {verb} the variable {name} for this server.")
        }
        SecretRef::Stored(_) => format!("Have the operator run `ringfence secret set {name}`."),
    }
}

/// Returns the error for an unreadable source. Details are only in the log, since they name files.
fn unreadable_error(secret_ref: &SecretRef) -> Error {
    let hint = match secret_ref {
        SecretRef::Variable(_) => {
            "Have the operator check `secrets.env_file`; the server's log says what is wrong with it."
        }
        SecretRef::Stored(_) => {
            "Have the operator run `ringfence secret list`, which says what is wrong with the store."
        }
    };
    Error::new(Kind::Unauthenticated, format!("the secret `{}` cannot be read", secret_ref.name()))
        .with_reason("secret_store")
        .with_hint(hint)
}

#[cfg(test)]
mod tests;
