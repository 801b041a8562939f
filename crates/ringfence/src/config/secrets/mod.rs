//! What `${VAR}` and `${secret:NAME}` stand for: looked up when a config is loaded, and again with every reload.

use std::collections::HashMap;

use super::Env;
use crate::base::secret::Secret;
use crate::base::{Error, Kind, Result};

/// What a config file calls a value that it does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ref {
    /// `${NAME}`: from the environment.
    Variable(String),
    /// `${secret:NAME}`: from the store.
    Stored(String),
}

impl Ref {
    /// What stands between the braces.
    pub fn parse(text: &str) -> Result<Ref, String> {
        let (kind, name): (fn(String) -> Ref, _) = match text.strip_prefix("secret:") {
            Some(name) => (Ref::Stored, name),
            None => (Ref::Variable, text),
        };
        match is_name(name) {
            true => Ok(kind(name.to_owned())),
            false => Err("`${…}` holds a name of letters, digits and `_`, or `secret:` and one".to_owned()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Ref::Variable(name) | Ref::Stored(name) => name,
        }
    }
}

/// Whether it can be the name of a secret or a variable.
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.len() <= 128 && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(fits)
}

/// Every value that a config speaks of, as it was at one moment.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    found: HashMap<Ref, Found>,
}

#[derive(Debug, Clone)]
enum Found {
    Value(Secret),
    Missing,
}

impl Secrets {
    pub fn resolve<'a>(refs: impl Iterator<Item = &'a Ref>, env: &Env) -> Secrets {
        let find = |one: &Ref| match one {
            Ref::Variable(name) => match env.get(name) {
                Some(value) => Found::Value(Secret::new(value.as_encoded_bytes())),
                None => Found::Missing,
            },
            Ref::Stored(_) => Found::Missing,
        };
        Secrets { found: refs.map(|one| (one.clone(), find(one))).collect() }
    }

    /// Where values were looked for: a change there is a change of the config.
    pub fn files(&self) -> &[std::path::PathBuf] {
        &[]
    }

    /// The value, or why there is none.
    pub fn get(&self, wanted: &Ref) -> Result<&Secret> {
        match self.found.get(wanted) {
            Some(Found::Value(secret)) => Ok(secret),
            Some(Found::Missing) | None => Err(missing(wanted)),
        }
    }
}

fn missing(wanted: &Ref) -> Error {
    let name = wanted.name();
    let hint = match wanted {
        Ref::Variable(_) => format!("Have the operator set the variable {name} for this server."),
        Ref::Stored(_) => format!("Have the operator run `ringfence secret set {name}`."),
    };
    Error::new(Kind::Unauthenticated, format!("the secret `{name}` is not there")).reason("missing_secret").hint(hint)
}
