//! `ringfence rules check` beside the real `codex execpolicy check`, on rules and commands that nobody thought of:
//! the same words on standard output, the same exit code, every time.
//!
//! `RINGFENCE_SEED` starts from another number; a difference names the one that it was found with.

#[path = "../fuzz/rng.rs"]
pub mod rng;

mod text;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::server::{Scratch, binary};
use rng::Rng;

/// Every file is worth several commands, but each pair is one start of each program.
const COMMANDS: usize = 4;

fn codex() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/codex-install.sh");
    let output = Command::new(&script).output().expect("the script that installs Codex starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Codex is needed here and cannot be installed: {told}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

fn pairs() -> usize {
    if std::env::var_os("RINGFENCE_PROOF").is_some() { 2000 } else { 200 }
}

fn run(program: &Path, words: &[&str], case: &Case, at: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(words).args(&case.options);
    for file in &case.files {
        command.arg("--rules").arg(file);
    }
    command.args(&case.command).current_dir(at.join("workspace")).env_clear();
    command
        .env("HOME", at.join("home"))
        .env("CODEX_HOME", at.join("home"))
        .env("PATH", "/usr/bin:/bin");
    command.output().unwrap()
}

struct Case {
    files: Vec<PathBuf>,
    options: Vec<&'static str>,
    command: Vec<String>,
}

/// What came of a pair, so that the corpus is known to hold some of each.
#[derive(Debug, Default)]
struct Tally {
    matched: AtomicUsize,
    unmatched: AtomicUsize,
    refused: AtomicUsize,
}

fn write_files(
    rng: &mut Rng,
    known: &mut Vec<Vec<String>>,
    at: &Path,
    number: u64,
) -> Vec<PathBuf> {
    let count = *rng.pick(&[1, 1, 1, 2, 3]);
    (0..count)
        .map(|file| {
            let path = at.join("tmp").join(format!("{number}-{file}.rules"));
            if rng.one_in(60) {
                return path; // It is not there.
            }
            std::fs::write(&path, text::rules(rng, known)).unwrap();
            path
        })
        .collect()
}

fn compare(codex: &Path, case: &Case, at: &Path, seed: &str, tally: &Tally) {
    let theirs = run(codex, &["execpolicy", "check"], case, at);
    let ours = run(&binary(), &["rules", "check"], case, at);
    let same = theirs.stdout == ours.stdout && theirs.status.code() == ours.status.code();
    if !same {
        let told = |output: &Output| {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            format!("{:?}\n{out}{err}", output.status.code())
        };
        let files: Vec<String> = case
            .files
            .iter()
            .map(|file| std::fs::read_to_string(file).unwrap_or_default())
            .collect();
        panic!(
            "{seed}: {:?} {:?}\n{}\n--- Codex: {}\n--- Ringfence: {}",
            case.options,
            case.command,
            files.join("\n--- and\n"),
            told(&theirs),
            told(&ours)
        );
    }
    let count = match (ours.status.code(), ours.stdout.windows(8).any(|bytes| bytes == b"decision"))
    {
        (Some(0), true) => &tally.matched,
        (Some(0), false) => &tally.unmatched,
        _ => &tally.refused,
    };
    count.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn rules_check_answers_as_codex_does() {
    let codex = codex();
    let scratch = Scratch::new();
    let seed = std::env::var("RINGFENCE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let (tally, next) = (Tally::default(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number * COMMANDS >= pairs() {
                        break;
                    }
                    let mut rng = Rng::new(seed, number as u64);
                    let mut known = Vec::new();
                    let files = write_files(&mut rng, &mut known, scratch.path(), number as u64);
                    for _ in 0..COMMANDS {
                        let (options, command) = text::command(&mut rng, &known);
                        let case = Case { files: files.clone(), options, command };
                        compare(
                            &codex,
                            &case,
                            scratch.path(),
                            &format!("RINGFENCE_SEED={seed}, case {number}"),
                            &tally,
                        );
                    }
                }
            });
        }
    });
    println!("{} pairs alike: {tally:?}", pairs());
    for (name, count) in [
        ("match", &tally.matched),
        ("match nothing", &tally.unmatched),
        ("are refused", &tally.refused),
    ] {
        let count = count.load(Ordering::Relaxed);
        assert!(
            count * 10 >= pairs(),
            "only {count} of {} {name}: the corpus says too little",
            pairs()
        );
    }
}

/// Corners that a generator finds rarely, each by hand.
#[test]
fn rules_check_answers_as_codex_does_in_every_corner() {
    let codex = codex();
    let scratch = Scratch::new();
    let tally = Tally::default();
    for (number, (rules, commands)) in text::CORNERS.iter().enumerate() {
        let path = scratch.path().join("tmp").join(format!("{number}.rules"));
        std::fs::write(&path, rules).unwrap();
        for command in *commands {
            for options in [vec![], vec!["--resolve-host-executables", "--pretty"]] {
                let command =
                    std::iter::once("--").chain(command.split('\0')).map(str::to_owned).collect();
                let case = Case { files: vec![path.clone()], options, command };
                compare(&codex, &case, scratch.path(), &format!("corner {number}"), &tally);
            }
        }
    }
}
