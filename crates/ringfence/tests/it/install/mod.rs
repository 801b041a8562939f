//! Servers of package runners: installed from a registry on the loopback, and started from what was installed.

mod npm;
mod python;
mod registry;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::server::{Scratch, audit, ringfence};
use crate::support::subset::assert_holds;
use crate::support::{Client, Options, SESSIONS, Server, Transport};
use registry::Registry;

/// A refusal at once takes less; `npx` itself would wait for a minute.
const AT_ONCE: Duration = Duration::from_secs(5);

/// One server `tiny`, whose command is a package runner.
struct Place {
    scratch: Arc<Scratch>,
    registry: Registry,
}

impl Place {
    fn new(command: &str, args: &[&str]) -> Place {
        Place::on(Scratch::new(), command, args)
    }

    fn on(scratch: Arc<Scratch>, command: &str, args: &[&str]) -> Place {
        let place = Place { scratch, registry: Registry::start() };
        place.configure(command, args);
        place
    }

    fn configure(&self, command: &str, args: &[&str]) {
        std::fs::create_dir_all(self.path("upstreams")).unwrap();
        let transport = json!({"type": "stdio", "command": command, "args": args});
        let text = json!({
            "servers": {"tiny": {"trust": "trusted", "transport": transport}},
            "bundles": {"all": {"serverId": "tiny", "mode": "direct"}},
        });
        std::fs::write(self.path("upstreams/upstreams.json"), text.to_string()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Runs `ringfence upstream …` on this place.
    fn upstream(&self, args: &[&str]) -> Output {
        self.upstream_of(&self.path("upstreams/upstreams.json"), args)
    }

    /// The same with another upstreams file.
    fn upstream_of(&self, file: &Path, args: &[&str]) -> Output {
        let mut command = ringfence(&self.scratch);
        command.arg("upstream").args(args).arg("--root").arg(self.path("root"));
        command.arg("--workspace").arg(self.path("workspace"));
        command.arg("--upstreams").arg(file);
        command.env("npm_config_registry", self.registry.url());
        command.env("PIP_INDEX_URL", format!("{}simple/", self.registry.url()));
        command.output().unwrap()
    }

    #[track_caller]
    fn install(&self, args: &[&str]) -> String {
        let output = self.upstream(&[&["install", "tiny", "--yes"], args].concat());
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        text
    }

    #[track_caller]
    fn fail_to_install(&self, args: &[&str]) -> String {
        let output = self.upstream(&[&["install", "tiny", "--yes"], args].concat());
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        text
    }

    fn accept(&self) {
        let output = self.upstream(&["accept", "tiny", "--yes"]);
        assert!(output.status.success(), "{}", said(&output));
    }

    fn serve(&self) -> Server {
        let file = self.path("upstreams/upstreams.json");
        let options = Options::new(Transport::Stdio).on(&self.scratch);
        options.config("tools = 'core'").args(&["--upstreams", file.to_str().unwrap()]).spawn()
    }

    fn lock(&self) -> Value {
        let text = std::fs::read_to_string(self.path("upstreams/mcp.lock")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Directories of packages.
    fn packages(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("root/upstreams/packages")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    fn tree(&self) -> PathBuf {
        let packages = self.packages();
        assert_eq!(packages.len(), 1, "{packages:?}");
        packages[0].join("tree")
    }

    fn installs(&self) -> Vec<Value> {
        let records = audit(&self.scratch).into_iter();
        records.filter(|record| record["event"] == "upstream.install").collect()
    }

    /// Asserts that nothing was left by a failed installation.
    #[track_caller]
    fn assert_nothing(&self) {
        assert_eq!(self.lock()["packages"], Value::Null);
        for package in self.packages() {
            assert!(!package.join("tree").exists());
            assert!(left_in(&package.join("new")).is_empty(), "{package:?}");
        }
    }
}

fn left_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// What the server reports about itself.
#[track_caller]
fn look(client: &mut Client, arguments: Value) -> Value {
    let message = client.call("tiny__look", arguments);
    let result = &message["result"];
    assert_eq!(result["isError"], false, "{message:#}");
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

#[track_caller]
fn refused(client: &mut Client) -> Value {
    let message = client.call("tiny__look", json!({}));
    assert_eq!(message["result"]["isError"], true, "{message:#}");
    message["result"]["_meta"]["dev.ringfence/error"].clone()
}

#[test]
fn what_is_not_installed_is_unavailable_at_once() {
    let place = Place::new("npx", &["-y", "tiny@1.0.0", "--port", "1"]);
    place.registry.publish_npm("tiny", "1.0.0", json!({"bin": "server.js"}), &[("server.js", "")]);
    let tools = json!({"look": {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}});
    let locked =
        json!({"version": 1, "servers": {"tiny": {"identity": {"name": "tiny"}, "tools": tools}}});
    std::fs::write(place.path("upstreams/mcp.lock"), locked.to_string()).unwrap();
    let mut server = place.serve();
    let mut client = server.connect(SESSIONS);
    let start = Instant::now();
    let hint = "~ringfence upstream install tiny";
    assert_holds(
        json!({"kind": "unavailable", "reason": "not_installed", "hint": hint}),
        &refused(&mut client),
    );
    for args in [&["diff", "tiny"][..], &["accept", "tiny", "--yes"]] {
        let output = place.upstream(args);
        assert!(
            !output.status.success() && said(&output).contains(&hint[1..]),
            "{}",
            said(&output)
        );
    }
    for args in [&["list"][..], &["list", "--connect"]] {
        assert!(said(&place.upstream(args)).contains(&hint[1..]));
    }
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!(place.registry.request_count(), 0, "only `install` may download");
}

#[test]
fn a_command_that_is_not_understood_is_refused_with_advice() {
    for args in [&["-c", "tiny"][..], &["github:some/tiny"], &["--registry", "http://x", "tiny"]] {
        let place = Place::new("npx", args);
        let text = place.fail_to_install(&[]);
        assert!(text.contains("by hand") && text.contains("`command`"), "{text}");
        assert!(said(&place.upstream(&["diff", "tiny"])).contains("by hand"));
        assert_eq!(place.registry.request_count(), 0);
    }
}

#[test]
fn nothing_is_installed_without_a_yes() {
    let place = Place::new("npx", &["tiny"]);
    place.registry.publish_npm("tiny", "1.0.0", json!({"bin": "server.js"}), &[("server.js", "")]);
    let output = place.upstream(&["install", "tiny"]);
    assert!(!output.status.success() && said(&output).contains("--yes"), "{}", said(&output));
    assert_eq!(place.registry.request_count(), 0);
    place.assert_nothing();
}
