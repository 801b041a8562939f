//! The binary under test, with a root, a workspace, a home and a temporary directory of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::client::Client;
use super::{DEADLINE, Transport, eventually};

/// `RINGFENCE_BINARY` names another build of it, a release for instance.
pub fn binary() -> PathBuf {
    std::env::var_os("RINGFENCE_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_ringfence").into(), PathBuf::from)
}

/// A directory that goes when the test does.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Arc<Self> {
        Self::within(&std::env::temp_dir())
    }

    pub fn within(folder: &Path) -> Arc<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "ringfence-it-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = folder.join(name);
        for part in ["root", "workspace", "home", "tmp"] {
            std::fs::create_dir_all(path.join(part)).unwrap();
        }
        Arc::new(Scratch(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("RINGFENCE_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[derive(Clone)]
pub struct Options {
    pub transport: Transport,
    /// The text of its config.toml.
    pub config: String,
    pub env: Vec<(String, String)>,
    pub args: Vec<String>,
    /// Share another server's directories.
    pub scratch: Option<Arc<Scratch>>,
    /// Leave it out to have one workspace per principal.
    pub workspace: bool,
    /// Started in place of the binary, with its arguments.
    pub through: Option<PathBuf>,
    /// Without a fence every command is asked for.
    pub unfenced: bool,
}

impl Options {
    pub fn new(transport: Transport) -> Self {
        Options {
            transport,
            config: String::new(),
            env: vec![],
            args: vec![],
            scratch: None,
            workspace: true,
            through: None,
            unfenced: false,
        }
    }

    /// Adds lines to the config. Short times, where a test is about time, are set here.
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    pub fn unfenced(mut self) -> Self {
        self.unfenced = true;
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    pub fn on(mut self, scratch: &Arc<Scratch>) -> Self {
        self.scratch = Some(Arc::clone(scratch));
        self
    }

    pub fn through(mut self, program: PathBuf) -> Self {
        self.through = Some(program);
        self
    }

    pub fn command(&self, scratch: &Scratch) -> Command {
        let mut command = started(self.through.as_ref().unwrap_or(&binary()), scratch);
        command.arg("serve").arg("--root").arg(scratch.path().join("root"));
        if self.workspace {
            command.arg("--workspace").arg(scratch.path().join("workspace"));
        }
        let unfenced = if self.unfenced { "sandbox.profile = \"none\"\n" } else { "" };
        let config = format!("{unfenced}{}", self.config);
        if !config.is_empty() {
            let file = scratch.path().join("config.toml");
            std::fs::write(&file, config).unwrap();
            command.arg("--config").arg(file);
        }
        if self.transport != Transport::Stdio && !self.args.iter().any(|arg| arg == "--http") {
            command.args(["--http", "127.0.0.1:0"]);
        }
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn spawn(self) -> Server {
        Server::spawn(self)
    }

    /// For a server that should not start at all.
    pub fn refuse(self) -> Output {
        let scratch = Scratch::new();
        let child = self
            .command(&scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let (ended, end) = channel();
        let pid = Pid::from_child(&child);
        let stdout = child.stdout.take().unwrap();
        let stderr = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            let read = |mut from: Box<dyn std::io::Read>| {
                let mut bytes = Vec::new();
                from.read_to_end(&mut bytes).map(|_| bytes).unwrap_or_default()
            };
            let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
            let _ = ended.send(Output { status: child.wait().unwrap(), stdout, stderr });
        });
        end.recv_timeout(DEADLINE).unwrap_or_else(|_| {
            let _ = kill_process(pid, Signal::KILL);
            panic!("the server started, though it should have refused to")
        })
    }
}

/// The binary with nothing of this process's environment but the way to other programs.
pub fn ringfence(scratch: &Scratch) -> Command {
    started(&binary(), scratch)
}

/// The way to other programs, without Codex's own helpers: those would lead a server to the rules of whoever runs the
/// tests in there.
fn search_path() -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_codex = |dir: &PathBuf| dir.to_string_lossy().contains("codex-arg0");
    std::env::join_paths(std::env::split_paths(&path).filter(|dir| !is_codex(dir))).unwrap()
}

fn started(program: &Path, scratch: &Scratch) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", search_path())
        .env("HOME", scratch.path().join("home"))
        .env("TMPDIR", scratch.path().join("tmp"))
        .current_dir(scratch.path().join("workspace"));
    command
}

pub struct Server {
    pub scratch: Arc<Scratch>,
    pub transport: Transport,
    pub child: Child,
    pub address: Option<SocketAddr>,
    pub log: Arc<Mutex<String>>,
    pipes: Option<(ChildStdin, ChildStdout)>,
}

impl Server {
    pub fn spawn(options: Options) -> Server {
        let scratch = options.scratch.clone().unwrap_or_else(Scratch::new);
        let mut command = options.command(&scratch);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let pipes = Some((child.stdin.take().unwrap(), child.stdout.take().unwrap()));
        let log = Arc::new(Mutex::new(String::new()));
        let listening = read_log(child.stderr.take().unwrap(), Arc::clone(&log));
        let mut server =
            Server { scratch, transport: options.transport, child, address: None, log, pipes };
        if options.transport != Transport::Stdio {
            let address = listening.recv_timeout(DEADLINE);
            server.address =
                Some(address.unwrap_or_else(|_| panic!("it does not listen: {}", server.log())));
        }
        server
    }

    pub fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    pub fn workspace(&self) -> PathBuf {
        self.scratch.path().join("workspace")
    }

    pub fn address(&self) -> SocketAddr {
        self.address.expect("a server on the network")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log says this: it is read by a thread, which may be behind the answer to a call.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        eventually(DEADLINE, &format!("the log says {text:?}"), || self.log().contains(text));
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the server can be signalled");
    }

    /// A client that has shaken hands, or discovered, in this version.
    pub fn connect(&mut self, version: &'static str) -> Client {
        let mut client = self.client(version);
        client.shake_hands();
        client
    }

    /// A client that has said nothing yet.
    pub fn client(&mut self, version: &'static str) -> Client {
        self.client_as(version, None)
    }

    pub fn client_as(&mut self, version: &'static str, token: Option<&str>) -> Client {
        match self.transport {
            Transport::Stdio => {
                let (stdin, stdout) = self.pipes.take().expect("standard input serves one client");
                Client::on_pipes(version, stdin, stdout, Arc::clone(&self.log))
            }
            Transport::Http => {
                Client::on_http(version, self.address(), token, Arc::clone(&self.log))
            }
            Transport::Sse => Client::on_sse(version, self.address(), token, Arc::clone(&self.log)),
        }
    }

    /// Waits for the process to end by itself.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        super::eventually(DEADLINE, "the server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Every record of the log, as `ringfence audit --json` shows it.
    pub fn audit(&self) -> Vec<Value> {
        audit(&self.scratch)
    }

    pub fn events(&self, kind: &str) -> Vec<Value> {
        self.audit().into_iter().filter(|record| record["event"] == kind).collect()
    }

    /// The stop records, once there are so many.
    pub fn stops(&self, count: usize) -> Vec<Value> {
        let mut stops = Vec::new();
        super::eventually(DEADLINE, "the calls are on record", || {
            stops = self.events("call.stop");
            stops.len() >= count
        });
        assert_eq!(stops.len(), count, "one record for each call: {stops:#?}");
        stops
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn audit(scratch: &Scratch) -> Vec<Value> {
    let output = ringfence(scratch)
        .args(["audit", "--json", "--root"])
        .arg(scratch.path().join("root"))
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Exit code and text of `ringfence audit verify`.
pub fn verify(scratch: &Scratch) -> (i32, String) {
    let output = ringfence(scratch)
        .args(["audit", "verify", "--root"])
        .arg(scratch.path().join("root"))
        .output();
    let output = output.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

fn read_log(stderr: std::process::ChildStderr, log: Arc<Mutex<String>>) -> Receiver<SocketAddr> {
    let (found, listening) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if let Some(rest) = line.split("listening on http://").nth(1)
                && let Some(address) =
                    rest.strip_suffix("/mcp").and_then(|address| address.parse().ok())
            {
                let _ = found.send(address);
            }
            let mut log = log.lock().unwrap();
            log.push_str(&line);
            log.push('\n');
        }
    });
    listening
}
