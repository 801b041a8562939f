//! Combines flags, environment, file and defaults into one [`Config`]; each value records its
//! origin.

pub mod codex_home;
pub mod command_tool;
pub mod directories;
pub mod hidden_dirs;
pub mod listen;
pub mod log;
pub mod policy;
pub mod program;
pub mod sandbox;
pub mod surface;
pub mod token_keys;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::codex_home::find_codex_home;
use self::command_tool::CommandContext;
use self::directories::{ForbiddenDirs, NamedDir};
use self::listen::{check_listen_address, parse_listen_address};
use self::log::LogFlags;
use super::check::KEY_FACT;
use super::env::{self, ProcessEnv};
use super::parse::config_text::{self, ParsedConfig};
use super::parse::key_spans::LineIndex;
use super::parse::raw;
use super::secrets::{self, Keyring, SecretRef, SecretSources, SecretStore};
use super::{
    ApprovalSettings, BrowserSettings, CallLimits, CommandTool, Config, ConfigError,
    DEFAULT_CONFIG, HttpSettings, OwnToolsApproval, PolicyFlags, ProfileSetting, ResolvedSetting,
    SandboxFlags, SecretValues, SettingOrigin, ToolNameStyle, ToolSet, ToolSurface, link_chain,
};
use crate::base::suggest::suggest_name;
use crate::base::{Error, Kind, Result};

const MIB: u64 = 1024 * 1024;
const PER_PRINCIPAL: &str = "<root>/workspaces/<principal>";

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
    pub insecure_no_auth: bool,
    /// Key file of the secret store, if not in its default location.
    pub secrets_key_file: Option<PathBuf>,
    pub sandbox: SandboxFlags,
    pub policy: PolicyFlags,
    pub log: LogFlags,
}

/// Values of one setting from each source, in order of precedence.
pub struct Layers<T> {
    pub flag: Option<(T, &'static str)>,
    pub env: Option<(T, &'static str)>,
    pub file: Option<T>,
    pub default: Option<T>,
}

impl<T> Layers<T> {
    /// Creates layers for a setting that only a config file may set.
    pub fn file_only(file: Option<T>, default: Option<T>) -> Self {
        Layers { flag: None, env: None, file, default }
    }
}

/// Picks values and records the origin of each.
pub struct SettingPicker<'a> {
    file_path: Option<&'a Path>,
    /// The parsed file, for line numbers.
    source: Option<&'a LoadedConfigFile>,
    home: Option<PathBuf>,
    settings: Vec<ResolvedSetting>,
}

impl SettingPicker<'_> {
    /// Picks a value that has a default.
    pub fn pick<T>(
        &mut self,
        key: &'static str,
        layers: Layers<T>,
        show: impl Fn(&T) -> String,
    ) -> Result<(T, SettingOrigin)> {
        self.pick_optional(key, layers, show)
            .ok_or_else(|| Error::internal(format!("the compiled-in defaults do not set `{key}`")))
    }

    /// Picks a value that may be unset.
    pub fn pick_optional<T>(
        &mut self,
        key: &'static str,
        layers: Layers<T>,
        show: impl Fn(&T) -> String,
    ) -> Option<(T, SettingOrigin)> {
        let Layers { flag, env, file, default } = layers;
        let chosen = (flag.map(|(value, name)| (value, SettingOrigin::Flag(name))))
            .or_else(|| env.map(|(value, name)| (value, SettingOrigin::Env(name))))
            .or_else(|| file.map(|value| (value, self.file_origin())))
            .or_else(|| default.map(|value| (value, SettingOrigin::Default)))?;
        self.record_setting(key, show(&chosen.0), chosen.1.clone());
        Some(chosen)
    }

    /// Records a value and its origin.
    pub fn record_setting(&mut self, key: &'static str, value: String, origin: SettingOrigin) {
        let line = match origin {
            SettingOrigin::File(_) => {
                self.source.and_then(|source| source.parsed.line_of_key(&source.text, key))
            }
            _ => None,
        };
        self.settings.push(ResolvedSetting { key, value, origin, line });
    }

    /// Returns the origin of values from the config file.
    pub fn file_origin(&self) -> SettingOrigin {
        self.file_path.map_or(SettingOrigin::Default, |path| SettingOrigin::File(path.to_owned()))
    }

    /// Returns the user's home directory.
    pub fn home_dir(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Resolves a path written in the config file, which starts at that file's directory.
    pub fn resolve_file_path(&self, path: &Path) -> Result<PathBuf> {
        directories::make_absolute(
            path,
            self.file_path.and_then(Path::parent),
            self.home.as_deref(),
        )
    }
}

/// The config file: the named one, which must exist, or the default one, which need not.
#[derive(Default)]
pub(super) struct LoadedConfigFile {
    pub path: Option<PathBuf>,
    /// Directories of the file; or where the default file would be, if it does not exist.
    locations: Vec<PathBuf>,
    pub text: String,
    pub parsed: ParsedConfig,
}

impl LoadedConfigFile {
    /// Reads the file; fails if it has errors that make it unusable.
    pub fn load_usable(flags: &ConfigFlags, env: &ProcessEnv) -> Result<LoadedConfigFile> {
        let source = LoadedConfigFile::load_any(flags, env)?;
        source.parsed.check_usable()?;
        Ok(source)
    }

    /// Reads the file, whatever errors are in it.
    pub fn load_any(flags: &ConfigFlags, env: &ProcessEnv) -> Result<LoadedConfigFile> {
        let Some((path, named)) = config_path(flags, env)? else {
            return Ok(LoadedConfigFile::default());
        };
        let text = match read_config_text(&path) {
            Ok(text) => text,
            Err(error) if !named && error.kind() == Kind::NotFound => {
                let places = path
                    .parent()
                    .map(directories::canonicalize_partial)
                    .transpose()?
                    .into_iter()
                    .collect();
                return Ok(LoadedConfigFile { locations: places, ..LoadedConfigFile::default() });
            }
            Err(error) => return Err(error),
        };
        let read = config_text::parse_config(&text, &path);
        // A link and its target: changing either changes the config.
        let mut places = Vec::new();
        for file in [Some(path.clone()), path.canonicalize().ok()].into_iter().flatten() {
            places.extend(file.parent().map(directories::canonicalize_partial).transpose()?);
        }
        Ok(LoadedConfigFile { path: Some(path), locations: places, text, parsed: read })
    }
}

/// Returns the path of the config file, and whether it was named explicitly.
pub(super) fn config_path(
    flags: &ConfigFlags,
    env: &ProcessEnv,
) -> Result<Option<(PathBuf, bool)>> {
    match flags.config.as_deref().or_else(|| env.get_path(env::RINGFENCE_CONFIG)) {
        Some(path) => Ok(Some((directories::make_absolute(path, env.cwd.as_deref(), None)?, true))),
        None => Ok(default_config_path(env).map(|path| (path, false))),
    }
}

fn default_config_path(env: &ProcessEnv) -> Option<PathBuf> {
    let base = match env.get_absolute(env::XDG_CONFIG_HOME) {
        Some(base) => base.to_owned(),
        None => env.get_absolute(env::HOME)?.join(".config"),
    };
    Some(base.join("ringfence/config.toml"))
}

fn read_config_text(path: &Path) -> Result<String> {
    let failed = |kind, what: &str| {
        Error::new(kind, format!("the config file {} {what}", path.display()))
            .with_hint("Name the file with `--config` (or RINGFENCE_CONFIG).")
    };
    let file = File::open(path).map_err(|error| {
        let missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
        let (kind, what) = if missing {
            (Kind::NotFound, "does not exist")
        } else {
            (Kind::Unavailable, "cannot be read")
        };
        failed(kind, what).with_source(error)
    })?;
    let facts = file
        .metadata()
        .map_err(|error| failed(Kind::Unavailable, "cannot be read").with_source(error))?;
    if facts.mode() & 0o002 != 0 && facts.is_file() {
        return Err(failed(Kind::PermissionDenied, "is writable by everyone")
            .with_hint("Run `chmod o-w` on it."));
    }
    let mut text = String::new();
    let read = file.take(MIB + 1).read_to_string(&mut text);
    read.map_err(|error| failed(Kind::Unavailable, "cannot be read as text").with_source(error))?;
    if text.len() as u64 > MIB {
        return Err(failed(Kind::TooLarge, "is larger than 1 MiB"));
    }
    Ok(text)
}

/// Resolves only the root, for commands that need no workspace.
pub fn resolve_root(flags: &ConfigFlags, env: &ProcessEnv) -> Result<PathBuf> {
    let source = LoadedConfigFile::load_usable(flags, env)?;
    let mut picker = new_picker(&source, env);
    Ok(resolve_root_dir(&mut picker, flags, env, &source)?.0)
}

/// Where secrets are kept, and which tools use which, for commands that need no workspace.
pub struct SecretBackends {
    pub store: SecretStore,
    pub keyring: Option<Keyring>,
    /// Names of `${secret:NAME}` and the tools that use them.
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
    let mut picker = new_picker(&source, env);
    let (root, _) = resolve_root_dir(&mut picker, flags, env, &source)?;
    let store =
        SecretStore::new(&root, secrets::resolve_key_file(flags.secrets_key_file.as_ref(), env)?);
    let sources = SecretSources::from_config(
        &mut picker,
        env,
        (&source.parsed.file.secrets, &defaults.secrets),
        store,
    )?;
    let mut uses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for written in &source.parsed.commands {
        for one in written.secret_refs() {
            if let SecretRef::Stored(name) = one
                && uses.get(&name).is_none_or(|tools| tools.last() != Some(&written.name))
            {
                uses.entry(name).or_default().push(written.name.clone());
            }
        }
    }
    Ok(SecretBackends { store: sources.store, keyring: sources.keyring, tools_by_secret: uses })
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

pub(super) fn resolve_source(
    source: &LoadedConfigFile,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    first: Option<&Config>,
) -> Result<Config> {
    let file = &source.parsed.file;
    let defaults = config_text::parse_strict(DEFAULT_CONFIG, Path::new("defaults.toml"))?;
    let mut picker = new_picker(source, env);
    let p = &mut picker;

    let (root, root_named) = match (resolve_root_dir(p, flags, env, source), first) {
        (_, Some(first)) => (first.root.clone(), first.is_explicit("root")),
        (found, None) => found
            .map(|(path, origin)| (path, origin.is_explicit()))
            .map_err(with_key_fact("root"))?,
    };
    let listen = flags.http.as_deref().map(parse_listen_address).transpose()?;
    if let Some(address) = listen {
        p.record_setting("http.listen", address.to_string(), SettingOrigin::Flag("--http"));
    }
    let keys = token_keys::resolve_auth(p, env, &file.auth, &defaults.auth)
        .map_err(with_key_fact("auth"))?;
    let shared = Layers::file_only(file.shared_workspace, defaults.shared_workspace);
    let (shared_workspace, _) = p.pick("shared_workspace", shared, bool::to_string)?;

    let mut steering: Vec<_> =
        source.locations.iter().map(|place| ("the config file", place.clone())).collect();
    let on_the_way = source.path.iter().flat_map(|path| link_chain::path_directories(path));
    steering.extend(on_the_way.map(|step| ("the config file", step)));
    let key_file = secrets::resolve_key_file(flags.secrets_key_file.as_ref(), env)?;
    let store = SecretStore::new(&root, key_file.clone());
    let sources = SecretSources::from_config(p, env, (&file.secrets, &defaults.secrets), store)
        .map_err(with_key_fact("secrets"))?;
    let env_file = sources.env_file.iter().map(|path| ("the env file of secrets", path.clone()));
    let key_file = key_file.into_iter().map(|path| ("the key of the secret store", path));
    let key_files = keys.files.iter().map(|(_, path)| path.clone()).collect();
    let (mut private, mut secret_files) = (Vec::new(), Vec::new());
    for (what, path) in keys.files.into_iter().chain(env_file).chain(key_file) {
        // A link, its target, and everything between them: changing one changes what is read.
        let link = directories::canonicalize_partial(path.parent().unwrap_or(&path))?
            .join(path.file_name().unwrap_or_default());
        let target = directories::canonicalize_partial(&path)?;
        steering.extend(
            link_chain::path_directories(&path)
                .into_iter()
                .chain([link.clone(), target.clone()])
                .map(|step| (what, step)),
        );
        private.extend([link.clone(), target.clone()]);
        if what != token_keys::PUBLIC_KEY_FILE {
            secret_files.extend([link, target]);
        }
    }
    let log = log::resolve_log(p, (&flags.log, env), (&file.log, &defaults.log))?;
    if let Some(path) = &log.file {
        // The workspaces of HTTP principals are not known individually.
        if path.starts_with(root.join("workspaces")) {
            return Err(Error::invalid_arguments(format!(
                "the log file {} is inside a workspace",
                path.display()
            ))
            .with_reason("bad_log_file")
            .with_hint("Name another file with `--log-file` (or RINGFENCE_LOG_FILE)."));
        }
        steering.push(("the log file", path.clone()));
    }
    let keepers = ForbiddenDirs {
        home: env.get_absolute(env::HOME).map(directories::canonicalize_partial).transpose()?,
        root: NamedDir { path: &root, is_explicit: root_named },
        control_files: &steering,
    };
    let (workspace, closed) = resolve_workspace(p, (flags, env, source), &keepers, first)
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
    let tools = p.pick("tools", tools, |tools: &ToolSet| tools.name().to_owned())?.0;
    let sandbox = sandbox::resolve_sandbox(p, &flags.sandbox, &file.sandbox, &defaults.sandbox)?;
    let enabled = p.pick("enable_mcp_server_surface", surface, bool::to_string)?.0;
    let surface = surface::resolve_surface(p, enabled, &file.surface, &defaults.surface)?;
    let shaping = surface::resolve_overrides(p, &file.session, &defaults.session)?;
    let (entries, dropped) = resolve_commands(p, source, (&surface, sandbox.profile));
    let secrets =
        SecretValues::look_up_all(entries.iter().flat_map(|entry| entry.secret_refs()), &sources);
    let sources = (&flags.policy, env);
    let policy = policy::resolve_policy(
        p,
        sources,
        (&file.policy, &defaults.policy),
        (tools, &sandbox, workspace.as_deref()),
    );
    let policy = policy.map_err(with_key_fact("policy"))?;
    let writable = first.map_or(&sandbox.writable, |first| &first.sandbox.writable);
    directories::check_control_files(&steering, &root, writable)?;
    let mut config = Config {
        generation: 1,
        surface,
        override_policy: shaping,
        commands: entries,
        command_errors: dropped,
        secrets: Arc::new(secrets),
        private_paths: private,
        key_files,
        exposed_secrets: Vec::new(),
        tools,
        tool_names: p.pick("tool_names", names, |names: &ToolNameStyle| names.name().to_owned())?.0,
        approval: resolve_approval(p, &file.approval, &defaults.approval)?,
        limits: resolve_limits(p, &file.limits, &defaults.limits)?,
        audit_retention: resolve_audit_retention(p, &file.audit),
        log,
        browser: resolve_browser(p, env, &file.browser, &defaults.browser)?,
        sandbox,
        policy,
        home: env.get_absolute(env::HOME).map(Path::to_owned),
        codex_home: find_codex_home(env, workspace.as_deref()),
        credential_paths: env.credential_paths(),
        rustup_home: match env.get_absolute(env::RUSTUP_HOME) {
            Some(path) => Some(path.to_owned()),
            None => env.get_absolute(env::HOME).map(|home| home.join(".rustup")),
        },
        http: resolve_http(p, flags, listen, &file.http, &defaults.http)?,
        auth: keys.auth,
        root,
        workspace,
        shared_workspace,
        closed_paths: closed,
        conformance_fixtures: flags.conformance_fixtures,
        file: source.path.clone(),
        settings: picker.settings,
    };
    let (hidden, exposed) = hidden_dirs::split_secret_files(
        &secret_files,
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
    p: &SettingPicker<'_>,
    source: &LoadedConfigFile,
    (surface, profile): (&ToolSurface, ProfileSetting),
) -> (Arc<[Arc<CommandTool>]>, Arc<[ConfigError]>) {
    let Some(path) = &source.path else { return (Arc::default(), Arc::default()) };
    let lines = LineIndex::new(&source.text);
    let around = CommandContext {
        path,
        text: &source.text,
        key_spans: &source.parsed.key_spans,
        lines,
        picker: p,
        surface,
        sandbox_profile: profile,
    };
    let (entries, faults) = command_tool::resolve_commands(&around, &source.parsed.commands);
    let dropped = source.parsed.command_errors.iter().cloned().chain(faults).collect();
    (entries.into_iter().map(Arc::new).collect(), dropped)
}

fn new_picker<'a>(source: &'a LoadedConfigFile, env: &ProcessEnv) -> SettingPicker<'a> {
    let home = env.get_absolute(env::HOME).map(Path::to_owned);
    SettingPicker {
        file_path: source.path.as_deref(),
        source: Some(source),
        home,
        settings: Vec::new(),
    }
}

/// Returns the errors in the commands when the rest of the file cannot be resolved.
pub(super) fn find_command_errors(
    source: &LoadedConfigFile,
    env: &ProcessEnv,
) -> Arc<[ConfigError]> {
    let Ok(defaults) = config_text::parse_strict(DEFAULT_CONFIG, Path::new("defaults.toml")) else {
        return Arc::default();
    };
    let (file, mut picker) = (&source.parsed.file, new_picker(source, env));
    match surface::resolve_surface(&mut picker, true, &file.surface, &defaults.surface) {
        Ok(surface) => {
            let profile = file
                .sandbox
                .profile
                .or(defaults.sandbox.profile)
                .unwrap_or(ProfileSetting::Default);
            resolve_commands(&picker, source, (&surface, profile)).1
        }
        Err(_) => source.parsed.command_errors.as_slice().into(),
    }
}

/// Resolves a command that sets only `command`.
pub(super) fn minimal_command() -> Option<CommandTool> {
    let (path, text) = (PathBuf::from("config.toml"), "[mcp.x]\ncommand = \"x\"\n".to_owned());
    let read = config_text::parse_config(&text, &path);
    let source = LoadedConfigFile { path: Some(path), locations: Vec::new(), text, parsed: read };
    let defaults = config_text::parse_strict(DEFAULT_CONFIG, Path::new("defaults.toml")).ok()?;
    let mut picker = SettingPicker {
        file_path: source.path.as_deref(),
        source: None,
        home: None,
        settings: Vec::new(),
    };
    let surface = surface::resolve_surface(
        &mut picker,
        true,
        &raw::SurfaceSection::default(),
        &defaults.surface,
    )
    .ok()?;
    let (entries, _) = resolve_commands(&picker, &source, (&surface, ProfileSetting::Default));
    entries.first().map(|entry| CommandTool::clone(entry))
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}

fn resolve_root_dir(
    picker: &mut SettingPicker<'_>,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    source: &LoadedConfigFile,
) -> Result<(PathBuf, SettingOrigin)> {
    let from = |path: &Path| directories::make_absolute(path, env.cwd.as_deref(), None);
    let layers = Layers {
        flag: flags.root.as_deref().map(from).transpose()?.map(|path| (path, "--root")),
        env: env
            .get_path(env::SANDBOX_ROOT)
            .map(from)
            .transpose()?
            .map(|path| (path, env::SANDBOX_ROOT)),
        file: source
            .parsed
            .file
            .root
            .as_deref()
            .map(|path| picker.resolve_file_path(path))
            .transpose()?,
        default: default_root(env),
    };
    let (path, origin) =
        picker.pick_optional("root", layers, |path| display_path(path)).ok_or_else(|| {
            Error::invalid_arguments(
                "there is no directory for runtime files: neither HOME nor XDG_STATE_HOME is set",
            )
            .with_hint("Name a directory with `--root` (or SANDBOX_ROOT).")
        })?;
    let path = directories::canonicalize_partial(&path)?;
    if path.parent().is_none() {
        return Err(Error::invalid_arguments("`/` cannot be the root directory of this server")
            .with_hint("Name a directory of its own with `--root` (or SANDBOX_ROOT)."));
    }
    Ok((path, origin))
}

fn default_root(env: &ProcessEnv) -> Option<PathBuf> {
    if cfg!(target_os = "macos") {
        return Some(env.get_absolute(env::HOME)?.join("Library/Application Support/ringfence"));
    }
    let base = match env.get_absolute(env::XDG_STATE_HOME) {
        Some(base) => base.to_owned(),
        None => env.get_absolute(env::HOME)?.join(".local/state"),
    };
    Some(base.join("ringfence"))
}

/// Returns the workspace and the paths closed inside it. Over HTTP there is none unless one is
/// configured: each principal gets its own.
fn resolve_workspace(
    picker: &mut SettingPicker<'_>,
    (flags, env, source): (&ConfigFlags, &ProcessEnv, &LoadedConfigFile),
    keepers: &ForbiddenDirs<'_>,
    first: Option<&Config>,
) -> Result<(Option<PathBuf>, Vec<PathBuf>)> {
    let from = |path: &Path| directories::make_absolute(path, env.cwd.as_deref(), None);
    let layers = Layers {
        flag: flags.workspace.as_deref().map(from).transpose()?.map(|path| (path, "--workspace")),
        env: env
            .get_path(env::SANDBOX_WORKSPACE)
            .map(from)
            .transpose()?
            .map(|path| (path, env::SANDBOX_WORKSPACE)),
        file: source
            .parsed
            .file
            .workspace
            .as_deref()
            .map(|path| picker.resolve_file_path(path))
            .transpose()?,
        default: if flags.http.is_none() { env.cwd.clone() } else { None },
    };
    let named = picker.pick_optional("workspace", layers, |path| display_path(path));
    if let Some(first) = first {
        if named.is_none() && flags.http.is_some() {
            picker.record_setting("workspace", PER_PRINCIPAL.to_owned(), SettingOrigin::Default);
        }
        let Some(path) = &first.workspace else { return Ok((None, Vec::new())) };
        let closed = directories::check_workspace(
            &NamedDir { path, is_explicit: first.is_explicit("workspace") },
            keepers,
        )?;
        return Ok((Some(path.clone()), closed));
    }
    let Some((path, origin)) = named else {
        if flags.http.is_some() {
            picker.record_setting("workspace", PER_PRINCIPAL.to_owned(), SettingOrigin::Default);
            return Ok((None, Vec::new()));
        }
        return Err(Error::invalid_arguments("the current directory no longer exists")
            .with_hint("Name one with `--workspace`."));
    };
    let unusable = || {
        Error::new(
            Kind::NotFound,
            format!("the workspace {} is not a usable directory", path.display()),
        )
        .with_reason("bad_workspace")
        .with_hint("Name an existing directory with `--workspace` (or SANDBOX_WORKSPACE).")
    };
    let path = path.canonicalize().map_err(|error| unusable().with_source(error))?;
    if !path.is_dir() {
        return Err(unusable());
    }
    let closed = directories::check_workspace(
        &NamedDir { path: &path, is_explicit: origin.is_explicit() },
        keepers,
    )?;
    Ok((Some(path), closed))
}

fn own_tools_text(value: &raw::OwnTools) -> String {
    match value {
        raw::OwnTools::Auto => "auto".to_owned(),
        raw::OwnTools::Always => "always".to_owned(),
        raw::OwnTools::Named(patterns) => {
            patterns.iter().map(|one| one.0.as_str()).collect::<Vec<_>>().join(", ")
        }
    }
}

fn resolve_approval(
    p: &mut SettingPicker<'_>,
    file: &raw::ApprovalSection,
    defaults: &raw::ApprovalSection,
) -> Result<ApprovalSettings> {
    let expiry = Layers::file_only(file.expiry_s, defaults.expiry_s);
    let own_tools = Layers::file_only(file.own_tools.clone(), defaults.own_tools.clone());
    Ok(ApprovalSettings {
        expiry: Duration::from_secs(
            p.pick("approval.expiry_s", expiry, |value| value.0.to_string())?.0.0,
        ),
        allows_terminal: p
            .pick(
                "approval.terminal",
                Layers::file_only(file.terminal, defaults.terminal),
                bool::to_string,
            )?
            .0,
        own_tools: match p.pick("approval.own_tools", own_tools, own_tools_text)?.0 {
            raw::OwnTools::Auto => OwnToolsApproval::Never,
            raw::OwnTools::Always => OwnToolsApproval::Always,
            raw::OwnTools::Named(patterns) => {
                OwnToolsApproval::Named(patterns.into_iter().map(|one| one.0).collect())
            }
        },
    })
}

fn resolve_limits(
    p: &mut SettingPicker<'_>,
    file: &raw::LimitsSection,
    defaults: &raw::LimitsSection,
) -> Result<CallLimits> {
    macro_rules! number {
        ($field:ident) => {{
            let layers = Layers::file_only(file.$field, defaults.$field);
            p.pick(concat!("limits.", stringify!($field)), layers, |value| value.0.to_string())?.0.0
        }};
    }
    Ok(CallLimits {
        timeout_ceiling: Duration::from_millis(number!(timeout_ms)),
        grace: Duration::from_millis(number!(grace_ms)),
        output_file_bytes: number!(output_file_mb) * MIB,
        message_bytes: usize::try_from(number!(message_mb) * MIB).unwrap_or(usize::MAX),
        audit_rotate_bytes: number!(audit_rotate_mb) * MIB,
    })
}

fn resolve_audit_retention(
    p: &mut SettingPicker<'_>,
    file: &raw::AuditSection,
) -> Option<Duration> {
    let layers = Layers::file_only(file.keep.clone(), None);
    p.pick_optional("audit.keep", layers, |keep: &raw::RetentionSpan| keep.text.clone())
        .map(|(keep, _)| keep.span)
}

fn resolve_browser(
    p: &mut SettingPicker<'_>,
    env: &ProcessEnv,
    file: &raw::BrowserSection,
    defaults: &raw::BrowserSection,
) -> Result<BrowserSettings> {
    let named = file.program.as_deref().map(|path| p.resolve_file_path(path)).transpose()?;
    let idle = Layers::file_only(file.idle_s, defaults.idle_s);
    Ok(BrowserSettings {
        program: p
            .pick_optional("browser.program", Layers::file_only(named, None), |path: &PathBuf| {
                display_path(path)
            })
            .map(|(path, _)| path),
        search_path: env
            .get(env::PATH)
            .map(|path| std::env::split_paths(path).collect())
            .unwrap_or_default(),
        idle_timeout: Duration::from_secs(
            p.pick("browser.idle_s", idle, |value| value.0.to_string())?.0.0,
        ),
    })
}

fn resolve_http(
    p: &mut SettingPicker<'_>,
    flags: &ConfigFlags,
    listen: Option<SocketAddr>,
    file: &raw::HttpSection,
    defaults: &raw::HttpSection,
) -> Result<HttpSettings> {
    let texts = |names: &Option<Vec<raw::HostName>>| {
        names.as_ref().map(|names| names.iter().map(|name| name.0.clone()).collect())
    };
    let origins = |names: &Option<Vec<raw::OriginName>>| {
        names.as_ref().map(|names| names.iter().map(|name| name.0.clone()).collect())
    };
    let join = |names: &Vec<String>| names.join(", ");
    let hosts = Layers::file_only(texts(&file.allowed_hosts), texts(&defaults.allowed_hosts));
    let origins =
        Layers::file_only(origins(&file.allowed_origins), origins(&defaults.allowed_origins));
    let insecure = Layers {
        flag: flags.insecure_no_auth.then_some((true, "--insecure-no-auth")),
        ..Layers::file_only(None, Some(false))
    };
    let public_url = Layers::file_only(file.public_url.as_ref().map(|url| url.0.clone()), None);
    Ok(HttpSettings {
        listen,
        public_url: p
            .pick_optional("http.public_url", public_url, String::clone)
            .map(|(url, _)| url),
        allowed_hosts: p.pick("http.allowed_hosts", hosts, join)?.0,
        allowed_origins: p.pick("http.allowed_origins", origins, join)?.0,
        insecure_no_auth: p.pick("http.insecure_no_auth", insecure, bool::to_string)?.0,
    })
}

fn parse_tools(
    text: Option<&str>,
    source: &'static str,
) -> Result<Option<(ToolSet, &'static str)>> {
    let Some(text) = text else { return Ok(None) };
    if let Some(tools) = ToolSet::ALL.iter().find(|tools| tools.name() == text) {
        return Ok(Some((*tools, source)));
    }
    let names: Vec<&str> = ToolSet::ALL.iter().map(|tools| tools.name()).collect();
    let hint = match suggest_name(text, &names) {
        Some(near) => format!("Did you mean `{near}`?"),
        None => format!("Use {source} with one of {}.", names.join(", ")),
    };
    Err(Error::invalid_arguments(format!("{source} does not name a known set of tools"))
        .with_hint(hint))
}

#[cfg(test)]
mod tests;
