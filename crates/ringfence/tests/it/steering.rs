//! What agents, editors and shells in a workspace take orders from: protected from commands and from the file tools,
//! as far as the operator leaves it so. The attacks are in `escape::protected_error`.

use serde_json::json;

use crate::support::place::visible_folder;
use crate::support::process::marker;
use crate::support::server::binary;
use crate::support::subset::assert_holds;
use crate::support::{DEADLINE, Options, SESSIONS, Transport, eventually, on_every_transport};

#[test]
fn the_file_tools_leave_it_alone_and_say_who_can_change_that() {
    on_every_transport(
        |options| options,
        |server, client| {
            for path in [
                ".mcp.json",
                ".claude/settings.json",
                ".vscode/tasks.json",
                ".husky/pre-commit",
                ".ENVRC",
            ] {
                let result = client.call("file.write", json!({"path": path, "content": "x"}));
                let error = &result["result"]["structuredContent"]["error"];
                assert_holds(json!({"kind": "permission_denied", "reason": "protected"}), error);
                assert!(
                    error["hint"].as_str().unwrap().contains("`unprotect`"),
                    "{path}: {error:#}"
                );
                assert!(!server.workspace().join(path).exists());
            }
            for path in [".vscode/launch.json", ".github/workflows/x.yml", "sub/.mcp.json"] {
                let result = client.call("file.write", json!({"path": path, "content": "x"}));
                assert_eq!(result["result"]["isError"], false, "{path}: {result:#}");
            }
        },
    );
}

/// It is protected where it leads, too.
#[test]
fn a_name_that_is_a_link_is_protected_where_it_leads() {
    let mut server = Options::new(Transport::Stdio).spawn();
    std::os::unix::fs::symlink("shared/claude", server.workspace().join(".claude")).unwrap();
    let mut client = server.connect(SESSIONS);
    for path in [".claude/settings.json", "shared/claude/settings.json"] {
        let result = client.call("file.write", json!({"path": path, "content": "x"}));
        assert_eq!(result["result"]["isError"], true, "{path}: {result:#}");
        assert!(!server.workspace().join("shared/claude").exists());
    }
    std::fs::remove_dir_all(server.workspace().join("shared")).unwrap_or_default();
    let result = client
        .call("shell.exec", json!({"command": "mkdir -p shared/claude; echo x > shared/claude/y"}));
    let result = &result["result"]["structuredContent"];
    assert!(result["stderr"].as_str().unwrap().contains("Read-only file system"), "{result:#}");
    assert!(!server.workspace().join("shared").exists(), "what stood in for it is gone");
}

/// What stands in for missing files is seen by nobody who asks git, and is in nobody's way.
#[test]
fn nobody_commits_a_stand_in_and_other_files_beside_it_are_kept() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let workspace = server.workspace().to_owned();
    let git = |words: &[&str]| {
        let output =
            std::process::Command::new("git").current_dir(&workspace).args(words).output().unwrap();
        assert!(output.status.success(), "git {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "-q", "."]);
    let mut client = server.connect(SESSIONS);
    let command = "echo x > .vscode/launch.json; git status --short; touch .git/asked; until [ -e seen ]; do sleep 0.01; done";
    let id = client.start_call("shell.exec", &json!({"command": command}));
    eventually(DEADLINE, "the run has begun", || workspace.join(".git/asked").exists());
    assert!(workspace.join(".mcp.json").is_dir() && workspace.join(".vscode/tasks.json").is_dir());
    assert_eq!(git(&["status", "--short", "-uall"]), "?? .vscode/launch.json\n");
    std::fs::write(workspace.join("seen"), "").unwrap();
    assert_holds(
        json!({"exit_code": 0, "stdout": "?? .vscode/\n"}),
        &client.wait(&id)["result"]["structuredContent"],
    );
    let left: Vec<_> = std::fs::read_dir(workspace.join(".vscode"))
        .unwrap()
        .flatten()
        .map(|it| it.file_name())
        .collect();
    assert_eq!(left, ["launch.json"]);
    assert!(!workspace.join(".mcp.json").exists());
}

#[test]
fn the_hint_of_a_refused_command_names_the_key() {
    let (_server, mut client) = with("");
    for command in ["echo x > .mcp.json", "mkdir -p .claude/skills/x", "echo x > .envrc"] {
        let result =
            client.call("shell.exec", json!({"command": command}))["result"]["structuredContent"]
                .clone();
        let hint = result["hint"].as_str().unwrap_or_else(|| panic!("{command}: {result:#}"));
        assert!(hint.contains("Likely") && hint.contains("`unprotect`"), "{hint}");
    }
}

#[test]
fn the_operator_can_take_from_the_list() {
    let (server, mut client) =
        with("[sandbox]\nunprotect = [\".vscode\", \".mcp.json\", \".git/hooks\"]\n");
    std::process::Command::new("git")
        .current_dir(server.workspace())
        .args(["init", "-q", "."])
        .status()
        .unwrap();
    let command =
        "set -e; mkdir .vscode; echo x > .vscode/tasks.json; echo x > .mcp.json; echo x > .git/hooks/pre-commit
        ! echo x > .git/config && ! mkdir .claude/x";
    let result = client.call("shell.exec", json!({"command": command}));
    assert_holds(json!({"exit_code": 0}), &result["result"]["structuredContent"]);
    for path in [".vscode/settings.json", ".git/hooks/post-merge"] {
        let result = client.call("file.write", json!({"path": path, "content": "x"}));
        assert_eq!(result["result"]["isError"], false, "{path}: {result:#}");
    }
    // What git would execute is compared all the same.
    let result = client.call("shell.exec", json!({"command": "echo y > .git/hooks/pre-commit"}));
    let changed = &result["result"]["structuredContent"]["git_changed"];
    assert!(changed.as_array().is_some_and(|all| all.len() == 1), "{result:#}");
}

#[test]
fn a_path_that_is_not_on_the_list_cannot_be_taken_from_it() {
    let place = visible_folder().join(format!("steering-{}", marker()));
    std::fs::create_dir_all(place.join("ws")).unwrap();
    for path in [".claude/commands", "src", ".", "..", "/", "/etc", ".git/objects"] {
        let mut command = std::process::Command::new(binary());
        command
            .current_dir(place.join("ws"))
            .env("HOME", &place)
            .arg("sandbox")
            .arg("--root")
            .arg(place.join("root"));
        let output = command.args(["--unprotect", path, "--", "true"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("`unprotect`"), "{path}: {said}");
        assert!(said.contains(".vscode/tasks.json"), "what could be taken is named: {said}");
    }
    std::fs::remove_dir_all(place).unwrap();
}

/// What lies in the workspace itself cannot be covered, so that such a link is refused rather than left open.
#[test]
fn a_name_that_leads_to_the_workspace_itself_is_refused() {
    let place = visible_folder().join(format!("steering-{}", marker()));
    std::fs::create_dir_all(place.join("ws/sub")).unwrap();
    std::os::unix::fs::symlink("sub/..", place.join("ws/.claude")).unwrap();
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(binary());
        command
            .current_dir(place.join("ws"))
            .env("HOME", &place)
            .arg("sandbox")
            .arg("--root")
            .arg(place.join("root"));
        command.args(more).args(["--", "touch", "settings.json"]).output().unwrap()
    };
    let refused = run(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("`unprotect`"), "{said}");
    assert!(!place.join("ws/settings.json").exists());
    assert!(run(&["--unprotect", ".claude"]).status.success());
    std::fs::remove_dir_all(place).unwrap();
}

/// What a run can make closes nothing to later ones.
#[test]
fn a_link_of_a_runs_making_stops_no_later_run() {
    let (server, mut client) = with("");
    let long = "x".repeat(300);
    let links = format!(
        "ln -s . .husky; ln -s src .idea; ln -s ~ .zed; ln -s src/file/x .kiro; ln -s {long} .qwen"
    );
    let result = client
        .call("shell.exec", json!({"command": format!("mkdir src; touch src/file; {links}")}));
    assert_holds(json!({"exit_code": 0}), &result["result"]["structuredContent"]);
    let result = client.call("shell.exec", json!({"command": "echo after > src/file; rm .husky"}));
    assert_eq!(
        std::fs::read_to_string(server.workspace().join("src/file")).unwrap(),
        "after\n",
        "{result:#}"
    );
    // The link itself is protected by now.
    assert!(server.workspace().join(".husky").is_symlink());
}

fn with(config: &str) -> (crate::support::Server, crate::support::Client) {
    let mut server = Options::new(Transport::Stdio).config(config).spawn();
    let client = server.connect(SESSIONS);
    (server, client)
}
