//! `ringfence rules test`: runs the examples given in the rules.

use std::io::Write;

use super::{Files, count, plain, read, report, report_none, unwritable};
use crate::base::Result;

/// Runs `ringfence rules test` and returns the exit code: 1 if a file is broken.
pub fn run(files: &Files, out: &mut impl Write) -> Result<u8> {
    let (book, places) = read(files)?;
    let broken = report(&book);
    report_none(&book, &places);
    let (mut rules, mut examples) = (0, 0);
    for path in &book.files {
        let file = path.to_string_lossy();
        if book.faults.iter().any(|fault| fault.file == file) {
            writeln!(out, "{}: BROKEN", plain(&file)).map_err(unwritable)?;
            continue;
        }
        let own = book.table.prefixes.iter().filter(|rule| rule.origin.file == file).count();
        let tried = book.examples.get(file.as_ref()).copied().unwrap_or_default();
        let told = match tried {
            0 => "no examples: add match = [\"…\"] to a rule to show what it is for".to_owned(),
            tried => format!("{} passed", count(tried, "example")),
        };
        writeln!(out, "{}: {}, {told}", plain(&file), count(own, "rule")).map_err(unwritable)?;
        rules += own;
        examples += tried;
    }
    let verdict = if broken { "BROKEN" } else { "ok" };
    writeln!(out, "{verdict}: {}, {}", count(rules, "valid rule"), count(examples, "example"))
        .map_err(unwritable)?;
    Ok(u8::from(broken))
}
