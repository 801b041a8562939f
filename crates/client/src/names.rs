//! Names under which the tools of many servers appear in one list: `server__tool`.
//!
//! A name depends on the server and the tool alone, never on what else is listed, so that a prompt or
//! a rule that uses it stays valid when a server is added. Clients put prefixes of their own in front
//! and limit the whole to 64 characters, so ours are shorter.

use std::collections::BTreeMap;

/// Longest name of a tool.
pub const MAX_NAME_LENGTH: usize = 48;
/// Characters of the hash in a name that had to be changed.
const HASH_LENGTH: usize = 8;
const SEPARATOR: &str = "__";

/// Tool of a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolKey {
    pub server_id: String,
    /// Name on its own server.
    pub tool: String,
}

/// Names of tools, and the way back.
#[derive(Debug, Clone, Default)]
pub struct NameMap {
    keys: BTreeMap<String, ToolKey>,
    /// Names as clients see them that know no dots.
    spellings: BTreeMap<String, String>,
}

impl NameMap {
    /// Adds a tool and returns its name. Fails if another tool has a name that a client could not
    /// tell from it.
    pub fn add_tool(&mut self, key: ToolKey) -> Result<String, NameCollision> {
        let name = namespaced_name(&key.server_id, &key.tool);
        let spelling = plain_spelling(&name);
        if let Some(other) = self.spellings.get(&spelling) {
            return match self.keys.get(other) {
                Some(existing) if *existing == key => Ok(name),
                existing => Err(NameCollision { name, existing: existing.cloned() }),
            };
        }
        self.spellings.insert(spelling, name.clone());
        self.keys.insert(name.clone(), key);
        Ok(name)
    }

    /// Reserves a name that belongs to someone else, such as a tool of the embedding program.
    pub fn reserve_name(&mut self, name: &str) {
        self.spellings.insert(plain_spelling(name), name.to_owned());
    }

    /// Returns the tool with this name, in either spelling.
    pub fn find_tool(&self, name: &str) -> Option<&ToolKey> {
        self.keys.get(self.spellings.get(&plain_spelling(name))?)
    }

    /// Returns all names with their tools, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ToolKey)> {
        self.keys.iter().map(|(name, key)| (name.as_str(), key))
    }
}

/// Two tools whose names could not be told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameCollision {
    pub name: String,
    /// The tool that has the name; `None` for a reserved one.
    pub existing: Option<ToolKey>,
}

/// Returns the name of a tool. A name that is too long, or has characters that clients refuse, ends
/// with a hash, so that two of them stay different.
pub fn namespaced_name(server_id: &str, tool: &str) -> String {
    let plain: String = tool.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
    let name = format!("{server_id}{SEPARATOR}{plain}");
    if plain == tool && name.len() <= MAX_NAME_LENGTH {
        return name;
    }
    let digest = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA256,
        format!("{server_id}\0{tool}").as_bytes(),
    );
    let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let hash = hash.get(..HASH_LENGTH).unwrap_or_default();
    // All of it is ASCII.
    let kept = name.get(..MAX_NAME_LENGTH - HASH_LENGTH - 1).unwrap_or(&name);
    format!("{}_{hash}", kept.trim_end_matches('_'))
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Returns the spelling for clients that know no dots. Some also ignore case.
fn plain_spelling(name: &str) -> String {
    name.replace(['.', '-'], "_").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(server_id: &str, tool: &str) -> ToolKey {
        ToolKey { server_id: server_id.to_owned(), tool: tool.to_owned() }
    }

    #[test]
    fn an_ordinary_name_is_kept() {
        assert_eq!(namespaced_name("git", "git_status"), "git__git_status");
        assert_eq!(namespaced_name("a-b", "x.y-z"), "a-b__x.y-z");
    }

    #[test]
    fn a_changed_name_is_short_stable_and_different_from_others() {
        let long = "t".repeat(60);
        let name = namespaced_name("server", &long);
        assert_eq!(name.len(), MAX_NAME_LENGTH);
        assert_eq!(name, namespaced_name("server", &long));
        assert_ne!(name, namespaced_name("server", &format!("{long}t")));
        let odd = namespaced_name("s", "löschen");
        assert!(odd.starts_with("s__l_schen_") && odd.is_ascii(), "{odd}");
        assert_ne!(odd, namespaced_name("s", "läschen"));
        assert_ne!(namespaced_name("s", "a b"), namespaced_name("s", "a_b"));
    }

    #[test]
    fn names_lead_back_in_either_spelling() {
        let mut names = NameMap::default();
        let name = names.add_tool(key("s", "a.b")).unwrap();
        assert_eq!(name, "s__a.b");
        assert_eq!(names.find_tool("s__a.b"), Some(&key("s", "a.b")));
        assert_eq!(names.find_tool("s__a_b"), Some(&key("s", "a.b")));
        assert_eq!(names.find_tool("s__a"), None);
    }

    #[test]
    fn names_that_cannot_be_told_apart_are_refused() {
        let mut names = NameMap::default();
        names.add_tool(key("s", "a.b")).unwrap();
        assert_eq!(names.add_tool(key("s", "a.b")).unwrap(), "s__a.b");
        for other in ["a_b", "a-b", "A.B"] {
            let collision = names.add_tool(key("s", other)).unwrap_err();
            assert_eq!(collision.existing, Some(key("s", "a.b")), "{other}");
        }
        names.reserve_name("file.read");
        assert!(names.add_tool(key("file", "read")).is_ok(), "it is file__read");
        names.reserve_name("x__y");
        assert_eq!(names.add_tool(key("x", "y")).unwrap_err().existing, None);
        assert_eq!(names.find_tool("x__y"), None);
    }

    #[test]
    fn a_tool_cannot_take_the_name_of_another_server() {
        let mut names = NameMap::default();
        names.add_tool(key("a", "b__c")).unwrap();
        assert!(names.add_tool(key("a__b", "c")).is_err());
    }
}
