//! `ringfence rules test`: runs the examples given in the rules.

use std::io::Write;

use super::{
    RuleFiles, escape_line, format_count, output_error, read_rules, report_faults,
    report_missing_rules,
};
use crate::base::Result;

/// Runs `ringfence rules test` and returns the exit code: 1 if a file is broken.
pub fn run(files: &RuleFiles, out: &mut impl Write) -> Result<u8> {
    let (book, places) = read_rules(files)?;
    let broken = report_faults(&book);
    report_missing_rules(&book, &places);
    let (mut rules, mut examples) = (0, 0);
    for path in &book.files {
        let file = path.to_string_lossy();
        if book.faults.iter().any(|fault| fault.file == file) {
            writeln!(out, "{}: BROKEN", escape_line(&file)).map_err(output_error)?;
            continue;
        }
        let own = book.table.prefixes.iter().filter(|rule| rule.origin.file == file).count();
        let tried = book.example_counts.get(file.as_ref()).copied().unwrap_or_default();
        let told = match tried {
            0 => "no examples: add match = [\"…\"] to a rule to show what it is for".to_owned(),
            tried => format!("{} passed", format_count(tried, "example")),
        };
        writeln!(out, "{}: {}, {told}", escape_line(&file), format_count(own, "rule"))
            .map_err(output_error)?;
        rules += own;
        examples += tried;
    }
    let verdict = if broken { "BROKEN" } else { "ok" };
    writeln!(
        out,
        "{verdict}: {}, {}",
        format_count(rules, "valid rule"),
        format_count(examples, "example")
    )
    .map_err(output_error)?;
    Ok(u8::from(broken))
}
