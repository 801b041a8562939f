//! Packages for npm.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Place, look, refused, said};
use crate::support::place::visible_folder;
use crate::support::server::Scratch;
use crate::support::subset::assert_holds;
use crate::support::{Client, SESSIONS, Server};

const SERVER: &str = include_str!("server.js");

fn publish(place: &Place, version: &str, manifest: Value) {
    let mut whole = json!({"bin": {"tiny": "server.js"}});
    for (key, value) in manifest.as_object().unwrap() {
        whole[key] = value.clone();
    }
    place.registry.publish_npm("tiny", version, whole, &[("server.js", SERVER)]);
}

/// A place with an installed and accepted server.
fn installed(args: &[&str]) -> Place {
    installed_on(Scratch::new(), args)
}

fn installed_on(scratch: Arc<Scratch>, args: &[&str]) -> Place {
    let place = Place::on(scratch, "npx", args);
    publish(&place, "1.0.0", json!({}));
    place.install(&[]);
    place.accept();
    place
}

fn connect(place: &Place) -> (Server, Client) {
    let mut server = place.serve();
    let client = server.connect(SESSIONS);
    (server, client)
}

#[test]
fn an_installed_server_starts_from_its_tree_and_cannot_change_it() {
    // The root is in a directory that each sandbox has for itself, or in one that it must hide.
    for scratch in [Scratch::new(), Scratch::within(visible_folder())] {
        start_from_tree(&installed_on(scratch, &["-y", "tiny@1.0.0", "--flag", "value"]));
    }
}

fn start_from_tree(place: &Place) {
    let requests = place.registry.request_count();
    assert_holds(
        json!({"tiny": {
            "runner": "npx", "requested": ["tiny@1.0.0"], "version": "1.0.0",
            "integrity": "~sha512-", "tree": "~sha256:",
        }}),
        &place.lock()["packages"],
    );
    let (_server, mut client) = connect(place);
    let seen = look(&mut client, json!({"path": place.path("root/audit/key")}));
    assert_eq!(seen["argv"], json!(["--flag", "value"]));
    assert_eq!(seen["env"]["npm_config_offline"], "true");
    assert_eq!((&seen["own"], &seen["beside"]), (&json!("EROFS"), &json!("EROFS")));
    assert_ne!(seen["reads"], "done", "the rest of the root stays hidden");
    let listed = look(&mut client, json!({"path": place.tree().join("package-lock.json")}));
    assert_eq!(listed["reads"], "done");
    let home = seen["env"]["HOME"].as_str().unwrap();
    assert!(home.starts_with(place.path("root/homes").to_str().unwrap()), "{home}");
    assert_eq!(place.registry.request_count(), requests, "only `install` may download");
    assert_holds(
        json!([{"upstream": "tiny", "outcome": "ok", "version": "1.0.0", "scripts": false,
            "registry": format!("127.0.0.1:{}", place.registry.port)}]),
        &json!(place.installs()),
    );
}

#[test]
fn a_tree_that_was_changed_is_refused_until_it_is_installed_again() {
    let place = installed(&["tiny"]);
    let (server, mut client) = connect(&place);
    look(&mut client, json!({}));
    drop((client, server));
    let (_server, mut client) = connect(&place);
    let file = place.tree().join("node_modules/tiny/server.js");
    std::fs::write(&file, SERVER.replace("no such method", "changed")).unwrap();
    for _ in 0..2 {
        assert_holds(
            json!({
                "kind": "permission_denied", "reason": "package_changed",
                "hint": "~ringfence upstream install tiny",
            }),
            &refused(&mut client),
        );
    }
    let output = place.upstream(&["diff", "tiny"]);
    assert!(!output.status.success(), "{}", said(&output));
    place.install(&[]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), SERVER);
    let (_server, mut client) = connect(&place);
    look(&mut client, json!({}));
}

#[test]
fn a_trusted_server_is_listed_once_it_is_installed() {
    let place = Place::new("npx", &["tiny"]);
    publish(&place, "1.0.0", json!({}));
    place.install(&[]);
    let (_server, mut client) = connect(&place);
    let names = |client: &mut Client| client.request("tools/list", json!({})).to_string();
    while !names(&mut client).contains("tiny__look") {
        client.wait_notification("notifications/tools/list_changed");
    }
    look(&mut client, json!({}));
}

#[test]
fn an_install_script_runs_only_when_it_is_asked_for() {
    let place = Place::new("npx", &["tiny"]);
    publish(&place, "1.0.0", json!({"scripts": {"install": "echo done > ran"}}));
    place.install(&[]);
    let ran = |place: &Place| place.tree().join("node_modules/tiny/ran").exists();
    assert!(!ran(&place));
    place.install(&["--scripts"]);
    assert!(ran(&place));
}

#[test]
fn an_install_script_cannot_leave_its_directory_or_reach_another_host() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let port = other.local_addr().unwrap().port();
    let scratch = Scratch::within(visible_folder());
    let (workspace, home) = (scratch.path().join("workspace"), scratch.path().join("home"));
    std::fs::create_dir_all(home.join(".ssh")).unwrap();
    std::fs::write(home.join(".ssh/id_ed25519"), "the key").unwrap();
    std::fs::write(workspace.join("plain"), "text").unwrap();
    let connects = |way: &str| {
        format!(
            "node -e \"require('http').get({way}).on('response', () => {{}}).on('error', () => process.exit(1))\""
        )
    };
    let through = "{port: process.env.HTTP_PROXY.split(':')[2], path: 'http://127.0.0.1:PORT/'}";
    for script in [
        format!("echo x > {}", workspace.join("new").display()),
        format!("echo x > {}", home.join("new").display()),
        format!("echo x > {}", scratch.path().join("root/new").display()),
        format!("cat {}", workspace.join("plain").display()),
        format!("cat {}", home.join(".ssh/id_ed25519").display()),
        connects(&format!("'http://127.0.0.1:{port}/'")),
    ] {
        let place = Place::on(scratch.clone(), "npx", &["tiny"]);
        publish(&place, "1.0.0", json!({"scripts": {"install": script}}));
        let text = place.fail_to_install(&["--scripts"]);
        assert!(!text.contains("the key"), "{text}");
        place.assert_nothing();
    }
    // The proxy answers with a refusal, which is on record.
    let place = Place::on(scratch.clone(), "npx", &["tiny"]);
    let script = connects(&through.replace("PORT", &port.to_string()));
    publish(&place, "1.0.0", json!({"scripts": {"install": format!("{script}; exit 1")}}));
    let text = place.fail_to_install(&["--scripts"]);
    assert!(text.contains(&format!("127.0.0.1:{port} (")), "{text}");
    assert!(other.accept().is_err(), "it has reached another host");
    assert!(!workspace.join("new").exists() && !home.join("new").exists());
    assert_holds(json!([{"outcome": "failed", "scripts": true}]), &json!(place.installs()));
}

#[test]
fn a_failed_download_leaves_nothing_and_keeps_what_is_installed() {
    let place = Place::new("npx", &["tiny"]);
    place.fail_to_install(&[]);
    place.assert_nothing();
    publish(&place, "1.0.0", json!({}));
    place.registry.put("/tiny/-/tiny-1.0.0.tgz", "application/octet-stream", b"other".to_vec());
    let text = place.fail_to_install(&[]);
    assert!(text.contains("EINTEGRITY"), "{text}");
    place.assert_nothing();
    publish(&place, "1.0.0", json!({}));
    place.install(&[]);
    let lock = place.lock();
    place.registry.put("/tiny", "application/json", b"{}".to_vec());
    place.fail_to_install(&[]);
    assert_eq!(place.lock(), lock);
    place.accept();
    let (_server, mut client) = connect(&place);
    look(&mut client, json!({}));
}

#[test]
fn a_package_must_say_which_program_it_has() {
    let place = Place::new("npx", &["tiny"]);
    publish(&place, "1.0.0", json!({"bin": {"one": "server.js", "two": "./server.js"}}));
    let text = place.fail_to_install(&[]);
    assert!(text.contains("one, two") && text.contains("-p tiny PROGRAM"), "{text}");
    place.assert_nothing();
    place.configure("npx", &["-p", "tiny", "two", "x"]);
    place.install(&[]);
    assert_eq!(place.packages().len(), 1, "what no server uses is removed");
    place.accept();
    let (_server, mut client) = connect(&place);
    assert_eq!(look(&mut client, json!({}))["argv"], json!(["x"]));
}

#[test]
fn other_arguments_are_another_installation() {
    let place = installed(&["tiny", "a"]);
    let first = place.tree();
    place.configure("npx", &["tiny", "b"]);
    let output = place.upstream(&["diff", "tiny"]);
    assert!(said(&output).contains("upstream install tiny"), "{}", said(&output));
    place.install(&[]);
    assert_ne!(place.tree(), first);
    assert!(!first.exists());
    let (_server, mut client) = connect(&place);
    assert_eq!(look(&mut client, json!({}))["argv"], json!(["b"]));
}

#[test]
fn a_running_server_takes_a_new_version_over() {
    let place = installed(&["tiny"]);
    let (_server, mut client) = connect(&place);
    look(&mut client, json!({}));
    let changed = SERVER.replace("argv: process.argv.slice(2)", "argv: 'newer'");
    place.registry.publish_npm(
        "tiny",
        "1.1.0",
        json!({"bin": "server.js"}),
        &[("server.js", &changed)],
    );
    let text = place.install(&[]);
    assert!(text.contains("1.0.0") && text.contains("1.1.0"), "{text}");
    crate::support::eventually(crate::support::DEADLINE, "the new version runs", || {
        look(&mut client, json!({}))["argv"] == "newer"
    });
}

#[test]
fn a_package_manager_in_the_workspace_is_not_used() {
    let place = Place::new("npx", &[]);
    publish(&place, "1.0.0", json!({}));
    let folder = place.path("workspace/bin");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["npx", "npm", "node"] {
        let program = folder.join(name);
        std::fs::write(&program, "#!/bin/sh\nexit 7\n").unwrap();
        std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
    }
    place.configure(folder.join("npx").to_str().unwrap(), &["tiny"]);
    place.install(&[]);
    place.accept();
    let (_server, mut client) = connect(&place);
    look(&mut client, json!({}));
}

#[test]
fn servers_with_the_same_command_share_an_installation() {
    let place = installed(&["tiny"]);
    let file = place.path("upstreams/upstreams.json");
    let mut upstreams: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    upstreams["servers"]["twin"] = upstreams["servers"]["tiny"].clone();
    std::fs::write(&file, upstreams.to_string()).unwrap();
    let text = place.install(&[]);
    assert!(text.contains("for tiny, twin;"), "{text}");
    let packages = &place.lock()["packages"];
    assert!(packages["tiny"].is_object() && packages["tiny"] == packages["twin"], "{packages}");
    let changes = said(&place.upstream(&["diff", "twin"]));
    assert!(changes.contains("new server `twin`"), "{changes}");
}

#[test]
fn a_version_that_the_registry_has_replaced_is_reported() {
    let place = installed(&["tiny"]);
    let changed = SERVER.replace("no such method", "changed");
    place.registry.publish_npm(
        "tiny",
        "1.0.0",
        json!({"bin": "server.js"}),
        &[("server.js", &changed)],
    );
    assert!(place.install(&[]).contains("WARNING"));
    assert!(!place.install(&[]).contains("WARNING"));
}

/// Upstreams files that share a root do not share what is installed.
#[test]
fn an_installation_leaves_that_of_another_upstreams_file_alone() {
    let place = installed(&["tiny"]);
    let others = place.path("others");
    std::fs::create_dir(&others).unwrap();
    let file = place.path("upstreams/upstreams.json");
    let text = std::fs::read_to_string(&file).unwrap();
    // The same command with another version, and another command.
    for (name, text) in
        [("same", text.clone()), ("other", text.replace("[\"tiny\"]", "[\"tiny@1.1.0\"]"))]
    {
        publish(&place, "1.1.0", json!({"name": "tiny"}));
        let folder = others.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("upstreams.json"), text).unwrap();
        let output =
            place.upstream_of(&folder.join("upstreams.json"), &["install", "tiny", "--yes"]);
        assert!(output.status.success(), "{}", said(&output));
        let (_server, mut client) = connect(&place);
        look(&mut client, json!({}));
    }
    assert_eq!(place.packages().len(), 3);
    // The same file by another path is the same file.
    let by_another_path = place.path("upstreams/../upstreams/upstreams.json");
    let output = place.upstream_of(&by_another_path, &["diff", "tiny"]);
    assert!(said(&output).contains("exactly what is accepted"), "{}", said(&output));
}
