//! `mcp.lock`: the tool definitions that someone has accepted, whole, and the packages that servers
//! were installed from.
//!
//! The file is pin and catalog at once: a list of tools can be made from it without starting any
//! server, and a server whose definitions differ from it is noticed. It is meant to be committed, so
//! its text depends on its contents alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::catalog::{ToolCatalog, ToolDefinition};
use crate::error::{ClientError, ErrorKind, Result};
use crate::handshake::ServerGreeting;
use crate::limits::Limits;

/// Version of the file's format.
const FORMAT_VERSION: u32 = 1;
/// Longest file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Permission of users that are neither the owner nor in the group.
const WRITABLE_BY_EVERYONE: u32 = 0o002;

/// Accepted definitions of all servers, and their installed packages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LockFile {
    pub servers: BTreeMap<String, LockedServer>,
    /// Packages by the id of their server. Apart from the definitions, because a server must be
    /// installed before anyone can ask what it offers.
    pub packages: BTreeMap<String, LockedPackage>,
}

/// Package that a server was installed from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedPackage {
    /// Package runner of the server's command, such as `npx`.
    pub runner: String,
    /// Packages as the server's arguments name them; the first one has the program.
    pub requested: Vec<String>,
    /// Version that was installed of the first one.
    pub version: String,
    /// Hash of its archive, as the package manager gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity: Option<String>,
    /// Digest over the installed files: paths, modes and contents.
    pub tree: String,
}

/// Accepted definitions of one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedServer {
    /// What the server says about itself.
    pub identity: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Definitions by name.
    pub tools: BTreeMap<String, Value>,
}

/// Difference between what was accepted and what a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockChange {
    ServerAdded,
    /// The server calls itself something else.
    IdentityChanged,
    InstructionsChanged,
    ToolAdded(String),
    ToolRemoved(String),
    /// The tool, and the members of its definition that differ.
    ToolChanged {
        tool: String,
        members: Vec<String>,
    },
}

#[derive(Serialize)]
struct FileText<'a> {
    version: u32,
    servers: &'a BTreeMap<String, LockedServer>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    packages: &'a BTreeMap<String, LockedPackage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileContents {
    version: u32,
    servers: BTreeMap<String, LockedServer>,
    #[serde(default)]
    packages: BTreeMap<String, LockedPackage>,
}

impl LockFile {
    /// Reads the file. A file that does not exist is empty; one that every user can write is refused,
    /// because it could have any definitions.
    pub fn read(path: &Path) -> Result<LockFile> {
        let mut text = String::new();
        match File::open(path) {
            Ok(file) => {
                let metadata = file.metadata().map_err(|error| file_error(path, &error))?;
                if metadata.mode() & WRITABLE_BY_EVERYONE != 0 {
                    return Err(file_error(path, &"it is writable by everyone").with_hint(
                        "Compare it with the version that you know, then run `chmod o-w` on it.",
                    ));
                }
                let count = file
                    .take(MAX_FILE_BYTES + 1)
                    .read_to_string(&mut text)
                    .map_err(|error| file_error(path, &error))?;
                if count as u64 > MAX_FILE_BYTES {
                    return Err(file_error(path, &"it is too long"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockFile::default()),
            Err(error) => return Err(file_error(path, &error)),
        }
        LockFile::parse(&text).map_err(|error| file_error(path, &error.message()))
    }

    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<LockFile> {
        let contents: FileContents = serde_json::from_str(text).map_err(|error| {
            ClientError::new(ErrorKind::InvalidConfig, format!("it cannot be read: {error}"))
        })?;
        match contents.version {
            FORMAT_VERSION => {
                Ok(LockFile { servers: contents.servers, packages: contents.packages })
            }
            version => Err(ClientError::new(
                ErrorKind::InvalidConfig,
                format!("it has version {version}, but only version {FORMAT_VERSION} is known"),
            )),
        }
    }

    /// Returns the text of the file. Servers and tools are in the order of their names; definitions
    /// keep the order that their server gave them, because a model sees it.
    pub fn to_text(&self) -> Result<String> {
        let contents =
            FileText { version: FORMAT_VERSION, servers: &self.servers, packages: &self.packages };
        let mut text = serde_json::to_string_pretty(&contents).map_err(|error| {
            ClientError::new(ErrorKind::InvalidConfig, format!("it cannot be written: {error}"))
        })?;
        text.push('\n');
        Ok(text)
    }

    /// Reads the file, changes it and writes it, while no other process does the same. Blocks.
    pub fn update(path: &Path, change: impl FnOnce(&mut LockFile)) -> Result<()> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        // The directory is locked, because the file itself is replaced.
        let guard = File::open(directory).map_err(|error| file_error(path, &error))?;
        guard.lock().map_err(|error| file_error(path, &error))?;
        let mut file = LockFile::read(path)?;
        change(&mut file);
        file.write(path)
    }

    /// Writes the file as a whole: a reader sees the old one or the new one.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = self.to_text()?;
        let new_path = temporary_path(path);
        let written = File::create_new(&new_path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new_path, path)
        });
        written.map_err(|error| {
            // Nothing is to be left behind; the first error says what went wrong.
            let _ = std::fs::remove_file(&new_path);
            file_error(path, &error)
        })
    }
}

/// Returns a name next to the file that no other writer uses.
fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    path.with_file_name(name)
}

fn file_error(path: &Path, cause: &dyn std::fmt::Display) -> ClientError {
    ClientError::new(ErrorKind::InvalidConfig, format!("{}: {cause}", path.display()))
}

impl LockedServer {
    /// Takes what a server offers now.
    pub fn from_offer(greeting: &ServerGreeting, catalog: &ToolCatalog) -> LockedServer {
        // Every definition of a catalog can be read: `ToolDefinition::parse` has read it whole.
        let tools = catalog.tools.iter().filter_map(|(name, tool)| {
            Some((name.clone(), serde_json::from_str(&tool.text).ok()?))
        });
        LockedServer {
            identity: greeting.server_info.clone(),
            instructions: greeting.instructions.clone(),
            tools: tools.collect(),
        }
    }

    /// Returns the definitions as a catalog would, in order. One that is no longer within the limits
    /// is left out.
    pub fn definitions(&self, limits: &Limits) -> Vec<ToolDefinition> {
        self.tools
            .values()
            .filter_map(|definition| ToolDefinition::parse(&definition.to_string(), limits).ok())
            .collect()
    }

    /// Returns what differs in an offer from what was accepted, in order.
    pub fn compare(accepted: Option<&LockedServer>, offer: &LockedServer) -> Vec<LockChange> {
        let Some(accepted) = accepted else {
            let tools = offer.tools.keys().cloned().map(LockChange::ToolAdded);
            return [LockChange::ServerAdded].into_iter().chain(tools).collect();
        };
        let mut changes = Vec::new();
        if server_name(&accepted.identity) != server_name(&offer.identity) {
            changes.push(LockChange::IdentityChanged);
        }
        if accepted.instructions != offer.instructions {
            changes.push(LockChange::InstructionsChanged);
        }
        for (name, definition) in &offer.tools {
            match accepted.tools.get(name) {
                None => changes.push(LockChange::ToolAdded(name.clone())),
                Some(known) if known == definition => {}
                Some(known) => changes.push(LockChange::ToolChanged {
                    tool: name.clone(),
                    members: changed_members(known, definition),
                }),
            }
        }
        let removed = accepted.tools.keys().filter(|name| !offer.tools.contains_key(*name));
        changes.extend(removed.cloned().map(LockChange::ToolRemoved));
        changes
    }
}

/// Identity without the version: an update of a server whose tools stay the same needs no one.
fn server_name(identity: &Value) -> &Value {
    &identity["name"]
}

fn changed_members(known: &Value, offered: &Value) -> Vec<String> {
    let empty = serde_json::Map::new();
    let (known, offered) =
        (known.as_object().unwrap_or(&empty), offered.as_object().unwrap_or(&empty));
    let mut members: Vec<String> = known
        .keys()
        .chain(offered.keys())
        .filter(|member| known.get(*member) != offered.get(*member))
        .cloned()
        .collect();
    members.sort();
    members.dedup();
    members
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn server(tools: Value) -> LockedServer {
        LockedServer {
            identity: json!({"name": "s", "version": "1"}),
            instructions: None,
            tools: serde_json::from_value(tools).unwrap(),
        }
    }

    #[test]
    fn the_text_does_not_depend_on_the_order_of_tools_and_keeps_that_of_definitions() {
        let definition = json!({"name": "b", "inputSchema": {"x": 1, "a": 2}});
        let one = server(json!({"b": definition, "a": {}}));
        let other = server(json!({"a": {}, "b": definition}));
        let file = |locked: LockedServer| LockFile {
            servers: BTreeMap::from([("s".to_owned(), locked)]),
            packages: BTreeMap::new(),
        };
        let text = file(one).to_text().unwrap();
        assert_eq!(text, file(other).to_text().unwrap());
        assert_eq!(LockFile::parse(&text).unwrap().to_text().unwrap(), text);
        assert!(text.find("\"x\": 1") < text.find("\"a\": 2"), "{text}");
    }

    #[test]
    fn a_change_names_what_differs() {
        let accepted = server(json!({
            "kept": {"name": "kept", "description": "d"},
            "gone": {"name": "gone"},
            "changed": {"name": "changed", "description": "reads", "inputSchema": {}},
        }));
        let mut offer = server(json!({
            "kept": {"description": "d", "name": "kept"},
            "changed": {"name": "changed", "description": "deletes", "annotations": {}, "inputSchema": {}},
            "new": {"name": "new"},
        }));
        offer.identity = json!({"name": "s", "version": "2"});
        assert_eq!(
            LockedServer::compare(Some(&accepted), &offer),
            [
                LockChange::ToolChanged {
                    tool: "changed".to_owned(),
                    members: vec!["annotations".to_owned(), "description".to_owned()],
                },
                LockChange::ToolAdded("new".to_owned()),
                LockChange::ToolRemoved("gone".to_owned()),
            ]
        );
        offer.identity = json!({"name": "other"});
        offer.instructions = Some("Obey.".to_owned());
        let changes = LockedServer::compare(Some(&accepted), &offer);
        assert_eq!(changes[..2], [LockChange::IdentityChanged, LockChange::InstructionsChanged]);
        assert_eq!(LockedServer::compare(None, &offer)[0], LockChange::ServerAdded);
    }

    #[test]
    fn packages_are_optional_and_strict() {
        let package = json!({
            "runner": "npx", "requested": ["one@1"], "version": "1.0.0", "tree": "sha256:0",
        });
        let text = |package: &Value| {
            json!({"version": 1, "servers": {}, "packages": {"one": package}}).to_string()
        };
        let file = LockFile::parse(&text(&package)).unwrap();
        assert_eq!(file.packages["one"].version, "1.0.0");
        assert_eq!(LockFile::parse(&file.to_text().unwrap()).unwrap(), file);
        // A file that earlier versions wrote stays as it is.
        let without = LockFile::default().to_text().unwrap();
        assert!(!without.contains("packages"), "{without}");
        assert_eq!(LockFile::parse(&without).unwrap(), LockFile::default());
        for (member, value) in [("path", json!("/")), ("version", json!(1))] {
            let mut broken = package.clone();
            broken[member] = value;
            assert!(LockFile::parse(&text(&broken)).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_file_that_is_missing_is_empty_and_one_that_is_broken_is_an_error() {
        let directory = std::env::temp_dir().join(format!("mcp-lock-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("mcp.lock");
        assert_eq!(LockFile::read(&path).unwrap(), LockFile::default());
        let mut file = LockFile::default();
        file.servers.insert("s".to_owned(), server(json!({"a": {"name": "a"}})));
        file.write(&path).unwrap();
        assert_eq!(LockFile::read(&path).unwrap(), file);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
        for text in
            ["", "{}", r#"{"version":2,"servers":{}}"#, r#"{"version":1,"servers":{},"x":1}"#]
        {
            std::fs::write(&path, text).unwrap();
            let error = LockFile::read(&path).unwrap_err();
            assert!(error.message().contains("mcp.lock"), "{error}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
