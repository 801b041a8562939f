//! `ringfence connect` alone: who is here, and what each is connected to.

use super::{Place, executable, write};

#[test]
fn clients_are_listed_with_program_entry_and_version() {
    let place = Place::new();
    place.install("codex", "codex-cli 0.166.0");
    place.install("gemini", "0.61.0");
    place.install("ringfence", "ringfence 0.0.9");
    place.done("connect codex --yes");
    let old = place.path().join("bin/ringfence");
    write(
        &place.home(".cursor/mcp.json"),
        &format!(
            "{{\"mcpServers\": {{\"ringfence\": {{\"command\": {old:?}, \"args\": [\"serve\"]}}}}}}"
        ),
    );
    place.done("connect zed --http https://box.example/mcp --yes");
    let listed = place.done("connect");
    let version = env!("CARGO_PKG_VERSION");
    for part in [
        &*format!("codex     installed: {}", place.path().join("bin/codex").display()),
        &format!("{} serve ({version}, this executable)", executable()),
        &format!("{} serve (0.0.9)", old.display()),
        "claude    not found",
        "gemini    installed: ",
        "https://box.example/mcp",
        "ringfence connect CLIENT",
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
}

#[test]
fn a_program_that_is_gone_and_a_broken_file_are_said() {
    let place = Place::new();
    write(
        &place.home(".codex/config.toml"),
        "[mcp_servers.ringfence]\ncommand = \"/no/such/ringfence\"\nargs = [\"serve\"]\n",
    );
    write(&place.home(".gemini/settings.json"), "{\n  oops\n}");
    let listed = place.done("connect");
    assert!(listed.contains("/no/such/ringfence serve (missing: connect again)"), "{listed}");
    assert!(listed.contains(".gemini/settings.json, line 2"), "{listed}");
}

/// A project's file can name any program.
#[test]
fn a_program_that_a_project_names_is_not_started() {
    let place = Place::new();
    let mark = place.path().join("started");
    place.install("evil", "x");
    let evil = place.path().join("bin/evil");
    std::fs::write(&evil, format!("#!/bin/sh\n: > '{}'\n", mark.display())).unwrap();
    let entry = format!("{{\"mcpServers\": {{\"ringfence\": {{\"command\": {evil:?}}}}}}}");
    write(&place.project(".mcp.json"), &entry);
    let listed = place.done("connect");
    assert!(listed.contains("connected in .mcp.json") && listed.contains("another program"));
    assert!(!mark.exists());
    // The same entry in the user's own file is asked, so the test can fail.
    write(&place.home(".claude.json"), &entry);
    place.done("connect");
    assert!(mark.exists());
}
