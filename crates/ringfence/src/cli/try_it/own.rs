//! Demonstrates a configured command: the operator adds it to a running server, the sandbox holds
//! it to what it declares, and its secret is redacted.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use serde_json::json;

use super::client::Client;
use super::{Narrator, Stage, cannot_set, text, unexpected};
use crate::base::Result;

const TOKEN: &str = "tk-4711-not-for-agents";
const ENTRY: &str = "\
[mcp.report]
command = \"bash\"
args = [\"-c\", 'echo \"token: $API_TOKEN\"; echo changed > notes/hello.txt']
env = { API_TOKEN = \"${API_TOKEN}\" }
requires_approval = false
";

/// Adds a command to the running server's config, calls it, and shows that it can neither write nor
/// reveal its secret.
pub fn add_a_command(client: &mut Client, tell: &mut Narrator<'_>, stage: &Stage) -> Result<()> {
    tell.step("5. Add your own command while the server runs")?;
    // Readable by its owner only; the server rejects a file with secrets otherwise.
    let write = |name: &str, content: &str| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(stage.0.join(name));
        let written = file.and_then(|mut file| file.write_all(content.as_bytes()));
        written.map_err(|error| cannot_set("a temporary file", error))
    };
    write("secrets.env", &format!("API_TOKEN={TOKEN}\n"))?;
    write("config.new", &format!("secrets.env_file = \"secrets.env\"\n{ENTRY}"))?;
    // Replace the file atomically, as editors do.
    std::fs::rename(stage.0.join("config.new"), stage.config())
        .map_err(|error| cannot_set("a config file", error))?;
    tell.say("The operator adds this to config.toml, and a token to a file next to it:")?;
    tell.show(ENTRY.trim_end())?;
    let list = client.request("tools/list", json!({}))?;
    if !list["tools"]
        .as_array()
        .is_some_and(|tools| tools.iter().any(|tool| tool["name"] == "report"))
    {
        return Err(unexpected("the new tool on the list", &list));
    }
    tell.say("The next list has it. It declares no side effects, so it can have none, and its secret is redacted:")?;
    let result = client.call("report", json!({}))?;
    let run = &result["structuredContent"];
    if result["isError"] == true {
        tell.say("The sandbox cannot be set up on this host, so the command was refused:")?;
        return tell.show(text(&run["error"], "message"));
    }
    tell.show(text(run, "stdout").trim_end())?;
    tell.show(text(run, "stderr").trim_end())?;
    let changed =
        std::fs::read_to_string(stage.workspace().join("notes/hello.txt")).unwrap_or_default();
    if result.to_string().contains(TOKEN) || changed.contains("changed") {
        return Err(unexpected("a command that writes nothing and reveals nothing", run));
    }
    Ok(())
}
