//! `ringfence rules lint`: warns about rules that are probably not what their author meant.

use std::io::Write;

use super::{Files, count, plain, read, report, report_none, unwritable};
use crate::base::Result;
use crate::rulebook::lint::{lint, notes};

/// Runs `ringfence rules lint` and returns the exit code: 1 if there are errors or warnings.
pub fn run(files: &Files, out: &mut impl Write) -> Result<u8> {
    let (book, places) = read(files)?;
    let broken = report(&book);
    report_none(&book, &places);
    let warnings = lint(&book.table);
    let notes = notes(&book.table);
    let lines = warnings
        .iter()
        .map(|warning| ("", warning))
        .chain(notes.iter().map(|note| ("note: ", note)));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_by_key(|(_, line)| line.rule);
    for (mark, line) in lines {
        let origin = &book.table.prefixes[line.rule].origin;
        writeln!(out, "{}:{}: {mark}{}", plain(&origin.file), origin.line, plain(&line.what))
            .map_err(unwritable)?;
    }
    let summary = match warnings.len() {
        0 => format!("{}, nothing to warn about", count(book.table.prefixes.len(), "rule")),
        number => format!(
            "{}. Allowed commands leave the sandbox only if the server is configured so (--escalate outside or wider): \
             without approval only with the rule's exact words, otherwise after approval, and not at all if no one can \
             be asked (`escalate_risky` under [policy]).",
            count(number, "warning")
        ),
    };
    writeln!(out, "{summary}").map_err(unwritable)?;
    Ok(u8::from(broken || !warnings.is_empty()))
}
