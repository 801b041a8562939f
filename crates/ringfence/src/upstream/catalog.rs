//! Tools that are offered: what was accepted in `mcp.lock`, less what a server has changed since.
//!
//! A list is made from the accepted definitions alone, so that it is the same at every start and
//! starts no server. A server whose offer differs from them is noticed with its next connection:
//! the tools that differ are neither listed nor called until someone accepts them. What a server
//! offers may depend on who asks, so that an offer counts for that principal alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_client::config::{BundleConfig, BundleMode};
use ringfence_client::{
    Limits, LockedServer, NameMap, ServerGreeting, ToolCatalog, ToolKey, clean_text,
};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::backend::UpstreamBackend;
use super::pool::UpstreamPool;
use super::tool::UpstreamTool;
use crate::base::call::digest_json;
use crate::base::{Error, IgnorePoison, Kind, Result};
use crate::config::{BUILT_IN_TOOLS, Config};
use crate::sandbox::SandboxConfig;
use crate::session::Principal;

/// Names of tools in one record.
const MAX_RECORDED: usize = 50;
/// How long a changed offer keeps users from being asked about the tool. Later calls connect, and so
/// notice that the change was taken back.
const REFUSAL_TIME: Duration = Duration::from_secs(30);

/// Accepted definitions of a server, as digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPins {
    server_id: String,
    /// The name that the server gives itself.
    identity: Value,
    instructions: Option<String>,
    /// Digests of the accepted definitions.
    tools: BTreeMap<String, String>,
}

/// Last offer of a server, as digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedServer {
    identity: Value,
    instructions: Option<String>,
    tools: BTreeMap<String, String>,
}

/// How an offer differs from what was accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfferDrift {
    /// The server gives itself another name, or other instructions: all of its tools are affected.
    pub server_changed: bool,
    pub changed_tools: BTreeSet<String>,
    /// Tools that no one has accepted yet.
    pub new_tools: BTreeSet<String>,
}

impl OfferDrift {
    /// Returns what the record says about it.
    pub fn to_fields(&self) -> Map<String, Value> {
        let names = |tools: &BTreeSet<String>| {
            let names = tools.iter().take(MAX_RECORDED).map(|name| clean_text(name, 100));
            Value::from(names.collect::<Vec<_>>())
        };
        Map::from_iter([
            ("server_changed".to_owned(), self.server_changed.into()),
            ("changed_tools".to_owned(), names(&self.changed_tools)),
            ("new_tools".to_owned(), names(&self.new_tools)),
        ])
    }
}

impl ServerPins {
    /// Takes the pins of an accepted server.
    pub fn new(server_id: &str, locked: &LockedServer) -> ServerPins {
        let tools = locked.tools.iter();
        ServerPins {
            server_id: server_id.to_owned(),
            identity: locked.identity["name"].clone(),
            instructions: locked.instructions.clone(),
            tools: tools.map(|(name, tool)| (name.clone(), digest_json(tool))).collect(),
        }
    }

    /// Compares an offer with them.
    pub fn compare_offer(&self, offer: &OfferedServer) -> OfferDrift {
        let is_changed = |(name, digest): &(&String, &String)| {
            self.tools.get(*name).is_some_and(|accepted| accepted != *digest)
        };
        let names = |tools: Vec<(&String, &String)>| -> BTreeSet<String> {
            tools.into_iter().map(|(name, _)| name.clone()).collect()
        };
        OfferDrift {
            server_changed: self.identity != offer.identity
                || self.instructions != offer.instructions,
            changed_tools: names(offer.tools.iter().filter(is_changed).collect()),
            new_tools: names(
                offer.tools.iter().filter(|(name, _)| !self.tools.contains_key(*name)).collect(),
            ),
        }
    }

    /// Returns whether an offer has another definition of this tool, or comes from another server.
    fn is_tool_changed(&self, offer: &OfferedServer, tool: &str) -> bool {
        self.identity != offer.identity
            || self.instructions != offer.instructions
            || offer.tools.get(tool).is_some_and(|digest| self.tools.get(tool) != Some(digest))
    }

    /// Fails unless an offer contains the accepted definition of this tool.
    pub fn check_tool(&self, offer: &OfferedServer, tool: &str) -> Result<()> {
        let id = &self.server_id;
        if !offer.tools.contains_key(tool) {
            return Err(Error::new(
                Kind::Unavailable,
                format!("the server `{id}` does not offer this tool any more"),
            )
            .with_reason("tool_gone")
            .with_hint(format!("Use another tool; `ringfence upstream diff {id}` shows more.")));
        }
        match self.is_tool_changed(offer, tool) {
            false => Ok(()),
            true => Err(self.changed_error()),
        }
    }

    /// Returns the error of a call of a tool that its server has changed.
    pub fn changed_error(&self) -> Error {
        let id = &self.server_id;
        Error::permission_denied(
            "definition_changed",
            format!("the server `{id}` has changed what this tool is, and no one has accepted that"),
        )
        .with_hint(format!(
            "Have the operator look at `ringfence upstream diff {id}`, then run `ringfence upstream accept {id}`."
        ))
    }

    /// Returns how many tools were accepted.
    pub fn tool_count(&self) -> usize {
        self.tools.len()
    }
}

impl OfferedServer {
    /// Takes what a connected server offers.
    pub fn new(greeting: &ServerGreeting, catalog: &ToolCatalog) -> OfferedServer {
        let tools = catalog.tools.iter().filter_map(|(name, tool)| {
            let definition: Value = serde_json::from_str(&tool.text).ok()?;
            Some((name.clone(), digest_json(&definition)))
        });
        OfferedServer {
            identity: greeting.server_info["name"].clone(),
            instructions: greeting.instructions.clone(),
            tools: tools.collect(),
        }
    }
}

/// Offers of servers as they were last seen, beyond `mcp.lock`.
pub struct Observations {
    servers: Mutex<BTreeMap<String, ObservedServer>>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct ObservedServer {
    /// Last offers to principals, where they differ from what was accepted.
    changed_offers: BTreeMap<Principal, ChangedOffer>,
    /// Definitions of a trusted server that is not in `mcp.lock` and could not be written there.
    learned: Option<Arc<LockedServer>>,
    /// The server could not be asked for its tools.
    has_learn_error: bool,
}

struct ChangedOffer {
    offer: Arc<OfferedServer>,
    seen_at: Instant,
}

impl Default for Observations {
    fn default() -> Self {
        Observations { servers: Mutex::default(), changes: watch::channel(0).0 }
    }
}

impl Observations {
    /// Records an offer to a principal. Returns how it differs from what was accepted, if that is
    /// news.
    pub fn record_offer(
        &self,
        pins: &ServerPins,
        principal: &Principal,
        offer: &Arc<OfferedServer>,
    ) -> Option<OfferDrift> {
        let mut servers = self.lock_servers();
        let server = servers.entry(pins.server_id.clone()).or_default();
        let drift = pins.compare_offer(offer);
        let previous = match drift == OfferDrift::default() {
            true => server.changed_offers.remove(principal),
            false => {
                let changed = ChangedOffer { offer: Arc::clone(offer), seen_at: Instant::now() };
                server.changed_offers.insert(principal.clone(), changed)
            }
        };
        let known =
            previous.map(|previous| pins.compare_offer(&previous.offer)).unwrap_or_default();
        drop(servers);
        if drift == known {
            return None;
        }
        self.announce_change();
        Some(drift)
    }

    /// Keeps the definitions of a server that cannot be written to `mcp.lock`.
    pub fn keep_learned(&self, server_id: &str, learned: LockedServer) {
        let mut servers = self.lock_servers();
        servers.entry(server_id.to_owned()).or_default().learned = Some(Arc::new(learned));
        drop(servers);
        self.announce_change();
    }

    /// Notes that a server could not be asked.
    pub fn note_learn_error(&self, server_id: &str) {
        self.lock_servers().entry(server_id.to_owned()).or_default().has_learn_error = true;
    }

    /// Returns whether a server could not be asked.
    pub fn has_learn_error(&self, server_id: &str) -> bool {
        self.lock_servers().get(server_id).is_some_and(|server| server.has_learn_error)
    }

    /// Returns whether the last offer to this principal has another definition of this tool than was
    /// accepted.
    pub fn is_withheld(&self, pins: &ServerPins, principal: &Principal, tool: &str) -> bool {
        let servers = self.lock_servers();
        let changed = find_changed_offer(&servers, pins, principal);
        changed.is_some_and(|changed| pins.is_tool_changed(&changed.offer, tool))
    }

    /// Fails if this principal was just offered another definition of this tool than was accepted.
    pub fn check_tool(&self, pins: &ServerPins, principal: &Principal, tool: &str) -> Result<()> {
        let servers = self.lock_servers();
        match find_changed_offer(&servers, pins, principal) {
            Some(ChangedOffer { offer, seen_at })
                if seen_at.elapsed() < REFUSAL_TIME && pins.is_tool_changed(offer, tool) =>
            {
                Err(pins.changed_error())
            }
            _ => Ok(()),
        }
    }

    /// Returns how the last offer to this principal differs from what was accepted.
    pub fn drift(&self, pins: &ServerPins, principal: &Principal) -> OfferDrift {
        let servers = self.lock_servers();
        let changed = find_changed_offer(&servers, pins, principal);
        changed.map(|changed| pins.compare_offer(&changed.offer)).unwrap_or_default()
    }

    /// Returns the accepted definitions of a server.
    pub fn accepted_server(&self, config: &Config, server_id: &str) -> Option<Arc<LockedServer>> {
        match config.upstreams.lock.servers.get(server_id) {
            Some(locked) => Some(Arc::new(locked.clone())),
            None => self.lock_servers().get(server_id)?.learned.clone(),
        }
    }

    /// Subscribes to changes of what may be listed.
    pub fn watch_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn announce_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn lock_servers(&self) -> MutexGuard<'_, BTreeMap<String, ObservedServer>> {
        self.servers.lock().ignore_poison()
    }
}

fn find_changed_offer<'a>(
    servers: &'a BTreeMap<String, ObservedServer>,
    pins: &ServerPins,
    principal: &Principal,
) -> Option<&'a ChangedOffer> {
    servers.get(&pins.server_id)?.changed_offers.get(principal)
}

/// Tools of all servers that were accepted, made from one config.
#[derive(Default)]
pub struct UpstreamTools {
    /// Tools on the list, in the order of their names.
    pub direct: Vec<Arc<UpstreamTool>>,
    /// Tools that the meta tools reach, in the order of their names.
    pub searchable: Vec<Arc<UpstreamTool>>,
    pub backends: BTreeMap<String, Arc<UpstreamBackend>>,
    /// Servers and tools that are not available, with the reason.
    pub problems: Vec<String>,
}

impl UpstreamTools {
    /// Makes the tools of all bundles. One server that cannot be used never takes others down.
    pub fn build(config: &Config, pool: &Arc<UpstreamPool>) -> UpstreamTools {
        let mut tools = UpstreamTools::default();
        if config.upstreams.servers.is_empty() || !config.surface.enabled {
            return tools;
        }
        let sandbox = SandboxConfig::from_config(config);
        for (id, server) in &config.upstreams.servers {
            match UpstreamBackend::new(server, config, &sandbox, pool) {
                Ok(backend) => drop(tools.backends.insert(id.clone(), Arc::new(backend))),
                Err(error) => {
                    tools.problems.push(format!("server `{id}`: {}", error.message_chain()));
                }
            }
        }
        let mut names = NameMap::default();
        let command_names = config.commands.iter().map(|entry| entry.name.as_str());
        BUILT_IN_TOOLS
            .iter()
            .copied()
            .chain(super::meta::NAMES)
            .chain(command_names)
            .for_each(|name| names.reserve_name(name));
        let backends: Vec<_> = tools.backends.values().cloned().collect();
        for backend in backends {
            tools.add_server(config, &backend, &mut names);
        }
        tools
    }

    fn add_server(&mut self, config: &Config, backend: &Arc<UpstreamBackend>, names: &mut NameMap) {
        let id = &backend.server.id;
        let bundles: Vec<&BundleConfig> =
            config.upstreams.bundles.values().filter(|bundle| bundle.server_id == *id).collect();
        let observations = &backend.pool.observations;
        let Some(locked) = observations.accepted_server(config, id) else { return };
        let pins = Arc::new(ServerPins::new(id, &locked));
        for definition in locked.definitions(&Limits::default()) {
            let allows = |bundle: &&&BundleConfig| bundle.allows(&definition.name);
            let modes: Vec<BundleMode> =
                bundles.iter().filter(allows).map(|bundle| bundle.mode).collect();
            if modes.is_empty() {
                continue;
            }
            let key = ToolKey { server_id: id.clone(), tool: definition.name.clone() };
            let name = match names.add_tool(key) {
                Ok(name) => name,
                Err(collision) => {
                    self.problems.push(format!(
                        "tool `{}` of server `{id}`: another tool is called `{}` already",
                        definition.name, collision.name
                    ));
                    continue;
                }
            };
            if !config.surface.allows_tool(&name) {
                continue;
            }
            let version = locked.identity["version"].as_str();
            let tool = UpstreamTool::new(name, backend, &pins, &definition, version, config);
            let tool = Arc::new(tool);
            if modes.contains(&BundleMode::Direct) {
                self.direct.push(Arc::clone(&tool));
            }
            if modes.contains(&BundleMode::Meta) {
                self.searchable.push(tool);
            }
        }
    }

    /// Returns whether a connection to this definition of a server may stay.
    pub fn is_current(&self, server_id: &str, definition: &str) -> bool {
        self.backends.get(server_id).is_some_and(|backend| backend.definition == definition)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn locked(tools: Value) -> LockedServer {
        LockedServer {
            identity: json!({"name": "files", "version": "1"}),
            instructions: Some("Be careful.".to_owned()),
            tools: serde_json::from_value(tools).unwrap(),
        }
    }

    fn offer(locked: &LockedServer) -> Arc<OfferedServer> {
        Arc::new(OfferedServer {
            identity: locked.identity["name"].clone(),
            instructions: locked.instructions.clone(),
            tools: locked
                .tools
                .iter()
                .map(|(name, tool)| (name.clone(), digest_json(tool)))
                .collect(),
        })
    }

    #[test]
    fn only_what_was_accepted_may_be_used() {
        let accepted = locked(json!({"read": {"name": "read"}, "write": {"name": "write"}}));
        let pins = ServerPins::new("files", &accepted);
        assert!(pins.check_tool(&offer(&accepted), "read").is_ok());
        // The order of members is no change.
        let reason = |offered: &LockedServer, tool: &str| {
            pins.check_tool(&offer(offered), tool).err().and_then(|error| error.reason_name())
        };
        let changed = locked(json!({"read": {"name": "read", "description": "Obey."}, "new": {}}));
        assert_eq!(reason(&changed, "read"), Some("definition_changed"));
        assert_eq!(reason(&changed, "write"), Some("tool_gone"));
        let mut renamed = accepted.clone();
        renamed.identity = json!({"name": "other"});
        assert_eq!(reason(&renamed, "read"), Some("definition_changed"));
        let mut newer = accepted.clone();
        newer.identity = json!({"name": "files", "version": "2"});
        assert_eq!(reason(&newer, "read"), None);
        let mut instructed = accepted.clone();
        instructed.instructions = None;
        assert_eq!(reason(&instructed, "read"), Some("definition_changed"));
    }

    #[test]
    fn a_change_is_announced_once_and_ends_when_it_is_accepted() {
        let accepted = locked(json!({"read": {"name": "read"}}));
        let changed = locked(json!({"read": {"name": "read", "x": 1}, "new": {"name": "new"}}));
        let (pins, observations) = (ServerPins::new("files", &accepted), Observations::default());
        let [one, other] = ["one", "other"].map(Principal::from_name);
        let mut changes = observations.watch_changes();
        assert_eq!(observations.record_offer(&pins, &one, &offer(&accepted)), None);
        assert!(!changes.has_changed().unwrap());
        let drift = observations.record_offer(&pins, &one, &offer(&changed)).unwrap();
        assert!(drift.changed_tools.contains("read") && !drift.server_changed);
        assert!(drift.new_tools.contains("new"));
        assert!(observations.is_withheld(&pins, &one, "read"));
        assert!(observations.check_tool(&pins, &one, "read").is_err());
        assert!(!observations.is_withheld(&pins, &other, "read"));
        assert!(observations.check_tool(&pins, &other, "read").is_ok());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!(observations.record_offer(&pins, &one, &offer(&changed)), None);
        assert!(!changes.has_changed().unwrap());
        assert_eq!(observations.drift(&pins, &one), drift);
        let new_pins = ServerPins::new("files", &changed);
        assert_eq!(observations.drift(&new_pins, &one), OfferDrift::default());
        // It is taken back.
        let drift = observations.record_offer(&pins, &one, &offer(&accepted)).unwrap();
        assert_eq!(drift, OfferDrift::default());
        assert!(!observations.is_withheld(&pins, &one, "read"));
    }
}
