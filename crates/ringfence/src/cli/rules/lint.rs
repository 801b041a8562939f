//! `ringfence rules lint`: what is worth a second look.

use std::io::Write;

use super::{Files, count, plain, read, report, report_none, unwritable};
use crate::base::Result;
use crate::rulebook::lint::{lint, notes};

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
            "{}. What is allowed leaves the sandbox only where the server was told so (--escalate outside or wider): \
             unasked with the rule's exact words alone, otherwise after a question, and where no one can be asked not at \
             all (`escalate_risky` under [policy]).",
            count(number, "warning")
        ),
    };
    writeln!(out, "{summary}").map_err(unwritable)?;
    Ok(u8::from(broken || !warnings.is_empty()))
}
