//! The server that `ringfence tools` and `ringfence call` talk to: one that is running, by its URL,
//! or one of this binary that lives as long as the command.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use ringfence_client::config::{
    ServerConfig, StdioTransport, TransportConfig, TrustLevel, parse_config,
};
use ringfence_client::{
    ClientError, ClientOptions, ClientProfile, ErrorKind, ServerClient, ToolCatalog,
    ToolDefinition, clean_text,
};
use serde_json::{Value, json};

use crate::base::suggest::suggest_name;
use crate::base::{Error, Kind, Result};
use crate::config::ProcessEnv;
use crate::config::env::{RINGFENCE_LOG, RINGFENCE_TOKEN};
use crate::sandbox::SelfSpawner;
use crate::tools::with_underscores;

/// Id of the one server, in the configuration of the client.
const SERVER_ID: &str = "server";
/// Longest text of a server in an error.
const MAX_MESSAGE_CHARS: usize = 4_000;

/// Server to talk to.
#[derive(clap::Args)]
pub struct ServerTarget {
    /// Ask the running server at this URL, with the token in RINGFENCE_TOKEN if it is set, instead
    /// of starting one
    #[arg(long, value_name = "URL", conflicts_with_all = ["workspace", "root", "config", "upstreams", "tools"])]
    url: Option<String>,
    /// Directory the tools work in (default: the current directory)
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Directory for runtime files (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Config file to read (default: $XDG_CONFIG_HOME/ringfence/config.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Offer the tools of the MCP servers in this JSON file, too
    #[arg(long, value_name = "FILE")]
    upstreams: Option<PathBuf>,
    /// Select the built-in tools to list, as `ringfence serve` does
    #[arg(long, value_name = "core|shell|all")]
    tools: Option<String>,
}

impl ServerTarget {
    /// Returns whether the server is one that runs already.
    pub fn is_remote(&self) -> bool {
        self.url.is_some()
    }

    /// Connects, runs `work` and disconnects. `can_ask` tells the server whether someone is there to
    /// answer questions.
    pub fn run<T>(
        &self,
        can_ask: bool,
        work: impl AsyncFnOnce(&ServerClient) -> Result<T>,
    ) -> Result<T> {
        let client = self.create_client(can_ask)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::internal("cannot start the runtime").with_source(error))?;
        let result = runtime.block_on(async {
            let result = work(&client).await;
            // A server that does not end in time can be left behind by a second Ctrl-C.
            tokio::select! {
                () = client.close() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            result
        });
        // A question that was withdrawn may still read from the terminal.
        runtime.shutdown_background();
        result
    }

    fn create_client(&self, can_ask: bool) -> Result<ServerClient> {
        let transport = match &self.url {
            Some(url) => remote_transport(url, &ProcessEnv::from_process())?,
            None => TransportConfig::Stdio(StdioTransport {
                command: "ringfence".to_owned(),
                args: self.server_args()?,
                cwd: None,
                env: BTreeMap::new(),
            }),
        };
        let options = ClientOptions {
            profile: ClientProfile {
                name: "ringfence-cli".to_owned(),
                elicitation: can_ask,
                ..ClientProfile::default()
            },
            spawner: Some(std::sync::Arc::new(SelfSpawner)),
            ..ClientOptions::default()
        };
        let config = ServerConfig { trust: TrustLevel::Trusted, transport };
        Ok(ServerClient::new(SERVER_ID, config, options, None))
    }

    fn server_args(&self) -> Result<Vec<String>> {
        let mut args = vec!["serve".to_owned()];
        let paths = [
            ("--workspace", &self.workspace),
            ("--root", &self.root),
            ("--config", &self.config),
            ("--upstreams", &self.upstreams),
        ];
        for (flag, path) in paths {
            if let Some(path) = path {
                args.extend([flag.to_owned(), path_text(path)?]);
            }
        }
        if let Some(tools) = &self.tools {
            args.extend(["--tools".to_owned(), tools.clone()]);
        }
        // Warnings would stand between the results; the operator sees them where the server runs.
        if ProcessEnv::from_process().get(RINGFENCE_LOG).is_none() {
            args.extend(["--log-level".to_owned(), "error".to_owned()]);
        }
        Ok(args)
    }

    /// Converts an error of the connection to one for the person at the terminal.
    pub fn explain_error(&self, error: &ClientError) -> Error {
        let message = clean_text(error.message(), MAX_MESSAGE_CHARS);
        // There is only one server, whose id means nothing to people.
        let named = format!("server `{SERVER_ID}`");
        let message = message.strip_prefix(&format!("{named}: ")).unwrap_or(&message);
        let message = message.replace(&named, "server");
        let kind = match error.kind() {
            ErrorKind::Unauthenticated => Kind::Unauthenticated,
            ErrorKind::DeadlineExceeded => Kind::DeadlineExceeded,
            ErrorKind::TooLarge => Kind::TooLarge,
            ErrorKind::Cancelled => Kind::Cancelled,
            ErrorKind::ServerError => {
                error.rpc().map_or(Kind::Unavailable, |rpc| Kind::from_code(rpc.code))
            }
            _ => Kind::Unavailable,
        };
        let data = error.rpc().and_then(|rpc| rpc.data.as_deref());
        let data: Option<Value> = data.and_then(|text| serde_json::from_str(text).ok());
        let server_hint = data.as_ref().and_then(|data| data["hint"].as_str());
        let hint = match (kind, server_hint.or(error.hint())) {
            (Kind::Unauthenticated, _) if message.contains("403") => {
                "Without auth, a server accepts only its own user on the same machine; its log says why it refused the request.".to_owned()
            }
            (Kind::Unauthenticated, _) => {
                "Set RINGFENCE_TOKEN to a token for this server; `ringfence token` makes one with the server's secret.".to_owned()
            }
            (_, Some(hint)) => clean_text(hint, MAX_MESSAGE_CHARS),
            (_, None) if self.is_remote() => "Check the URL, and that the server runs there.".to_owned(),
            (_, None) => "The server's own messages are above.".to_owned(),
        };
        Error::new(kind, message).with_hint(hint)
    }

    /// Returns the tools of the server.
    pub async fn list_tools(&self, client: &ServerClient) -> Result<std::sync::Arc<ToolCatalog>> {
        client.list_tools().await.map_err(|error| self.explain_error(&error))
    }
}

fn path_text(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| Error::invalid_arguments("this path is not UTF-8"))?;
    Ok(text.to_owned())
}

/// Returns the transport to a running server. The token goes with every request.
fn remote_transport(url: &str, env: &ProcessEnv) -> Result<TransportConfig> {
    let mut transport = json!({"type": "http", "url": add_default_path(url)});
    if let Some(token) = env.get_text(RINGFENCE_TOKEN)? {
        warn_if_exposed(url);
        transport["headers"] = json!({"Authorization": format!("Bearer {}", token.trim())});
    }
    let config = json!({"servers": {SERVER_ID: {"trust": "trusted", "transport": transport}}});
    let parsed = parse_config(&config.to_string()).map_err(|_| {
        // The library's own error names keys of a file that does not exist.
        Error::invalid_arguments("the URL or the token is not valid").with_hint(
            "Give a URL such as http://127.0.0.1:8931/mcp, without user name, and a token of one line in RINGFENCE_TOKEN.",
        )
    })?;
    let server = parsed.servers.into_values().next();
    Ok(server.ok_or_else(|| Error::internal("the server is missing"))?.transport)
}

/// Adds the path of MCP to a URL without a path.
fn add_default_path(url: &str) -> String {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    match rest.trim_end_matches('/').contains(['/', '?', '#']) || rest.is_empty() {
        true => url.to_owned(),
        false => format!("{}/mcp", url.trim_end_matches('/')),
    }
}

/// Says that a token is sent without encryption to another machine.
fn warn_if_exposed(url: &str) {
    let host = url.strip_prefix("http://").map(|rest| rest.split('/').next().unwrap_or_default());
    let is_loopback = |host: &str| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
            host.strip_prefix(name).is_some_and(|port| port.is_empty() || port.starts_with(':'))
        })
    };
    if host.is_some_and(|host| !is_loopback(host)) {
        // If standard error is closed, there is nowhere left to report to.
        let _ = writeln!(
            std::io::stderr(),
            "warning: the token is sent unencrypted; use https, or a tunnel to the server's loopback address"
        );
    }
}

/// Finds a tool by either spelling of its name.
pub fn find_tool<'a>(catalog: &'a ToolCatalog, name: &str) -> Result<&'a ToolDefinition> {
    let matches = |other: &str| with_underscores(other) == with_underscores(name);
    let found = catalog.tools.get(name);
    found.or_else(|| catalog.tools.values().find(|tool| matches(&tool.name))).ok_or_else(|| {
        let names: Vec<&str> = catalog.tools.keys().map(String::as_str).collect();
        let hint = match suggest_name(name, &names) {
            Some(suggestion) => format!("Did you mean `{suggestion}`? `ringfence tools` lists all."),
            None => "`ringfence tools` lists them; `--tools all` adds the built-in tools that are not listed by default.".to_owned(),
        };
        Error::new(Kind::UnknownTool, format!("the server offers no tool `{name}`")).with_hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_needs_no_path_and_bad_ones_are_refused_without_the_token() {
        assert_eq!(add_default_path("http://127.0.0.1:8931"), "http://127.0.0.1:8931/mcp");
        assert_eq!(add_default_path("https://example.com/"), "https://example.com/mcp");
        assert_eq!(add_default_path("https://example.com/a/mcp"), "https://example.com/a/mcp");
        let env = ProcessEnv::new([("RINGFENCE_TOKEN", "secret-token")], "/");
        for url in ["127.0.0.1:8931", "ftp://example.com", "http://me:you@example.com/mcp"] {
            let error = remote_transport(url, &env).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArguments, "{url}");
            assert!(!error.message_chain().contains("secret-token"), "{url}");
        }
        let transport = remote_transport("http://127.0.0.1:1", &env).unwrap();
        let remote = transport.as_remote().unwrap();
        assert_eq!(remote.headers["Authorization"], "Bearer secret-token");
        let broken = ProcessEnv::new([("RINGFENCE_TOKEN", "two\nlines")], "/");
        assert!(remote_transport("http://127.0.0.1:1", &broken).is_err());
    }
}
