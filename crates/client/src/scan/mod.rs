//! Scan of tool definitions for attacks on the model that reads them. Offline, and in linear time.
//!
//! Definitions are text that a server writes and a model obeys. The scan finds text that a human
//! cannot see, orders that have nothing to do with the tool, interference with tools of other
//! servers, and secrets. It is a filter, not a proof: it knows usual wordings, and an attacker who
//! reads the rules can avoid them. The lock file and the gate must not depend on it. A hard finding keeps a tool from being listed until a human accepts it,
//! so a rule is hard only if ordinary documentation practically never matches it.

mod definition_texts;
mod encoded_text;
mod excerpt;
mod folded_words;
mod hidden_text;
mod phrases;
#[cfg(test)]
mod quality_tests;
mod secrets;
mod shadowing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use definition_texts::{ServerText, server_texts};
use phrases::PhraseScanner;
use shadowing::ForeignTools;

use crate::lock::LockedServer;

/// Most findings of one scan, unless more servers have findings.
const MAX_FINDINGS: usize = 100;

/// What a rule found in the definitions of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanFinding {
    pub server_id: String,
    /// `None` if the finding concerns the server as a whole, such as its instructions.
    pub tool: Option<String>,
    pub rule: ScanRule,
    pub severity: ScanSeverity,
    /// Where it was found: bounded, in one line, invisible characters shown, without secrets.
    pub excerpt: String,
}

/// How certain a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScanSeverity {
    /// Ordinary definitions practically never have it. The tool, or the server if the finding names
    /// no tool, must not be listed until a human accepts it.
    Hard,
    /// Worth a look in a review.
    Soft,
}

/// Rule of the scanner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScanRule {
    HiddenText,
    InjectedOrder,
    EncodedOrder,
    ToolShadowing,
    ConfusableName,
    EmbeddedSecret,
    TooManyFindings,
}

impl ScanRule {
    /// Returns the name of the rule, for configuration and logs.
    pub fn name(self) -> &'static str {
        match self {
            ScanRule::HiddenText => "hidden_text",
            ScanRule::InjectedOrder => "injected_order",
            ScanRule::EncodedOrder => "encoded_order",
            ScanRule::ToolShadowing => "tool_shadowing",
            ScanRule::ConfusableName => "confusable_name",
            ScanRule::EmbeddedSecret => "embedded_secret",
            ScanRule::TooManyFindings => "too_many_findings",
        }
    }

    /// Describes what the rule finds, for a human who decides about a finding.
    pub fn describe(self) -> &'static str {
        match self {
            ScanRule::HiddenText => "text that a model reads and a human cannot see",
            ScanRule::InjectedOrder => "an order to the model that does not describe the tool",
            ScanRule::EncodedOrder => "an order to the model in encoded form",
            ScanRule::ToolShadowing => "text that changes how a tool of another server is used",
            ScanRule::ConfusableName => "a name that looks like the name of another tool",
            ScanRule::EmbeddedSecret => "a key, token or password",
            ScanRule::TooManyFindings => "more findings than are listed",
        }
    }
}

/// Scans the definitions of all servers. `own_tools` are the names of other tools that the program
/// offers to the model.
///
/// There is at most one finding per tool and rule, hard ones first. If there are more than 100, the
/// servers with the most lose the rest of theirs and get a hard [`ScanRule::TooManyFindings`].
pub fn scan_servers(
    servers: &BTreeMap<String, LockedServer>,
    own_tools: &[&str],
) -> Vec<ScanFinding> {
    let found: Vec<(&str, Vec<ScanFinding>)> = servers
        .iter()
        .map(|(id, server)| (id.as_str(), find_all(id, server, servers, own_tools)))
        .collect();
    let fits = |share: &usize| {
        found.iter().map(|(_, findings)| findings.len().min(*share)).sum::<usize>() <= MAX_FINDINGS
    };
    let share = (1..=MAX_FINDINGS).rev().find(fits).unwrap_or(1);
    found.into_iter().flat_map(|(id, findings)| limit_findings(id, findings, share)).collect()
}

/// Scans the definitions of one server, as [`scan_servers`] does. `others` may contain the server.
pub fn scan_server(
    server_id: &str,
    server: &LockedServer,
    others: &BTreeMap<String, LockedServer>,
    own_tools: &[&str],
) -> Vec<ScanFinding> {
    let findings = find_all(server_id, server, others, own_tools);
    limit_findings(server_id, findings, MAX_FINDINGS)
}

/// Keeps the first findings. A tool whose finding is cut must not pass as clean, so the last one
/// then concerns the whole server.
fn limit_findings(
    server_id: &str,
    mut findings: Vec<ScanFinding>,
    most: usize,
) -> Vec<ScanFinding> {
    if findings.len() > most {
        let cut_count = findings.len() - most + 1;
        findings.truncate(most - 1);
        findings.push(ScanFinding {
            server_id: server_id.to_owned(),
            tool: None,
            rule: ScanRule::TooManyFindings,
            severity: ScanSeverity::Hard,
            excerpt: format!("{cut_count} more findings"),
        });
    }
    findings
}

/// Returns all findings of a server, hard ones first.
fn find_all(
    server_id: &str,
    server: &LockedServer,
    others: &BTreeMap<String, LockedServer>,
    own_tools: &[&str],
) -> Vec<ScanFinding> {
    let foreign = ForeignTools::new(server_id, server, others, own_tools);
    let mut findings = FindingSet::default();
    let mut phrases = PhraseScanner::new();
    for text in server_texts(server) {
        let mut found = hidden_text::find_hidden_text(&text);
        found.extend(phrases.find_phrases(&text, &foreign));
        found.extend(encoded_text::find_encoded_orders(&text, &mut phrases));
        found.extend(secrets::find_secrets(text.text));
        if text.is_tool_name {
            found.extend(foreign.find_confusable_name(text.text));
        }
        found.into_iter().for_each(|found| findings.add(&text, found));
    }
    findings.into_findings(server_id)
}

/// What a rule found in one text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TextFinding {
    rule: ScanRule,
    severity: ScanSeverity,
    excerpt: String,
}

/// Findings of a server: of each tool and rule the hardest, and of those the first.
#[derive(Debug, Default)]
struct FindingSet {
    findings: BTreeMap<(Option<String>, ScanRule), (ScanSeverity, String)>,
}

impl FindingSet {
    fn add(&mut self, text: &ServerText<'_>, found: TextFinding) {
        let key = (text.tool.map(str::to_owned), found.rule);
        let known = self.findings.get(&key);
        if known.is_none_or(|(severity, _)| found.severity < *severity) {
            self.findings.insert(key, (found.severity, found.excerpt));
        }
    }

    fn into_findings(self, server_id: &str) -> Vec<ScanFinding> {
        let mut findings: Vec<ScanFinding> = self
            .findings
            .into_iter()
            .map(|((tool, rule), (severity, excerpt))| ScanFinding {
                server_id: server_id.to_owned(),
                tool,
                rule,
                severity,
                excerpt,
            })
            .collect();
        findings.sort_by_key(|finding| finding.severity);
        findings
    }
}
