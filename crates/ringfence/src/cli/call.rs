//! `ringfence call`: calls one tool and prints its result.

mod arguments;
mod questions;
mod result;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use ringfence_client::{CallHandler, Question, QuestionAnswer, RawJson, ServerClient, ToolCall};
use serde_json::{Value, json};

use self::questions::{QuestionState, ask_question};
use super::console::{ApproverConsole, StdioConsole};
use super::screen::shorten_end;
use super::server_target::{ServerTarget, find_tool};
use super::{report_error, write_output};
use crate::base::{Error, Kind, Result, visible};
use crate::mcp::meta;

/// Longest call. The limits of the server end it much earlier.
const CALL_TIMEOUT: Duration = Duration::from_secs(86_400);
/// Widest progress line.
const PROGRESS_CHARS: usize = 78;
/// Exit codes.
const TOOL_FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// Call a tool and print its result
///
/// Starts a server with this config and workspace for the one call, or uses the running server at
/// `--url`. The call passes the same policy, approvals and audit log as a call of an agent.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence call file.search pattern=TODO path=src\n  ringfence call shell.exec command='make test' timeout_ms=60000\n  ringfence call file.write path=notes.md content=@draft.md\n  ringfence call file.read '{\"path\": \"notes.md\"}' --json\n\nExit codes: 0 if the tool succeeded, 1 if it failed, 2 for a wrong command line or wrong arguments;\nother codes if the server cannot be used."
)]
pub struct CallArgs {
    /// Tool to call, in either spelling of its name
    name: String,
    /// Arguments: `key=value` with the types of the tool's schema (arrays and objects as JSON),
    /// `key=@FILE` for the contents of a file (`@-`: standard input), or one JSON object
    #[arg(value_name = "JSON | KEY=VALUE")]
    arguments: Vec<String>,
    #[command(flatten)]
    pub target: ServerTarget,
    /// Print the whole result as JSON: content, structuredContent, isError
    #[arg(long)]
    json: bool,
    /// Directory in which images are stored (default: the current directory)
    #[arg(long, value_name = "DIR", conflicts_with = "json")]
    images: Option<PathBuf>,
}

/// Runs `ringfence call` and returns the exit code.
pub fn run(args: &CallArgs, out: &mut impl Write) -> Result<u8> {
    let handler = TerminalHandler::new();
    let called = args.target.run(handler.is_interactive, async |client| {
        let call = prepare_call(args, client).await?;
        let result = tokio::select! {
            result = client.call_tool(&call, &handler) => {
                result.map_err(|error| args.target.explain_error(&error))
            }
            _ = tokio::signal::ctrl_c() => {
                Err(Error::new(Kind::Cancelled, "interrupted").with_hint("The call was cancelled."))
            }
        };
        handler.clear_progress();
        Ok((call.tool, result?))
    });
    let (tool, result) = match called {
        Err(error) if matches!(error.kind(), Kind::InvalidArguments | Kind::UnknownTool) => {
            report_error(&error);
            return Ok(WRONG_USAGE);
        }
        called => called?,
    };
    let result: Value = serde_json::from_str(result.get())
        .map_err(|error| Error::internal("the result cannot be read").with_source(error))?;
    print_result(args, &tool, &result, out)?;
    let has_failed = result["isError"] == true;
    if has_failed && !handler.is_interactive && had_no_asker(&result) {
        note("no one was asked: standard input and standard error must be a terminal for that");
    }
    Ok(if has_failed { TOOL_FAILED } else { 0 })
}

async fn prepare_call(args: &CallArgs, client: &ServerClient) -> Result<ToolCall> {
    let catalog = args.target.list_tools(client).await?;
    let tool = find_tool(&catalog, &args.name)?;
    let definition: Value = serde_json::from_str(&tool.text)
        .map_err(|error| Error::internal("the definition cannot be read").with_source(error))?;
    Ok(ToolCall {
        tool: tool.name.clone(),
        arguments: arguments::read_arguments(&args.arguments, &definition["inputSchema"])?,
        timeout: Some(CALL_TIMEOUT),
        // A person decides whether to repeat a call whose connection was lost.
        is_read_only: false,
        runs_as_task: tool.requires_task,
        connection: Some(catalog.connection),
        is_repeated: false,
    })
}

fn print_result(args: &CallArgs, tool: &str, result: &Value, out: &mut impl Write) -> Result<()> {
    if args.json {
        return write_output(out, &format!("{result:#}\n"));
    }
    let dir = args.images.clone().unwrap_or_default();
    let text = result::render_result(result, tool, &dir)?;
    if result["isError"] == true {
        // A failure must not pass for output.
        let stderr = std::io::stderr();
        let text = result::prepare_text(text, &stderr);
        return write_output(&mut stderr.lock(), &text);
    }
    write_output(out, &result::prepare_text(text, &std::io::stdout()))
}

/// Returns whether the call was denied because no one could be asked.
fn had_no_asker(result: &Value) -> bool {
    let errors = [&result["structuredContent"]["error"], &result["_meta"][meta::ERROR]];
    errors.into_iter().any(|error| error["reason"] == "no_asker")
}

fn note(text: &str) {
    // If standard error is closed, there is nowhere left to report to.
    let _ = writeln!(std::io::stderr(), "note: {text}");
}

/// The person at the terminal: answers questions and sees progress.
struct TerminalHandler {
    is_interactive: bool,
    shows_progress: bool,
    /// A progress line is on the screen.
    has_progress: AtomicBool,
}

impl TerminalHandler {
    fn new() -> TerminalHandler {
        TerminalHandler {
            is_interactive: StdioConsole.is_interactive(),
            shows_progress: std::io::stderr().is_terminal(),
            has_progress: AtomicBool::new(false),
        }
    }

    fn clear_progress(&self) {
        if self.has_progress.swap(false, Ordering::AcqRel) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    async fn answer_question(&self, question: Question) -> QuestionAnswer {
        if question.method != "elicitation/create" {
            return QuestionAnswer::NoOne;
        }
        if !self.is_interactive {
            let message = question.params["message"].as_str().unwrap_or_default();
            let first_line = visible::escape_to_line(message.lines().next().unwrap_or_default());
            note(&format!(
                "declined, because no one can be asked without a terminal: {first_line}"
            ));
            return QuestionAnswer::Result(json!({"action": "decline"}));
        }
        self.clear_progress();
        let mut guard = WithdrawGuard { state: QuestionState::default(), is_answered: false };
        let state = guard.state.clone();
        let asked = tokio::task::spawn_blocking(move || {
            ask_question(&question.params, &mut StdioConsole, &state)
        });
        let answer = asked.await;
        guard.is_answered = true;
        match answer {
            Ok(Ok(answer)) => QuestionAnswer::Result(answer),
            _ => QuestionAnswer::Result(json!({"action": "cancel"})),
        }
    }
}

/// Ends a question whose call no longer waits for the answer.
struct WithdrawGuard {
    state: QuestionState,
    is_answered: bool,
}

impl Drop for WithdrawGuard {
    fn drop(&mut self) {
        self.state.close();
        if !self.is_answered {
            let _ = writeln!(
                std::io::stderr(),
                "\nThe question was answered elsewhere, withdrawn, or has expired."
            );
        }
    }
}

impl CallHandler for TerminalHandler {
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for question in questions {
                answers.push(self.answer_question(question).await);
            }
            answers
        })
    }

    fn handle_progress(&self, params: &RawJson) {
        let params: Value = match serde_json::from_str(params.get()) {
            Ok(params) if self.shows_progress => params,
            _ => return,
        };
        let line = visible::escape_to_line(&describe_progress(&params));
        let _ = write!(std::io::stderr(), "\r\x1b[K{}", shorten_end(&line, PROGRESS_CHARS));
        self.has_progress.store(true, Ordering::Release);
    }
}

/// Returns the last line of a progress message, or its numbers.
fn describe_progress(params: &Value) -> String {
    let message = params["message"].as_str().unwrap_or_default();
    match (message.lines().rfind(|line| !line.trim().is_empty()), &params["total"]) {
        (Some(line), _) => line.to_owned(),
        (None, Value::Null) => format!("working ({})", params["progress"]),
        (None, total) => format!("working ({} of {total})", params["progress"]),
    }
}
