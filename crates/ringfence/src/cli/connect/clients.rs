//! The clients: their files, and what each needs to reach the server.
//!
//! Shapes follow the clients' own documentation, and `make connect-clients` has the real programs
//! of Codex, Claude Code, Gemini and opencode read back what is written here.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::client_file::FileLocation;
use super::document::ConfigFormat;
use super::setting::{ClientSetting, WantedValue};
use crate::base::{Error, Result};
use crate::config::{BUILT_IN_TOOLS, ProcessEnv};

/// Name of our entry in every client.
pub const ENTRY_NAME: &str = "ringfence";
/// Variable with the token for a server on the network. No token is ever written to a file.
pub const TOKEN_VARIABLE: &str = "RINGFENCE_TOKEN";
/// Longer than any command that a model waits for.
const CALL_TIMEOUT_MS: u64 = 600_000;
const START_TIMEOUT_SECS: u64 = 20;

/// Program that can be connected. The order is that of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ClientName {
    Codex,
    Claude,
    Cursor,
    Vscode,
    Gemini,
    Opencode,
    Zed,
}

/// How a client reaches the server, and what else is asked for.
pub struct ConnectRequest {
    /// Absolute path of our executable, or the package runner that starts it and its words.
    pub launch: Vec<String>,
    /// Address of a server on the network, instead of one that the client starts.
    pub http: Option<String>,
    pub replace_shell: bool,
    /// This version of Codex ignores the approval mode of the server; each tool is named.
    pub names_tools: bool,
}

/// Edits of one file.
pub struct FilePlan {
    pub location: FileLocation,
    pub format: ConfigFormat,
    /// Path of our entry; everything in it is ours.
    pub entry: Option<Vec<String>>,
    /// Settings in our entry.
    pub entry_settings: Vec<ClientSetting>,
    /// Settings elsewhere in the file, which the user may have made before.
    pub shared_settings: Vec<ClientSetting>,
}

impl ClientName {
    /// Returns the word for the command line.
    pub fn word(self) -> &'static str {
        match self {
            ClientName::Codex => "codex",
            ClientName::Claude => "claude",
            ClientName::Cursor => "cursor",
            ClientName::Vscode => "vscode",
            ClientName::Gemini => "gemini",
            ClientName::Opencode => "opencode",
            ClientName::Zed => "zed",
        }
    }

    /// Returns the name for people.
    pub fn title(self) -> &'static str {
        match self {
            ClientName::Codex => "Codex",
            ClientName::Claude => "Claude Code",
            ClientName::Cursor => "Cursor",
            ClientName::Vscode => "VS Code",
            ClientName::Gemini => "Gemini CLI",
            ClientName::Opencode => "opencode",
            ClientName::Zed => "Zed",
        }
    }

    /// Returns the names of the client's program.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            ClientName::Codex => &["codex"],
            ClientName::Claude => &["claude"],
            ClientName::Cursor => &["cursor", "cursor-agent"],
            ClientName::Vscode => &["code", "code-insiders"],
            ClientName::Gemini => &["gemini"],
            ClientName::Opencode => &["opencode"],
            ClientName::Zed => &["zed", "zeditor"],
        }
    }

    /// Returns whether a setting can turn off the client's own shell and editing tools.
    pub fn can_replace_shell(self) -> bool {
        use ClientName::{Claude, Codex, Gemini, Opencode};
        matches!(self, Codex | Claude | Gemini | Opencode)
    }

    /// Returns the files of this client that name servers, for the user or for a project.
    pub fn server_files(self, project: bool, env: &ProcessEnv) -> Result<Vec<FileLocation>> {
        let paths: &[&'static str] = match self {
            ClientName::Codex => &[".codex/config.toml"],
            ClientName::Claude => &[".mcp.json"],
            ClientName::Cursor => &[".cursor/mcp.json"],
            ClientName::Vscode => &[".vscode/mcp.json"],
            ClientName::Gemini => &[".gemini/settings.json"],
            ClientName::Opencode => &["opencode.jsonc", "opencode.json"],
            ClientName::Zed => &[".zed/settings.json"],
        };
        if project {
            return paths.iter().copied().map(|path| project_file(path, env)).collect();
        }
        let config = || config_dir(env);
        let files = match self {
            ClientName::Codex => vec![codex_home(env)?.join("config.toml")],
            ClientName::Claude => match env.get_absolute("CLAUDE_CONFIG_DIR") {
                Some(dir) => vec![dir.join(".claude.json")],
                None => vec![home_dir(env)?.join(".claude.json")],
            },
            ClientName::Cursor => vec![home_dir(env)?.join(".cursor/mcp.json")],
            ClientName::Vscode if cfg!(target_os = "macos") => {
                vec![home_dir(env)?.join("Library/Application Support/Code/User/mcp.json")]
            }
            ClientName::Vscode => vec![config()?.join("Code/User/mcp.json")],
            ClientName::Gemini => {
                let home = env.get_absolute("GEMINI_CLI_HOME").map(PathBuf::from);
                vec![home.map_or_else(|| home_dir(env), Ok)?.join(".gemini/settings.json")]
            }
            ClientName::Opencode => paths
                .iter()
                .map(|path| Ok(config()?.join("opencode").join(path)))
                .collect::<Result<_>>()?,
            ClientName::Zed => vec![config()?.join("zed/settings.json")],
        };
        Ok(files.into_iter().map(FileLocation::User).collect())
    }

    /// Returns the format of the file that names servers.
    pub fn server_format(self) -> ConfigFormat {
        match self {
            ClientName::Codex => ConfigFormat::Toml,
            ClientName::Claude => ConfigFormat::Json,
            _ => ConfigFormat::JsonWithComments,
        }
    }

    /// Returns the path of our entry in that file.
    pub fn entry_path(self) -> [&'static str; 2] {
        let table = match self {
            ClientName::Codex => "mcp_servers",
            ClientName::Claude | ClientName::Cursor | ClientName::Gemini => "mcpServers",
            ClientName::Vscode => "servers",
            ClientName::Opencode => "mcp",
            ClientName::Zed => "context_servers",
        };
        [table, ENTRY_NAME]
    }

    /// Returns the edits of all files of this client; `server_file` is the one that names servers.
    pub fn plan_files(
        self,
        request: &ConnectRequest,
        server_file: FileLocation,
        env: &ProcessEnv,
    ) -> Result<Vec<FilePlan>> {
        let is_project = matches!(server_file, FileLocation::Project { .. });
        let entry = self.entry_path();
        let mut plans = vec![FilePlan {
            location: server_file,
            format: self.server_format(),
            entry: Some(entry.map(str::to_owned).to_vec()),
            entry_settings: self.entry_settings(request, is_project),
            shared_settings: self.shared_settings(request),
        }];
        if self == ClientName::Claude {
            let location = match (is_project, env.get_absolute("CLAUDE_CONFIG_DIR")) {
                (true, _) => project_file(".claude/settings.json", env)?,
                (_, Some(dir)) => FileLocation::User(dir.join("settings.json")),
                _ => FileLocation::User(home_dir(env)?.join(".claude/settings.json")),
            };
            plans.push(FilePlan {
                location,
                format: ConfigFormat::Json,
                entry: None,
                entry_settings: Vec::new(),
                shared_settings: claude_permissions(request),
            });
        }
        Ok(plans)
    }

    fn entry_settings(self, request: &ConnectRequest, is_project: bool) -> Vec<ClientSetting> {
        let mut settings = match &request.http {
            None => self.program_settings(&request.launch, is_project),
            Some(url) => self.remote_settings(url),
        };
        settings.extend(self.limit_settings(request));
        settings
    }

    /// Returns the settings for a server that the client starts.
    fn program_settings(self, launch: &[String], is_project: bool) -> Vec<ClientSetting> {
        let other_transport: &[&str] = match self {
            ClientName::Codex => {
                &["url", "bearer_token_env_var", "http_headers", "env_http_headers"]
            }
            ClientName::Gemini => &["httpUrl", "url", "headers"],
            _ => &["url", "headers"],
        };
        let mut settings = self.missing_keys(other_transport);
        let serve_command = |leading: &[String]| WantedValue::ServeCommand {
            leading: leading.to_vec(),
            default: self.serve_words(is_project),
        };
        let (program, words) = launch.split_first().unzip();
        match self {
            ClientName::Opencode => {
                settings.push(self.fixed_key("type", json!("local")));
                settings.push(self.entry_key("command", serve_command(launch)));
                return settings;
            }
            ClientName::Claude | ClientName::Cursor | ClientName::Vscode => {
                settings.push(self.fixed_key("type", json!("stdio")));
            }
            ClientName::Codex | ClientName::Gemini | ClientName::Zed => {}
        }
        settings.push(self.fixed_key("command", json!(program)));
        settings.push(self.entry_key("args", serve_command(words.unwrap_or_default())));
        if self == ClientName::Codex {
            // Codex passes only a few variables to a server; its rules are found by this one.
            let variable = WantedValue::ListItem(json!("CODEX_HOME"));
            settings.push(self.entry_key("env_vars", variable));
        }
        settings
    }

    /// Returns the settings for a server on the network.
    fn remote_settings(self, url: &str) -> Vec<ClientSetting> {
        let other_transport: &[&str] = match self {
            ClientName::Codex => &["command", "args", "env", "env_vars", "cwd"],
            ClientName::Gemini => &["command", "args", "env", "cwd", "url"],
            ClientName::Opencode => &["command", "environment"],
            ClientName::Claude | ClientName::Vscode => &["command", "args", "env"],
            // They tell the transport by its keys.
            ClientName::Cursor | ClientName::Zed => &["command", "args", "env", "type"],
        };
        let mut settings = self.missing_keys(other_transport);
        match self {
            ClientName::Claude | ClientName::Vscode => {
                settings.push(self.fixed_key("type", json!("http")));
            }
            ClientName::Opencode => settings.push(self.fixed_key("type", json!("remote"))),
            _ => {}
        }
        let key = if self == ClientName::Gemini { "httpUrl" } else { "url" };
        settings.push(self.fixed_key(key, json!(url)));
        let token = match (self, self.token_reference()) {
            (ClientName::Codex, _) => Some(("bearer_token_env_var", json!(TOKEN_VARIABLE))),
            (_, Some(token)) => {
                Some(("headers", json!({"Authorization": format!("Bearer {token}")})))
            }
            (_, None) => None,
        };
        settings.extend(token.map(|(key, value)| self.entry_key(key, WantedValue::Default(value))));
        settings
    }

    fn entry_key(self, key: &str, wanted: WantedValue) -> ClientSetting {
        ClientSetting::new(&self.entry_path(), key, wanted)
    }

    fn fixed_key(self, key: &str, value: Value) -> ClientSetting {
        self.entry_key(key, WantedValue::Fixed(value))
    }

    /// Returns the absence of keys that belong to another transport: Codex refuses a mixture.
    fn missing_keys(self, keys: &[&str]) -> Vec<ClientSetting> {
        keys.iter().map(|key| self.entry_key(key, WantedValue::Missing)).collect()
    }

    /// Returns the timeouts, and the settings that leave approval to the server.
    fn limit_settings(self, request: &ConnectRequest) -> Vec<ClientSetting> {
        let default = |key: &str, value| self.entry_key(key, WantedValue::Default(value));
        match self {
            ClientName::Codex => {
                let mut settings = vec![
                    default("startup_timeout_sec", json!(START_TIMEOUT_SECS)),
                    default("tool_timeout_sec", json!(CALL_TIMEOUT_MS / 1000)),
                    default("default_tools_approval_mode", json!("approve")),
                ];
                if request.names_tools {
                    settings.extend(BUILT_IN_TOOLS.iter().map(|tool| {
                        let [servers, entry] = self.entry_path();
                        let table = [servers, entry, "tools", *tool];
                        let approve = WantedValue::Default(json!("approve"));
                        ClientSetting::new(&table, "approval_mode", approve)
                    }));
                }
                settings
            }
            ClientName::Gemini => {
                vec![default("timeout", json!(CALL_TIMEOUT_MS)), default("trust", json!(true))]
            }
            ClientName::Opencode => {
                vec![default("enabled", json!(true)), default("timeout", json!(CALL_TIMEOUT_MS))]
            }
            _ => Vec::new(),
        }
    }

    fn shared_settings(self, request: &ConnectRequest) -> Vec<ClientSetting> {
        if !request.replace_shell {
            return Vec::new();
        }
        let fixed =
            |table, key, value| ClientSetting::new(&[table], key, WantedValue::Fixed(value));
        match self {
            ClientName::Codex => vec![fixed("features", "shell_tool", json!(false))],
            ClientName::Gemini => ["run_shell_command", "write_file", "replace"]
                .map(|tool| {
                    ClientSetting::new(&["tools"], "exclude", WantedValue::ListItem(json!(tool)))
                })
                .to_vec(),
            // `edit` covers every tool that changes files.
            ClientName::Opencode => {
                ["bash", "edit"].map(|tool| fixed("permission", tool, json!("deny"))).to_vec()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the words after our executable. Editors start the servers of a project elsewhere,
    /// and replace this variable.
    fn serve_words(self, is_project: bool) -> Vec<String> {
        let words: &[&str] = match self {
            ClientName::Cursor | ClientName::Vscode if is_project => {
                &["serve", "--workspace", "${workspaceFolder}"]
            }
            _ => &["serve"],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Returns the token's variable as the client spells it in a header; `None` if it reads none.
    fn token_reference(self) -> Option<String> {
        match self {
            ClientName::Claude | ClientName::Gemini => Some(format!("${{{TOKEN_VARIABLE}}}")),
            ClientName::Cursor | ClientName::Vscode => Some(format!("${{env:{TOKEN_VARIABLE}}}")),
            ClientName::Opencode => Some(format!("{{env:{TOKEN_VARIABLE}}}")),
            ClientName::Codex | ClientName::Zed => None,
        }
    }
}

fn claude_permissions(request: &ConnectRequest) -> Vec<ClientSetting> {
    let item = |list, rule: &str| {
        ClientSetting::new(&["permissions"], list, WantedValue::ListItem(json!(rule)))
    };
    let mut settings = vec![item("allow", "mcp__ringfence")];
    if request.replace_shell {
        settings.extend(["Bash", "Edit", "Write"].map(|tool| item("deny", tool)));
    }
    settings
}

fn project_file(path: &'static str, env: &ProcessEnv) -> Result<FileLocation> {
    let project = env.cwd.clone().ok_or_else(|| {
        Error::invalid_arguments("the current directory does not exist")
            .with_hint("Run the command in your project's directory.")
    })?;
    Ok(FileLocation::Project { project, path })
}

fn home_dir(env: &ProcessEnv) -> Result<PathBuf> {
    env.get_absolute("HOME").map(PathBuf::from).ok_or_else(|| {
        Error::invalid_arguments("HOME is not set to an absolute path")
            .with_hint("Set HOME, or use `--project` in your project's directory.")
    })
}

fn codex_home(env: &ProcessEnv) -> Result<PathBuf> {
    match env.get_absolute("CODEX_HOME") {
        Some(home) => Ok(home.to_owned()),
        None => Ok(home_dir(env)?.join(".codex")),
    }
}

fn config_dir(env: &ProcessEnv) -> Result<PathBuf> {
    match env.get_absolute("XDG_CONFIG_HOME") {
        Some(dir) => Ok(dir.to_owned()),
        None => Ok(home_dir(env)?.join(".config")),
    }
}
