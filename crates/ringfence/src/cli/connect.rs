//! `ringfence connect` and `ringfence disconnect`: edit the files of MCP clients.
//!
//! Only a human runs these commands; the server never edits a client's file. The clients' own
//! commands drop settings that they do not know, so the files are edited here: comments, order and
//! everything else stay as they are.

mod backup;
mod client_file;
mod clients;
mod diff;
mod document;
mod json_text;
mod setting;
mod status;
mod toml_text;

use std::io::Write;
use std::path::{Path, PathBuf};

use self::backup::{BackupList, save_backup};
use self::client_file::{ClientFile, FileLocation};
use self::clients::{ClientName, ConnectRequest, FilePlan, TOKEN_VARIABLE};
use self::document::{ConfigDocument, ConfigFormat, check_untouched};
use self::setting::remove_empty_tables;
use super::screen::uses_colour;
use super::upstream::{confirm, write_text};
use crate::base::{Error, Kind, Result};
use crate::config::ProcessEnv;
use crate::sandbox::program_version::{find_program, query_version};

/// Add Ringfence to an MCP client, or list the clients and what they are connected to
#[derive(clap::Args)]
#[command(
    after_help = "Without a client it lists which clients are installed, and which are connected.\n\n\
Try:  ringfence connect codex --dry-run"
)]
pub struct ConnectArgs {
    /// Client to connect
    client: Option<ClientName>,
    /// Connect to the server at this URL instead of having the client start one
    #[arg(long, value_name = "URL", requires = "client")]
    http: Option<String>,
    /// Edit the files of the project in the current directory, not your own
    #[arg(long, requires = "client")]
    project: bool,
    /// Turn off the client's own shell and editing tools, so that the model uses these
    #[arg(long, requires = "client")]
    replace_shell: bool,
    /// Show what would change, and change nothing
    #[arg(long, requires = "client")]
    dry_run: bool,
    /// Do not ask
    #[arg(long, requires = "client")]
    yes: bool,
}

/// Remove Ringfence from an MCP client, and restore its files
#[derive(clap::Args)]
pub struct DisconnectArgs {
    /// Client to disconnect
    client: ClientName,
    /// Edit the files of the project in the current directory, not your own
    #[arg(long)]
    project: bool,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A file and what it is to contain.
struct FileChange {
    file: ClientFile,
    /// `None`: the file is to be removed.
    new: Option<Vec<u8>>,
    /// Copy to keep next to the file; `None` keeps none.
    backup: Option<Option<Vec<u8>>>,
    /// Copy that is no longer needed afterwards.
    obsolete_backup: Option<std::ffi::OsString>,
}

/// Connects a client, or shows the state of all.
pub fn run_connect(args: &ConnectArgs, out: &mut impl Write) -> Result<()> {
    let env = ProcessEnv::from_process();
    let Some(client) = args.client else { return status::show_clients(&env, out) };
    if let Some(url) = &args.http {
        check_url(url)?;
    }
    if args.replace_shell && !client.can_replace_shell() {
        return Err(Error::invalid_arguments(format!(
            "{} has no setting that turns off its own shell",
            client.title()
        ))
        .with_hint(
            "Turn its terminal tool off in its user interface, and leave out `--replace-shell`.",
        ));
    }
    let request = ConnectRequest {
        launch: launch_words(&own_executable()?),
        http: args.http.clone(),
        replace_shell: args.replace_shell,
        names_tools: client == ClientName::Codex && is_codex_without_default(&env),
    };
    let server_file = pick_server_file(client, args.project, &env)?;
    let mut changes = Vec::new();
    for plan in client.plan_files(&request, server_file, &env)? {
        changes.extend(plan_connection(&plan)?);
    }
    if changes.is_empty() {
        let text = format!("{} is already connected; nothing was changed.\n", client.title());
        return write_text(out, &text);
    }
    show_changes(&changes, out)?;
    if args.dry_run {
        return write_text(out, "Nothing was written (--dry-run).\n");
    }
    confirm("Write this?", args.yes, out)?;
    write_changes(changes, out)?;
    write_text(out, &describe_next_steps(client, &request, args.project))
}

/// Disconnects a client.
pub fn run_disconnect(args: &DisconnectArgs, out: &mut impl Write) -> Result<()> {
    let env = ProcessEnv::from_process();
    let client = args.client;
    // Whatever `connect` can have set is looked for.
    let request =
        ConnectRequest { launch: Vec::new(), http: None, replace_shell: true, names_tools: false };
    let server_file = pick_server_file(client, args.project, &env)?;
    let (mut changes, mut kept) = (Vec::new(), Vec::new());
    for plan in client.plan_files(&request, server_file, &env)? {
        changes.extend(plan_removal(&plan, &mut kept)?);
    }
    if changes.is_empty() {
        let text = format!("{} is not connected; nothing was changed.\n", client.title());
        return write_text(out, &text);
    }
    show_changes(&changes, out)?;
    if args.dry_run {
        return write_text(out, "Nothing was written (--dry-run).\n");
    }
    write_changes(changes, out)?;
    for setting in kept {
        write_text(
            out,
            &format!(
                "Kept: {setting}. No copy of the file says whether it was yours; remove it by hand if not.\n"
            ),
        )?;
    }
    write_text(out, &format!("{} is disconnected.\n", client.title()))
}

/// Returns the file that has our entry, else the first that exists, else the last.
fn pick_server_file(client: ClientName, project: bool, env: &ProcessEnv) -> Result<FileLocation> {
    let entry = client.entry_path().map(str::to_owned);
    let (mut best, mut picked) = ((false, false), None);
    for location in client.server_files(project, env)? {
        let file = ClientFile::open(location.clone())?;
        let document = parse_copy(client.server_format(), file.old_bytes());
        let is_connected = document.is_some_and(|document| document.get(&entry).is_some());
        let rank = (is_connected, file.old_bytes().is_some());
        if rank > best || best == (false, false) {
            (best, picked) = (rank, Some(location));
        }
    }
    picked.ok_or_else(|| Error::internal("a client without a file"))
}

fn parse_file(format: ConfigFormat, file: &ClientFile) -> Result<ConfigDocument> {
    let path = file.display_path();
    ConfigDocument::parse(format, &path, file.old_text()?).map_err(|problem| {
        let line = problem.line;
        Error::new(Kind::ParseError, format!("{path}, line {line}: {}", problem.message))
            .with_hint("Nothing was written. Fix that line, then run the command again.")
    })
}

/// Returns the change that connects, or `None` if the file needs none.
fn plan_connection(plan: &FilePlan) -> Result<Option<FileChange>> {
    let file = ClientFile::open(plan.location.clone())?;
    let old = parse_file(plan.format, &file)?;
    let mut new = parse_file(plan.format, &file)?;
    for setting in plan.entry_settings.iter().chain(&plan.shared_settings) {
        setting.apply_to(&mut new)?;
    }
    check_edit(plan, &old, &new)?;
    let new = new.to_text().into_bytes();
    let old_bytes = file.old_bytes();
    if old_bytes == Some(new.as_slice()) {
        return Ok(None);
    }
    // A second `connect` keeps the copy from before the first, so that `disconnect` restores that.
    let backups = BackupList::read(&file);
    let first = old_bytes.and_then(|bytes| backups.find_replaced_by(bytes));
    let first = first.filter(|copy| is_unconnected(plan, copy.bytes.as_deref()));
    let backup = match first {
        Some(copy) => copy.bytes.clone(),
        None => old_bytes.map(<[u8]>::to_vec),
    };
    let obsolete_backup = first.map(|copy| copy.name.clone());
    Ok(Some(FileChange { new: Some(new), backup: Some(backup), obsolete_backup, file }))
}

/// Returns the change that disconnects, or `None` if the file needs none.
fn plan_removal(plan: &FilePlan, kept: &mut Vec<String>) -> Result<Option<FileChange>> {
    let file = ClientFile::open(plan.location.clone())?;
    let Some(old_bytes) = file.old_bytes() else { return Ok(None) };
    let old = parse_file(plan.format, &file)?;
    // Without our entry, settings like ours are the user's own.
    if is_unconnected(plan, Some(old_bytes)) {
        return Ok(None);
    }
    let backups = BackupList::read(&file);
    let exact = backups.find_replaced_by(old_bytes);
    if let Some(copy) = exact.filter(|copy| is_unconnected(plan, copy.bytes.as_deref())) {
        return Ok(Some(FileChange {
            new: copy.bytes.clone(),
            backup: None,
            obsolete_backup: Some(copy.name.clone()),
            file,
        }));
    }
    // The file has changed since. What else the user has set is seen in the last copy.
    let copy = backups.iter().find(|copy| is_unconnected(plan, copy.bytes.as_deref()));
    let base = copy.and_then(|copy| parse_copy(plan.format, copy.bytes.as_deref()));
    let mut new = parse_file(plan.format, &file)?;
    if let Some(entry) = &plan.entry {
        new.remove(entry)?;
        remove_empty_tables(&mut new, &entry[..entry.len() - 1], base.as_ref())?;
    }
    for setting in &plan.shared_settings {
        if setting.undo_in(&mut new, base.as_ref())? {
            kept.push(format!("{} in {}", setting.describe(), file.display_path()));
        }
    }
    check_edit(plan, &old, &new)?;
    let new = new.to_text().into_bytes();
    if new == old_bytes {
        return Ok(None);
    }
    // There was no file, and nothing is left in this one.
    let absent = copy.filter(|copy| copy.bytes.is_none());
    let is_empty = matches!(new.trim_ascii(), b"" | b"{}");
    Ok(Some(FileChange {
        backup: Some(Some(old_bytes.to_vec())),
        new: Some(new).filter(|_| absent.is_none() || !is_empty),
        obsolete_backup: absent.map(|copy| copy.name.clone()),
        file,
    }))
}

/// Checks that an edit touches what the plan names, and nothing else.
fn check_edit(plan: &FilePlan, old: &ConfigDocument, new: &ConfigDocument) -> Result<()> {
    let shared = plan.shared_settings.iter().map(|setting| setting.path.as_slice());
    let paths: Vec<&[String]> = plan.entry.as_deref().into_iter().chain(shared).collect();
    check_untouched(old, new, &paths)
}

fn parse_copy(format: ConfigFormat, bytes: Option<&[u8]>) -> Option<ConfigDocument> {
    let text = std::str::from_utf8(bytes.unwrap_or_default()).ok()?;
    ConfigDocument::parse(format, "copy", text).ok()
}

/// Returns whether these bytes are a file from before it was connected.
fn is_unconnected(plan: &FilePlan, bytes: Option<&[u8]>) -> bool {
    let Some(document) = parse_copy(plan.format, bytes) else { return false };
    match &plan.entry {
        Some(entry) => document.get(entry).is_none(),
        // Claude Code's permissions: the rule that names us.
        None => !document.to_text().contains("mcp__ringfence"),
    }
}

fn show_changes(changes: &[FileChange], out: &mut impl Write) -> Result<()> {
    for change in changes {
        let old = match change.file.old_bytes() {
            Some(_) => Some(change.file.old_text()?),
            None => None,
        };
        let new = change.new.as_deref().map(String::from_utf8_lossy);
        let path = change.file.display_path();
        let colour = uses_colour(&std::io::stdout());
        write_text(out, &diff::show_difference(&path, old, new.as_deref(), colour))?;
    }
    Ok(())
}

fn write_changes(changes: Vec<FileChange>, out: &mut impl Write) -> Result<()> {
    for mut change in changes {
        change.file.create_directory()?;
        let mut note = String::new();
        if let (Some(backup), Some(new)) = (&change.backup, &change.new) {
            let name = save_backup(&change.file, backup.as_deref(), new)?;
            if backup.is_some() {
                note = format!("; the previous version is next to it: {}", name.to_string_lossy());
            }
        }
        let path = change.file.display_path();
        match &change.new {
            Some(new) => change.file.replace(new)?,
            None => change.file.remove()?,
        }
        if let Some(name) = &change.obsolete_backup {
            change.file.remove_sibling(name)?;
        }
        let verb = if change.new.is_some() { "Wrote" } else { "Removed" };
        write_text(out, &format!("{verb} {path}{note}\n"))?;
    }
    Ok(())
}

/// Returns the path of our executable, as clients have to start it.
pub fn own_executable() -> Result<String> {
    let path = std::env::current_exe().map_err(|error| {
        Error::internal("the path of this executable is unknown").with_source(error)
    })?;
    let text = path.to_str().filter(|_| path.is_file()).map(str::to_owned);
    text.ok_or_else(|| {
        Error::new(Kind::NotFound, format!("this executable was moved: {}", path.display()))
            .with_hint("Start it from the place where it is installed; that path must be UTF-8.")
    })
}

/// Returns the words by which a client starts this executable. The caches of `npx` and `uvx` are
/// emptied now and then, so a copy in them is named by its package and version.
fn launch_words(executable: &str) -> Vec<String> {
    let package = concat!("ringfence@", env!("CARGO_PKG_VERSION"));
    let has_part = |name: &str| Path::new(executable).iter().any(|part| part == name);
    let words: &[&str] = match () {
        () if has_part("_npx") => &["npx", "-y", package],
        () if has_part("uv") && (has_part("archive-v0") || has_part("builds-v0")) => {
            &["uvx", package]
        }
        () => &[executable],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn check_url(url: &str) -> Result<()> {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_plain = url.chars().all(|c| c.is_ascii_graphic());
    if is_plain && host.is_some_and(|host| !host.is_empty() && !host.starts_with('/')) {
        return Ok(());
    }
    Err(Error::invalid_arguments("`--http` takes the URL of a server")
        .with_hint("For example: --http http://127.0.0.1:8931/mcp"))
}

/// Codex 0.117 to 0.129 asks before each tool that is not named.
fn is_codex_without_default(env: &ProcessEnv) -> bool {
    let program = find_program(ClientName::Codex.programs(), env.get("PATH"));
    let version = program.and_then(|program: PathBuf| query_version(&program));
    let version = version.as_deref().and_then(parse_version);
    version.is_some_and(|version| ((0, 117)..(0, 130)).contains(&version))
}

/// Reads `codex-cli 0.120.0`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let word =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = word.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn describe_next_steps(client: ClientName, request: &ConnectRequest, project: bool) -> String {
    let title = client.title();
    let mut text = format!("{title} is connected. Restart it, then ask it to list its tools.\n");
    match (&request.http, client) {
        (Some(_), ClientName::Zed) => text.push_str(
            "Zed reads no variables in headers: if the server requires a token, add the header by hand.\n",
        ),
        (Some(_), _) => text.push_str(&format!(
            "It sends the token in {TOKEN_VARIABLE}: start {title} with that variable set.\n"
        )),
        (None, ClientName::Cursor) if !project => text.push_str(
            "Cursor starts it outside your project: add `--workspace` to its arguments, or use `--project` there.\n",
        ),
        _ => {}
    }
    if project && client == ClientName::Claude {
        text.push_str("Claude Code asks once whether to use the servers of this project.\n");
    }
    if project && client == ClientName::Codex {
        text.push_str("Codex reads the files of a project only if you trust the project.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_a_cache_is_named_by_its_package() {
        let package = format!("ringfence@{}", env!("CARGO_PKG_VERSION"));
        let npx = "/home/me/.npm/_npx/0a1b/node_modules/@ringfence/linux-x64/bin/ringfence";
        assert_eq!(launch_words(npx), ["npx", "-y", &package]);
        let uvx = "/home/me/.cache/uv/archive-v0/0a1b/bin/ringfence";
        assert_eq!(launch_words(uvx), ["uvx", &package]);
        for kept in ["/usr/bin/ringfence", "/home/me/uv/bin/ringfence"] {
            assert_eq!(launch_words(kept), [kept]);
        }
    }
}
