//! `ringfence rules test`: runs the examples given in the rules.

use std::io::Write;

use super::{
    RuleFiles, escape_line, format_count, output_error, read_rules, report_faults,
    report_missing_rules,
};
use crate::base::Result;

/// Runs `ringfence rules test` and returns the exit code: 1 if a file is broken.
pub fn run(files: &RuleFiles, out: &mut impl Write) -> Result<u8> {
    let (rulebook, locations) = read_rules(files)?;
    let has_faults = report_faults(&rulebook);
    report_missing_rules(&rulebook, &locations);
    let (mut rules, mut examples) = (0, 0);
    for path in &rulebook.files {
        let file = path.to_string_lossy();
        if rulebook.faults.iter().any(|rules_error| rules_error.file == file) {
            writeln!(out, "{}: BROKEN", escape_line(&file)).map_err(output_error)?;
            continue;
        }
        let rule_count =
            rulebook.table.prefixes.iter().filter(|rule| rule.origin.file == file).count();
        let example_count = rulebook.example_counts.get(file.as_ref()).copied().unwrap_or_default();
        let example_text = match example_count {
            0 => "no examples: add match = [\"…\"] to a rule to show what it is for".to_owned(),
            example_count => format!("{} passed", format_count(example_count, "example")),
        };
        writeln!(
            out,
            "{}: {}, {example_text}",
            escape_line(&file),
            format_count(rule_count, "rule")
        )
        .map_err(output_error)?;
        rules += rule_count;
        examples += example_count;
    }
    let verdict = if has_faults { "BROKEN" } else { "ok" };
    writeln!(
        out,
        "{verdict}: {}, {}",
        format_count(rules, "valid rule"),
        format_count(examples, "example")
    )
    .map_err(output_error)?;
    Ok(u8::from(has_faults))
}
