//! Values of `${VAR}` and `${secret:NAME}`, looked up when a config is loaded and again on every
//! reload.
//!
//! `${VAR}` comes from the env file or else from the server's environment, `${secret:NAME}` from
//! the store or else from the system keyring. A source that cannot be read is not skipped: the next
//! one may have an outdated value.

mod env_file;
mod keyring;
mod private;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

pub use keyring::Keyring;
pub use store::{Item, Store, VALUE_BYTES};

use super::parse::raw;
use super::resolve::{Layers, Picker};
use super::{Env, env};
use crate::base::{Error, Kind, Result};
use crate::redact::known;
use crate::redact::secret::Secret;

/// Reference in a config file to a value that it does not contain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ref {
    /// `${NAME}`: from the env file or the environment.
    Variable(String),
    /// `${secret:NAME}`: from the store or the keyring.
    Stored(String),
}

impl Ref {
    /// Parses the text between the braces.
    pub fn parse(text: &str) -> Result<Ref, String> {
        let (kind, name): (fn(String) -> Ref, _) = match text.strip_prefix("secret:") {
            Some(name) => (Ref::Stored, name),
            None => (Ref::Variable, text),
        };
        match is_name(name) {
            true => Ok(kind(name.to_owned())),
            false => {
                Err("`${…}` takes a name of letters, digits and `_`, or `secret:` and such a name"
                    .to_owned())
            }
        }
    }

    /// Returns whether its value is not a secret.
    fn is_plain(&self) -> bool {
        matches!(self, Ref::Variable(name) if PLAIN.contains(&name.as_str()) || name.starts_with("LC_"))
    }

    /// Returns the name of the variable or secret.
    pub fn name(&self) -> &str {
        match self {
            Ref::Variable(name) | Ref::Stored(name) => name,
        }
    }
}

/// Returns whether a text can be the name of a secret or a variable.
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty()
        && name.len() <= 128
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(fits)
}

/// Variables that describe the user and the system. Their values occur everywhere, so redacting
/// them would only make output useless.
const PLAIN: &[&str] = &[
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
pub struct Sources<'a> {
    pub env: &'a Env,
    pub env_file: Option<PathBuf>,
    pub store: Store,
    pub keyring: Option<Keyring>,
}

impl<'a> Sources<'a> {
    pub(super) fn of(
        p: &mut Picker<'_>,
        env: &'a Env,
        written: (&raw::Secrets, &raw::Secrets),
        store: Store,
    ) -> Result<Sources<'a>> {
        let (file, defaults) = written;
        let named = file.env_file.as_deref().map(|path| p.file_path(path)).transpose()?;
        let show = |path: &PathBuf| path.display().to_string();
        let env_file = p
            .pick_optional("secrets.env_file", Layers::file_only(named, None), show)
            .map(|(path, _)| path);
        let wanted = Layers::file_only(file.keyring, defaults.keyring);
        let keyring = p
            .pick("secrets.keyring", wanted, bool::to_string)?
            .0
            .then(|| Keyring::find(env))
            .flatten();
        Ok(Sources { env, env_file, store, keyring })
    }

    /// Returns all files that are read, whether they exist yet or not.
    fn files(&self, with_store: bool) -> Vec<PathBuf> {
        let stored = with_store.then(|| self.store.files()).into_iter().flatten();
        let named = self.env_file.iter().cloned().chain(stored);
        let mut files: Vec<PathBuf> =
            named.flat_map(|file| [file.canonicalize().ok(), Some(file)]).flatten().collect();
        files.sort();
        files.dedup();
        files
    }
}

/// Returns the key file of the store, if it is not in its default location.
pub(super) fn key_file(flag: Option<&PathBuf>, env: &Env) -> Result<Option<PathBuf>> {
    let named = flag.map(PathBuf::as_path).or_else(|| env.path(env::RINGFENCE_SECRETS_KEY_FILE));
    named.map(|path| super::resolve::place::absolute(path, env.cwd.as_deref(), None)).transpose()
}

/// Every value that a config refers to, as it was at one moment.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    found: HashMap<Ref, Found>,
    files: Vec<PathBuf>,
}

#[derive(Debug, Clone)]
enum Found {
    Value(Secret, Option<u64>),
    Missing,
    /// Its source cannot be read.
    Unreadable,
}

impl Secrets {
    /// Looks up all references, registers the values for redaction, and logs warnings.
    pub fn resolve<'a>(refs: impl Iterator<Item = &'a Ref>, sources: &Sources<'_>) -> Secrets {
        let mut secrets = Secrets::default();
        let (mut variables, mut stored) = (Variables::new(sources), Stored::new(sources));
        for one in refs {
            if !secrets.found.contains_key(one) {
                let found = match one {
                    Ref::Variable(name) => variables.find(name),
                    Ref::Stored(name) => stored.find(name),
                };
                secrets.found.insert(one.clone(), found);
            }
        }
        secrets.files = sources.files(secrets.wants_store());
        let values = secrets.found.iter().filter_map(|(one, found)| match (one, found) {
            _ if one.is_plain() => None,
            (_, Found::Value(value, _)) => Some((one.name(), value)),
            _ => None,
        });
        known::learn(values);
        for warning in secrets.warnings() {
            tracing::warn!("{warning}");
        }
        secrets
    }

    /// Returns the value, or the reason why there is none.
    pub fn get(&self, wanted: &Ref) -> Result<&Secret> {
        match self.found.get(wanted) {
            Some(Found::Value(_, Some(expires))) if *expires <= unix_seconds() => {
                Err(expired(wanted))
            }
            Some(Found::Value(secret, _)) => Ok(secret),
            Some(Found::Unreadable) => Err(unreadable(wanted)),
            Some(Found::Missing) | None => Err(missing(wanted)),
        }
    }

    /// Returns whether a source could not be read; a later attempt may succeed.
    pub fn are_missed(&self) -> bool {
        self.found.values().any(|found| matches!(found, Found::Unreadable))
    }

    /// Returns those of these secrets that are too short to be searched for in output.
    pub fn short(&self, refs: &[Ref]) -> Vec<(String, Secret)> {
        let value = |one: &Ref| Some((one.name().to_owned(), self.get(one).ok()?.clone()));
        let secret = refs.iter().filter(|one| !one.is_plain()).filter_map(value);
        secret.filter(|(_, value)| !known::is_searchable(value)).collect()
    }

    /// Returns the files to watch for changes; they need not exist yet.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns whether any value comes from the store.
    pub fn wants_store(&self) -> bool {
        self.found.keys().any(|one| matches!(one, Ref::Stored(_)))
    }

    /// Returns warnings for the operator, without any value.
    pub fn warnings(&self) -> Vec<String> {
        let mut all: Vec<(&Ref, String)> = Vec::new();
        for (one, found) in &self.found {
            let name = one.name();
            if let Err(error) = self.get(one) {
                all.push((one, format!("{error}: {}", error.hint_text().unwrap_or_default())));
            } else if let Found::Value(value, _) = found
                && !known::is_searchable(value)
                && !PLAIN.contains(&name)
            {
                let shortest = known::SHORTEST;
                let what = "so it cannot be redacted from output";
                all.push((
                    one,
                    format!("the secret `{name}` is shorter than {shortest} bytes, {what}"),
                ));
            }
        }
        all.sort();
        all.into_iter().map(|(_, text)| text).collect()
    }
}

/// Lookup of `${NAME}`.
struct Variables<'a> {
    env: &'a Env,
    file: Result<BTreeMap<String, Secret>>,
}

impl Variables<'_> {
    fn new<'a>(sources: &Sources<'a>) -> Variables<'a> {
        let file = match &sources.env_file {
            Some(path) => env_file::read(path),
            None => Ok(BTreeMap::new()),
        };
        if let Err(error) = &file {
            tracing::error!("{}", error.log_line());
        }
        Variables { env: sources.env, file }
    }

    fn find(&mut self, name: &str) -> Found {
        let Ok(file) = &self.file else { return Found::Unreadable };
        match (file.get(name), self.env.get(name)) {
            (Some(value), _) => Found::Value(value.clone(), None),
            (None, Some(value)) => Found::Value(Secret::new(value.as_encoded_bytes()), None),
            (None, None) => Found::Missing,
        }
    }
}

/// Lookup of `${secret:NAME}`. Nothing is opened before the first lookup.
struct Stored<'a> {
    store: &'a Store,
    keyring: Option<&'a Keyring>,
    read: Option<Result<BTreeMap<String, Item>>>,
    until: std::time::Instant,
}

impl Stored<'_> {
    fn new<'a>(sources: &'a Sources<'_>) -> Stored<'a> {
        let until = std::time::Instant::now() + keyring::PATIENCE;
        Stored { store: &sources.store, keyring: sources.keyring.as_ref(), read: None, until }
    }

    fn find(&mut self, name: &str) -> Found {
        let store = self.store;
        let read = self.read.get_or_insert_with(|| {
            store.read().inspect_err(|error| {
                tracing::error!("{}", error.log_line());
            })
        });
        let Ok(items) = read else { return Found::Unreadable };
        if let Some(item) = items.get(name) {
            return Found::Value(item.value.clone(), item.expires);
        }
        match self.keyring.map(|keyring| keyring.get(name, self.until)) {
            Some(Ok(Some(value))) => Found::Value(value, None),
            Some(Ok(None)) | None => Found::Missing,
            Some(Err(error)) => {
                tracing::error!("{}", error.log_line());
                Found::Unreadable
            }
        }
    }
}

/// Returns the seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn missing(wanted: &Ref) -> Error {
    let name = wanted.name();
    Error::new(Kind::Unauthenticated, format!("the secret `{name}` is not set"))
        .reason("missing_secret")
        .hint(ask_for(wanted, "set"))
}

fn expired(wanted: &Ref) -> Error {
    let name = wanted.name();
    Error::new(Kind::Unauthenticated, format!("the secret `{name}` has expired"))
        .reason("expired_secret")
        .hint(ask_for(wanted, "renew"))
}

fn ask_for(wanted: &Ref, what: &str) -> String {
    let name = wanted.name();
    match wanted {
        Ref::Variable(_) => {
            format!("Have the operator {what} the variable {name} for this server.")
        }
        Ref::Stored(_) => format!("Have the operator run `ringfence secret set {name}`."),
    }
}

/// Returns the error for an unreadable source. Details are only in the log, since they name files.
fn unreadable(wanted: &Ref) -> Error {
    let hint = match wanted {
        Ref::Variable(_) => {
            "Have the operator check `secrets.env_file`; the server's log says what is wrong with it."
        }
        Ref::Stored(_) => {
            "Have the operator run `ringfence secret list`, which says what is wrong with the store."
        }
    };
    Error::new(Kind::Unauthenticated, format!("the secret `{}` cannot be read", wanted.name()))
        .reason("secret_store")
        .hint(hint)
}

#[cfg(test)]
mod tests;
