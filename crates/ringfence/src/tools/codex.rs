//! `codex`: starts a Codex session. The tool of the removed `codex mcp-server`, with the same name,
//! arguments and result format, implemented with `codex exec` in a sandbox.

pub mod events;
mod home;
mod protected_check;
pub mod reply;
pub mod settings;
pub mod thread;
pub mod turn;
mod user_config;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::limit_docs::{ByteCount, ItemCount, ToolLimit};
use super::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};
use crate::approval::Granted;
use crate::base::Result;
use crate::base::call::{Prepared, ToolOutput};
use crate::config::{Config, ProfileSetting};
use crate::sandbox::Launcher;
use crate::session::Overrides;
use settings::CodexSettings;
use turn::{CodexTurn, find_codex};

/// Name of the tool.
pub const NAME: &str = "codex";
const TITLE: &str = "Codex";
const DESCRIPTION: &str =
    "Run a Codex session. Accepts configuration parameters matching the Codex Config struct.";
/// A session takes as long as its work; the operator's ceiling limits it.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Arguments of `codex`.
#[derive(Debug, Deserialize)]
pub struct Args {
    prompt: String,
}

/// The `codex` tool.
pub struct CodexTool {
    spec: ToolSpec,
    launcher: Launcher,
    config: Arc<Config>,
}

impl CodexTool {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let spec = build_spec(config, NAME, TITLE, DESCRIPTION, LazySchema::new(input_schema));
        CodexTool { spec, launcher: Launcher::from_current_exe(), config: Arc::new(config.clone()) }
    }

    fn parse_turn(
        &self,
        arguments: &Map<String, Value>,
        overrides: &Overrides,
    ) -> Result<CodexTurn> {
        let Args { prompt } = arguments::parse_arguments(arguments, &self.spec.input_schema)?;
        // Parsed separately, because nesting one type in the other would hide which argument is
        // wrong.
        let mut settings: CodexSettings =
            arguments::parse_arguments(arguments, &self.spec.input_schema)?;
        let mut env = None;
        overrides.fill_unset(&mut settings.cwd, &mut env);
        Ok(CodexTurn { prompt, settings, env: env.unwrap_or_default(), thread_id: None })
    }
}

/// Builds the spec of both tools. An agent that runs another agent requires approval every time.
/// With the surface off, each call decides, because its transport matters there.
pub fn build_spec(
    config: &Config,
    name: &str,
    title: &str,
    description: &str,
    input_schema: LazySchema,
) -> ToolSpec {
    let sandbox_note = match (config.surface.enabled, config.default_sandbox.profile) {
        (false, _) => "",
        (true, ProfileSetting::None) => " There is no sandbox but Codex's own.",
        (true, _) => {
            " It runs in a sandbox with everything it starts: the workspace and its own CODEX_HOME are writable, and the network is open."
        }
    };
    let surface_enabled = config.surface.enabled;
    ToolSpec {
        name: name.into(),
        title: title.into(),
        description: format!("{description}{sandbox_note}"),
        version: "1.0.0".into(),
        scope: PermissionScope::Exec,
        hints: ToolHints {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: true,
        },
        effects: vec!["exec", "filesystem_write", "network"],
        profile: config.default_sandbox.profile.name(),
        input_schema,
        output_schema: Some(LazySchema::new(move || output_schema(surface_enabled))),
        lists_output_schema: true,
        requires_approval: config.surface.enabled,
        streaming: true,
        timeout: DEFAULT_TIMEOUT,
        unavailable_reason: None,
    }
}

/// Returns the limits of both tools.
pub fn list_limits() -> Vec<ToolLimit> {
    vec![
        ToolLimit::for_time(DEFAULT_TIMEOUT),
        ToolLimit::from_fixed("an answer", ByteCount(events::MAX_ANSWER_BYTES as u64)),
        ToolLimit::from_fixed("an event", ByteCount(events::MAX_EVENT_BYTES as u64)),
        ToolLimit::from_fixed(
            "instructions, or a value of `config`",
            ByteCount(settings::MAX_ARG_BYTES as u64),
        ),
        ToolLimit::from_fixed("threads that can be continued", ItemCount(home::MAX_THREADS as u64)),
    ]
}

impl Tool for CodexTool {
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
        self.parse_turn(arguments, cx.overrides)
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

/// Returns the removed server's schema, word for word: agents and their prompts are written for it.
fn input_schema() -> Map<String, Value> {
    let schema = json!({
        "type": "object",
        "properties": {
            "approval-policy": {
                "description": "Approval policy for shell commands generated by the model: `untrusted`, `on-failure`, `on-request`, `never`.",
                "enum": ["untrusted", "on-failure", "on-request", "never"],
                "type": "string",
            },
            "base-instructions": {
                "description": "The set of instructions to use instead of the default ones.",
                "type": "string",
            },
            "compact-prompt": {
                "description": "Prompt used when compacting the conversation.",
                "type": "string",
            },
            "config": {
                "additionalProperties": true,
                "description": "Individual config settings that will override what is in CODEX_HOME/config.toml.",
                "type": "object",
            },
            "cwd": {
                "description": "Working directory for the session. If relative, it is resolved against the server process's current working directory.",
                "type": "string",
            },
            "developer-instructions": {
                "description": "Developer instructions that should be injected as a developer role message.",
                "type": "string",
            },
            "model": {
                "description": "Optional override for the model name (e.g. 'gpt-5.2', 'gpt-5.2-codex').",
                "type": "string",
            },
            "profile": {
                "description": "Configuration profile from config.toml to specify default options.",
                "type": "string",
            },
            "prompt": {
                "description": "The *initial user prompt* to start the Codex conversation.",
                "type": "string",
            },
            "sandbox": {
                "description": "Sandbox mode: `read-only`, `workspace-write`, or `danger-full-access`.",
                "enum": ["read-only", "workspace-write", "danger-full-access"],
                "type": "string",
            },
        },
        "required": ["prompt"],
        "additionalProperties": false,
    });
    schema.as_object().cloned().unwrap_or_default()
}

/// Returns the output schema of both tools. With the surface off it is that of the removed server,
/// word for word.
fn output_schema(surface_enabled: bool) -> Map<String, Value> {
    let mut schema = json!({
        "type": "object",
        "properties": {"threadId": {"type": "string"}, "content": {"type": "string"}},
        "required": ["threadId", "content"],
    });
    if surface_enabled {
        schema["properties"]["denials"] = json!({
            "type": "array",
            "items": {"type": "object"},
            "description": "Refusals, as far as they are known for certain.",
        });
        schema["properties"]["warnings"] = json!({"type": "array", "items": {"type": "string"}});
    }
    schema.as_object().cloned().unwrap_or_default()
}
