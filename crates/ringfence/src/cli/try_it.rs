//! `ringfence try`: a demonstration with the real server in a temporary directory.
//!
//! It shows what the server allows and what it blocks: a script stopped by the sandbox, a command
//! added by the operator, a command that a rule blocks two scripts deep, and, without the sandbox,
//! a denied command and its audit record. It must never touch the user's own files.

mod client;
mod operator_command;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use self::client::DemoClient;
use super::{audit, connect};
use crate::base::ids::short_id;
use crate::base::{Error, Kind, Result, shell_quote};

/// Runs the demonstration; fails if a step has an unexpected result.
pub fn run(out: &mut dyn Write) -> Result<()> {
    let started = Instant::now();
    let demo_dir = DemoDirectory::create()?;
    let mut printer = DemoPrinter { out, colour: std::io::stdout().is_terminal() };
    let mut client = DemoClient::start(&demo_dir, &demo_dir.config())?;
    printer.print_sentence("This starts the real server in a temporary directory and talks to it as a coding agent would.")?;
    show_server(&mut client, &mut printer)?;
    write_and_read(&mut client, &mut printer)?;
    try_symlink_escape(&mut client, &mut printer, &demo_dir)?;
    run_hostile_script(&mut client, &mut printer, &demo_dir)?;
    operator_command::add_command(&mut client, &mut printer, &demo_dir)?;
    client.shut_down()?;
    run_forbidden_command(&mut printer, &demo_dir)?;
    let trace_id = request_denied_command(&mut printer, &demo_dir)?;
    show_audit_log(&mut printer, &demo_dir, &trace_id)?;
    drop(demo_dir);
    printer.print_step("Next: use it")?;
    printer.print_sentence(&format!(
        "Done in {:.1} s. The temporary directory was removed; nothing else was touched.",
        started.elapsed().as_secs_f32()
    ))?;
    printer.print_sentence("Add the same server to Codex; it shows what it changes, and asks:")?;
    let executable = connect::own_executable()?;
    printer.print_quoted(&format!("{} connect codex", shell_quote::quote_command([&*executable])))
}

fn initialize_session(client: &mut DemoClient) -> Result<Value> {
    let init_result = client.send_request(
        "initialize",
        json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "ringfence-try", "version": env!("CARGO_PKG_VERSION")},
        }),
    )?;
    client.send_notification("notifications/initialized")?;
    Ok(init_result)
}

fn show_server(client: &mut DemoClient, printer: &mut DemoPrinter<'_>) -> Result<()> {
    printer.print_step("1. Connect")?;
    let init_result = initialize_session(client)?;
    let server = &init_result["serverInfo"];
    printer.print_sentence(&format!(
        "{} {} answers, on MCP {}.",
        text_field(server, "name"),
        text_field(server, "version"),
        text_field(&init_result, "protocolVersion")
    ))?;
    let list = client.send_request("tools/list", json!({}))?;
    let tools =
        list["tools"].as_array().ok_or_else(|| unexpected_error("a list of tools", &list))?;
    printer.print_sentence(&format!("It offers {} tools:", tools.len()))?;
    for tool in tools {
        printer.print_quoted(&format!(
            "{:<18} {}",
            text_field(tool, "name"),
            text_field(tool, "title")
        ))?;
    }
    Ok(())
}

fn write_and_read(client: &mut DemoClient, printer: &mut DemoPrinter<'_>) -> Result<()> {
    printer.print_step("2. Work in the workspace needs no approval")?;
    let path = "notes/hello.txt";
    let written = client.call_expecting_success(
        "file.write",
        json!({"path": path, "content": "Hello from the sandbox.\n"}),
    )?;
    let written = text_field(&written["structuredContent"], "etag");
    printer.print_sentence(&format!("file.write {path} -> etag {written}"))?;
    let read = client.call_expecting_success("file.read", json!({"path": path}))?;
    let (content, etag) = (
        text_field(&read["content"][0], "text"),
        text_field(&read["_meta"]["dev.ringfence/file"], "etag"),
    );
    printer.print_sentence(&format!("file.read  {path} -> etag {etag}, {content:?}"))?;
    if !etag.starts_with("b3:") || written != etag {
        return Err(unexpected_error("the same etag for the same text", &json!([written, etag])));
    }
    printer.print_sentence(
        "The etags match: a later write can require that the file has not changed in between.",
    )
}

fn try_symlink_escape(
    client: &mut DemoClient,
    printer: &mut DemoPrinter<'_>,
    demo_dir: &DemoDirectory,
) -> Result<()> {
    printer.print_step("3. A symbolic link does not lead out")?;
    let link = demo_dir.workspace().join("way-out");
    std::os::unix::fs::symlink(demo_dir.home(), &link)
        .map_err(|e| setup_error("a symbolic link", e))?;
    printer.print_sentence("The workspace now contains a symbolic link `way-out` to a directory outside that holds a secret.")?;
    let error = client.call_expecting_error("file.read", json!({"path": "way-out/secret.txt"}))?;
    if error["kind"] != "permission_denied" || error["reason"] != "outside_workspace" {
        return Err(unexpected_error("permission_denied (outside_workspace)", &error));
    }
    printer.print_sentence("file.read way-out/secret.txt is refused:")?;
    printer.print_quoted(&format!(
        "{} ({}): {}",
        text_field(&error, "kind"),
        text_field(&error, "reason"),
        text_field(&error, "message")
    ))?;
    printer.print_quoted(text_field(&error, "hint"))
}

/// Hostile script, one attempt per line.
const HOSTILE_SCRIPT: &str = "\
rm -rf \"$1\"
echo 'steal' > .git/hooks/post-commit
unshare --user --map-root-user true
exec 3<>/dev/tcp/192.0.2.1/80
echo 'The build is done.'
";

fn run_hostile_script(
    client: &mut DemoClient,
    printer: &mut DemoPrinter<'_>,
    demo_dir: &DemoDirectory,
) -> Result<()> {
    printer.print_step("4. The sandbox stops a script that does more than it says")?;
    let home = demo_dir.home();
    std::fs::create_dir_all(demo_dir.workspace().join(".git/hooks"))
        .map_err(|e| setup_error("a repository", e))?;
    let head = "ref: refs/heads/main\n";
    std::fs::write(demo_dir.workspace().join(".git/HEAD"), head)
        .map_err(|e| setup_error("a repository", e))?;
    client.call_expecting_success(
        "file.write",
        json!({"path": "build.sh", "content": HOSTILE_SCRIPT}),
    )?;
    printer
        .print_sentence("The agent runs `bash build.sh`, without approval. The script contains:")?;
    printer.print_quoted(HOSTILE_SCRIPT.trim_end())?;
    let command = format!("bash build.sh {}", home.display());
    let result = client.call_tool("shell.exec", json!({"command": command}))?;
    let run = &result["structuredContent"];
    if result["isError"] == true {
        printer.print_sentence(
            "The sandbox cannot be set up on this host, so the command was refused:",
        )?;
        printer.print_quoted(text_field(&run["error"], "message"))?;
        return printer
            .print_sentence("Run `ringfence doctor` to see what is missing and how to fix it.");
    }
    printer.print_sentence("It ran, and this is all it achieved:")?;
    printer.print_quoted(text_field(run, "stdout").trim_end())?;
    printer.print_quoted(text_field(run, "stderr").trim_end())?;
    let untouched = home.join("secret.txt").is_file()
        && !demo_dir.workspace().join(".git/hooks/post-commit").exists();
    if !untouched || run["exit_code"] != 0 {
        return Err(unexpected_error("a command that changes nothing outside", run));
    }
    printer.print_sentence("The files outside still exist, no hook was planted, nothing left the machine. The result says so:")?;
    printer.print_quoted(&format!("sandbox {}", run["sandbox"]))
}

/// Rule that forbids a command; [`NESTED_COMMAND`] hides that command two scripts deep.
const DEMO_RULES: &str = "\
prefix_rule(
    pattern = [\"rm\", [\"-rf\", \"-fr\"]],
    decision = \"forbidden\",
    justification = \"Ask before you remove whole directories.\",
)
";
const NESTED_COMMAND: &str = "mkdir -p old/logs; find old -type d -name logs -exec sh -c 'env nice rm -rf \"$1\"' sh {} ';' ; ls old";

fn run_forbidden_command(printer: &mut DemoPrinter<'_>, demo_dir: &DemoDirectory) -> Result<()> {
    printer.print_step("6. One rule applies to every process")?;
    printer.print_sentence("The operator's rules file, in Codex's rule language:")?;
    printer.print_quoted(DEMO_RULES.trim_end())?;
    let mut client = DemoClient::start(demo_dir, &demo_dir.ruled_config())?;
    initialize_session(&mut client)?;
    printer.print_sentence("The agent does not run `rm` directly. It runs:")?;
    printer.print_quoted(NESTED_COMMAND)?;
    let result = client.call_tool("shell.exec", json!({"command": NESTED_COMMAND}))?;
    let run = &result["structuredContent"];
    if result["isError"] == true {
        printer.print_sentence(
            "This host does not allow execs to be intercepted, so the command was refused:",
        )?;
        printer.print_quoted(text_field(&run["error"], "message"))?;
        return client.shut_down();
    }
    if !text_field(run, "stderr").contains("forbidden")
        || !demo_dir.workspace().join("old/logs").is_dir()
    {
        return Err(unexpected_error("a forbidden command that removes nothing", run));
    }
    printer.print_sentence("It was caught at the exec, whatever started it:")?;
    printer.print_quoted(text_field(run, "stderr").trim_end())?;
    printer.print_quoted(text_field(run, "stdout").trim_end())?;
    client.shut_down()
}

/// Shows a denied command and returns the trace id of the call.
fn request_denied_command(
    printer: &mut DemoPrinter<'_>,
    demo_dir: &DemoDirectory,
) -> Result<String> {
    printer.print_step("7. Without the sandbox, every command needs approval")?;
    let mut client = DemoClient::start(demo_dir, &demo_dir.unsandboxed_config())?;
    initialize_session(&mut client)?;
    // The target is the demonstration's own home: if a defect ever lets this run, no one loses a
    // file.
    let command = format!("rm -rf {}", demo_dir.home().display());
    printer.print_sentence("An operator can disable the sandbox (`profile = \"none\"`). Then a human must approve every command.")?;
    printer.print_sentence(&format!("The agent requests: {command}"))?;
    let error = client.call_expecting_error(
        "shell.exec",
        json!({"command": command, "reason": "free some space"}),
    )?;
    let [question] = &client.questions[..] else {
        return Err(unexpected_error("one question to the human", &json!(client.questions)));
    };
    printer.print_sentence(
        "Your client would show you this question; the demonstration answers Deny:",
    )?;
    printer.print_quoted(text_field(question, "message").trim_end())?;
    if error["kind"] != "approval_denied" {
        return Err(unexpected_error("approval_denied", &error));
    }
    if !demo_dir.home().join("secret.txt").is_file() {
        return Err(Error::internal("the denied command ran"));
    }
    printer.print_sentence("Nothing ran, and the files still exist. The agent gets:")?;
    printer.print_quoted(&format!(
        "{}: {}",
        text_field(&error, "kind"),
        text_field(&error, "message")
    ))?;
    printer.print_quoted(text_field(&error, "hint"))?;
    client.shut_down()?;
    match error["trace_id"].as_str() {
        Some(trace_id) => Ok(trace_id.to_owned()),
        None => Err(unexpected_error("a trace_id", &error)),
    }
}

fn show_audit_log(
    printer: &mut DemoPrinter<'_>,
    demo_dir: &DemoDirectory,
    trace_id: &str,
) -> Result<()> {
    printer.print_step("8. The audit log has it all")?;
    let run_audit = |command, trace| -> Result<(u8, String)> {
        let args = audit::AuditArgs {
            command,
            trace,
            follow: false,
            tool: None,
            session: None,
            since: None,
            json: false,
            root: None,
        };
        let mut output = Vec::new();
        let code = audit::run(args, &demo_dir.root(), &mut output)?;
        Ok((code, String::from_utf8_lossy(&output).into_owned()))
    };
    let (_, lines) = run_audit(None, Some(trace_id.to_owned()))?;
    if !lines.contains("denied") {
        return Err(unexpected_error("the denied call in the audit log", &json!(lines)));
    }
    printer.print_sentence(&format!("ringfence audit --trace {trace_id}"))?;
    printer.print_quoted(lines.trim_end())?;
    let (code, verdict) = run_audit(Some(audit::AuditCommand::Verify), None)?;
    printer.print_sentence("ringfence audit verify")?;
    printer.print_quoted(verdict.trim_end())?;
    if code == 0 {
        Ok(())
    } else {
        Err(Error::internal("the audit log of the demonstration is broken"))
    }
}

/// Temporary directory with everything the demonstration needs; removed on drop.
struct DemoDirectory(PathBuf);

impl DemoDirectory {
    fn create() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let base = std::env::temp_dir()
            .canonicalize()
            .map_err(|e| setup_error("a temporary directory", e))?;
        let demo_dir = DemoDirectory(base.join(short_id("ringfence-try")));
        for dir in [demo_dir.0.clone(), demo_dir.root(), demo_dir.workspace(), demo_dir.home()] {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&dir)
                .map_err(|e| setup_error("a temporary directory", e))?;
        }
        // Its own empty config file, so that the demonstration shows the default behaviour.
        let unsandboxed = (demo_dir.unsandboxed_config(), "sandbox.profile = \"none\"\n");
        let ruled = (demo_dir.ruled_config(), "policy.rules = [\"try.rules\"]\n");
        let rules = (demo_dir.0.join("try.rules"), DEMO_RULES);
        let secret = (demo_dir.home().join("secret.txt"), "not for agents\n");
        for (file, content) in [secret, (demo_dir.config(), ""), unsandboxed, ruled, rules] {
            std::fs::write(&file, content).map_err(|e| setup_error("a temporary file", e))?;
        }
        Ok(demo_dir)
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

    fn unsandboxed_config(&self) -> PathBuf {
        self.0.join("unfenced.toml")
    }
}

impl Drop for DemoDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }
}

fn unexpected_error(expected: &str, actual: &Value) -> Error {
    let shortened: String = actual.to_string().chars().take(600).collect();
    Error::internal(format!("the demonstration expected {expected} and got {shortened}"))
        .with_hint("This is a bug in this build: please report it with the text above.")
}

fn setup_error(item: &str, error: std::io::Error) -> Error {
    Error::new(Kind::Unavailable, format!("cannot create {item}"))
        .with_hint("The demonstration needs a writable TMPDIR.")
        .with_source(error)
}

fn text_field<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("-")
}

/// Prints the demonstration; uses colour only on a terminal.
struct DemoPrinter<'a> {
    out: &'a mut dyn Write,
    colour: bool,
}

impl DemoPrinter<'_> {
    fn print_step(&mut self, title: &str) -> Result<()> {
        let line =
            if self.colour { format!("\n\x1b[1m{title}\x1b[0m") } else { format!("\n{title}") };
        self.print_line(&line)
    }

    fn print_sentence(&mut self, sentence: &str) -> Result<()> {
        self.print_line(sentence)
    }

    /// Prints quoted text (from the server, a file or a command), indented.
    fn print_quoted(&mut self, lines: &str) -> Result<()> {
        for line in lines.lines() {
            let line = if self.colour {
                format!("    \x1b[2m{line}\x1b[0m")
            } else {
                format!("    {line}")
            };
            self.print_line(&line)?;
        }
        Ok(())
    }

    fn print_line(&mut self, line: &str) -> Result<()> {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(|error| {
            Error::new(Kind::Unavailable, "standard output is closed")
                .with_hint("Run it with standard output open, in a terminal for instance.")
                .with_source(error)
        })
    }
}
