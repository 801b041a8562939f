//! `ringfence rules explain`: which rule decides, where it stands, and what would happen, in words.

use std::io::{self, Write};

use ::policy::{Decision, File, PrefixRule, Table};

use super::{Files, count, plain, read, report, report_none, unwritable};
use crate::base::Result;
use crate::rulebook::lint::words;
use crate::rulebook::{Rulebook, locate, unasked};

/// What holds for everything that a rule allows.
const CANNOT_LEAVE: &str = "What cannot leave runs in the sandbox, as without a rule: from a server that is root without `escalate_as`, for instance.";

/// Say in words which rule decides about a command, where it stands, and what would happen
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0, or 1 when a file cannot be read or is not sound.\n\nTry:  ringfence rules explain -- git push origin main"
)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<String>,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<u8> {
    let (book, places) = read(&args.files)?;
    let broken = report(&book);
    report_none(&book, &places);
    let Some((program, rest)) = args.command.split_first() else { return Ok(1) };
    let file = locate(program, &places.search_path);
    let found = Found { book: &book, program, rest, file };
    found.tell(&args.command, broken, out).map_err(unwritable)?;
    Ok(u8::from(broken))
}

struct Found<'a> {
    book: &'a Rulebook,
    program: &'a str,
    rest: &'a [String],
    /// What would really run, from here.
    file: Option<File>,
}

impl Found<'_> {
    fn tell(&self, command: &[String], broken: bool, out: &mut impl Write) -> io::Result<()> {
        let table = &self.book.table;
        let text = table.check(command, true);
        let at_run_time = self.at_run_time(table);
        let strictest = at_run_time.iter().map(|rule| rule.decision).max();

        let shown = typed(command);
        writeln!(out, "{}: {}", plain(&shown), summary(strictest))?;
        if !at_run_time.is_empty() {
            writeln!(out)?;
        }
        for rule in &at_run_time {
            tell_rule(rule, Some(rule.decision) == strictest, out)?;
        }

        writeln!(
            out,
            "\nAs text: {}",
            self.about_text(command, text.decision, text.matches.len())
        )?;
        writeln!(out, "\nAt run time: {}", self.about_file())?;
        for line in self.consequence(&at_run_time, strictest) {
            writeln!(out, "  {line}")?;
        }
        if is_script(command) {
            writeln!(out, "  The commands of the script are judged one by one, as they are run.")?;
        }
        if broken {
            writeln!(
                out,
                "  While a rules file is broken nothing leaves: what is allowed runs in the sandbox."
            )?;
        }
        Ok(())
    }

    /// Every rule that speaks of the file that would run, by whatever word, and begins as this command does. No rule
    /// hides another here.
    fn at_run_time<'t>(&self, table: &'t Table) -> Vec<&'t PrefixRule> {
        let same =
            |one: &File, other: &File| (one.device, one.inode) == (other.device, other.inode);
        let speaks = |word: &str| {
            let program = table.programs.get(word);
            word == self.program
                || program.zip(self.file.as_ref()).is_some_and(|(program, file)| {
                    program.files.iter().any(|other| same(other, file))
                })
        };
        // What tightens holds for every file of that name, wherever it lies.
        let name = self.program.rsplit('/').next();
        let tightens = |rule: &PrefixRule| {
            rule.decision != Decision::Allow && Some(rule.program.as_str()) == name
        };
        let rules = table.prefixes.iter().filter(|rule| speaks(&rule.program) || tightens(rule));
        let mut rules: Vec<&PrefixRule> =
            rules.filter(|rule| rule.begins(&rule.program, self.rest)).collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.decision));
        rules
    }

    /// What happens to the command, in sentences.
    fn consequence(&self, rules: &[&PrefixRule], decision: Option<Decision>) -> Vec<String> {
        let asked = rules
            .iter()
            .filter(|rule| rule.decision == Decision::Allow && !rule.project)
            .map(|rule| {
                let mut prefix = vec![rule.program.clone()];
                prefix.extend(self.rest.iter().take(rule.rest.len()).cloned());
                (prefix.len(), unasked::reason_to_ask(&prefix, self.rest.len() + 1))
            });
        // The rule that says most decides, as at run time.
        let asked = asked.max_by_key(|(length, _)| *length).and_then(|(_, reason)| reason);
        let said: &[&str] = match decision {
            None => &["It runs in the sandbox, like everything that no rule speaks of."],
            Some(Decision::Forbidden) => {
                &["It does not run: it ends with exit code 1 and a line that says why."]
            }
            Some(Decision::Prompt) => &[
                "Someone is asked first. After a yes it runs: in the sandbox, or outside where the server was told so (--escalate outside or wider).",
                "A no, silence or no one to ask is exit code 1.",
            ],
            Some(Decision::Allow) if asked.is_none() => &[
                "It runs: in the sandbox, or outside where the server was told so (--escalate outside or wider).",
                CANNOT_LEAVE,
            ],
            Some(Decision::Allow) => &[
                "It runs in the sandbox. Where the server lets commands out (--escalate outside or wider), someone is asked whether it runs outside or inside; where no one can be asked it runs inside (`escalate_risky = \"ask\"` under [policy]; \"inside\" and \"outside\" decide without a question).",
                CANNOT_LEAVE,
            ],
        };
        let mut lines: Vec<String> = said.iter().map(|line| (*line).to_owned()).collect();
        if let Some(reason) = asked.filter(|_| decision == Some(Decision::Allow)) {
            lines.insert(
                1,
                format!(
                    "It has more words than its rule names, or the rule is one word: {reason}. A rule with every word of \
                     the command lets it leave unasked."
                ),
            );
        }
        lines
    }

    fn about_text(&self, command: &[String], decision: Option<Decision>, matches: usize) -> String {
        let plainly = self.book.table.check(command, false).decision;
        let told = match (decision, matches) {
            (None, _) => "no rule matches".to_owned(),
            (Some(decision), 1) => format!("one rule matches and says {}", word(decision)),
            (Some(decision), number) => {
                format!(
                    "{} match, and the strictest says {}",
                    count(number, "rule"),
                    word(decision)
                )
            }
        };
        let quirk = match plainly == decision {
            true => "",
            false => {
                "; without --resolve-host-executables `rules check` matches no rule on a name to this path"
            }
        };
        format!("{told}. This is what Codex answers{quirk}.")
    }

    fn about_file(&self) -> String {
        let program = plain(self.program);
        match &self.file {
            Some(file) if file.path == self.program => {
                "the real file counts, whatever starts it and as what.".to_owned()
            }
            Some(file) => {
                let path = plain(&file.path);
                format!(
                    "the real file counts, whatever starts it and as what: from here `{program}` is {path}."
                )
            }
            None => format!("the real file counts, and from here `{program}` leads to none."),
        }
    }
}

fn tell_rule(rule: &PrefixRule, decides: bool, out: &mut impl Write) -> io::Result<()> {
    let mark = if decides { '>' } else { ' ' };
    let place = format!("{}:{}", rule.origin.file, rule.origin.line);
    writeln!(
        out,
        "{mark} {:<9}  {}  ({})",
        word(rule.decision),
        plain(&words(rule)),
        plain(&place)
    )?;
    match &rule.justification {
        Some(why) => writeln!(out, "             {}", plain(why)),
        None => Ok(()),
    }
}

fn word(decision: Decision) -> &'static str {
    match decision {
        Decision::Allow => "allow",
        Decision::Prompt => "prompt",
        Decision::Forbidden => "forbidden",
    }
}

fn summary(decision: Option<Decision>) -> &'static str {
    match decision {
        None => "no rule speaks of it",
        Some(Decision::Allow) => "allowed",
        Some(Decision::Prompt) => "asked about",
        Some(Decision::Forbidden) => "forbidden",
    }
}

/// A shell with a script among its arguments.
fn is_script(command: &[String]) -> bool {
    let shell = command.first().and_then(|word| word.rsplit('/').next());
    shell.is_some_and(|name| ["sh", "bash", "zsh", "dash", "ksh"].contains(&name))
        && command.get(1).is_some_and(|flag| flag.starts_with('-') && flag.ends_with('c'))
}

/// As somebody would type it, near enough to be read.
fn typed(command: &[String]) -> String {
    let quote = |word: &String| match word.is_empty()
        || word.contains(|c: char| c.is_whitespace() || "'\"$`\\;&|<>()*?#".contains(c))
    {
        true => format!("'{}'", word.replace('\'', "'\\''")),
        false => word.clone(),
    };
    command.iter().map(quote).collect::<Vec<_>>().join(" ")
}
