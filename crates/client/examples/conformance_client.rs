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

use futures::future::{BoxFuture, try_join_all};
use ringfence_client::config::{RemoteTransport, ServerConfig, TransportConfig, TrustLevel};
use ringfence_client::{
    CallHandler, ClientOptions, ClientProfile, Question, QuestionAnswer, ServerClient, ToolCall,
    ToolCatalog,
};
use serde_json::{Map, Value, json};

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
        | "sse-retry" => catalog.tools.keys().map(|name| (name.clone(), json!({}))).collect(),
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
        let call = ToolCall { tool, arguments, timeout: None, is_read_only: false };
        let result = client.call_tool(&call, &AcceptingUser).await?;
        println!("{}: {}", call.tool, result.get());
        Ok::<(), ringfence_client::ClientError>(())
    });
    try_join_all(calls).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> DriverResult<()> {
    let url = std::env::args().nth(1).ok_or("name the address of a server")?;
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO")?;
    let context = match std::env::var("MCP_CONFORMANCE_CONTEXT") {
        Ok(context) => serde_json::from_str(&context)?,
        Err(_) => Value::Null,
    };
    let config = ServerConfig {
        trust: TrustLevel::Untrusted,
        transport: TransportConfig::Http(RemoteTransport {
            url: url.parse()?,
            headers: BTreeMap::new(),
            auth_provider_id: None,
        }),
    };
    let profile = ClientProfile { elicitation: true, ..ClientProfile::default() };
    let options = ClientOptions { profile, ..ClientOptions::default() };
    let client = ServerClient::new("conformance", config, options, None);
    let outcome = run_scenario(&client, &scenario, &context).await;
    client.close().await;
    outcome
}
