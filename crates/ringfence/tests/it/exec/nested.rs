//! Other supervisors inside the fence are told no, and nothing hangs.

use super::{bash, modes, program};
use crate::escape::Cx;

/// Whether a program is here. These tests are about what happens where it is.
fn is_here(name: &str) -> bool {
    let here = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .any(|folder| folder.join(name).exists());
    if !here {
        println!("NOT RUN: there is no {name} here");
    }
    here
}

/// In every mode: the command says this, and a forbidden program does not run under it.
fn is_told(command: &str, words: &[&str]) {
    for mode in modes() {
        let cx = Cx::new(mode);
        let run = bash(
            &cx,
            &[],
            &format!("{{ timeout 8 {command}; }} </dev/null 2>&1; echo \"code $?\""),
        );
        let said = &run.stdout;
        assert!(!said.contains("GNU coreutils"), "[{mode}] {said}");
        assert!(!said.contains("code 0") && !said.contains("code 124"), "[{mode}] {said}");
        assert!(words.iter().any(|word| said.contains(word)), "[{mode}] {said}");
    }
}

#[test]
fn gdb_is_told_that_it_may_not_trace() {
    if is_here("gdb") {
        is_told(
            "gdb -batch -return-child-result -ex run --args /usr/bin/uname --version",
            &["Operation not permitted"],
        );
    }
}

#[test]
fn strace_is_told_that_it_may_not_trace() {
    if is_here("strace") {
        is_told("strace -f -o /dev/null /usr/bin/uname --version", &["Operation not permitted"]);
    }
}

#[test]
fn a_ringfence_inside_says_that_it_cannot_be_put_up() {
    let own = crate::support::place::visible_binary().to_str().unwrap();
    for (inner, why) in
        [("default", "(user namespace refused)"), ("contained", "(seccomp refused)")]
    {
        // Places that it has nothing against: it is to fail at the fence.
        let command = format!(
            "bash -c 'mkdir -p a b; exec {own} sandbox --profile {inner} --root $PWD/a --workspace $PWD/b -- nproc --version'"
        );
        is_told(&command, &[&format!("the sandbox cannot be set up {why}"), "already"]);
    }
}

#[test]
fn another_listener_is_refused() {
    let listener = program("listener", &[]);
    is_told(
        &format!("{} /usr/bin/uname --version", listener.display()),
        &["Device or resource busy", "not permitted"],
    );
}
