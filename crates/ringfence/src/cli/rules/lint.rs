//! `ringfence rules lint`: what is worth a second look.

use std::io::Write;

use super::{Files, count, plain, read, report, report_none, unwritable};
use crate::base::Result;
use crate::policy::lint::lint;

pub fn run(files: &Files, out: &mut impl Write) -> Result<u8> {
    let (book, places) = read(files)?;
    let broken = report(&book);
    report_none(&book, &places);
    let warnings = lint(&book.table);
    for warning in &warnings {
        let origin = &book.table.prefixes[warning.rule].origin;
        writeln!(out, "{}:{}: {}", plain(&origin.file), origin.line, plain(&warning.what)).map_err(unwritable)?;
    }
    let summary = match warnings.len() {
        0 => format!("{}, nothing to warn about", count(book.table.prefixes.len(), "rule")),
        number => format!(
            "{}. What is allowed leaves the sandbox only where the server was told so (--escalate outside or wider); of \
             these programs with the rule's exact words alone, otherwise after a question, and where no one can be asked \
             not at all (`escalate_risky` under [policy]).",
            count(number, "warning")
        ),
    };
    writeln!(out, "{summary}").map_err(unwritable)?;
    Ok(u8::from(broken || !warnings.is_empty()))
}
