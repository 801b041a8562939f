//! Review of a server's offer before it is accepted: what has changed, and what the scanner found.

use std::fmt::Write;

use ringfence_client::config::TrustLevel;
use ringfence_client::{
    Limits, LockChange, LockedServer, ScanFinding, ScanSeverity, ToolDefinition, compact_signature,
    scan_server, show_invisible,
};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use super::definition::secret_mark;
use crate::config::{BUILT_IN_TOOLS, Config};

/// Longest text of a new server or tool in a review, and most characters that one side of a
/// difference shows. The end of a text is where something would be hidden, so that a cut is always
/// said.
const MAX_SHOWN_CHARS: usize = 20_000;

/// Types of a schema.
const JSON_TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];

/// How an offer differs from what was accepted.
pub struct OfferReview {
    server_id: String,
    pub changes: Vec<LockChange>,
    accepted: Option<LockedServer>,
    offered: LockedServer,
    is_trusted: bool,
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
            is_trusted: config
                .upstreams
                .servers
                .get(server_id)
                .is_some_and(|server| server.server.trust == TrustLevel::Trusted),
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
                LockChange::ServerAdded => writeln!(text, "new server `{}`", self.server_id)
                    .and_then(|()| text.write_str(&self.show_new_instructions())),
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

    fn show_new_instructions(&self) -> String {
        match &self.offered.instructions {
            Some(instructions) => format!("    instructions: {}\n", show_text(instructions)),
            None => String::new(),
        }
    }

    /// Returns everything about a new tool: what a model would read, what it takes, and what hides
    /// arguments from the human who approves its calls.
    fn summarize_tool(&self, tool: &str) -> String {
        let definition = self.offered.tools.get(tool).map(Value::to_string).unwrap_or_default();
        let Ok(definition) = ToolDefinition::parse(&definition, &Limits::default()) else {
            return String::new();
        };
        let members = &self.offered.tools[tool];
        let hints = definition.annotations;
        let effect = match (hints.read_only, hints.destructive) {
            (true, _) => "only reads",
            (false, true) => "may change or delete something",
            (false, false) => "changes something, deletes nothing",
        };
        let description = show_text(members["description"].as_str().unwrap_or_default());
        let signature = show_text(&compact_signature(&definition));
        let mut text = format!("    {description}\n    takes {signature}; {effect}\n");
        let others = members.as_object().into_iter().flatten();
        for (name, value) in others.filter(|(name, _)| !["name", "description"].contains(&&***name))
        {
            text.extend(self.list_contents(value, name).iter().map(|line| format!("    {line}\n")));
        }
        text
    }

    /// Returns everything in a member of a definition, with the place of each part.
    fn list_contents(&self, value: &Value, name: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let mut waiting = vec![(name.to_owned(), value)];
        while let Some((place, value)) = waiting.pop() {
            let shown_place = show_invisible(&place).replace('\n', " ");
            let Value::Object(members) = value else {
                lines.push(format!("{shown_place}: {}", show_value(value)));
                continue;
            };
            if let Some(mark) = secret_mark(members).filter(|_| name == "inputSchema") {
                let effect = match self.is_trusted {
                    true => "approvals do not show its value",
                    false => "approvals show its value, because the server is untrusted",
                };
                lines.push(format!("{shown_place}: marked as secret ({mark}); {effect}"));
            }
            let groups = MemberGroups::new(members);
            if groups.needs_values() {
                let values = show_value(&Value::Object(groups.values));
                lines.push(format!("{shown_place}: {values}"));
            }
            for (name, text) in groups.texts {
                lines.push(format!("{shown_place}/{name}: {}", show_text(text)));
            }
            let objects = groups.objects.into_iter().rev();
            waiting.extend(objects.map(|(name, object)| (format!("{place}/{name}"), object)));
        }
        lines
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

/// Returns a text, with invisible characters shown. Further lines are indented more than any line of
/// ours, so that none can pass for one.
fn show_text(text: &str) -> String {
    cut_text(&show_invisible(text)).replace('\n', "\n        ")
}

/// Cuts a text and says so.
fn cut_text(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => {
            let (shown, rest) = text.split_at(end);
            format!("{shown}\n… ({} more characters are not shown)", rest.chars().count())
        }
    }
}

/// Returns a value as JSON on one line, or a text as it is.
fn show_value(value: &Value) -> String {
    match value {
        Value::String(text) => show_text(text),
        other => show_text(&other.to_string()),
    }
}

/// Members of a JSON object, by how they are shown.
#[derive(Default)]
struct MemberGroups<'a> {
    /// Texts for people.
    texts: Vec<(&'a str, &'a str)>,
    /// Values that fit on one line.
    values: Map<String, Value>,
    /// Objects, which are listed on their own.
    objects: Vec<(String, &'a Value)>,
}

impl<'a> MemberGroups<'a> {
    fn new(members: &'a Map<String, Value>) -> MemberGroups<'a> {
        let mut groups = MemberGroups::default();
        for (name, value) in members {
            match value {
                Value::String(text) if matches!(&**name, "description" | "title" | "$comment") => {
                    groups.texts.push((name, text));
                }
                Value::Object(_) => groups.objects.push((name.clone(), value)),
                Value::Array(items) if items.iter().any(Value::is_object) => {
                    let items = items.iter().enumerate();
                    let items = items.map(|(index, item)| (format!("{name}/{index}"), item));
                    groups.objects.extend(items);
                }
                value => drop(groups.values.insert(name.clone(), value.clone())),
            }
        }
        groups
    }

    /// Returns whether the values say something. The type of a part that has a text does not.
    fn needs_values(&self) -> bool {
        let is_type = |(name, value): (&String, &Value)| {
            name == "type" && value.as_str().is_some_and(|text| JSON_TYPES.contains(&text))
        };
        match self.texts.is_empty() {
            true => !self.values.is_empty() || self.objects.is_empty(),
            false => !self.values.iter().all(is_type),
        }
    }
}

fn show_definition(definition: Option<&Value>) -> String {
    let text = definition.and_then(|value| serde_json::to_string_pretty(value).ok());
    text.unwrap_or_default()
}

/// Returns the lines that differ, indented, with invisible characters shown. Each side is cut by
/// itself: a long deletion must not hide what takes its place.
fn diff_texts(old: &str, new: &str) -> String {
    let mut text = String::new();
    let (old, new) = (show_invisible(old), show_invisible(new));
    let (mut removed, mut added) = (SideBudget::default(), SideBudget::default());
    for change in TextDiff::from_lines(&old, &new).iter_all_changes() {
        let (sign, budget) = match change.tag() {
            ChangeTag::Delete => ('-', &mut removed),
            ChangeTag::Insert => ('+', &mut added),
            ChangeTag::Equal => continue,
        };
        if let Some(line) = budget.take_line(change.value().trim_end_matches('\n')) {
            let _ = writeln!(text, "    {sign} {line}");
        }
    }
    for (sign, budget) in [('-', removed), ('+', added)] {
        if budget.cut > 0 {
            let _ = writeln!(text, "    {sign} … ({} more characters are not shown)", budget.cut);
        }
    }
    text
}

/// What one side of a difference has shown so far.
#[derive(Default)]
struct SideBudget {
    shown: usize,
    cut: usize,
}

impl SideBudget {
    /// Returns the part of a line that is shown, and counts the rest.
    fn take_line<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        let left = MAX_SHOWN_CHARS - self.shown;
        let end = line.char_indices().nth(left).map_or(line.len(), |(index, _)| index);
        let (shown, rest) = line.split_at(end);
        self.shown += shown.chars().count();
        self.cut += rest.chars().count();
        (left > 0).then_some(shown)
    }
}
