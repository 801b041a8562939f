//! Nonsense, by the thousand: whatever is sent, the server answers by the rules and lives on.
//!
//! Every case follows from a seed and its number. Without further words each test runs the same cases on every
//! machine, so that a commit is never judged by chance. `RINGFENCE_FUZZ_SECONDS` searches new cases for that long;
//! a failure prints the `RINGFENCE_FUZZ_SEED` that repeats it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod arguments;
mod envelope;
mod files;
mod model;
mod mutate;
mod paths;
mod rng;
mod stdio;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rng::Rng;
use serde_json::Value;

/// Runs `cases` cases, or those that fit into the given time but never fewer than a few. Returns their number.
fn each_case(name: &str, cases: u64, mut run: impl FnMut(&mut Rng)) -> u64 {
    let (seconds, seed) = (number("RINGFENCE_FUZZ_SECONDS"), seed());
    println!("{name}: RINGFENCE_FUZZ_SEED={seed}");
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut case = 0;
    while end.map_or(case < cases, |end| case < 100 || Instant::now() < end) {
        let guard = Reproduce { name, seed, case };
        run(&mut Rng::new(seed, case));
        std::mem::forget(guard);
        case += 1;
    }
    println!("{name}: {case} cases");
    case
}

/// Says how to have a failure again, when a case ends by panicking.
struct Reproduce<'a> {
    name: &'a str,
    seed: u64,
    case: u64,
}

impl Drop for Reproduce<'_> {
    fn drop(&mut self) {
        eprintln!(
            "{}: failed in case {}; again with RINGFENCE_FUZZ_SEED={}",
            self.name, self.case, self.seed
        );
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a whole number, not {text:?}")))
}

/// The given seed; else a new one for a search, which would find nothing more in the same cases.
fn seed() -> u64 {
    let fixed =
        number("RINGFENCE_FUZZ_SEED").or(number("RINGFENCE_FUZZ_SECONDS").is_none().then_some(1));
    fixed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    })
}

/// What every error promises to whoever gets it, in JSON-RPC's `data` or inside a result.
fn assert_error_body(body: &Value, about: &dyn std::fmt::Debug) {
    for name in ["kind", "message", "hint"] {
        assert!(
            body[name].as_str().is_some_and(|text| !text.is_empty()),
            "no `{name}` in {body} for {about:?}"
        );
    }
    assert!(body["code"].is_i64(), "no `code` in {body} for {about:?}");
    let trace_id = body["trace_id"].as_str().unwrap_or_default();
    assert!(
        trace_id.len() == 32 && trace_id.bytes().all(|b| b.is_ascii_hexdigit()),
        "trace_id of {body} for {about:?}"
    );
    assert!(ringfence::KINDS.iter().any(|row| body["kind"] == row.name), "unknown kind in {body}");
    let size = body.to_string().len();
    assert!(size < 4096, "an error of {size} bytes: {:.300}… for {about:?}", body.to_string());
}

/// A directory with a root and a workspace in it, removed at the end.
struct Stage(PathBuf);

impl Stage {
    fn new() -> Self {
        let path = std::env::temp_dir()
            .canonicalize()
            .unwrap()
            .join(ringfence::short_id("ringfence-fuzz"));
        std::fs::create_dir_all(path.join("workspace/dir")).unwrap();
        std::fs::write(path.join("workspace/file.txt"), "one\ntwo\n").unwrap();
        Stage(path)
    }

    fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    fn workspace(&self) -> PathBuf {
        self.0.join("workspace")
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The first bytes of an input, readable, for a failure's message.
struct Shown<'a>(&'a [u8]);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = &self.0[..self.0.len().min(600)];
        write!(f, "{} ({} bytes in all)", head.escape_ascii(), self.0.len())
    }
}
