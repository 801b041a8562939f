//! Many execs at once, from threads, failing, stopped and killed on the way: none hangs, and each ends as it must.

use super::{bash, modes, program};
use crate::escape::{Cx, Profile};

/// With one watcher, a few and many, of which the first is the hardest: it must never wait for what only it can give.
const WATCHERS: [&str; 3] = ["1", "2", "8"];

fn rounds(few: u32) -> u32 {
    if std::env::var_os("RINGFENCE_PROOF").is_some() { few * 5 } else { few }
}

fn ends_well(way: &str, few: u32) {
    let stress = program("stress", &[]);
    for watchers in WATCHERS {
        for mode in modes().into_iter().rev().step_by(if watchers == "2" { 1 } else { 4 }) {
            let began = std::time::Instant::now();
            // Where it sees its own processes alone, it looks for what is left of them.
            let alone = if mode.profile == Some(Profile::Default) { "alone" } else { "" };
            let script = format!("{} {way} {} {alone}", stress.display(), rounds(few));
            let run = bash(&Cx::new(mode), &["--watchers", watchers], &script);
            assert_eq!(run.word("bad"), "0", "{way} with {watchers} [{mode}]: {run:?}");
            println!("{way} with {watchers} watchers [{mode}]: {:?}", began.elapsed());
        }
    }
}

#[test]
fn threads_that_exec_at_once() {
    ends_well("threads", 25);
}

#[test]
fn calls_that_fail_in_16_threads() {
    ends_well("failures", 60);
}

#[test]
fn spawns_that_succeed_and_fail() {
    ends_well("spawns", 100);
}

#[test]
fn programs_that_are_stopped_and_killed_as_they_begin() {
    ends_well("kills", 100);
}

#[test]
fn storms_of_kills() {
    ends_well("storms", 8);
}

#[test]
fn a_chain_of_programs_that_is_stopped_and_continued() {
    ends_well("pauses", 60);
}

#[test]
fn codes_and_signals() {
    ends_well("statuses", 60);
}

#[test]
fn sixty_four_at_once() {
    for watchers in WATCHERS {
        let cx = Cx::new(*modes().last().unwrap());
        let many = "seq 256 | xargs -P 64 -n 1 sh -c 'exec /bin/echo \"$0\"' | sort -n | sha256sum; seq 256 | sha256sum";
        let run = bash(&cx, &["--watchers", watchers], many);
        let sums: Vec<&str> = run.stdout.lines().filter(|line| line.len() > 64).collect();
        assert_eq!(sums.len(), 2, "{run:?}");
        assert_eq!(sums[0], sums[1], "with {watchers}: {run:?}");
    }
}

#[test]
fn refusals_and_runs_mixed_at_once() {
    for watchers in WATCHERS {
        let cx = Cx::new(*modes().last().unwrap());
        let many = "seq 128 | xargs -P 32 -n 1 sh -c 'uname; echo \"ends with $?\"; nproc >/dev/null' | sort | uniq -c";
        let run = bash(&cx, &["--watchers", watchers], many);
        assert!(run.stdout.contains("128 ends with 1"), "with {watchers}: {run:?}");
        assert_eq!(run.stderr.matches(super::REFUSAL).count(), 128, "with {watchers}: {run:?}");
        assert!(!run.stdout.contains("Linux"), "{run:?}");
    }
}

/// A run is ended while dozens of its processes are in the middle of an exec, and nothing of it is left.
#[test]
fn a_run_that_is_killed_in_the_middle_leaves_nothing() {
    let stress = program("stress", &[]);
    for mode in modes().into_iter().filter(|mode| mode.profile == Some(Profile::Default)) {
        for round in 0..rounds(4) {
            let cx = Cx::new(mode);
            let marker = cx.marker();
            let script = format!(
                "echo begun; for i in $(seq 30); do {} chain 1000000 {marker} & done; wait",
                stress.display()
            );
            let mut live =
                super::start(&cx, true, &[], &["bash", "-c", &script, "bash", &marker]).may_die();
            live.wait_for("begun");
            std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 7));
            live.kill();
            crate::support::process::wait_for_death(&marker, crate::support::DEADLINE);
        }
    }
}
