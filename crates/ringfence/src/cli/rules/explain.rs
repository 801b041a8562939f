//! `ringfence rules explain`: says which rule decides, where it is defined, and what would happen.

use std::io::{self, Write};

use ::policy::{Decision, HostFile, PrefixRule, RuleTable};

use super::{
    RuleFiles, escape_line, format_count, output_error, read_rules, report_faults,
    report_missing_rules,
};
use crate::base::{Result, shell_quote};
use crate::rulebook::lint::format_rule;
use crate::rulebook::{Rulebook, escalation_risk, locate_program};

/// Applies to everything that a rule allows.
const CANNOT_LEAVE: &str = "A command that cannot leave runs in the sandbox, as without a rule: for instance, if the server runs as root without `escalate_as`.";

/// Explain which rule decides about a command, where it is defined, and what would happen
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0; 1 if a file cannot be read or is invalid.\n\nTry:  ringfence rules explain -- git push origin main"
)]
pub struct RulesExplainArgs {
    #[command(flatten)]
    files: RuleFiles,
    /// Command to explain, with its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<String>,
}

/// Runs `ringfence rules explain` and returns the exit code.
pub fn run(args: &RulesExplainArgs, out: &mut impl Write) -> Result<u8> {
    let (rulebook, locations) = read_rules(&args.files)?;
    let has_faults = report_faults(&rulebook);
    report_missing_rules(&rulebook, &locations);
    let Some((program, rest)) = args.command.split_first() else { return Ok(1) };
    let file = locate_program(program, &locations.search_path);
    let explanation = RuleExplanation { book: &rulebook, program, rest, file };
    explanation.write_to(&args.command, has_faults, out).map_err(output_error)?;
    Ok(u8::from(has_faults))
}

struct RuleExplanation<'a> {
    book: &'a Rulebook,
    program: &'a str,
    rest: &'a [String],
    /// The file that would actually run when started from here.
    file: Option<HostFile>,
}

impl RuleExplanation<'_> {
    fn write_to(
        &self,
        command: &[String],
        has_faults: bool,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let table = &self.book.table;
        let text_check = table.check_command(command, true);
        let at_run_time = self.rules_at_run_time(table);
        let strictest = at_run_time.iter().map(|rule| rule.decision).max();

        let quoted_command = shell_quote::quote_command(command.iter().map(String::as_str));
        writeln!(out, "{}: {}", escape_line(&quoted_command), summarize_decision(strictest))?;
        if !at_run_time.is_empty() {
            writeln!(out)?;
        }
        for rule in &at_run_time {
            write_rule(rule, Some(rule.decision) == strictest, out)?;
        }

        writeln!(
            out,
            "\nText match, as in Codex: {}",
            self.describe_text_match(command, text_check.decision, text_check.matches.len())
        )?;
        writeln!(out, "\nAt run time: {}", self.describe_file())?;
        for line in self.describe_consequence(&at_run_time, strictest) {
            writeln!(out, "  {line}")?;
        }
        if runs_script(command) {
            writeln!(out, "  The commands in the script are judged one by one as they run.")?;
        }
        if has_faults {
            writeln!(
                out,
                "  While a rules file is broken, nothing leaves: allowed commands run in the sandbox."
            )?;
        }
        Ok(())
    }

    /// Returns every rule that applies to the file that would run, under any of its names, and
    /// whose prefix matches this command. No rule hides another here.
    fn rules_at_run_time<'t>(&self, table: &'t RuleTable) -> Vec<&'t PrefixRule> {
        let is_same_file = |one: &HostFile, other: &HostFile| {
            (one.device, one.inode) == (other.device, other.inode)
        };
        let names_program = |rule_program: &str| {
            let program = table.programs.get(rule_program);
            rule_program == self.program
                || program.zip(self.file.as_ref()).is_some_and(|(program, file)| {
                    program.files.iter().any(|other| is_same_file(other, file))
                })
        };
        // Rules that restrict apply to every file of that name, in any directory.
        let name = self.program.rsplit('/').next();
        let matches_name = |rule: &PrefixRule| {
            rule.decision != Decision::Allow && Some(rule.program.as_str()) == name
        };
        let rules =
            table.prefixes.iter().filter(|rule| names_program(&rule.program) || matches_name(rule));
        let mut rules: Vec<&PrefixRule> =
            rules.filter(|rule| rule.matches_command(&rule.program, self.rest)).collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.decision));
        rules
    }

    /// Describes what happens to the command.
    fn describe_consequence(
        &self,
        rules: &[&PrefixRule],
        decision: Option<Decision>,
    ) -> Vec<String> {
        let ask_reason = rules
            .iter()
            .filter(|rule| rule.decision == Decision::Allow && !rule.project)
            .map(|rule| {
                let mut prefix = vec![rule.program.clone()];
                prefix.extend(self.rest.iter().take(rule.rest.len()).cloned());
                (prefix.len(), escalation_risk::reason_to_ask(&prefix, self.rest.len() + 1))
            });
        // The most specific rule decides, as at run time.
        let ask_reason =
            ask_reason.max_by_key(|(length, _)| *length).and_then(|(_, reason)| reason);
        let sentences: &[&str] = match decision {
            None => &["It runs in the sandbox, like everything that no rule matches."],
            Some(Decision::Forbidden) => {
                &["It does not run: it fails with exit code 1 and a message that says why."]
            }
            Some(Decision::Prompt) => &[
                "It needs approval. Once approved, it runs in the sandbox, or outside if the server is configured so (--escalate outside or wider).",
                "If it is denied, not answered, or no one can be asked, it fails with exit code 1.",
            ],
            Some(Decision::Allow) if ask_reason.is_none() => &[
                "It runs in the sandbox, or outside if the server is configured so (--escalate outside or wider).",
                CANNOT_LEAVE,
            ],
            Some(Decision::Allow) => &[
                "It runs in the sandbox. If the server lets commands out (--escalate outside or wider), someone is asked whether to run it outside or inside; if no one can be asked, it runs inside (`escalate_risky = \"ask\"` under [policy]; \"inside\" and \"outside\" decide without asking).",
                CANNOT_LEAVE,
            ],
        };
        let mut lines: Vec<String> = sentences.iter().map(|line| (*line).to_owned()).collect();
        if let Some(reason) = ask_reason.filter(|_| decision == Some(Decision::Allow)) {
            lines.insert(
                1,
                format!(
                    "Approval is needed because the rule does not list every word of the command, or is a single word: \
                     {reason}. A rule of two or more words that lists the whole command lets it leave without approval."
                ),
            );
        }
        lines
    }

    fn describe_text_match(
        &self,
        command: &[String],
        decision: Option<Decision>,
        matches: usize,
    ) -> String {
        let plain_decision = self.book.table.check_command(command, false).decision;
        let summary = match (decision, matches) {
            (None, _) => "no rule matches".to_owned(),
            (Some(decision), 1) => format!("{}, by one rule", decision_name(decision)),
            (Some(decision), number) => {
                format!(
                    "{}, the strictest of {}",
                    decision_name(decision),
                    format_count(number, "matching rule")
                )
            }
        };
        let path_note = match plain_decision == decision {
            true => "",
            false => {
                "; without --resolve-host-executables, `rules check` does not match rules for a name to this path"
            }
        };
        format!("{summary}{path_note}.")
    }

    fn describe_file(&self) -> String {
        let program = escape_line(self.program);
        match &self.file {
            Some(file) if file.path == self.program => {
                "rules apply to the executable file itself, whatever starts it and under any name."
                    .to_owned()
            }
            Some(file) => {
                let path = escape_line(&file.path);
                format!(
                    "rules apply to the executable file itself, whatever starts it and under any name. Here `{program}` resolves to {path}."
                )
            }
            None => format!(
                "rules apply to the executable file itself, but `{program}` was not found here."
            ),
        }
    }
}

fn write_rule(rule: &PrefixRule, is_decisive: bool, out: &mut impl Write) -> io::Result<()> {
    let mark = if is_decisive { '>' } else { ' ' };
    let location = format!("{}:{}", rule.origin.file, rule.origin.line);
    writeln!(
        out,
        "{mark} {:<9}  {}  ({})",
        decision_name(rule.decision),
        escape_line(&format_rule(rule)),
        escape_line(&location)
    )?;
    match &rule.justification {
        Some(justification) => writeln!(out, "             {}", escape_line(justification)),
        None => Ok(()),
    }
}

fn decision_name(decision: Decision) -> &'static str {
    match decision {
        Decision::Allow => "allow",
        Decision::Prompt => "prompt",
        Decision::Forbidden => "forbidden",
    }
}

fn summarize_decision(decision: Option<Decision>) -> &'static str {
    match decision {
        None => "no rule matches",
        Some(Decision::Allow) => "allowed",
        Some(Decision::Prompt) => "needs approval",
        Some(Decision::Forbidden) => "forbidden",
    }
}

/// Returns whether the command is a shell with an inline script (`-c`).
fn runs_script(command: &[String]) -> bool {
    let shell = command.first().and_then(|program| program.rsplit('/').next());
    shell.is_some_and(|name| ["sh", "bash", "zsh", "dash", "ksh"].contains(&name))
        && command.get(1).is_some_and(|flag| flag.starts_with('-') && flag.ends_with('c'))
}
