//! One file per method that we implement, and the table of all methods that this server answers.

pub mod initialize;
pub mod mcp_capabilities;
pub mod tools_call;
pub mod tools_list;

/// Methods that exist in some protocol era. Invalid parameters for one of these are a parameter
/// error; any other name is an unknown method.
pub const METHODS: &[&str] = &[
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    "tools/call",
    "logging/setLevel",
    "subscriptions/listen",
];

/// Methods of [`METHODS`] that 2026-07-28 removed: there they are unknown, whatever their
/// parameters.
pub const REMOVED_IN_STATELESS: &[&str] = &["initialize", "ping", "logging/setLevel"];
