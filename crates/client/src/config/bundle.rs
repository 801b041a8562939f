//! Bundles: selections of one server's tools.

use std::collections::BTreeSet;

/// Selection of tools of one server.
///
/// Names are those of the server, without a namespace, and are compared exactly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleConfig {
    /// Id of the server.
    pub server_id: String,
    /// How the tools are offered.
    pub mode: BundleMode,
    /// Allowed tools; `None` allows all, an empty set allows none.
    pub allow_tools: Option<BTreeSet<String>>,
    /// Tools that are not allowed, even if `allow_tools` contains them.
    pub deny_tools: BTreeSet<String>,
}

/// How a bundle offers its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BundleMode {
    /// Each tool is on the list of tools, under a namespaced name.
    Direct,
    /// Tools are found and called through the meta tools.
    Meta,
}

impl BundleMode {
    /// Returns the name used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            BundleMode::Direct => "direct",
            BundleMode::Meta => "meta",
        }
    }
}

impl BundleConfig {
    /// Returns whether the bundle offers a tool. The deny-list overrides the allow-list.
    pub fn allows(&self, tool: &str) -> bool {
        self.allow_tools.as_ref().is_none_or(|allowed| allowed.contains(tool))
            && !self.deny_tools.contains(tool)
    }

    /// Returns the bundle restricted to the tools that are on every one of these allow-lists too.
    /// If no tool is left, the result allows none.
    #[must_use]
    pub fn intersect<'a>(
        &self,
        allow_lists: impl IntoIterator<Item = &'a BTreeSet<String>>,
    ) -> BundleConfig {
        let mut bundle = self.clone();
        for list in allow_lists {
            // It stays `Some` when it becomes empty: `None` would allow all tools.
            bundle.allow_tools = Some(match bundle.allow_tools.take() {
                Some(allowed) => &allowed & list,
                None => list.clone(),
            });
        }
        bundle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn new_bundle(allow: Option<&[&str]>, deny: &[&str]) -> BundleConfig {
        BundleConfig {
            server_id: "repo".to_owned(),
            mode: BundleMode::Direct,
            allow_tools: allow.map(to_set),
            deny_tools: to_set(deny),
        }
    }

    #[test]
    fn without_an_allow_list_all_tools_are_allowed() {
        assert!(new_bundle(None, &[]).allows("read"));
    }

    #[test]
    fn deny_overrides_allow() {
        let bundle = new_bundle(Some(&["read", "write", "delete"]), &["delete"]);
        let allowed = ["read", "write", "delete", "other"].map(|tool| bundle.allows(tool));
        assert_eq!(allowed, [true, true, false, false]);
    }

    #[test]
    fn deny_applies_without_an_allow_list() {
        let bundle = new_bundle(None, &["delete"]);
        assert_eq!(["read", "delete"].map(|tool| bundle.allows(tool)), [true, false]);
    }

    #[test]
    fn names_are_compared_exactly() {
        let bundle = new_bundle(Some(&["read"]), &[]);
        assert_eq!(["Read", "read ", "rea"].map(|tool| bundle.allows(tool)), [false; 3]);
    }

    #[test]
    fn an_intersection_allows_what_every_list_allows() {
        let lists = [to_set(&["a", "b", "c"]), to_set(&["b", "c", "d"])];
        let bundle = new_bundle(Some(&["a", "b", "c"]), &["c"]).intersect(&lists);
        assert_eq!(
            ["a", "b", "c", "d"].map(|tool| bundle.allows(tool)),
            [false, true, false, false]
        );
    }

    #[test]
    fn an_empty_intersection_allows_nothing() {
        let bundle = new_bundle(Some(&["a"]), &[]).intersect(&[to_set(&["b"])]);
        assert_eq!(bundle.allow_tools, Some(BTreeSet::new()));
        assert!(!bundle.allows("a") && !bundle.allows("b"));
        let widened = bundle.intersect(&[to_set(&["a", "b"])]);
        assert!(!widened.allows("a") && !widened.allows("b"), "a later list widens the bundle");
    }

    #[test]
    fn an_intersection_restricts_a_bundle_that_allows_all() {
        let bundle = new_bundle(None, &[]).intersect(&[to_set(&["a"])]);
        assert_eq!(["a", "b"].map(|tool| bundle.allows(tool)), [true, false]);
    }

    #[test]
    fn an_intersection_with_no_list_changes_nothing() {
        let bundle = new_bundle(None, &["x"]);
        assert_eq!(bundle.intersect(&[]), bundle);
    }
}
