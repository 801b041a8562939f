//! Lists the tools of a server, or calls one:
//!
//! ```text
//! cargo run -p ringfence-client --example call_tool -- SERVER [TOOL [JSON ARGUMENTS]]
//! ```
//!
//! The servers are those of the configuration that is found from the current directory.
// This program's output is its purpose.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_client::config::{EnvSource, LoadOptions, load_config};
use ringfence_client::{
    CallHandler, ChildSpawner, ClientManager, ClientOptions, ErrorKind, Question, QuestionAnswer,
    RawJson, ToolCall, UnattendedCall,
};

/// Prints progress; answers no questions.
struct PrintingHandler;

impl CallHandler for PrintingHandler {
    fn answer_questions(
        &self,
        questions: Vec<Question>,
    ) -> futures::future::BoxFuture<'_, Vec<QuestionAnswer>> {
        for question in &questions {
            println!("question: {} {}", question.method, question.params);
        }
        UnattendedCall.answer_questions(questions)
    }

    fn handle_progress(&self, params: &RawJson) {
        println!("progress: {}", params.get());
    }

    fn handle_log(&self, params: &RawJson) {
        println!("log: {}", params.get());
    }
}

#[tokio::main]
async fn main() -> ringfence_client::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(server) = arguments.next() else {
        return Err(ringfence_client::ClientError::new(ErrorKind::NotFound, "name a server"));
    };
    let loaded =
        load_config(&LoadOptions { env: EnvSource::from_process(), ..LoadOptions::new(".") })?;
    let options =
        ClientOptions { spawner: Some(Arc::new(ChildSpawner)), ..ClientOptions::default() };
    let manager = ClientManager::new(&loaded.config, options, &BTreeMap::new())?;
    let result = match arguments.next() {
        None => manager.list_tools(&server).await.map(|catalog| {
            for tool in catalog.tools.values() {
                println!("{}", tool.name);
            }
        }),
        Some(tool) => {
            let json = arguments.next().unwrap_or_else(|| "{}".to_owned());
            let call = ToolCall {
                tool,
                arguments: serde_json::from_str(&json).unwrap_or_default(),
                timeout: None,
                is_read_only: false,
                runs_as_task: false,
                connection: None,
                is_repeated: false,
            };
            manager.call_tool(&server, &call, &PrintingHandler).await.map(|result| {
                println!("{}", result.get());
            })
        }
    };
    manager.close_all().await;
    result
}
