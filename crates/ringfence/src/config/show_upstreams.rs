//! Lists the settings of other MCP servers with their values and origins.

use std::path::Path;
use std::sync::Arc;

use ringfence_client::config::load_contents;
use serde_json::{Map, Value, json};

use super::parse::config_text::upstream_key;
use super::parse::key_spans::KeySpans;
use super::resolve::{LoadedConfigFile, minimal_command};
use super::show::{ShownKey, access_value, show_variables, table_origin};
use super::upstreams::servers::{UpstreamContext, resolve_servers};
use super::{Config, ProfileSetting, UpstreamServer, schema};

/// Lists the keys of `[upstream.<id>]` of all servers.
pub(super) fn list_server_keys(source: &LoadedConfigFile, config: &Config) -> Vec<ShownKey> {
    let mut keys = Vec::new();
    for server in config.upstreams.servers.values() {
        let path = upstream_key(&server.id);
        for key in schema::list_upstream_keys() {
            let line = source.parsed.line_of_key(&source.text, &format!("{path}.{}", key.path));
            let value = match key.path.as_str() {
                // A remote server has no sandbox, no variables and no directory.
                "sandbox_profile" | "allow_network" | "allow_domains" | "allow_addresses"
                | "side_effects" | "cwd" | "env"
                    if !server.is_stdio() =>
                {
                    None
                }
                key if key.starts_with("oauth_") && server.login.is_none() => None,
                "sandbox_profile" => {
                    let profile = config.default_sandbox.profile;
                    Some(json!(server.access.effective_profile(profile).name()))
                }
                key => upstream_value(server, key),
            };
            keys.push(ShownKey {
                key: format!("{path}.{}", key.path),
                value,
                origin: table_origin(source, line),
                line,
            });
        }
    }
    keys
}

/// Returns the value of one key of a server, safe to show.
pub(super) fn upstream_value(server: &UpstreamServer, key: &str) -> Option<Value> {
    let whole = |number: u128| json!(u64::try_from(number).unwrap_or(u64::MAX));
    Some(match key {
        "cwd" => json!(server.cwd.as_deref().unwrap_or(Path::new("."))),
        "env" => show_variables(&server.env),
        "approval" => json!(server.approval.name()),
        "share" => json!(server.share.name()),
        "sampling" => json!(server.allows_sampling),
        "timeout_ms" => whole(server.call_timeout.as_millis()),
        "start_timeout_ms" => whole(server.start_timeout.as_millis()),
        "idle_s" => json!(server.idle_timeout.as_secs()),
        "oauth_client_id" => json!(server.login.as_ref()?.client_id.as_ref()?),
        // A reference, never the value.
        "oauth_client_secret" => json!(server.login.as_ref()?.client_secret.as_ref()?.text),
        "oauth_scopes" => json!(server.login.as_ref().map_or(&[][..], |login| &login.scopes)),
        "oauth_private_addresses" => {
            json!(server.login.as_ref().is_some_and(|login| login.allows_private_addresses))
        }
        _ => return access_value(&server.access, key),
    })
}

/// Returns the defaults of a server: the values of one without a table.
pub(super) fn upstream_defaults() -> Map<String, Value> {
    let Some(server) = minimal_server() else { return Map::new() };
    let entry = super::key_docs::find_key("upstream.x");
    let names = entry.and_then(|entry| entry["properties"].as_object()).into_iter().flatten();
    names.filter_map(|(key, _)| Some((key.clone(), upstream_value(&server, key)?))).collect()
}

/// Resolves a stdio server without a table.
fn minimal_server() -> Option<Arc<UpstreamServer>> {
    let text = r#"{"servers": {"x": {"trust": "trusted",
        "transport": {"type": "stdio", "command": "x"}}}}"#;
    let loaded = load_contents(None, Some(text.as_ref()), Path::new("/")).ok()?;
    let context = UpstreamContext {
        path: Path::new("config.toml"),
        text: "",
        key_spans: &KeySpans::default(),
        default_timeout: minimal_command()?.timeout,
        sandbox_profile: ProfileSetting::Default,
        requires_servers: true,
    };
    resolve_servers(&context, &loaded, &[]).ok()?.0.remove("x")
}
