//! Combines flags, environment, file and defaults into one [`Config`]; each value records its
//! origin.

pub mod codex_home;
pub mod command_tool;
pub mod config_file;
pub mod control_files;
pub mod declared_access;
pub mod directories;
pub mod hidden_dirs;
pub mod listen;
pub mod log;
pub mod picker;
mod plain_schema;
pub mod policy;
pub mod program;
pub mod root;
pub mod sandbox;
pub mod secret_sources;
pub mod sections;
pub mod surface;
pub mod token_keys;
pub mod upstreams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::config_file::{LoadedConfigFile, config_path};
pub use self::picker::{Layers, SettingPicker};

use self::codex_home::find_codex_home;
use self::command_tool::CommandContext;
use self::control_files::ControlFiles;
use self::directories::{ForbiddenDirs, NamedDir};
use self::listen::{check_listen_address, parse_listen_address};
use self::log::LogFlags;
use self::root::{resolve_root_dir, resolve_workspace};
use self::secret_sources::{resolve_key_file, resolve_secret_sources};
use self::sections::{
    parse_tools, resolve_approval, resolve_audit_retention, resolve_browser, resolve_http,
    resolve_limits,
};
use self::upstreams::{UpstreamInputs, find_secret_users, pick_upstreams_file, resolve_upstreams};
use super::env::{self, ProcessEnv};
use super::fault::KEY_FACT;
use super::parse::config_text::{self};
use super::parse::key_spans::LineIndex;
use super::parse::raw;
use super::secrets::{Keyring, SecretRef, SecretStore};
use super::{
    CommandTool, Config, ConfigError, DEFAULT_CONFIG, PolicyFlags, ProfileSetting, SandboxFlags,
    SecretValues, SettingOrigin, ToolNameStyle, ToolSet, ToolSurface,
};
use crate::base::{Error, Result};

const MIB: u64 = 1024 * 1024;

/// Values from the command line.
#[derive(Debug, Clone, Default)]
pub struct ConfigFlags {
    pub root: Option<PathBuf>,
    pub workspace: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub tools: Option<String>,
    /// `PORT` (on 127.0.0.1) or `ADDRESS:PORT`; None is stdio.
    pub http: Option<String>,
    pub conformance_fixtures: bool,
    /// File with other MCP servers.
    pub upstreams: Option<PathBuf>,
    /// Resolves without other MCP servers, so that a check finds errors in the rest, too.
    pub ignores_upstreams: bool,
    pub insecure_no_auth: bool,
    /// Key file of the secret store, if not in its default location.
    pub secrets_key_file: Option<PathBuf>,
    pub sandbox: SandboxFlags,
    pub policy: PolicyFlags,
    pub log: LogFlags,
}

/// Resolves only the root, for commands that need no workspace.
pub fn resolve_root(flags: &ConfigFlags, env: &ProcessEnv) -> Result<PathBuf> {
    let source = LoadedConfigFile::load_usable(flags, env)?;
    let mut picker = SettingPicker::new(&source, env);
    Ok(resolve_root_dir(&mut picker, flags, env, &source)?.0)
}

/// Where secrets are kept, and which tools use which, for commands that need no workspace.
pub struct SecretBackends {
    pub store: SecretStore,
    pub keyring: Option<Keyring>,
    /// Names of `${secret:NAME}`, and the tools and servers that use them.
    pub tools_by_secret: BTreeMap<String, Vec<String>>,
}

/// Resolves the stores of secrets.
pub fn resolve_secret_backends(flags: &ConfigFlags, env: &ProcessEnv) -> Result<SecretBackends> {
    let source = match LoadedConfigFile::load_usable(flags, env) {
        // With an explicit root, the location of the store does not depend on the file, so its
        // errors do not matter here.
        Err(_) if flags.root.is_some() || env.get_path(env::SANDBOX_ROOT).is_some() => {
            LoadedConfigFile::default()
        }
        source => source?,
    };
    let defaults = config_text::parse_strict(DEFAULT_CONFIG, Path::new("defaults.toml"))?;
    let mut picker = SettingPicker::new(&source, env);
    let (root, _) = resolve_root_dir(&mut picker, flags, env, &source)?;
    let store = SecretStore::new(&root, resolve_key_file(flags.secrets_key_file.as_ref(), env)?);
    let sources = resolve_secret_sources(
        &mut picker,
        env,
        &source.parsed.file.secrets,
        &defaults.secrets,
        store,
    )?;
    let mut tools_by_secret: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let command_users = source.parsed.commands.iter().flat_map(|command| {
        command.secret_refs().into_iter().map(|one| (one, command.name.clone()))
    });
    let server_users = find_secret_users(&mut picker, flags, env, &source, &root);
    for (secret_ref, user) in command_users.chain(server_users) {
        let SecretRef::Stored(name) = secret_ref else { continue };
        let users = tools_by_secret.entry(name).or_default();
        if users.last() != Some(&user) {
            users.push(user);
        }
    }
    Ok(SecretBackends { store: sources.store, keyring: sources.keyring, tools_by_secret })
}

/// Resolves the config of a server.
pub fn resolve_config(flags: &ConfigFlags, env: &ProcessEnv) -> Result<Config> {
    resolve_source(&LoadedConfigFile::load_usable(flags, env)?, flags, env, None)
}

/// Resolves the config again for a running server. Root, workspace and writable directories stay
/// those of the start, since the tools already work in them. The table of settings shows what the
/// file says now.
pub(super) fn resolve_reload(
    flags: &ConfigFlags,
    env: &ProcessEnv,
    first: &Config,
) -> Result<Config> {
    resolve_source(&LoadedConfigFile::load_usable(flags, env)?, flags, env, Some(first))
}

/// Resolves a config. Fails if it has any error that makes it unusable.
pub(super) fn resolve_source(
    source: &LoadedConfigFile,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    first: Option<&Config>,
) -> Result<Config> {
    let config = resolve_to_check(source, flags, env, first)?;
    config_text::check_usable(&config.upstream_errors)?;
    Ok(config)
}

/// Resolves a config that may have errors in the tables of other servers, for a check.
pub(super) fn resolve_to_check(
    source: &LoadedConfigFile,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    first: Option<&Config>,
) -> Result<Config> {
    let file = &source.parsed.file;
    let defaults = config_text::parse_strict(DEFAULT_CONFIG, Path::new("defaults.toml"))?;
    let mut picker = SettingPicker::new(source, env);
    let setting_picker = &mut picker;

    let (root, root_is_explicit) =
        match (resolve_root_dir(setting_picker, flags, env, source), first) {
            (_, Some(first)) => (first.root.clone(), first.is_explicit("root")),
            (resolved, None) => resolved
                .map(|(path, origin)| (path, origin.is_explicit()))
                .map_err(with_key_fact("root"))?,
        };
    let listen = flags.http.as_deref().map(parse_listen_address).transpose()?;
    if let Some(address) = listen {
        setting_picker.record_setting(
            "http.listen",
            address.to_string(),
            SettingOrigin::Flag("--http"),
        );
    }
    let keys = token_keys::resolve_auth(setting_picker, env, &file.auth, &defaults.auth)
        .map_err(with_key_fact("auth"))?;
    let shared = Layers::file_only(file.shared_workspace, defaults.shared_workspace);
    let (shared_workspace, _) = setting_picker.pick("shared_workspace", shared, bool::to_string)?;

    let key_file = resolve_key_file(flags.secrets_key_file.as_ref(), env)?;
    let store = SecretStore::new(&root, key_file.clone());
    let login_store = store.to_login_store();
    let sources =
        resolve_secret_sources(setting_picker, env, &file.secrets, &defaults.secrets, store)
            .map_err(with_key_fact("secrets"))?;
    let log = log::resolve_log(setting_picker, &flags.log, env, &file.log, &defaults.log)?;
    let key_files = keys.files.iter().map(|(_, path)| path.clone()).collect();
    let mut control_files = ControlFiles::from_config_file(source);
    control_files.add_keys(keys.files)?;
    control_files.add_secrets(sources.env_file.as_deref(), key_file)?;
    control_files.add_log(log.file.as_deref(), &root)?;
    let upstreams_file = pick_upstreams_file(setting_picker, flags, env, source)
        .map_err(with_key_fact("upstreams"))?;
    control_files.add_upstreams(upstreams_file.as_deref()).map_err(with_key_fact("upstreams"))?;
    let forbidden_dirs = ForbiddenDirs {
        home: env.get_absolute(env::HOME).map(directories::canonicalize_partial).transpose()?,
        root: NamedDir { path: &root, is_explicit: root_is_explicit },
        control_files: &control_files.paths,
    };
    let (workspace, closed_paths) =
        resolve_workspace(setting_picker, flags, env, source, &forbidden_dirs, first)
            .map_err(with_key_fact("workspace"))?;

    let surface = Layers {
        env: env.get_bool_any_case(env::ENABLE_SURFACE)?.map(|value| (value, env::ENABLE_SURFACE)),
        ..Layers::file_only(file.enable_mcp_server_surface, defaults.enable_mcp_server_surface)
    };
    let tools = Layers {
        flag: parse_tools(flags.tools.as_deref(), "--tools")?,
        env: parse_tools(env.get_text(env::RINGFENCE_TOOLS)?.as_deref(), env::RINGFENCE_TOOLS)?,
        ..Layers::file_only(file.tools, defaults.tools)
    };
    let names = Layers::file_only(file.tool_names, defaults.tool_names);
    let tools = setting_picker.pick("tools", tools, |tools: &ToolSet| tools.name().to_owned())?.0;
    let sandbox =
        sandbox::resolve_sandbox(setting_picker, &flags.sandbox, &file.sandbox, &defaults.sandbox)?;
    let enabled = setting_picker.pick("enable_mcp_server_surface", surface, bool::to_string)?.0;
    let surface =
        surface::resolve_surface(setting_picker, enabled, &file.surface, &defaults.surface)?;
    let override_policy =
        surface::resolve_overrides(setting_picker, &file.session, &defaults.session)?;
    let (commands, command_errors) =
        resolve_commands(setting_picker, source, &surface, sandbox.profile);
    let inputs = UpstreamInputs {
        flags,
        env,
        root: &root,
        workspace: workspace.as_deref(),
        named_file: upstreams_file.as_deref(),
        surface: &surface,
        sandbox_profile: sandbox.profile,
    };
    let (upstreams, upstream_errors) =
        resolve_upstreams(setting_picker, source, &inputs).map_err(with_key_fact("upstreams"))?;
    control_files.add_upstream_state(&upstreams, &root);
    let command_refs = commands.iter().flat_map(|entry| entry.secret_refs());
    let upstream_refs = upstreams.servers.values().flat_map(|server| server.secret_refs());
    let secrets = SecretValues::look_up_all(command_refs.chain(upstream_refs), &sources);
    let policy = policy::resolve_policy(
        setting_picker,
        &flags.policy,
        env,
        &file.policy,
        &defaults.policy,
        policy::PolicyContext { tools, sandbox: &sandbox, workspace: workspace.as_deref() },
    );
    let policy = policy.map_err(with_key_fact("policy"))?;
    let writable = first.map_or(&sandbox.writable, |first| &first.default_sandbox.writable);
    directories::check_control_files(&control_files.paths, &root, writable)?;
    let mut config = Config {
        generation: 1,
        surface,
        override_policy,
        commands,
        command_errors,
        upstreams: Arc::new(upstreams),
        upstream_errors: upstream_errors.into(),
        secrets: Arc::new(secrets),
        login_store,
        private_paths: control_files.private,
        key_files,
        exposed_secrets: Vec::new(),
        tools,
        tool_names: setting_picker
            .pick("tool_names", names, |names: &ToolNameStyle| names.name().to_owned())?
            .0,
        approval: resolve_approval(setting_picker, &file.approval, &defaults.approval)?,
        limits: resolve_limits(setting_picker, &file.limits, &defaults.limits)?,
        audit_retention: resolve_audit_retention(setting_picker, &file.audit),
        log,
        browser: resolve_browser(setting_picker, env, &file.browser, &defaults.browser)?,
        default_sandbox: sandbox,
        policy,
        home: env.get_absolute(env::HOME).map(Path::to_owned),
        codex_home: find_codex_home(env, workspace.as_deref()),
        credential_paths: env.credential_paths(),
        rustup_home: match env.get_absolute(env::RUSTUP_HOME) {
            Some(path) => Some(path.to_owned()),
            None => env.get_absolute(env::HOME).map(|home| home.join(".rustup")),
        },
        http: resolve_http(setting_picker, flags, listen, &file.http, &defaults.http)?,
        auth: keys.auth,
        root,
        workspace,
        shared_workspace,
        closed_paths,
        conformance_fixtures: flags.conformance_fixtures,
        file: source.path.clone(),
        settings: picker.into_settings(),
    };
    let (hidden, exposed) = hidden_dirs::split_secret_files(
        &control_files.secret,
        &hidden_dirs::PathsInUse::from_config(&config),
    );
    config.private_paths.extend(hidden);
    config.exposed_secrets = exposed;
    if let Some(address) = listen {
        check_listen_address(address, &config)?;
        if config.workspace.is_some() && config.auth.is_some() && !shared_workspace {
            tracing::warn!(
                "a workspace is configured, so all principals share it; remove it to give each its own"
            );
        }
    }
    Ok(config)
}

/// Adds the key that an error is about, if it does not name one.
fn with_key_fact(key: &'static str) -> impl Fn(Error) -> Error {
    move |error| {
        if error.get_fact(KEY_FACT).is_some() { error } else { error.with_fact(KEY_FACT, key) }
    }
}

/// Returns the usable commands, and the errors in the others.
fn resolve_commands(
    picker: &SettingPicker<'_>,
    source: &LoadedConfigFile,
    surface: &ToolSurface,
    sandbox_profile: ProfileSetting,
) -> (Arc<[Arc<CommandTool>]>, Arc<[ConfigError]>) {
    let Some(path) = &source.path else { return (Arc::default(), Arc::default()) };
    let lines = LineIndex::new(&source.text);
    let context = CommandContext {
        path,
        text: &source.text,
        key_spans: &source.parsed.key_spans,
        lines,
        picker,
        surface,
        sandbox_profile,
    };
    let (entries, errors) = command_tool::resolve_commands(&context, &source.parsed.commands);
    let command_errors = source.parsed.command_errors.iter().cloned().chain(errors).collect();
    (entries.into_iter().map(Arc::new).collect(), command_errors)
}

/// Returns the errors in the commands when the rest of the file cannot be resolved.
pub(super) fn find_command_errors(
    source: &LoadedConfigFile,
    env: &ProcessEnv,
) -> Arc<[ConfigError]> {
    let Ok(defaults) = config_text::parse_strict(DEFAULT_CONFIG, Path::new("defaults.toml")) else {
        return Arc::default();
    };
    let (file, mut picker) = (&source.parsed.file, SettingPicker::new(source, env));
    match surface::resolve_surface(&mut picker, true, &file.surface, &defaults.surface) {
        Ok(surface) => {
            let profile = file
                .sandbox
                .profile
                .or(defaults.sandbox.profile)
                .unwrap_or(ProfileSetting::Default);
            resolve_commands(&picker, source, &surface, profile).1
        }
        Err(_) => source.parsed.command_errors.as_slice().into(),
    }
}

/// Resolves a command that sets only `command`.
pub(super) fn minimal_command() -> Option<CommandTool> {
    let (path, text) = (PathBuf::from("config.toml"), "[mcp.x]\ncommand = \"x\"\n".to_owned());
    let parsed = config_text::parse_config(&text, &path);
    let source = LoadedConfigFile { path: Some(path), locations: Vec::new(), text, parsed };
    let defaults = config_text::parse_strict(DEFAULT_CONFIG, Path::new("defaults.toml")).ok()?;
    let mut picker = SettingPicker::without_source(source.path.as_deref());
    let surface = surface::resolve_surface(
        &mut picker,
        true,
        &raw::SurfaceSection::default(),
        &defaults.surface,
    )
    .ok()?;
    let (entries, _) = resolve_commands(&picker, &source, &surface, ProfileSetting::Default);
    entries.first().map(|entry| CommandTool::clone(entry))
}

#[cfg(test)]
mod tests;
