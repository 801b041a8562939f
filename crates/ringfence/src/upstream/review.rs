//! Review of a server's offer before it is accepted: what has changed, and what the scanner found.

use std::fmt::Write;

use ringfence_client::{
    Limits, LockChange, LockedServer, ScanFinding, ScanSeverity, ToolDefinition, compact_signature,
    scan_server, show_invisible,
};
use serde_json::Value;
use similar::TextDiff;

use crate::config::{BUILT_IN_TOOLS, Config};

/// Longest description of a new tool in a review.
const MAX_SUMMARY_CHARS: usize = 600;
/// Longest text of one tool in a review.
const MAX_TOOL_CHARS: usize = 4_000;

/// How an offer differs from what was accepted.
pub struct OfferReview {
    server_id: String,
    pub changes: Vec<LockChange>,
    accepted: Option<LockedServer>,
    offered: LockedServer,
    pub findings: Vec<ScanFinding>,
}

impl OfferReview {
    /// Compares an offer with what was accepted, and scans it next to the other servers.
    pub fn new(
        server_id: &str,
        accepted: Option<&LockedServer>,
        offered: &LockedServer,
        config: &Config,
    ) -> OfferReview {
        let command_names = config.commands.iter().map(|entry| entry.name.as_str());
        let own_tools: Vec<&str> = BUILT_IN_TOOLS.iter().copied().chain(command_names).collect();
        let others = &config.upstreams.lock.servers;
        let findings = scan_server(server_id, offered, others, &own_tools);
        OfferReview {
            server_id: server_id.to_owned(),
            changes: LockedServer::compare(accepted, offered),
            accepted: accepted.cloned(),
            offered: offered.clone(),
            findings,
        }
    }

    /// Returns whether the offer is exactly what was accepted.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the offer without the tools in which the scanner found something dangerous. A
    /// finding in the server's own texts leaves nothing.
    pub fn without_dangerous_tools(&self, offered: &LockedServer) -> LockedServer {
        let mut locked = offered.clone();
        for finding in self.findings.iter().filter(|finding| is_dangerous(finding)) {
            match &finding.tool {
                Some(tool) => drop(locked.tools.remove(tool)),
                None => locked.tools.clear(),
            }
        }
        locked
    }

    /// Returns the review for people. Characters that cannot be seen are shown.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for change in &self.changes {
            let _ = match change {
                LockChange::ServerAdded => writeln!(text, "new server `{}`", self.server_id),
                LockChange::IdentityChanged => {
                    writeln!(text, "the server gives itself another name:")
                        .and_then(|()| text.write_str(&self.diff_identity()))
                }
                LockChange::InstructionsChanged => {
                    writeln!(text, "the server's instructions have changed:")
                        .and_then(|()| text.write_str(&self.diff_instructions()))
                }
                LockChange::ToolAdded(tool) => writeln!(text, "new tool {}", show_tool_name(tool))
                    .and_then(|()| text.write_str(&self.summarize_tool(tool))),
                LockChange::ToolRemoved(tool) => {
                    writeln!(text, "tool {} is gone", show_tool_name(tool))
                }
                LockChange::ToolChanged { tool, members } => writeln!(
                    text,
                    "tool {} has changed ({})",
                    show_tool_name(tool),
                    show_invisible(&members.join(", "))
                )
                .and_then(|()| text.write_str(&self.diff_tool(tool))),
            };
        }
        for finding in &self.findings {
            let _ = writeln!(
                text,
                "{} in {}: {} ({})",
                if is_dangerous(finding) { "DANGEROUS" } else { "suspicious" },
                finding.tool.as_deref().map_or("the server's texts".to_owned(), show_tool_name),
                finding.rule.describe(),
                finding.excerpt
            );
        }
        text
    }

    fn diff_identity(&self) -> String {
        let name = |server: Option<&LockedServer>| {
            server.map(|server| server.identity["name"].to_string()).unwrap_or_default()
        };
        diff_texts(&name(self.accepted.as_ref()), &name(Some(&self.offered)))
    }

    fn diff_instructions(&self) -> String {
        let text = |server: Option<&LockedServer>| {
            server.and_then(|server| server.instructions.clone()).unwrap_or_default()
        };
        diff_texts(&text(self.accepted.as_ref()), &text(Some(&self.offered)))
    }

    /// Returns what a new tool is for and what it takes; `mcp.lock` has the whole definition.
    fn summarize_tool(&self, tool: &str) -> String {
        let definition = self.offered.tools.get(tool).map(Value::to_string).unwrap_or_default();
        let Ok(definition) = ToolDefinition::parse(&definition, &Limits::default()) else {
            return String::new();
        };
        let members = &self.offered.tools[tool];
        let description = members["description"].as_str().unwrap_or_default();
        let description: String =
            show_invisible(description).chars().take(MAX_SUMMARY_CHARS).collect();
        let hints = definition.annotations;
        let effect = match (hints.read_only, hints.destructive) {
            (true, _) => "only reads",
            (false, true) => "may change or delete something",
            (false, false) => "changes something, deletes nothing",
        };
        let signature = show_invisible(&compact_signature(&definition));
        let indented = description.replace('\n', "\n    ");
        format!("    {indented}\n    takes {signature}; {effect}\n")
    }

    fn diff_tool(&self, tool: &str) -> String {
        let accepted = self.accepted.as_ref().and_then(|server| server.tools.get(tool));
        diff_texts(&show_definition(accepted), &show_definition(self.offered.tools.get(tool)))
    }
}

/// A tool with such a finding is not offered until someone has accepted it.
fn is_dangerous(finding: &ScanFinding) -> bool {
    finding.severity == ScanSeverity::Hard
}

fn show_tool_name(tool: &str) -> String {
    format!("`{}`", show_invisible(tool))
}

fn show_definition(definition: Option<&Value>) -> String {
    let text = definition.and_then(|value| serde_json::to_string_pretty(value).ok());
    text.unwrap_or_default()
}

/// Returns the lines that differ, indented, with invisible characters shown.
fn diff_texts(old: &str, new: &str) -> String {
    let mut text = String::new();
    let (old, new) = (show_invisible(old), show_invisible(new));
    for change in TextDiff::from_lines(&old, &new).iter_all_changes() {
        let sign = match change.tag() {
            similar::ChangeTag::Delete => '-',
            similar::ChangeTag::Insert => '+',
            similar::ChangeTag::Equal => continue,
        };
        let _ = writeln!(text, "    {sign} {}", change.value().trim_end_matches('\n'));
    }
    if text.chars().count() > MAX_TOOL_CHARS {
        text = text.chars().take(MAX_TOOL_CHARS).collect();
        text.push_str("\n    … (longer; see mcp.lock after accepting)\n");
    }
    text
}
