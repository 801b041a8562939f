//! `ringfence approvals`: lists the questions pending on all servers of this root, and answers
//! them.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::console::{ApproverConsole, StdioConsole};
use super::server_sockets;
use crate::approval::terminal::SocketRequest;
use crate::approval::{ApprovalAnswer, ApprovalPrompt};
use crate::audit;
use crate::base::clock::{format_duration, unix_millis};
use crate::base::{Error, Kind, Result, visible};
use crate::config::ProcessEnv;
use crate::config::env::SANDBOX_ROOT;

/// Interval between two polls of `--watch`.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// List the calls that wait for approval, and allow or deny them
#[derive(Debug, Args)]
pub struct ApprovalsArgs {
    /// Runtime directory of the servers (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR", global = true)]
    pub root: Option<PathBuf>,
    /// Print pending approval requests as JSON
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
    /// Wait for approval requests and answer them here, one by one
    #[arg(long)]
    pub watch: bool,
    #[command(subcommand)]
    /// Answer to give; without one, waiting questions are listed or, with --watch, asked.
    pub command: Option<ApprovalsCommand>,
}

/// Answer to one waiting question.
#[derive(Debug, Subcommand)]
pub enum ApprovalsCommand {
    /// Allow a waiting call
    Allow {
        /// Id of the request, as shown by `ringfence approvals`
        id: String,
        /// Also allow the same tool for the rest of that session
        #[arg(long)]
        session: bool,
        /// Run the command inside the sandbox, if the request offers it
        #[arg(long, conflicts_with = "session")]
        inside: bool,
    },
    /// Deny a waiting call
    Deny {
        /// Id of the request, as shown by `ringfence approvals`
        id: String,
    },
}

/// Runs `ringfence approvals`.
pub fn run(args: &ApprovalsArgs, root: &Path) -> Result<()> {
    // The default root needs no check: it cannot be mistyped, and the first server may start later.
    if args.root.is_some() || ProcessEnv::from_process().get_path(SANDBOX_ROOT).is_some() {
        check_root_used(root)?;
    }
    run_with_console(args, root, &mut StdioConsole)
}

/// Fails if no server has used this root: a mistyped path must not hide waiting questions.
fn check_root_used(root: &Path) -> Result<()> {
    // Every server opens the audit log before it answers its client.
    match audit::log_directory(root).symlink_metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(Error::new(
                Kind::NotFound,
                format!("no server has used the root {}", root.display()),
            )
            .with_hint("Give the server's root with `--root` (or SANDBOX_ROOT)."))
        }
        // Any other error is reported when the sockets are listed.
        _ => Ok(()),
    }
}

fn run_with_console(
    args: &ApprovalsArgs,
    root: &Path,
    console: &mut dyn ApproverConsole,
) -> Result<()> {
    match &args.command {
        Some(ApprovalsCommand::Allow { id, inside: true, .. }) => {
            answer_by_id(root, id, ApprovalAnswer::Inside, console)
        }
        Some(ApprovalsCommand::Allow { id, session: true, .. }) => {
            answer_by_id(root, id, ApprovalAnswer::Session, console)
        }
        Some(ApprovalsCommand::Allow { id, .. }) => {
            answer_by_id(root, id, ApprovalAnswer::Once, console)
        }
        Some(ApprovalsCommand::Deny { id }) => {
            answer_by_id(root, id, ApprovalAnswer::Deny, console)
        }
        None if args.watch => watch_questions(root, console),
        None => list_questions(root, args.json, console),
    }
}

/// Waiting question and the server that asks it.
struct WaitingQuestion {
    server: u32,
    socket: PathBuf,
    prompt: ApprovalPrompt,
}

impl WaitingQuestion {
    /// Returns the heading: the question's id, its age, and the time until it expires.
    fn format_header(&self) -> String {
        let (now, prompt) = (unix_millis(), &self.prompt);
        let format_span = |earlier: u64, later: u64| {
            format_duration(Duration::from_millis(later.saturating_sub(earlier)))
        };
        let age = match prompt.asked_unix_ms {
            // Older servers do not report this.
            0 => String::new(),
            asked_ms => format!(", asked {} ago", format_span(asked_ms, now)),
        };
        format!(
            "{}  (server {}{age}, expires in {})",
            prompt.id,
            self.server,
            format_span(now, prompt.expires_unix_ms)
        )
    }
}

fn list_questions(root: &Path, as_json: bool, console: &mut dyn ApproverConsole) -> Result<()> {
    let questions = collect_questions(root)?;
    if as_json {
        let pending: Vec<Value> = questions.iter().map(question_to_json).collect::<Result<_>>()?;
        let text = serde_json::to_string_pretty(&json!({"pending": pending}))
            .map_err(|error| Error::internal("the questions cannot be shown").with_source(error))?;
        return console.print_output(&format!("{}\n", escape_non_ascii(&text)));
    }
    if questions.is_empty() {
        return console.print_output("No calls are waiting for approval.\n");
    }
    for question in &questions {
        let text = format!("{}\n{}\n", question.format_header(), question.prompt.render_text());
        console.print_output(&visible::escape_lines(&text))?;
    }
    console.print_output("Answer with `ringfence approvals allow ID [--session|--inside]` or `ringfence approvals deny ID`.\n")
}

fn question_to_json(question: &WaitingQuestion) -> Result<Value> {
    let mut value = serde_json::to_value(&question.prompt)
        .map_err(|error| Error::internal("the question cannot be shown").with_source(error))?;
    value["server"] = json!(question.server);
    Ok(value)
}

fn require_interactive(console: &dyn ApproverConsole) -> Result<()> {
    if console.is_interactive() {
        return Ok(());
    }
    Err(Error::permission_denied(
        "no_terminal",
        "only a person may answer approvals: stdin and stderr must be a terminal",
    )
    .with_hint("Run it in a terminal, without pipes. Listing with `ringfence approvals` needs no terminal."))
}

fn answer_by_id(
    root: &Path,
    id: &str,
    answer: ApprovalAnswer,
    console: &mut dyn ApproverConsole,
) -> Result<()> {
    require_interactive(console)?;
    let questions = collect_questions(root)?;
    let question = questions.iter().find(|question| question.prompt.id == id).ok_or_else(|| {
        Error::new(Kind::NotFound, "no waiting question has this id").with_hint(
            "It may have been answered or have expired; run `ringfence approvals` to list waiting questions.",
        )
    })?;
    if answer != ApprovalAnswer::Deny && !question.prompt.offered_answers().contains(&answer) {
        return Err(not_offered_error(answer));
    }
    send_answer(question, answer)?;
    console.show_message(&visible::escape_lines(&format!(
        "{} `{}`\n",
        outcome_label(answer),
        question.prompt.tool
    )))
}

fn not_offered_error(answer: ApprovalAnswer) -> Error {
    let error =
        Error::invalid_arguments(format!("this question does not offer `--{}`", answer.name()));
    match answer {
        ApprovalAnswer::Session => {
            error.with_hint("The call has no persistent session; allow it once, or deny it.")
        }
        _ => error.with_hint("The command does not leave the sandbox; allow it once, or deny it."),
    }
}

fn outcome_label(answer: ApprovalAnswer) -> &'static str {
    match answer {
        ApprovalAnswer::Once => "Allowed once:",
        ApprovalAnswer::Session => "Allowed for this session:",
        ApprovalAnswer::Inside => "Allowed inside the sandbox:",
        ApprovalAnswer::Deny => "Denied:",
    }
}

fn send_answer(question: &WaitingQuestion, answer: ApprovalAnswer) -> Result<()> {
    let request = SocketRequest::Answer { id: question.prompt.id.clone(), answer };
    let reply = server_sockets::exchange_message(&question.socket, &request).map_err(|error| {
        Error::new(Kind::Unavailable, "the server that asked is gone").with_source(error)
    })?;
    if reply["ok"] == true {
        return Ok(());
    }
    let reason = reply["error"].as_str().unwrap_or("the server rejected the answer");
    Err(Error::new(Kind::Conflict, visible::escape_lines(reason))
        .with_hint("Run `ringfence approvals` to list the questions that are still waiting."))
}

/// Asks every pending and every new question until the person quits.
fn watch_questions(root: &Path, console: &mut dyn ApproverConsole) -> Result<()> {
    require_interactive(console)?;
    console.show_message("Waiting for questions (q and Enter to quit).\n")?;
    let mut skipped = HashSet::new();
    loop {
        let next = collect_questions(root)?
            .into_iter()
            .find(|question| !skipped.contains(&question.prompt.id));
        match next {
            Some(question) => match ask_question(root, &question, console)? {
                AskOutcome::Answered => {}
                AskOutcome::Rejected => {
                    skipped.insert(question.prompt.id);
                }
                AskOutcome::Quit => return Ok(()),
            },
            None => {
                if let Some("q" | "Q" | "") =
                    console.read_line(POLL_INTERVAL)?.as_deref().map(str::trim)
                {
                    return Ok(());
                }
            }
        }
    }
}

enum AskOutcome {
    Answered,
    /// The server rejected the answer; asking again would not help.
    Rejected,
    Quit,
}

/// Asks one question until it is answered here, answered elsewhere, or expired.
fn ask_question(
    root: &Path,
    question: &WaitingQuestion,
    console: &mut dyn ApproverConsole,
) -> Result<AskOutcome> {
    console.show_message(&visible::escape_lines(&format!(
        "\n{}\n{}",
        question.format_header(),
        question.prompt.render_text()
    )))?;
    let choices = format_choices(&question.prompt);
    console.discard_input();
    console.show_message(&choices)?;
    loop {
        let Some(line) = console.read_line(POLL_INTERVAL)? else {
            if collect_questions(root)?.iter().any(|other| other.prompt.id == question.prompt.id) {
                continue;
            }
            console.show_message("\nIt was answered elsewhere, withdrawn, or has expired.\n")?;
            return Ok(AskOutcome::Answered);
        };
        let answer = match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => ApprovalAnswer::Once,
            "s" | "session" if question.prompt.offers_session => ApprovalAnswer::Session,
            "i" | "inside" if question.prompt.offers_inside => ApprovalAnswer::Inside,
            "n" | "no" => ApprovalAnswer::Deny,
            "q" | "quit" => return Ok(AskOutcome::Quit),
            "" if line.is_empty() => return Ok(AskOutcome::Quit),
            _ => {
                console.show_message(&choices)?;
                continue;
            }
        };
        return match send_answer(question, answer) {
            Ok(()) => console
                .show_message(&format!(
                    "{} `{}`\n",
                    outcome_label(answer),
                    visible::escape_lines(&question.prompt.tool)
                ))
                .map(|()| AskOutcome::Answered),
            Err(error) => console
                .show_message(&format!("Answer rejected: {error}\n"))
                .map(|()| AskOutcome::Rejected),
        };
    }
}

/// Returns the line that lists the keys for answering a question.
fn format_choices(prompt: &ApprovalPrompt) -> String {
    let key = |answer: &ApprovalAnswer| match answer {
        ApprovalAnswer::Once => 'y',
        ApprovalAnswer::Session => 's',
        ApprovalAnswer::Inside => 'i',
        ApprovalAnswer::Deny => 'n',
    };
    let answers = prompt.offered_answers().into_iter().chain([ApprovalAnswer::Deny]);
    let choices: String = answers
        .map(|answer| format!("[{}] {}  ", key(&answer), prompt.answer_label(answer)))
        .collect();
    format!("{choices}[q] Quit: ")
}

/// Collects the questions waiting on all servers of this root, most urgent first.
fn collect_questions(root: &Path) -> Result<Vec<WaitingQuestion>> {
    let mut questions = Vec::new();
    for (server, path, reply) in server_sockets::ask_all(root, &SocketRequest::List {})? {
        let prompts: Vec<ApprovalPrompt> = serde_json::from_value(reply["pending"].clone())
            .unwrap_or_else(|error| {
                tracing::warn!("server {server} sent an invalid reply: {error}");
                Vec::new()
            });
        questions.extend(prompts.into_iter().map(|prompt| WaitingQuestion {
            server,
            socket: path.clone(),
            prompt,
        }));
    }
    questions.sort_by(|a, b| {
        (a.prompt.expires_unix_ms, &a.prompt.id).cmp(&(b.prompt.expires_unix_ms, &b.prompt.id))
    });
    Ok(questions)
}

/// Escapes everything beyond ASCII in JSON text: the value stays the same, and a terminal has
/// nothing to interpret.
fn escape_non_ascii(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' | ' '..='~' => escaped.push(c),
            c => c
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
