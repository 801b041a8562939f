//! The operator's files change while the server runs: who sees what, and when. Nothing here waits for time to pass: a
//! request that comes after an edit sees it.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::matrix::{eras, on_cell, on_cells_at_once};
use crate::support::server::{Scratch, binary, ringfence};
use crate::support::{
    Approve, Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually,
    on_every_transport,
};

const CHANGED: &str = "notifications/tools/list_changed";

fn file(server: &Server) -> PathBuf {
    server.scratch.path().join("config.toml")
}

/// As `echo` and some editors write.
fn write(server: &Server, text: &str) {
    std::fs::write(file(server), text).unwrap();
}

/// As most editors write.
fn replace(server: &Server, text: &str) {
    let new = server.scratch.path().join(".config.toml.new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file(server)).unwrap();
}

fn listed(client: &mut Client) -> Vec<String> {
    let answer = client.request("tools/list", json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn lists(client: &mut Client, name: &str) -> bool {
    listed(client).iter().any(|listed| listed == name)
}

/// What the capabilities say about the config.
fn about(client: &mut Client) -> Value {
    client.request("mcp.capabilities", json!({}))["result"]["config"].clone()
}

/// Asks to be told of changes, in whatever way there is.
fn listen(client: &mut Client) {
    match (client.is_modern(), client.transport) {
        (true, _) => {
            client.start(
                "subscriptions/listen",
                json!({"notifications": {"toolsListChanged": true}}),
            );
            client.wait_notification("notifications/subscriptions/acknowledged");
        }
        (false, Transport::Http) => client.listen(),
        (false, _) => {}
    }
}

#[test]
fn the_next_request_sees_an_edit() {
    on_every_transport(
        |options| options.config("tools = 'core'"),
        |server, client| {
            assert!(!lists(client, "browser.act") && lists(client, "file.read"));
            write(server, "tools = 'all'");
            assert!(lists(client, "browser.act"), "a list after an edit in place");
            replace(server, "tools = 'shell'");
            let answer = client.call("file.read", json!({"path": "x"}));
            assert_eq!(
                answer["error"]["data"]["kind"], "unknown_tool",
                "a call after a replaced file: {answer}"
            );
            write(server, "tools = 'core'\n[approval]\nown_tools = 'always'");
            let all = client.request("mcp.capabilities", json!({}))["result"].clone();
            assert_eq!(
                all["config"],
                json!({"generation": 4, "state": "ok", "dropped": [], "restart_needed": []})
            );
            assert_eq!(all["tools"][0]["requires_approval"], true, "{all}");
        },
    );
}

#[test]
fn clients_hear_of_changes_without_asking() {
    on_cells_at_once(
        eras(),
        |options| options.config("tools = 'core'"),
        |server, client| {
            listen(client);
            write(server, "tools = 'all'");
            client.wait_notification(CHANGED);
            assert!(lists(client, "browser.act"));
            replace(server, "tools = 'core'");
            client.wait_notification(CHANGED);
            assert!(!lists(client, "browser.act"));
            // What a list shows of a tool is part of it.
            write(server, "[approval]\nown_tools = 'always'");
            client.wait_notification(CHANGED);
            // What it does not show is nobody's news: the next word is about the next difference.
            write(server, "[approval]\nown_tools = 'always'\nexpiry_s = 7");
            assert_eq!(about(client)["generation"], 5);
            replace(server, "");
            client.wait_notification(CHANGED);
            client.drain();
            assert!(
                client.notifications.iter().all(|note| note["method"] != CHANGED),
                "{:?}",
                client.notifications
            );
        },
    );
}

#[test]
fn a_config_behind_links_is_swapped_as_clusters_do() {
    for cell in eras().filter(|cell| cell.transport != Transport::Sse) {
        let scratch = Scratch::new();
        let at = scratch.path().join("etc");
        for (name, tools) in [("..1", "core"), ("..2", "all")] {
            std::fs::create_dir_all(at.join(name)).unwrap();
            std::fs::write(at.join(name).join("config.toml"), format!("tools = '{tools}'"))
                .unwrap();
        }
        symlink("..1", at.join("..data")).unwrap();
        symlink("..data/config.toml", at.join("config.toml")).unwrap();
        let options = |options: Options| {
            options.on(&scratch).arg("--config").arg(at.join("config.toml").to_str().unwrap())
        };
        on_cell(cell, options, |_, client| {
            listen(client);
            assert!(!lists(client, "browser.act"));
            symlink("..2", at.join("..data_tmp")).unwrap();
            std::fs::rename(at.join("..data_tmp"), at.join("..data")).unwrap();
            client.wait_notification(CHANGED);
            assert!(lists(client, "browser.act"));
            // The new target is watched as the old one was.
            std::fs::write(at.join("..2/config.toml"), "tools = 'core'").unwrap();
            client.wait_notification(CHANGED);
            assert!(!lists(client, "browser.act"));
        });
        let _ = std::fs::remove_file(at.join("..data"));
    }
}

#[test]
fn a_file_that_was_not_there_may_appear_and_may_not_vanish() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let folder = server.scratch.path().join("home/.config/ringfence");
    assert!(!lists(&mut client, "browser.act"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.toml"), "tools = 'all'").unwrap();
    client.wait_notification(CHANGED);
    assert!(lists(&mut client, "browser.act"));
    std::fs::remove_file(folder.join("config.toml")).unwrap();
    let about_it = about(&mut client);
    assert_eq!(
        (&about_it["state"], &about_it["generation"]),
        (&json!("broken"), &json!(2)),
        "{about_it}"
    );
    assert!(lists(&mut client, "browser.act"), "the last good state stays");
    std::fs::write(folder.join("config.toml"), "tools = 'core'").unwrap();
    assert!(!lists(&mut client, "browser.act"));
    assert_eq!(about(&mut client)["state"], "ok");
}

#[test]
fn a_broken_edit_keeps_the_last_good_and_says_so() {
    on_every_transport(
        |options| options.config("tools = 'all'"),
        |server, client| {
            assert!(lists(client, "browser.act"));
            write(server, "tools = 'core'\n[limits]\ngrace_sm = 3\n");
            assert!(lists(client, "browser.act"), "the last good state stays");
            assert!(
                client.call("file.list", json!({"path": "."}))["result"]["isError"] != json!(true)
            );
            let fault = json!({"file": "config.toml", "line": 3, "column": 1, "message": "there is no key `grace_sm` here"});
            let expected = json!({"generation": 1, "state": "broken", "dropped": [], "restart_needed": [], "fault": fault});
            assert_eq!(about(client), expected);
            let place = format!("{}:3:1: there is no key `grace_sm` here", file(server).display());
            eventually(DEADLINE, "the log names the place", || server.log().contains(&place));
            assert_eq!(
                server.log().matches(&place).count(),
                1,
                "once, however often it was looked at: {}",
                server.log()
            );
            let reloads = server.events("config.reload");
            assert_eq!(
                (reloads.len(), &reloads[0]["outcome"]),
                (1, &json!("broken")),
                "{reloads:?}"
            );
            write(server, "tools = 'core'\n[limits]\ngrace_ms = 3\n");
            assert!(!lists(client, "browser.act"), "mended");
            assert_eq!(about(client)["state"], "ok");
            assert_eq!(server.events("config.reload")[1]["outcome"], "ok");
        },
    );
}

#[test]
fn doctor_shows_the_place_of_what_is_wrong() {
    let mut server = Options::new(Transport::Stdio).config("tools = 'all'").spawn();
    let mut client = server.connect(SESSIONS);
    write(&server, "tools = 'al'\n");
    assert_eq!(about(&mut client)["state"], "broken");
    let mut doctor = ringfence(&server.scratch);
    doctor.args(["doctor", "--root"]).arg(server.root()).arg("--config").arg(file(&server));
    let said = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    assert!(said.contains("config.toml:1:9: `al` is not a value of this key"), "{said}");
    assert!(said.contains("Did you mean `all`?"), "{said}");
    // A tool that is left out is shown in the same way.
    write(&server, "[mcp.lint]\ncommand = 'true'\ntimout_ms = 5\n");
    let left_out = about(&mut client)["dropped"].clone();
    assert_eq!(
        left_out,
        json!([{"tool": "lint", "line": 3, "message": "there is no key `timout_ms` here"}])
    );
    let mut doctor = ringfence(&server.scratch);
    doctor.args(["doctor", "--root"]).arg(server.root()).arg("--config").arg(file(&server));
    let said = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    assert!(
        said.contains(
            "config.toml:3:1: there is no key `timout_ms` here; tool `lint` was not loaded"
        ),
        "{said}"
    );
    assert!(said.contains("Did you mean `timeout_ms`?"), "{said}");
}

#[test]
fn what_counts_at_the_start_stays_and_is_named() {
    let mut server = Options::new(Transport::Http).config("limits.timeout_ms = 1000").spawn();
    let mut client = server.connect(MODERN);
    write(
        &server,
        "tools = 'all'\nlimits.message_mb = 1\nsandbox.memory_mb = 64\n[http]\nallowed_hosts = ['example.org']\n",
    );
    assert!(lists(&mut client, "browser.act"));
    let needed = about(&mut client)["restart_needed"].clone();
    let mut needed: Vec<&str> =
        needed.as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
    needed.sort_unstable();
    assert_eq!(needed, ["http.allowed_hosts", "limits.message_mb", "sandbox.memory_mb"]);
    write(&server, "tools = 'all'\nlimits.message_mb = 1\n");
    assert_eq!(about(&mut client)["restart_needed"], json!(["limits.message_mb"]));
    write(&server, "tools = 'core'\n");
    assert_eq!(about(&mut client)["restart_needed"], json!([]));
    server.wait_for_log("take effect after a restart");
}

/// What is written into one file goes together, whoever asks in the middle of an edit: every answer is of one state.
#[test]
fn no_answer_is_of_two_states() {
    let mut server = Options::new(Transport::Http).config("tools = 'core'").spawn();
    let text = |state: u32| {
        let say = format!(
            "[mcp.say]\ncommand = 'sh'\nargs = ['-c', 'echo $WORD {state}']\nenv.WORD = '{state}'\nrequires_approval = false\n"
        );
        match state % 2 {
            0 => format!("tools = 'all'\ntool_names = 'dot'\napproval.own_tools = 'always'\n{say}"),
            _ => format!(
                "tool_names = 'underscore'\ntools = 'shell'\napproval.own_tools = 'auto'\n{say}"
            ),
        }
    };
    replace(&server, &text(0));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut clients: Vec<Client> =
        (0..3).map(|at| server.connect([SESSIONS, MODERN][at % 2])).collect();
    std::thread::scope(|scope| {
        let looking: Vec<_> = clients
            .drain(..)
            .map(|mut client| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut answers = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let list =
                            client.request("tools/list", json!({}))["result"]["tools"].clone();
                        let tools = list.as_array().unwrap();
                        let first = tools[0]["_meta"]["dev.ringfence/requires_approval"].as_bool();
                        let one =
                            (tools.len() == 2, tools[0]["name"] == "shell", first == Some(false));
                        assert!(
                            one == (true, true, true) || one == (false, false, false),
                            "{one:?} of {list}"
                        );
                        let answer = client.call("say", json!({}));
                        let words: Vec<&str> = said(&answer).split_whitespace().collect();
                        assert!(words.len() == 2 && words[0] == words[1], "{words:?}");
                        answers += 2;
                    }
                    answers
                })
            })
            .collect();
        // Times between edits as they come: some fall together, some between two looks.
        let mut dice: u32 = 7;
        for state in 1..=200 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if dice >> 31 == 0 {
                write(&server, &text(state))
            } else {
                replace(&server, &text(state))
            }
            std::thread::sleep(std::time::Duration::from_millis(u64::from(dice >> 25)));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let answers: u32 = looking.into_iter().map(|one| one.join().unwrap()).sum();
        println!("{answers} answers in 200 edits, {} states", server.events("config.reload").len());
        assert!(answers > 20);
    });
    let mut client = server.connect(SESSIONS);
    assert!(lists(&mut client, "browser.act"), "the last edit counts");
    assert_eq!(said(&client.call("say", json!({}))), "200 200\n");
    assert_eq!(about(&mut client)["state"], "ok");
    assert!(!server.log().contains("broken"), "{}", server.log());
}

/// The gate is a key like others.
#[test]
fn the_surface_goes_and_comes_back() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.config("tools = 'core'"),
            |server, client| {
                listen(client);
                write(server, "enable_mcp_server_surface = false");
                client.wait_notification(CHANGED);
                assert_eq!(listed(client), ["codex", "codex-reply"]);
                write(server, "enable_mcp_server_surface = true");
                client.wait_notification(CHANGED);
                assert!(lists(client, "file.read"));
            },
        );
    }
}

/// An entry that says its word, after it has waited for a file where it is told to.
fn entry(word: &str, more: &str) -> String {
    let script =
        format!("while [ -n \"$1\" ] && [ ! -e \"$1\" ]; do sleep 0.01; done; echo {word}");
    format!(
        "[mcp.say]\ncommand = 'sh'\nargs = ['-c', '{script}', 'say', '{{until}}']\nrequires_approval = false\n\
         description = 'Says {word}.'\n{more}\n[mcp.say.input_schema]\ntype = 'object'\n\
         properties.until.type = 'string'\nproperties.until.default = ''\n"
    )
}

fn said(message: &Value) -> &str {
    message["result"]["structuredContent"]["stdout"]
        .as_str()
        .unwrap_or_else(|| panic!("{message:#}"))
}

#[test]
fn an_entry_is_added_changed_and_removed() {
    on_every_transport(
        |options| options.config("tools = 'core'"),
        |server, client| {
            assert!(!lists(client, "say"));
            write(server, &entry("one", ""));
            assert_eq!(said(&client.call("say", json!({}))), "one\n");
            replace(server, &entry("two", ""));
            assert_eq!(said(&client.call("say", json!({}))), "two\n");
            write(server, "[surface]\ndeny = ['file.*']\n");
            assert!(!lists(client, "say") && !lists(client, "file.read"));
            let answer = client.call("say", json!({}));
            assert_eq!(answer["error"]["data"]["kind"], "unknown_tool", "{answer}");
            let made = server.events("config.reload");
            let names = |at: usize, what: &str| made[at][what].clone();
            assert_eq!(names(0, "added"), json!(["say"]), "{made:?}");
            assert_eq!(names(1, "changed"), json!(["say"]), "{made:?}");
            assert!(names(2, "removed").as_array().unwrap().contains(&json!("say")), "{made:?}");
        },
    );
}

#[test]
fn a_running_call_ends_as_it_began_and_a_new_one_is_new() {
    on_cells_at_once(
        eras(),
        |options| options.config(&entry("old", "")),
        |server, client| {
            let arguments = json!({"until": "go"});
            let id = client.start_call("say", &arguments);
            eventually(DEADLINE, "the first call runs", || server.events("call.start").len() == 1);
            replace(server, &entry("new", ""));
            assert_eq!(said(&client.call("say", json!({}))), "new\n");
            std::fs::write(server.workspace().join("go"), "").unwrap();
            assert_eq!(said(&client.finish(id, "say", &arguments)), "old\n");
        },
    );
}

#[test]
fn trust_dies_with_the_definition_that_it_was_given_to() {
    for cell in eras() {
        let asking = |word: &str| entry(word, "side_effects = ['filesystem_write']");
        on_cell(
            cell,
            |options| options.config(&asking("one")),
            |server, client| {
                client.approve = Approve::Session;
                let asked = |client: &mut Client, word: &str| {
                    let before = client.questions.len();
                    assert_eq!(said(&client.call("say", json!({}))), format!("{word}\n"));
                    client.questions.len() - before
                };
                assert_eq!(asked(client, "one"), 1);
                assert_eq!(asked(client, "one"), 0, "the session trusts it");
                // Something else changes: it is still what was trusted.
                write(server, &format!("limits.grace_ms = 900\n{}", asking("one")));
                assert_eq!(asked(client, "one"), 0);
                write(server, &asking("two"));
                assert_eq!(asked(client, "two"), 1, "another definition");
                // The one that was trusted first comes back, and is a new one.
                write(server, &asking("one"));
                assert_eq!(asked(client, "one"), 1, "the first definition again");
                write(server, "limits.grace_ms = 900\n");
                assert!(!lists(client, "say"));
                write(server, &asking("one"));
                assert_eq!(asked(client, "one"), 1, "gone in between");
                assert_eq!(asked(client, "one"), 0);
            },
        );
    }
}

#[test]
fn one_bad_entry_is_left_out_and_told() {
    let mut server = Options::new(Transport::Stdio).config(&entry("one", "")).spawn();
    let mut client = server.connect(SESSIONS);
    write(
        &server,
        &format!("{}[mcp.other]\ncommand = 'true'\nstreming = true\n", entry("one", "")),
    );
    assert!(lists(&mut client, "say") && !lists(&mut client, "other"));
    let row = json!([{"tool": "other", "line": 13, "message": "there is no key `streming` here"}]);
    let about_it = about(&mut client);
    assert_eq!((&about_it["state"], &about_it["dropped"]), (&json!("ok"), &row), "{about_it}");
    let place = format!("{}:13:1: there is no key `streming` here", file(&server).display());
    eventually(DEADLINE, "the log names the place", || server.log().contains(&place));
    assert_eq!(server.events("config.reload")[0]["dropped"], json!(["other"]));
}

#[test]
fn requests_that_come_together_make_one_reload() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.config("tools = 'core'"),
            |server, client| {
                write(server, "tools = 'all'");
                let ids: Vec<String> =
                    (0..20).map(|_| client.start("tools/list", json!({}))).collect();
                for id in ids {
                    let answer = client.wait(&id);
                    let tools = answer["result"]["tools"].as_array().unwrap();
                    assert!(tools.iter().any(|tool| tool["name"] == "browser.act"), "{answer}");
                }
                assert_eq!(about(client)["generation"], 2);
                assert_eq!(server.events("config.reload").len(), 1);
            },
        );
    }
}

/// The kernel gives no watches to whoever has used up the user's share.
#[test]
fn without_a_watcher_every_request_still_looks() {
    let scratch = Scratch::new();
    let program = scratch.path().join("unwatched");
    let script = "#!/bin/sh\nexec unshare --user --map-root-user sh -c \\\n\
        'echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\"' ";
    std::fs::write(&program, format!("{script}'{}' \"$@\"\n", binary().display())).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let options =
        Options::new(Transport::Stdio).config("tools = 'core'").on(&scratch).through(program);
    let mut server = options.spawn();
    let mut client = server.connect(SESSIONS);
    eventually(DEADLINE, "it is told", || {
        server.log().contains("cannot watch the config; changes take effect with the next call")
    });
    write(&server, "tools = 'all'");
    assert!(lists(&mut client, "browser.act"));
    client.wait_notification(CHANGED);
}

/// Rules are looked at by every call; what is wrong with new ones is in the log before the first.
#[test]
fn broken_rules_are_told_when_they_are_written() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    assert!(lists(&mut client, "shell.exec"));
    let folder = server.scratch.path().join("home/.codex/rules");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("mine.rules"), "prefix_rule(pattern=[)\n").unwrap();
    eventually(DEADLINE, "the log names the file", || server.log().contains("mine.rules:1"));
    client.drain();
    assert!(client.notifications.is_empty(), "{:?}", client.notifications);
}

/// Between being emptied and being written a file says nothing, least of all that everything is as usual.
#[test]
fn an_emptied_file_is_waited_for() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.config("tools = 'all'"),
            |server, client| {
                let mut open = std::fs::File::create(file(server)).unwrap();
                let id = client.start("tools/list", json!({}));
                // As slow writers are; a request in between has no answer yet.
                std::thread::sleep(std::time::Duration::from_millis(100));
                open.write_all(b"tools = 'shell'").unwrap();
                drop(open);
                let answer = client.wait(&id);
                let tools = answer["result"]["tools"].as_array().unwrap();
                assert!(tools.len() == 1 && tools[0]["name"] == "shell", "{answer}");
                assert_eq!(about(client)["generation"], 2, "nothing was loaded in between");
            },
        );
    }
}
