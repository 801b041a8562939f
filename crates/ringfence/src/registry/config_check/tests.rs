use super::*;
use crate::config::scratch::Scratch;

fn findings(text: &str) -> Vec<(FindingSeverity, usize, usize, String)> {
    let scratch = Scratch::new();
    let config = Some(scratch.file("config/config.toml", text));
    let env = ProcessEnv::new(
        [("HOME", "/nonexistent"), ("PATH", "/usr/bin:/bin")],
        scratch.dir("project"),
    );
    let flags =
        ConfigFlags { config, root: Some(scratch.path().join("root")), ..ConfigFlags::default() };
    let look = check_config(&flags, &env).unwrap();
    let findings = look.findings.into_iter();
    findings
        .map(|one| (one.severity, one.line.unwrap_or(0), one.column.unwrap_or(0), one.message))
        .collect()
}

#[track_caller]
fn finds(text: &str, expected: &[(FindingSeverity, usize, usize, &str)]) {
    let found = findings(text);
    let found: Vec<_> = found
        .iter()
        .map(|(one, line, column, text)| (*one, *line, *column, text.as_str()))
        .collect();
    assert_eq!(found, expected, "{text}");
}

use FindingSeverity::{Error as E, Warning as W};

#[test]
fn every_name_and_address_that_is_none_is_told() {
    finds(
        "[sandbox]\nallow_domains = [\"a.b\", \"https://x/\"]\ndeny_domains = [\"*\"]\nallow_addresses = [\"1.2.3.4\"]\n\
         [policy.wider]\nallow_domains = [\"ok.example\", \"1.2.3.4\"]\n\
         [mcp.a]\ncommand = \"sh\"\nallow_domains = [\"*.com\"]\nallow_addresses = [\"x\", \"127.0.0.1:0\"]\n",
        &[
            (E, 2, 25, "entry 2 of `allow_domains` (\"https://x/\") is a URL"),
            (E, 3, 17, "entry 1 of `deny_domains` (\"*\") would match every name"),
            (E, 4, 20, "entry 1 of `allow_addresses` (\"1.2.3.4\") is not an address with a port"),
            (E, 6, 32, "entry 4 of `allow_domains` (\"1.2.3.4\") is an address"),
            (
                E,
                9,
                18,
                "entry 1 of `allow_domains` (\"*.com\") would match a whole top-level domain",
            ),
            (E, 10, 20, "entry 1 of `allow_addresses` (\"x\") is not an address with a port"),
            (E, 10, 25, "entry 2 of `allow_addresses` (\"127.0.0.1:0\") has port 0"),
        ],
    );
}

#[test]
fn a_missing_rules_file_is_told_at_its_place() {
    finds(
        "[policy]\nrules = [\"/dev/null\", \"/nonexistent/x.rules\"]\n",
        &[(E, 2, 23, "the rules file /nonexistent/x.rules does not exist")],
    );
}

#[test]
fn what_a_profile_cannot_keep_is_told_at_its_key() {
    let contained = "[sandbox]\nprofile = \"contained\"\n";
    finds(
        &format!("{contained}hide = [\"x\"]\n"),
        &[(E, 3, 8, "the profile `contained` cannot hide paths")],
    );
    finds(
        "[sandbox]\nallow_network = true\ndeny_domains = [\"a.b\"]\n",
        &[(E, 3, 16, "`deny_domains` has no effect with `allow_network`")],
    );
    finds(
        &format!("{contained}[mcp.a]\ncommand = \"sh\"\nallow_domains = [\"a.b\"]\n"),
        &[(E, 3, 6, "the profile `contained` cannot filter the network")],
    );
    finds(
        "[mcp.a]\ncommand = \"sh\"\nsandbox_profile = \"contained\"\nallow_domains = [\"a.b\"]\n",
        &[(E, 3, 19, "`contained` hides nothing, and is weaker than the profile under [sandbox]")],
    );
}

#[test]
fn a_tool_that_is_not_listed_is_told() {
    let outside = "the tool is not listed: it is outside of what [surface] allows";
    finds(
        "[surface]\ncwd = [\"src\"]\n[mcp.a]\ncommand = \"sh\"\ncwd = \"src/x\"\n[mcp.b]\ncommand = \"sh\"\ncwd = \"doc\"\n[mcp.c]\ncommand = \"sh\"\n",
        &[(W, 8, 7, outside), (W, 9, 6, outside)],
    );
}
