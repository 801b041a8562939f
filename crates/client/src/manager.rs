//! The clients of all configured servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;

use crate::auth::AuthProvider;
use crate::call::{CallHandler, ToolCall};
use crate::catalog::ToolCatalog;
use crate::config::{ClientConfig, TransportConfig};
use crate::error::{ClientError, ErrorKind, Result};
use crate::message::RawJson;
use crate::server_client::{ClientOptions, ClientStatus, ServerClient};

/// Clients of all servers of a configuration. Each server is connected when it is first used.
///
/// [`ClientManager::close_all`] must be called at the end: afterwards no process, socket or task is
/// left.
pub struct ClientManager {
    clients: BTreeMap<String, Arc<ServerClient>>,
}

impl ClientManager {
    /// Creates the clients. Fails if a server names an auth provider that is not given.
    pub fn new(
        config: &ClientConfig,
        options: ClientOptions,
        auth_providers: &BTreeMap<String, Arc<dyn AuthProvider>>,
    ) -> Result<ClientManager> {
        config.check_auth_providers(|id| auth_providers.contains_key(id))?;
        let clients = config.servers.iter().map(|(id, server)| {
            let provider_id = match &server.transport {
                TransportConfig::Http(remote) | TransportConfig::Sse(remote) => {
                    remote.auth_provider_id.as_ref()
                }
                TransportConfig::Stdio(_) => None,
            };
            let provider = provider_id.and_then(|provider_id| auth_providers.get(provider_id));
            let client = ServerClient::new(id, server.clone(), options.clone(), provider.cloned());
            (id.clone(), Arc::new(client))
        });
        Ok(ClientManager { clients: clients.collect() })
    }

    /// Returns the client of a server.
    pub fn client(&self, server_id: &str) -> Result<&Arc<ServerClient>> {
        self.clients.get(server_id).ok_or_else(|| {
            ClientError::new(ErrorKind::NotFound, format!("there is no server `{server_id}`"))
        })
    }

    /// Returns the tools of a server.
    pub async fn list_tools(&self, server_id: &str) -> Result<Arc<ToolCatalog>> {
        self.client(server_id)?.list_tools().await
    }

    /// Calls a tool of a server.
    pub async fn call_tool(
        &self,
        server_id: &str,
        call: &ToolCall,
        handler: &dyn CallHandler,
    ) -> Result<RawJson> {
        self.client(server_id)?.call_tool(call, handler).await
    }

    /// Returns the state of every server. Never waits for a server.
    pub fn status(&self) -> BTreeMap<String, ClientStatus> {
        self.clients.iter().map(|(id, client)| (id.clone(), client.status())).collect()
    }

    /// Closes the connection of one server. Its next use connects again.
    pub async fn close(&self, server_id: &str) -> Result<()> {
        self.client(server_id)?.close().await;
        Ok(())
    }

    /// Closes all connections and waits until nothing of them is left.
    pub async fn close_all(&self) {
        join_all(self.clients.values().map(|client| client.close())).await;
    }
}
