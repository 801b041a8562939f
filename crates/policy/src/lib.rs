//! Rules about commands: a flat table, and what it says about one of them.
//!
//! There are two questions. [`Table::check`] answers about a command as text, before anything runs, exactly as Codex
//! does. [`Judge::judge`] answers about a program that the kernel is about to run, and knows which file it really is.
//! Both work on plain data, so that the server and a run's supervisor use the same code.

mod check;
mod judge;
mod rule;

pub use check::{Check, Match};
pub use judge::{HEURISTICS, Judge, Seen, Verdict, View};
pub use rule::{Decision, File, NetworkRule, Origin, PrefixRule, Program, Protocol, Table, Token};
