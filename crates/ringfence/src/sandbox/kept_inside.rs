//! Commands that a rule lets out of the sandbox and that ran inside instead.
//!
//! An `allow` rule never makes a command worse off, so one that cannot leave runs as if no rule
//! named it. The reader of the result still has to learn why a command met the sandbox's limits;
//! this list says so in the result.

use std::sync::{Mutex, MutexGuard};

use serde::Serialize;

use crate::base::IgnorePoison;

/// Maximum number of different entries in one result. A run can start as many commands as it likes.
const MAX_ENTRIES: usize = 16;
/// Maximum length of a command and of a reason, in characters.
const MAX_CHARS: usize = 300;

/// Commands of one rule that stayed inside for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptCommand {
    /// Words that the rule names.
    pub command: String,
    pub why: String,
    pub count: u64,
}

impl KeptCommand {
    /// Describes the entry in one line.
    pub fn summary_line(&self) -> String {
        let times = if self.count > 1 { format!(" ({} times)", self.count) } else { String::new() };
        format!("`{}` ran inside the sandbox{times}: {}", self.command, self.why)
    }
}

/// List for one run. The server adds to it while the run lives; each look at the run takes the new
/// entries.
#[derive(Debug, Default)]
pub struct KeptInside(Mutex<KeptList>);

#[derive(Debug, Default)]
struct KeptList {
    entries: Vec<KeptCommand>,
    /// Number of commands for which no entry was left.
    unlisted: u64,
}

impl KeptInside {
    /// Records that a command of the rule with these words ran inside.
    pub fn add(&self, prefix: &[String], why: &str) {
        // The words come from a file and are also shown on terminals.
        let sanitize = |c: char| if c.is_control() { '?' } else { c };
        let shorten = |text: &str| text.chars().take(MAX_CHARS).map(sanitize).collect::<String>();
        let (command, why) = (shorten(&prefix.join(" ")), shorten(why));
        let mut list = self.lock_list();
        let KeptList { entries, unlisted } = &mut *list;
        let position =
            entries.iter().position(|entry| entry.command == command && entry.why == why);
        match position {
            Some(index) => entries[index].count += 1,
            None if entries.len() < MAX_ENTRIES => {
                entries.push(KeptCommand { command, why, count: 1 })
            }
            None => *unlisted += 1,
        }
    }

    /// Takes everything that was recorded since the last call.
    pub fn take_new(&self) -> Vec<KeptCommand> {
        let KeptList { mut entries, unlisted } = std::mem::take(&mut *self.lock_list());
        if unlisted > 0 {
            let why = "the audit log has a line for each".to_owned();
            entries.push(KeptCommand {
                command: "other commands".to_owned(),
                why,
                count: unlisted,
            });
        }
        entries
    }

    fn lock_list(&self) -> MutexGuard<'_, KeptList> {
        self.0.lock().ignore_poison()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_summed_bounded_and_taken_once() {
        let kept = KeptInside::default();
        let mkdir = ["mkdir".to_owned()];
        kept.add(&mkdir, "no one can be asked");
        kept.add(&mkdir, "no one can be asked");
        for at in 0..100 {
            kept.add(&[format!("tool-{at}"), "x".repeat(5000)], "no one can be asked");
        }
        let taken = kept.take_new();
        assert_eq!(taken.len(), MAX_ENTRIES + 1);
        assert_eq!(
            taken[0].summary_line(),
            "`mkdir` ran inside the sandbox (2 times): no one can be asked"
        );
        assert!(taken.iter().all(|entry| entry.command.chars().count() <= MAX_CHARS));
        assert_eq!(
            (taken[MAX_ENTRIES].command.as_str(), taken[MAX_ENTRIES].count),
            ("other commands", 85)
        );
        assert_eq!(kept.take_new(), []);
    }
}
