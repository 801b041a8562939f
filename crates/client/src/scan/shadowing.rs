//! Tools of other servers: where a text mentions them, and names that look like theirs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::folded_words::{FoldedWord, mixes_look_alikes, name_skeleton};
use super::{ScanRule, ScanSeverity, TextFinding};
use crate::clean_text::show_invisible;
use crate::lock::LockedServer;

/// Shortest name that is compared with others by its looks.
const MIN_COMPARED_LENGTH: usize = 4;
/// Longest text that is compared with names.
const MAX_MENTION_BYTES: usize = 300;
/// Most characters of a name in an excerpt.
const MAX_SHOWN_NAME: usize = 60;

/// Names of the tools that do not belong to the server that is scanned.
#[derive(Debug)]
pub(super) struct ForeignTools {
    /// In lower case.
    names: BTreeSet<String>,
    servers: BTreeSet<String>,
    /// Names of the server's own tools, in lower case.
    own_names: BTreeSet<String>,
    /// Names by how they look.
    skeletons: HashMap<String, String>,
}

impl ForeignTools {
    pub(super) fn new(
        server_id: &str,
        server: &LockedServer,
        others: &BTreeMap<String, LockedServer>,
        own_tools: &[&str],
    ) -> ForeignTools {
        let others = || others.iter().filter(|(id, _)| id.as_str() != server_id);
        let tools = others().flat_map(|(_, other)| other.tools.keys().map(String::as_str));
        let foreign: Vec<&str> = tools
            .chain(own_tools.iter().copied())
            .filter(|name| !server.tools.contains_key(*name))
            .collect();
        ForeignTools {
            names: foreign.iter().map(|name| name.to_lowercase()).collect(),
            own_names: server.tools.keys().map(|name| name.to_lowercase()).collect(),
            servers: others().map(|(id, _)| id.to_lowercase()).collect(),
            skeletons: foreign
                .iter()
                .map(|name| (name_skeleton(name), (*name).to_owned()))
                .collect(),
        }
    }

    /// Finds a name that looks like that of a foreign tool, or that mixes scripts to look like one.
    pub(super) fn find_confusable_name(&self, name: &str) -> Option<TextFinding> {
        let similar = self.skeletons.get(&name_skeleton(name)).filter(|other| {
            name.chars().count() >= MIN_COMPARED_LENGTH && !other.eq_ignore_ascii_case(name)
        });
        let shown: String = show_invisible(name).chars().take(MAX_SHOWN_NAME).collect();
        let excerpt = match similar {
            Some(other) => {
                let other: String = show_invisible(other).chars().take(MAX_SHOWN_NAME).collect();
                format!("`{shown}` looks like `{other}`")
            }
            None if mixes_look_alikes(name) => format!("`{shown}` mixes letters that look alike"),
            None => return None,
        };
        Some(TextFinding { rule: ScanRule::ConfusableName, severity: ScanSeverity::Hard, excerpt })
    }

    /// Returns what the words from a position on mention, and how many words the mention has.
    pub(super) fn find_mention(
        &self,
        text: &str,
        words: &[FoldedWord],
        position: usize,
    ) -> Option<(&'static str, usize)> {
        let first = words.get(position)?;
        let next = words.get(position + 1).filter(|next| next.distance == 1);
        if self.servers.contains(&first.text)
            && next.is_some_and(|next| ["server", "servers", "tools"].contains(&next.text.as_str()))
        {
            return Some(("@server", 1));
        }
        // A tool that is not known here: the client may have others.
        if first.text.contains('_')
            && next.is_some_and(|next| next.text == "tool")
            && !self.own_names.contains(&first.text)
        {
            return Some(("@tool", 1));
        }
        // A name such as `list-events` or `file.read` has several words.
        for count in (1..=4).rev() {
            let Some(last) = words.get(position + count - 1) else { continue };
            let Some(name) = text.get(first.start..last.end) else { continue };
            if name.len() > MAX_MENTION_BYTES || name.contains(char::is_whitespace) {
                continue;
            }
            let name = name.to_lowercase();
            let name = name.rsplit("__").next().unwrap_or(&name);
            if self.names.contains(name) && is_mention(text, words, position, count, name) {
                return Some(("@tool", count));
            }
        }
        None
    }
}

/// Tells whether a word means a tool: `send_email` always does, `query` only next to `tool`.
fn is_mention(text: &str, words: &[FoldedWord], position: usize, count: usize, name: &str) -> bool {
    let start = words.get(position).map_or(0, |word| word.start);
    let original = text.get(start..start + name.len()).unwrap_or_default();
    let has_inner_capital = original.chars().skip(1).any(char::is_uppercase)
        && original.chars().any(char::is_lowercase);
    if name.contains(['_', '-', '.']) || has_inner_capital {
        return true;
    }
    let is_tool = |word: Option<&FoldedWord>| {
        word.is_some_and(|word| ["tool", "tools", "function"].contains(&word.text.as_str()))
    };
    let follows_server = |offset: usize| {
        words
            .get(position + offset)
            .is_some_and(|word| word.text == "server" || word.text == "from")
    };
    is_tool(words.get(position + count))
        || position > 0 && is_tool(words.get(position - 1))
        || follows_server(count)
}
