//! Combines flags, environment, file and defaults into one [`Config`]; each value records its
//! origin.

pub mod bind;
pub mod codex_home;
pub mod entry;
pub mod keys;
pub mod log;
pub mod place;
pub mod policy;
pub mod program;
pub mod sandbox;
pub mod seclusion;
pub mod surface;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::bind::{check_bind, parse_listen};
use self::codex_home::codex_home;
use self::entry::Around;
use self::log::LogFlags;
use self::place::{Keepers, Place};
use super::check::KEY;
use super::env::{self, Env};
use super::parse::places::LineIndex;
use super::parse::raw;
use super::parse::read::{self, Parsed};
use super::secrets::{self, Keyring, Ref, Sources, Store};
use super::{
    Approval, Browser, Config, DEFAULTS, Entry, Fault, Http, Limits, Origin, OwnToolsAsk,
    PolicyFlags, Profile, SandboxFlags, Secrets, Setting, Surface, ToolNames, ToolSet, trail,
};
use crate::base::nearest::nearest;
use crate::base::{Error, Kind, Result};

const MIB: u64 = 1024 * 1024;
const EACH_ITS_OWN: &str = "<root>/workspaces/<principal>";

/// Values from the command line.
#[derive(Debug, Clone, Default)]
pub struct Flags {
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
pub struct Picker<'a> {
    file: Option<&'a Path>,
    /// The parsed file, for line numbers.
    source: Option<&'a Source>,
    home: Option<PathBuf>,
    settings: Vec<Setting>,
}

impl Picker<'_> {
    /// Picks a value that has a default.
    pub fn pick<T>(
        &mut self,
        key: &'static str,
        layers: Layers<T>,
        show: impl Fn(&T) -> String,
    ) -> Result<(T, Origin)> {
        self.pick_optional(key, layers, show)
            .ok_or_else(|| Error::internal(format!("the compiled-in defaults do not set `{key}`")))
    }

    /// Picks a value that may be unset.
    pub fn pick_optional<T>(
        &mut self,
        key: &'static str,
        layers: Layers<T>,
        show: impl Fn(&T) -> String,
    ) -> Option<(T, Origin)> {
        let Layers { flag, env, file, default } = layers;
        let chosen = (flag.map(|(value, name)| (value, Origin::Flag(name))))
            .or_else(|| env.map(|(value, name)| (value, Origin::Env(name))))
            .or_else(|| file.map(|value| (value, self.file_origin())))
            .or_else(|| default.map(|value| (value, Origin::Default)))?;
        self.record(key, show(&chosen.0), chosen.1.clone());
        Some(chosen)
    }

    /// Records a value and its origin.
    pub fn record(&mut self, key: &'static str, value: String, origin: Origin) {
        let line = match origin {
            Origin::File(_) => self.source.and_then(|source| source.read.line(&source.text, key)),
            _ => None,
        };
        self.settings.push(Setting { key, value, origin, line });
    }

    /// Returns the origin of values from the config file.
    pub fn file_origin(&self) -> Origin {
        self.file.map_or(Origin::Default, |path| Origin::File(path.to_owned()))
    }

    /// Returns the user's home directory.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Resolves a path written in the config file, which starts at that file's directory.
    pub fn file_path(&self, path: &Path) -> Result<PathBuf> {
        place::absolute(path, self.file.and_then(Path::parent), self.home.as_deref())
    }
}

/// The config file: the named one, which must exist, or the default one, which need not.
#[derive(Default)]
pub(super) struct Source {
    pub path: Option<PathBuf>,
    /// Directories of the file; or where the default file would be, if it does not exist.
    places: Vec<PathBuf>,
    pub text: String,
    pub read: Parsed,
}

impl Source {
    /// Reads the file; fails if it has errors that make it unusable.
    pub fn read(flags: &Flags, env: &Env) -> Result<Source> {
        let source = Source::open(flags, env)?;
        source.read.refuse()?;
        Ok(source)
    }

    /// Reads the file, whatever errors are in it.
    pub fn open(flags: &Flags, env: &Env) -> Result<Source> {
        let Some((path, named)) = config_path(flags, env)? else { return Ok(Source::default()) };
        let text = match read_text(&path) {
            Ok(text) => text,
            Err(error) if !named && error.kind() == Kind::NotFound => {
                let places = path.parent().map(place::settle).transpose()?.into_iter().collect();
                return Ok(Source { places, ..Source::default() });
            }
            Err(error) => return Err(error),
        };
        let read = read::read(&text, &path);
        // A link and its target: changing either changes the config.
        let mut places = Vec::new();
        for file in [Some(path.clone()), path.canonicalize().ok()].into_iter().flatten() {
            places.extend(file.parent().map(place::settle).transpose()?);
        }
        Ok(Source { path: Some(path), places, text, read })
    }
}

/// Returns the path of the config file, and whether it was named explicitly.
pub(super) fn config_path(flags: &Flags, env: &Env) -> Result<Option<(PathBuf, bool)>> {
    match flags.config.as_deref().or_else(|| env.path(env::RINGFENCE_CONFIG)) {
        Some(path) => Ok(Some((place::absolute(path, env.cwd.as_deref(), None)?, true))),
        None => Ok(default_config_path(env).map(|path| (path, false))),
    }
}

fn default_config_path(env: &Env) -> Option<PathBuf> {
    let base = match env.absolute(env::XDG_CONFIG_HOME) {
        Some(base) => base.to_owned(),
        None => env.absolute(env::HOME)?.join(".config"),
    };
    Some(base.join("ringfence/config.toml"))
}

fn read_text(path: &Path) -> Result<String> {
    let failed = |kind, what: &str| {
        Error::new(kind, format!("the config file {} {what}", path.display()))
            .hint("Name the file with `--config` (or RINGFENCE_CONFIG).")
    };
    let file = File::open(path).map_err(|error| {
        let missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
        let (kind, what) = if missing {
            (Kind::NotFound, "does not exist")
        } else {
            (Kind::Unavailable, "cannot be read")
        };
        failed(kind, what).source(error)
    })?;
    let facts = file
        .metadata()
        .map_err(|error| failed(Kind::Unavailable, "cannot be read").source(error))?;
    if facts.mode() & 0o002 != 0 && facts.is_file() {
        return Err(failed(Kind::PermissionDenied, "is writable by everyone")
            .hint("Run `chmod o-w` on it."));
    }
    let mut text = String::new();
    let read = file.take(MIB + 1).read_to_string(&mut text);
    read.map_err(|error| failed(Kind::Unavailable, "cannot be read as text").source(error))?;
    if text.len() as u64 > MIB {
        return Err(failed(Kind::TooLarge, "is larger than 1 MiB"));
    }
    Ok(text)
}

/// Resolves only the root, for commands that need no workspace.
pub fn resolve_root(flags: &Flags, env: &Env) -> Result<PathBuf> {
    let source = Source::read(flags, env)?;
    let mut picker = picker(&source, env);
    Ok(root(&mut picker, flags, env, &source)?.0)
}

/// Where secrets are kept, and which tools use which, for commands that need no workspace.
pub struct Keeping {
    pub store: Store,
    pub keyring: Option<Keyring>,
    /// Names of `${secret:NAME}` and the tools that use them.
    pub uses: BTreeMap<String, Vec<String>>,
}

/// Resolves the stores of secrets.
pub fn resolve_keeping(flags: &Flags, env: &Env) -> Result<Keeping> {
    let source = match Source::read(flags, env) {
        // With an explicit root, the location of the store does not depend on the file, so its
        // errors do not matter here.
        Err(_) if flags.root.is_some() || env.path(env::SANDBOX_ROOT).is_some() => {
            Source::default()
        }
        source => source?,
    };
    let defaults = read::parse_file(DEFAULTS, Path::new("defaults.toml"))?;
    let mut picker = picker(&source, env);
    let (root, _) = root(&mut picker, flags, env, &source)?;
    let store = Store::new(&root, secrets::key_file(flags.secrets_key_file.as_ref(), env)?);
    let sources =
        Sources::of(&mut picker, env, (&source.read.file.secrets, &defaults.secrets), store)?;
    let mut uses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for written in &source.read.entries {
        for one in written.refs() {
            if let Ref::Stored(name) = one
                && uses.get(&name).is_none_or(|tools| tools.last() != Some(&written.name))
            {
                uses.entry(name).or_default().push(written.name.clone());
            }
        }
    }
    Ok(Keeping { store: sources.store, keyring: sources.keyring, uses })
}

/// Resolves the config of a server.
pub fn resolve(flags: &Flags, env: &Env) -> Result<Config> {
    resolve_source(&Source::read(flags, env)?, flags, env, None)
}

/// Resolves the config again for a running server. Root, workspace and writable directories stay
/// those of the start, since the tools already work in them. The table of settings shows what the
/// file says now.
pub(super) fn resolve_again(flags: &Flags, env: &Env, first: &Config) -> Result<Config> {
    resolve_source(&Source::read(flags, env)?, flags, env, Some(first))
}

pub(super) fn resolve_source(
    source: &Source,
    flags: &Flags,
    env: &Env,
    first: Option<&Config>,
) -> Result<Config> {
    let file = &source.read.file;
    let defaults = read::parse_file(DEFAULTS, Path::new("defaults.toml"))?;
    let mut picker = picker(source, env);
    let p = &mut picker;

    let (root, root_named) = match (root(p, flags, env, source), first) {
        (_, Some(first)) => (first.root.clone(), first.names("root")),
        (found, None) => {
            found.map(|(path, origin)| (path, origin.is_named())).map_err(about("root"))?
        }
    };
    let listen = flags.http.as_deref().map(parse_listen).transpose()?;
    if let Some(address) = listen {
        p.record("http.listen", address.to_string(), Origin::Flag("--http"));
    }
    let keys = keys::resolve(p, env, &file.auth, &defaults.auth).map_err(about("auth"))?;
    let shared = Layers::file_only(file.shared_workspace, defaults.shared_workspace);
    let (shared_workspace, _) = p.pick("shared_workspace", shared, bool::to_string)?;

    let mut steering: Vec<_> =
        source.places.iter().map(|place| ("the config file", place.clone())).collect();
    let on_the_way = source.path.iter().flat_map(|path| trail::steps(path));
    steering.extend(on_the_way.map(|step| ("the config file", step)));
    let key_file = secrets::key_file(flags.secrets_key_file.as_ref(), env)?;
    let store = Store::new(&root, key_file.clone());
    let sources =
        Sources::of(p, env, (&file.secrets, &defaults.secrets), store).map_err(about("secrets"))?;
    let env_file = sources.env_file.iter().map(|path| ("the env file of secrets", path.clone()));
    let key_file = key_file.into_iter().map(|path| ("the key of the secret store", path));
    let key_files = keys.files.iter().map(|(_, path)| path.clone()).collect();
    let (mut private, mut secret_files) = (Vec::new(), Vec::new());
    for (what, path) in keys.files.into_iter().chain(env_file).chain(key_file) {
        // A link, its target, and everything between them: changing one changes what is read.
        let link = place::settle(path.parent().unwrap_or(&path))?
            .join(path.file_name().unwrap_or_default());
        let target = place::settle(&path)?;
        steering.extend(
            trail::steps(&path)
                .into_iter()
                .chain([link.clone(), target.clone()])
                .map(|step| (what, step)),
        );
        private.extend([link.clone(), target.clone()]);
        if what != keys::PUBLIC {
            secret_files.extend([link, target]);
        }
    }
    let log = log::resolve(p, (&flags.log, env), (&file.log, &defaults.log))?;
    if let Some(path) = &log.file {
        // The workspaces of HTTP principals are not known individually.
        if path.starts_with(root.join("workspaces")) {
            return Err(Error::invalid_arguments(format!(
                "the log file {} is inside a workspace",
                path.display()
            ))
            .reason("bad_log_file")
            .hint("Name another file with `--log-file` (or RINGFENCE_LOG_FILE)."));
        }
        steering.push(("the log file", path.clone()));
    }
    let keepers = Keepers {
        home: env.absolute(env::HOME).map(place::settle).transpose()?,
        root: Place { path: &root, named: root_named },
        steering: &steering,
    };
    let (workspace, closed) =
        workspace(p, (flags, env, source), &keepers, first).map_err(about("workspace"))?;

    let surface = Layers {
        env: env.bool_in_any_case(env::ENABLE_SURFACE)?.map(|value| (value, env::ENABLE_SURFACE)),
        ..Layers::file_only(file.enable_mcp_server_surface, defaults.enable_mcp_server_surface)
    };
    let tools = Layers {
        flag: parse_tools(flags.tools.as_deref(), "--tools")?,
        env: parse_tools(env.text(env::RINGFENCE_TOOLS)?.as_deref(), env::RINGFENCE_TOOLS)?,
        ..Layers::file_only(file.tools, defaults.tools)
    };
    let names = Layers::file_only(file.tool_names, defaults.tool_names);
    let tools = p.pick("tools", tools, |tools: &ToolSet| tools.name().to_owned())?.0;
    let sandbox = sandbox::resolve(p, &flags.sandbox, &file.sandbox, &defaults.sandbox)?;
    let enabled = p.pick("enable_mcp_server_surface", surface, bool::to_string)?.0;
    let surface = surface::resolve(p, enabled, &file.surface, &defaults.surface)?;
    let shaping = surface::shaping(p, &file.session, &defaults.session)?;
    let (entries, dropped) = entries(p, source, (&surface, sandbox.profile));
    let secrets = Secrets::resolve(entries.iter().flat_map(|entry| entry.refs()), &sources);
    let sources = (&flags.policy, env);
    let policy = policy::resolve(
        p,
        sources,
        (&file.policy, &defaults.policy),
        (tools, &sandbox, workspace.as_deref()),
    );
    let policy = policy.map_err(about("policy"))?;
    let writable = first.map_or(&sandbox.writable, |first| &first.sandbox.writable);
    place::check_steering(&steering, &root, writable)?;
    let mut config = Config {
        generation: 1,
        surface,
        shaping,
        entries,
        dropped,
        secrets: Arc::new(secrets),
        private,
        key_files,
        exposed: Vec::new(),
        tools,
        tool_names: p.pick("tool_names", names, |names: &ToolNames| names.name().to_owned())?.0,
        approval: approval(p, &file.approval, &defaults.approval)?,
        limits: limits(p, &file.limits, &defaults.limits)?,
        audit_keep: audit_keep(p, &file.audit),
        log,
        browser: browser(p, env, &file.browser, &defaults.browser)?,
        sandbox,
        policy,
        home: env.absolute(env::HOME).map(Path::to_owned),
        codex_home: codex_home(env, workspace.as_deref()),
        credential_paths: env.credential_paths(),
        rustup_home: match env.absolute(env::RUSTUP_HOME) {
            Some(path) => Some(path.to_owned()),
            None => env.absolute(env::HOME).map(|home| home.join(".rustup")),
        },
        http: http(p, flags, listen, &file.http, &defaults.http)?,
        auth: keys.auth,
        root,
        workspace,
        shared_workspace,
        closed,
        conformance_fixtures: flags.conformance_fixtures,
        file: source.path.clone(),
        settings: picker.settings,
    };
    let (hidden, exposed) = seclusion::folders(&secret_files, &seclusion::Needs::of(&config));
    config.private.extend(hidden);
    config.exposed = exposed;
    if let Some(address) = listen {
        check_bind(address, &config)?;
        if config.workspace.is_some() && config.auth.is_some() && !shared_workspace {
            tracing::warn!(
                "a workspace is configured, so all principals share it; remove it to give each its own"
            );
        }
    }
    Ok(config)
}

/// Adds the key that an error is about, if it does not name one.
fn about(key: &'static str) -> impl Fn(Error) -> Error {
    move |error| if error.fact(KEY).is_some() { error } else { error.with(KEY, key) }
}

/// Returns the usable commands, and the errors in the others.
fn entries(
    p: &Picker<'_>,
    source: &Source,
    (surface, profile): (&Surface, Profile),
) -> (Arc<[Arc<Entry>]>, Arc<[Fault]>) {
    let Some(path) = &source.path else { return (Arc::default(), Arc::default()) };
    let lines = LineIndex::new(&source.text);
    let around = Around {
        path,
        text: &source.text,
        places: &source.read.places,
        lines,
        picker: p,
        surface,
        profile,
    };
    let (entries, faults) = entry::resolve(&around, &source.read.entries);
    let dropped = source.read.dropped.iter().cloned().chain(faults).collect();
    (entries.into_iter().map(Arc::new).collect(), dropped)
}

fn picker<'a>(source: &'a Source, env: &Env) -> Picker<'a> {
    let home = env.absolute(env::HOME).map(Path::to_owned);
    Picker { file: source.path.as_deref(), source: Some(source), home, settings: Vec::new() }
}

/// Returns the errors in the commands when the rest of the file cannot be resolved.
pub(super) fn entry_faults(source: &Source, env: &Env) -> Arc<[Fault]> {
    let Ok(defaults) = read::parse_file(DEFAULTS, Path::new("defaults.toml")) else {
        return Arc::default();
    };
    let (file, mut picker) = (&source.read.file, picker(source, env));
    match surface::resolve(&mut picker, true, &file.surface, &defaults.surface) {
        Ok(surface) => {
            let profile =
                file.sandbox.profile.or(defaults.sandbox.profile).unwrap_or(Profile::Default);
            entries(&picker, source, (&surface, profile)).1
        }
        Err(_) => source.read.dropped.as_slice().into(),
    }
}

/// Resolves a command that sets only `command`.
pub(super) fn bare_entry() -> Option<Entry> {
    let (path, text) = (PathBuf::from("config.toml"), "[mcp.x]\ncommand = \"x\"\n".to_owned());
    let read = read::read(&text, &path);
    let source = Source { path: Some(path), places: Vec::new(), text, read };
    let defaults = read::parse_file(DEFAULTS, Path::new("defaults.toml")).ok()?;
    let mut picker =
        Picker { file: source.path.as_deref(), source: None, home: None, settings: Vec::new() };
    let surface =
        surface::resolve(&mut picker, true, &raw::Surface::default(), &defaults.surface).ok()?;
    let (entries, _) = entries(&picker, &source, (&surface, Profile::Default));
    entries.first().map(|entry| Entry::clone(entry))
}

fn show_path(path: &Path) -> String {
    path.display().to_string()
}

fn root(
    picker: &mut Picker<'_>,
    flags: &Flags,
    env: &Env,
    source: &Source,
) -> Result<(PathBuf, Origin)> {
    let from = |path: &Path| place::absolute(path, env.cwd.as_deref(), None);
    let layers = Layers {
        flag: flags.root.as_deref().map(from).transpose()?.map(|path| (path, "--root")),
        env: env
            .path(env::SANDBOX_ROOT)
            .map(from)
            .transpose()?
            .map(|path| (path, env::SANDBOX_ROOT)),
        file: source.read.file.root.as_deref().map(|path| picker.file_path(path)).transpose()?,
        default: default_root(env),
    };
    let (path, origin) =
        picker.pick_optional("root", layers, |path| show_path(path)).ok_or_else(|| {
            Error::invalid_arguments(
                "there is no directory for runtime files: neither HOME nor XDG_STATE_HOME is set",
            )
            .hint("Name a directory with `--root` (or SANDBOX_ROOT).")
        })?;
    let path = place::settle(&path)?;
    if path.parent().is_none() {
        return Err(Error::invalid_arguments("`/` cannot be the root directory of this server")
            .hint("Name a directory of its own with `--root` (or SANDBOX_ROOT)."));
    }
    Ok((path, origin))
}

fn default_root(env: &Env) -> Option<PathBuf> {
    if cfg!(target_os = "macos") {
        return Some(env.absolute(env::HOME)?.join("Library/Application Support/ringfence"));
    }
    let base = match env.absolute(env::XDG_STATE_HOME) {
        Some(base) => base.to_owned(),
        None => env.absolute(env::HOME)?.join(".local/state"),
    };
    Some(base.join("ringfence"))
}

/// Returns the workspace and the paths closed inside it. Over HTTP there is none unless one is
/// configured: each principal gets its own.
fn workspace(
    picker: &mut Picker<'_>,
    (flags, env, source): (&Flags, &Env, &Source),
    keepers: &Keepers<'_>,
    first: Option<&Config>,
) -> Result<(Option<PathBuf>, Vec<PathBuf>)> {
    let from = |path: &Path| place::absolute(path, env.cwd.as_deref(), None);
    let layers = Layers {
        flag: flags.workspace.as_deref().map(from).transpose()?.map(|path| (path, "--workspace")),
        env: env
            .path(env::SANDBOX_WORKSPACE)
            .map(from)
            .transpose()?
            .map(|path| (path, env::SANDBOX_WORKSPACE)),
        file: source
            .read
            .file
            .workspace
            .as_deref()
            .map(|path| picker.file_path(path))
            .transpose()?,
        default: if flags.http.is_none() { env.cwd.clone() } else { None },
    };
    let named = picker.pick_optional("workspace", layers, |path| show_path(path));
    if let Some(first) = first {
        if named.is_none() && flags.http.is_some() {
            picker.record("workspace", EACH_ITS_OWN.to_owned(), Origin::Default);
        }
        let Some(path) = &first.workspace else { return Ok((None, Vec::new())) };
        let closed =
            place::check_workspace(&Place { path, named: first.names("workspace") }, keepers)?;
        return Ok((Some(path.clone()), closed));
    }
    let Some((path, origin)) = named else {
        if flags.http.is_some() {
            picker.record("workspace", EACH_ITS_OWN.to_owned(), Origin::Default);
            return Ok((None, Vec::new()));
        }
        return Err(Error::invalid_arguments("the current directory no longer exists")
            .hint("Name one with `--workspace`."));
    };
    let unusable = || {
        Error::new(
            Kind::NotFound,
            format!("the workspace {} is not a usable directory", path.display()),
        )
        .reason("bad_workspace")
        .hint("Name an existing directory with `--workspace` (or SANDBOX_WORKSPACE).")
    };
    let path = path.canonicalize().map_err(|error| unusable().source(error))?;
    if !path.is_dir() {
        return Err(unusable());
    }
    let closed = place::check_workspace(&Place { path: &path, named: origin.is_named() }, keepers)?;
    Ok((Some(path), closed))
}

fn own_tools_text(value: &raw::OwnTools) -> String {
    match value {
        raw::OwnTools::Auto => "auto".to_owned(),
        raw::OwnTools::Always => "always".to_owned(),
        raw::OwnTools::Named(patterns) => {
            patterns.iter().map(|one| one.0.text()).collect::<Vec<_>>().join(", ")
        }
    }
}

fn approval(
    p: &mut Picker<'_>,
    file: &raw::Approval,
    defaults: &raw::Approval,
) -> Result<Approval> {
    let expiry = Layers::file_only(file.expiry_s, defaults.expiry_s);
    let own_tools = Layers::file_only(file.own_tools.clone(), defaults.own_tools.clone());
    Ok(Approval {
        expiry: Duration::from_secs(
            p.pick("approval.expiry_s", expiry, |value| value.0.to_string())?.0.0,
        ),
        terminal: p
            .pick(
                "approval.terminal",
                Layers::file_only(file.terminal, defaults.terminal),
                bool::to_string,
            )?
            .0,
        own_tools: match p.pick("approval.own_tools", own_tools, own_tools_text)?.0 {
            raw::OwnTools::Auto => OwnToolsAsk::Never,
            raw::OwnTools::Always => OwnToolsAsk::Always,
            raw::OwnTools::Named(patterns) => {
                OwnToolsAsk::Named(patterns.into_iter().map(|one| one.0).collect())
            }
        },
    })
}

fn limits(p: &mut Picker<'_>, file: &raw::Limits, defaults: &raw::Limits) -> Result<Limits> {
    macro_rules! number {
        ($field:ident) => {{
            let layers = Layers::file_only(file.$field, defaults.$field);
            p.pick(concat!("limits.", stringify!($field)), layers, |value| value.0.to_string())?.0.0
        }};
    }
    Ok(Limits {
        timeout_ceiling: Duration::from_millis(number!(timeout_ms)),
        grace: Duration::from_millis(number!(grace_ms)),
        output_file_bytes: number!(output_file_mb) * MIB,
        message_bytes: usize::try_from(number!(message_mb) * MIB).unwrap_or(usize::MAX),
        audit_rotate_bytes: number!(audit_rotate_mb) * MIB,
    })
}

fn audit_keep(p: &mut Picker<'_>, file: &raw::AuditSection) -> Option<Duration> {
    let layers = Layers::file_only(file.keep.clone(), None);
    p.pick_optional("audit.keep", layers, |keep: &raw::KeepSpan| keep.text.clone())
        .map(|(keep, _)| keep.span)
}

fn browser(
    p: &mut Picker<'_>,
    env: &Env,
    file: &raw::Browser,
    defaults: &raw::Browser,
) -> Result<Browser> {
    let named = file.program.as_deref().map(|path| p.file_path(path)).transpose()?;
    let idle = Layers::file_only(file.idle_s, defaults.idle_s);
    Ok(Browser {
        program: p
            .pick_optional("browser.program", Layers::file_only(named, None), |path: &PathBuf| {
                show_path(path)
            })
            .map(|(path, _)| path),
        path: env
            .get(env::PATH)
            .map(|path| std::env::split_paths(path).collect())
            .unwrap_or_default(),
        idle: Duration::from_secs(p.pick("browser.idle_s", idle, |value| value.0.to_string())?.0.0),
    })
}

fn http(
    p: &mut Picker<'_>,
    flags: &Flags,
    listen: Option<SocketAddr>,
    file: &raw::Http,
    defaults: &raw::Http,
) -> Result<Http> {
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
    Ok(Http {
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
    let hint = match nearest(text, &names) {
        Some(near) => format!("Did you mean `{near}`?"),
        None => format!("Use {source} with one of {}.", names.join(", ")),
    };
    Err(Error::invalid_arguments(format!("{source} does not name a known set of tools")).hint(hint))
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
