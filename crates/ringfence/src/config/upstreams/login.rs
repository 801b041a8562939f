//! Settings for logging in to a server: the keys `oauth_…` of `[upstream.<id>]`.

use serde_json::{Value, json};

use crate::config::parse::upstream_section::UpstreamSection;
use crate::config::{TemplatePart, ValueTemplate};

/// Maximum number of scopes that a login asks for.
const MAX_SCOPES: usize = 64;
/// Maximum length of a scope or a client id.
const MAX_TEXT_BYTES: usize = 1024;

/// How to log in to a server with `authProviderId: "oauth"`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamLogin {
    /// Client that was registered by hand. Without one, ringfence registers itself.
    pub client_id: Option<String>,
    /// Secret of that client.
    pub client_secret: Option<ValueTemplate>,
    /// Scopes to ask for where the server names none.
    pub scopes: Vec<String>,
    /// The authorization server may be in a private network.
    pub allows_private_addresses: bool,
}

/// An error in one key: the key, what is wrong, and what to do.
pub(super) struct LoginKeyError {
    pub(super) key: &'static str,
    pub(super) message: String,
    pub(super) hint: &'static str,
}

impl UpstreamLogin {
    /// Reads the keys of a table, and returns the errors in them.
    pub(super) fn from_section(section: &UpstreamSection) -> (UpstreamLogin, Vec<LoginKeyError>) {
        let mut errors = Vec::new();
        let client_secret = section
            .oauth_client_secret
            .as_deref()
            .and_then(|text| read_secret(text).map_err(|error| errors.push(error)).ok());
        let login = UpstreamLogin {
            client_id: section.oauth_client_id.clone(),
            client_secret,
            scopes: section.oauth_scopes.clone().unwrap_or_default(),
            allows_private_addresses: section.oauth_private_addresses.unwrap_or(false),
        };
        errors.extend(login.find_errors());
        if section.oauth_client_secret.is_some() && login.client_id.is_none() {
            errors.push(LoginKeyError {
                key: "oauth_client_secret",
                message: "a client secret needs a client".to_owned(),
                hint: "Set `oauth_client_id` too.",
            });
        }
        (login, errors)
    }

    fn find_errors(&self) -> Vec<LoginKeyError> {
        let mut errors = Vec::new();
        if self.client_id.as_deref().is_some_and(|id| !is_plain_text(id)) {
            errors.push(LoginKeyError {
                key: "oauth_client_id",
                message: "that is not a valid client id".to_owned(),
                hint: "Write it as the authorization server shows it, in printable ASCII.",
            });
        }
        if let Some(scope) = self.scopes.iter().find(|scope| !is_scope(scope)) {
            errors.push(LoginKeyError {
                key: "oauth_scopes",
                message: format!("{scope:?} is not a valid scope"),
                hint: "Write each scope as an item of the list, without spaces.",
            });
        }
        if self.scopes.len() > MAX_SCOPES {
            errors.push(LoginKeyError {
                key: "oauth_scopes",
                message: format!("there are more than {MAX_SCOPES} scopes"),
                hint: "Name only those that the tools need.",
            });
        }
        errors
    }

    /// Returns what decides with which client and rights a login is made.
    pub(super) fn trust_fingerprint(&self) -> Value {
        json!({
            "client_id": self.client_id,
            "client_secret": self.client_secret.as_ref().map(|template| &template.text),
            "scopes": self.scopes, "private_addresses": self.allows_private_addresses,
        })
    }
}

/// Returns the keys of a table that only a server with a login has.
pub(super) fn used_login_keys(section: &UpstreamSection) -> impl Iterator<Item = &'static str> {
    let keys = [
        ("oauth_client_id", section.oauth_client_id.is_some()),
        ("oauth_client_secret", section.oauth_client_secret.is_some()),
        ("oauth_scopes", section.oauth_scopes.is_some()),
        ("oauth_private_addresses", section.oauth_private_addresses.is_some()),
    ];
    keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key)
}

/// Reads a template that is one reference and nothing else. The error does not repeat the text,
/// which may be the secret itself.
fn read_secret(text: &str) -> Result<ValueTemplate, LoginKeyError> {
    let template = ValueTemplate::without_arguments(text).ok();
    template
        .filter(|template| matches!(template.parts.as_slice(), [TemplatePart::Secret(_)]))
        .ok_or_else(|| LoginKeyError {
            key: "oauth_client_secret",
            message: "a client secret must not be in the config file".to_owned(),
            hint: "Store it with `ringfence secret set NAME` and write \"${secret:NAME}\", or \
                   \"${NAME}\" for a variable.",
        })
}

fn is_plain_text(text: &str) -> bool {
    (1..=MAX_TEXT_BYTES).contains(&text.len()) && text.bytes().all(|c| (b' '..=b'~').contains(&c))
}

/// Returns whether a text is a scope by RFC 6749: printable ASCII without space, `"` and `\`.
fn is_scope(text: &str) -> bool {
    is_plain_text(text) && !text.contains([' ', '"', '\\'])
}
