//! docs/requirements.md: every row has an id, says how it is met, and names a proof that exists.

use std::collections::{BTreeMap, BTreeSet};

use super::{project, tests};

/// Documents that the page covers.
const DOCUMENTS: [&str; 5] = ["000", "001", "002", "003", "004"];

/// Row of a table.
struct Requirement {
    id: String,
    text: String,
    answer: String,
    proof: String,
}

/// Rows of all tables, in the order of the page.
fn requirements() -> Vec<Requirement> {
    let page = std::fs::read_to_string(project().join("docs/requirements.md")).unwrap();
    let is_row = |line: &&str| DOCUMENTS.iter().any(|name| line.starts_with(&format!("| {name} ")));
    let rows = page.lines().filter(is_row).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [id, text, answer, proof] = cells[..] else {
            panic!("a row has four cells: {line}");
        };
        let [id, text, answer, proof] = [id, text, answer, proof].map(str::to_owned);
        Requirement { id, text, answer, proof }
    });
    rows.collect()
}

/// Splits `001 FR-003a` into `001 FR`, 3 and `a`. Acceptance scenarios are `001 US-1.2`.
fn split_id(id: &str) -> Option<(String, u32, String)> {
    let (document, rest) = id.split_once(' ')?;
    let (prefix, number) = rest.split_once('-')?;
    let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let is_prefix = !prefix.is_empty() && prefix.chars().all(|c| c.is_ascii_uppercase());
    let (number, part) = number.split_at(digits);
    (is_prefix && DOCUMENTS.contains(&document)).then_some(())?;
    Some((format!("{document} {prefix}"), number.parse().ok()?, part.to_owned()))
}

/// A row that was lost would leave a gap.
#[test]
fn ids_of_requirements_are_unique_and_without_gaps() {
    let mut last: BTreeMap<String, (u32, String)> = BTreeMap::new();
    for Requirement { id, .. } in requirements() {
        let (section, number, part) = split_id(&id).unwrap_or_else(|| panic!("bad id: {id}"));
        let before = last.insert(section, (number, part.clone()));
        let follows = match before {
            None => number == 1,
            Some((before, before_part)) => {
                (number == before && part > before_part) || number == before + 1
            }
        };
        assert!(follows, "{id} is used twice, out of order, or follows a gap");
    }
    let documents: BTreeSet<&str> = last.keys().map(|section| &section[..3]).collect();
    assert_eq!(documents, BTreeSet::from(DOCUMENTS));
}

/// Names in code style, in the order of the cell.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Modules that lead to a test file: `crates/client/tests/it/eras.rs` is `client`, `it`, `eras`.
fn modules(file: &str) -> Vec<&str> {
    let skipped = ["crates", "src", "tests", "mod"];
    let path = match file.rsplit_once('/') {
        // The file of a scenario is itself the test.
        Some((folder, name)) if name.ends_with(".scn") => folder,
        _ => file.trim_end_matches(".rs"),
    };
    let is_last = |at: usize| at + 1 == path.split('/').count();
    let parts = path.split('/').enumerate();
    // A file `tests.rs` is a module, the directory of integration tests is none.
    parts
        .filter(|(at, part)| !skipped.contains(part) || (is_last(*at) && *part == "tests"))
        .map(|(_, part)| part)
        .collect()
}

/// Whether a test of this path exists: its name, after the last modules that lead to it.
fn exists(path: &str, tests: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let mut parts: Vec<&str> = path.split("::").collect();
    let name = parts.pop().unwrap_or_default();
    let files = tests.get(name).into_iter().flatten();
    !parts.is_empty() && files.map(|file| modules(file)).any(|modules| modules.ends_with(&parts))
}

/// Says what is wrong with a proof. A proof names tests, steps of `make` or scripts; or it says that the proof is
/// planned, or why there is no test.
fn fault(
    proof: &str,
    tests: &BTreeMap<String, BTreeSet<String>>,
    makefile: &str,
) -> Option<String> {
    let is_excused = ["planned: ", "no test: "]
        .iter()
        .any(|word| proof.contains(word) && !proof.ends_with(word.trim()));
    let names = quoted(proof);
    if names.is_empty() && !is_excused {
        return Some("it names nothing".to_owned());
    }
    let is_proof = |name: &str| match name.strip_prefix("make ") {
        Some(step) => makefile.lines().any(|line| line.starts_with(&format!("{step}:"))),
        None if name.contains("::") => exists(name, tests),
        None => name.contains('/') && project().join(name).is_file(),
    };
    let tests_end = proof.find("planned: ").or_else(|| proof.find("no test: "));
    // What is planned may have a name already.
    let names = tests_end.map_or(names, |end| quoted(&proof[..end]));
    names.into_iter().find(|name| !is_proof(name)).map(|name| format!("`{name}` does not exist"))
}

#[test]
fn every_requirement_names_a_proof_that_exists() {
    let tests = tests();
    let makefile = std::fs::read_to_string(project().join("Makefile")).unwrap();
    let mut faults = Vec::new();
    let rows = requirements();
    for row in &rows {
        if row.text.is_empty() || row.answer.is_empty() {
            faults.push(format!("{}: a cell is empty", row.id));
        }
        faults.extend(fault(&row.proof, &tests, &makefile).map(|why| format!("{}: {why}", row.id)));
    }
    assert!(faults.is_empty(), "{faults:#?}");
    let planned = rows.iter().filter(|row| row.proof.contains("planned: ")).count();
    let unproven = rows.iter().filter(|row| row.proof.contains("no test: ")).count();
    println!("{} requirements, {planned} planned, {unproven} without a test", rows.len());
}

/// The check above finds what it is for.
#[test]
fn a_proof_that_does_not_exist_is_found() {
    let tests = tests();
    let makefile = "conformance: x\n\tstep\n";
    let own = "`it::tidy::requirements::a_proof_that_does_not_exist_is_found`";
    let scenario = "`it::scenarios::tools_are_discovered`";
    let unit = "`client::config::load::tests::sources_take_precedence_in_order`";
    for good in [
        own,
        scenario,
        unit,
        "`make conformance`",
        "`conformance/run.sh`",
        "planned: `smoke`",
        "no test: a habit",
        &format!("{own}, {scenario}; planned: `smoke`"),
    ] {
        assert_eq!(fault(good, &tests, makefile), None, "{good}");
    }
    for bad in [
        "",
        "it works",
        "planned:",
        "`it::tidy::requirements::no_such_test`",
        "`it::approvals::a_proof_that_does_not_exist_is_found`",
        "`a_proof_that_does_not_exist_is_found`",
        "`make step`",
        "`conformance`",
        "`conformance/no.sh`",
        &format!("{own}, `it::x::y`; planned: `smoke`"),
    ] {
        assert!(fault(bad, &tests, makefile).is_some(), "{bad}");
    }
}
