//! One reader for every form in which Codex has told of its sandbox.
//!
//! A state holds a `permissionProfile` (since 0.125) or a `sandboxPolicy`; the newer one counts where both are. What a
//! later version adds is ignored as far as it only grants; what cannot be understood is an error, for which the most
//! restrictive sandbox stands in.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::base::glob::Glob;
use crate::base::narrowing::{Access, Entry, Files, MINIMAL, Narrowing, Place};

/// Nobody's policy is longer.
const ENTRIES: usize = 1024;

/// Why a state cannot be read.
type Read<T> = std::result::Result<T, String>;

pub fn read(state: &Value) -> Read<Narrowing> {
    let given = |key: &str| state.get(key).filter(|value| !value.is_null());
    let cwd = given("sandboxCwd").map(directory).transpose()?;
    let mut narrowing = match (given("permissionProfile"), given("sandboxPolicy")) {
        (Some(profile), _) => self::profile(profile)?,
        (None, Some(policy)) => self::policy(policy)?,
        (None, None) => {
            return Err("it has neither `permissionProfile` nor `sandboxPolicy`".to_owned());
        }
    };
    if let Some(files) = &mut narrowing.files {
        if files.entries.len() + files.denied.len() > ENTRIES {
            return Err(format!("it has more than {ENTRIES} entries"));
        }
        files.cwd = cwd;
    }
    Ok(narrowing)
}

/// A path, or since 0.142 a `file:` URI.
fn directory(value: &Value) -> Read<PathBuf> {
    let text = value.as_str().ok_or("`sandboxCwd` is no text")?;
    match text.strip_prefix("file://") {
        None => absolute(text),
        Some(rest) => {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            absolute(&decoded(path).ok_or("`sandboxCwd` is no `file:` URI of this host")?)
        }
    }
}

/// `%20` and its like written out.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            // What follows these is no part of a path.
            b'?' | b'#' => return None,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

fn absolute(text: &str) -> Read<PathBuf> {
    let path = Path::new(text);
    let plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match path.is_absolute() && plain && !text.contains('\0') {
        true => Ok(path.components().collect()),
        false => Err("a path in it is not absolute and plain".to_owned()),
    }
}

fn paths(list: Option<&Value>) -> Read<Vec<PathBuf>> {
    match list {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| absolute(item.as_str().ok_or("a path in it is no text")?))
            .collect(),
        Some(_) => Err("a list of paths in it is none".to_owned()),
    }
}

/// True only where it is clearly said: a bool in most forms, a word in others.
fn network(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(enabled)) => *enabled,
        Some(Value::String(word)) => word == "enabled",
        Some(Value::Object(map)) => map.get("enabled") == Some(&Value::Bool(true)),
        _ => false,
    }
}

fn open(mode: &str, network: bool, unsandboxed: bool) -> Narrowing {
    Narrowing { mode: mode.to_owned(), files: None, network, unsandboxed, ignored: Vec::new() }
}

/// `sandboxPolicy`, up to 0.141.
fn policy(policy: &Value) -> Read<Narrowing> {
    let kind = policy.get("type").and_then(Value::as_str).unwrap_or_default();
    let network = network(policy.get("network_access"));
    let mut entries = match kind {
        "danger-full-access" => return Ok(open(kind, true, true)),
        "external-sandbox" => return Ok(open(kind, network, false)),
        "read-only" => readable(policy.get("access"))?,
        "workspace-write" => readable(policy.get("read_only_access"))?,
        _ => return Err("its `sandboxPolicy` has no type that is known".to_owned()),
    };
    if kind == "workspace-write" {
        entries.push(Entry::project("", Access::Write));
        entries.extend(
            paths(policy.get("writable_roots"))?
                .into_iter()
                .map(|path| Entry::path(path, Access::Write)),
        );
        if policy.get("exclude_slash_tmp") != Some(&Value::Bool(true)) {
            entries.push(Entry::path("/tmp", Access::Write));
        }
    }
    let files = Some(Files { entries, ..Files::default() });
    Ok(Narrowing { files, ..open(kind, network, false) })
}

/// What a policy lets be read: everything, or since 0.104 what it lists.
fn readable(access: Option<&Value>) -> Read<Vec<Entry>> {
    let kind = access.and_then(|access| access.get("type")).and_then(Value::as_str);
    match (access, kind) {
        (None | Some(Value::Null), _) | (_, Some("full-access")) => {
            Ok(vec![Entry::path("/", Access::Read)])
        }
        (Some(access), Some("restricted")) => {
            let mut entries: Vec<Entry> = paths(access.get("readable_roots"))?
                .into_iter()
                .map(|path| Entry::path(path, Access::Read))
                .collect();
            entries.push(Entry::project("", Access::Read));
            entries.extend(MINIMAL.iter().map(|path| Entry::path(*path, Access::Read)));
            Ok(entries)
        }
        _ => Err("what its `sandboxPolicy` lets be read is not known".to_owned()),
    }
}

/// `permissionProfile`, since 0.125; without a type in the form before that.
fn profile(profile: &Value) -> Read<Narrowing> {
    let network = network(profile.get("network"));
    match profile.get("type").map(|kind| kind.as_str().unwrap_or_default()) {
        Some("disabled") => Ok(open("disabled", true, true)),
        Some("external") => Ok(open("external", network, false)),
        Some("managed") | None => {
            let system =
                profile.get("file_system").ok_or("its `permissionProfile` has no `file_system`")?;
            let mut narrowing = open("managed", network, false);
            narrowing.files = file_system(system, &mut narrowing.ignored)?;
            narrowing.mode = mode(narrowing.files.as_ref()).to_owned();
            Ok(narrowing)
        }
        Some(_) => Err("its `permissionProfile` has no type that is known".to_owned()),
    }
}

/// By the name under which people know it.
fn mode(files: Option<&Files>) -> &'static str {
    match files {
        None => "managed",
        Some(files) if files.entries.iter().any(|entry| entry.access == Access::Write) => {
            "workspace-write"
        }
        Some(_) => "read-only",
    }
}

fn file_system(system: &Value, ignored: &mut Vec<String>) -> Read<Option<Files>> {
    match system.get("type").map(|kind| kind.as_str().unwrap_or_default()) {
        Some("unrestricted") => return Ok(None),
        Some("restricted") | None => {}
        Some(_) => return Err("its `file_system` has no type that is known".to_owned()),
    }
    let mut files = Files::default();
    for (key, access) in [("read", Access::Read), ("write", Access::Write)] {
        files
            .entries
            .extend(paths(system.get(key))?.into_iter().map(|path| Entry::path(path, access)));
    }
    match system.get("entries") {
        Some(Value::Array(entries)) => {
            entries
                .iter()
                .take(ENTRIES + 1)
                .try_for_each(|entry| add(&mut files, entry, ignored))?;
        }
        None | Some(Value::Null) if !files.entries.is_empty() => {}
        _ => return Err("its `file_system` has no entries".to_owned()),
    }
    Ok(Some(files))
}

fn add(files: &mut Files, entry: &Value, ignored: &mut Vec<String>) -> Read<()> {
    let access = match entry.get("access").and_then(Value::as_str) {
        Some("read") => Access::Read,
        Some("write") => Access::Write,
        Some("deny" | "none") => Access::Deny,
        _ => {
            ignored.push("an access that is not known is taken for `deny`".to_owned());
            Access::Deny
        }
    };
    let skip_missing = entry.get("missing_path_behavior").and_then(Value::as_str) == Some("skip");
    let path = entry.get("path").unwrap_or(&Value::Null);
    let text = |key: &str| path.get(key).and_then(Value::as_str);
    let place = match (path, text("type")) {
        (Value::String(path), _) => Some(Place::Path(absolute(path)?)),
        (_, Some("path")) => {
            Some(Place::Path(absolute(text("path").ok_or("an entry has no path")?)?))
        }
        (_, Some("special")) => {
            special(path.get("value").unwrap_or(&Value::Null), access, files, ignored)?
        }
        (_, Some("glob_pattern")) => {
            let pattern = text("pattern").ok_or("an entry has no pattern")?;
            match access {
                Access::Deny => {
                    files.denied.push(Glob::parse(pattern).ok_or("a pattern in it cannot be read")?)
                }
                Access::Read | Access::Write => ignored.push("a pattern opens nothing".to_owned()),
            }
            None
        }
        // What would only grant can be left out. What would deny cannot.
        _ if access == Access::Deny => {
            return Err("it denies something that cannot be located".to_owned());
        }
        _ => {
            ignored.push("an entry of a kind that is not known".to_owned());
            None
        }
    };
    files.entries.extend(place.map(|place| Entry { place, access, skip_missing }));
    Ok(())
}

/// Places that have a name in place of a path.
fn special(
    value: &Value,
    access: Access,
    files: &mut Files,
    ignored: &mut Vec<String>,
) -> Read<Option<Place>> {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "root" => Ok(Some(Place::Path("/".into()))),
        "slash_tmp" => Ok(Some(Place::Path("/tmp".into()))),
        "project_roots" | "current_working_directory" => {
            let below = value.get("subpath").and_then(Value::as_str).unwrap_or_default();
            let plain =
                Path::new(below).components().all(|part| matches!(part, Component::Normal(_)));
            plain
                .then(|| Some(Place::Project(below.into())))
                .ok_or_else(|| "a subpath in it is not plain".to_owned())
        }
        "minimal" => {
            files.entries.extend(MINIMAL.iter().map(|path| Entry::path(*path, access)));
            Ok(None)
        }
        // Where that is, only the client knows; a run has its own.
        "tmpdir" => Ok(None),
        _ => {
            let shown: String = kind.chars().filter(|c| c.is_ascii_graphic()).take(40).collect();
            ignored.push(format!("the special place `{shown}` is not known"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
