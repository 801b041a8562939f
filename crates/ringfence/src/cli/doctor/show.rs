//! Prints the findings for a person: a mark, the subject, and what to do.

use std::io::{self, Write};

use jail::probe::ProbeOutcome;

use super::DoctorReport;
use super::trials::TrialResult;
use crate::base::visible;
use crate::cli::screen::{paint, stdout_width, uses_colour, wrap_line};

/// Width of the first column.
const NAME_WIDTH: usize = 36;
/// Longest text in the second column, in characters.
const MAX_TEXT_CHARS: usize = 200;

/// How the report is drawn.
#[derive(Clone, Copy)]
pub struct ReportStyle {
    colour: bool,
    /// Width of the terminal; `None` writes whole lines.
    width: Option<usize>,
}

impl ReportStyle {
    /// Returns the style for standard output.
    pub fn for_stdout() -> ReportStyle {
        ReportStyle { colour: uses_colour(&io::stdout()), width: stdout_width() }
    }
}

/// Writes the report as text.
pub fn write_report(
    report: &DoctorReport,
    style: ReportStyle,
    out: &mut impl Write,
) -> io::Result<()> {
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
            style,
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
            style,
            trial.outcome,
            &trial_name(trial),
            &trial.text,
            trial.fix.as_deref(),
        )?;
    }
    writeln!(out, "\nAlso")?;
    for health in &report.health {
        write_line(out, style, health.outcome, health.name, &health.text, health.fix.as_deref())?;
    }
    write_verdict(report, style.width, out)
}

fn trial_name(trial: &TrialResult) -> String {
    match trial.tier.as_deref() {
        Some("namespaces") => format!("{}, in its own namespaces", trial.profile),
        Some("bwrap") => format!("{}, through bubblewrap", trial.profile),
        Some("root") => format!("{}, as root", trial.profile),
        Some("mounts") => format!("{}, by mounts alone", trial.profile),
        _ => trial.profile.to_owned(),
    }
}

fn write_line(
    out: &mut impl Write,
    style: ReportStyle,
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
    let line = format!("  {mark:<2}  {name:<NAME_WIDTH$}  {}", truncate_text(&escape_line(text)));
    let line = wrap_line(line.trim_end(), style.width, NAME_WIDTH + 8);
    // Coloured after it was wrapped: the codes have no width.
    let marked = line.strip_prefix(&format!("  {mark:<2}")).unwrap_or_default();
    writeln!(out, "  {}{marked}", paint(&format!("{mark:<2}"), code, style.colour))?;
    match fix {
        Some(fix) => {
            let line = format!("      fix: {}", escape_line(fix));
            writeln!(out, "{}", wrap_line(&line, style.width, 11))
        }
        None => Ok(()),
    }
}

fn write_verdict(
    report: &DoctorReport,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let verdict = &report.verdict;
    let sentence = format!("Verdict: {}", escape_line(&verdict.sentence));
    writeln!(out, "\n{}", wrap_line(&sentence, width, 0))?;
    if let (false, Some(profile)) =
        (verdict.promises.is_empty(), verdict.offered.or(verdict.profile))
    {
        writeln!(out, "\n`{profile}` promises (* just verified from inside):")?;
        for promise in &verdict.promises {
            let line = format!("  {} {}", if promise.seen { '*' } else { '-' }, promise.text);
            writeln!(out, "{}", wrap_line(&line, width, 4))?;
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
            writeln!(out, "{}", wrap_line(&format!("  - {text}"), width, 4))?;
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
