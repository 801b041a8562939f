//! Says why `ringfence audit` shows nothing: an empty log, or filters that nothing matches.

use std::collections::BTreeSet;
use std::io::Write;

use memchr::memmem::Finder;

use super::AuditArgs;
use super::event_filter::TOOL_MEMBER;
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
pub struct UnmatchedFilters {
    pub has_match: bool,
    has_event: bool,
    /// Finds the names of tools, if one was asked for.
    tool_finder: Option<Finder<'static>>,
    /// Names of the tools in the log, as the log has them.
    tools: BTreeSet<Vec<u8>>,
    is_reported: bool,
}

impl UnmatchedFilters {
    /// Creates the notes for a query with these filters.
    pub fn new(args: &AuditArgs) -> UnmatchedFilters {
        UnmatchedFilters {
            has_match: false,
            has_event: false,
            tool_finder: args.tool.as_ref().map(|_| Finder::new(TOOL_MEMBER)),
            tools: BTreeSet::new(),
            is_reported: false,
        }
    }

    /// Notes an event, whether it matches or not.
    pub fn note_event(&mut self, event: &LoggedEvent<'_>) {
        self.has_event = true;
        // Nothing is reported any more, or the names are not needed.
        let Some(finder) = self.tool_finder.as_ref().filter(|_| !self.has_match) else { return };
        let Some(start) = finder.find(event.raw) else { return };
        let rest = &event.raw[start + TOOL_MEMBER.len()..];
        let name = &rest[..memchr::memchr(b'"', rest).unwrap_or(rest.len())];
        // A caller can make up any number of names.
        if !self.tools.contains(name) && self.tools.len() < MAX_TOOLS {
            self.tools.insert(name.to_owned());
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
        // With `--since`, files that are older were not read.
        let is_whole = args.since.is_none();
        if !self.has_event && is_whole {
            return "The audit log is empty.".to_owned();
        }
        let Some(tool) = &args.tool else {
            return "No event matches these filters.".to_owned();
        };
        let tools = self.tools.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        let tools: Vec<String> = tools.collect();
        let is_same = |other: &str| with_underscores(other) == with_underscores(tool);
        let shown = escape_line(tool);
        if tools.iter().any(|other| is_same(other)) {
            return format!("No event of `{shown}` matches the other filters.");
        }
        let recent_only = format!("No event of `{shown}` is that recent.");
        match BUILT_IN_TOOLS.iter().any(|other| is_same(other)) {
            true if is_whole => return format!("There are no events of `{shown}` in the log."),
            true => return recent_only,
            false => {}
        }
        let known: BTreeSet<&str> =
            BUILT_IN_TOOLS.iter().copied().chain(tools.iter().map(String::as_str)).collect();
        let known: Vec<&str> = known.into_iter().collect();
        let near = suggest_names(tool, &known, MAX_SUGGESTIONS);
        let advice = match near.is_empty() {
            true if !is_whole => return recent_only,
            true => "`ringfence tools` lists the tools.".to_owned(),
            false => {
                let near: Vec<String> =
                    near.iter().map(|name| format!("`{}`", escape_line(name))).collect();
                format!("Did you mean {}?", near.join(" or "))
            }
        };
        match is_whole {
            true => {
                format!("There is no tool `{shown}`, neither in the log nor built in. {advice}")
            }
            false => format!("{recent_only} {advice}"),
        }
    }
}
