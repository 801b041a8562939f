//! Ways that not every profile has: on a terminal of one's own, and from a process that nobody may look at.

use super::{REFUSAL, bash, modes};
use crate::escape::{Cx, Profile};

fn is_closed(mode: crate::escape::Mode, script: &str) {
    let run = bash(&Cx::new(mode), &[], &script.replace("$1", "/usr/bin/nproc"));
    assert!(run.stdout.contains("nproc (GNU coreutils)"), "[{mode}] {run:?}");
    let run = bash(&Cx::new(mode), &[], &script.replace("$1", "/usr/bin/uname"));
    assert!(!run.stdout.contains("(GNU coreutils)"), "[{mode}] {run:?}");
    assert!(run.stdout.contains(REFUSAL) || run.stderr.contains(REFUSAL), "[{mode}] {run:?}");
}

#[test]
fn on_a_terminal_of_its_own() {
    for mode in modes().into_iter().filter(|mode| mode.profile == Some(Profile::Default)) {
        is_closed(mode, "script -qc '$1 --version' /dev/null </dev/null");
        is_closed(mode, "python3 -c 'import pty; pty.spawn([\"$1\", \"--version\"])' </dev/null");
        is_closed(
            mode,
            "tmux -L x -f /dev/null new-session -d '$1 --version >said 2>&1; tmux -L x wait-for -S end' \\; wait-for end; cat said",
        );
    }
}

/// One that has itself hidden can be watched by whoever has power over it. An ordinary user's fence without
/// namespaces has none: there nothing that such a process calls is run.
#[test]
fn by_one_that_cannot_be_looked_at() {
    for mode in modes() {
        let run = bash(
            &Cx::new(mode),
            &[],
            "$HOW undumpable /usr/bin/uname --version; $HOW undumpable /usr/bin/nproc --version",
        );
        assert!(!run.stdout.contains("uname (GNU"), "[{mode}] {run:?}");
        let told = run.stderr.contains(REFUSAL) && run.stdout.contains("nproc (GNU");
        assert!(
            told || run.stderr.matches("Operation not permitted").count() == 2,
            "[{mode}] {run:?}"
        );
        assert!(told || mode.profile == Some(Profile::Contained), "[{mode}] {run:?}");
    }
}
