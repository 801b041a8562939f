//! Examples of a rule: commands that it must match, and commands that it must not match.

use policy::{PrefixRule, RuleTable};
use starlark::values::Value;
use starlark::values::list::ListRef;

use crate::HostExecutables;
use crate::error::TextSpan;

/// Examples of one `prefix_rule` call. They are tested after the whole file has been read, because
/// `host_executable` calls further down affect them too.
pub struct RuleExamples {
    /// The rules that the call created: one for each alternative of the first word.
    pub rules: Vec<PrefixRule>,
    /// Commands that must match.
    pub matching: Vec<Vec<String>>,
    /// Commands that must not match.
    pub not_matching: Vec<Vec<String>>,
    /// Location of the call.
    pub span: TextSpan,
}

impl RuleExamples {
    /// Returns the number of examples.
    pub fn count(&self) -> usize {
        self.matching.len() + self.not_matching.len()
    }

    /// Returns a message for every example that fails.
    pub fn find_failures(&self, programs: &HostExecutables) -> Vec<String> {
        let table = RuleTable {
            prefixes: self.rules.clone(),
            host_executables: programs.clone(),
            ..RuleTable::default()
        };
        let matches =
            |example: &&Vec<String>| table.check_command(example, true).decision.is_some();
        let missing_matches = self.matching.iter().filter(|example| !matches(example));
        let wrong_matches = self.not_matching.iter().filter(matches);
        let wrong_matches = wrong_matches.map(|example| {
            format!("`not_match` lists `{}`, but the rule matches it", format_command(example))
        });
        missing_matches
            .map(|example| {
                format!(
                    "`match` lists `{}`, but the rule does not match it",
                    format_command(example)
                )
            })
            .chain(wrong_matches)
            .collect()
    }
}

/// Formats a command as a user would type it.
fn format_command(example: &[String]) -> String {
    shlex::try_join(example.iter().map(String::as_str)).unwrap_or_else(|_| example.join(" "))
}

/// Parses a command: a line in shell syntax, or a list of words.
pub fn parse_command(value: Value<'_>) -> Result<Vec<String>, String> {
    let words = if let Some(line) = value.unpack_str() {
        shlex::split(line)
            .ok_or_else(|| format!("an example has a quote that is not closed ({line:?})"))?
    } else if let Some(list) = ListRef::from_value(value) {
        list.content()
            .iter()
            .map(|word| expect_string(*word, "the words of an example"))
            .collect::<Result<_, _>>()?
    } else {
        return Err(format!(
            "an example must be a string or a list of strings (got {})",
            value.get_type()
        ));
    };
    if words.is_empty() { Err("an example must not be empty".to_owned()) } else { Ok(words) }
}

/// Returns the string, or an error that names the actual type.
pub fn expect_string(value: Value<'_>, what: &str) -> Result<String, String> {
    match value.unpack_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("{what} must be strings (got {})", value.get_type())),
    }
}
