//! Quality of the scanner on the labelled definitions in `tests/scan/`.
//!
//! Definitions with an even id are for writing rules. Those with an odd id only measure; never write
//! a rule by what is missed there, or they no longer measure anything. Attacks and rules have one
//! author, who knew both halves, so these figures only guard against regressions. They do not say
//! how many attacks in other words are found: indirect wording is mostly missed at first contact.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Deserialize)]
struct LabelledDefinition {
    #[serde(default)]
    id: usize,
    #[serde(default)]
    kind: String,
    server: String,
    #[serde(alias = "definition")]
    tool: Value,
    instructions: Option<String>,
}

const OWN_TOOLS: [&str; 4] = ["file.read", "file.write", "shell.exec", "browser.navigate"];

fn read_definitions(file: &str) -> Vec<LabelledDefinition> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the servers whose tools every definition is next to.
fn read_others() -> BTreeMap<String, LockedServer> {
    let mut servers: BTreeMap<String, LockedServer> = BTreeMap::new();
    for LabelledDefinition { server, tool, .. } in read_definitions("search/tools.jsonl") {
        let empty =
            LockedServer { identity: Value::Null, instructions: None, tools: BTreeMap::new() };
        let name = tool["name"].as_str().unwrap().to_owned();
        servers.entry(server).or_insert(empty).tools.insert(name, tool);
    }
    servers
}

fn scan_definition(
    labelled: &LabelledDefinition,
    others: &BTreeMap<String, LockedServer>,
) -> Vec<ScanFinding> {
    let name = labelled.tool["name"].as_str().unwrap().to_owned();
    let server = LockedServer {
        identity: serde_json::json!({"name": labelled.server}),
        instructions: labelled.instructions.clone(),
        tools: BTreeMap::from([(name, labelled.tool.clone())]),
    };
    scan_server(&labelled.server, &server, others, &OWN_TOOLS)
}

fn is_hard(findings: &[ScanFinding]) -> bool {
    findings.iter().any(|finding| finding.severity == ScanSeverity::Hard)
}

/// Returns the share of definitions with a hard finding.
fn measure_share(
    definitions: &[&LabelledDefinition],
    others: &BTreeMap<String, LockedServer>,
) -> f64 {
    let hard = definitions.iter().filter(|labelled| is_hard(&scan_definition(labelled, others)));
    hard.count() as f64 / definitions.len() as f64
}

fn split_definitions(definitions: &[LabelledDefinition], odd: usize) -> Vec<&LabelledDefinition> {
    definitions.iter().filter(|labelled| labelled.id % 2 == odd).collect()
}

/// Prints which attacks for development are missed, and which ordinary definitions are not.
#[test]
#[ignore = "prints what to improve"]
fn print_misses_of_the_development_set() {
    let others = read_others();
    for labelled in split_definitions(&read_definitions("scan/attacks.jsonl"), 0) {
        let findings = scan_definition(labelled, &others);
        if !is_hard(&findings) {
            println!(
                "MISSED {} {} {findings:?}\n    {}",
                labelled.id, labelled.kind, labelled.tool
            );
        }
    }
    for labelled in split_definitions(&read_definitions("scan/ordinary.jsonl"), 0) {
        for finding in scan_definition(labelled, &others) {
            println!("ORDINARY {} {finding:?}", labelled.id);
        }
    }
    for finding in scan_servers(&others, &OWN_TOOLS) {
        println!("SEARCH TOOLS {finding:?}");
    }
}

#[test]
fn hard_findings_have_recall_and_precision() {
    let others = read_others();
    let attacks = read_definitions("scan/attacks.jsonl");
    let ordinary = read_definitions("scan/ordinary.jsonl");
    let mut measured = (0.0, 0.0);
    for (title, odd) in [("dev", 0), ("test", 1)] {
        let recall = measure_share(&split_definitions(&attacks, odd), &others);
        let false_positives = measure_share(&split_definitions(&ordinary, odd), &others);
        println!("{title:<5} recall {recall:.3}  false positives {false_positives:.3}");
        measured = (recall, false_positives);
    }
    let (recall, false_positives) = measured;
    assert!(recall >= 0.90, "recall {recall:.3}");
    assert!(false_positives <= 0.05, "false positives {false_positives:.3}");
    let search_tools = scan_servers(&others, &OWN_TOOLS);
    assert!(!is_hard(&search_tools), "{search_tools:#?}");
}
