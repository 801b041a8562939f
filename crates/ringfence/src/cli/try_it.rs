//! `ringfence try`: a demonstration with the real server in a temporary directory.
//!
//! It shows what the server allows and what it blocks: a script stopped by the sandbox, a command
//! added by the operator, a command that a rule blocks two scripts deep, and, without the sandbox,
//! a denied command and its audit record. It must never touch the user's own files.

mod client;
mod own;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use self::client::Client;
use super::audit;
use crate::base::ids::short;
use crate::base::{Error, Kind, Result};

/// Runs the demonstration; fails if a step has an unexpected result.
pub fn run(out: &mut dyn Write) -> Result<()> {
    let began = Instant::now();
    let stage = Stage::set()?;
    let mut tell = Narrator { out, colour: std::io::stdout().is_terminal() };
    let mut client = Client::start(&stage, &stage.config())?;
    tell.say("This starts the real server in a temporary directory and talks to it as a coding agent would.")?;
    shake_hands(&mut client, &mut tell)?;
    write_and_read(&mut client, &mut tell)?;
    try_to_leave(&mut client, &mut tell, &stage)?;
    meet_the_fence(&mut client, &mut tell, &stage)?;
    own::add_a_command(&mut client, &mut tell, &stage)?;
    client.end()?;
    meet_a_rule(&mut tell, &stage)?;
    let trace_id = be_denied(&mut tell, &stage)?;
    read_the_log(&mut tell, &stage, &trace_id)?;
    drop(stage);
    tell.step("Next: use it")?;
    tell.say("Add the same server to Codex, in your project's directory:")?;
    tell.show("codex mcp add ringfence -- ringfence serve")?;
    tell.say(&format!(
        "Done in {:.1} s. The temporary directory was removed; nothing else was touched.",
        began.elapsed().as_secs_f32()
    ))
}

fn greet(client: &mut Client) -> Result<Value> {
    let hello = client.request(
        "initialize",
        json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "ringfence-try", "version": env!("CARGO_PKG_VERSION")},
        }),
    )?;
    client.notify("notifications/initialized")?;
    Ok(hello)
}

fn shake_hands(client: &mut Client, tell: &mut Narrator<'_>) -> Result<()> {
    tell.step("1. Connect")?;
    let hello = greet(client)?;
    let server = &hello["serverInfo"];
    tell.say(&format!(
        "{} {} answers, on MCP {}.",
        text(server, "name"),
        text(server, "version"),
        text(&hello, "protocolVersion")
    ))?;
    let list = client.request("tools/list", json!({}))?;
    let tools = list["tools"].as_array().ok_or_else(|| unexpected("a list of tools", &list))?;
    tell.say(&format!("It offers {} tools:", tools.len()))?;
    for tool in tools {
        tell.show(&format!("{:<14} {}", text(tool, "name"), text(tool, "title")))?;
    }
    Ok(())
}

fn write_and_read(client: &mut Client, tell: &mut Narrator<'_>) -> Result<()> {
    tell.step("2. Work in the workspace needs no approval")?;
    let path = "notes/hello.txt";
    let written = client
        .succeed("file.write", json!({"path": path, "content": "Hello from the sandbox.\n"}))?;
    let written = text(&written["structuredContent"], "etag");
    tell.say(&format!("file.write {path} -> etag {written}"))?;
    let read = client.succeed("file.read", json!({"path": path}))?;
    let (content, etag) =
        (text(&read["content"][0], "text"), text(&read["_meta"]["dev.ringfence/file"], "etag"));
    tell.say(&format!("file.read  {path} -> etag {etag}, {content:?}"))?;
    if !etag.starts_with("b3:") || written != etag {
        return Err(unexpected("the same etag for the same text", &json!([written, etag])));
    }
    tell.say("The etags match: a later write can require that the file has not changed in between.")
}

fn try_to_leave(client: &mut Client, tell: &mut Narrator<'_>, stage: &Stage) -> Result<()> {
    tell.step("3. A symbolic link does not lead out")?;
    let link = stage.workspace().join("way-out");
    std::os::unix::fs::symlink(stage.home(), &link)
        .map_err(|e| cannot_set("a symbolic link", e))?;
    tell.say("The workspace now contains a symbolic link `way-out` to a directory outside that holds a secret.")?;
    let error = client.fail("file.read", json!({"path": "way-out/secret.txt"}))?;
    if error["kind"] != "permission_denied" || error["reason"] != "outside_workspace" {
        return Err(unexpected("permission_denied (outside_workspace)", &error));
    }
    tell.say("file.read way-out/secret.txt is refused:")?;
    tell.show(&format!(
        "{} ({}): {}",
        text(&error, "kind"),
        text(&error, "reason"),
        text(&error, "message")
    ))?;
    tell.show(text(&error, "hint"))
}

/// Hostile script, one attempt per line.
const SCRIPT: &str = "\
rm -rf \"$1\"
echo 'steal' > .git/hooks/post-commit
unshare --user --map-root-user true
exec 3<>/dev/tcp/192.0.2.1/80
echo 'The build is done.'
";

fn meet_the_fence(client: &mut Client, tell: &mut Narrator<'_>, stage: &Stage) -> Result<()> {
    tell.step("4. The sandbox stops a script that does more than it says")?;
    let home = stage.home();
    std::fs::create_dir_all(stage.workspace().join(".git/hooks"))
        .map_err(|e| cannot_set("a repository", e))?;
    let head = "ref: refs/heads/main\n";
    std::fs::write(stage.workspace().join(".git/HEAD"), head)
        .map_err(|e| cannot_set("a repository", e))?;
    client.succeed("file.write", json!({"path": "build.sh", "content": SCRIPT}))?;
    tell.say("The agent runs `bash build.sh`, without approval. The script contains:")?;
    tell.show(SCRIPT.trim_end())?;
    let command = format!("bash build.sh {}", home.display());
    let result = client.call("shell.exec", json!({"command": command}))?;
    let run = &result["structuredContent"];
    if result["isError"] == true {
        tell.say("The sandbox cannot be set up on this host, so the command was refused:")?;
        tell.show(text(&run["error"], "message"))?;
        return tell.say("Run `ringfence doctor` to see what is missing and how to fix it.");
    }
    tell.say("It ran, and this is all it achieved:")?;
    tell.show(text(run, "stdout").trim_end())?;
    tell.show(text(run, "stderr").trim_end())?;
    let untouched = home.join("secret.txt").is_file()
        && !stage.workspace().join(".git/hooks/post-commit").exists();
    if !untouched || run["exit_code"] != 0 {
        return Err(unexpected("a command that changes nothing outside", run));
    }
    tell.say("The files outside still exist, no hook was planted, nothing left the machine. The result says so:")?;
    tell.show(&format!("sandbox {}", run["sandbox"]))
}

/// Rule that forbids a command; [`NESTED`] hides that command two scripts deep.
const RULES: &str = "\
prefix_rule(
    pattern = [\"rm\", [\"-rf\", \"-fr\"]],
    decision = \"forbidden\",
    justification = \"Ask before you remove whole directories.\",
)
";
const NESTED: &str = "mkdir -p old/logs; find old -type d -name logs -exec sh -c 'env nice rm -rf \"$1\"' sh {} ';' ; ls old";

fn meet_a_rule(tell: &mut Narrator<'_>, stage: &Stage) -> Result<()> {
    tell.step("6. One rule applies to every process")?;
    tell.say("The operator's rules file, in Codex's rule language:")?;
    tell.show(RULES.trim_end())?;
    let mut client = Client::start(stage, &stage.ruled_config())?;
    greet(&mut client)?;
    tell.say("The agent does not run `rm` directly. It runs:")?;
    tell.show(NESTED)?;
    let result = client.call("shell.exec", json!({"command": NESTED}))?;
    let run = &result["structuredContent"];
    if result["isError"] == true {
        tell.say("This host does not allow execs to be intercepted, so the command was refused:")?;
        tell.show(text(&run["error"], "message"))?;
        return client.end();
    }
    if !text(run, "stderr").contains("forbidden") || !stage.workspace().join("old/logs").is_dir() {
        return Err(unexpected("a forbidden command that removes nothing", run));
    }
    tell.say("It was caught at the exec, whatever started it:")?;
    tell.show(text(run, "stderr").trim_end())?;
    tell.show(text(run, "stdout").trim_end())?;
    client.end()
}

/// Shows a denied command and returns the trace id of the call.
fn be_denied(tell: &mut Narrator<'_>, stage: &Stage) -> Result<String> {
    tell.step("7. Without the sandbox, every command needs approval")?;
    let mut client = Client::start(stage, &stage.unfenced_config())?;
    greet(&mut client)?;
    // The target is the demonstration's own home: if a defect ever lets this run, no one loses a
    // file.
    let command = format!("rm -rf {}", stage.home().display());
    tell.say("An operator can disable the sandbox (`profile = \"none\"`). Then a human must approve every command.")?;
    tell.say(&format!("The agent requests: {command}"))?;
    let error =
        client.fail("shell.exec", json!({"command": command, "reason": "free some space"}))?;
    let [question] = &client.asked[..] else {
        return Err(unexpected("one question to the human", &json!(client.asked)));
    };
    tell.say("Your client would show you this question; the demonstration answers Deny:")?;
    tell.show(text(question, "message").trim_end())?;
    if error["kind"] != "approval_denied" {
        return Err(unexpected("approval_denied", &error));
    }
    if !stage.home().join("secret.txt").is_file() {
        return Err(Error::internal("the denied command ran"));
    }
    tell.say("Nothing ran, and the files still exist. The agent gets:")?;
    tell.show(&format!("{}: {}", text(&error, "kind"), text(&error, "message")))?;
    tell.show(text(&error, "hint"))?;
    client.end()?;
    match error["trace_id"].as_str() {
        Some(trace_id) => Ok(trace_id.to_owned()),
        None => Err(unexpected("a trace_id", &error)),
    }
}

fn read_the_log(tell: &mut Narrator<'_>, stage: &Stage, trace_id: &str) -> Result<()> {
    tell.step("8. The audit log has it all")?;
    let look = |command, trace| -> Result<(u8, String)> {
        let args = audit::Args {
            command,
            trace,
            follow: false,
            tool: None,
            session: None,
            since: None,
            json: false,
            root: None,
        };
        let mut printed = Vec::new();
        let code = audit::run(args, &stage.root(), &mut printed)?;
        Ok((code, String::from_utf8_lossy(&printed).into_owned()))
    };
    let (_, lines) = look(None, Some(trace_id.to_owned()))?;
    if !lines.contains("denied") {
        return Err(unexpected("the denied call in the audit log", &json!(lines)));
    }
    tell.say(&format!("ringfence audit --trace {trace_id}"))?;
    tell.show(lines.trim_end())?;
    let (code, verdict) = look(Some(audit::Command::Verify), None)?;
    tell.say("ringfence audit verify")?;
    tell.show(verdict.trim_end())?;
    if code == 0 {
        Ok(())
    } else {
        Err(Error::internal("the audit log of the demonstration is broken"))
    }
}

/// Temporary directory with everything the demonstration needs; removed on drop.
struct Stage(PathBuf);

impl Stage {
    fn set() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let base = std::env::temp_dir()
            .canonicalize()
            .map_err(|e| cannot_set("a temporary directory", e))?;
        let stage = Stage(base.join(short("ringfence-try")));
        for dir in [stage.0.clone(), stage.root(), stage.workspace(), stage.home()] {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&dir)
                .map_err(|e| cannot_set("a temporary directory", e))?;
        }
        // Its own empty config file, so that the demonstration shows the default behaviour.
        let unfenced = (stage.unfenced_config(), "sandbox.profile = \"none\"\n");
        let ruled = (stage.ruled_config(), "policy.rules = [\"try.rules\"]\n");
        let rules = (stage.0.join("try.rules"), RULES);
        let secret = (stage.home().join("secret.txt"), "not for agents\n");
        for (file, content) in [secret, (stage.config(), ""), unfenced, ruled, rules] {
            std::fs::write(&file, content).map_err(|e| cannot_set("a temporary file", e))?;
        }
        Ok(stage)
    }

    fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    fn workspace(&self) -> PathBuf {
        self.0.join("workspace")
    }

    fn home(&self) -> PathBuf {
        self.0.join("home")
    }

    fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    fn ruled_config(&self) -> PathBuf {
        self.0.join("ruled.toml")
    }

    fn unfenced_config(&self) -> PathBuf {
        self.0.join("unfenced.toml")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }
}

fn unexpected(wanted: &str, got: &Value) -> Error {
    let shown: String = got.to_string().chars().take(600).collect();
    Error::internal(format!("the demonstration expected {wanted} and got {shown}"))
        .hint("This is a bug in this build: please report it with the text above.")
}

fn cannot_set(what: &str, error: std::io::Error) -> Error {
    Error::new(Kind::Unavailable, format!("cannot create {what}"))
        .hint("The demonstration needs a writable TMPDIR.")
        .source(error)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("-")
}

/// Prints the demonstration; uses colour only on a terminal.
struct Narrator<'a> {
    out: &'a mut dyn Write,
    colour: bool,
}

impl Narrator<'_> {
    fn step(&mut self, title: &str) -> Result<()> {
        let line =
            if self.colour { format!("\n\x1b[1m{title}\x1b[0m") } else { format!("\n{title}") };
        self.print(&line)
    }

    fn say(&mut self, sentence: &str) -> Result<()> {
        self.print(sentence)
    }

    /// Prints quoted text (from the server, a file or a command), indented.
    fn show(&mut self, lines: &str) -> Result<()> {
        for line in lines.lines() {
            let line = if self.colour {
                format!("    \x1b[2m{line}\x1b[0m")
            } else {
                format!("    {line}")
            };
            self.print(&line)?;
        }
        Ok(())
    }

    fn print(&mut self, line: &str) -> Result<()> {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(|error| {
            Error::new(Kind::Unavailable, "standard output is closed")
                .hint("Run it with standard output open, in a terminal for instance.")
                .source(error)
        })
    }
}
