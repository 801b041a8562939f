//! `ringfence doctor` on this host, and in places that refuse what it tries. Nothing is pretended: the refusals are
//! the kernel's own, and what doctor says is held against what `ringfence sandbox` then does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::place::visible_folder;
use crate::support::server::{Scratch, binary};

const REFUSE: &str = include_str!("doctor/refuse.py");
const CROWD: &str = include_str!("doctor/crowd.py");
/// Makes a user namespace in which no other can be made. Whoever runs in it is root there.
const NO_MORE: &str = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Root,
    User,
}

/// Who can be had; only root can be both.
fn everybody() -> Vec<Who> {
    match rustix::process::geteuid().is_root() {
        true => vec![Who::Root, Who::User],
        false => {
            println!("NOT RUN: as root");
            vec![Who::User]
        }
    }
}

/// A home, a root and a workspace of this user's, and something that refuses.
struct House {
    scratch: Arc<Scratch>,
    who: Who,
    binary: PathBuf,
    through: Vec<String>,
}

impl House {
    fn new(who: Who, through: &[&str]) -> House {
        let scratch = Scratch::within(visible_folder());
        let mut house = House {
            scratch,
            who,
            binary: PathBuf::new(),
            through: through.iter().map(|word| (*word).to_owned()).collect(),
        };
        house.binary = house.path("ringfence");
        // Where another user can read it.
        if std::fs::hard_link(binary(), &house.binary).is_err() {
            std::fs::copy(binary(), &house.binary).unwrap();
        }
        std::fs::set_permissions(&house.binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        if let Some(id) = house.change() {
            for part in ["", "root", "workspace", "home", "tmp"] {
                chown(house.path(part), Some(id), Some(id)).unwrap();
            }
        }
        house
    }

    fn change(&self) -> Option<u32> {
        (self.who == Who::User && rustix::process::geteuid().is_root()).then_some(1000)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn command(&self, word: &str) -> Command {
        let mut command = self.command_on_root(word);
        command.arg("--workspace").arg(self.path("workspace"));
        command
    }

    fn command_on_root(&self, word: &str) -> Command {
        let mut words = self.through.clone();
        words.push(self.binary.to_str().unwrap().to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(word).arg("--root").arg(self.path("root"));
        command.current_dir(self.path("workspace"));
        command.env_clear().env("HOME", self.path("home")).env("TMPDIR", self.path("tmp"));
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        if let Some(id) = self.change() {
            // The standard library drops the supplementary groups along with them.
            command.uid(id).gid(id);
        }
        command
    }

    /// The findings, once the text has been seen to say the same.
    fn doctor(&self, args: &[&str]) -> (i32, String, Value) {
        let text = self.command("doctor").args(args).output().unwrap();
        let json = self.command("doctor").args(args).arg("--json").output().unwrap();
        let found: Value =
            serde_json::from_slice(&json.stdout).unwrap_or_else(|_| panic!("{json:?}"));
        let said = out(&text);
        assert_eq!(text.status.code(), json.status.code(), "{said}");
        assert_eq!(found["verdict"]["exit_code"], text.status.code().unwrap(), "{said}");
        assert!(
            said.contains(&format!("Verdict: {}", found["verdict"]["sentence"].as_str().unwrap())),
            "{said}"
        );
        for promise in found["verdict"]["promises"].as_array().unwrap() {
            assert!(said.contains(promise["text"].as_str().unwrap()), "{said}");
        }
        assert!(!said.contains('\x1b'), "there is no terminal: {said}");
        assert!(text.stderr.is_empty() && json.stderr.is_empty(), "{text:?} {json:?}");
        (text.status.code().unwrap(), said, found)
    }

    fn sandbox(&self, args: &[&str]) -> Output {
        self.command("sandbox").args(args).args(["--", "/bin/true"]).output().unwrap()
    }

    /// The structured result of `shell.exec` on a server of its own.
    fn shell_exec(&self, script: &str) -> Value {
        let mut server =
            self.command("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let client = json!({"name": "test", "version": "1"});
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let call = json!({"name": "shell.exec", "arguments": {"command": script}});
        let mut stdin = server.stdin.take().unwrap();
        for message in [
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}),
        ] {
            writeln!(stdin, "{message}").unwrap();
        }
        let answers = BufReader::new(server.stdout.take().unwrap()).lines();
        let mut answers =
            answers.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        let answer = answers.find(|answer| answer["id"] == 2).unwrap();
        drop(stdin);
        assert!(server.wait().unwrap().success());
        answer["result"]["structuredContent"].clone()
    }

    fn names(&self, part: &str) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.path(part))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn layer<'a>(found: &'a Value, part: &str) -> &'a Value {
    found["layers"].as_array().unwrap().iter().find(|layer| layer["part"] == part).unwrap()
}

fn fence<'a>(found: &'a Value, profile: &str, tier: Option<&str>) -> &'a Value {
    let fits = |fence: &&Value| fence["profile"] == profile && fence["tier"].as_str() == tier;
    found["fences"].as_array().unwrap().iter().find(fits).unwrap_or_else(|| panic!("{found:#}"))
}

/// Root in a user namespace of this user's, after which there is no other.
fn no_more(then: &[&str]) -> Vec<String> {
    let words = ["unshare", "-Ur", "sh", "-c", NO_MORE, "sh"];
    words.iter().chain(then).map(|word| (*word).to_owned()).collect()
}

fn through(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Under a filter that refuses these system calls.
fn refusing<'a>(calls: &[&'a str]) -> Vec<&'a str> {
    [&["/usr/bin/python3", "-I", "-S", "-c", REFUSE], calls, &["--"]].concat()
}

#[test]
fn everything_holds_here_as_root_and_as_anybody() {
    for who in everybody() {
        let house = House::new(who, &["env"]);
        let (code, said, found) = house.doctor(&[]);
        assert_eq!((code, &found["verdict"]["ready"]), (0, &true.into()), "{said}");
        // Control groups are not everybody's, and bubblewrap need not be there.
        for layer in found["layers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|layer| layer["part"] != "limits" && layer["part"] != "bwrap")
        {
            assert_eq!(layer["outcome"], "ok", "{said}");
        }
        assert_eq!(
            (&found["verdict"]["profile"], &found["verdict"]["tier"]),
            (&"default".into(), &"namespaces".into())
        );
        let canaries =
            fence(&found, "default", Some("namespaces"))["canaries"].as_object().unwrap();
        for canary in
            ["write_outside", "write_protected", "read_hidden", "reach_network", "have_privileges"]
        {
            assert_eq!(canaries[canary], false, "{said}");
        }
        assert_eq!(canaries["use_home"], true, "{said}");
        let contained = fence(&found, "contained", None);
        assert_eq!(
            (&contained["outcome"], &contained["canaries"]["signal_outside"]),
            (&"ok".into(), &false.into()),
            "{said}"
        );
        let as_root = fence(&found, "default", Some("root"));
        assert_eq!(as_root["outcome"], if who == Who::Root { "ok" } else { "not_tried" }, "{said}");
        // What limits are said to be is what a run says of them.
        let report = house.path("tmp/report");
        let run = house.sandbox(&["--report", report.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(0), "{run:?}");
        assert_eq!(read(&report)["limits"], found["verdict"]["limits"], "{said}");
        assert_eq!(
            said.contains("advisory"),
            !found["verdict"]["limits_enforced"].as_bool().unwrap(),
            "{said}"
        );
    }
}

fn read(report: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap()
}

#[test]
fn nothing_is_left_behind() {
    for who in everybody() {
        let house = House::new(who, &["env"]);
        // What any run leaves in the root is all that doctor leaves.
        for profile in ["default", "contained"] {
            assert_eq!(house.sandbox(&["--profile", profile]).status.code(), Some(0));
        }
        let left = house.names("root");
        house.doctor(&[]);
        assert_eq!(house.names("root"), left);
        for part in ["workspace", "home", "tmp"] {
            assert_eq!(house.names(part), [""; 0], "{part}");
        }
    }
}

#[test]
fn the_tier_that_is_named_is_the_tier_that_is_used() {
    for who in everybody() {
        let words = no_more(&[]);
        let house = House::new(who, &through(&words));
        let (code, said, found) = house.doctor(&[]);
        assert_eq!(code, 0, "{said}");
        let user = layer(&found, "user_namespace");
        assert_eq!((&user["outcome"], &user["errno"]), (&"refused".into(), &28.into()), "{said}");
        assert!(user["fix"].as_str().unwrap().contains("user.max_user_namespaces"), "{said}");
        assert_eq!(fence(&found, "default", Some("namespaces"))["outcome"], "refused", "{said}");
        assert_eq!(found["verdict"]["tier"], "root", "{said}");
        let report = house.path("tmp/report");
        let run = house.sandbox(&["--report", report.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(0), "{run:?}");
        assert_eq!(read(&report)["tier"], "root");
    }
}

#[test]
fn where_default_is_refused_contained_is_offered_and_none_is_not() {
    for who in everybody() {
        let words = no_more(&["setpriv", "--bounding-set=-all"]);
        let filter = refusing(&["unshare=1"]);
        for words in [through(&words), filter] {
            let house = House::new(who, &words);
            let (code, said, found) = house.doctor(&[]);
            assert_eq!(code, 1, "{said}");
            let verdict = &found["verdict"];
            assert_eq!(
                (&verdict["profile"], &verdict["offered"]),
                (&Value::Null, &"contained".into()),
                "{said}"
            );
            assert!(said.contains("profile = \"contained\"") && !said.contains("`none`"), "{said}");
            assert!(said.contains("It does not promise:"), "{said}");
            let user = layer(&found, "user_namespace");
            assert_eq!(user["outcome"], "refused", "{said}");
            assert!(!user["fix"].as_str().unwrap().is_empty(), "{said}");
            assert_eq!(layer(&found, "mount_namespace")["outcome"], "not_tried", "{said}");
            assert_eq!(house.sandbox(&[]).status.code(), Some(125));
            assert_eq!(house.sandbox(&["--profile", "contained"]).status.code(), Some(0));
        }
    }
}

/// As on hosts where only named programs may make user namespaces: ours is refused, and bubblewrap, which asks by
/// another call, is not.
#[test]
fn where_only_bubblewrap_may_make_user_namespaces_doctor_and_runs_agree() {
    for who in everybody() {
        let house = House::new(who, &refusing(&["unshare&10000000=1"]));
        let (code, said, found) = house.doctor(&[]);
        assert_eq!(layer(&found, "user_namespace")["outcome"], "refused", "{said}");
        let report = house.path("tmp/report");
        let run = house.sandbox(&["--report", report.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(if code == 0 { 0 } else { 125 }), "{said} {run:?}");
        assert_eq!(
            read(&report).get("tier").unwrap_or(&Value::Null),
            found["verdict"].get("tier").unwrap_or(&Value::Null)
        );
        let bwrap = fence(&found, "default", Some("bwrap"));
        if bwrap["outcome"] == "ok" {
            assert_eq!((code, &found["verdict"]["tier"]), (0, &"bwrap".into()), "{said}");
        }
    }
}

#[test]
fn where_nothing_works_it_says_so() {
    for who in everybody() {
        let house = House::new(who, &refusing(&["seccomp=22"]));
        let (code, said, found) = house.doctor(&[]);
        assert_eq!(code, 2, "{said}");
        let layer = layer(&found, "seccomp");
        assert_eq!(layer["outcome"], "refused", "{said}");
        assert!(layer["fix"].as_str().unwrap().to_lowercase().contains("seccomp"), "{said}");
        assert!(found["verdict"]["promises"].as_array().unwrap().is_empty(), "{said}");
        assert_eq!(found["verdict"].get("offered"), None, "{said}");
        for profile in ["default", "contained"] {
            assert_eq!(house.sandbox(&["--profile", profile]).status.code(), Some(125));
        }
    }
}

/// A kernel without Landlock: `default` says so wherever it is used, and `contained` is refused.
#[test]
fn without_landlock_the_tier_mounts_is_used_and_named() {
    for who in everybody() {
        let house = House::new(who, &refusing(&["landlock_create_ruleset=38"]));
        let (code, said, found) = house.doctor(&[]);
        assert_eq!((code, &found["verdict"]["ready"]), (0, &true.into()), "{said}");
        assert_eq!(found["verdict"]["tier"], "mounts", "{said}");
        assert!(said.contains("tier `mounts`"), "{said}");
        let canaries = fence(&found, "default", Some("mounts"))["canaries"].as_object().unwrap();
        for canary in ["write_outside", "write_protected", "read_hidden", "have_privileges"] {
            assert_eq!(canaries[canary], false, "{said}");
        }
        assert_eq!(fence(&found, "contained", None)["outcome"], "refused", "{said}");
        assert_eq!(found["verdict"].get("offered"), None, "{said}");
        let report = house.path("tmp/report");
        assert_eq!(house.sandbox(&["--report", report.to_str().unwrap()]).status.code(), Some(0));
        assert_eq!(read(&report)["tier"], "mounts");
        assert_eq!(house.sandbox(&["--profile", "contained"]).status.code(), Some(125));

        let result = house.shell_exec("echo hello > file && cat file; touch /etc/x");
        assert_eq!(result["sandbox"]["tier"], "mounts", "{result}");
        assert_eq!(result["stdout"], "hello\n", "{result}");
        let mut audit = house.command_on_root("audit");
        let audit = out(&audit.args(["--json", "--tool", "shell.exec"]).output().unwrap());
        let stop = audit.lines().find(|line| line.contains("\"call.stop\"")).unwrap();
        let stop: Value = serde_json::from_str(stop).unwrap();
        assert_eq!(stop["tier"], "mounts", "{stop}");
    }
}

/// `require` turns the tier `mounts` into a refusal that names the key, and changes nothing
/// elsewhere.
#[test]
fn a_required_landlock_is_required() {
    let config = |house: &House| {
        let file = house.path("tmp/config.toml");
        std::fs::write(&file, "[sandbox]\nrequire = [\"landlock3\"]\n").unwrap();
        file
    };
    let house = House::new(Who::User, &refusing(&["landlock_create_ruleset=38"]));
    let run = house.sandbox(&["--config", config(&house).to_str().unwrap()]);
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && said.contains("`require`"), "{run:?}");
    let house = House::new(Who::User, &["env"]);
    let run = house.sandbox(&["--config", config(&house).to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
}

#[test]
fn a_call_that_only_one_layer_needs_is_that_layers_refusal() {
    let house = House::new(Who::User, &refusing(&["pidfd_getfd=1", "mount_setattr=38"]));
    let (code, said, found) = house.doctor(&[]);
    assert_eq!(code, 1, "{said}");
    for (part, errno) in [("pidfd_getfd", 1), ("mount_namespace", 38)] {
        assert_eq!(
            (&layer(&found, part)["outcome"], &layer(&found, part)["errno"]),
            (&"refused".into(), &errno.into()),
            "{said}"
        );
    }
    assert_eq!(layer(&found, "pid_namespace")["outcome"], "ok", "{said}");
    assert_eq!(house.sandbox(&[]).status.code(), Some(125));
}

/// The process that makes a session's network says why it could not hand it over.
#[test]
fn a_network_that_cannot_be_handed_over_is_refused_with_the_kernels_reason() {
    for who in everybody() {
        let house = House::new(who, &["python3", "-c", CROWD]);
        let said = house.command("doctor").arg("--json").output().unwrap();
        let found: Value =
            serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
        let network = layer(&found, "network_namespace");
        assert_eq!(network["outcome"], "refused", "{network}");
        assert_eq!(network["errno"], rustix::io::Errno::TOOMANYREFS.raw_os_error(), "{network}");
        assert!(network["text"].as_str().unwrap().contains("hand the network over"), "{network}");
    }
}

#[test]
fn a_broken_config_is_shown_and_the_host_is_tried_all_the_same() {
    let house = House::new(Who::User, &["env"]);
    let file = house.path("broken.toml");
    std::fs::write(&file, "[sandbox]\nprofil = \"default\"\n").unwrap();
    let (code, said, found) = house.doctor(&["--config", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
    let config = &found["health"][0];
    assert_eq!(
        (&config["name"], &config["outcome"]),
        (&"config".into(), &"refused".into()),
        "{said}"
    );
    assert!(config["text"].as_str().unwrap().contains("profil"), "{said}");
    // The host would do, but no run starts with this config.
    assert_eq!(found["verdict"]["ready"], false, "{said}");
    assert!(said.contains("Verdict: nothing starts"), "{said}");
    let run = house
        .command("sandbox")
        .args(["--config", file.to_str().unwrap(), "--", "/bin/true"])
        .output()
        .unwrap();
    assert!(!run.status.success());
    assert_eq!(house.names("tmp"), [""; 0]);
}

#[test]
fn what_the_config_asks_for_is_what_is_judged() {
    let house = House::new(Who::User, &["env"]);
    let file = house.path("config.toml");
    std::fs::write(&file, "[sandbox]\nprofile = \"contained\"\n").unwrap();
    let (_, said, found) = house.doctor(&["--config", file.to_str().unwrap()]);
    assert_eq!(
        (&found["verdict"]["configured"], &found["verdict"]["profile"]),
        (&"contained".into(), &"contained".into()),
        "{said}"
    );
    // It cannot hide anything, and a run says so.
    std::fs::write(&file, "[sandbox]\nprofile = \"contained\"\nhide = [\"secret\"]\n").unwrap();
    let (code, said, found) = house.doctor(&["--config", file.to_str().unwrap()]);
    assert_eq!(
        (code, &found["verdict"]["profile"], &found["verdict"]["ready"]),
        (0, &Value::Null, &false.into()),
        "{said}"
    );
    assert!(fence(&found, "contained", None)["text"].as_str().unwrap().contains("hide"), "{said}");
    let run = house
        .command("sandbox")
        .args(["--config", file.to_str().unwrap(), "--", "/bin/true"])
        .output()
        .unwrap();
    assert!(!run.status.success());
    std::fs::write(&file, "[sandbox]\nprofile = \"none\"\n").unwrap();
    let (_, said, found) = house.doctor(&["--config", file.to_str().unwrap()]);
    assert!(found["verdict"]["promises"].as_array().unwrap().is_empty(), "{said}");
}

#[test]
fn rules_are_tried_and_what_is_wrong_with_them_is_shown() {
    for who in everybody() {
        let house = House::new(who, &[]);
        let folder = house.path("home/.codex/rules");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(
            folder.join("good.rules"),
            "prefix_rule(pattern = [\"uname\"], decision = \"forbidden\")\n",
        )
        .unwrap();
        let (_, text, found) = house.doctor(&[]);
        let used = found["fences"].as_array().unwrap().iter().filter(|fence| fence["used"] == true);
        let used: Vec<&Value> = used.map(|fence| &fence["canaries"]["run_forbidden"]).collect();
        assert_eq!(used, [false, false], "{text}");
        let health = |found: &Value, part: &str| found["health"].to_string().contains(part);
        assert!(
            health(&found, "1 in 1 files")
                && health(&found, "commands that rules allow run in the sandbox"),
            "{text}"
        );
        std::fs::write(folder.join("bad.rules"), "prefix_rule(pattern = [\n").unwrap();
        let (_, text, found) = house.doctor(&[]);
        assert!(health(&found, "bad.rules:") && health(&found, "fix the file"), "{text}");
    }
}
