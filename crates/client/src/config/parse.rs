//! Validation of a configuration.
//!
//! A misspelled key in a security setting must not be ignored: what this module does not know, it
//! refuses. It continues after a problem, so that one pass finds all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::bundle::{BundleConfig, BundleMode};
use super::entry::{ConfigEntry, collect_valid};
use super::problem::{ConfigProblem, ProblemList, child_path, quote_text};
use super::source::ConfigSource;
use super::transport::read_transport;
use super::tree::{JsonNode, parse_tree};
use super::{ClientConfig, ServerConfig, TrustLevel};
use crate::Result;

const MAX_SERVER_ID_CHARS: usize = 32;
const MAX_BUNDLE_ID_CHARS: usize = 64;
/// Separates server and tool in a namespaced name.
const NAMESPACE_SEPARATOR: &str = "__";

const TRUST_LEVELS: &[(&str, TrustLevel)] =
    &[("trusted", TrustLevel::Trusted), ("untrusted", TrustLevel::Untrusted)];
const BUNDLE_MODES: &[(&str, BundleMode)] =
    &[("direct", BundleMode::Direct), ("meta", BundleMode::Meta)];

/// Parses and validates a complete configuration. Relative paths stay relative.
///
/// The error lists up to 20 problems, one per line.
pub fn parse_config(text: &str) -> Result<ClientConfig> {
    let sources = [ConfigSource::new_unnamed()];
    let mut problems = ProblemList::default();
    let config = match parse_tree(text, 0, &mut problems) {
        Ok(tree) => read_config(&tree, &sources, &mut problems),
        Err(problem) => {
            problems.add(problem);
            ClientConfig::default()
        }
    };
    problems.into_result(config, &sources)
}

/// Reads a complete configuration. The result is only valid if no problem was added.
pub(super) fn read_config(
    tree: &JsonNode,
    sources: &[ConfigSource],
    problems: &mut ProblemList,
) -> ClientConfig {
    let root = ConfigEntry::from_root(tree);
    root.check_keys(&["servers", "bundles"], problems);
    let servers = read_section(&root, "servers", problems);
    let bundles = read_section(&root, "bundles", problems);
    let mut config = ClientConfig::default();
    if let Some(servers) = &servers {
        check_similar_ids(servers, problems);
        for (id, entry) in servers {
            check_server_id(id, entry, problems);
            let server = read_server(entry, sources, problems);
            config.servers.extend(server.map(|server| ((*id).to_owned(), server)));
        }
    }
    for (id, entry) in bundles.iter().flatten() {
        check_bundle_id(id, entry, problems);
        let bundle = read_bundle(entry, servers.as_deref(), problems);
        config.bundles.extend(bundle.map(|bundle| ((*id).to_owned(), bundle)));
    }
    config
}

type SectionMembers<'a> = Vec<(&'a str, ConfigEntry<'a>)>;

/// Returns the members of an optional section; `None` if it is not an object.
fn read_section<'a>(
    root: &ConfigEntry<'a>,
    key: &str,
    problems: &mut ProblemList,
) -> Option<SectionMembers<'a>> {
    match root.get(key) {
        Some(section) => section.read_members(problems),
        None => Some(Vec::new()),
    }
}

fn check_server_id(id: &str, entry: &ConfigEntry<'_>, problems: &mut ProblemList) {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if id.is_empty() || id.len() > MAX_SERVER_ID_CHARS || !id.chars().all(is_allowed) {
        let hint = "Use 1 to 32 characters of A-Z, a-z, 0-9, `_` and `-`.";
        problems.add(entry.new_problem("this is not a valid server id", hint));
    } else if id.contains(NAMESPACE_SEPARATOR) {
        let reason = "a server id must not contain `__`";
        let hint = "Use a single `_`: `__` separates the server from the tool in tool names.";
        problems.add(entry.new_problem(reason, hint));
    }
}

fn check_bundle_id(id: &str, entry: &ConfigEntry<'_>, problems: &mut ProblemList) {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if id.is_empty() || id.len() > MAX_BUNDLE_ID_CHARS || !id.chars().all(is_allowed) {
        let hint = "Use 1 to 64 characters of A-Z, a-z, 0-9, `_`, `.` and `-`.";
        problems.add(entry.new_problem("this is not a valid bundle id", hint));
    }
}

/// Refuses ids that a human or a client could take for the same one.
fn check_similar_ids(servers: &SectionMembers<'_>, problems: &mut ProblemList) {
    let mut seen: BTreeMap<String, &ConfigEntry<'_>> = BTreeMap::new();
    for (id, entry) in servers {
        let folded = id.to_ascii_lowercase().replace('-', "_");
        let Some(other) = seen.insert(folded, entry) else { continue };
        // The id that was written last is the one to change.
        let (first, last) = match other.node.position <= entry.node.position {
            true => (other, entry),
            false => (entry, other),
        };
        let reason =
            format!("this id differs from `{}` only in case or in `-` and `_`", first.path);
        problems.add(last.new_problem(reason, "Rename one of the servers."));
    }
}

fn read_server(
    entry: &ConfigEntry<'_>,
    sources: &[ConfigSource],
    problems: &mut ProblemList,
) -> Option<ServerConfig> {
    if !entry.check_keys(&["trust", "transport"], problems) {
        return None;
    }
    let trust = entry
        .require("trust", "Set it to \"trusted\" or \"untrusted\".", problems)
        .and_then(|trust| trust.read_choice(TRUST_LEVELS, problems));
    let transport = entry
        .require("transport", "Add an object with `type` and its settings.", problems)
        .and_then(|transport| read_transport(&transport, sources, problems));
    Some(ServerConfig { trust: trust?, transport: transport? })
}

/// Reads a bundle. Without `servers`, which are not valid then, it does not check `serverId`.
fn read_bundle<'a>(
    entry: &ConfigEntry<'a>,
    servers: Option<&[(&'a str, ConfigEntry<'a>)]>,
    problems: &mut ProblemList,
) -> Option<BundleConfig> {
    if !entry.check_keys(&["serverId", "mode", "allowTools", "denyTools"], problems) {
        return None;
    }
    let server_id = entry
        .require("serverId", "Set it to the id of a server in `servers`.", problems)
        .and_then(|server_id| Some((server_id.read_text(problems)?, server_id)));
    let mode = entry
        .require("mode", "Set it to \"direct\" or \"meta\".", problems)
        .and_then(|mode| mode.read_choice(BUNDLE_MODES, problems));
    if let (Some((id, id_entry)), Some(servers)) = (&server_id, servers) {
        // Members are in the order of their keys.
        match servers.binary_search_by_key(id, |(server, _)| server) {
            Ok(index) => check_allow_list(entry, id, &servers[index].1, problems),
            Err(_) => problems.add(describe_unknown_server(id, id_entry, servers)),
        }
    }
    let allow_tools = match entry.get("allowTools") {
        Some(list) => read_allow_list(&list, problems).map(Some),
        None => Some(None),
    };
    let deny_tools = match entry.get("denyTools") {
        Some(list) => read_tool_names(&list, problems),
        None => Some(BTreeSet::new()),
    };
    Some(BundleConfig {
        server_id: server_id?.0.to_owned(),
        mode: mode?,
        allow_tools: allow_tools?,
        deny_tools: deny_tools?,
    })
}

fn describe_unknown_server(
    id: &str,
    entry: &ConfigEntry<'_>,
    servers: &[(&str, ConfigEntry<'_>)],
) -> ConfigProblem {
    const MAX_OFFERED: usize = 10;
    let shown = servers.iter().take(MAX_OFFERED);
    let ids: Vec<String> = shown.map(|(id, _)| child_path("", id)).collect();
    let hint = match servers.len() {
        0 => "Add the server to `servers`.".to_owned(),
        1..=MAX_OFFERED => format!("Configured servers: {}.", ids.join(", ")),
        _ => format!("Configured servers: {}, ...", ids.join(", ")),
    };
    entry.new_problem(format!("there is no server {}", quote_text(id)), hint)
}

/// Requires an allow-list if the server is untrusted: it can rename and add tools at any time.
fn check_allow_list(
    bundle: &ConfigEntry<'_>,
    server_id: &str,
    server: &ConfigEntry<'_>,
    problems: &mut ProblemList,
) {
    let trust = server.get("trust").and_then(|trust| trust.as_text());
    if trust == Some(TrustLevel::Untrusted.name()) && bundle.get("allowTools").is_none() {
        let hint = format!(
            "List the allowed tools: the server {} is untrusted, and without \
             a list all its tools would be allowed.",
            quote_text(server_id)
        );
        bundle.require("allowTools", &hint, problems);
    }
}

fn read_allow_list(
    entry: &ConfigEntry<'_>,
    problems: &mut ProblemList,
) -> Option<BTreeSet<String>> {
    let names = read_tool_names(entry, problems)?;
    if names.is_empty() {
        let hint =
            "List the allowed tools. For a trusted server, remove the key to allow all of them.";
        problems.add(entry.new_problem("this list must not be empty", hint));
        return None;
    }
    Some(names)
}

fn read_tool_names(
    entry: &ConfigEntry<'_>,
    problems: &mut ProblemList,
) -> Option<BTreeSet<String>> {
    let items = entry.read_items(problems)?;
    collect_valid(items.iter().map(|item| item.read_name(problems).map(str::to_owned)))
}

#[cfg(test)]
mod tests;
