//! Prints the findings for a person: a mark, the subject, and what to do.

use std::io::{self, IsTerminal, Write};

use jail::probe::ProbeOutcome;

use super::DoctorReport;
use super::trials::TrialResult;
use crate::base::visible;

/// Width of the first column.
const NAME_WIDTH: usize = 36;
/// Longest text in the second column, in characters.
const MAX_TEXT_CHARS: usize = 200;

/// Returns whether to use colour: standard output is a terminal and NO_COLOR is not set.
pub fn uses_colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes the report as text.
pub fn write_report(report: &DoctorReport, colour: bool, out: &mut impl Write) -> io::Result<()> {
    let host = &report.host;
    let user = if host.root { "root" } else { "an ordinary user" };
    writeln!(
        out,
        "ringfence {} on Linux {}, as {user}",
        report.version,
        escape_line(&host.kernel)
    )?;
    writeln!(out, "\nLayers, each tested in its own process")?;
    for layer in &report.layers {
        write_line(
            out,
            colour,
            layer.tried.outcome,
            layer.name,
            &layer.tried.text,
            layer.fix.as_deref(),
        )?;
    }
    writeln!(out, "\nThe whole sandbox, tested with a program inside that attacks it")?;
    for trial in &report.fences {
        write_line(
            out,
            colour,
            trial.outcome,
            &trial_name(trial),
            &trial.text,
            trial.fix.as_deref(),
        )?;
    }
    writeln!(out, "\nAlso")?;
    for health in &report.health {
        write_line(out, colour, health.outcome, health.name, &health.text, health.fix.as_deref())?;
    }
    write_verdict(report, out)
}

fn trial_name(trial: &TrialResult) -> String {
    match trial.tier.as_deref() {
        Some("namespaces") => format!("{}, in its own namespaces", trial.profile),
        Some("bwrap") => format!("{}, through bubblewrap", trial.profile),
        Some("root") => format!("{}, as root", trial.profile),
        _ => trial.profile.to_owned(),
    }
}

fn write_line(
    out: &mut impl Write,
    colour: bool,
    outcome: ProbeOutcome,
    name: &str,
    text: &str,
    fix: Option<&str>,
) -> io::Result<()> {
    let (mark, code) = match outcome {
        ProbeOutcome::Ok => ("ok", "32"),
        ProbeOutcome::Refused => ("no", "31"),
        ProbeOutcome::NotTried => ("-", "2"),
    };
    let mark = match colour {
        true => format!("\x1b[{code}m{mark:<2}\x1b[0m"),
        false => format!("{mark:<2}"),
    };
    writeln!(
        out,
        "{}",
        format!("  {mark}  {name:<NAME_WIDTH$}  {}", truncate_text(&escape_line(text))).trim_end()
    )?;
    match fix {
        Some(fix) => writeln!(out, "      fix: {}", escape_line(fix)),
        None => Ok(()),
    }
}

fn write_verdict(report: &DoctorReport, out: &mut impl Write) -> io::Result<()> {
    let verdict = &report.verdict;
    writeln!(out, "\nVerdict: {}", escape_line(&verdict.sentence))?;
    if let (false, Some(profile)) =
        (verdict.promises.is_empty(), verdict.offered.or(verdict.profile))
    {
        writeln!(out, "\n`{profile}` promises (* just verified from inside):")?;
        for promise in &verdict.promises {
            writeln!(out, "  {} {}", if promise.seen { '*' } else { '-' }, promise.text)?;
        }
        match verdict.limits_enforced {
            true => writeln!(
                out,
                "  - limits on memory and processes, enforced by {}",
                escape_line(&verdict.limits)
            )?,
            false => writeln!(
                out,
                "  - limits on memory and processes are advisory: they are polled, not enforced"
            )?,
        }
    }
    if !verdict.not_promised.is_empty() {
        writeln!(out, "It does not promise:")?;
        for text in &verdict.not_promised {
            writeln!(out, "  - {text}")?;
        }
    }
    Ok(())
}

/// Truncates a long reason; `--json` has it in full.
fn truncate_text(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

/// Escapes control characters: file names may contain anything and must not drive the terminal.
fn escape_line(text: &str) -> String {
    visible::escape_to_line(text)
}
