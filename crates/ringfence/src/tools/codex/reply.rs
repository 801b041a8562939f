//! `codex-reply`: continues a thread that `codex` started, with `codex exec resume` and the
//! settings it was started with.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::thread::ThreadRecord;
use super::turn::{self, CodexTurn, find_codex};
use super::{build_spec, list_limits};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::session::{Overrides, Session};
use crate::tools::limits::ToolLimit;
use crate::tools::{CallPlan, PrepareCx, RunCx, Tool, ToolSpec, arguments};

/// Name of the tool.
pub const NAME: &str = "codex-reply";
const TITLE: &str = "Codex Reply";
const DESCRIPTION: &str = "Continue a Codex conversation by providing the thread id and prompt.";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Args {
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
        let spec = build_spec(config, NAME, TITLE, DESCRIPTION, input_schema());
        CodexReply {
            spec,
            launcher: Launcher::from_current_exe(),
            config: Arc::new(config.clone()),
        }
    }

    fn parse_turn(
        &self,
        arguments: &Map<String, Value>,
        config: &Config,
        session: &Session,
        shape: &Overrides,
    ) -> Result<CodexTurn> {
        let Args { prompt, thread_id, conversation_id } =
            arguments::parse_arguments(arguments, &self.spec.input_schema)?;
        let thread = thread_id.or(conversation_id).ok_or_else(|| {
            Error::invalid_arguments("either threadId or conversationId must be provided")
                .with_hint("Give the `threadId` of a result of `codex`.")
                .with_fact("argument", "threadId")
        })?;
        let known = ThreadRecord::load_thread(config, session, &thread)?;
        // The thread determines its own directory, so the session's override does not apply.
        let (mut cwd, mut env) = (known.settings.cwd.clone(), None);
        shape.fill_unset(&mut cwd, &mut env);
        Ok(CodexTurn {
            prompt,
            settings: known.settings,
            env: env.unwrap_or_default(),
            thread_id: Some(thread),
        })
    }
}

impl Tool for CodexReply {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        list_limits()
    }

    fn unavailable_reason(&self) -> Option<String> {
        find_codex(&self.config, None).err().map(|error| error.message().to_owned())
    }

    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        turn::prepare_turn(&self.parse_turn(arguments, cx.config, cx.session, cx.overrides)?, cx)
    }

    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<ToolOutput>> {
        Box::pin(async move {
            let call = call.consume();
            let turn = self.parse_turn(&call.arguments, &cx.config, &cx.session, &cx.overrides)?;
            turn.run_turn(&cx, call, &self.launcher).await
        })
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
