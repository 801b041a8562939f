//! Asks a server what it offers, outside any call: for the list of a trusted server that no one has
//! accepted yet, and for `ringfence upstream`.

use std::sync::Arc;

use ringfence_client::{
    ClientOptions, ClientStatus, LockFile, LockedPackage, LockedServer, ServerClient,
};

use super::backend::UpstreamBackend;
use super::client_error::to_call_error;
use super::pool::{client_options, ended_error};
use super::start::{SandboxSpawner, StartContext};
use crate::base::{Error, Kind, Result};
use crate::config::UpstreamConfig;
use crate::session::Principal;

/// What a server offers now.
pub struct ServerOffer {
    pub locked: LockedServer,
    /// Version of the protocol that it speaks.
    pub protocol: String,
    /// Tools that cannot be used, with the reason.
    pub rejected: Vec<String>,
}

/// Starts or connects to a server, takes its whole offer, and leaves nothing behind.
///
/// A server that needs a login is asked with the login of this principal.
pub async fn ask_server(
    backend: &UpstreamBackend,
    context: StartContext,
    principal: &Principal,
) -> Result<ServerOffer> {
    backend.check_ready()?;
    let auth_provider = backend.pool.logins.find_provider(backend, principal)?;
    let server = &backend.server;
    // Some servers offer tools that ask only to clients that can be asked. Nothing is called here.
    let options = client_options(server, &context, true, server.allows_sampling);
    let spawner =
        context.sandbox.is_some().then(|| Arc::new(SandboxSpawner::new(backend, context)));
    let options = ClientOptions { spawner: spawner.clone().map(|one| one as _), ..options };
    let config = backend.connection_config()?;
    let client = ServerClient::new(&server.id, config, options, auth_provider);
    let listed = client.list_tools().await;
    let status = client.status();
    client.close().await;
    if let (Err(_), Some(spawner)) = (&listed, &spawner) {
        spawner.check_package().await?;
    }
    let catalog = listed.map_err(|error| to_call_error(&error, &server.id))?;
    match status {
        ClientStatus::Connected(greeting) => Ok(ServerOffer {
            locked: LockedServer::from_offer(&greeting, &catalog),
            protocol: greeting.version.clone(),
            rejected: catalog.rejected.clone(),
        }),
        _ => Err(ended_error(&server.id)),
    }
}

/// Adds or replaces a server in `mcp.lock`. Blocks. The file is read again first, because another
/// process may have changed it.
pub fn write_accepted(
    config: &UpstreamConfig,
    server_id: &str,
    locked: LockedServer,
) -> Result<()> {
    update_lock(config, |file| {
        file.servers.insert(server_id.to_owned(), locked);
    })
}

/// Records in `mcp.lock` what these servers were installed from. Blocks.
pub fn write_installed(
    config: &UpstreamConfig,
    server_ids: &[String],
    package: &LockedPackage,
) -> Result<()> {
    update_lock(config, |file| {
        for server_id in server_ids {
            file.packages.insert(server_id.clone(), package.clone());
        }
    })
}

fn update_lock(config: &UpstreamConfig, change: impl FnOnce(&mut LockFile)) -> Result<()> {
    let path = config
        .lock_path
        .as_deref()
        .ok_or_else(|| Error::internal("there is no place for accepted definitions"))?;
    let lock_error = |error: ringfence_client::ClientError| {
        Error::new(Kind::Internal, error.message().to_owned()).with_reason("lock_file").with_hint(
            error.hint().map_or_else(
                || format!("Make {} readable and writable for this user.", path.display()),
                str::to_owned,
            ),
        )
    };
    LockFile::update(path, change).map_err(lock_error)
}
