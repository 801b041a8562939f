//! Joins the servers of the upstreams file with their tables in config.toml, and checks both.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use ringfence_client::config::{
    ConfigOrigin, FileOrigin, LoadedConfig, ServerConfig, TransportConfig,
};

use super::UpstreamServer;
use super::login::{UpstreamLogin, used_login_keys};
use crate::base::suggest::suggest_name;
use crate::base::{Error, Result};
use crate::config::fault::ConfigError;
use crate::config::parse::config_text::{WrittenUpstream, upstream_key};
use crate::config::parse::key_spans::{KeySpans, child_path};
use crate::config::parse::upstream_section::UpstreamSection;
use crate::config::values::{UpstreamApproval, UpstreamShare};
use crate::config::{DeclaredAccess, ProfileSetting, ValueTemplate};

/// Id of the only auth provider.
pub const OAUTH_PROVIDER: &str = "oauth";

const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of problems that one error lists.
const MAX_LISTED: usize = 20;

/// Servers by id.
type ServersById = BTreeMap<String, Arc<UpstreamServer>>;
type NamedTemplates = Vec<(String, ValueTemplate)>;

/// Variables and headers of one server.
struct ServerTemplates {
    env: NamedTemplates,
    headers: NamedTemplates,
}

/// Context of all tables of a config file.
pub struct UpstreamContext<'a> {
    /// The config file; there are no tables without one.
    pub path: &'a Path,
    /// Its text.
    pub text: &'a str,
    /// Positions of its keys.
    pub key_spans: &'a KeySpans,
    /// Time limit of calls of servers that set none.
    pub default_timeout: Duration,
    /// The profile under `[sandbox]`.
    pub sandbox_profile: ProfileSetting,
    /// A table must belong to a server. Otherwise servers depend on the project, and a table may be
    /// meant for another one.
    pub requires_servers: bool,
}

/// Returns the servers, and the errors in their tables. Fails if values of the upstreams file are
/// not valid.
pub fn resolve_servers(
    context: &UpstreamContext<'_>,
    loaded: &LoadedConfig,
    tables: &[WrittenUpstream],
) -> Result<(ServersById, Vec<ConfigError>)> {
    let mut templates = check_values(loaded)?;
    let mut errors = Vec::new();
    if context.requires_servers {
        errors.extend(find_lone_tables(context, loaded, tables));
    }
    let mut servers = BTreeMap::new();
    for (id, server) in &loaded.config.servers {
        let Some(templates) = templates.remove(id) else { continue };
        let table = tables.iter().find(|table| table.id == *id);
        let mut checker = TableChecker { context, id, table, errors: Vec::new() };
        let server = checker.build_server(server, templates);
        errors.append(&mut checker.errors);
        servers.insert(id.clone(), Arc::new(server));
    }
    errors.sort_by_key(|error| (error.line, error.column));
    Ok((servers, errors))
}

/// Parses the variables and headers of all servers, and checks the auth providers.
pub fn check_upstreams_file(loaded: &LoadedConfig) -> Result<()> {
    check_values(loaded).map(drop)
}

fn check_values(loaded: &LoadedConfig) -> Result<BTreeMap<String, ServerTemplates>> {
    let mut problems = ValueProblems::default();
    let mut templates = BTreeMap::new();
    for (id, server) in &loaded.config.servers {
        if is_own_name(id) {
            problems.add(
                loaded.locations.describe_key(&["servers", id]),
                "this id is reserved: questions of the server would look like our own".to_owned(),
                "Rename the server after what it does.".to_owned(),
            );
        }
        let mut read = |key: &str, values: &BTreeMap<String, String>| -> NamedTemplates {
            let read_value = |(name, text): (&String, &String)| {
                let keys = ["servers", id, "transport", key, name];
                let template = read_template(loaded, &keys, text, &mut problems)?;
                Some((name.clone(), template))
            };
            values.iter().filter_map(read_value).collect()
        };
        let (env, headers) = match &server.transport {
            TransportConfig::Stdio(stdio) => (read("env", &stdio.env), Vec::new()),
            TransportConfig::Http(remote) | TransportConfig::Sse(remote) => {
                (Vec::new(), read("headers", &remote.headers))
            }
        };
        let provider = server.transport.as_remote().and_then(|one| one.auth_provider_id.as_deref());
        if let Some(provider) = provider.filter(|provider| *provider != OAUTH_PROVIDER) {
            problems.add(
                loaded.locations.describe_key(&["servers", id, "transport", "authProviderId"]),
                format!("there is no auth provider {provider:?}"),
                format!("The only one is {OAUTH_PROVIDER:?}."),
            );
        }
        templates.insert(id.clone(), ServerTemplates { env, headers });
    }
    problems.into_result(templates)
}

/// Returns whether a human could take the id for the name of this program.
fn is_own_name(id: &str) -> bool {
    id.replace(['-', '_'], "").eq_ignore_ascii_case(env!("CARGO_PKG_NAME"))
}

fn read_template(
    loaded: &LoadedConfig,
    keys: &[&str],
    text: &str,
    problems: &mut ValueProblems,
) -> Option<ValueTemplate> {
    let is_discovered = matches!(
        loaded.locations.find_origin(keys),
        Some(ConfigOrigin::File { found: FileOrigin::Discovered, .. })
    );
    match ValueTemplate::without_arguments(text) {
        // The author of the project could otherwise have any secret sent to a server of their own.
        Ok(template) if is_discovered && template.secret_refs().next().is_some() => {
            problems.add(
                loaded.locations.describe_key(keys),
                "a file in a project must not name secrets".to_owned(),
                "Set the variable under `env` in config.toml, or name the file with `--upstreams`. \
                 A literal `${` is written `$${`."
                    .to_owned(),
            );
            None
        }
        Ok(template) => Some(template),
        Err(message) => {
            let hint = "A secret is `${NAME}` or `${secret:NAME}`, a literal `${` is `$${`.";
            problems.add(loaded.locations.describe_key(keys), message, hint.to_owned());
            None
        }
    }
}

/// Problems with values of the upstreams file, as lines with their positions.
#[derive(Default)]
struct ValueProblems(Vec<(String, String)>);

impl ValueProblems {
    fn add(&mut self, location: String, reason: String, hint: String) {
        self.0.push((format!("{location}: {reason}"), hint));
    }

    fn into_result<T>(self, value: T) -> Result<T> {
        let (message, hint) = match self.0.as_slice() {
            [] => return Ok(value),
            [(line, hint)] => (line.clone(), hint.clone()),
            problems => {
                let shown = problems.iter().take(MAX_LISTED);
                let lines: Vec<String> =
                    shown.map(|(line, hint)| format!("{line}. {hint}")).collect();
                (lines.join("\n"), format!("Fix these {} problems.", problems.len()))
            }
        };
        Err(Error::invalid_arguments(message).with_reason("bad_config").with_hint(hint))
    }
}

/// Reports tables of servers that do not exist.
fn find_lone_tables<'a>(
    context: &'a UpstreamContext<'_>,
    loaded: &'a LoadedConfig,
    tables: &'a [WrittenUpstream],
) -> impl Iterator<Item = ConfigError> + 'a {
    let known: Vec<&str> = loaded.config.servers.keys().map(String::as_str).collect();
    let lone_tables = tables.iter().filter(|table| !loaded.config.servers.contains_key(&table.id));
    lone_tables.map(move |table| {
        let hint = match (suggest_name(&table.id, &known), known.as_slice()) {
            (Some(suggestion), _) => format!("Did you mean `{suggestion}`?"),
            (None, []) => "No servers are configured: name their file with `upstreams`.".to_owned(),
            (None, known) => format!("Configured servers: {}.", known.join(", ")),
        };
        let message = format!("there is no server `{}`", table.id);
        let location = (context.path, context.text);
        ConfigError::about_key(
            &upstream_key(&table.id),
            location,
            table.id_span.clone(),
            message,
            hint,
        )
    })
}

/// Collects the errors in one table.
struct TableChecker<'a> {
    context: &'a UpstreamContext<'a>,
    id: &'a str,
    table: Option<&'a WrittenUpstream>,
    errors: Vec<ConfigError>,
}

impl TableChecker<'_> {
    fn add_error(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let Some(table) = self.table else { return };
        let path = format!("{}.{key}", upstream_key(self.id));
        let span =
            self.context.key_spans.value_span(&path).unwrap_or_else(|| table.id_span.clone());
        let location = (self.context.path, self.context.text);
        self.errors.push(ConfigError::about_key(&path, location, span, message, hint));
    }

    fn build_server(
        &mut self,
        server: &ServerConfig,
        templates: ServerTemplates,
    ) -> UpstreamServer {
        let section = self.table.map(|table| table.section.clone()).unwrap_or_default();
        let is_remote = server.transport.as_remote().is_some();
        if is_remote {
            self.check_remote(&section);
        }
        let login = self.read_login(&section, server);
        let access = DeclaredAccess {
            profile: section.sandbox_profile.unwrap_or(ProfileSetting::Default),
            allow_network: section.allow_network.unwrap_or(false),
            allow_domains: section.allow_domains.clone().unwrap_or_default(),
            allow_addresses: section.allow_addresses.clone().unwrap_or_default(),
            side_effects: section.side_effects.clone().unwrap_or_default(),
        };
        self.check_profile(access.profile);
        let approval = section.approval.unwrap_or(UpstreamApproval::Auto);
        if approval == UpstreamApproval::Never {
            self.check_unattended(is_remote, &access);
        }
        let own_env = self.read_env(&section);
        let overrides = |name: &String| own_env.iter().any(|(other, _)| other == name);
        let file_env = templates.env.into_iter().filter(|(name, _)| !overrides(name)).collect();
        let millis = |time: u64| Duration::from_millis(time);
        UpstreamServer {
            id: self.id.to_owned(),
            cwd: self.choose_cwd(&section, server),
            server: without_values(server),
            env: [file_env, own_env].concat(),
            headers: templates.headers,
            access,
            approval,
            share: section.share.unwrap_or(UpstreamShare::Session),
            allows_sampling: section.sampling.unwrap_or(false),
            call_timeout: section
                .timeout_ms
                .map_or(self.context.default_timeout, |time| millis(time.0)),
            start_timeout: section
                .start_timeout_ms
                .map_or(DEFAULT_START_TIMEOUT, |time| millis(time.0)),
            idle_timeout: section
                .idle_s
                .map_or(DEFAULT_IDLE_TIMEOUT, |time| Duration::from_secs(time.0)),
            login,
        }
    }

    /// Reads the settings of logins, and refuses them for a server without logins.
    fn read_login(
        &mut self,
        section: &UpstreamSection,
        server: &ServerConfig,
    ) -> Option<UpstreamLogin> {
        let remote = server.transport.as_remote();
        if remote.is_none_or(|remote| remote.auth_provider_id.is_none()) {
            for key in used_login_keys(section) {
                let message = format!("`{key}` has no effect: `{}` needs no login", self.id);
                let hint = "Remove it, or add `\"authProviderId\": \"oauth\"` to the `transport` \
                            of the server in the upstreams file.";
                self.add_error(key, message, hint);
            }
            return None;
        }
        let (login, errors) = UpstreamLogin::from_section(section);
        for error in errors {
            self.add_error(error.key, error.message, error.hint);
        }
        Some(login)
    }

    /// Refuses keys that only a local process has.
    fn check_remote(&mut self, section: &UpstreamSection) {
        let keys = [
            ("sandbox_profile", section.sandbox_profile.is_some()),
            ("allow_network", section.allow_network.is_some()),
            ("allow_domains", section.allow_domains.is_some()),
            ("allow_addresses", section.allow_addresses.is_some()),
            ("side_effects", section.side_effects.is_some()),
            ("cwd", section.cwd.is_some()),
            ("env", section.env.is_some()),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
            let message = format!("`{key}` has no effect: `{}` is a remote server", self.id);
            let hint = "Remove it. Only a server of type `stdio` runs here, in a sandbox.";
            self.add_error(key, message, hint);
        }
    }

    fn check_profile(&mut self, profile: ProfileSetting) {
        let sandbox_profile = self.context.sandbox_profile;
        if profile == ProfileSetting::Contained
            && !matches!(sandbox_profile, ProfileSetting::Contained | ProfileSetting::None)
        {
            let message =
                "`contained` hides nothing, and is weaker than the profile under [sandbox]";
            let hint = "Remove it, or write `profile = \"contained\"` under [sandbox].";
            self.add_error("sandbox_profile", message, hint);
        }
    }

    /// Checks a server whose calls need no approval: the sandbox must confine all that it does.
    fn check_unattended(&mut self, is_remote: bool, access: &DeclaredAccess) {
        let reason = match is_remote {
            true => Some("It runs on another machine, outside any sandbox."),
            false => access.high_risk_reason(),
        };
        if let Some(reason) = reason {
            let message = format!("calls of `{}` need a human's approval. {reason}", self.id);
            let hint = "Write \"auto\" or \"always\": no one needs to be asked only if the sandbox \
                        confines everything that a server does.";
            self.add_error("approval", message, hint);
        }
    }

    fn read_env(&mut self, section: &UpstreamSection) -> NamedTemplates {
        let mut templates = Vec::new();
        for (name, text) in section.env.iter().flatten() {
            let key = child_path("env", name);
            if name.is_empty() || name.contains(['=', '\0']) {
                let message = format!("`{name}` is not a valid name of a variable");
                self.add_error(&key, message, "Use a name without `=`.");
            }
            match ValueTemplate::without_arguments(text) {
                Ok(template) => templates.push((name.clone(), template)),
                Err(message) => {
                    let hint =
                        "A secret is `${NAME}` or `${secret:NAME}`, a literal `${` is `$${`.";
                    self.add_error(&key, message, hint);
                }
            }
        }
        templates
    }

    fn choose_cwd(
        &mut self,
        section: &UpstreamSection,
        server: &ServerConfig,
    ) -> Option<std::path::PathBuf> {
        let Some(cwd) = &section.cwd else {
            return match &server.transport {
                TransportConfig::Stdio(stdio) => stdio.cwd.clone(),
                TransportConfig::Http(_) | TransportConfig::Sse(_) => None,
            };
        };
        if cwd.is_relative() && cwd.components().any(|part| part == Component::ParentDir) {
            let hint = "Name one inside the workspace.";
            self.add_error("cwd", "the directory leaves the workspace", hint);
        }
        Some(cwd.clone())
    }
}

/// Returns the server without values that may be secrets; the templates have them.
fn without_values(server: &ServerConfig) -> ServerConfig {
    let mut server = server.clone();
    match &mut server.transport {
        TransportConfig::Stdio(stdio) => stdio.env.clear(),
        TransportConfig::Http(remote) | TransportConfig::Sse(remote) => remote.headers.clear(),
    }
    server
}
