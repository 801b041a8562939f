//! What `packaging/` says about itself, as far as it can be tried quickly; `make install-check` installs the packages.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::process::parent;
use crate::support::server::{Scratch, binary, ringfence};
use crate::support::{DEADLINE, Options, SESSIONS, Transport, eventually};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(packaging().join(name))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn read_json(name: &str) -> Value {
    serde_json::from_str(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The launcher as npm installs it, with the binary under test as its native package.
struct Installed {
    scratch: Arc<Scratch>,
    launcher: PathBuf,
    native: PathBuf,
}

impl Installed {
    fn new() -> Installed {
        let scratch = Scratch::new();
        let modules = scratch.path().join("node_modules");
        let native = modules.join("@ringfence/linux-x64");
        std::fs::create_dir_all(modules.join("ringfence/bin")).unwrap();
        std::fs::create_dir_all(native.join("bin")).unwrap();
        for file in ["package.json", "bin/ringfence.js", "bin/native.js"] {
            let from = packaging().join("npm/ringfence").join(file);
            std::fs::copy(from, modules.join("ringfence").join(file)).unwrap();
        }
        let manifest = packaging().join("npm/linux-x64/package.json");
        std::fs::copy(manifest, native.join("package.json")).unwrap();
        symlink(binary(), native.join("bin/ringfence")).unwrap();
        Installed { scratch, launcher: modules.join("ringfence/bin/ringfence.js"), native }
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(&self.launcher).args(args).output().expect("node is installed")
    }

    fn serve(&self) -> Options {
        Options::new(Transport::Stdio).on(&self.scratch).through(self.launcher.clone())
    }
}

#[test]
fn the_launcher_is_invisible_to_a_client() {
    let installed = Installed::new();
    let mut server = installed.serve().spawn();
    let mut client = server.connect(SESSIONS);
    let message = client.call("shell.exec", json!({"command": "cat; echo in; echo out >&2"}));
    let result = &message["result"]["structuredContent"];
    assert_eq!(result["stdout"], "in\n", "{message}");
    client.hang_up();
    assert!(server.ended().success(), "the end of input ends both");
}

#[test]
fn the_launcher_ends_as_its_child_does() {
    let installed = Installed::new();
    let version = installed.run(&["--version"]);
    assert_eq!(version.stdout, format!("ringfence {VERSION}\n").as_bytes());
    assert_eq!(installed.run(&["no-such-command"]).status.code(), Some(2));
    let in_sandbox = installed.run(&["sandbox", "--", "sh", "-c", "exit 7"]);
    assert_eq!(in_sandbox.status.code(), Some(7));

    let mut server = installed.serve().spawn();
    // Held, because its end would be the end of the server.
    let _client = server.connect(SESSIONS);
    let native = find_child(server.pid());
    kill_process(Pid::from_raw(native as i32).unwrap(), Signal::KILL).unwrap();
    assert_eq!(server.ended().signal(), Some(9), "as the child was killed");
}

#[test]
fn the_launcher_passes_signals_on() {
    for signal in [Signal::TERM, Signal::INT] {
        let installed = Installed::new();
        let mut server = installed.serve().spawn();
        let _client = server.connect(SESSIONS);
        let native = find_child(server.pid());
        server.signal(signal);
        let through = server.ended();
        eventually(DEADLINE, "the server ends with its launcher", || {
            !Path::new(&format!("/proc/{native}")).exists()
        });

        let mut direct = Options::new(Transport::Stdio).spawn();
        let _other = direct.connect(SESSIONS);
        direct.signal(signal);
        assert_eq!(through, direct.ended());
    }
}

fn find_child(pid: u32) -> u32 {
    let entries = std::fs::read_dir("/proc").unwrap();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pids = names.filter_map(|name| name.parse::<u32>().ok());
    pids.find(|child| parent(*child) == pid).expect("a child")
}

#[test]
fn the_launcher_says_why_it_has_no_binary() {
    let installed = Installed::new();
    std::fs::remove_dir_all(&installed.native).unwrap();
    let output = installed.run(&["--version"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert!(said.contains("@ringfence/linux-x64") && said.contains("--include=optional"), "{said}");
}

#[test]
fn the_launcher_chooses_by_platform_and_names_what_is_not_supported() {
    let script = r#"
        const { choosePackage } = require(process.argv[1]);
        const hosts = JSON.parse(process.argv[2]);
        console.log(JSON.stringify(hosts.map(([platform, arch, hasLoader]) =>
            choosePackage({ platform, arch }, () => hasLoader))));
    "#;
    let hosts = json!([
        ["linux", "x64", true],
        ["linux", "x64", false],
        ["linux", "arm64", true],
        ["darwin", "arm64", false],
        ["win32", "x64", false],
        ["freebsd", "x64", false],
    ]);
    let module = packaging().join("npm/ringfence/bin/native.js");
    let mut node = Command::new("node");
    let output = node.args(["-e", script]).arg(module).arg(hosts.to_string()).output().unwrap();
    let choices: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(choices[0], json!({"name": "@ringfence/linux-x64"}));
    let reasons = ["glibc", "arm64", "macOS has no sandbox", "Windows has no sandbox", "freebsd"];
    for (at, reason) in (1..).zip(reasons) {
        let choice = &choices[at];
        assert!(choice["message"].as_str().unwrap().contains(reason), "{choice}");
        assert!(choice["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{choice}");
        assert_eq!(choice["name"], Value::Null);
    }
}

/// The second link of the binary must have the inputs of the first, which rustc deletes after it.
#[test]
fn the_linker_keeps_its_command_line_and_its_inputs() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name);
    let (linker, object, output) = (path("linker"), path("main.o"), path("result"));
    std::fs::write(&object, "first").unwrap();
    std::fs::write(&output, "of an earlier link").unwrap();
    // As `zig cc --verbose`: the command line of its own linker, among other lines.
    let script = "#!/bin/sh\necho reading >&2\necho \"ld.lld -pie -o $3 $1 -lc\" >&2\n[ \"$4\" = --verbose ]\n";
    std::fs::write(&linker, script).unwrap();
    std::fs::set_permissions(&linker, PermissionsExt::from_mode(0o755)).unwrap();
    let link = |linker: &Path| {
        let mut command = Command::new(packaging().join("keep-link.sh"));
        command.args([&object, Path::new("-o"), &output]).env("KEPT_LINK", path("kept"));
        command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", linker).output().unwrap()
    };
    let linked = link(&linker);
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    std::fs::remove_file(&object).unwrap();
    let words = std::fs::read_to_string(path("kept/words")).unwrap();
    let kept = path("kept/inputs/1-main.o");
    let expected = ["-pie", "-o", output.to_str().unwrap(), kept.to_str().unwrap(), "-lc"];
    assert_eq!(words.lines().collect::<Vec<_>>(), expected);
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "first");

    let silent = link(Path::new("/bin/true"));
    assert!(!silent.status.success(), "a linker that does not say how it links");
    assert!(!path("kept/words").exists(), "nothing of an earlier link is left");
}

/// Without them a release would start as slowly as one that is linked once, and nothing would say so.
#[test]
fn the_order_of_functions_needs_its_tools() {
    let mut order = Command::new("/usr/bin/python3");
    order.arg(packaging().join("order.py")).arg("--check").env("PATH", "/nonexistent");
    let output = order.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("install Debian's package valgrind"), "{said}");
}

#[test]
fn every_package_has_the_version_and_the_name_of_the_project() {
    let main = read_json("npm/ringfence/package.json");
    let native = read_json("npm/linux-x64/package.json");
    let server = read_json("server.json");
    for manifest in [&main, &native, &server] {
        assert_eq!(manifest["version"], VERSION, "{}", manifest["name"]);
    }
    // An exact version: a launcher never starts another release.
    let native_name = native["name"].as_str().unwrap();
    assert_eq!(main["optionalDependencies"], json!({native_name: VERSION}));
    assert!(read("npm/ringfence/bin/native.js").contains(native_name));
    assert_eq!(
        [&native["os"], &native["cpu"], &native["libc"]],
        [&json!(["linux"]), &json!(["x64"]), &json!(["glibc"])]
    );

    // The registry of MCP servers looks for its name in the packages, to see who owns them.
    assert_eq!(main["mcpName"], server["name"]);
    let label = format!("server.name={}", server["name"]);
    assert!(read("container/Containerfile").contains(&label));
    assert!(server["description"].as_str().unwrap().len() <= 100, "the registry's limit");
    let packages = server["packages"].as_array().unwrap();
    let kinds: Vec<&Value> = packages.iter().map(|package| &package["registryType"]).collect();
    assert_eq!(kinds, ["npm", "pypi"]);
    for package in packages {
        assert_eq!((&package["version"], &package["identifier"]), (&json!(VERSION), &main["name"]));
        assert_eq!(package["packageArguments"][0]["value"], "serve");
    }
}

#[test]
fn the_wheel_is_what_installers_expect() {
    let scratch = Scratch::new();
    let build = |folder: &str| {
        let folder = scratch.path().join(folder);
        std::fs::create_dir(&folder).unwrap();
        let mut python = Command::new("python3");
        python.arg(packaging().join("wheel.py")).args(["/bin/true".as_ref(), folder.as_os_str()]);
        python.arg(VERSION).env("SOURCE_DATE_EPOCH", "1700000000");
        let output = python.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
    };
    let (wheel, again) = (build("first"), build("second"));
    assert!(std::fs::read(&wheel).unwrap() == std::fs::read(again).unwrap(), "not reproducible");
    assert_eq!(
        wheel.file_name().unwrap().to_str().unwrap(),
        format!("ringfence-{VERSION}-py3-none-manylinux_2_17_x86_64.whl")
    );

    let environment = scratch.path().join("venv");
    let run = |program: PathBuf, args: &[&str]| {
        let output = Command::new(program).args(args).env_remove("PYTHONPATH").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run("python3".into(), &["-m", "venv", environment.to_str().unwrap()]);
    let install = [
        "install",
        "--quiet",
        "--no-index",
        "--disable-pip-version-check",
        wheel.to_str().unwrap(),
    ];
    run(environment.join("bin/pip"), &install);
    run(environment.join("bin/ringfence"), &[]);
}

/// The files of the service: its config is accepted as it is, and so is the unit where systemd is installed.
#[test]
fn the_files_of_the_service_are_valid() {
    let scratch = Scratch::new();
    let config = packaging().join("deb/config.toml");
    let mut check = ringfence(&scratch);
    // The config alone must not be enough to start: the key is the administrator's.
    let without_key = ringfence(&scratch).args(["config", "check"]).arg(&config).output().unwrap();
    assert_eq!(without_key.status.code(), Some(64));
    check.env("MCP_AUTH_JWT_SECRET", "a secret of the administrator");
    let output = check.args(["config", "check", "--strict"]).arg(config).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));

    let unit = read("deb/ringfence.service");
    for variable in unit.split(['=', ' ', '\n']).filter(|word| word.starts_with("RINGFENCE_")) {
        let documented = std::fs::read_to_string(packaging().join("../docs/config.md")).unwrap();
        assert!(documented.contains(&format!("`{variable}`")), "{variable}");
    }
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("systemd is not installed: the unit was not checked");
        return;
    }
    // The program that it starts must exist.
    let program = binary();
    let file = scratch.path().join("ringfence.service");
    let unit = unit.replace("/usr/bin/ringfence", program.to_str().unwrap());
    std::fs::write(&file, unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no"]).arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // A setting that systemd knows since 254; the unit says what older releases make of it.
    let is_about_us = |line: &&str| {
        line.contains("ringfence.service")
            && !(line.contains("Unknown key") && line.contains("'DelegateSubgroup'"))
    };
    let complaints: Vec<&str> = said.lines().filter(is_about_us).collect();
    assert!(output.status.success() && complaints.is_empty(), "{complaints:#?}");
}
