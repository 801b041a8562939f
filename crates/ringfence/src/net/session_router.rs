//! Shares one listener between sessions: each has its own address on it and can reach only what it
//! is allowed to.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use super::allow_list::AllowList;
use super::connector::{Connector, DialFn, ProxyLimits, direct_dialer};
use super::decision::ProxyDecision;
use super::resolve::SystemResolver;
use crate::base::IgnorePoison;

/// Callback for each decision.
pub type OnDecision = Arc<dyn Fn(&ProxyDecision) + Send + Sync>;

/// Connectors by the local address at which the proxy was contacted. A connection to any other
/// address is closed.
#[derive(Default)]
pub struct SessionRouter {
    connectors: RwLock<HashMap<IpAddr, Arc<Connector>>>,
}

impl SessionRouter {
    /// Adds or replaces the connector for an address. `dial_inside` dials the loopback of the
    /// session it belongs to; without it that loopback cannot be reached.
    pub fn set_route(
        &self,
        address: IpAddr,
        allow_list: AllowList,
        dial_inside: Option<DialFn>,
        on_decision: OnDecision,
    ) {
        let connector = Connector {
            allow_list: Arc::new(allow_list),
            resolver: Arc::new(SystemResolver::default()),
            dial: direct_dialer(),
            dial_inside,
            on_decision,
            limits: ProxyLimits::default(),
        };
        self.connectors.write().ignore_poison().insert(address, Arc::new(connector));
    }

    /// Removes the connector for an address.
    pub fn remove_route(&self, address: IpAddr) {
        self.connectors.write().ignore_poison().remove(&address);
    }

    pub(super) fn connector_for(&self, address: IpAddr) -> Option<Arc<Connector>> {
        self.connectors.read().ignore_poison().get(&address).cloned()
    }
}
