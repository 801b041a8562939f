//! `ringfence audit`: reads, follows, verifies and prunes the audit log.

mod event_filter;
mod format_event;
mod prune;
mod unmatched_filters;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Subcommand;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::screen;
use crate::audit::read::{LogReader, LoggedEvent};
use crate::audit::verify::{LogFileReport, LogFileState, PruneSummary, verify_log};
use crate::base::clock::{format_utc, parse_day, parse_duration};
use crate::base::{Error, Kind, Result};
use event_filter::EventFilter;
use format_event::{FULL_LINE_WIDTH, escape_line, format_event, format_event_narrow};
use unmatched_filters::UnmatchedFilters;

/// Show what was done, follow it live, verify the log, or prune it.
///
/// Prints what was called, by whom, what was decided and how it ended: one line per event, oldest
/// first, from all servers that share the root. Every call that ran has a `call.start` and a
/// `call.stop` with the same trace id, which is also in the result that the client received; a
/// call that was refused has only a `call.stop`, and frequent refusals are only counted
/// (`call.refused`). A narrow terminal shows less of each event than a pipe. Tool arguments are recorded only as a hash, but `exec` records contain the
/// command line of each program that a rule decided about (with --audit-execs, of every program).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence audit --since 10m               the last ten minutes\n  ringfence audit --follow --tool shell.exec  calls of one tool, live\n  ringfence audit --trace 3f9a01c2          everything about one call\n  ringfence audit --json > audit.jsonl      export\n  ringfence audit verify                    check that the log was not changed\n  ringfence audit prune --before 90d        remove older files"
)]
pub struct AuditArgs {
    /// Operation to run instead of printing events.
    #[command(subcommand)]
    pub command: Option<AuditCommand>,
    /// Keep printing new events until the reader closes the pipe or Ctrl-C.
    #[arg(long, short)]
    pub follow: bool,
    /// Show only events of this tool, in either spelling of its name.
    #[arg(long, value_name = "TOOL")]
    pub tool: Option<String>,
    /// Show only events of this session.
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// Show only the call with this trace id; a prefix is enough.
    #[arg(long, value_name = "ID")]
    pub trace: Option<String>,
    /// Show only events from this time on: an age (30s, 10m, 2h, 7d) or a UTC time (2026-11-15,
    /// 2026-11-15T21:40:03Z).
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    pub since: Option<String>,
    /// Print each record as the JSON line stored in the log.
    #[arg(long)]
    pub json: bool,
    /// Directory for runtime files (default: $XDG_STATE_HOME/ringfence).
    #[arg(long, value_name = "DIR", global = true)]
    pub root: Option<PathBuf>,
}

/// Operation on the log as a whole.
#[derive(Debug, Clone, Subcommand)]
pub enum AuditCommand {
    /// Check that no record was changed, added, moved or removed.
    ///
    /// Walks the keyed chain of every file and names the first record that is not as it was
    /// written; the exit code is then 1. A file that ends mid-line because its process was killed
    /// is reported as a crash, which is not an error. This proves nothing against anyone who can
    /// read audit/key: the user who runs the server, and root.
    Verify,
    /// Remove old log files, and leave a sealed record of them.
    ///
    /// Removes whole files whose records were all written before WHEN, oldest first, up to the
    /// first that is in use or holds a newer record. The files are verified first; if one is
    /// broken, the command stops and removes nothing. The record names each file with its number of
    /// records and its last mac, so that `ringfence audit verify` accepts exactly these as missing.
    Prune(prune::AuditPruneArgs),
}

impl AuditCommand {
    fn name_and_scope(&self) -> (&'static str, &'static str) {
        match self {
            AuditCommand::Verify => ("verify", "it checks the whole log"),
            AuditCommand::Prune(_) => ("prune", "it removes whole files"),
        }
    }
}

impl AuditArgs {
    fn has_filters(&self) -> bool {
        self.tool.is_some()
            || self.session.is_some()
            || self.trace.is_some()
            || self.since.is_some()
    }
}

/// Runs `ringfence audit` and returns the exit code: 1 if `verify` found a problem.
pub fn run(args: AuditArgs, root: &Path, out: &mut dyn Write) -> Result<u8> {
    if let Some(command) = &args.command
        && (args.follow || args.json || args.has_filters())
    {
        let (name, scope) = command.name_and_scope();
        return Err(Error::invalid_arguments(format!(
            "`ringfence audit {name}` takes no filters: {scope}"
        ))
        .with_hint(format!("Remove the options before `{name}`; only --root is accepted there.")));
    }
    let result = match &args.command {
        Some(AuditCommand::Verify) => print_verification(root, out)?,
        Some(AuditCommand::Prune(prune_args)) => prune::run(prune_args, root, out)?,
        None => print_events(&args, root, out).map(|()| 0),
    };
    match result {
        // The reader closed the pipe early (`| head`); that is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(no_log_error(root)),
        Err(error) => Err(Error::new(Kind::Unavailable, "the audit log cannot be read or printed")
            .with_source(error)),
        Ok(code) => Ok(code),
    }
}

/// Returns the error for a root that no server has used yet.
fn no_log_error(root: &Path) -> Error {
    let message =
        format!("no server has used the root {} yet, so there is no audit log", root.display());
    Error::new(Kind::NotFound, message).with_hint(
        "Start a server with `ringfence serve`, or let a client start it; `ringfence call file.list` makes a first call. If a server uses another root, give it with `--root` (or SANDBOX_ROOT).",
    )
}

fn print_verification(root: &Path, out: &mut dyn Write) -> Result<io::Result<u8>> {
    let report = verify_log(root)?;
    let mut print = || {
        for file in &report.files {
            writeln!(
                out,
                "{}  {:>8}  {}",
                escape_line(&file.name),
                file.records,
                describe_state(file)
            )?;
        }
        for note in &report.notes {
            writeln!(out, "{}", escape_line(note))?;
        }
        if let Some(pruned) = &report.pruned {
            writeln!(out, "{}", format_pruned(pruned))?;
        }
        let total = format!(
            "{} in {}",
            format_count(report.records, "record"),
            format_count(report.files.len() as u64, "file")
        );
        match &report.problems[..] {
            [] => writeln!(out, "{total}: chain intact")?,
            [first, rest @ ..] => {
                writeln!(out, "BROKEN: {}", escape_line(&first.to_string()))?;
                for problem in rest {
                    writeln!(out, "  also: {}", escape_line(&problem.to_string()))?;
                }
                writeln!(
                    out,
                    "{total} verified; records after the first broken one in a file are not"
                )?;
            }
        }
        out.flush()?;
        Ok(u8::from(!report.problems.is_empty()))
    };
    Ok(print())
}

fn describe_state(file: &LogFileReport) -> String {
    match file.state {
        LogFileState::Closed => "closed".into(),
        LogFileState::Open => "open (in use)".into(),
        LogFileState::Crashed { torn: 0 } => {
            "crash: its process ended without closing the file".into()
        }
        LogFileState::Crashed { torn } => {
            format!("crash: torn tail, {} of an unfinished record", format_count(torn, "byte"))
        }
        LogFileState::Broken => "BROKEN".into(),
    }
}

fn format_pruned(pruned: &PruneSummary) -> String {
    let total = &pruned.total;
    let amount = format_files_and_records(total.files, total.records);
    let (before, last_time, by) =
        (format_time(&total.before), format_time(&pruned.ts), escape_line(&pruned.by));
    let verb = if total.files == 1 { "was" } else { "were" };
    format!("{amount} before {before} {verb} pruned, the last on {last_time} by `{by}`")
}

fn format_files_and_records(files: u64, records: u64) -> String {
    format!("{} ({})", format_count(files, "file"), format_count(records, "record"))
}

/// Formats a time stamp to the second, or the day given by the user.
fn format_time(ts: &str) -> String {
    escape_line(ts.get(..19).unwrap_or(ts)).replacen('T', " ", 1)
}

fn format_count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn print_events(args: &AuditArgs, root: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut reader = LogReader::new(root).skip_files_before(args.since.clone());
    let filter = EventFilter::new(args);
    let mut unmatched = UnmatchedFilters::new(args);
    let width = screen::stdout_width();
    loop {
        reader.read(|event| {
            unmatched.note_event(&event);
            if !filter.matches(&event) {
                return Ok(());
            }
            unmatched.has_match = true;
            print_event(args.json, &event, width, out)
        })?;
        out.flush()?;
        unmatched.report_once(args);
        if !args.follow {
            return Ok(());
        }
        if has_reader_left() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
}

/// Waits briefly before the next poll of the files. Returns true if the reader of our standard
/// output is gone, which would otherwise be noticed only at the next event.
fn has_reader_left() -> bool {
    let stdout = rustix::stdio::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let ready = poll(&mut fds, Some(&timeout)).unwrap_or(0);
    ready > 0 && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

fn print_event(
    json: bool,
    event: &LoggedEvent<'_>,
    width: Option<usize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if json {
        out.write_all(event.raw)?;
        return out.write_all(b"\n");
    }
    match event.parse() {
        Some(value) => match width.filter(|width| *width < FULL_LINE_WIDTH) {
            Some(width) => writeln!(out, "{}", format_event_narrow(&value, width)),
            None => writeln!(out, "{}", format_event(&value)),
        },
        None => {
            writeln!(out, "{:<26}  unreadable: {} line {}", "", escape_line(event.file), event.line)
        }
    }
}

/// Parses an age or a time into a prefix of a time stamp. Time stamps are UTC, so their order as
/// text is their order in time.
fn parse_since(text: &str) -> std::result::Result<String, String> {
    let syntax_error = || {
        "give an age such as 30s, 10m, 2h, 7d, or a UTC time such as 2026-11-15 or 2026-11-15T21:40:03Z".to_owned()
    };
    if let Some(age) = parse_duration(text) {
        // An age beyond the clock's range selects everything.
        return Ok(SystemTime::now().checked_sub(age).map_or_else(String::new, format_utc));
    }
    const TIME_PATTERN: &[u8] = b"0000-00-00T00:00:00.000000";
    let time = text.strip_suffix('Z').unwrap_or(text);
    let matches_pattern = |index: usize, byte: u8| {
        TIME_PATTERN.get(index).is_some_and(|expected| {
            if *expected == b'0' { byte.is_ascii_digit() } else { byte == *expected }
        })
    };
    let has_valid_length = matches!(time.len(), 10 | 13 | 16 | 19 | 21..=26);
    // A day that does not exist would sort after all others and hide every event.
    let is_existing_time = || {
        let within = |at: std::ops::Range<usize>, limit: u32| {
            time.get(at).is_none_or(|number| number.parse::<u32>().is_ok_and(|n| n < limit))
        };
        parse_day(&time[..10]).is_some()
            && within(11..13, 24)
            && within(14..16, 60)
            && within(17..19, 61)
    };
    if has_valid_length
        && time.bytes().enumerate().all(|(index, byte)| matches_pattern(index, byte))
        && is_existing_time()
    {
        Ok(time.to_owned())
    } else {
        Err(syntax_error())
    }
}

#[cfg(test)]
mod tests;
