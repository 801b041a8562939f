//! Reader for every form in which Codex has reported its sandbox.
//!
//! A state holds a `permissionProfile` (since 0.125) or a `sandboxPolicy`; if it has both, the
//! newer form takes precedence. Additions of later versions are ignored as far as they only grant.
//! Anything that cannot be understood is an error, and the most restrictive sandbox is used
//! instead.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::base::client_sandbox::{
    ClientAccess, ClientAccessEntry, ClientAccessPath, ClientFileAccess, ClientSandbox,
    REQUIRED_SYSTEM_DIRS,
};
use crate::base::glob::Glob;

/// Largest number of entries; real policies have fewer.
const MAX_ENTRIES: usize = 1024;

/// Result of reading a state; the error says why it cannot be read.
type ReadResult<T> = std::result::Result<T, String>;

/// Reads a sandbox state in any of its forms.
pub fn read_state(state: &Value) -> ReadResult<ClientSandbox> {
    let field = |key: &str| state.get(key).filter(|value| !value.is_null());
    let cwd = field("sandboxCwd").map(read_directory).transpose()?;
    let mut sandbox = match (field("permissionProfile"), field("sandboxPolicy")) {
        (Some(profile), _) => self::read_profile(profile)?,
        (None, Some(policy)) => self::read_policy(policy)?,
        (None, None) => {
            return Err("it has neither `permissionProfile` nor `sandboxPolicy`".to_owned());
        }
    };
    if let Some(files) = &mut sandbox.files {
        if files.entries.len() + files.denied_globs.len() > MAX_ENTRIES {
            return Err(format!("it has more than {MAX_ENTRIES} entries"));
        }
        files.cwd = cwd;
    }
    Ok(sandbox)
}

/// Reads a path, or since 0.142 a `file:` URI.
fn read_directory(value: &Value) -> ReadResult<PathBuf> {
    let text = value.as_str().ok_or("`sandboxCwd` is not a string")?;
    match text.strip_prefix("file://") {
        None => absolute_path(text),
        Some(rest) => {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            absolute_path(
                &percent_decode(path).ok_or("`sandboxCwd` is not a `file:` URI of this host")?,
            )
        }
    }
}

/// Decodes `%20` and other percent escapes.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            // A query or fragment is not part of a path.
            b'?' | b'#' => return None,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

fn absolute_path(text: &str) -> ReadResult<PathBuf> {
    let path = Path::new(text);
    let is_plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match path.is_absolute() && is_plain && !text.contains('\0') {
        true => Ok(path.components().collect()),
        false => Err("a path in it is not absolute and plain".to_owned()),
    }
}

fn read_paths(list: Option<&Value>) -> ReadResult<Vec<PathBuf>> {
    match list {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| absolute_path(item.as_str().ok_or("a path in it is not a string")?))
            .collect(),
        Some(_) => Err("a list of paths in it is not an array".to_owned()),
    }
}

/// Returns true only if network access is clearly stated: by a boolean in most forms, by a word in
/// others.
fn allows_network(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(enabled)) => *enabled,
        Some(Value::String(text)) => text == "enabled",
        Some(Value::Object(map)) => map.get("enabled") == Some(&Value::Bool(true)),
        _ => false,
    }
}

fn without_file_limits(mode: &str, network: bool, unsandboxed: bool) -> ClientSandbox {
    ClientSandbox {
        mode: mode.to_owned(),
        files: None,
        allows_network: network,
        unsandboxed,
        ignored: Vec::new(),
    }
}

/// Reads a `sandboxPolicy`, used up to 0.141.
fn read_policy(policy: &Value) -> ReadResult<ClientSandbox> {
    let kind = policy.get("type").and_then(Value::as_str).unwrap_or_default();
    let network = allows_network(policy.get("network_access"));
    let mut entries = match kind {
        "danger-full-access" => return Ok(without_file_limits(kind, true, true)),
        "external-sandbox" => return Ok(without_file_limits(kind, network, false)),
        "read-only" => readable_entries(policy.get("access"))?,
        "workspace-write" => readable_entries(policy.get("read_only_access"))?,
        _ => return Err("its `sandboxPolicy` has no known type".to_owned()),
    };
    if kind == "workspace-write" {
        entries.push(ClientAccessEntry::for_project("", ClientAccess::Write));
        entries.extend(
            read_paths(policy.get("writable_roots"))?
                .into_iter()
                .map(|path| ClientAccessEntry::for_path(path, ClientAccess::Write)),
        );
        if policy.get("exclude_slash_tmp") != Some(&Value::Bool(true)) {
            entries.push(ClientAccessEntry::for_path("/tmp", ClientAccess::Write));
        }
    }
    let files = Some(ClientFileAccess { entries, ..ClientFileAccess::default() });
    Ok(ClientSandbox { files, ..without_file_limits(kind, network, false) })
}

/// Returns what a policy allows to read: everything, or since 0.104 what it lists.
fn readable_entries(access: Option<&Value>) -> ReadResult<Vec<ClientAccessEntry>> {
    let kind = access.and_then(|access| access.get("type")).and_then(Value::as_str);
    match (access, kind) {
        (None | Some(Value::Null), _) | (_, Some("full-access")) => {
            Ok(vec![ClientAccessEntry::for_path("/", ClientAccess::Read)])
        }
        (Some(access), Some("restricted")) => {
            let mut entries: Vec<ClientAccessEntry> = read_paths(access.get("readable_roots"))?
                .into_iter()
                .map(|path| ClientAccessEntry::for_path(path, ClientAccess::Read))
                .collect();
            entries.push(ClientAccessEntry::for_project("", ClientAccess::Read));
            entries.extend(
                REQUIRED_SYSTEM_DIRS
                    .iter()
                    .map(|path| ClientAccessEntry::for_path(*path, ClientAccess::Read)),
            );
            Ok(entries)
        }
        _ => Err("the read access of its `sandboxPolicy` has no known type".to_owned()),
    }
}

/// Reads a `permissionProfile`, used since 0.125; the form before that has no type.
fn read_profile(profile: &Value) -> ReadResult<ClientSandbox> {
    let network = allows_network(profile.get("network"));
    match profile.get("type").map(|kind| kind.as_str().unwrap_or_default()) {
        Some("disabled") => Ok(without_file_limits("disabled", true, true)),
        Some("external") => Ok(without_file_limits("external", network, false)),
        Some("managed") | None => {
            let file_system =
                profile.get("file_system").ok_or("its `permissionProfile` has no `file_system`")?;
            let mut sandbox = without_file_limits("managed", network, false);
            sandbox.files = read_file_system(file_system, &mut sandbox.ignored)?;
            sandbox.mode = mode_name(sandbox.files.as_ref()).to_owned();
            Ok(sandbox)
        }
        Some(_) => Err("its `permissionProfile` has no known type".to_owned()),
    }
}

/// Returns the name under which users know the mode.
fn mode_name(files: Option<&ClientFileAccess>) -> &'static str {
    match files {
        None => "managed",
        Some(files) if files.entries.iter().any(|entry| entry.access == ClientAccess::Write) => {
            "workspace-write"
        }
        Some(_) => "read-only",
    }
}

fn read_file_system(
    file_system: &Value,
    ignored: &mut Vec<String>,
) -> ReadResult<Option<ClientFileAccess>> {
    match file_system.get("type").map(|kind| kind.as_str().unwrap_or_default()) {
        Some("unrestricted") => return Ok(None),
        Some("restricted") | None => {}
        Some(_) => return Err("its `file_system` has no known type".to_owned()),
    }
    let mut files = ClientFileAccess::default();
    for (key, access) in [("read", ClientAccess::Read), ("write", ClientAccess::Write)] {
        files.entries.extend(
            read_paths(file_system.get(key))?
                .into_iter()
                .map(|path| ClientAccessEntry::for_path(path, access)),
        );
    }
    match file_system.get("entries") {
        Some(Value::Array(entries)) => {
            entries
                .iter()
                .take(MAX_ENTRIES + 1)
                .try_for_each(|entry| add_entry(&mut files, entry, ignored))?;
        }
        None | Some(Value::Null) if !files.entries.is_empty() => {}
        _ => return Err("its `file_system` has no entries".to_owned()),
    }
    Ok(Some(files))
}

fn add_entry(
    files: &mut ClientFileAccess,
    entry: &Value,
    ignored: &mut Vec<String>,
) -> ReadResult<()> {
    let access = match entry.get("access").and_then(Value::as_str) {
        Some("read") => ClientAccess::Read,
        Some("write") => ClientAccess::Write,
        Some("deny" | "none") => ClientAccess::Deny,
        _ => {
            ignored.push("an unknown access is treated as `deny`".to_owned());
            ClientAccess::Deny
        }
    };
    let skip_missing = entry.get("missing_path_behavior").and_then(Value::as_str) == Some("skip");
    let path = entry.get("path").unwrap_or(&Value::Null);
    let text = |key: &str| path.get(key).and_then(Value::as_str);
    let access_path = match (path, text("type")) {
        (Value::String(path), _) => Some(ClientAccessPath::Path(absolute_path(path)?)),
        (_, Some("path")) => Some(ClientAccessPath::Path(absolute_path(
            text("path").ok_or("an entry has no path")?,
        )?)),
        (_, Some("special")) => {
            resolve_special(path.get("value").unwrap_or(&Value::Null), access, files, ignored)?
        }
        (_, Some("glob_pattern")) => {
            let pattern = text("pattern").ok_or("an entry has no pattern")?;
            match access {
                ClientAccess::Deny => files
                    .denied_globs
                    .push(Glob::parse(pattern).ok_or("a pattern in it cannot be read")?),
                ClientAccess::Read | ClientAccess::Write => {
                    ignored.push("a pattern cannot grant access".to_owned())
                }
            }
            None
        }
        // An entry that would only grant can be left out; one that would deny cannot.
        _ if access == ClientAccess::Deny => {
            return Err("it denies something that cannot be located".to_owned());
        }
        _ => {
            ignored.push("an entry of an unknown kind".to_owned());
            None
        }
    };
    files.entries.extend(access_path.map(|access_path| ClientAccessEntry {
        path: access_path,
        access,
        skip_missing,
    }));
    Ok(())
}

/// Resolves a path that is given by a name.
fn resolve_special(
    value: &Value,
    access: ClientAccess,
    files: &mut ClientFileAccess,
    ignored: &mut Vec<String>,
) -> ReadResult<Option<ClientAccessPath>> {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "root" => Ok(Some(ClientAccessPath::Path("/".into()))),
        "slash_tmp" => Ok(Some(ClientAccessPath::Path("/tmp".into()))),
        "project_roots" | "current_working_directory" => {
            let subpath = value.get("subpath").and_then(Value::as_str).unwrap_or_default();
            let is_plain =
                Path::new(subpath).components().all(|part| matches!(part, Component::Normal(_)));
            is_plain
                .then(|| Some(ClientAccessPath::Project(subpath.into())))
                .ok_or_else(|| "a subpath in it is not plain".to_owned())
        }
        "minimal" => {
            files.entries.extend(
                REQUIRED_SYSTEM_DIRS.iter().map(|path| ClientAccessEntry::for_path(*path, access)),
            );
            Ok(None)
        }
        // Only the client knows its path; a run has its own.
        "tmpdir" => Ok(None),
        _ => {
            let shown_kind: String =
                kind.chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
            ignored.push(format!("the special path `{shown_kind}` is unknown"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
