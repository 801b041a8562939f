//! `codex` and `codex-reply`, and what is left when the surface is switched off. What needs a real Codex is in
//! `conformance/codex-pair.sh`; here another program stands in its place on the PATH, one that does whatever its prompt
//! says: a Codex that has gone over to the enemy.

mod home;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::matrix::{eras, on_cell};
use crate::support::place::visible_folder;
use crate::support::process::{marker, wait_for_death, with_argument};
use crate::support::server::Scratch;
use crate::support::subset::assert_holds;
use crate::support::{
    Approve, Client, DEADLINE, Options, SESSIONS, Server, Transport, eventually, on_every_transport,
};

const THREAD: &str = "01a1e507-1a6d-7780-bad2-f3ce356a988a";

/// Takes its prompt for a script, and says how that went as Codex would. `$WORDS` is its command line, and descriptor 3
/// is where its events go. A first line `# thread ID` is the thread that it claims to be.
const TURNCOAT: &str = r##"#!/bin/bash
WORDS="$*"
script=$(cat)
thread=$(cat /proc/sys/kernel/random/uuid)
[[ $WORDS =~ resume\ ([0-9a-f-]+) ]] && thread=${BASH_REMATCH[1]}
[[ $script =~ ^#\ thread\ ([0-9a-f-]+) ]] && thread=${BASH_REMATCH[1]}
echo "{\"type\":\"thread.started\",\"thread_id\":\"$thread\"}"
echo '{"type":"turn.started"}'
exec 3>&1
said=$(eval "$script" 2>&1)
python3 -c 'import json, sys; print(json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": sys.argv[1]}}))' "$said"
echo '{"type":"turn.completed"}'
"##;

pub struct Pair {
    pub scratch: Arc<Scratch>,
    pub options: Options,
}

impl Pair {
    /// With the turncoat on the PATH. Not below /tmp, which a run has for itself.
    pub fn new(transport: Transport) -> Pair {
        let scratch = Scratch::within(visible_folder());
        let bin = scratch.path().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("codex"), TURNCOAT).unwrap();
        std::fs::set_permissions(bin.join("codex"), std::fs::Permissions::from_mode(0o755))
            .unwrap();
        let home = scratch.path().join("home/.codex");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("config.toml"), "# the user's\n").unwrap();
        std::fs::write(home.join("auth.json"), "{}\n").unwrap();
        let options = Options::new(transport).on(&scratch).env("PATH", &path(&bin));
        Pair { scratch, options }
    }

    fn config(mut self, lines: &str) -> Pair {
        self.options = self.options.config(lines);
        self
    }

    fn codex_home(&self) -> PathBuf {
        self.scratch.path().join("home/.codex")
    }

    fn start(&self, version: &'static str) -> (Server, Client) {
        let mut server = self.options.clone().spawn();
        let client = server.connect(version);
        (server, client)
    }
}

fn path(first: &std::path::Path) -> String {
    format!("{}:{}", first.display(), std::env::var("PATH").unwrap())
}

/// A PATH with what a shell needs and no Codex.
fn without_codex(options: Options) -> Options {
    options.env("PATH", "/usr/bin:/bin")
}

fn off(options: Options) -> Options {
    without_codex(options).env("enable_mcp_server_surface", "false")
}

#[track_caller]
fn thread(message: &Value) -> String {
    message["result"]["structuredContent"]["threadId"].as_str().unwrap().to_owned()
}

#[track_caller]
fn said(message: &Value) -> &str {
    assert_eq!(message["result"]["isError"], false, "{message:#}");
    let content = &message["result"]["structuredContent"]["content"];
    assert_eq!(message["result"]["content"][0]["text"], *content, "both say the same");
    content.as_str().unwrap()
}

/// What the removed server listed, word for word.
#[test]
fn without_the_surface_the_list_is_the_legacy_pair_and_nothing_else() {
    let output = json!({"type": "object", "properties": {"threadId": {"type": "string"}, "content": {"type": "string"}}, "required": ["threadId", "content"]});
    on_every_transport(off, |_, client| {
        let listed = client.request("tools/list", json!({}))["result"]["tools"].clone();
        let [codex, reply] = &listed.as_array().unwrap()[..] else { panic!("{listed:#}") };
        for (tool, name, title, description) in [
            (
                codex,
                "codex",
                "Codex",
                "Run a Codex session. Accepts configuration parameters matching the Codex Config struct.",
            ),
            (
                reply,
                "codex-reply",
                "Codex Reply",
                "Continue a Codex conversation by providing the thread id and prompt.",
            ),
        ] {
            let mut keys: Vec<&String> = tool.as_object().unwrap().keys().collect();
            keys.sort();
            assert_eq!(keys, ["description", "inputSchema", "name", "outputSchema", "title"]);
            assert_eq!(
                (&tool["name"], &tool["title"], &tool["description"]),
                (&json!(name), &json!(title), &json!(description))
            );
            assert_eq!(tool["outputSchema"], output);
            assert_eq!(tool["inputSchema"]["required"], json!(["prompt"]));
            assert_eq!(tool["inputSchema"]["additionalProperties"], false);
        }
        let mut names: Vec<&String> =
            codex["inputSchema"]["properties"].as_object().unwrap().keys().collect();
        names.sort();
        let all = [
            "approval-policy",
            "base-instructions",
            "compact-prompt",
            "config",
            "cwd",
            "developer-instructions",
            "model",
            "profile",
            "prompt",
            "sandbox",
        ];
        assert_eq!(names, all);
        let mut names: Vec<&String> =
            reply["inputSchema"]["properties"].as_object().unwrap().keys().collect();
        names.sort();
        assert_eq!(names, ["conversationId", "prompt", "threadId"]);
    });
}

/// As the removed server declared itself, and nothing that it did not know is known.
#[test]
fn without_the_surface_nothing_else_is_declared_or_answered() {
    on_every_transport(off, |_, client| {
        for method in [
            "foo/bar",
            "mcp.capabilities",
            "ringfence/session/update",
            "codex/sandbox-state/update",
            "prompts/list",
        ] {
            let message = client.request(method, json!({}));
            let expected = json!({"code": -32601, "message": format!("method not found: {method}"), "data": {"method": method}});
            assert_holds(expected, &message["error"]);
        }
    });
    for cell in eras().filter(|cell| cell.version == SESSIONS) {
        let pair = Pair::new(cell.transport).config("enable_mcp_server_surface = false");
        let mut server = pair.options.spawn();
        let mut client = server.client(cell.version);
        let hello = client.shake_hands();
        assert_eq!(hello["capabilities"], json!({"tools": {"listChanged": true}}), "{hello:#}");
        assert!(hello.get("instructions").is_none() && hello.get("_meta").is_none(), "{hello:#}");
        // A state that comes all the same is not taken, whichever way.
        let state = json!({"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/"});
        assert_eq!(
            client.request("codex/sandbox-state/update", state.clone())["error"]["code"],
            -32601
        );
        let params = json!({"name": "codex", "arguments": {"prompt": "echo ran"}, "_meta": {"codex/sandbox-state": state}});
        assert_eq!(said(&client.request("tools/call", params)), "ran");
    }
}

/// As the removed server answered: a result, never an error of the protocol.
#[test]
fn without_the_surface_every_failure_is_a_text() {
    on_every_transport(off, |server, client| {
        std::fs::write(server.workspace().join("a.txt"), "secret\n").unwrap();
        for (tool, arguments, text) in [
            ("file.read", json!({"path": "a.txt"}), "Unknown tool 'file.read'"),
            ("shell.exec", json!({"command": "true"}), "Unknown tool 'shell.exec'"),
            ("shell", json!({"command": "true", "workdir": "/"}), "Unknown tool 'shell'"),
            (
                "codex",
                json!({}),
                "Failed to parse configuration for Codex tool: the argument `prompt` is missing",
            ),
            (
                "codex",
                json!({"prompt": "x", "sandbox": "none"}),
                "Failed to parse configuration for Codex tool: the argument `sandbox` is invalid",
            ),
            (
                "codex",
                json!({"prompt": "x", "timeout": 1}),
                "Failed to parse configuration for Codex tool: ",
            ),
            (
                "codex-reply",
                json!({"prompt": "x"}),
                "either threadId or conversationId must be provided",
            ),
            (
                "codex-reply",
                json!({"prompt": "x", "threadId": "../../x"}),
                "not_found: there is no such thread",
            ),
            ("codex", json!({"prompt": "x"}), "unavailable: Codex was not found on this host"),
        ] {
            let message = client.call(tool, arguments);
            let result = &message["result"];
            assert_eq!(result["isError"], true, "{message:#}");
            assert!(result.get("structuredContent").is_none(), "{message:#}");
            assert!(
                result["content"][0]["text"].as_str().unwrap().contains(text),
                "{text}: {message:#}"
            );
        }
        assert!(client.questions.is_empty());
    });
}

#[test]
fn the_surface_lists_the_pair_with_all_tools_and_calls_it_always() {
    for (set, listed) in [("core", 0), ("all", 2)] {
        on_cell(
            eras().next().unwrap(),
            |options| without_codex(options).arg("--tools").arg(set),
            |_, client| {
                let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
                let pair: Vec<&Value> = tools
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|tool| tool["name"].as_str().unwrap().starts_with("codex"))
                    .collect();
                assert_eq!(pair.len(), listed, "{set}");
                for tool in pair {
                    let meta = &tool["_meta"];
                    assert_eq!(meta["dev.ringfence/requires_approval"], true);
                    assert_eq!(
                        meta["dev.ringfence/side_effects"],
                        json!(["exec", "filesystem_write", "network"])
                    );
                    assert_holds(
                        json!({"allow": false, "scope": "exec", "reason": "Codex was not found on this host"}),
                        &meta["dev.ringfence/permission"],
                    );
                    assert_holds(
                        json!({"destructiveHint": true, "openWorldHint": true}),
                        &tool["annotations"],
                    );
                }
                let message = client.call("codex", json!({"prompt": "x"}));
                assert_holds(
                    json!({"kind": "unavailable", "reason": "runtime_missing", "hint": "~npm install -g @openai/codex"}),
                    &message["result"]["structuredContent"]["error"],
                );
                assert!(client.questions.is_empty(), "nobody is asked about what cannot run");
            },
        );
    }
}

/// It may be installed while the server runs.
#[test]
fn codex_is_looked_for_at_every_call() {
    let pair = Pair::new(Transport::Stdio);
    let codex = pair.scratch.path().join("bin/codex");
    std::fs::rename(&codex, codex.with_extension("not")).unwrap();
    let mut options = pair.options.clone();
    options.env.retain(|(name, _)| name != "PATH");
    let bin = codex.parent().unwrap().display();
    let mut server =
        options.env("PATH", &format!("{bin}:/usr/bin:/bin")).arg("--tools").arg("all").spawn();
    let mut client = server.connect(SESSIONS);
    let allowed = |client: &mut Client| {
        let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
        let tool = tools
            .as_array()
            .unwrap()
            .iter()
            .find(|tool| tool["name"] == "codex-reply")
            .unwrap()
            .clone();
        tool["_meta"]["dev.ringfence/permission"]["allow"].clone()
    };
    assert_eq!(allowed(&mut client), false);
    assert_eq!(client.call("codex", json!({"prompt": "x"}))["result"]["isError"], true);
    std::fs::rename(codex.with_extension("not"), &codex).unwrap();
    assert_eq!(allowed(&mut client), true);
    assert_eq!(said(&client.call("codex", json!({"prompt": "echo here"}))), "here");
    // One that the workspace has brought along is nobody's.
    let own = server.workspace().join("bin");
    std::fs::create_dir(&own).unwrap();
    std::fs::rename(&codex, own.join("codex")).unwrap();
    std::os::unix::fs::symlink(own.join("codex"), &codex).unwrap();
    let message = client.call("codex", json!({"prompt": "echo here"}));
    assert_eq!(
        message["result"]["structuredContent"]["error"]["reason"], "runtime_missing",
        "{message:#}"
    );
}

#[test]
fn a_turn_asks_shows_what_it_would_do_and_goes_on_with_its_settings() {
    for cell in eras() {
        let pair = Pair::new(cell.transport);
        let mut options = pair.options.clone().env("OPENAI_API_KEY", "sk-hunter2hunter2");
        options.env.push(("CODEX_API_KEY".to_owned(), String::new()));
        let mut server = options.spawn();
        let mut client = server.connect(cell.version);
        let arguments = json!({
            "prompt": "echo \"${WORDS%% --config=projects*}\"; pwd; echo ${OPENAI_API_KEY:0:3} ${CODEX_API_KEY-unset} $OPENAI_API_KEY",
            "model": "--last", "sandbox": "workspace-write", "approval-policy": "on-request", "cwd": "sub",
            "config": {"tools": {"web_search": true}}, "developer-instructions": "two\nlines",
        });
        std::fs::create_dir(server.workspace().join("sub")).unwrap();
        let message = client.call("codex", arguments);
        let words = "exec --json --skip-git-repo-check --color=never --model=--last --sandbox=workspace-write \
            --config=tools={\"web_search\" = true} --config=developer_instructions=\"two\\nlines\" --config=approval_policy=\"never\"";
        let workspace = server.workspace().canonicalize().unwrap().join("sub");
        let expected =
            format!("{words}\n{}\nsk- unset [secret:OPENAI_API_KEY]", workspace.display());
        assert_eq!(said(&message), expected);
        let id = thread(&message);
        let question = client.questions[0]["message"].as_str().unwrap();
        for part in [
            "Allow `codex`? (",
            "read all of them before you answer) It runs another agent (workspace-write), in the workspace and with full network access.",
            "command:\n    | codex exec --sandbox=workspace-write, with this prompt:\n    | echo \"${WORDS",
            "argument \"model\": --last",
            "argument \"sandbox\": workspace-write",
            "argument \"config tools\": {\"web_search\":true}",
            "OPENAI_API_KEY (set)",
            "side effects: exec, filesystem_write, network",
        ] {
            assert!(question.contains(part), "{part}: {question}");
        }
        let home = question.split("HOME=").nth(1).unwrap();
        assert!(home.starts_with(server.root().to_str().unwrap()), "its own: {question}");
        // The settings are the thread's, and a reply brings them again.
        let prompt = "echo \"${WORDS%% --config=projects*} ${WORDS##*\\}}\"; pwd";
        let message = client.call("codex-reply", json!({"prompt": prompt, "conversationId": id}));
        assert_eq!(said(&message), format!("{words}  resume {id} -\n{}", workspace.display()));
        assert!(client.questions[1]["message"].as_str().unwrap().contains("(workspace-write)"));
        let told = json!([client.questions, server.audit(), server.log()]).to_string();
        assert!(!told.contains("hunter2"), "{told}");

        client.approve = Approve::Decline;
        let message = client.call("codex", json!({"prompt": "touch ran"}));
        assert_eq!(message["result"]["structuredContent"]["error"]["kind"], "approval_denied");
        assert!(!server.workspace().join("ran").exists());
    }
}

/// A thread belongs to whoever began it, and to the workspace it was begun in.
#[test]
fn a_thread_that_was_not_begun_here_is_unknown() {
    let pair = Pair::new(Transport::Stdio);
    let (_server, mut client) = pair.start(SESSIONS);
    for id in [THREAD, "--last", "../../../etc/passwd", ""] {
        let message = client.call("codex-reply", json!({"prompt": "echo ran", "threadId": id}));
        assert_holds(
            json!({"kind": "not_found", "reason": "unknown_thread", "argument": "threadId"}),
            &message["result"]["structuredContent"]["error"],
        );
    }
    assert!(client.questions.is_empty());
    let prompt = "mkdir -p $CODEX_HOME/sessions; echo said > $CODEX_HOME/sessions/x";
    let begun = client.call("codex", json!({"prompt": prompt}));
    said(&begun);
    // It outlives the server, since Codex keeps the conversation as well.
    let (_again, mut client) = pair.start(SESSIONS);
    let message = client.call(
        "codex-reply",
        json!({"prompt": "cat $CODEX_HOME/sessions/x", "threadId": thread(&begun)}),
    );
    assert_eq!(said(&message), "said");
}

/// In namespaces of its own a program has every capability, and still nothing of the fence comes off.
#[test]
fn a_nested_sandbox_takes_nothing_of_the_fence_away() {
    let pair = Pair::new(Transport::Stdio).config("sandbox.hide = [\"/etc/hostname\"]");
    std::fs::create_dir_all(pair.scratch.path().join("home/.ssh")).unwrap();
    std::fs::write(pair.scratch.path().join("home/.ssh/id"), "key\n").unwrap();
    let (server, mut client) = pair.start(SESSIONS);
    let (ssh, root) = (pair.scratch.path().join("home/.ssh"), server.root());
    std::fs::create_dir_all(server.workspace().join(".git/hooks")).unwrap();
    let outside = pair.scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let inner = format!(
        "id -u; mkdir -p /tmp/m && mount -t tmpfs none /tmp/m && echo mounts
        umount {ssh} ; umount -l {ssh}; cat {ssh}/id
        umount {root}; umount -l {root}; ls {root}/audit
        umount /etc/hostname; umount -l /etc/hostname; cat /etc/hostname
        mount -o remount,rw,bind / && echo remounted; mount -o remount,rw /; echo evil > {outside}/x
        mount --bind {home} /tmp/m && cat /tmp/m/.ssh/id
        mount --rbind / /tmp/m && umount -l /tmp/m{ssh} && cat /tmp/m{ssh}/id; echo evil > /tmp/m{outside}/x
        umount -l / ; cat {ssh}/id; echo evil > {outside}/x
        echo evil > .git/hooks/pre-commit; umount -l .git/hooks; echo evil > .git/hooks/pre-commit
        echo evil > .codex/config.toml
        nsenter -t 1 -m true && echo entered; chroot / true && echo chrooted; true",
        ssh = ssh.display(),
        root = root.display(),
        outside = outside.display(),
        home = pair.scratch.path().join("home").display(),
    );
    let script = format!(
        "cat > /tmp/inner <<'END'\n{inner}\nEND\nunshare -Urm --propagation private bash /tmp/inner"
    );
    let message = client.call("codex", json!({"prompt": script, "sandbox": "workspace-write"}));
    let said = said(&message).to_owned();
    assert!(said.starts_with("0\nmounts\n"), "it is root in there, and can mount: {said}");
    for word in ["key\n", "remounted", "entered", "chrooted"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
    let hostname = std::fs::read_to_string("/etc/hostname").unwrap();
    assert!(!said.lines().any(|line| line == hostname.trim()), "{said}");
    assert!(
        !outside.join("x").exists() && !server.workspace().join(".git/hooks/pre-commit").exists()
    );
    assert!(!server.workspace().join(".codex").exists());
    // Without a sandbox of its own there is nothing to nest.
    let message = client.call(
        "codex",
        json!({"prompt": "unshare -Ur true && echo nested; true", "sandbox": "danger-full-access"}),
    );
    assert!(!self::said(&message).contains("nested\n"), "{message:#}");
    assert_holds(
        json!([{"kind": "syscall", "name": "unshare"}]),
        &message["result"]["structuredContent"]["denials"],
    );
}

/// A sandbox inside has a copy of the tree, and what is covered later has to be covered there as well.
#[test]
fn what_comes_later_is_covered_in_a_nested_sandbox_too() {
    let pair = Pair::new(Transport::Stdio);
    let (server, mut client) = pair.start(SESSIONS);
    let workspace = server.workspace();
    let git = |words: &[&str]| {
        let output =
            std::process::Command::new("git").current_dir(&workspace).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    git(&["init", "-q", "."]);
    let secret = pair.scratch.path().join("home/.netrc");
    let inner = format!(
        "touch begun; until [ -e changed ]; do sleep 0.01; done
        until [ -z \"$(cat {secret} 2>/dev/null)\" ] && [ ! -w .git/config ]; do sleep 0.01; done; echo closed",
        secret = secret.display()
    );
    let script = format!(
        "cat > /tmp/inner <<'END'\n{inner}\nEND\nunshare -Urm --propagation slave bash /tmp/inner"
    );
    let message = std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually(DEADLINE, "it runs", || workspace.join("begun").exists());
            std::fs::write(&secret, "token").unwrap();
            git(&["config", "some.thing", "new"]);
            std::fs::write(workspace.join("changed"), "").unwrap();
        });
        client.call("codex", json!({"prompt": script, "sandbox": "workspace-write"}))
    });
    assert!(
        message["result"]["structuredContent"]["content"].as_str().unwrap().starts_with("closed"),
        "{message:#}"
    );
}

/// Whoever has a namespace of control groups can mount them: the host's, when the server is root.
#[test]
fn a_nested_sandbox_has_no_control_groups_of_its_own() {
    let pair = Pair::new(Transport::Stdio);
    let (_server, mut client) = pair.start(SESSIONS);
    let name = format!("ringfence-{}", marker());
    let inner = format!(
        "mkdir -p /tmp/c; mount -t cgroup2 none /tmp/c && echo mounted; mkdir /tmp/c/{name} && ls -d /tmp/c/cgroup.procs
        for it in memory pids freezer; do mount -t cgroup -o $it none /tmp/c && echo mounted && mkdir /tmp/c/{name}; done; true"
    );
    let script = format!(
        "cat > /tmp/inner <<'END'\n{inner}\nEND
        unshare -UrmC bash /tmp/inner; unshare -Urm unshare -C bash /tmp/inner; unshare -Urm bash /tmp/inner
        unshare -Uru true && echo names; unshare -UrT true && echo time; unshare -Urmipn --fork true && echo nested"
    );
    let message = client.call("codex", json!({"prompt": script, "sandbox": "workspace-write"}));
    let said = said(&message).to_owned();
    for word in ["mounted", "cgroup.procs\n", "names", "time\n"] {
        assert!(!said.lines().any(|line| line == word.trim()), "{word}: {said}");
    }
    assert!(said.ends_with("nested"), "what a sandbox needs is there: {said}");
    let made = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-maxdepth", "3", "-name", &name])
        .output();
    assert_eq!(String::from_utf8(made.unwrap().stdout).unwrap(), "", "a group of the host's");
    assert_holds(
        json!([{"kind": "syscall", "name": "unshare"}]),
        &message["result"]["structuredContent"]["denials"],
    );
}

/// Holds the workspace open, leaves the tree of mounts behind and has it go: what was on top of single names in there
/// could be loose now.
const LEAVE: &str = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def must(result, what):
    if result != 0: raise SystemExit(f"{what}: {os.strerror(ctypes.get_errno())}")
uid, gid = os.getuid(), os.getgid()
must(libc.unshare(0x10000000 | 0x00020000), "unshare")
for name, text in [("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")]:
    open(f"/proc/self/{name}", "w").write(text)
held = {name: os.open(name, os.O_RDONLY) for name in [".", ".git", os.environ["CODEX_HOME"], os.environ["UPPER"]]}
must(libc.mount(b"none", b"/", None, 0x40000 | 0x4000, None), "private")
must(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), "tmpfs")
os.mkdir("/tmp/old")
must(libc.syscall(155, b"/tmp", b"/tmp/old"), "pivot_root")
os.chdir("/")
must(libc.umount2(b"/old", 2), "umount")
print("left", os.listdir("/"))
def attempt(what, how):
    try: how(); print("DONE", what)
    except OSError as error: print(what, error.strerror)
git, home, ws, upper = held[".git"], held[os.environ["CODEX_HOME"]], held["."], held[os.environ["UPPER"]]
def write(fd, name):
    os.write(os.open(name, os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=fd), b"evil")
for fd, name in [(git, "hooks"), (git, "config"), (home, "config.toml"), (home, "rules"), (ws, ".codex")]:
    attempt(f"move {name}", lambda: os.rename(name, "moved-" + name, src_dir_fd=fd, dst_dir_fd=fd))
attempt("hook", lambda: write(git, "hooks/pre-commit"))
attempt("config", lambda: write(home, "config.toml"))
attempt("rules", lambda: write(home, "rules/x.rules"))
attempt("steering", lambda: write(ws, ".codex/config.toml"))
attempt("outside", lambda: write(upper, "outside-too"))
attempt("key", lambda: print(os.read(os.open(".ssh/id", os.O_RDONLY, dir_fd=upper), 9)))
"#;

/// Codex's own sandbox is two user namespaces deep; whatever runs in there makes no third, and so leaves no tree.
#[test]
fn what_runs_in_a_nested_sandbox_nests_no_further() {
    let pair = Pair::new(Transport::Stdio);
    let upper = pair.scratch.path().join("home");
    std::fs::create_dir_all(upper.join(".ssh")).unwrap();
    std::fs::write(upper.join(".ssh/id"), "key\n").unwrap();
    let (server, mut client) = pair.start(SESSIONS);
    let make_repository = || {
        let made = std::process::Command::new("git")
            .args(["init", "-q"])
            .current_dir(server.workspace())
            .status()
            .unwrap();
        assert!(made.success());
        std::fs::create_dir_all(server.workspace().join(".git/hooks")).unwrap();
    };
    make_repository();
    let prepare =
        format!("export UPPER={}; cat > /tmp/leave.py <<'END'{LEAVE}END\n", upper.display());
    for (depth, before, left) in [(0, "", true), (2, "unshare -Ur unshare -Ur", false)] {
        let script = format!("{prepare}{before} python3 /tmp/leave.py");
        let message = client.call("codex", json!({"prompt": script, "sandbox": "workspace-write"}));
        let said = said(&message).to_owned();
        assert_eq!(said.starts_with("left ['old']"), left, "{depth}: {said}");
        // What it has done there is found, and everybody is told.
        let structured = &message["result"]["structuredContent"];
        assert_eq!(structured["warnings"].is_array(), left, "{message:#}");
        assert_eq!(
            said.contains("[ringfence: protected paths changed during this run"),
            left,
            "{said}"
        );
        if left {
            let hooks = server.workspace().canonicalize().unwrap().join(".git/hooks");
            assert_holds(
                json!([{"kind": "protected", "name": hooks.display().to_string()}]),
                &structured["denials"],
            );
            server.wait_for_log("protected paths changed during this run");
            std::fs::remove_dir_all(server.workspace().join(".git")).unwrap();
            make_repository();
        }
        if !left {
            assert!(
                said.contains("unshare: Operation not permitted") && !said.contains("DONE"),
                "{said}"
            );
        }
        // Not even a tree that is gone gives more to read, or to write elsewhere.
        assert!(!said.contains("b'key") && !upper.join("outside-too").exists(), "{said}");
    }
}

/// It could get at that, so it is not started.
#[test]
fn nothing_nests_where_something_in_the_workspace_is_hidden() {
    let pair = Pair::new(Transport::Stdio).config("sandbox.hide = [\".env\"]");
    let (server, mut client) = pair.start(SESSIONS);
    said(&client.call("codex", json!({"prompt": "true", "sandbox": "workspace-write"})));
    std::fs::write(server.workspace().join(".env"), "hunter2\n").unwrap();
    for sandbox in ["read-only", "workspace-write"] {
        let message = client.call("codex", json!({"prompt": "true", "sandbox": sandbox}));
        assert_holds(
            json!({"kind": "permission_denied", "reason": "sandbox", "hint": "~danger-full-access"}),
            &message["result"]["structuredContent"]["error"],
        );
    }
    assert_eq!(client.questions.len(), 1);
    let message =
        client.call("codex", json!({"prompt": "cat .env; true", "sandbox": "danger-full-access"}));
    assert!(!said(&message).contains("hunter2"), "{message:#}");
}

#[test]
fn read_only_is_kept_by_the_fence_whatever_codex_does() {
    let pair = Pair::new(Transport::Stdio);
    let (server, mut client) = pair.start(SESSIONS);
    let message = client.call("codex", json!({"prompt": "echo x > a; unshare -Urm bash -c 'mount -o remount,rw,bind . ; echo x > a'", "sandbox": "read-only"}));
    assert!(said(&message).contains("Read-only file system"), "{message:#}");
    assert!(!server.workspace().join("a").exists());
    assert!(
        client.questions[0]["message"].as_str().unwrap().contains("with the workspace read-only")
    );
}

/// Nothing is promised that cannot be kept: without namespaces there is no sandbox for Codex to make.
#[test]
fn a_contained_codex_runs_only_without_a_sandbox_of_its_own() {
    let pair = Pair::new(Transport::Stdio).config("sandbox.profile = \"contained\"");
    let (server, mut client) = pair.start(SESSIONS);
    for sandbox in ["read-only", "workspace-write"] {
        let message = client.call("codex", json!({"prompt": "echo x > a", "sandbox": sandbox}));
        assert_holds(
            json!({"kind": "permission_denied", "reason": "sandbox", "hint": "~danger-full-access"}),
            &message["result"]["structuredContent"]["error"],
        );
    }
    assert!(client.questions.is_empty() && !server.workspace().join("a").exists());
    let message = client
        .call("codex", json!({"prompt": "echo x > a; cat a", "sandbox": "danger-full-access"}));
    assert_eq!(said(&message), "x");
}

#[test]
fn the_end_of_a_call_is_the_end_of_everything_in_it() {
    for (sandbox, script) in [
        ("danger-full-access", "setsid sleep {} & sleep {}"),
        ("workspace-write", "unshare -Urpf bash -c 'setsid sleep {} & sleep {}'"),
    ] {
        let pair = Pair::new(Transport::Stdio).config("limits.grace_ms = 200");
        let (server, mut client) = pair.start(SESSIONS);
        let marker = marker();
        let script = script.replace("{}", &marker);
        client.approve = Approve::Never;
        let id = client.start_call("codex", &json!({"prompt": script, "sandbox": sandbox}));
        let (question, _) = client.wait_question();
        client.reply(&question, json!({"action": "accept", "content": {}}));
        eventually(DEADLINE, "it runs", || with_argument(&marker).len() >= 2);
        client.cancel(&id);
        wait_for_death(&marker, Duration::from_secs(5));
        assert_holds(json!([{"tool": "codex", "status": "cancelled"}]), &json!(server.stops(1)));
    }
}

#[test]
fn a_turn_that_takes_too_long_says_what_it_has_done() {
    let pair =
        Pair::new(Transport::Stdio).config("limits.grace_ms = 200\nlimits.timeout_ms = 1500");
    let (_server, mut client) = pair.start(SESSIONS);
    let script = "echo '{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"half done\"}}' >&3; sleep 60";
    let message = client.call("codex", json!({"prompt": script, "sandbox": "danger-full-access"}));
    assert_holds(
        json!({"isError": true, "structuredContent": {"error": {"kind": "deadline_exceeded"}}}),
        &message["result"],
    );
    let id = thread(&message);
    let content = message["result"]["structuredContent"]["content"].as_str().unwrap();
    assert!(
        content.contains("did not finish within 1500 ms")
            && content.contains(&format!("thread {id}")),
        "{content}"
    );
}

/// Its failures are results with its own words.
#[test]
fn a_codex_that_fails_says_why() {
    let pair = Pair::new(Transport::Stdio);
    let (_server, mut client) = pair.start(SESSIONS);
    let message =
        client.call("codex", json!({"prompt": "exit 0", "config": {"model_verbosity": "low"}}));
    said(&message);
    for (script, text) in [
        ("echo no credits >&2; kill -KILL $PPID", "Codex was killed"),
        (
            "printf '%s\\n' '{\"type\":\"turn.failed\",\"error\":{\"message\":\"no such model\"}}' >/proc/$PPID/fd/1; kill $PPID",
            "no such model",
        ),
    ] {
        let script = script.replace("$PPID", "$$");
        let message =
            client.call("codex", json!({"prompt": script, "sandbox": "danger-full-access"}));
        let result = &message["result"];
        assert_holds(
            json!({"isError": true, "structuredContent": {"error": {"reason": "codex_failed"}}}),
            result,
        );
        let content = result["structuredContent"]["content"].as_str().unwrap();
        assert!(content.contains(text), "{text}: {message:#}");
    }
}

/// What a session has chosen for its commands counts for Codex, too; its HOME is not theirs.
#[test]
fn codex_starts_where_the_session_says_and_shares_no_home_with_it() {
    let pair = Pair::new(Transport::Stdio)
        .config("[session]\ncwd_override = true\nenv_overrides = [\"MODE\", \"CODEX_HOME\"]");
    let (server, mut client) = pair.start(SESSIONS);
    std::fs::create_dir(server.workspace().join("sub")).unwrap();
    client.request(
        "ringfence/session/update",
        json!({"cwd_override": "sub", "env_overrides": {"MODE": "chosen", "CODEX_HOME": "/elsewhere"}}),
    );
    let planted =
        client.call("shell.exec", json!({"command": "echo evil > ~/.profile; cat ~/.profile"}));
    assert_eq!(planted["result"]["structuredContent"]["stdout"], "evil\n", "{planted:#}");
    let prompt = "pwd; echo $MODE ${CODEX_HOME%/threads/*}; ls -A ~ | grep profile";
    let message = client.call("codex", json!({"prompt": prompt}));
    let place = server.workspace().canonicalize().unwrap().join("sub");
    let homes = server.root().join("codex");
    assert!(
        said(&message).starts_with(&format!("{}\nchosen {}/", place.display(), homes.display())),
        "{message:#}"
    );
    assert!(!said(&message).contains(".profile"), "{message:#}");
}

/// A client that shuts the network off for its agent does not get it back through another agent.
#[test]
fn a_client_without_network_runs_no_codex() {
    let pair = Pair::new(Transport::Stdio);
    let (_server, mut client) = pair.start(SESSIONS);
    client.request(
        "codex/sandbox-state/update",
        json!({"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/"}),
    );
    let message = client.call("codex", json!({"prompt": "true"}));
    assert_holds(
        json!({"kind": "permission_denied", "reason": "client_sandbox"}),
        &message["result"]["structuredContent"]["error"],
    );
    client.request(
        "codex/sandbox-state/update",
        json!({"sandboxPolicy": {"type": "read-only", "network_access": true}, "sandboxCwd": "/"}),
    );
    let message =
        client.call("codex", json!({"prompt": "echo x > a", "sandbox": "danger-full-access"}));
    assert!(said(&message).contains("Read-only file system"), "{message:#}");
}

/// With the surface off, each event goes to the client as the removed server sent it.
#[test]
fn legacy_clients_are_told_of_every_event() {
    for cell in eras().filter(|cell| cell.version == SESSIONS) {
        let pair = Pair::new(cell.transport).config("enable_mcp_server_surface = false");
        let (_server, mut client) = pair.start(cell.version);
        if cell.transport == Transport::Http {
            // What belongs to no request of MCP's own comes over the stream for such things.
            client.listen();
        }
        let message = client.call("codex", json!({"prompt": "echo done"}));
        said(&message);
        let told: Vec<&Value> = client
            .notifications
            .iter()
            .filter(|note| note["method"] == "codex/event")
            .map(|note| &note["params"])
            .collect();
        let kinds: Vec<&str> =
            told.iter().filter_map(|params| params["msg"]["type"].as_str()).collect();
        assert_eq!(kinds, ["thread.started", "turn.started", "item.completed", "turn.completed"]);
        for params in told {
            assert_eq!(params["_meta"]["threadId"], thread(&message));
            assert!(!params["_meta"]["requestId"].is_null());
        }
    }
}

/// As the removed server did, so that what runs without a human continues; over the network it did not exist.
#[test]
fn without_the_surface_codex_starts_unasked_on_stdio_and_asks_elsewhere() {
    for cell in eras() {
        let pair = Pair::new(cell.transport).config("enable_mcp_server_surface = false");
        let (server, mut asked) = pair.start(cell.version);
        let is_stdio = cell.transport == Transport::Stdio;
        let begun = asked.call(
            "codex",
            json!({"prompt": "echo ran > /etc/x; echo in $PWD", "sandbox": "workspace-write"}),
        );
        assert!(said(&begun).contains("/etc/x: Read-only"), "it is in the sandbox: {begun:#}");
        said(&asked.call("codex-reply", json!({"prompt": "true", "threadId": thread(&begun)})));
        assert_eq!(asked.questions.len(), if is_stdio { 0 } else { 2 }, "{}", asked.at());
        let expected = if is_stdio { "not_needed" } else { "approved" };
        assert!(
            server.stops(2).iter().all(|stop| stop["approval"] == expected),
            "{:#?}",
            server.audit()
        );

        // A client that nobody sits at.
        let mut server = pair.options.clone().spawn();
        let mut headless = server.client(cell.version);
        headless.capabilities = json!({});
        headless.shake_hands();
        let message = headless.call("codex", json!({"prompt": "echo ran"}));
        match is_stdio {
            true => assert_eq!(said(&message), "ran"),
            false => {
                let text = message["result"]["content"][0]["text"].as_str().unwrap_or_default();
                assert!(text.starts_with("approval_denied: "), "{message:#}");
            }
        }
    }
}

/// Who wants to be asked is asked, and so is everybody where there is no sandbox.
#[test]
fn without_the_surface_the_operator_can_still_be_asked() {
    for lines in ["[approval]\nown_tools = \"always\"", "[sandbox]\nprofile = \"none\""] {
        let pair = Pair::new(Transport::Stdio)
            .config(&format!("enable_mcp_server_surface = false\n{lines}"));
        let (server, mut client) = pair.start(SESSIONS);
        client.approve = Approve::Decline;
        let message = client.call("codex", json!({"prompt": "touch ran"}));
        let text = message["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with("approval_denied: "), "{lines}: {message:#}");
        assert_eq!(client.questions.len(), 1, "{lines}");
        assert!(!server.workspace().join("ran").exists());
    }
}

/// The legacy list keeps the schema of the removed server, so nothing that does not fit it may be sent.
#[test]
fn without_the_surface_every_result_fits_the_legacy_schema() {
    let pair = Pair::new(Transport::Stdio).config("enable_mcp_server_surface = false");
    let (_server, mut client) = pair.start(SESSIONS);
    let listed = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let validator = jsonschema::draft202012::new(&listed[0]["outputSchema"]).unwrap();
    let fails =
        "echo '{\"type\":\"turn.failed\",\"error\":{\"message\":\"no credits\"}}' >&3; kill -9 $$";
    for (prompt, structured) in [("echo hi", true), (fails, true)] {
        let result = client.call("codex", json!({"prompt": prompt}))["result"].clone();
        assert_eq!(result.get("structuredContent").is_some(), structured, "{result:#}");
        assert!(validator.is_valid(&result["structuredContent"]), "{result:#}");
    }
    for arguments in [
        json!({}),
        json!({"prompt": "x", "threadId": THREAD}),
        json!({"prompt": "x", "cwd": "../.."}),
    ] {
        let result = client.call("codex", arguments)["result"].clone();
        assert!(
            result["isError"] == true && result.get("structuredContent").is_none(),
            "{result:#}"
        );
    }
}

#[test]
fn trust_in_one_that_only_reads_is_not_for_one_that_does_what_it_likes() {
    let (_server, mut client) = Pair::new(Transport::Stdio).start(SESSIONS);
    client.approve = Approve::Session;
    said(&client.call("codex", json!({"prompt": "true", "sandbox": "read-only"})));
    client.approve = Approve::Decline;
    said(&client.call("codex", json!({"prompt": "true", "sandbox": "read-only"})));
    for other in
        [json!({"sandbox": "danger-full-access"}), json!({"config": {"model_verbosity": "low"}})]
    {
        let mut arguments = other;
        arguments["prompt"] = json!("true");
        let message = client.call("codex", arguments);
        assert_eq!(message["result"]["isError"], true, "{message:#}");
    }
    assert_eq!(client.questions.len(), 3);
}
