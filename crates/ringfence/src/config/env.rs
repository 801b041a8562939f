//! The environment: one table of every variable that we read, and a copy of it taken once at
//! startup.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::base::{Error, Result};

/// An environment variable.
pub struct EnvVariable {
    pub name: &'static str,
    /// Its value is never shown, only whether it is set.
    pub secret: bool,
}

macro_rules! variables {
    ($($constant:ident $name:literal $secret:literal $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $constant: &str = $name;
        )*
        /// Every environment variable that is read anywhere, but for [`CREDENTIAL_VARIABLES`].
        pub const VARIABLES: &[EnvVariable] =
            &[$(EnvVariable { name: $name, secret: $secret },)*];
    };
}

variables! {
    SANDBOX_ROOT            "SANDBOX_ROOT"            false "Directory for runtime files (`--root`).";
    SANDBOX_WORKSPACE       "SANDBOX_WORKSPACE"       false "Directory in which the tools work (`--workspace`).";
    RINGFENCE_CONFIG        "RINGFENCE_CONFIG"        false "The config file (`--config`).";
    RINGFENCE_TOOLS         "RINGFENCE_TOOLS"         false "Tools to list: core, shell or all (`--tools`).";
    RINGFENCE_SECRETS_KEY_FILE "RINGFENCE_SECRETS_KEY_FILE" false "Key file of the secret store, if not in its default location (`--secrets-key-file`).";
    RINGFENCE_LOG           "RINGFENCE_LOG"           false "Log level: error, warn, info, debug or trace (`--log-level`).";
    RINGFENCE_LOG_FORMAT    "RINGFENCE_LOG_FORMAT"    false "Log format: pretty or json (`--log-format`).";
    RINGFENCE_LOG_FILE      "RINGFENCE_LOG_FILE"      false "File to log to, instead of standard error (`--log-file`).";
    RINGFENCE_TOKEN         "RINGFENCE_TOKEN"         true  "Bearer token that `ringfence tools` and `ringfence call` send to the server of `--url`.";
    UPSTREAMS_PATH          "CODEX_TOOLLOOP_MCP_CONFIG_PATH" false "JSON file with other MCP servers (`--upstreams`).";
    UPSTREAMS_JSON          "CODEX_TOOLLOOP_MCP_CONFIG_JSON" true "Other MCP servers as JSON; they take precedence over those of the file.";
    ENABLE_SURFACE          "ENABLE_MCP_SERVER_SURFACE" false "`enable_mcp_server_surface`; its name is accepted in any case.";
    MCP_AUTH_ENABLED        "MCP_AUTH_ENABLED"        false "Whether HTTP callers need a bearer token.";
    MCP_AUTH_JWT_SECRET     "MCP_AUTH_JWT_SECRET"     true  "Shared secret with which tokens are signed (HS256).";
    MCP_AUTH_JWT_PUBLIC_KEY "MCP_AUTH_JWT_PUBLIC_KEY" false "Public key with which tokens are checked (RS256, ES256, EdDSA): PEM text or a file.";
    MCP_AUTH_AUDIENCE       "MCP_AUTH_AUDIENCE"       false "Audience that a token must name.";
    MCP_AUTH_ISSUER         "MCP_AUTH_ISSUER"         false "Issuer that a token must name; also published as the authorization server.";
    XDG_STATE_HOME          "XDG_STATE_HOME"          false "Contains the default root.";
    XDG_CONFIG_HOME         "XDG_CONFIG_HOME"         false "Contains the default config file.";
    HOME                    "HOME"                    false "The home directory: base of the defaults, and refused as a workspace.";
    XDG_RUNTIME_DIR         "XDG_RUNTIME_DIR"         false "Contains the session bus socket, through which the system keyring is reached.";
    DBUS_SESSION_BUS_ADDRESS "DBUS_SESSION_BUS_ADDRESS" false "Address of the session bus, if it is elsewhere.";
    CODEX_HOME              "CODEX_HOME"              false "Contains the operator's rules, in `rules/`; default: the home of the Codex that starts the server, else `~/.codex`.";
    PATH                    "PATH"                    false "Directories in which the browser and the programs named by rules are looked up.";
    RUSTUP_HOME             "RUSTUP_HOME"             false "Directory of Rust's toolchains, which sandboxed commands may use.";
}

/// Variables that say where programs keep credentials. They are read for one purpose: to hide the
/// paths they name from runs.
pub const CREDENTIAL_VARIABLES: &[&str] = &[
    "ANSIBLE_VAULT_PASSWORD_FILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AZURE_CONFIG_DIR",
    "BOTO_CONFIG",
    "BUNDLE_USER_CONFIG",
    "BUNDLE_USER_HOME",
    "CARGO_HOME",
    "CLAUDE_CONFIG_DIR",
    "CLOUDSDK_CONFIG",
    "COMPOSER_HOME",
    "DOCKER_CONFIG",
    "FLY_CONFIG_DIR",
    "GH_CONFIG_DIR",
    "GLAB_CONFIG_DIR",
    "GNUPGHOME",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GRADLE_USER_HOME",
    "HELM_CONFIG_HOME",
    "HELM_REGISTRY_CONFIG",
    "HELM_REPOSITORY_CONFIG",
    "HF_HOME",
    "HF_TOKEN_PATH",
    "HISTFILE",
    "HUB_CONFIG",
    "KUBECONFIG",
    "MYSQL_HISTFILE",
    "MYSQL_TEST_LOGIN_FILE",
    "NETRC",
    "NODE_REPL_HISTORY",
    "NPM_CONFIG_USERCONFIG",
    "OCI_CLI_CONFIG_FILE",
    "OP_CONFIG_DIR",
    "PASSWORD_STORE_DIR",
    "PGPASSFILE",
    "PIP_CONFIG_FILE",
    "POETRY_CONFIG_DIR",
    "PSQL_HISTORY",
    "PYTHON_HISTORY",
    "RCLONE_CONFIG",
    "REGISTRY_AUTH_FILE",
    "S3CMD_CONFIG",
    "SOPS_AGE_KEY_FILE",
    "TF_CLI_CONFIG_FILE",
    "UV_CREDENTIALS_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "npm_config_userconfig",
];

/// Environment and working directory of the process at startup. It is plain data, so that resolving
/// a config depends on nothing hidden.
#[derive(Clone, Default)]
pub struct ProcessEnv {
    variables: Vec<(OsString, OsString)>,
    /// Directory that relative paths start from.
    pub cwd: Option<PathBuf>,
    /// Home of the Codex that started this process, which does not pass CODEX_HOME on.
    pub client_codex_home: Option<PathBuf>,
}

impl ProcessEnv {
    /// Captures the environment of this process.
    pub fn from_process() -> Self {
        let client_codex_home =
            super::client_home::find_client_home(std::env::var_os(PATH).as_deref());
        ProcessEnv {
            variables: std::env::vars_os().collect(),
            cwd: std::env::current_dir().ok(),
            client_codex_home,
        }
    }

    /// Creates an environment from given variables.
    pub fn new<N: Into<OsString>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (N, V)>,
        cwd: impl Into<PathBuf>,
    ) -> Self {
        let variables =
            variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        ProcessEnv { variables, cwd: Some(cwd.into()), client_codex_home: None }
    }

    /// Returns this environment with one variable set.
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.retain(|(other, _)| other != name);
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Returns the value of a variable. An empty value counts as unset: shells and unit files leave
    /// those behind.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value.as_os_str())
            .filter(|value| !value.is_empty())
    }

    /// Returns the value of a variable as a path.
    pub fn get_path(&self, name: &str) -> Option<&Path> {
        self.get(name).map(Path::new)
    }

    /// Returns the value of an XDG variable: the specification says to ignore relative paths.
    pub fn get_absolute(&self, name: &str) -> Option<&Path> {
        self.get_path(name).filter(|path| path.is_absolute())
    }

    /// Returns the paths of credentials according to `CREDENTIAL_VARIABLES`. A value may be a
    /// list. Relative paths depend on the directory in which a program is started, and are left
    /// out.
    pub fn credential_paths(&self) -> Vec<(&'static str, PathBuf)> {
        let paths = |name: &'static str| {
            let value = self.get(name).into_iter();
            let candidates = value.flat_map(|value| {
                [PathBuf::from(value)].into_iter().chain(std::env::split_paths(value))
            });
            // A path that no file can have hides nothing, and would make every run fail.
            let is_path = |path: &PathBuf| {
                path.is_absolute() && path.to_str().is_some_and(|text| text.len() < 4096)
            };
            // Without a trailing slash, which would make a file a directory.
            candidates.filter(is_path).map(move |path| (name, path.components().collect()))
        };
        let mut credentials: Vec<_> =
            CREDENTIAL_VARIABLES.iter().flat_map(|name| paths(name)).collect();
        credentials.dedup();
        credentials
    }

    /// Returns the value of a variable as text.
    pub fn get_text(&self, name: &str) -> Result<Option<String>> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.to_str() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(Error::invalid_arguments(format!("{name} is not valid UTF-8"))),
            },
        }
    }

    /// Returns the value of a variable as a boolean.
    pub fn get_bool(&self, name: &str) -> Result<Option<bool>> {
        self.get(name).map(|value| parse_bool(name, value)).transpose()
    }

    /// Returns a switch whose name may be written in any case. Two spellings that disagree are an
    /// error, because either choice could be the wrong one.
    pub fn get_bool_any_case(&self, name: &str) -> Result<Option<bool>> {
        let mut found = None;
        for (other, value) in &self.variables {
            if !other.as_bytes().eq_ignore_ascii_case(name.as_bytes()) || value.is_empty() {
                continue;
            }
            let value = parse_bool(name, value)?;
            if found.is_some_and(|earlier| earlier != value) {
                return Err(Error::invalid_arguments(format!(
                    "{name} is set twice in different cases, to different values"
                ))
                .with_hint(format!("Keep one {name}.")));
            }
            found = Some(value);
        }
        Ok(found)
    }
}

fn parse_bool(name: &str, value: &OsStr) -> Result<bool> {
    let text = value.to_string_lossy().trim().to_ascii_lowercase();
    match text.as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Error::invalid_arguments(format!("{name} is neither true nor false"))
            .with_hint(format!("Set {name} to true or false."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> ProcessEnv {
        ProcessEnv::new(pairs.iter().copied(), "/")
    }

    #[test]
    fn names_in_the_table_are_unique() {
        for (at, variable) in VARIABLES.iter().enumerate() {
            assert!(
                VARIABLES[..at].iter().all(|other| other.name != variable.name),
                "{}",
                variable.name
            );
        }
    }

    #[test]
    fn every_variable_is_documented() {
        let page = include_str!("../../../../docs/config.md");
        let names = VARIABLES
            .iter()
            .map(|variable| variable.name)
            .chain(CREDENTIAL_VARIABLES.iter().copied());
        let missing: Vec<&str> =
            names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn places_of_credentials_are_absolute_and_lists_are_taken_apart() {
        let env = env(&[
            ("KUBECONFIG", "/a/one:/b/two::three"),
            ("NETRC", "netrc"),
            ("CARGO_HOME", "/c"),
            ("OTHER", "/d"),
        ]);
        let found = env.credential_paths();
        for path in [("CARGO_HOME", "/c"), ("KUBECONFIG", "/a/one"), ("KUBECONFIG", "/b/two")] {
            assert!(found.contains(&(path.0, PathBuf::from(path.1))), "{found:?}");
        }
        assert!(
            found
                .iter()
                .all(|(name, path)| ["CARGO_HOME", "KUBECONFIG"].contains(name)
                    && path.is_absolute())
        );
    }

    #[test]
    fn a_switch_is_true_or_false_and_nothing_in_between() {
        for (text, expected) in [
            ("true", true),
            ("1", true),
            ("Yes", true),
            ("0", false),
            ("FALSE", false),
            ("off", false),
        ] {
            assert_eq!(
                env(&[("MCP_AUTH_ENABLED", text)]).get_bool(MCP_AUTH_ENABLED).unwrap(),
                Some(expected),
                "{text}"
            );
        }
        assert_eq!(env(&[("MCP_AUTH_ENABLED", "")]).get_bool(MCP_AUTH_ENABLED).unwrap(), None);
        let error = env(&[("MCP_AUTH_ENABLED", "treu")]).get_bool(MCP_AUTH_ENABLED).unwrap_err();
        assert!(error.message().contains("MCP_AUTH_ENABLED"), "{error}");
    }

    #[test]
    fn the_surface_switch_is_found_in_any_case_but_must_not_contradict_itself() {
        let found = |pairs: &[(&str, &str)]| env(pairs).get_bool_any_case(ENABLE_SURFACE);
        assert_eq!(found(&[]).unwrap(), None);
        assert_eq!(found(&[("enable_mcp_server_surface", "0")]).unwrap(), Some(false));
        assert_eq!(
            found(&[("Enable_Mcp_Server_Surface", "1"), ("ENABLE_MCP_SERVER_SURFACE", "true")])
                .unwrap(),
            Some(true)
        );
        assert!(
            found(&[("enable_mcp_server_surface", "0"), ("ENABLE_MCP_SERVER_SURFACE", "1")])
                .is_err()
        );
    }
}
