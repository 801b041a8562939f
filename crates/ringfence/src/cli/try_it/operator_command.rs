//! Demonstrates a configured command: the operator adds it to a running server, the sandbox holds
//! it to what it declares, and its secret is redacted.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use serde_json::json;

use super::client::DemoClient;
use super::{DemoDirectory, DemoPrinter, setup_error, text_field, unexpected_error};
use crate::base::Result;

const TOKEN: &str = "tk-4711-not-for-agents";
const CONFIG_ENTRY: &str = "\
[mcp.report]
command = \"bash\"
args = [\"-c\", 'echo \"token: $API_TOKEN\"; echo changed > notes/hello.txt']
env = { API_TOKEN = \"${API_TOKEN}\" }
requires_approval = false
";

/// Adds a command to the running server's config, calls it, and shows that it can neither write nor
/// reveal its secret.
pub fn add_command(
    client: &mut DemoClient,
    printer: &mut DemoPrinter<'_>,
    demo_dir: &DemoDirectory,
) -> Result<()> {
    printer.print_step("5. Add your own command while the server runs")?;
    // Readable by its owner only; the server rejects a file with secrets otherwise.
    let write = |name: &str, content: &str| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(demo_dir.0.join(name));
        let write_result = file.and_then(|mut file| file.write_all(content.as_bytes()));
        write_result.map_err(|error| setup_error("a temporary file", error))
    };
    write("secrets.env", &format!("API_TOKEN={TOKEN}\n"))?;
    write("config.new", &format!("secrets.env_file = \"secrets.env\"\n{CONFIG_ENTRY}"))?;
    // Replace the file atomically, as editors do.
    std::fs::rename(demo_dir.0.join("config.new"), demo_dir.config())
        .map_err(|error| setup_error("a config file", error))?;
    printer.print_sentence(
        "The operator adds this to config.toml, and a token to a file next to it:",
    )?;
    printer.print_quoted(CONFIG_ENTRY.trim_end())?;
    let list = client.send_request("tools/list", json!({}))?;
    if !list["tools"]
        .as_array()
        .is_some_and(|tools| tools.iter().any(|tool| tool["name"] == "report"))
    {
        return Err(unexpected_error("the new tool on the list", &list));
    }
    printer.print_sentence("The next list has it. It declares no side effects, so it can have none, and its secret is redacted:")?;
    let result = client.call_tool("report", json!({}))?;
    let run = &result["structuredContent"];
    if result["isError"] == true {
        printer.print_sentence(
            "The sandbox cannot be set up on this host, so the command was refused:",
        )?;
        return printer.print_quoted(text_field(&run["error"], "message"));
    }
    printer.print_quoted(text_field(run, "stdout").trim_end())?;
    printer.print_quoted(text_field(run, "stderr").trim_end())?;
    let file_text =
        std::fs::read_to_string(demo_dir.workspace().join("notes/hello.txt")).unwrap_or_default();
    if result.to_string().contains(TOKEN) || file_text.contains("changed") {
        return Err(unexpected_error("a command that writes nothing and reveals nothing", run));
    }
    Ok(())
}
