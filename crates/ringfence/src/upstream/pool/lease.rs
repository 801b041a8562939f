//! Use of a connection by one call, and the comparison of what its server offers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ringfence_client::{ClientStatus, ServerClient, clean_text};
use serde_json::{Map, Value};

use super::{ConnectionKey, PooledConnection, SeenOffer, UpstreamPool};
use crate::audit::CallEvents;
use crate::base::{Error, IgnorePoison, Kind, Result};
use crate::upstream::catalog::{OfferedServer, ServerPins};
use crate::upstream::client_error::to_call_error;
use crate::upstream::tool::UpstreamTool;

/// Use of a connection by one call.
pub struct ConnectionLease {
    pub(super) pool: Arc<UpstreamPool>,
    pub(super) key: ConnectionKey,
    pub connection: Arc<PooledConnection>,
    pub(super) ends_with_call: bool,
}

impl ConnectionLease {
    /// Connects if necessary and fails unless the server offers exactly what was accepted of this
    /// tool. A new connection and a changed offer are recorded. Returns the number of the connection
    /// that was compared: the call is for this one alone.
    pub async fn check_offer(
        &self,
        pins: &Arc<ServerPins>,
        tool: &UpstreamTool,
        call_events: &CallEvents,
    ) -> Result<u64> {
        let server_id = &self.key.server_id;
        let client = &self.connection.client;
        let listed = client.list_tools().await;
        self.pool.failures.record_outcome(
            &self.key.failure_key(),
            client,
            self.connection.has_logins,
            listed.as_ref().err(),
        );
        let catalog = match listed {
            Ok(catalog) => catalog,
            Err(error) => {
                if let Some(spawner) = &self.connection.spawner {
                    spawner.check_package().await?;
                }
                return Err(to_call_error(&error, server_id));
            }
        };
        let mut seen = self.connection.seen_offer.lock().ignore_poison();
        let connection = catalog.connection;
        if let Some(seen) = &mut *seen
            && Arc::ptr_eq(&seen.catalog, &catalog)
            // What another connection has seen may be out of date.
            && !tool.is_withheld(&self.key.principal)
        {
            // Someone may have accepted another offer meanwhile.
            seen.pins = Arc::clone(pins);
            return pins.check_tool(&seen.offer, &tool.server_tool).map(|()| connection);
        }
        let is_new = seen.as_ref().is_none_or(|seen| seen.catalog.connection != connection);
        let ClientStatus::Connected(greeting) = client.status() else {
            // It is not known whose offer this is, so that nothing may follow from it.
            return Err(ended_error(server_id));
        };
        let offer = Arc::new(OfferedServer::new(&greeting, &catalog));
        let call_events = call_events.with_field("upstream", server_id.as_str());
        *seen = Some(SeenOffer {
            catalog,
            offer: Arc::clone(&offer),
            pins: Arc::clone(pins),
            call_events: call_events.clone(),
        });
        drop(seen);
        if is_new {
            call_events.write_upstream("upstream.connect", describe_connection(client))?;
        }
        if let Some(drift) = self.pool.observations.record_offer(pins, &self.key.principal, &offer)
        {
            call_events.write_upstream("upstream.offer", drift.to_fields())?;
        }
        pins.check_tool(&offer, &tool.server_tool).map(|()| connection)
    }
}

/// Returns the error for a server that ended as soon as it had listed its tools.
pub fn ended_error(server_id: &str) -> Error {
    let message = format!("the server `{server_id}` ended after it listed its tools");
    Error::new(Kind::Unavailable, message)
        .with_reason("upstream_down")
        .with_fact("upstream", server_id)
        .with_hint("Call again; if it fails again, have the operator look at the server.")
}

/// Returns what the record says about a new connection.
fn describe_connection(client: &ServerClient) -> Map<String, Value> {
    let mut fields = Map::new();
    if let ClientStatus::Connected(greeting) = client.status() {
        let text = |value: &Value| clean_text(value.as_str().unwrap_or_default(), 100);
        fields.insert("protocol".to_owned(), greeting.version.clone().into());
        fields.insert("server".to_owned(), text(&greeting.server_info["name"]).into());
        fields.insert("version".to_owned(), text(&greeting.server_info["version"]).into());
    }
    fields
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        let connection = &self.connection;
        *connection.last_used.lock().ignore_poison() = Instant::now();
        let is_last = connection.users.fetch_sub(1, Ordering::AcqRel) == 1;
        if self.ends_with_call || is_last && connection.is_outdated.load(Ordering::Acquire) {
            self.pool.remove_connection(&self.key, connection);
        }
    }
}
