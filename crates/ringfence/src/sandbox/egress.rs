//! Network access of a run: a proxy on a listener that the sandbox hands over, and a list of what
//! it refused.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use jail::packet::PacketChannel;
use serde_json::{Map, Value, json};

use crate::base::IgnorePoison;
use crate::net::{AllowList, OnDecision, Proxy, ProxyDecision, SessionRouter, SystemResolver};

/// Maximum number of different refusals that are counted separately; further ones are counted
/// together.
const MAX_REFUSAL_KINDS: usize = 64;

/// Proxy of one run. Serves until dropped.
pub struct Egress {
    _proxy: Proxy,
    refused: RefusalCounts,
}

/// Number of refusals for each target and reason.
#[derive(Clone, Default)]
struct RefusalCounts(Arc<Mutex<BTreeMap<(String, &'static str), u64>>>);

impl Egress {
    /// Starts the proxy on the listener that the run's supervisor has put into `channel`, which
    /// happens before the run begins.
    pub fn start(
        channel: &PacketChannel,
        allow_list: &Arc<AllowList>,
        on_decision: Option<OnDecision>,
    ) -> io::Result<Egress> {
        Egress::serve_listener(Egress::receive_listener(channel)?, allow_list, on_decision)
    }

    /// Starts the proxy of a run that acts for several sessions, and returns its port.
    pub fn start_shared(
        channel: &PacketChannel,
        router: &Arc<SessionRouter>,
    ) -> io::Result<(Proxy, u16)> {
        let listener = TcpListener::from(Egress::receive_listener(channel)?);
        let port = listener.local_addr()?.port();
        Ok((Proxy::start_shared(listener, Arc::clone(router))?, port))
    }

    fn receive_listener(channel: &PacketChannel) -> io::Result<OwnedFd> {
        match channel.receive::<()>()? {
            Some(((), mut fds)) if fds.len() == 1 => Ok(fds.remove(0)),
            _ => Err(io::Error::other("the run has handed out no listener")),
        }
    }

    fn serve_listener(
        listener: OwnedFd,
        allow_list: &Arc<AllowList>,
        on_decision: Option<OnDecision>,
    ) -> io::Result<Egress> {
        let refused = RefusalCounts::default();
        let counts = refused.clone();
        let record_decision = move |decision: &ProxyDecision| {
            if !decision.allowed {
                counts.count_refusal(decision);
            }
            if let Some(on_decision) = &on_decision {
                on_decision(decision);
            }
        };
        let listener = TcpListener::from(listener);
        let proxy = Proxy::start(
            listener,
            Arc::clone(allow_list),
            Arc::new(SystemResolver::default()),
            Arc::new(record_decision),
        )?;
        Ok(Egress { _proxy: proxy, refused })
    }

    /// Returns what was refused, in the form of a result's `denials`.
    pub fn denials(&self) -> Vec<Value> {
        self.refused.to_denials()
    }
}

impl RefusalCounts {
    fn count_refusal(&self, decision: &ProxyDecision) {
        let mut counts = self.0.lock().ignore_poison();
        let key =
            (format!("{}:{}", decision.host, decision.port), decision.reason.unwrap_or("refused"));
        let key = if counts.len() < MAX_REFUSAL_KINDS || counts.contains_key(&key) {
            key
        } else {
            ("…".to_owned(), "refused")
        };
        *counts.entry(key).or_default() += 1;
    }

    fn to_denials(&self) -> Vec<Value> {
        let counts = self.0.lock().ignore_poison();
        let to_denial = |((name, reason), count): (&(String, &'static str), &u64)| json!({"kind": "network", "name": name, "reason": reason, "count": count});
        counts.iter().map(to_denial).collect()
    }
}

/// Returns the audit fields for a decision.
pub fn decision_fields(decision: &ProxyDecision) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    add("allowed", decision.allowed.into());
    add("host", decision.host.clone().into());
    add("port", decision.port.into());
    add("via", decision.via.into());
    if let Some(reason) = decision.reason {
        add("reason", reason.into());
    }
    if let Some(address) = decision.address {
        add("address", address.to_string().into());
    }
    fields
}
