//! Logs in to a server with OAuth and calls its first tool:
//!
//! ```text
//! oauth_client login|call|status|logout URL DIRECTORY
//! ```
//!
//! The login is kept in a file of the directory. `login` prints the address to open in a browser.
//! Run the checks against a real authorization server with `conformance/oauth.sh`.
// This program's output is its purpose.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ringfence_client::auth::AuthProvider;
use ringfence_client::config::{RemoteTransport, ServerConfig, TransportConfig, TrustLevel};
use ringfence_client::oauth::{
    FileCredentialStore, LoginOptions, OAuthProvider, OAuthSettings, login, logout, status,
};
use ringfence_client::{
    ClientError, ClientOptions, ErrorKind, ServerClient, ToolCall, UnattendedCall,
};

const SERVER_ID: &str = "example";

async fn call_first_tool(client: &ServerClient) -> Result<String, ClientError> {
    let catalog = client.list_tools().await?;
    let tool = catalog
        .tools
        .keys()
        .next()
        .cloned()
        .ok_or_else(|| ClientError::new(ErrorKind::NotFound, "the server has no tools"))?;
    let arguments = serde_json::Map::new();
    let call = ToolCall {
        tool,
        arguments,
        timeout: None,
        is_read_only: true,
        runs_as_task: false,
        connection: None,
        is_repeated: false,
    };
    let result = client.call_tool(&call, &UnattendedCall).await?;
    Ok(result.get().to_owned())
}

async fn call(settings: OAuthSettings, store: FileCredentialStore) -> Result<String, ClientError> {
    let config = ServerConfig {
        trust: TrustLevel::Untrusted,
        transport: TransportConfig::Http(RemoteTransport {
            url: settings.server_url.clone(),
            headers: BTreeMap::new(),
            auth_provider_id: None,
        }),
    };
    let provider: Arc<dyn AuthProvider> = Arc::new(OAuthProvider::new([settings], Arc::new(store)));
    let client = ServerClient::new(SERVER_ID, config, ClientOptions::default(), Some(provider));
    let outcome = call_first_tool(&client).await;
    client.close().await;
    outcome
}

async fn run(
    command: &str,
    settings: OAuthSettings,
    store: FileCredentialStore,
) -> Result<String, ClientError> {
    match command {
        "login" => {
            let options = LoginOptions { timeout: Duration::from_secs(60), redirect_port: None };
            let open_url = |url: &url::Url| println!("open {url}");
            let status = login(&settings, &store, &options, &open_url).await?;
            Ok(format!("logged in: {status:?}"))
        }
        "logout" => Ok(format!("logged out: {:?}", logout(&settings, &store).await?)),
        "status" => Ok(format!("status: {:?}", status(&settings, &store).await?)),
        "call" => call(settings, store).await,
        other => {
            Err(ClientError::new(ErrorKind::NotFound, format!("there is no command `{other}`")))
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, url, directory] = arguments.as_slice() else {
        return Err("usage: oauth_client login|call|status|logout URL DIRECTORY".into());
    };
    let settings = OAuthSettings::new(SERVER_ID, url.parse()?, "Run `oauth_client login`.");
    match run(command, settings, FileCredentialStore::new(directory)).await {
        Ok(text) => {
            println!("{text}");
            Ok(())
        }
        Err(error) => {
            println!("failed: {:?}: {error} {}", error.kind(), error.hint().unwrap_or_default());
            Err(error.into())
        }
    }
}
