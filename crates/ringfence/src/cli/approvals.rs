//! `ringfence approvals`: lists the questions pending on all servers of this root, and answers
//! them.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use rustix::termios::{QueueSelector, tcflush};
use serde_json::{Value, json};

use crate::approval::terminal::{ApprovalRequest, ApprovalSocket, socket_directory};
use crate::approval::{ApprovalAnswer, ApprovalPrompt};
use crate::base::clock::{format_span, unix_millis};
use crate::base::{Error, Kind, Result, visible};

/// Timeout for one exchange with a server.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between two polls of `--watch`.
const GLANCE: Duration = Duration::from_millis(300);
/// Upper bound for one list; a server holds a bounded number of questions per session.
const REPLY_BYTES: u64 = 64 * 1024 * 1024;

/// List the calls that wait for approval, and allow or deny them
#[derive(Debug, Args)]
pub struct Approvals {
    /// Runtime directory of the servers (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR", global = true)]
    pub root: Option<PathBuf>,
    /// Print the waiting questions as JSON
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
    /// Wait for questions and answer them here, one by one
    #[arg(long)]
    pub watch: bool,
    #[command(subcommand)]
    /// Answer to give; without one, waiting questions are listed or, with --watch, asked.
    pub command: Option<Command>,
}

/// Answer to one waiting question.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Allow a waiting call
    Allow {
        /// Id of the question, as listed
        id: String,
        /// Also allow the same tool for the rest of that session
        #[arg(long)]
        session: bool,
        /// Run the command inside the sandbox, if the question offers it
        #[arg(long, conflicts_with = "session")]
        inside: bool,
    },
    /// Deny a waiting call
    Deny {
        /// Id of the question, as listed
        id: String,
    },
}

/// Console of the person who answers: a real terminal, or a script in tests.
trait Desk {
    /// Returns whether a person reads what is shown and types the answers.
    fn is_manned(&self) -> bool;
    /// Shows text to the person.
    fn show(&mut self, text: &str) -> Result<()>;
    /// Prints text to the person or to a pipe.
    fn print(&mut self, text: &str) -> Result<()>;
    /// Discards input typed before the question was on the screen.
    fn forget_typed(&mut self);
    /// Returns a line if one was typed in time; an empty string means end of input.
    fn typed(&mut self, within: Duration) -> Result<Option<String>>;
}

/// Runs `ringfence approvals`.
pub fn run(args: &Approvals, root: &Path) -> Result<()> {
    run_at(args, root, &mut Terminal)
}

fn run_at(args: &Approvals, root: &Path, desk: &mut dyn Desk) -> Result<()> {
    match &args.command {
        Some(Command::Allow { id, inside: true, .. }) => {
            decide(root, id, ApprovalAnswer::Inside, desk)
        }
        Some(Command::Allow { id, session: true, .. }) => {
            decide(root, id, ApprovalAnswer::Session, desk)
        }
        Some(Command::Allow { id, .. }) => decide(root, id, ApprovalAnswer::Once, desk),
        Some(Command::Deny { id }) => decide(root, id, ApprovalAnswer::Deny, desk),
        None if args.watch => watch(root, desk),
        None => list(root, args.json, desk),
    }
}

/// Waiting question and the server that asks it.
struct Question {
    server: u32,
    socket: PathBuf,
    prompt: ApprovalPrompt,
}

impl Question {
    /// Returns the heading: the question's id, its age, and the time until it expires.
    fn header(&self) -> String {
        let (now, prompt) = (unix_millis(), &self.prompt);
        let since = |earlier: u64, later: u64| {
            format_span(Duration::from_millis(later.saturating_sub(earlier)))
        };
        let age = match prompt.asked_unix_ms {
            // Older servers do not report this.
            0 => String::new(),
            asked => format!(", asked {} ago", since(asked, now)),
        };
        format!(
            "{}  (server {}{age}, expires in {})",
            prompt.id,
            self.server,
            since(now, prompt.expires_unix_ms)
        )
    }
}

fn list(root: &Path, as_json: bool, desk: &mut dyn Desk) -> Result<()> {
    let questions = waiting(root)?;
    if as_json {
        let shown: Vec<Value> = questions.iter().map(as_value).collect::<Result<_>>()?;
        let text = serde_json::to_string_pretty(&json!({"pending": shown}))
            .map_err(|error| Error::internal("the questions cannot be shown").source(error))?;
        return desk.print(&format!("{}\n", ascii(&text)));
    }
    if questions.is_empty() {
        return desk.print("No calls are waiting for approval.\n");
    }
    for question in &questions {
        let text = format!("{}\n{}\n", question.header(), question.prompt.render_text());
        desk.print(&visible::lines(&text))?;
    }
    desk.print("Answer with `ringfence approvals allow ID [--session|--inside]` or `ringfence approvals deny ID`.\n")
}

fn as_value(question: &Question) -> Result<Value> {
    let mut value = serde_json::to_value(&question.prompt)
        .map_err(|error| Error::internal("the question cannot be shown").source(error))?;
    value["server"] = json!(question.server);
    Ok(value)
}

fn want_manned(desk: &dyn Desk) -> Result<()> {
    if desk.is_manned() {
        return Ok(());
    }
    Err(Error::permission_denied(
        "no_terminal",
        "only a person may answer approvals: stdin and stderr must be a terminal",
    )
    .hint("Run it in a terminal, without pipes. Listing with `ringfence approvals` needs no terminal."))
}

fn decide(root: &Path, id: &str, answer: ApprovalAnswer, desk: &mut dyn Desk) -> Result<()> {
    want_manned(desk)?;
    let questions = waiting(root)?;
    let question = questions.iter().find(|question| question.prompt.id == id).ok_or_else(|| {
        Error::new(Kind::NotFound, "no waiting question has this id").hint(
            "It may have been answered or have expired; run `ringfence approvals` to list waiting questions.",
        )
    })?;
    if answer != ApprovalAnswer::Deny && !question.prompt.offered_answers().contains(&answer) {
        return Err(not_offered(answer));
    }
    send_answer(question, answer)?;
    desk.show(&visible::lines(&format!("{} `{}`\n", outcome(answer), question.prompt.tool)))
}

fn not_offered(answer: ApprovalAnswer) -> Error {
    let error =
        Error::invalid_arguments(format!("this question does not offer `--{}`", answer.name()));
    match answer {
        ApprovalAnswer::Session => {
            error.hint("The call has no persistent session; allow it once, or deny it.")
        }
        _ => error.hint("The command does not leave the sandbox; allow it once, or deny it."),
    }
}

fn outcome(answer: ApprovalAnswer) -> &'static str {
    match answer {
        ApprovalAnswer::Once => "Allowed once:",
        ApprovalAnswer::Session => "Allowed for this session:",
        ApprovalAnswer::Inside => "Allowed inside the sandbox:",
        ApprovalAnswer::Deny => "Denied:",
    }
}

fn send_answer(question: &Question, answer: ApprovalAnswer) -> Result<()> {
    let request = ApprovalRequest::Answer { id: question.prompt.id.clone(), answer };
    let reply = talk(&question.socket, &request).map_err(|error| {
        Error::new(Kind::Unavailable, "the server that asked is gone").source(error)
    })?;
    if reply["ok"] == true {
        return Ok(());
    }
    let why = reply["error"].as_str().unwrap_or("the server rejected the answer");
    Err(Error::new(Kind::Conflict, visible::lines(why))
        .hint("Run `ringfence approvals` to list the questions that are still waiting."))
}

/// Asks every pending and every new question until the person quits.
fn watch(root: &Path, desk: &mut dyn Desk) -> Result<()> {
    want_manned(desk)?;
    desk.show("Waiting for questions (q and Enter to quit).\n")?;
    let mut skipped = HashSet::new();
    loop {
        let next =
            waiting(root)?.into_iter().find(|question| !skipped.contains(&question.prompt.id));
        match next {
            Some(question) => match ask(root, &question, desk)? {
                Asked::Answered => {}
                Asked::Failed => {
                    skipped.insert(question.prompt.id);
                }
                Asked::Left => return Ok(()),
            },
            None => {
                if let Some("q" | "Q" | "") = desk.typed(GLANCE)?.as_deref().map(str::trim) {
                    return Ok(());
                }
            }
        }
    }
}

enum Asked {
    Answered,
    /// The server rejected the answer; asking again would not help.
    Failed,
    Left,
}

/// Asks one question until it is answered here, answered elsewhere, or expired.
fn ask(root: &Path, question: &Question, desk: &mut dyn Desk) -> Result<Asked> {
    desk.show(&visible::lines(&format!(
        "\n{}\n{}",
        question.header(),
        question.prompt.render_text()
    )))?;
    let choices = choice_line(&question.prompt);
    desk.forget_typed();
    desk.show(&choices)?;
    loop {
        let Some(line) = desk.typed(GLANCE)? else {
            if waiting(root)?.iter().any(|other| other.prompt.id == question.prompt.id) {
                continue;
            }
            desk.show("\nIt was answered elsewhere, withdrawn, or has expired.\n")?;
            return Ok(Asked::Answered);
        };
        let answer = match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => ApprovalAnswer::Once,
            "s" | "session" if question.prompt.offers_session => ApprovalAnswer::Session,
            "i" | "inside" if question.prompt.offers_inside => ApprovalAnswer::Inside,
            "n" | "no" => ApprovalAnswer::Deny,
            "q" | "quit" => return Ok(Asked::Left),
            "" if line.is_empty() => return Ok(Asked::Left),
            _ => {
                desk.show(&choices)?;
                continue;
            }
        };
        return match send_answer(question, answer) {
            Ok(()) => desk
                .show(&format!("{} `{}`\n", outcome(answer), visible::lines(&question.prompt.tool)))
                .map(|()| Asked::Answered),
            Err(error) => desk.show(&format!("Answer rejected: {error}\n")).map(|()| Asked::Failed),
        };
    }
}

/// Returns the line that lists the keys for answering a question.
fn choice_line(prompt: &ApprovalPrompt) -> String {
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
fn waiting(root: &Path) -> Result<Vec<Question>> {
    let mut questions = Vec::new();
    for (server, path) in sockets(root)? {
        let reply = match talk(&path, &ApprovalRequest::List {}) {
            Ok(reply) => reply,
            Err(error) => {
                // A socket whose process is gone was left behind by a crash; a live server may only
                // be slow.
                if is_gone(server) {
                    let _ = std::fs::remove_file(&path);
                } else {
                    tracing::warn!("server {server} does not answer: {error}");
                }
                continue;
            }
        };
        let prompts: Vec<ApprovalPrompt> = serde_json::from_value(reply["pending"].clone())
            .unwrap_or_else(|error| {
                tracing::warn!("server {server} sent an invalid reply: {error}");
                Vec::new()
            });
        questions.extend(prompts.into_iter().map(|prompt| Question {
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

/// Returns the process id and socket of every server of this root.
fn sockets(root: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let failed = |error: std::io::Error| {
        Error::new(Kind::Unavailable, "cannot list the servers of this root")
            .hint("Give the server's root with `--root` (or SANDBOX_ROOT).")
            .source(error)
    };
    let entries = match std::fs::read_dir(socket_directory(root)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("approvals-").and_then(|rest| rest.strip_suffix(".sock"));
        if let Some(pid) = number.and_then(|number| number.parse().ok()) {
            found.push((pid, path));
        }
    }
    found.sort();
    Ok(found)
}

fn is_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

fn talk(path: &Path, request: &ApprovalRequest) -> std::io::Result<Value> {
    let socket = ApprovalSocket::from_path(path.to_owned())?;
    let mut stream = UnixStream::connect(&socket.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(REPLY_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Escapes everything beyond ASCII in JSON text: the value stays the same, and a terminal has
/// nothing to interpret.
fn ascii(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' | ' '..='~' => shown.push(c),
            c => c
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| shown.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    shown
}

struct Terminal;

impl Desk for Terminal {
    fn is_manned(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    fn show(&mut self, text: &str) -> Result<()> {
        write_out(&mut std::io::stderr().lock(), text)
    }

    fn print(&mut self, text: &str) -> Result<()> {
        write_out(&mut std::io::stdout().lock(), text)
    }

    fn forget_typed(&mut self) {
        // Fails only without a terminal, and then no question is asked.
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
    }

    /// Bypasses the standard input buffer: a line typed ahead must not remain there and answer the
    /// next question.
    fn typed(&mut self, within: Duration) -> Result<Option<String>> {
        let failed = |error: rustix::io::Errno| {
            Error::new(Kind::Unavailable, "the terminal cannot be read").source(error)
        };
        let stdin = std::io::stdin();
        let patience = Timespec::try_from(within)
            .map_err(|error| Error::internal("the timeout is out of range").source(error))?;
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&patience)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
        let mut bytes = [0u8; 1024];
        let count = rustix::io::read(&stdin, &mut bytes).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes[..count]);
        Ok(Some(text.split_inclusive('\n').next().unwrap_or_default().to_owned()))
    }
}

fn write_out(out: &mut dyn Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader closed the pipe early (`| head`); that is not an error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.map_err(|error| {
            Error::new(Kind::Unavailable, "the output cannot be written").source(error)
        }),
    }
}

#[cfg(test)]
#[path = "approvals_tests.rs"]
mod tests;
