//! `ringfence connect` without a client: which clients are installed, and which are connected.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clap::ValueEnum;
use serde_json::Value;

use super::client_file::{ClientFile, FileLocation};
use super::clients::ClientName;
use super::parse_file;
use crate::base::{Result, shell_quote, visible};
use crate::cli::upstream::write_text;
use crate::config::ProcessEnv;
use crate::sandbox::program_version::{find_program, query_version};

/// Shows all clients.
pub fn show_clients(env: &ProcessEnv, out: &mut impl Write) -> Result<()> {
    for &client in ClientName::value_variants() {
        let program = find_program(client.programs(), env.get("PATH"));
        let installed = match &program {
            Some(program) => format!("installed: {}", program.display()),
            None => "not found".to_owned(),
        };
        write_line(out, &format!("{:<9} {installed}", client.word()))?;
        for project in [false, true] {
            for location in client.server_files(project, env)? {
                if let Some(line) = describe_connection(client, location)? {
                    write_line(out, &format!("          {line}"))?;
                }
            }
        }
    }
    write_text(out, "\nTo connect one: ringfence connect CLIENT\n")
}

fn write_line(out: &mut impl Write, line: &str) -> Result<()> {
    write_text(out, &format!("{}\n", visible::escape_to_line(line).trim_end()))
}

/// Returns what a file says about us; `None` if it says nothing.
fn describe_connection(client: ClientName, location: FileLocation) -> Result<Option<String>> {
    let is_project = matches!(location, FileLocation::Project { .. });
    let path = location.display_path();
    let document =
        ClientFile::open(location).and_then(|file| parse_file(client.server_format(), &file));
    let document = match document {
        Ok(document) => document,
        // One broken file must not hide the other clients.
        Err(error) => return Ok(Some(format!("cannot be read: {}", error.message_chain()))),
    };
    let Some(entry) = document.get(&client.entry_path().map(str::to_owned)) else {
        return Ok(None);
    };
    Ok(Some(format!("connected in {path}: {}", describe_entry(&entry, is_project))))
}

fn describe_entry(entry: &Value, is_project: bool) -> String {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    if let Some(url) = text("url").or_else(|| text("httpUrl")) {
        return url.to_owned();
    }
    let words = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    // opencode has one list; the others a command and its arguments.
    let mut command = match entry.get("command") {
        Some(Value::String(program)) => vec![program.clone()],
        Some(list) => words(list),
        None => return "without a command".to_owned(),
    };
    command.extend(entry.get("args").map(words).unwrap_or_default());
    let Some(program) = command.first() else { return "without a command".to_owned() };
    let version = describe_version(Path::new(program), is_project);
    format!("{} ({version})", shell_quote::quote_command(command.iter().map(String::as_str)))
}

fn describe_version(program: &Path, is_project: bool) -> String {
    if is_own_executable(program) {
        return format!("{}, this executable", env!("CARGO_PKG_VERSION"));
    }
    if program.is_absolute() && !program.exists() {
        return "missing: connect again".to_owned();
    }
    // A project can name any program: it is never started to ask for its version.
    if is_project || !program.is_absolute() {
        return "another program".to_owned();
    }
    match query_version(program).as_deref().map(str::trim) {
        Some(answer) if answer.starts_with("ringfence ") => answer["ringfence ".len()..].to_owned(),
        _ => "another program".to_owned(),
    }
}

fn is_own_executable(program: &Path) -> bool {
    let identity =
        |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let own = std::env::current_exe().ok().and_then(|path| identity(&path));
    own.is_some() && program.is_absolute() && identity(program) == own
}
