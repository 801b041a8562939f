//! `ringfence rules`: evaluates, tests and lints rules without running anything.

mod check;
mod explain;
mod lint;
mod test;

use std::io::Write;
use std::path::PathBuf;

use crate::base::{Error, Result, visible};
use crate::config::ProcessEnv;
use crate::rulebook::{RuleLocations, Rulebook, RulebookCache};

/// Show what your rules decide about a command, run their examples, and find rules that allow too
/// much
///
/// Rules are Codex's `.rules` files: `prefix_rule(pattern = ["git", "push"], decision = "prompt")`.
/// Without --rules they are read from /etc/codex/rules and $CODEX_HOME/rules (~/.codex/rules by
/// default); `forbidden` and `prompt` rules in this project's .codex/rules are added.
#[derive(clap::Args)]
#[command(
    after_help = "Start with:  ringfence rules explain -- git push\nA first file: echo 'prefix_rule(pattern=[\"git\", \"push\"], decision=\"prompt\")' > ~/.codex/rules/my.rules"
)]
pub struct RulesArgs {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(clap::Subcommand)]
enum RulesCommand {
    /// Print the verdict on a command as JSON, exactly like `codex execpolicy check`
    Check(check::RulesCheckArgs),
    /// Run the examples (`match`, `not_match`) in the rules
    Test(RuleFiles),
    /// Explain which rule decides about a command, where it is defined, and what would happen
    Explain(explain::RulesExplainArgs),
    /// Warn about rules that allow more than they seem to, never decide anything or match no
    /// program
    Lint(RuleFiles),
}

/// Rule files to read.
#[derive(clap::Args)]
pub struct RuleFiles {
    /// Read this file instead of the usual ones; may be repeated
    #[arg(short = 'r', long = "rules", value_name = "FILE")]
    rules: Vec<PathBuf>,
}

/// Runs `ringfence rules` and returns the exit code.
pub fn run(args: &RulesArgs, out: &mut impl Write) -> Result<u8> {
    match &args.command {
        RulesCommand::Check(args) => check::run(args, out),
        RulesCommand::Test(files) => test::run(files, out),
        RulesCommand::Explain(args) => explain::run(args, out),
        RulesCommand::Lint(files) => lint::run(files, out),
    }
}

/// Reads the rules once. As in the server, this happens in a child process, because a rules file is
/// a program.
fn read_rules(files: &RuleFiles) -> Result<(Rulebook, RuleLocations)> {
    let env = ProcessEnv::from_process();
    let (locations, workspace) = match files.rules.is_empty() {
        true => (RuleLocations::from_env(&env, Vec::new()), env.cwd.clone()),
        false => (RuleLocations::from_files(&env, files.rules.clone()), None),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("the rules cannot be read").with_source(error))?;
    let rulebook =
        runtime.block_on(RulebookCache::new(locations.clone()).load_once(workspace.as_deref()));
    Ok((rulebook, locations))
}

/// Prints all errors and notes to standard error. Returns whether there are errors.
fn report_faults(rulebook: &Rulebook) -> bool {
    let mut stderr = std::io::stderr().lock();
    for rules_error in &rulebook.faults {
        // If standard error is closed, there is nowhere left to report to.
        let _ = writeln!(stderr, "error: {rules_error}\n");
    }
    for ignored in &rulebook.ignored {
        let _ = writeln!(
            stderr,
            "note: {}: {}",
            escape_line(&ignored.location()),
            escape_line(&ignored.message)
        );
    }
    !rulebook.faults.is_empty()
}

/// If there are no rules, notes where they would be read from.
fn report_missing_rules(rulebook: &Rulebook, locations: &RuleLocations) {
    if rulebook.files.is_empty() && rulebook.faults.is_empty() {
        let default_note = || format!("no rules found in {}", locations.display_text());
        let _ = writeln!(
            std::io::stderr(),
            "note: {}",
            escape_line(&locations.unused_rules_warning(rulebook).unwrap_or_else(default_note))
        );
    }
}

fn output_error(error: std::io::Error) -> Error {
    Error::internal("the output cannot be written").with_source(error)
}

/// Escapes control characters: text from a file must not drive the terminal.
fn escape_line(text: &str) -> String {
    visible::escape_to_line(text)
}

/// Formats a count: `1 rule`, `2 rules`.
fn format_count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
