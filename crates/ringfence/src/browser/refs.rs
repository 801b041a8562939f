//! Short names (refs) for the nodes of a page, valid as long as their document is shown.

use std::collections::HashMap;

use crate::base::{Error, Kind, Result};

/// Maximum number of named nodes per document; more would be of no use to a caller.
const MAX_REFS: usize = 50_000;

/// Node and the document it is part of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeRef {
    /// Id of the frame.
    pub frame: String,
    /// Id of the document.
    pub document: String,
    /// The browser's id of the node.
    pub backend_node: i64,
}

/// Refs of one page.
#[derive(Debug, Default)]
pub struct ElementRefs {
    names: HashMap<NodeRef, u64>,
    nodes: HashMap<u64, NodeRef>,
    /// Never reset, so that an old name cannot come to mean another node.
    last: u64,
}

impl ElementRefs {
    /// Returns the node's name, which stays the same as long as the document does. None beyond the
    /// maximum.
    pub fn name_node(&mut self, node: NodeRef) -> Option<String> {
        if let Some(number) = self.names.get(&node) {
            return Some(format!("e{number}"));
        }
        if self.names.len() >= MAX_REFS {
            return None;
        }
        self.last += 1;
        self.names.insert(node.clone(), self.last);
        self.nodes.insert(self.last, node);
        Some(format!("e{}", self.last))
    }

    /// Forgets all names, because the page shows another document.
    pub fn clear(&mut self) {
        self.names.clear();
        self.nodes.clear();
    }

    /// Returns the node with this name.
    pub fn find_node(&self, name: &str) -> Result<NodeRef> {
        let number = parse_ref(name).unwrap_or(0);
        match self.nodes.get(&number) {
            Some(node) => Ok(node.clone()),
            None if number > 0 && number <= self.last => Err(stale_error(name)),
            None => {
                Err(Error::new(Kind::NotFound, format!("ref `{name}` does not exist on this page"))
                    .with_hint("Take the refs from a browser.snapshot of this page."))
            }
        }
    }
}

/// Parses a ref such as `e12`; returns None for a selector.
pub fn parse_ref(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('e')?;
    let is_valid =
        (1..=12).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_valid)
}

/// Returns the error for a ref whose page has changed.
pub fn stale_error(name: &str) -> Error {
    Error::new(Kind::Conflict, format!("`{name}` belongs to a page that has changed since"))
        .with_reason("stale")
        .with_hint("Take a new browser.snapshot and use its refs.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(document: &str, backend: i64) -> NodeRef {
        NodeRef { frame: "f".into(), document: document.into(), backend_node: backend }
    }

    #[test]
    fn a_name_stays_with_its_node_and_is_never_given_again() {
        let mut refs = ElementRefs::default();
        assert_eq!(refs.name_node(node("a", 7)).unwrap(), "e1");
        assert_eq!(refs.name_node(node("a", 9)).unwrap(), "e2");
        assert_eq!(refs.name_node(node("a", 7)).unwrap(), "e1");
        assert_eq!(refs.find_node("e2").unwrap(), node("a", 9));
        refs.clear();
        assert_eq!(refs.find_node("e2").unwrap_err().reason_name(), Some("stale"));
        assert_eq!(refs.name_node(node("b", 7)).unwrap(), "e3");
        assert_eq!(refs.find_node("e4").unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn a_ref_is_told_from_a_selector() {
        assert_eq!(parse_ref("e12"), Some(12));
        for other in ["e", "em", "e1x", "#e1", "e-1", "e+1", "e1234567890123", "div"] {
            assert_eq!(parse_ref(other), None, "{other}");
        }
    }
}
