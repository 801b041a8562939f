//! The rules of ARCHITECTURE.md that a program can check.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A module uses only what stands to its left.
const DIRECTION: &[&str] = &[
    "redact", "base", "config", "audit", "session", "approval", "net", "sandbox", "browser",
    "rulebook", "tools", "registry", "call", "mcp", "cli",
];

fn crate_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn project() -> PathBuf {
    crate_root().join("../..")
}

/// Every Rust file beneath, by its path from there, with its text.
fn sources(at: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![at.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(at).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn own() -> Vec<(String, String)> {
    sources(&crate_root().join("src"))
}

/// The part that ships: what stands before the tests of a file.
fn shipped(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text
        .find("#[cfg(test)]\nmod tests")
        .or_else(|| text.find("#[cfg(test)]\npub(crate) mod tests"));
    let code = |line: &&str| !line.trim_start().starts_with("//");
    text[..end.unwrap_or(text.len())]
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line))
        .filter(move |(_, line)| code(line))
}

fn is_test(name: &str) -> bool {
    name.ends_with("tests.rs") || name.ends_with("testing.rs") || name.ends_with("scratch.rs")
}

fn module(name: &str) -> &str {
    name.split(['/', '.']).next().unwrap_or_default()
}

#[test]
fn modules_use_only_what_stands_to_their_left() {
    let mut wrong = Vec::new();
    for (name, text) in own().iter().filter(|(name, _)| !is_test(name)) {
        let Some(place) = DIRECTION.iter().position(|other| *other == module(name)) else {
            assert!(
                ["main", "lib"].contains(&module(name)),
                "{name} belongs to no module that is known here"
            );
            continue;
        };
        for (line, code) in shipped(text) {
            for used in code.split("crate::").skip(1) {
                let used = used
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
                    .unwrap_or_default();
                if DIRECTION
                    .iter()
                    .position(|other| *other == used)
                    .is_some_and(|used| used > place)
                {
                    wrong.push(format!("{name}:{line} uses {used}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Where a word may stand in code.
fn only_in(word: &str, allowed: impl Fn(&str) -> bool) {
    let own = own();
    let found = own.iter().filter(|(name, _)| !is_test(name) && !allowed(name));
    let wrong: Vec<String> = found
        .flat_map(|(name, text)| {
            shipped(text)
                .filter(|(_, code)| code.contains(word))
                .map(move |(line, _)| format!("{name}:{line}"))
        })
        .collect();
    assert!(wrong.is_empty(), "`{word}` at {wrong:?}");
}

#[test]
fn each_danger_has_its_place() {
    only_in("rmcp::", |name| name.starts_with("mcp/"));
    only_in("axum::", |name| {
        ["mcp/http.rs", "mcp/door.rs", "mcp/sse.rs"].contains(&name)
            || name.starts_with("mcp/http/")
    });
    // The keyring's own program is no run; it says itself why it is started where it is.
    only_in("Command::new", |name| {
        name.starts_with("sandbox/") || name == "config/secrets/keyring.rs"
    });
    only_in("process::exit", |_| false);
    only_in("rules::evaluate", |name| ["main.rs", "sandbox/evaluate.rs"].contains(&name));
    only_in("starlark", |_| false);
    only_in("std::env::var", |name| {
        name == "sandbox/env.rs" || name.starts_with("config/") || name.starts_with("cli/")
    });
}

#[test]
fn files_are_short_enough_to_read() {
    let mut listed = Vec::new();
    for (name, text) in own().iter().filter(|(name, _)| !is_test(name)) {
        let lines = text.lines().count();
        if lines > 400 {
            listed.push(format!("{name} {lines}"));
        }
        assert!(lines <= 700, "{name} has {lines} lines");
    }
    // Not wrong, but to be looked at again.
    println!("over 400 lines: {listed:?}");
}

#[test]
fn every_test_file_is_run() {
    for folder in [crate_root().join("tests/it"), crate_root().join("tests/it/support")] {
        let parent =
            if folder.ends_with("it") { folder.join("main.rs") } else { folder.join("mod.rs") };
        let declared = std::fs::read_to_string(&parent).unwrap();
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if let Some(name) =
                name.strip_suffix(".rs").filter(|name| !["main", "mod"].contains(name))
            {
                assert!(
                    declared.contains(&format!("mod {name};")),
                    "{name} is not declared in {}",
                    parent.display()
                );
            }
        }
    }
}

/// The functions under `#[test]` in the whole project, by name.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let crates =
        std::fs::read_dir(project().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for (_, text) in crates.flat_map(|folder| sources(&folder)) {
        let mut waiting = false;
        for line in text.lines().map(str::trim) {
            if line == "#[test]" || line.starts_with("#[tokio::test") {
                waiting = true;
            } else if let Some(rest) =
                line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "))
                && std::mem::take(&mut waiting)
            {
                names.insert(rest.split('(').next().unwrap_or_default().to_owned());
            }
        }
    }
    let scenarios = std::fs::read_dir(crate_root().join("tests/it/scenarios")).unwrap();
    names.extend(
        scenarios.filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned())),
    );
    names
}

/// Each promise names its tests in backquotes, with or without their module.
#[test]
fn every_promise_names_a_test_that_exists() {
    let Ok(text) = std::fs::read_to_string(project().join("PROMISES.md")) else { return };
    let tests = tests();
    let mut promises = 0;
    let mut missing = Vec::new();
    for quoted in text.split('`').skip(1).step_by(2) {
        let name = quoted.rsplit("::").next().unwrap_or(quoted);
        // Test names are sentences; other quoted words are not.
        if name.matches('_').count() >= 2
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        {
            promises += 1;
            if !tests.contains(name) {
                missing.push(name);
            }
        }
    }
    assert!(promises > 0, "no promise names a test");
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn every_key_of_ours_is_documented() {
    let Ok(text) = std::fs::read_to_string(project().join("docs/protocol.md")) else { return };
    for key in ringfence::mcp::meta::ALL {
        assert!(text.contains(key), "{key} is not in docs/protocol.md");
    }
}

#[test]
fn there_are_not_too_many_dependencies() {
    let lock = std::fs::read_to_string(project().join("Cargo.lock")).unwrap();
    let count = lock.matches("[[package]]").count();
    println!("{count} locked packages");
    assert!(count <= 400, "{count} locked packages");
}

/// What a crate of ours depends on, by name, in the order of its manifest.
fn dependencies(name: &str) -> Vec<String> {
    let manifest =
        std::fs::read_to_string(project().join("crates").join(name).join("Cargo.toml")).unwrap();
    assert!(
        !manifest.contains("[build-dependencies]") && !manifest.contains("[target"),
        "{manifest}"
    );
    let (_, listed) = manifest.split_once("[dependencies]\n").unwrap();
    listed
        .lines()
        .filter_map(|line| line.split_once(" ="))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Whoever wants to trust the fence reads the crate and these, and what they depend on.
#[test]
fn the_fence_depends_on_what_is_on_the_list() {
    // The table of rules is ours, and plain data.
    let names: Vec<String> =
        dependencies("jail").into_iter().filter(|name| name != "policy").collect();
    assert_eq!(names, ["close_fds", "landlock", "libc", "rustix", "serde", "serde_json"]);
}

/// The table of rules is plain data, so that the fence may use it. The language they are written in is heavy, and has
/// one place.
#[test]
fn rules_are_data_and_their_language_has_its_place() {
    assert_eq!(dependencies("policy"), ["serde"]);
    assert_eq!(
        dependencies("rules"),
        ["policy", "rustix", "serde", "serde_json", "shlex", "starlark"]
    );
    for name in ["jail", "policy", "ringfence"] {
        let names = dependencies(name);
        assert!(!names.iter().any(|other| other.contains("starlark")), "{name}: {names:?}");
    }
}

#[test]
fn unsafe_has_its_place() {
    let uses = |text: &str| {
        ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| text.contains(word))
    };
    let of = |name: &str| sources(&project().join("crates").join(name).join("src"));
    let found: Vec<String> =
        of("jail").into_iter().filter(|(_, text)| uses(text)).map(|(name, _)| name).collect();
    assert_eq!(found, ["sys.rs", "sys/signals.rs", "sys/trace.rs"]);
    for name in ["policy", "ringfence", "rules"] {
        let found: Vec<String> =
            of(name).into_iter().filter(|(_, text)| uses(text)).map(|(name, _)| name).collect();
        assert_eq!(found, [""; 0]);
    }
}
