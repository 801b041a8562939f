//! Where the keys of a loaded configuration were written, for errors about them.

use std::collections::BTreeMap;

use super::ConfigOrigin;
use super::problem::{ValuePosition, child_path};
use super::source::ConfigSource;
use super::tree::{JsonContent, JsonNode};

/// Where each key of a loaded configuration was written. It contains no values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyLocations {
    /// Positions by the path of the key.
    positions: BTreeMap<String, ValuePosition>,
    sources: Vec<ConfigSource>,
}

impl KeyLocations {
    /// Collects the keys of the merged configuration.
    pub(super) fn new(tree: Option<&JsonNode>, sources: Vec<ConfigSource>) -> KeyLocations {
        let mut locations = KeyLocations { positions: BTreeMap::new(), sources };
        if let Some(tree) = tree {
            locations.add_members("", tree);
        }
        locations
    }

    fn add_members(&mut self, path: &str, node: &JsonNode) {
        let JsonContent::Object(members) = &node.content else { return };
        for (key, member) in members {
            let path = child_path(path, key);
            self.add_members(&path, member);
            self.positions.insert(path, member.position);
        }
    }

    /// Returns where a key was written and its path, as a prefix of an error about it:
    /// `/etc/mcp.json:7: servers.git.transport.env.TOKEN`.
    pub fn describe_key(&self, keys: &[&str]) -> String {
        let path = join_keys(keys);
        let position = self.positions.get(&path);
        let location = position.and_then(|position| {
            let source = self.sources.get(position.source)?;
            Some(source.format_location(position.line))
        });
        format!("{}{path}", location.unwrap_or_default())
    }

    /// Returns the line of a key in its source.
    pub fn find_line(&self, keys: &[&str]) -> Option<usize> {
        self.positions.get(&join_keys(keys))?.line
    }

    /// Returns the source that a key comes from.
    pub fn find_origin(&self, keys: &[&str]) -> Option<&ConfigOrigin> {
        let position = self.positions.get(&join_keys(keys))?;
        self.sources.get(position.source)?.origin.as_ref()
    }
}

fn join_keys(keys: &[&str]) -> String {
    keys.iter().fold(String::new(), |path, key| child_path(&path, key))
}
