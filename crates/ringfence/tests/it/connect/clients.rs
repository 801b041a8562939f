//! The other clients: where each looks, and the shape that it reads.

use serde_json::{Value, json};

use super::{Place, executable, read, read_json, write};

/// A client, its file, and the entry for a program and for a URL.
fn shapes() -> Vec<(&'static str, &'static str, &'static str, Value, Value)> {
    let command = json!(executable());
    let stdio = json!({"type": "stdio", "command": command, "args": ["serve"]});
    let url = "https://box.example/mcp";
    let header = |token: &str| json!({"Authorization": format!("Bearer {token}")});
    vec![
        (
            "claude",
            ".claude.json",
            "mcpServers",
            stdio.clone(),
            json!({"type": "http", "url": url, "headers": header("${RINGFENCE_TOKEN}")}),
        ),
        (
            "cursor",
            ".cursor/mcp.json",
            "mcpServers",
            stdio.clone(),
            json!({"url": url, "headers": header("${env:RINGFENCE_TOKEN}")}),
        ),
        (
            "vscode",
            ".config/Code/User/mcp.json",
            "servers",
            stdio,
            json!({"type": "http", "url": url, "headers": header("${env:RINGFENCE_TOKEN}")}),
        ),
        (
            "gemini",
            ".gemini/settings.json",
            "mcpServers",
            json!({"command": command, "args": ["serve"], "timeout": 600_000, "trust": true}),
            json!({"httpUrl": url, "headers": header("${RINGFENCE_TOKEN}"), "timeout": 600_000, "trust": true}),
        ),
        (
            "opencode",
            ".config/opencode/opencode.json",
            "mcp",
            json!({"type": "local", "command": [command, "serve"], "enabled": true, "timeout": 600_000}),
            json!({"type": "remote", "url": url, "headers": header("{env:RINGFENCE_TOKEN}"), "enabled": true, "timeout": 600_000}),
        ),
        (
            "zed",
            ".config/zed/settings.json",
            "context_servers",
            json!({"command": command, "args": ["serve"]}),
            json!({"url": url}),
        ),
    ]
}

#[test]
fn each_client_gets_its_own_shape() {
    for (client, file, table, program, remote) in shapes() {
        let place = Place::new();
        let file = place.home(file);
        place.done(&format!("connect {client} --yes"));
        assert_eq!(read_json(&file)[table]["ringfence"], program, "{client}");
        let said = place.done(&format!("connect {client}"));
        assert!(said.contains("already connected"), "{said}");
        place.done(&format!("connect {client} --http https://box.example/mcp --yes"));
        assert_eq!(read_json(&file)[table]["ringfence"], remote, "{client}");
        place.done(&format!("disconnect {client}"));
        assert!(!file.exists(), "{client}: {}", read(&file));
    }
}

#[test]
fn a_project_has_its_own_files() {
    for (client, file, table) in [
        ("codex", ".codex/config.toml", ""),
        ("claude", ".mcp.json", "mcpServers"),
        ("cursor", ".cursor/mcp.json", "mcpServers"),
        ("vscode", ".vscode/mcp.json", "servers"),
        ("gemini", ".gemini/settings.json", "mcpServers"),
        ("opencode", "opencode.json", "mcp"),
        ("zed", ".zed/settings.json", "context_servers"),
    ] {
        let place = Place::new();
        place.done(&format!("connect {client} --project --yes"));
        let file = place.project(file);
        assert!(read(&file).contains(&executable()), "{client}");
        assert_eq!(super::names(&place.home("")), [""; 0], "{client}");
        let workspace = json!(["serve", "--workspace", "${workspaceFolder}"]);
        if ["cursor", "vscode"].contains(&client) {
            assert_eq!(read_json(&file)[table]["ringfence"]["args"], workspace);
        }
        let said = place.done(&format!("disconnect {client}"));
        assert!(said.contains("is not connected"), "{said}");
        place.done(&format!("disconnect {client} --project"));
        assert!(!file.exists(), "{client}");
    }
}

#[test]
fn claude_code_is_allowed_our_tools_and_denied_its_own() {
    let place = Place::new();
    let file = place.home(".claude/settings.json");
    write(
        &file,
        "{\n  \"permissions\": {\n    \"deny\": [\"Bash\"]\n  },\n  \"model\": \"m\"\n}\n",
    );
    place.done("connect claude --yes");
    let permissions = json!({"deny": ["Bash"], "allow": ["mcp__ringfence"]});
    assert_eq!(read_json(&file)["permissions"], permissions);
    place.done("connect claude --replace-shell --yes");
    let permissions = json!({"deny": ["Bash", "Edit", "Write"], "allow": ["mcp__ringfence"]});
    assert_eq!(read_json(&file)["permissions"], permissions);
    // The user's own rule stays, those of `connect` go.
    write(&file, &read(&file).replace("\"m\"", "\"n\""));
    place.done("disconnect claude");
    assert_eq!(read_json(&file), json!({"permissions": {"deny": ["Bash"]}, "model": "n"}));
}

/// Claude Code writes its file at every start.
#[test]
fn a_file_that_the_client_rewrites_loses_only_our_entry() {
    let place = Place::new();
    let file = place.home(".claude.json");
    write(
        &file,
        "{\n  \"numStartups\": 1,\n  \"mcpServers\": {\n    \"x\": {\n      \"command\": \"x\"\n    }\n  }\n}",
    );
    place.done("connect claude --yes");
    let rewritten = read(&file).replace("\"numStartups\": 1", "\"numStartups\": 2");
    write(&file, &rewritten);
    place.done("disconnect claude");
    let text = "{\n  \"numStartups\": 2,\n  \"mcpServers\": {\n    \"x\": {\n      \"command\": \"x\"\n    }\n  }\n}";
    assert_eq!(read(&file), text);
}

#[test]
fn own_tools_are_turned_off_where_a_client_can() {
    let place = Place::new();
    place.done("connect gemini --replace-shell --yes");
    let excluded = &read_json(&place.home(".gemini/settings.json"))["tools"]["exclude"];
    assert_eq!(*excluded, json!(["run_shell_command", "write_file", "replace"]));
    place.done("connect opencode --replace-shell --yes");
    let permission = &read_json(&place.home(".config/opencode/opencode.json"))["permission"];
    assert_eq!(*permission, json!({"bash": "deny", "edit": "deny"}));
    for client in ["cursor", "vscode", "zed"] {
        let said = place.run(&format!("connect {client} --replace-shell --yes"));
        assert_eq!(said.code, Some(64), "{said:?}");
        assert!(said.stderr.contains("has no setting"), "{said:?}");
    }
}

#[test]
fn opencode_is_edited_in_the_file_that_it_has() {
    let place = Place::new();
    let file = place.home(".config/opencode/opencode.jsonc");
    let text = "{\n  // mine\n  \"$schema\": \"https://opencode.ai/config.json\",\n}\n";
    write(&file, text);
    place.done("connect opencode --yes");
    let connected = read(&file);
    assert!(connected.contains("// mine") && connected.contains(&executable()), "{connected}");
    assert!(!place.home(".config/opencode/opencode.json").exists());
    place.done("disconnect opencode");
    assert_eq!(read(&file), text);
}

#[test]
fn a_url_is_checked() {
    let place = Place::new();
    for url in ["127.0.0.1:8931", "ftp://x/mcp", "http://", "file:///etc/passwd"] {
        let said = place.run(&format!("connect cursor --yes --http {url}"));
        assert_eq!(said.code, Some(64), "{said:?}");
        assert!(said.stderr.contains("http://127.0.0.1:8931/mcp"), "{said:?}");
    }
    assert_eq!(super::names(&place.home("")), [""; 0]);
}
