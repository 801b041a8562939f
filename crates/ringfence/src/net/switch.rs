//! Shares one listener between sessions: each has its own address on it and can reach only what it
//! is allowed to.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use super::allow::Allow;
use super::decision::Decision;
use super::reach::{Dial, Limits, Reach, direct};
use super::resolve::System;

/// Callback for each decision.
pub type Decided = Arc<dyn Fn(&Decision) + Send + Sync>;

/// Connectors by the local address at which the proxy was contacted. A connection to any other
/// address is closed.
#[derive(Default)]
pub struct Switch {
    roads: RwLock<HashMap<IpAddr, Arc<Reach>>>,
}

impl Switch {
    /// Adds or replaces the connector for an address. `inside` dials the loopback of the session it
    /// belongs to; without it that loopback cannot be reached.
    pub fn set(&self, at: IpAddr, allow: Allow, inside: Option<Dial>, decided: Decided) {
        let reach = Reach {
            allow: Arc::new(allow),
            resolver: Arc::new(System::default()),
            dial: direct(),
            inside,
            decided,
            limits: Limits::default(),
        };
        self.roads.write().unwrap_or_else(PoisonError::into_inner).insert(at, Arc::new(reach));
    }

    /// Removes the connector for an address.
    pub fn remove(&self, at: IpAddr) {
        self.roads.write().unwrap_or_else(PoisonError::into_inner).remove(&at);
    }

    pub(super) fn road(&self, at: IpAddr) -> Option<Arc<Reach>> {
        self.roads.read().unwrap_or_else(PoisonError::into_inner).get(&at).cloned()
    }
}
