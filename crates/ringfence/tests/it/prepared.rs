//! What one run prepares must not help the next: each of these was a way around the protection once.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::place::visible_folder;
use crate::support::process::{marker, wait_for_death, with_argument};
use crate::support::{Client, DEADLINE, Options, SESSIONS, Server, Transport, eventually, server};

fn run(client: &mut Client, command: &str) -> Value {
    let message = client.call("shell.exec", json!({ "command": command }));
    let result = message["result"]["structuredContent"].clone();
    assert!(result["exit_code"].is_i64(), "{message}");
    result
}

/// A server on a workspace with a repository in it, as far as git looks at one.
fn repository() -> (Server, Client) {
    let mut server = Options::new(Transport::Stdio).spawn();
    let git = server.workspace().join(".git");
    for directory in
        ["hooks", "objects", "refs", "modules/sub/hooks", "modules/sub/objects", "worktrees/one"]
    {
        std::fs::create_dir_all(git.join(directory)).unwrap();
    }
    for (file, text) in [
        ("HEAD", "ref: refs/heads/main\n"),
        ("config", "[core]\n"),
        ("modules/sub/HEAD", "ref: refs/heads/main\n"),
        ("modules/sub/config", "[core]\n"),
        ("worktrees/one/HEAD", "ref: refs/heads/one\n"),
        ("worktrees/one/commondir", "../..\n"),
        ("worktrees/one/gitdir", "/nowhere/.git\n"),
    ] {
        std::fs::write(git.join(file), text).unwrap();
    }
    let client = server.connect(SESSIONS);
    (server, client)
}

/// Nothing of what makes git run a program can be written, whatever was done before.
fn assert_protected(server: &Server, client: &mut Client) {
    for place in ["", "modules/sub/", "worktrees/one/"] {
        let script = format!(
            "echo evil >> .git/{place}config; echo evil > .git/{place}hooks/pre-commit; echo evil > .git/{place}commondir; true"
        );
        run(client, &script);
        let git = server.workspace().join(".git").join(place);
        let config = std::fs::read_to_string(git.join("config")).unwrap_or_default();
        let common = std::fs::read_to_string(git.join("commondir")).unwrap_or_default();
        assert!(!config.contains("evil") && !common.contains("evil"), "{place}: {config}{common}");
        assert!(!git.join("hooks/pre-commit").exists(), "{place}");
    }
}

#[test]
fn the_sign_of_a_worktree_changes_nothing() {
    let (server, mut client) = repository();
    let refused = client.call("file.write", json!({"path": ".git/gitdir", "content": "x"}));
    assert_eq!(refused["result"]["structuredContent"]["error"]["reason"], "protected", "{refused}");
    run(&mut client, "touch .git/gitdir .git/modules/sub/gitdir; true");
    assert_protected(&server, &mut client);
}

#[test]
fn a_submodule_without_its_signs_is_still_one() {
    let (server, mut client) = repository();
    run(
        &mut client,
        "cd .git/modules/sub; mv HEAD H; mv objects o; cd ../../worktrees/one; mv HEAD H; true",
    );
    assert_protected(&server, &mut client);
}

#[test]
fn a_crowd_of_worktrees_hides_none() {
    let (server, mut client) = repository();
    // Several, since which of them a listing names first is the file system's choice.
    let worktrees = server.workspace().join(".git/worktrees");
    for own in 0..12 {
        std::fs::create_dir(worktrees.join(format!("own{own}"))).unwrap();
        std::fs::write(worktrees.join(format!("own{own}/commondir")), "../..\n").unwrap();
    }
    run(&mut client, "for i in $(seq 300); do mkdir .git/worktrees/a$i .git/worktrees/z$i; done");
    run(&mut client, "for own in .git/worktrees/own*; do echo evil > $own/commondir; done; true");
    for own in 0..12 {
        let text = std::fs::read_to_string(worktrees.join(format!("own{own}/commondir"))).unwrap();
        assert_eq!(text, "../..\n", "own{own}");
    }
    assert_protected(&server, &mut client);
}

#[test]
fn a_forged_mark_does_not_close_the_repository() {
    let (server, mut client) = repository();
    let forge =
        "python3 -c 'import os; os.setxattr(\".git\", \"user.ringfence.stand_in\", b\"1\")'; true";
    run(&mut client, forge);
    assert_eq!(run(&mut client, "echo ref: refs/heads/other > .git/HEAD")["exit_code"], 0);
    assert_protected(&server, &mut client);
}

#[test]
fn links_in_the_repository_close_it_and_stop_nothing() {
    let (server, mut client) = repository();
    run(
        &mut client,
        "mkdir .git/modules/x; touch .git/modules/x/HEAD; ln -s / .git/modules/x/hooks; true",
    );
    assert_protected(&server, &mut client);
    let (server, mut client) = repository();
    let modules = server.workspace().join(".git/modules");
    std::fs::rename(&modules, server.workspace().join("modules")).unwrap();
    symlink("/", &modules).unwrap();
    assert_eq!(run(&mut client, "echo still")["stdout"], "still\n");
    assert_ne!(run(&mut client, "rm .git/modules")["exit_code"], 0);
}

#[test]
fn the_way_to_the_workspace_cannot_be_moved() {
    // The workspace lies below /tmp, which is the session's own and may be written.
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let above = server.scratch.path().display().to_string();
    assert!(above.starts_with("/tmp/"), "{above}");
    let result = run(
        &mut client,
        &format!("mv {above} /tmp/moved; echo $?; mv {above}/root /tmp/root; echo $?"),
    );
    assert_eq!(result["stdout"], "1\n1\n", "{result}");
    assert_eq!(
        run(&mut client, "touch here; pwd")["stdout"],
        format!("{}\n", server.workspace().display())
    );
    assert!(server.workspace().join("here").exists());
}

#[test]
fn a_second_run_makes_no_repository_while_the_first_one_lives() {
    let mut server = Options::new(Transport::Http).spawn();
    let (mut one, mut other) = (server.connect(SESSIONS), server.connect(SESSIONS));
    let marker = marker();
    let id = one.start_call("shell.exec", &json!({"command": format!("exec sleep {marker}")}));
    eventually(DEADLINE, "it has started", || !with_argument(&marker).is_empty());
    assert!(server.workspace().join(".git").is_dir(), "something stands in for the repository");
    assert_ne!(run(&mut other, "mkdir .git/objects || touch .git/HEAD")["exit_code"], 0);
    one.cancel(&id);
    wait_for_death(&marker, DEADLINE);
    eventually(DEADLINE, "nothing is left", || {
        std::fs::read_dir(server.workspace()).unwrap().count() == 0
    });
}

#[test]
fn a_lock_held_elsewhere_stops_no_run() {
    let (server, mut client) = repository();
    let config = server.workspace().join(".git/config").display().to_string();
    let mut holder =
        Command::new("flock").args(["--no-fork", "-x", &config, "sleep", "20"]).spawn().unwrap();
    eventually(DEADLINE, "it is locked", || {
        !Command::new("flock").args(["-n", "-x", &config, "true"]).status().unwrap().success()
    });
    assert_eq!(run(&mut client, "echo runs")["stdout"], "runs\n");
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_run_cannot_make_its_home_unusable() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    run(
        &mut client,
        "mkdir -p ~/.config/git; rm -f ~/.config/git/ignore; mkdir -p ~/.config/git/ignore.new/x",
    );
    client.hang_up();
    server.ended();
    let mut next = Options::new(Transport::Stdio).on(&server.scratch).spawn();
    let mut client = next.connect(SESSIONS);
    assert_eq!(run(&mut client, "echo runs")["stdout"], "runs\n");
}

#[test]
fn a_pipe_in_the_place_of_a_pointer_does_not_hold_the_start() {
    let scratch = server::Scratch::new();
    let workspace = scratch.path().join("workspace");
    std::fs::create_dir(workspace.join("own")).unwrap();
    std::fs::write(workspace.join(".git"), "gitdir: own\n").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        workspace.join("own/commondir"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let mut server = Options::new(Transport::Stdio).on(&scratch).spawn();
    let mut client = server.connect(SESSIONS);
    assert_eq!(run(&mut client, "echo runs")["stdout"], "runs\n");
}

#[test]
fn a_hidden_file_that_the_host_replaces_stays_hidden() {
    // Not beneath /tmp, where nothing of the host's is seen at all.
    let scratch = server::Scratch::within(visible_folder());
    let secret = scratch.path().join("home/.claude.json");
    std::fs::write(&secret, "old secret").unwrap();
    let mut server = Options::new(Transport::Stdio).on(&scratch).spawn();
    let mut client = server.connect(SESSIONS);
    let shown = secret.display();
    let script = format!(
        "touch ready; until [ -e go ]; do sleep 0.01; done; sleep 0.3; cat {shown}; cat {shown}; true"
    );
    let id = client.start_call("shell.exec", &json!({ "command": script }));
    eventually(DEADLINE, "it runs", || server.workspace().join("ready").exists());
    std::fs::write(scratch.path().join("home/new"), "new secret").unwrap();
    std::fs::rename(scratch.path().join("home/new"), &secret).unwrap();
    std::fs::write(server.workspace().join("go"), "").unwrap();
    let message = client.finish(id, "shell.exec", &json!({}));
    let text = message["result"]["structuredContent"].to_string();
    assert!(text.contains("ermission denied") && !text.contains("secret\""), "{message}");
    assert!(
        !message["result"]["structuredContent"]["stdout"].as_str().unwrap().contains("secret"),
        "{message}"
    );
}

#[test]
fn many_connections_that_never_end_hold_up_nothing() {
    let mut server = Options::new(Transport::Stdio).config("[limits]\ngrace_ms = 100").spawn();
    let mut client = server.connect(SESSIONS);
    let script = r"
import os, signal, socket, time
ear = socket.socket(socket.AF_UNIX); ear.bind('/tmp/full'); ear.listen(0)
for _ in range(400):
    child = os.fork()
    if not child:
        socket.socket(socket.AF_UNIX).connect('/tmp/full'); time.sleep(60)
    time.sleep(0.001); os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
one, two = socket.socketpair(); one.sendall(b'still here'); print(two.recv(20).decode())
";
    std::fs::write(server.workspace().join("many.py"), script).unwrap();
    let result =
        client.call("shell.exec", json!({"argv": ["python3", "many.py"], "timeout_ms": 20_000}));
    assert_eq!(result["result"]["structuredContent"]["stdout"], "still here\n", "{result}");
    assert_eq!(run(&mut client, "echo next")["stdout"], "next\n");
}
