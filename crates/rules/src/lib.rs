//! Codex `.rules` files: from Starlark text to a flat table of rules.
//!
//! The language is Starlark with three functions: `prefix_rule`, `network_rule` and
//! `host_executable`. Reading a file means running it. So a file from an untrusted source is read
//! in a short-lived child process ([`evaluate::run_child`]) that limits its own time and memory;
//! [`parse_sources`] applies the limits that the interpreter itself offers.

mod bracket;
mod builtins;
mod error;
pub mod evaluate;
mod example;
mod read;
mod validate;

use std::collections::BTreeMap;

use policy::RuleTable;
use serde::{Deserialize, Serialize};

pub use error::RulesError;
pub use read::{ParsedRules, read_rules};

/// The files that may be used under a program name, as listed by `host_executable`.
pub type HostExecutables = BTreeMap<String, Vec<String>>;

/// The text of one file and the name under which it is reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesSource {
    pub name: String,
    pub text: String,
}

/// Returns the rules of all files, or all errors in them.
pub fn parse_sources(sources: &[RulesSource]) -> Result<RuleTable, Vec<RulesError>> {
    let mut table = RuleTable::default();
    let mut errors = Vec::new();
    for source in sources {
        let parsed = read_rules(source, &table.host_executables);
        merge_tables(&mut table, parsed.table);
        errors.extend(parsed.faults);
    }
    if errors.is_empty() { Ok(table) } else { Err(errors) }
}

/// Adds the rules of another file. The last `host_executable` for a name takes precedence.
pub fn merge_tables(table: &mut RuleTable, other: RuleTable) {
    table.prefixes.extend(other.prefixes);
    table.networks.extend(other.networks);
    table.host_executables.extend(other.host_executables);
}
