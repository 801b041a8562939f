//! What the rules are worth here: whether they can be read, and what they let out.

use jail::probe::Outcome;
use policy::{Decision, Table};

use super::health::Health;
use crate::base::Error;
use crate::config::{Config, Escalate};
use crate::policy::{Places, Policy, Rulebook};
use crate::sandbox::escalate;

pub fn look(config: &Config) -> Vec<Health> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let policy = Policy::new(Places::of_config(config));
    let book = runtime.block_on(policy.read_once(config.workspace.as_deref()));
    let mut all = vec![files(&book)];
    all.extend(book.faults.iter().map(|fault| Health {
        name: "rules",
        outcome: Outcome::Refused,
        text: format!("{}: {}", fault.location(), fault.message),
        fix: Some("mend the file; until then nothing it allows leaves the sandbox. `ringfence rules test` shows the place.".to_owned()),
    }));
    all.extend(book.ignored.iter().map(|ignored| Health {
        name: "rules",
        outcome: Outcome::NotTried,
        text: format!("{}: {}", ignored.location(), ignored.what),
        fix: None,
    }));
    if !config.policy.intercept && !book.table.prefixes.is_empty() {
        all.push(Health {
            name: "rules",
            outcome: Outcome::Refused,
            text: "there are rules, and execs are not watched: every run is refused".to_owned(),
            fix: Some("set `intercept = true` under [policy], or take the rules away.".to_owned()),
        });
    }
    all.push(way_out(config, &book));
    all
}

fn files(book: &Rulebook) -> Health {
    let (rules, files) = (book.table.prefixes.len(), book.files.len());
    let text = match files {
        0 => "none".to_owned(),
        _ => format!("{rules} in {files} files"),
    };
    Health { name: "rules", outcome: Outcome::Ok, text, fix: None }
}

fn way_out(config: &Config, book: &Rulebook) -> Health {
    let name = "escalation";
    let mode = config.policy.escalate;
    let fine = |text: String| Health { name, outcome: Outcome::Ok, text, fix: None };
    let bad = |error: Error| Health {
        name,
        outcome: Outcome::Refused,
        text: error.detail(),
        fix: error.hint_text().map(str::to_owned),
    };
    match mode {
        Escalate::Off => fine("off: what rules allow runs in the sandbox".to_owned()),
        Escalate::Outside if escalate::account(config).is_err() => {
            escalate::account(config).err().map_or_else(|| fine(String::new()), bad)
        }
        mode => fine(format!("{}: {} rules let commands out", mode.name(), lets_out(&book.table))),
    }
}

/// How many rules let commands out, some of them after a question.
fn lets_out(table: &Table) -> usize {
    table.prefixes.iter().filter(|rule| rule.decision < Decision::Forbidden).count()
}
