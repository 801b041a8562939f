//! `codex-reply`: continues a thread that `codex` started, with `codex exec resume` and the
//! settings it was started with.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::build_spec;
use super::list_limits;
use super::thread::ThreadRecord;
use super::turn::{self, CodexTurn, find_codex};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::tools::limit_docs::ToolLimit;
use crate::tools::{CallPlan, LazySchema, PrepareCx, RunCx, Tool, ToolSpec, arguments};

/// Name of the tool.
pub const NAME: &str = "codex-reply";
const TITLE: &str = "Codex Reply";
const DESCRIPTION: &str = "Continue a Codex conversation by providing the thread id and prompt.";

/// Arguments of `codex-reply`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Args {
    prompt: String,
    thread_id: Option<String>,
    conversation_id: Option<String>,
}

/// The `codex-reply` tool.
pub struct CodexReply {
    spec: ToolSpec,
    launcher: Launcher,
    config: Arc<Config>,
}

impl CodexReply {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let spec = build_spec(config, NAME, TITLE, DESCRIPTION, LazySchema::new(input_schema));
        CodexReply {
            spec,
            launcher: Launcher::from_current_exe(),
            config: Arc::new(config.clone()),
        }
    }

    fn parse_turn(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<CodexTurn> {
        let Args { prompt, thread_id, conversation_id } =
            arguments::parse_arguments(arguments, &self.spec.input_schema)?;
        let thread = thread_id.or(conversation_id).ok_or_else(|| {
            Error::invalid_arguments("either threadId or conversationId must be provided")
                .with_hint("Give the `threadId` of a result of `codex`.")
                .with_fact("argument", "threadId")
        })?;
        let record = ThreadRecord::load_thread(cx.config, &cx.state.session, &thread)?;
        // The thread determines its own directory, so the session's override does not apply.
        let (mut cwd, mut env) = (record.settings.cwd.clone(), None);
        cx.overrides.fill_unset(&mut cwd, &mut env);
        Ok(CodexTurn {
            prompt,
            settings: record.settings,
            env: env.unwrap_or_default(),
            thread_id: Some(thread),
        })
    }
}

impl Tool for CodexReply {
    type Args = CodexTurn;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        list_limits()
    }

    fn unavailable_reason(&self) -> Option<String> {
        find_codex(&self.config, None).err().map(|error| error.message().to_owned())
    }

    fn parse(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<CodexTurn> {
        self.parse_turn(arguments, cx)
    }

    fn prepare(&self, turn: &CodexTurn, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        turn::prepare_turn(turn, cx)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: CodexTurn,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        args.run_turn(&cx, call.consume(), &self.launcher).await
    }
}

/// Returns the removed server's schema, word for word.
fn input_schema() -> Map<String, Value> {
    let schema = json!({
        "type": "object",
        "properties": {
            "conversationId": {"description": "DEPRECATED: use threadId instead.", "type": "string"},
            "prompt": {
                "description": "The *next user prompt* to continue the Codex conversation.",
                "type": "string",
            },
            "threadId": {
                "description": "The thread id for this Codex session. This field is required, but we keep it optional here for backward compatibility for clients that still use conversationId.",
                "type": "string",
            },
        },
        "required": ["prompt"],
        "additionalProperties": false,
    });
    schema.as_object().cloned().unwrap_or_default()
}
