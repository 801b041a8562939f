//! Warnings about other MCP servers.

use ringfence_client::config::{ClientConfig, ConfigOrigin};

use super::warnings::{
    ConfigWarning, check_access, check_time_limit, find_missing_secrets, find_written_secrets,
    new_warning,
};
use crate::config::parse::config_text::{WrittenUpstream, upstream_key};
use crate::config::parse::key_spans::child_path;
use crate::config::{Config, UpstreamServer};

/// Returns the warnings about all servers, their file and their tables.
pub(super) fn upstream_warnings(config: &Config, tables: &[WrittenUpstream]) -> Vec<ConfigWarning> {
    let upstreams = &config.upstreams;
    let mut warnings = Vec::new();
    if let Some(path) = &upstreams.untrusted_file {
        let message = format!("the servers of {} are not used", path.display());
        let hint = "Read the file, then run `ringfence upstream trust` with its path.";
        warnings.push(new_warning("upstreams", message, hint));
    }
    let settings = ClientConfig {
        servers: upstreams
            .servers
            .iter()
            .map(|(id, one)| (id.clone(), one.server.clone()))
            .collect(),
        bundles: upstreams.bundles.clone(),
    };
    let file = upstreams.file.as_deref().map(|file| format!("{}: ", file.display()));
    for line in settings.warnings() {
        let (message, hint) = line.split_once(". ").unwrap_or((&line, ""));
        let message = format!("{}{message}", file.as_deref().unwrap_or_default());
        warnings.push(new_warning("upstreams", message, hint));
    }
    for server in upstreams.servers.values() {
        let table = tables.iter().find(|table| table.id == server.id);
        warnings.extend(check_server(config, server, table));
    }
    if config.upstream_errors.is_empty() {
        let lone_tables = tables.iter().filter(|table| !upstreams.servers.contains_key(&table.id));
        warnings.extend(lone_tables.map(|table| {
            let message = format!("there is no server `{}` in this project", table.id);
            let hint = "The settings apply where the upstreams file of a project has this server.";
            new_warning(upstream_key(&table.id), message, hint)
        }));
    }
    warnings
}

fn check_server(
    config: &Config,
    server: &UpstreamServer,
    written: Option<&WrittenUpstream>,
) -> Vec<ConfigWarning> {
    let table = upstream_key(&server.id);
    let mut warnings = check_access(&table, &server.access);
    if server.call_timeout != config.surface.default_timeout {
        let key = format!("{table}.timeout_ms");
        warnings.extend(check_time_limit(&key, config, server.call_timeout));
    }
    let own_env = written.and_then(|table| table.section.env.as_ref());
    for (section, templates) in [("env", &server.env), ("headers", &server.headers)] {
        let key = format!("{table}.{section}");
        for value in templates {
            let (name, template) = value;
            let mut found = find_missing_secrets(config, &child_path(&key, name), template);
            found.extend(find_written_secrets(&key, std::slice::from_ref(value)));
            let is_own = section == "env" && own_env.is_some_and(|env| env.contains_key(name));
            if !is_own {
                let keys = ["servers", &server.id, "transport", section, name];
                found.iter_mut().for_each(|warning| move_to_upstreams(warning, config, &keys));
            }
            warnings.extend(found);
        }
    }
    if let Some(secret) = server.login.as_ref().and_then(|login| login.client_secret.as_ref()) {
        let key = format!("{table}.oauth_client_secret");
        warnings.extend(find_missing_secrets(config, &key, secret));
    }
    warnings
}

/// Makes a warning one about a key of the upstreams file, or of the variable with its contents.
fn move_to_upstreams(warning: &mut ConfigWarning, config: &Config, keys: &[&str]) {
    let locations = &config.upstreams.locations;
    match locations.find_origin(keys) {
        Some(ConfigOrigin::File { path, .. }) => {
            warning.other_file = Some((path.clone(), locations.find_line(keys)));
            warning.key = keys.iter().fold(String::new(), |path, key| child_path(&path, key));
        }
        _ => warning.message = format!("{}: {}", locations.describe_key(keys), warning.message),
    }
}
