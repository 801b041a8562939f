//! One listener for several: each has an address of its own on it, and reaches what it may and nobody else.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use super::allow::Allow;
use super::decision::Decision;
use super::reach::{Dial, Limits, Reach, direct};
use super::resolve::System;

/// Who is told of each decision.
pub type Decided = Arc<dyn Fn(&Decision) + Send + Sync>;

/// The roads out, by the address at which the proxy was asked. An address that has none leads nowhere.
#[derive(Default)]
pub struct Switch {
    roads: RwLock<HashMap<IpAddr, Arc<Reach>>>,
}

impl Switch {
    /// Opens a road, or changes it. `inside` dials the loopback of whoever it is for; without it there is none.
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

    pub fn remove(&self, at: IpAddr) {
        self.roads.write().unwrap_or_else(PoisonError::into_inner).remove(&at);
    }

    pub(super) fn road(&self, at: IpAddr) -> Option<Arc<Reach>> {
        self.roads.read().unwrap_or_else(PoisonError::into_inner).get(&at).cloned()
    }
}
