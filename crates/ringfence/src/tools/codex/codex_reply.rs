//! `codex-reply`: continues a thread that `codex` started, with `codex exec resume` and the
//! settings it was started with.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::thread::Thread;
use super::turn::{self, Turn, find};
use super::{limits, spec};
use crate::approval::Granted;
use crate::base::call::{Output, Prepared};
use crate::base::{Error, Result};
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::session::{Overrides, Session};
use crate::tools::limits::Limit;
use crate::tools::{Plan, PrepareCx, RunCx, Spec, Tool, arguments};

/// Name of the tool.
pub const NAME: &str = "codex-reply";
const TITLE: &str = "Codex Reply";
const DESCRIPTION: &str = "Continue a Codex conversation by providing the thread id and prompt.";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    prompt: String,
    thread_id: Option<String>,
    conversation_id: Option<String>,
}

/// The `codex-reply` tool.
pub struct CodexReply {
    spec: Spec,
    launcher: Launcher,
    config: Arc<Config>,
}

impl CodexReply {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let spec = spec(config, NAME, TITLE, DESCRIPTION, schema());
        CodexReply {
            spec,
            launcher: Launcher::from_current_exe(),
            config: Arc::new(config.clone()),
        }
    }

    fn read(
        &self,
        arguments: &Map<String, Value>,
        config: &Config,
        session: &Session,
        shape: &Overrides,
    ) -> Result<Turn> {
        let Arguments { prompt, thread_id, conversation_id } =
            arguments::parse(arguments, &self.spec.input_schema)?;
        let thread = thread_id.or(conversation_id).ok_or_else(|| {
            Error::invalid_arguments("either threadId or conversationId must be provided")
                .hint("Give the `threadId` of a result of `codex`.")
                .with("argument", "threadId")
        })?;
        let known = Thread::find(config, session, &thread)?;
        // The thread determines its own directory, so the session's override does not apply.
        let (mut cwd, mut env) = (known.settings.cwd.clone(), None);
        shape.fill_unset(&mut cwd, &mut env);
        Ok(Turn {
            prompt,
            settings: known.settings,
            env: env.unwrap_or_default(),
            thread: Some(thread),
        })
    }
}

impl Tool for CodexReply {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn limits(&self) -> Vec<Limit> {
        limits()
    }

    fn unavailable(&self) -> Option<String> {
        find(&self.config, None).err().map(|error| error.message().to_owned())
    }

    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Plan> {
        turn::prepare(&self.read(arguments, cx.config, cx.session, cx.shape)?, cx)
    }

    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<Output>> {
        Box::pin(async move {
            let call = call.consume();
            let turn = self.read(&call.arguments, &cx.config, &cx.session, &cx.shape)?;
            turn.run(&cx, call, &self.launcher).await
        })
    }
}

/// Returns the removed server's schema, word for word.
fn schema() -> Map<String, Value> {
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
