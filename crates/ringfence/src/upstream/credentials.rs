//! Logins to other servers: kept in the encrypted store, one for each server and principal, and
//! supplied to connections.
//!
//! A login is never used for another principal than the one it was made for. Its tokens are known
//! to redaction as soon as this process has them.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use ringfence_client::auth::AuthProvider;
use ringfence_client::oauth::{
    ConfiguredClient, CredentialStore, OAuthProvider, OAuthSettings, SecretText, StoreLock,
};
use ringfence_client::{ClientError, ErrorKind};
use serde_json::Value;

use super::backend::{UpstreamBackend, fill_value};
use crate::base::ids::to_hex;
use crate::base::shell_quote::quote_command;
use crate::base::{Error, IgnorePoison, Kind, Result};
use crate::config::{SecretStore, SecretValues, UpstreamServer};
use crate::redact::known_secrets::register_tokens;
use crate::redact::secret::Secret;
use crate::session::Principal;

/// Beginning of every name in the store. No secret of an operator can have it.
const NAME_PREFIX: &str = "login:";
/// Time between two attempts to take a lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// Providers that are kept for connections to come.
const MAX_PROVIDERS: usize = 256;
/// Members of a stored login that must not be shown.
const TOKEN_MEMBERS: [&str; 3] =
    ["/grant/access_token", "/grant/refresh_token", "/client/client_secret"];

/// The logins of one principal, in the encrypted store.
#[derive(Debug, Clone)]
pub struct LoginStore {
    store: SecretStore,
    principal: Principal,
}

impl LoginStore {
    /// Opens the logins of a principal. Nothing is read yet.
    pub fn new(store: &SecretStore, principal: &Principal) -> LoginStore {
        LoginStore { store: store.clone(), principal: principal.clone() }
    }

    /// Fails if the store cannot be read, with an error for the operator.
    pub fn check_readable(&self) -> Result<()> {
        self.store.read_all().map(drop)
    }

    /// Returns the principals that something is stored for, of any server.
    pub fn list_logins(store: &SecretStore) -> Result<Vec<(String, Principal)>> {
        let names = store.read_all()?.into_keys();
        let parsed = names.filter_map(|name| {
            let (server_id, principal) =
                serde_json::from_str::<(String, String)>(name.strip_prefix(NAME_PREFIX)?).ok()?;
            Some((server_id, Principal::from_name(principal)))
        });
        Ok(parsed.collect())
    }

    /// Returns the name of a login in the store. JSON keeps both parts apart, whatever they contain.
    fn entry_name(&self, server_id: &str) -> String {
        format!("{NAME_PREFIX}{}", serde_json::json!([server_id, self.principal.name()]))
    }

    /// Makes the tokens of a login known to redaction.
    fn register(&self, server_id: &str, text: &str) {
        let Ok(record) = serde_json::from_str::<Value>(text) else { return };
        let tokens = TOKEN_MEMBERS.iter().filter_map(|member| record.pointer(member)?.as_str());
        let tokens: Vec<Secret> = tokens.map(Secret::new).collect();
        register_tokens(&self.entry_name(server_id), &format!("login:{server_id}"), &tokens);
    }

    fn load_text(&self, server_id: &str) -> Result<Option<SecretText>> {
        let Some(item) = self.store.read_all()?.remove(&self.entry_name(server_id)) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(item.value.expose())
            .map_err(|_| Error::internal("a stored login is not text"))?;
        self.register(server_id, text);
        Ok(Some(SecretText::new(text)))
    }

    fn save_text(&self, server_id: &str, text: &SecretText) -> Result<()> {
        self.register(server_id, text.expose());
        self.store.put_secret(&self.entry_name(server_id), &Secret::new(text.expose()), None)
    }

    fn open_lock_file(&self, server_id: &str) -> Result<File> {
        let name = self.entry_name(server_id);
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
        self.store.open_lock_file(&format!("{}.lock", to_hex(&digest.as_ref()[..16])))
    }

    /// Runs work on the store where it does not hold up other tasks.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LoginStore) -> Result<T> + Send + 'static,
    ) -> ringfence_client::Result<T> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        let done = done.unwrap_or_else(|error| {
            Err(Error::internal("the store of logins was not used").with_source(error))
        });
        done.map_err(|error| store_error(&error))
    }
}

/// Returns the error for a store that cannot be used. Details are only in the log, since they name
/// files.
fn store_error(error: &Error) -> ClientError {
    tracing::error!("{}", error.log_line());
    ClientError::new(ErrorKind::Unavailable, "the store of logins cannot be used").with_hint(
        "Have the operator run `ringfence auth status`, which says what is wrong with it.",
    )
}

impl CredentialStore for LoginStore {
    fn load<'a>(
        &'a self,
        server_id: &'a str,
    ) -> BoxFuture<'a, ringfence_client::Result<Option<SecretText>>> {
        let id = server_id.to_owned();
        Box::pin(self.run_blocking(move |store| store.load_text(&id)))
    }

    fn save<'a>(
        &'a self,
        server_id: &'a str,
        text: SecretText,
    ) -> BoxFuture<'a, ringfence_client::Result<()>> {
        let id = server_id.to_owned();
        Box::pin(self.run_blocking(move |store| store.save_text(&id, &text)))
    }

    fn clear<'a>(&'a self, server_id: &'a str) -> BoxFuture<'a, ringfence_client::Result<()>> {
        let name = self.entry_name(server_id);
        Box::pin(self.run_blocking(move |store| store.store.remove(&name).map(drop)))
    }

    fn lock<'a>(
        &'a self,
        server_id: &'a str,
    ) -> BoxFuture<'a, ringfence_client::Result<StoreLock>> {
        let id = server_id.to_owned();
        Box::pin(async move {
            let file = self.run_blocking(move |store| store.open_lock_file(&id)).await?;
            // A thread that waits for the lock in the kernel could not be told to stop waiting.
            loop {
                match file.try_lock() {
                    Ok(()) => return Ok(StoreLock::new(file)),
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_INTERVAL).await,
                    Err(TryLockError::Error(error)) => {
                        let error = Error::new(Kind::Unavailable, "a login cannot be locked")
                            .with_source(error);
                        return Err(store_error(&error));
                    }
                }
            }
        })
    }
}

/// Returns what to do about a missing login.
pub fn login_hint(server_id: &str, principal: &Principal) -> String {
    format!("Have the operator run `{}`.", login_command("login", server_id, principal))
}

/// Returns a command line of `ringfence auth`.
pub fn login_command(verb: &str, server_id: &str, principal: &Principal) -> String {
    let mut argv = vec!["ringfence", "auth", verb, server_id];
    if *principal != Principal::local() {
        argv.extend(["--principal", principal.name()]);
    }
    quote_command(argv)
}

/// Returns how a principal logs in to a server. `None` if it needs no login.
pub fn oauth_settings(
    server: &UpstreamServer,
    secrets: &SecretValues,
    principal: &Principal,
) -> Result<Option<OAuthSettings>> {
    let (Some(login), Some(remote)) = (&server.login, server.server.transport.as_remote()) else {
        return Ok(None);
    };
    let secret = login.client_secret.as_ref().map(|template| fill_value(secrets, template));
    let client_secret = secret.transpose()?.map(SecretText::new);
    let hint = login_hint(&server.id, principal);
    Ok(Some(OAuthSettings {
        configured_client: login.client_id.clone().map(|client_id| ConfiguredClient {
            client_id,
            client_secret,
            issuer: None,
        }),
        scopes: login.scopes.clone(),
        allow_private_addresses: login.allows_private_addresses,
        ..OAuthSettings::new(&server.id, remote.url.clone(), hint)
    }))
}

/// The providers of all connections. Connections of one principal to one server share a provider,
/// so that a token is refreshed once, and a failed refresh is not repeated by each of them.
#[derive(Default)]
pub struct LoginProviders(Mutex<HashMap<LoginKey, Arc<OAuthProvider>>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LoginKey {
    /// Hash of everything that decides what the server is.
    definition: String,
    principal: Principal,
}

impl LoginProviders {
    /// Returns the provider of a principal's connections. `None` for a server without logins.
    pub fn find_provider(
        &self,
        backend: &UpstreamBackend,
        principal: &Principal,
    ) -> Result<Option<Arc<dyn AuthProvider>>> {
        let Some(settings) = backend.oauth_settings(principal)? else { return Ok(None) };
        let definition = backend.definition.clone();
        let key = LoginKey { definition, principal: principal.clone() };
        let mut providers = self.0.lock().ignore_poison();
        if providers.len() >= MAX_PROVIDERS && !providers.contains_key(&key) {
            // Providers that no connection uses any more.
            providers.retain(|_, provider| Arc::strong_count(provider) > 1);
        }
        let provider = providers.entry(key).or_insert_with(|| {
            let store = LoginStore::new(&backend.login_store, principal);
            Arc::new(OAuthProvider::new([settings], Arc::new(store)))
        });
        Ok(Some(Arc::clone(provider) as Arc<dyn AuthProvider>))
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
