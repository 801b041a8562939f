//! `ringfence rules`: what rules say, before anything runs.

mod check;
mod explain;
mod lint;
mod test;

use std::io::Write;
use std::path::PathBuf;

use crate::base::{Error, Result, visible};
use crate::config::Env;
use crate::rulebook::{Places, Policy, Rulebook};

/// See what your rules say about a command, try their examples, and look for rules that say too much
///
/// Rules are Codex's `.rules` files: `prefix_rule(pattern = ["git", "push"], decision = "prompt")`. Without --rules
/// they are read from /etc/codex/rules and $CODEX_HOME/rules (~/.codex/rules by default), and what the project here forbids or asks about in
/// .codex/rules is added to them.
#[derive(clap::Args)]
#[command(
    after_help = "Start with:  ringfence rules explain -- git push\nA first file: echo 'prefix_rule(pattern=[\"git\", \"push\"], decision=\"prompt\")' > ~/.codex/rules/my.rules"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Say what the rules say about a command, as JSON and exactly as `codex execpolicy check` does
    Check(check::Args),
    /// Try the examples (`match`, `not_match`) that stand in the rules
    Test(Files),
    /// Say in words which rule decides about a command, where it stands, and what would happen
    Explain(explain::Args),
    /// Warn about rules that let out more than they seem to, never decide or lead nowhere
    Lint(Files),
}

/// Which files are read.
#[derive(clap::Args)]
pub struct Files {
    /// A file to read in place of the usual ones; can be given more than once
    #[arg(short = 'r', long = "rules", value_name = "FILE")]
    rules: Vec<PathBuf>,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<u8> {
    match &args.command {
        Command::Check(args) => check::run(args, out),
        Command::Test(files) => test::run(files, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Lint(files) => lint::run(files, out),
    }
}

/// The rules, read once. As in the server this happens in a child, since a rules file is a program.
fn read(files: &Files) -> Result<(Rulebook, Places)> {
    let env = Env::of_process();
    let (places, workspace) = match files.rules.is_empty() {
        true => (Places::of(&env, Vec::new()), env.cwd.clone()),
        false => (Places::only(&env, files.rules.clone()), None),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("the rules cannot be read").source(error))?;
    let book = runtime.block_on(Policy::new(places.clone()).read_once(workspace.as_deref()));
    Ok((book, places))
}

/// Everything that is wrong, on standard error. Whether anything is.
fn report(book: &Rulebook) -> bool {
    let mut stderr = std::io::stderr().lock();
    for fault in &book.faults {
        // When standard error is gone there is nowhere left to say it.
        let _ = writeln!(stderr, "error: {fault}\n");
    }
    for ignored in &book.ignored {
        let _ = writeln!(stderr, "note: {}: {}", plain(&ignored.location()), plain(&ignored.what));
    }
    !book.faults.is_empty()
}

/// Where one would put rules when there are none.
fn report_none(book: &Rulebook, places: &Places) {
    if book.files.is_empty() && book.faults.is_empty() {
        let none = || format!("there are no rules in {}", places.shown());
        let _ = writeln!(
            std::io::stderr(),
            "note: {}",
            plain(&places.overlooked(book).unwrap_or_else(none))
        );
    }
}

fn unwritable(error: std::io::Error) -> Error {
    Error::internal("the output cannot be written").source(error)
}

/// Words of a file are shown as text and nothing else.
fn plain(text: &str) -> String {
    visible::one_line(text)
}

/// `1 rule`, `2 rules`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
