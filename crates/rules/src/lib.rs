//! Codex `.rules` files: Starlark text to a flat table of rules.
//!
//! The language is Starlark with three functions: `prefix_rule`, `network_rule` and `host_executable`. Reading a file
//! means running it, so a text that nobody vouches for is read in a short-lived child (`evaluate::child`) that bounds
//! its own time and memory; [`parse`] bounds what the interpreter itself can bound.

mod bracket;
mod builtins;
pub mod evaluate;
mod example;
mod fault;
mod host;
mod read;

use std::collections::BTreeMap;

use policy::Table;
use serde::{Deserialize, Serialize};

pub use fault::Fault;
pub use read::{Reading, read};

/// Which files may go by a name, as `host_executable` lists them.
pub type HostExecutables = BTreeMap<String, Vec<String>>;

/// The text of one file, by the name that people know it by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub name: String,
    pub text: String,
}

/// All rules of all files, or everything that is wrong with any of them.
pub fn parse(sources: &[Source]) -> Result<Table, Vec<Fault>> {
    let mut table = Table::default();
    let mut faults = Vec::new();
    for source in sources {
        let reading = read(source, &table.host_executables);
        add(&mut table, reading.table);
        faults.extend(reading.faults);
    }
    if faults.is_empty() { Ok(table) } else { Err(faults) }
}

/// What another file says is added to what is known. On which files may go by a name, the last word counts.
pub fn add(table: &mut Table, more: Table) {
    table.prefixes.extend(more.prefixes);
    table.networks.extend(more.networks);
    table.host_executables.extend(more.host_executables);
}
