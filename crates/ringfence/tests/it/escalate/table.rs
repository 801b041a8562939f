//! The table of docs/rules.md: where a command runs, by what its rule says, who answers, whether the server may let
//! anything out, and `escalate_risky`. Each cell is tried on the real binary.

use serde_json::json;

use super::Serving;
use super::inside::{able_to_leave, unable_to_leave};
use crate::support::{Approve, SESSIONS, Transport};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ran {
    Outside,
    Inside,
    /// Not at all: exit code 1.
    Refused,
}

use Ran::{Inside, Outside, Refused};

/// Who answers the questions of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    SaysOutside,
    SaysInside,
    SaysNo,
    Silent,
    /// The client declares no elicitation, and there is no terminal.
    NoOne,
}

const ASKERS: [Asker; 5] =
    [Asker::SaysOutside, Asker::SaysInside, Asker::SaysNo, Asker::Silent, Asker::NoOne];
const RISKY: [&str; 3] = ["ask", "inside", "outside"];

/// One kind of rule: its name in the table, the rule's words and decision, and a command that says where it ran by the
/// number of its mount namespace.
struct Kind {
    name: &'static str,
    rule: (&'static str, &'static str),
    command: &'static str,
}

const KINDS: &[Kind] = &[
    // Inside it has the variable that the command sets; outside it has the operator's environment.
    Kind {
        name: "allow, harmless program",
        rule: ("[\"nproc\"]", "allow"),
        command: "n=$(OMP_NUM_THREADS=1234 nproc) || exit 1; [ $n = 1234 ] && echo 1 || echo OWN",
    },
    Kind {
        name: "allow, the whole command",
        rule: ("[\"find\", \"-L\", \"/proc/self/ns/mnt\", \"-printf\", \"%i\"]", "allow"),
        command: "find -L /proc/self/ns/mnt -printf %i",
    },
    Kind {
        name: "allow, more words than the rule",
        rule: ("[\"readlink\"]", "allow"),
        command: "readlink /proc/self/ns/mnt | tr -dc 0-9",
    },
    Kind {
        name: "allow, more words than the rule, of a program that runs others",
        rule: ("[\"env\"]", "allow"),
        command: "env ls -Ldi /proc/self/ns/mnt | tr -dc '0-9 ' | cut -d' ' -f1",
    },
    Kind {
        name: "prompt",
        rule: ("[\"stat\"]", "prompt"),
        command: "stat -L -c %i /proc/self/ns/mnt",
    },
    Kind {
        name: "forbidden",
        rule: ("[\"cksum\"]", "forbidden"),
        command: "cksum /proc/self/ns/mnt",
    },
];

/// What the table says.
fn expected(kind: &str, asker: Asker, may_leave: bool, risky: &str) -> Ran {
    let after_a_yes = if may_leave { Outside } else { Inside };
    match (kind, asker, risky) {
        ("forbidden", ..) => Refused,
        ("prompt", Asker::SaysOutside, _) => after_a_yes,
        // Where the command cannot leave, inside is what a plain yes means, and no other choice is offered.
        ("prompt", Asker::SaysInside, _) if may_leave => Inside,
        ("prompt", ..) => Refused,
        // Every `allow` of a server that may let nothing out.
        _ if !may_leave => Inside,
        ("allow, harmless program" | "allow, the whole command", ..) => Outside,
        (_, _, "outside") => Outside,
        (_, _, "inside") => Inside,
        (_, Asker::SaysOutside, _) => Outside,
        (_, Asker::SaysInside, _) => Inside,
        (_, Asker::SaysNo, _) => Refused,
        (_, Asker::Silent | Asker::NoOne, _) => Inside,
    }
}

/// All kinds of rules on one server.
fn try_column(asker: Asker, may_leave: bool, risky: &str) -> Vec<String> {
    let policy = if may_leave { able_to_leave() } else { unable_to_leave() };
    let policy = format!(
        "approval.expiry_s = 1\n{policy}\nescalate = \"outside\"\nescalate_risky = {risky:?}\n"
    );
    let rules: Vec<(&str, &str)> = KINDS.iter().map(|kind| kind.rule).collect();
    let serving = Serving::new(Transport::Stdio).config(&policy).rules(&rules);
    let mut server = serving.options.clone().spawn();
    let mut client = server.client(SESSIONS);
    if asker == Asker::NoOne {
        client.capabilities = json!({});
    }
    client.approve = match asker {
        Asker::SaysOutside => Approve::Choice("once"),
        Asker::SaysInside => Approve::Choice("inside"),
        Asker::SaysNo => Approve::Decline,
        Asker::Silent | Asker::NoOne => Approve::Never,
    };
    client.shake_hands();
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    let own: String = own.chars().filter(char::is_ascii_digit).collect();
    let mut wrong = Vec::new();
    for kind in KINDS {
        let script = format!("set -o pipefail; {}", kind.command.replace("OWN", &own));
        let message = client.call("shell.exec", json!({"command": script}));
        let result = &message["result"]["structuredContent"];
        let said = result["stdout"].as_str().unwrap_or_default().trim();
        let ran = match (result["exit_code"].as_i64(), said) {
            (Some(0), said) if said == own => Some(Outside),
            (Some(0), said) if !said.is_empty() => Some(Inside),
            (Some(1), "") => Some(Refused),
            _ => None,
        };
        let cell =
            format!("[{}, {asker:?}, may leave: {may_leave}, escalate_risky = {risky}]", kind.name);
        let expected = expected(kind.name, asker, may_leave, risky);
        if ran != Some(expected) {
            wrong.push(format!("{cell}: expected {expected:?}, got {ran:?}: {message}"));
        }
        // Exactly the commands that a rule lets out and that ran inside are in the list.
        let is_listed = result["kept_inside"][0]["why"].as_str().is_some_and(|why| !why.is_empty());
        if is_listed != (expected == Inside) {
            wrong.push(format!("{cell}: in `kept_inside`: {is_listed}: {message}"));
        }
        let mut audited = server.events("exec").into_iter().rev();
        let audited = audited.find(|event| event["rule"]["prefix"][0] == first_word(kind));
        let audited = audited.map(|event| (event["ran"].clone(), event["why"].is_string()));
        let ran = match expected {
            Outside => "outside",
            Inside => "inside",
            Refused => "refused",
        };
        if audited != Some((json!(ran), expected == Inside)) {
            wrong.push(format!("{cell}: on record: {audited:?}"));
        }
    }
    wrong
}

fn first_word(kind: &Kind) -> String {
    kind.rule.0.split('"').nth(1).unwrap_or_default().to_owned()
}

#[track_caller]
fn holds(may_leave: bool) {
    let columns = ASKERS.into_iter().flat_map(|asker| RISKY.map(|risky| (asker, risky)));
    let wrong: Vec<String> =
        columns.flat_map(|(asker, risky)| try_column(asker, may_leave, risky)).collect();
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_cell_of_a_server_that_may_let_commands_out() {
    holds(true);
}

/// A server of root without `escalate_as`, or of a user who names another one.
#[test]
fn every_cell_of_a_server_that_may_not() {
    holds(false);
}
