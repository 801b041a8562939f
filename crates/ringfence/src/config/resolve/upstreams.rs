//! Resolves other MCP servers: which file names them, and what config.toml says about each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::config_file::LoadedConfigFile;
use super::directories;
use super::picker::{Layers, SettingPicker};
use super::{ConfigFlags, ProfileSetting, ToolSurface};
use crate::base::Result;
use crate::config::env::{self, ProcessEnv};
use crate::config::parse::config_text::upstream_key;
use crate::config::secrets::SecretRef;
use crate::config::upstreams::load::{LoadedUpstreams, UpstreamSources, load_upstreams};
use crate::config::upstreams::servers::{UpstreamContext, resolve_servers};
use crate::config::{ConfigError, SettingOrigin, UpstreamConfig};

/// Picks the upstreams file that the operator named, if any.
pub fn pick_upstreams_file(
    picker: &mut SettingPicker<'_>,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    source: &LoadedConfigFile,
) -> Result<Option<PathBuf>> {
    if flags.ignores_upstreams {
        return Ok(None);
    }
    let to_absolute = |path: &Path| directories::make_absolute(path, env.cwd.as_deref(), None);
    let flag = flags.upstreams.as_deref().map(to_absolute).transpose()?;
    let variable = env.get_path(env::UPSTREAMS_PATH).map(to_absolute).transpose()?;
    let file = source.parsed.file.upstreams.as_deref();
    let layers = Layers {
        flag: flag.map(|path| (path, "--upstreams")),
        env: variable.map(|path| (path, env::UPSTREAMS_PATH)),
        file: file.map(|path| picker.resolve_file_path(path)).transpose()?,
        default: None,
    };
    let picked = picker.pick_optional("upstreams", layers, |path| path.display().to_string());
    Ok(picked.map(|(path, _)| path))
}

/// Returns the secrets that servers use, each with the table of its server. Servers that cannot be
/// read use none.
pub fn find_secret_users(
    picker: &mut SettingPicker<'_>,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    source: &LoadedConfigFile,
    root: &Path,
) -> Vec<(SecretRef, String)> {
    let Ok(named_file) = pick_upstreams_file(picker, flags, env, source) else { return Vec::new() };
    let sources = UpstreamSources {
        root,
        named_file: named_file.as_deref(),
        // A discovered file names no secrets.
        search_from: None,
        config_json: env.get(env::UPSTREAMS_JSON),
        cwd: env.cwd.as_deref(),
    };
    let context = UpstreamContext {
        path: source.path.as_deref().unwrap_or(Path::new("config.toml")),
        text: &source.text,
        key_spans: &source.parsed.key_spans,
        default_timeout: Duration::ZERO,
        sandbox_profile: ProfileSetting::Default,
        requires_servers: false,
    };
    let resolved = load_upstreams(&sources)
        .and_then(|found| resolve_servers(&context, &found.loaded, &source.parsed.upstreams));
    let servers = resolved.map(|(servers, _)| servers).unwrap_or_default();
    servers
        .values()
        .flat_map(|server| server.secret_refs().map(|one| (one.clone(), upstream_key(&server.id))))
        .collect()
}

/// What the servers depend on besides the config file.
pub struct UpstreamInputs<'a> {
    pub flags: &'a ConfigFlags,
    pub env: &'a ProcessEnv,
    pub root: &'a Path,
    pub workspace: Option<&'a Path>,
    pub named_file: Option<&'a Path>,
    pub surface: &'a ToolSurface,
    pub sandbox_profile: ProfileSetting,
}

/// Reads the servers, and joins them with their tables. Returns the errors in the tables, too.
pub fn resolve_upstreams(
    picker: &mut SettingPicker<'_>,
    source: &LoadedConfigFile,
    inputs: &UpstreamInputs<'_>,
) -> Result<(UpstreamConfig, Vec<ConfigError>)> {
    if inputs.flags.ignores_upstreams {
        return Ok((UpstreamConfig::default(), Vec::new()));
    }
    let LoadedUpstreams { loaded, lock_path, lock, untrusted_file, watched_files, is_named } =
        load_upstreams(&UpstreamSources {
            root: inputs.root,
            named_file: inputs.named_file,
            // Over HTTP, workspaces belong to callers.
            search_from: inputs.workspace.filter(|_| inputs.flags.http.is_none()),
            config_json: inputs.env.get(env::UPSTREAMS_JSON),
            cwd: inputs.env.cwd.as_deref(),
        })?;
    if let (Some(path), None) = (&loaded.path, inputs.named_file) {
        let value = path.display().to_string();
        picker.record_setting("upstreams", value, SettingOrigin::Default);
    }
    let context = UpstreamContext {
        path: source.path.as_deref().unwrap_or(Path::new("config.toml")),
        text: &source.text,
        key_spans: &source.parsed.key_spans,
        default_timeout: inputs.surface.default_timeout,
        sandbox_profile: inputs.sandbox_profile,
        requires_servers: is_named,
    };
    let (servers, errors) = resolve_servers(&context, &loaded, &source.parsed.upstreams)?;
    let upstreams = UpstreamConfig {
        servers,
        bundles: loaded.config.bundles,
        file: loaded.path,
        locations: Arc::new(loaded.locations),
        lock_path,
        lock: Arc::new(lock),
        untrusted_file,
        watched_files,
    };
    Ok((upstreams, errors))
}
