//! Says why `ringfence audit` shows nothing: an empty log, or filters that nothing matches.

use std::collections::BTreeSet;
use std::io::Write;

use super::AuditArgs;
use super::format_event::escape_line;
use crate::audit::read::LoggedEvent;
use crate::base::suggest::suggest_names;
use crate::config::BUILT_IN_TOOLS;
use crate::tools::with_underscores;

/// Most names that are suggested.
const MAX_SUGGESTIONS: usize = 3;
/// Most names that are remembered.
const MAX_TOOLS: usize = 1_000;

/// What was seen in the log so far.
#[derive(Default)]
pub struct UnmatchedFilters {
    pub has_match: bool,
    has_event: bool,
    /// Names of the tools in the log.
    tools: BTreeSet<String>,
    is_reported: bool,
}

impl UnmatchedFilters {
    /// Notes an event, whether it matches or not.
    pub fn note_event(&mut self, event: &LoggedEvent) {
        self.has_event = true;
        let tool = event.value.as_ref().and_then(|value| value["tool"].as_str());
        // A caller can make up any number of names.
        if let Some(tool) = tool.filter(|tool| !self.tools.contains(*tool))
            && self.tools.len() < MAX_TOOLS
        {
            self.tools.insert(tool.to_owned());
        }
    }

    /// Says on standard error, once, why nothing was printed. Standard output stays for events.
    pub fn report_once(&mut self, args: &AuditArgs) {
        if self.has_match || std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        // If standard error is closed, there is nowhere left to report to.
        let _ = writeln!(std::io::stderr(), "{}", self.explain(args));
    }

    fn explain(&self, args: &AuditArgs) -> String {
        if !self.has_event {
            return "The audit log is empty.".to_owned();
        }
        let Some(tool) = &args.tool else {
            return "No event matches these filters.".to_owned();
        };
        let is_same = |other: &str| with_underscores(other) == with_underscores(tool);
        let shown = escape_line(tool);
        if self.tools.iter().any(|other| is_same(other)) {
            return format!("No event of `{shown}` matches the other filters.");
        }
        if BUILT_IN_TOOLS.iter().any(|other| is_same(other)) {
            return format!("There are no events of `{shown}` in the log.");
        }
        let known: BTreeSet<&str> =
            BUILT_IN_TOOLS.iter().copied().chain(self.tools.iter().map(String::as_str)).collect();
        let known: Vec<&str> = known.into_iter().collect();
        let near = suggest_names(tool, &known, MAX_SUGGESTIONS);
        let advice = match near.is_empty() {
            true => "`ringfence tools` lists the tools.".to_owned(),
            false => {
                let near: Vec<String> =
                    near.iter().map(|name| format!("`{}`", escape_line(name))).collect();
                format!("Did you mean {}?", near.join(" or "))
            }
        };
        format!("There is no tool `{shown}`, neither in the log nor built in. {advice}")
    }
}
