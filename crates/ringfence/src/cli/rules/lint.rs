//! `ringfence rules lint`: warns about rules that are probably not what their author meant.

use std::io::Write;

use super::{
    RuleFiles, escape_line, format_count, output_error, read_rules, report_faults,
    report_missing_rules,
};
use crate::base::Result;
use crate::rulebook::lint::{collect_notes, lint_rules};

/// Runs `ringfence rules lint` and returns the exit code: 1 if there are errors or warnings.
pub fn run(files: &RuleFiles, out: &mut impl Write) -> Result<u8> {
    let (rulebook, locations) = read_rules(files)?;
    let has_faults = report_faults(&rulebook);
    report_missing_rules(&rulebook, &locations);
    let warnings = lint_rules(&rulebook.table);
    let notes = collect_notes(&rulebook.table);
    let lines = warnings
        .iter()
        .map(|warning| ("", warning))
        .chain(notes.iter().map(|note| ("note: ", note)));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_by_key(|(_, line)| line.rule);
    for (mark, line) in lines {
        let origin = &rulebook.table.prefixes[line.rule].origin;
        writeln!(
            out,
            "{}:{}: {mark}{}",
            escape_line(&origin.file),
            origin.line,
            escape_line(&line.message)
        )
        .map_err(output_error)?;
    }
    let summary = match warnings.len() {
        0 => format!(
            "{}, nothing to warn about",
            format_count(rulebook.table.prefixes.len(), "rule")
        ),
        number => format!(
            "{}. Allowed commands leave the sandbox only if the server is configured so (--escalate outside or wider): \
             without approval only with the rule's exact words, otherwise after approval, and not at all if no one can \
             be asked (`escalate_risky` under [policy]).",
            format_count(number, "warning")
        ),
    };
    writeln!(out, "{summary}").map_err(output_error)?;
    Ok(u8::from(has_faults || !warnings.is_empty()))
}
