//! Finds out which era a server speaks, and greets it in that.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::error::{ClientError, ErrorKind, Result, too_long};
use crate::limits::Limits;
use crate::message::RawJson;

/// The version without sessions.
pub const STATELESS_VERSION: &str = "2026-07-28";
/// The newest version with `initialize`.
const INITIALIZED_VERSION: &str = "2025-11-25";
/// All versions with `initialize`.
const INITIALIZED_VERSIONS: [&str; 4] =
    ["2024-11-05", "2025-03-26", "2025-06-18", INITIALIZED_VERSION];
/// Code for a version that the server does not speak.
const UNSUPPORTED_VERSION: i64 = -32022;

/// Family of protocol versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2024-11-05 to 2025-11-25: a session begins with `initialize`.
    Initialized,
    /// 2026-07-28: each request stands alone.
    Stateless,
}

/// What this client can do for a server, and how it names itself.
#[derive(Debug, Clone)]
pub struct ClientProfile {
    pub name: String,
    pub version: String,
    /// Someone can be asked.
    pub elicitation: bool,
    /// A model can be asked.
    pub sampling: bool,
}

impl Default for ClientProfile {
    fn default() -> ClientProfile {
        ClientProfile {
            name: "ringfence".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            elicitation: false,
            sampling: false,
        }
    }
}

impl ClientProfile {
    fn capabilities(&self) -> Value {
        let mut capabilities = json!({"roots": {}});
        if self.elicitation {
            capabilities["elicitation"] = json!({"form": {}, "url": {}});
        }
        if self.sampling {
            capabilities["sampling"] = json!({});
        }
        capabilities
    }

    fn client_info(&self) -> Value {
        json!({"name": self.name, "version": self.version})
    }

    /// Returns the `_meta` of a request of 2026-07-28.
    pub(crate) fn request_meta(&self) -> serde_json::Map<String, Value> {
        let mut meta = serde_json::Map::new();
        let mut set = |key: &str, value| {
            meta.insert(format!("io.modelcontextprotocol/{key}"), value);
        };
        set("protocolVersion", STATELESS_VERSION.into());
        set("clientInfo", self.client_info());
        set("clientCapabilities", self.capabilities());
        meta
    }
}

/// What a server said about itself.
#[derive(Debug, Clone)]
pub struct ServerGreeting {
    pub era: Era,
    pub version: String,
    /// `serverInfo`, as it came.
    pub server_info: Value,
    pub capabilities: Value,
    pub instructions: Option<String>,
}

impl ServerGreeting {
    /// Returns whether the server reports changes of its tool list.
    pub fn reports_list_changes(&self) -> bool {
        self.capabilities["tools"]["listChanged"] == true
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct GreetingFields {
    protocol_version: Option<String>,
    supported_versions: Vec<String>,
    server_info: Value,
    capabilities: Value,
    instructions: Option<String>,
}

/// Longest answer to a greeting. It is parsed and kept, which takes many times its size.
const MAX_GREETING_BYTES: usize = 256 << 10;

/// Greets a server. A server that does not know `server/discover` answers it with some error, or
/// with nothing at all; it then gets `initialize` on the same connection.
pub(crate) async fn greet_server(
    connection: &Connection,
    profile: &ClientProfile,
    limits: &Limits,
) -> Result<ServerGreeting> {
    let within = |wait: Duration, what: &'static str| {
        move |_| {
            ClientError::new(
                ErrorKind::DeadlineExceeded,
                format!("the server did not answer `{what}` within {wait:?}"),
            )
            .with_start_timeout()
        }
    };
    let mut late_discovery = None;
    if connection.may_be_stateless() {
        let params = |_| json!({"_meta": profile.request_meta()});
        let discover = || Box::pin(connection.request("server/discover", None, params));
        let mut discovery = discover();
        let mut discovered = tokio::time::timeout(limits.discover_timeout, &mut discovery).await;
        // Behind one address there may be servers of several versions. One that refuses our version
        // and names it as supported is asked once more.
        if let Ok(Err(error)) = &discovered
            && names_supported_version(error, &[STATELESS_VERSION])
        {
            discovery = discover();
            discovered = tokio::time::timeout(limits.discover_timeout, &mut discovery).await;
        }
        match discovered {
            Ok(Ok(answer)) => {
                if let Some(greeting) = read_discovery(&answer)? {
                    return Ok(greeting);
                }
            }
            Ok(Err(error)) => check_discovery_error(error)?,
            // Silence, or a slow start.
            Err(_) => late_discovery = Some(discovery),
        }
    }
    let wait = limits.handshake_timeout;
    let initialize = connection.request("initialize", None, |_| {
        json!({
            "protocolVersion": INITIALIZED_VERSION,
            "capabilities": profile.capabilities(),
            "clientInfo": profile.client_info(),
        })
    });
    let initialize = tokio::time::timeout(wait, initialize);
    tokio::pin!(initialize);
    let mut discovered = None;
    let initialized = loop {
        tokio::select! {
            biased;
            answer = wait_for(&mut late_discovery), if discovered.is_none() => {
                late_discovery = None;
                discovered = Some(answer);
            }
            initialized = &mut initialize => break initialized,
        }
    };
    let initialized = initialized.map_err(within(wait, "initialize")).and_then(|answer| answer);
    let answer = match (initialized, discovered) {
        (Ok(answer), _) => answer,
        // The server speaks 2026-07-28 only, and took its time to start.
        (Err(error), Some(Ok(answer))) => return read_discovery(&answer)?.ok_or(error),
        (Err(error), _) => return Err(error),
    };
    check_length(&answer)?;
    let fields: GreetingFields = answer.parse()?;
    let version = fields.protocol_version.clone().unwrap_or_default();
    if !INITIALIZED_VERSIONS.contains(&version.as_str()) {
        return Err(ClientError::new(
            ErrorKind::BadResponse,
            format!("the server speaks version `{}`, which is not known", shorten(&version)),
        ));
    }
    let greeting = fields.into_greeting(Era::Initialized, version);
    connection.set_protocol(greeting.era, &greeting.version);
    tokio::time::timeout(wait, connection.notify("notifications/initialized", json!({})))
        .await
        .map_err(within(wait, "notifications/initialized"))??;
    Ok(greeting)
}

/// Waits for a future, or without end if there is none.
async fn wait_for<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Reads the answer to `server/discover`. Returns `None` if the server speaks older versions only.
fn read_discovery(answer: &RawJson) -> Result<Option<ServerGreeting>> {
    check_length(answer)?;
    let fields: GreetingFields = answer.parse().unwrap_or_default();
    let is_stateless = fields.supported_versions.iter().any(|version| version == STATELESS_VERSION);
    let version = STATELESS_VERSION.to_owned();
    Ok(is_stateless.then(|| fields.into_greeting(Era::Stateless, version)))
}

fn check_length(answer: &RawJson) -> Result<()> {
    match answer.get().len() > MAX_GREETING_BYTES {
        true => Err(too_long(MAX_GREETING_BYTES)),
        false => Ok(()),
    }
}

/// Passes errors that are not about the method: those of a server that cannot be reached, and those
/// of 2026-07-28 itself.
fn check_discovery_error(error: ClientError) -> Result<()> {
    match (error.kind(), error.rpc()) {
        (ErrorKind::ServerError, Some(rpc)) if rpc.code == UNSUPPORTED_VERSION => {
            match names_supported_version(&error, &INITIALIZED_VERSIONS) {
                true => Ok(()),
                false => Err(error),
            }
        }
        (ErrorKind::ServerError | ErrorKind::BadResponse | ErrorKind::TooLarge, _) => Ok(()),
        // An HTTP status such as 400 or 404 without a JSON body.
        (ErrorKind::Unavailable, _) if error.is_http_status() => Ok(()),
        _ => Err(error),
    }
}

/// Returns whether a server refused a version and names one of these as supported instead.
fn names_supported_version(error: &ClientError, versions: &[&str]) -> bool {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct VersionData {
        supported: Vec<String>,
    }
    let rpc = error.rpc().filter(|rpc| rpc.code == UNSUPPORTED_VERSION);
    let data = rpc.and_then(|rpc| serde_json::from_str(rpc.data.as_deref()?).ok());
    let VersionData { supported } = data.unwrap_or_default();
    supported.iter().any(|version| versions.contains(&version.as_str()))
}

fn shorten(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

impl GreetingFields {
    fn into_greeting(self, era: Era, version: String) -> ServerGreeting {
        ServerGreeting {
            era,
            version,
            server_info: self.server_info,
            capabilities: self.capabilities,
            instructions: self.instructions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RpcError;

    #[test]
    fn only_versions_in_the_list_of_supported_ones_count() {
        let refuse = |code, data: &str| {
            let (message, data) = (String::new(), Some(data.to_owned()));
            ClientError::from_rpc(RpcError { code, message, data })
        };
        let both = r#"{"supported":["2026-07-28","2025-11-25"],"requested":"2026-07-28"}"#;
        let older = r#"{"supported":["2025-06-18"],"requested":"2026-07-28"}"#;
        let none = r#"{"supported":["2030-01-01"],"requested":"2026-07-28"}"#;
        for (data, is_stateless, is_initialized) in [
            (both, true, true),
            (older, false, true),
            (none, false, false),
            ("{}", false, false),
            ("[]", false, false),
            (r#"{"supported":"2026-07-28"}"#, false, false),
        ] {
            let error = refuse(UNSUPPORTED_VERSION, data);
            assert_eq!(names_supported_version(&error, &[STATELESS_VERSION]), is_stateless);
            assert_eq!(names_supported_version(&error, &INITIALIZED_VERSIONS), is_initialized);
            assert_eq!(check_discovery_error(error).is_ok(), is_initialized, "{data}");
        }
        assert!(!names_supported_version(&refuse(-32600, both), &[STATELESS_VERSION]));
    }
}
