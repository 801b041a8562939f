//! Races: what is run is exchanged by another thread or process while it is being run. A rule is never late.

use super::{modes, program, start};
use crate::escape::Cx;

const RULES: &str = r#"
prefix_rule(pattern = ["uname"], decision = "forbidden")
prefix_rule(pattern = ["echo", "forbidden"], decision = "forbidden")
"#;

/// How often each race is run, in how many of the modes: those that are about memory and files most.
fn effort(way: &str) -> (u32, usize) {
    let proof = std::env::var_os("RINGFENCE_PROOF").is_some();
    let most = ["path", "word", "files", "links"].contains(&way);
    match (proof, most) {
        (true, _) => (10_000, 4),
        (false, true) => (1000, 1),
        (false, false) => (PIECE, 1),
    }
}

/// So many tries in one run: a run has a time within which it must end.
const PIECE: u32 = 250;

/// In each try something ran, was refused, or was gone at the moment it was looked for. With rules, what is forbidden
/// never ran; and it would have: it was refused some of the time, and runs where there are no rules.
fn is_never_won(way: &str, prepare: &str) {
    let (tries, in_modes) = effort(way);
    for mode in modes().into_iter().rev().take(in_modes) {
        let mut sum = [0; 4];
        for _ in 0..tries / PIECE {
            let ended = race(&Cx::new(mode), way, prepare, true, PIECE);
            ended.iter().zip(&mut sum).for_each(|(one, all)| *all += one);
        }
        let [permitted, forbidden, refused, failed] = sum;
        println!("{way} [{mode}]: {permitted} ran, {refused} were refused, {failed} found nothing");
        assert_eq!(forbidden, 0, "{way} [{mode}]: the race was won");
        assert!(permitted > 0 && refused > 0, "{way} [{mode}]: there was no race: {sum:?}");
        assert!(failed < tries / 2, "{way} [{mode}]: {sum:?}");
        let [_, forbidden, refused, _] = race(&Cx::new(mode), way, prepare, false, 100);
        assert!(
            forbidden > 0 && refused == 0,
            "{way} [{mode}]: it would not have run without a rule either"
        );
    }
}

fn race(cx: &Cx, way: &str, prepare: &str, ruled: bool, tries: u32) -> [u32; 4] {
    cx.outside("house.rules", RULES);
    let race = program("race", &[]);
    let script =
        format!("echo begun\n{prepare}\n{} {way} {tries} 2>/dev/null\necho ended", race.display());
    let run = start(cx, ruled, &[], &["bash", "-euc", &script]).end();
    ["permitted", "forbidden", "refused", "failed"].map(|name| run.word(name).parse().unwrap())
}

const LINKS: &str = "ln -s /usr/bin/nproc a; ln -s /usr/bin/uname b";
const COPIES: &str = "cp /usr/bin/nproc a; cp /usr/bin/uname b";

#[test]
fn a_path_in_shared_memory() {
    is_never_won("path", LINKS);
}

#[test]
fn a_path_that_a_thread_writes() {
    is_never_won("path-thread", LINKS);
}

#[test]
fn an_argument_in_shared_memory() {
    is_never_won("word", LINKS);
}

#[test]
fn an_argument_that_a_thread_writes() {
    is_never_won("word-thread", LINKS);
}

#[test]
fn a_list_of_arguments_in_shared_memory() {
    is_never_won("words", LINKS);
}

#[test]
fn files_that_change_places() {
    is_never_won("files", COPIES);
}

#[test]
fn links_that_change_places() {
    is_never_won("links", LINKS);
}

#[test]
fn interpreters_that_change_places() {
    is_never_won(
        "interpreter",
        &format!("{COPIES}; printf '#!%s/a --version\\n' $PWD >script; chmod +x script"),
    );
}

#[test]
fn a_descriptor_that_changes() {
    is_never_won("descriptor", LINKS);
}

#[test]
fn a_descriptor_that_changes_under_a_path() {
    is_never_won("descriptor-path", LINKS);
}

#[test]
fn a_folder_that_changes() {
    is_never_won(
        "folder",
        "mkdir one other; ln -s /usr/bin/nproc one/x; ln -s /usr/bin/uname other/x",
    );
}
