//! One run is prepared ahead of each command of a session but the first. It saves time and changes nothing else: it
//! knows nothing of a call, and what changed since it was prepared applies to the command that takes it.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::process::{children, marker, parent, with_argument};
use crate::support::{Client, DEADLINE, Options, SESSIONS, Server, Transport, eventually, server};

/// The supervisor of a run, the run's first process, and the one that becomes the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    supervisor: u32,
    first: u32,
    program: u32,
}

/// The runs of a server that wait for a command: their last process still is our own program.
fn waiting_runs(server: &Server) -> Vec<Waiting> {
    let is_ours = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"__zygote")
    };
    let below = |pids: Vec<u32>| pids.into_iter().flat_map(children).collect::<Vec<_>>();
    let programs = below(below(below(below(vec![server.pid()]))));
    programs
        .into_iter()
        .filter(|program| is_ours(*program))
        .map(|program| {
            let first = parent(program);
            Waiting { supervisor: parent(first), first, program }
        })
        .collect()
}

/// Waits for a run that is ready for its command: the process that becomes the program has its filter.
fn wait_for_run(server: &Server) -> Waiting {
    let is_ready = |run: &Waiting| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.program));
        status.is_ok_and(|text| text.contains("Seccomp:\t2"))
    };
    let mut found = None;
    eventually(DEADLINE, "a run is prepared", || {
        found = waiting_runs(server).into_iter().find(is_ready);
        found.is_some()
    });
    found.unwrap()
}

fn run(client: &mut Client, arguments: Value) -> Value {
    let message = client.call("shell.exec", arguments);
    let result = message["result"]["structuredContent"].clone();
    assert!(result["exit_code"].is_i64(), "{message}");
    result
}

/// Starts a command that stays after a script, and returns the processes of its run.
fn run_of_next(client: &mut Client, script: &str) -> Waiting {
    let marker = marker();
    let command = format!("{script}; exec sleep {marker}");
    let id = client.start_call("shell.exec", &json!({"command": command}));
    // The shell has it in a longer argument before.
    let is_sleep = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"sleep\0")
    };
    let mut program = None;
    eventually(DEADLINE, "it has started", || {
        program = with_argument(&marker).into_iter().find(is_sleep);
        program.is_some()
    });
    let program = program.unwrap();
    client.cancel(&id);
    let first = parent(program);
    Waiting { supervisor: parent(first), first, program }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn nothing_is_prepared_before_the_first_command_and_the_second_takes_what_is() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    client.request("tools/list", json!({}));
    client.call("file.list", json!({}));
    assert_eq!(children(server.pid()), vec![0_u32; 0], "no process before a command");
    run(&mut client, json!({"command": "true"}));
    let prepared = wait_for_run(&server);
    assert_eq!(run_of_next(&mut client, "true"), prepared);
    assert_ne!(wait_for_run(&server), prepared, "and the next one is prepared");
}

#[test]
fn a_prepared_run_ends_when_no_command_comes() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    run(&mut client, json!({"command": "true"}));
    let prepared = wait_for_run(&server);
    eventually(Duration::from_secs(60), "the run is given up", || waiting_runs(&server).is_empty());
    eventually(DEADLINE, "nothing of it is left", || {
        !Path::new(&format!("/proc/{}", prepared.supervisor)).exists()
    });
    assert_eq!(run(&mut client, json!({"command": "echo next"}))["stdout"], "next\n");
}

#[test]
fn what_appeared_since_is_protected_and_hidden() {
    // Not beneath /tmp, where nothing of the host's is seen at all.
    let scratch = server::Scratch::within(crate::support::place::visible_folder());
    let mut server = Options::new(Transport::Stdio).on(&scratch).spawn();
    let mut client = server.connect(SESSIONS);
    run(&mut client, json!({"command": "true"}));
    let prepared = wait_for_run(&server);
    let (workspace, home) = (server.workspace(), scratch.path().join("home"));
    std::fs::create_dir_all(workspace.join(".vscode")).unwrap();
    std::fs::write(workspace.join(".vscode/settings.json"), "{}").unwrap();
    std::fs::write(workspace.join(".mcp.json"), "{}").unwrap();
    std::fs::create_dir(workspace.join("new")).unwrap();
    std::fs::write(home.join(".netrc"), "a new secret").unwrap();
    std::fs::create_dir(home.join(".aws")).unwrap();
    std::fs::write(home.join(".aws/credentials"), "a new secret").unwrap();
    let script = format!(
        "echo evil > ../.mcp.json; echo evil > ../.vscode/settings.json; mv ../.mcp.json ../x; mv ../.vscode ../y; \
         cat {home}/.netrc {home}/.aws/credentials; pwd; exec sleep {marker}",
        home = home.display(),
        marker = marker(),
    );
    let id = client.start_call("shell.exec", &json!({"command": script, "cwd": "new"}));
    let word = script.rsplit(' ').next().unwrap();
    eventually(DEADLINE, "it has started", || !with_argument(word).is_empty());
    assert_eq!(
        parent(parent(with_argument(word)[0])),
        prepared.supervisor,
        "its supervisor is used"
    );
    kill(with_argument(word)[0]);
    let message = client.finish(id, "shell.exec", &json!({}));
    let result = &message["result"]["structuredContent"];
    assert_eq!(result["stdout"], format!("{}\n", workspace.join("new").display()), "{message}");
    assert!(!message.to_string().contains("a new secret"), "{message}");
    assert_eq!(std::fs::read_to_string(workspace.join(".mcp.json")).unwrap(), "{}");
    assert_eq!(std::fs::read_to_string(workspace.join(".vscode/settings.json")).unwrap(), "{}");
}

#[test]
fn what_changed_in_a_writable_directory_alone_discards_no_prepared_run() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    run(&mut client, json!({"command": "true"}));
    let prepared = wait_for_run(&server);
    std::fs::write(server.workspace().join(".mcp.json"), "{}").unwrap();
    std::fs::create_dir(server.workspace().join("new")).unwrap();
    let next = run_of_next(&mut client, "echo evil > .mcp.json; echo fine > new/file");
    assert_eq!(next, prepared);
    assert_eq!(std::fs::read_to_string(server.workspace().join(".mcp.json")).unwrap(), "{}");
    assert!(server.workspace().join("new/file").exists());
}

/// Landlock knows a directory and not its path: the run that waited could still write to the old one.
#[test]
fn a_writable_directory_that_the_host_replaces_is_closed_to_the_next_command() {
    let scratch = server::Scratch::within(crate::support::place::visible_folder());
    let (data, old) = (scratch.path().join("data"), scratch.path().join("old"));
    std::fs::create_dir(&data).unwrap();
    let mut server = Options::new(Transport::Stdio)
        .config(&format!("[sandbox]\nwritable = [{:?}]", data.display().to_string()))
        .on(&scratch)
        .spawn();
    let mut client = server.connect(SESSIONS);
    run(&mut client, json!({"command": format!("echo one > {}/one", data.display())}));
    assert!(data.join("one").exists());
    let prepared = wait_for_run(&server);
    std::fs::rename(&data, &old).unwrap();
    std::fs::create_dir(&data).unwrap();
    let next = run_of_next(&mut client, &format!("echo two > {}/two", old.display()));
    assert_ne!(next.first, prepared.first, "another run was started");
    assert!(!old.join("two").exists());
}

#[test]
fn a_run_with_other_rights_takes_no_prepared_one() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    run(&mut client, json!({"command": "touch before"}));
    let prepared = wait_for_run(&server);
    let read_only = json!({"sandboxPolicy": {"type": "read-only"}});
    let arguments = json!({"command": "touch after"});
    let id = client.start(
        "tools/call",
        json!({"name": "shell.exec", "arguments": arguments, "_meta": {"codex/sandbox-state-meta": read_only}}),
    );
    let message = client.finish(id, "shell.exec", &arguments);
    assert_ne!(message["result"]["structuredContent"]["exit_code"], 0, "{message}");
    assert!(!server.workspace().join("after").exists());
    run(&mut client, json!({"command": "touch again"}));
    assert!(server.workspace().join("again").exists());
    assert_ne!(wait_for_run(&server), prepared);
}

#[test]
fn a_prepared_run_holds_nothing_of_a_call() {
    let secret = "correct-horse-battery-staple";
    let mut server = Options::new(Transport::Stdio)
        .config("[mcp.speak]\ncommand = \"true\"\nenv = { VALUE = \"${WORD}\" }\nrequires_approval = false")
        .env("WORD", secret)
        .spawn();
    let mut client = server.connect(SESSIONS);
    client.call("speak", json!({}));
    let command = format!("echo an-order-of-{}", marker());
    let result = run(&mut client, json!({"command": &command, "stdin": "a-line-of-input"}));
    assert_eq!(result["exit_code"], 0, "{result}");
    let Waiting { supervisor, first, program } = wait_for_run(&server);
    for pid in [supervisor, first, program] {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}"));
        // Another user's processes, as these are in a user namespace, show nothing to us either.
        if let Ok(environ) = read("environ") {
            assert_eq!(environ, b"", "no environment");
        }
        let Ok(memory) = readable_memory(pid) else { continue };
        assert!(memory.len() > 100_000, "{pid}: its memory was read");
        for word in [secret, command.as_str(), "a-line-of-input"] {
            let is_found = memory.windows(word.len()).any(|bytes| bytes == word.as_bytes());
            assert!(!is_found, "{pid} knows {word}");
        }
    }
    let is_root = rustix::process::geteuid().is_root();
    assert!(!is_root || readable_memory(program).is_ok(), "root can read every memory");
}

/// The private memory of a process that it may write.
fn readable_memory(pid: u32) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let file = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    let mut bytes = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        let mut part = vec![0; usize::try_from(to - from).unwrap()];
        // Guard pages and the like cannot be read.
        if file.read_exact_at(&mut part, from).is_ok() {
            bytes.append(&mut part);
        }
    }
    Ok(bytes)
}

#[test]
fn a_prepared_run_that_dies_is_missed_by_no_one() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let victims: [fn(Waiting) -> u32; 3] =
        [|run| run.supervisor, |run| run.first, |run| run.program];
    for victim in victims {
        run(&mut client, json!({"command": "true"}));
        let victim = victim(wait_for_run(&server));
        kill(victim);
        eventually(DEADLINE, "it is dead", || {
            std::fs::read_to_string(format!("/proc/{victim}/stat"))
                .map_or(true, |stat| stat.contains(") Z "))
        });
        assert_eq!(run(&mut client, json!({"command": "echo next"}))["stdout"], "next\n");
    }
}

#[test]
fn nothing_of_a_prepared_run_outlives_its_server() {
    for _ in 0..5 {
        let mut server = Options::new(Transport::Stdio).spawn();
        let mut client = server.connect(SESSIONS);
        run(&mut client, json!({"command": "true"}));
        let Waiting { supervisor, first, program } = wait_for_run(&server);
        server.signal(Signal::TERM);
        assert!(server.ended().success(), "{}", server.log());
        for pid in [supervisor, first, program] {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
        }
    }
}

#[test]
fn commands_that_start_together_each_have_a_run_of_their_own() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    for round in 0..5 {
        let calls: Vec<_> = (0..6)
            .map(|call| {
                let arguments =
                    json!({"command": format!("echo {round}-{call}; ps -e --no-headers | wc -l")});
                (call, client.start_call("shell.exec", &arguments))
            })
            .collect();
        for (call, id) in calls {
            let message = client.wait(&id);
            let stdout = message["result"]["structuredContent"]["stdout"].as_str().unwrap();
            let (own, others) = stdout.split_once('\n').unwrap();
            assert_eq!(own, format!("{round}-{call}"), "{message}");
            assert!(others.trim().parse::<u32>().unwrap() <= 5, "{message}");
        }
    }
}
