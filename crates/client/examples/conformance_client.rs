//! Client that the MCP conformance suite starts, once for each scenario:
//!
//! ```text
//! MCP_CONFORMANCE_SCENARIO=tools_call conformance_client URL
//! ```
//!
//! The suite appends the address of its server and names the scenario in the environment, where
//! `MCP_CONFORMANCE_CONTEXT` may hold its data as JSON. Run it with `conformance/client.sh`.
// This program's output is its purpose.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use futures::future::{BoxFuture, try_join_all};
use ringfence_client::auth::AuthProvider;
use ringfence_client::config::{RemoteTransport, ServerConfig, TransportConfig, TrustLevel};
use ringfence_client::oauth::{
    ConfiguredClient, FileCredentialStore, LoginOptions, OAuthProvider, OAuthSettings, SecretText,
    login,
};
use ringfence_client::{
    CallHandler, ClientError, ClientOptions, ClientProfile, ErrorKind, Question, QuestionAnswer,
    ServerClient, ToolCall, ToolCatalog,
};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::Url;

/// Logins in one scenario. A server that is never content must not cause any number of them.
const MAX_LOGINS: usize = 3;
/// Client id metadata document that the suite knows.
const CLIENT_METADATA_URL: &str = "https://conformance-test.local/client-metadata.json";

type DriverResult<T> = std::result::Result<T, Box<dyn Error>>;

/// Accepts every form as it is offered, as a user does who only presses "OK".
struct AcceptingUser;

impl CallHandler for AcceptingUser {
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        let answer = |question: Question| {
            println!("question: {}", question.method);
            let content = fill_form(&question.params["requestedSchema"]);
            QuestionAnswer::Result(json!({"action": "accept", "content": content}))
        };
        Box::pin(async move { questions.into_iter().map(answer).collect() })
    }
}

/// Fills in the defaults of a form, and `true` where a box has none.
fn fill_form(schema: &Value) -> Map<String, Value> {
    let mut content = Map::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(default) = field.get("default") {
            content.insert(name.clone(), default.clone());
        } else if field["type"] == "boolean" {
            content.insert(name.clone(), Value::from(true));
        }
    }
    content
}

fn call_everything(catalog: &ToolCatalog) -> Vec<(String, Value)> {
    catalog.tools.keys().map(|name| (name.clone(), json!({}))).collect()
}

/// Returns the tools that a scenario wants to be called, with their arguments.
fn plan_calls(
    scenario: &str,
    context: &Value,
    catalog: &ToolCatalog,
) -> DriverResult<Vec<(String, Value)>> {
    let calls = match scenario {
        "initialize" | "request-metadata" | "json-schema-ref-no-deref" => Vec::new(),
        "tools_call" => vec![("add_numbers".to_owned(), json!({"a": 5, "b": 3}))],
        "elicitation-sep1034-client-defaults"
        | "http-standard-headers"
        | "sep-2322-client-request-state"
        | "sse-retry" => call_everything(catalog),
        _ if scenario.starts_with("auth/") => call_everything(catalog),
        // Every tool that the client offers, so that the suite sees which ones it left out.
        "http-invalid-tool-headers" => {
            let arguments = json!({"region": "eu", "value": "eu", "field1": "a", "field2": "b"});
            catalog.tools.keys().map(|name| (name.clone(), arguments.clone())).collect()
        }
        "http-custom-headers" => context["toolCalls"]
            .as_array()
            .ok_or("the context names no calls")?
            .iter()
            .map(|call| {
                (call["name"].as_str().unwrap_or_default().to_owned(), call["arguments"].clone())
            })
            .collect(),
        "json-schema-2020-12-preservation" => {
            let tool =
                catalog.tools.get("json_schema_2020_12_tool").ok_or("the tool is missing")?;
            let definition: Value = serde_json::from_str(&tool.text)?;
            vec![("json_schema_echo".to_owned(), json!({"schema": definition["inputSchema"]}))]
        }
        other => return Err(format!("the scenario `{other}` is not supported").into()),
    };
    Ok(calls)
}

/// Lists the tools and makes the calls of the scenario, all at the same time.
async fn run_scenario(client: &ServerClient, scenario: &str, context: &Value) -> DriverResult<()> {
    let catalog = client.list_tools().await?;
    println!("tools: {}", catalog.tools.len());
    for reason in &catalog.rejected {
        println!("left out: {reason}");
    }
    let calls = plan_calls(scenario, context, &catalog)?;
    let calls = calls.into_iter().map(|(tool, arguments)| async move {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let call = ToolCall {
            tool,
            arguments,
            timeout: None,
            is_read_only: false,
            runs_as_task: false,
            connection: None,
            is_repeated: false,
        };
        let result = client.call_tool(&call, &AcceptingUser).await?;
        println!("{}: {}", call.tool, result.get());
        Ok::<(), ClientError>(())
    });
    try_join_all(calls).await?;
    Ok(())
}

/// Fetches a page of a server on loopback and returns where it redirects to.
async fn fetch_page(url: &Url) -> DriverResult<Option<Url>> {
    let address = url.socket_addrs(|| None)?;
    let mut socket = TcpStream::connect(&*address).await?;
    let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut page = String::new();
    socket.read_to_string(&mut page).await?;
    let location = page.lines().take_while(|line| !line.is_empty()).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("location").then(|| value.trim())
    });
    Ok(location.map(|location| url.join(location)).transpose()?)
}

/// Opens an address as a browser does whose user agrees to everything.
async fn browse(mut url: Url) -> DriverResult<()> {
    while let Some(next) = fetch_page(&url).await? {
        url = next;
    }
    Ok(())
}

async fn log_in(settings: &OAuthSettings, store: &FileCredentialStore) -> Result<(), ClientError> {
    let open_url = |url: &Url| {
        let url = url.clone();
        tokio::spawn(async move {
            if let Err(error) = browse(url).await {
                println!("browser: {error}");
            }
        });
    };
    let status = login(settings, store, &LoginOptions::default(), &open_url).await?;
    println!("logged in: {status:?}");
    Ok(())
}

fn oauth_settings(url: &Url, context: &Value) -> DriverResult<OAuthSettings> {
    let text = |key: &str| context[key].as_str().map(str::to_owned);
    Ok(OAuthSettings {
        configured_client: text("client_id").map(|client_id| ConfiguredClient {
            client_id,
            client_secret: text("client_secret").map(SecretText::new),
            issuer: text("issuer"),
        }),
        client_metadata_url: Some(CLIENT_METADATA_URL.parse()?),
        ..OAuthSettings::new("conformance", url.clone(), "Log in.")
    })
}

/// Runs the scenario, and logs in when the server wants it.
async fn run_with_logins(
    client: &ServerClient,
    settings: &OAuthSettings,
    store: &FileCredentialStore,
    scenario: &str,
    context: &Value,
) -> DriverResult<()> {
    let mut logins = 0;
    loop {
        let error = match run_scenario(client, scenario, context).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let wants_login = error
            .downcast_ref::<ClientError>()
            .is_some_and(|error| error.kind() == ErrorKind::Unauthenticated);
        if !wants_login || logins == MAX_LOGINS {
            return Err(error);
        }
        println!("refused: {error}");
        logins += 1;
        log_in(settings, store).await?;
    }
}

#[tokio::main]
async fn main() -> DriverResult<()> {
    let url: Url = std::env::args().nth(1).ok_or("name the address of a server")?.parse()?;
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO")?;
    let context = match std::env::var("MCP_CONFORMANCE_CONTEXT") {
        Ok(context) => serde_json::from_str(&context)?,
        Err(_) => Value::Null,
    };
    let settings = oauth_settings(&url, &context)?;
    let directory = std::env::temp_dir().join(format!("conformance-{}", std::process::id()));
    let store = FileCredentialStore::new(&directory);
    let provider = OAuthProvider::new([settings.clone()], Arc::new(store.clone()));
    let provider: Arc<dyn AuthProvider> = Arc::new(provider);
    let config = ServerConfig {
        trust: TrustLevel::Untrusted,
        transport: TransportConfig::Http(RemoteTransport {
            url,
            headers: BTreeMap::new(),
            auth_provider_id: None,
        }),
    };
    let profile = ClientProfile { elicitation: true, ..ClientProfile::default() };
    let options = ClientOptions { profile, ..ClientOptions::default() };
    let client = ServerClient::new("conformance", config, options, Some(provider));
    let outcome = run_with_logins(&client, &settings, &store, &scenario, &context).await;
    client.close().await;
    if directory.exists() {
        std::fs::remove_dir_all(&directory)?;
    }
    outcome
}
