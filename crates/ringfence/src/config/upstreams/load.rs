//! Finds and reads the upstreams file and the lock file.
//!
//! A file that the operator named must exist, and no run may change it. Without one, a file may be
//! discovered in the workspace or above it, where anyone may have written it: it is used only if
//! the operator trusted exactly its bytes. Over HTTP nothing is discovered.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_client::config::{
    ConfigContents, FileOrigin, LoadedConfig, MAX_CONFIG_BYTES, discover_config_path, load_contents,
};
use ringfence_client::{ClientError, LockFile};
use rustix::fs::OFlags;

use super::super::trusted_files::{hash_contents, is_trusted, trusted_list_path};
use crate::base::{Error, Kind, Result};

/// Name of the lock file.
const LOCK_FILE: &str = "mcp.lock";
/// Permission of users that are neither the owner nor in the group.
const WRITABLE_BY_EVERYONE: u32 = 0o002;
/// In a directory with this bit, only the owner of a file can replace it.
const STICKY: u32 = 0o1000;

/// Where servers may come from.
pub struct UpstreamSources<'a> {
    /// Root directory of the server.
    pub root: &'a Path,
    /// File that the operator named.
    pub named_file: Option<&'a Path>,
    /// Directory in which discovery starts; `None` discovers nothing.
    pub search_from: Option<&'a Path>,
    /// Servers as JSON text, from the environment.
    pub config_json: Option<&'a OsStr>,
    /// Working directory of the process, where relative paths of the JSON start.
    pub cwd: Option<&'a Path>,
}

/// Everything that was read.
pub struct LoadedUpstreams {
    /// Servers and bundles, with the positions of their keys.
    pub loaded: LoadedConfig,
    /// Path of the lock file.
    pub lock_path: Option<PathBuf>,
    /// The accepted definitions.
    pub lock: LockFile,
    /// A file that was discovered and is not trusted.
    pub untrusted_file: Option<PathBuf>,
    /// Files to watch for changes.
    pub watched_files: Vec<PathBuf>,
    /// The operator named the servers; otherwise they depend on the project.
    pub is_named: bool,
}

/// Reads the servers and the lock file.
pub fn load_upstreams(sources: &UpstreamSources<'_>) -> Result<LoadedUpstreams> {
    let mut selection = select_file(sources)?;
    let has_json = sources.config_json.is_some_and(|json| !json.is_empty());
    let cwd = sources.cwd.unwrap_or(Path::new("/"));
    let loaded = load_contents(selection.contents.as_ref(), sources.config_json, cwd)
        .map_err(|error| convert_error(&error))?;
    let lock_path = match &selection.contents {
        Some(file) if file.found == FileOrigin::Discovered => {
            // Servers of different projects may have the same id.
            let project = &hash_contents(file.path.as_os_str().as_encoded_bytes())[..16];
            Some(sources.root.join("upstreams").join(project).join(LOCK_FILE))
        }
        Some(file) => Some(lock_path_next_to(&file.path)),
        None if has_json => Some(sources.root.join("upstreams").join(LOCK_FILE)),
        None => None,
    };
    let lock = match &lock_path {
        Some(path) => {
            check_directories(path, "the lock file")?;
            LockFile::read(path).map_err(|error| convert_lock_error(&error))?
        }
        None => LockFile::default(),
    };
    selection.watched_files.extend(lock_path.clone());
    Ok(LoadedUpstreams {
        loaded,
        lock_path,
        lock,
        untrusted_file: selection.untrusted_file,
        watched_files: selection.watched_files,
        is_named: sources.named_file.is_some() || has_json || sources.search_from.is_none(),
    })
}

/// Returns the path of the lock file of a named upstreams file.
pub fn lock_path_next_to(file: &Path) -> PathBuf {
    file.with_file_name(LOCK_FILE)
}

#[derive(Default)]
struct FileSelection {
    contents: Option<ConfigContents>,
    untrusted_file: Option<PathBuf>,
    watched_files: Vec<PathBuf>,
}

fn select_file(sources: &UpstreamSources<'_>) -> Result<FileSelection> {
    if let Some(path) = sources.named_file {
        let bytes = read_upstreams_file(path, FileOrigin::Argument)?;
        let contents = ConfigContents { path: path.to_owned(), found: FileOrigin::Argument, bytes };
        let target = path.canonicalize().ok().filter(|target| target != path);
        let watched_files = [Some(path.to_owned()), target].into_iter().flatten().collect();
        return Ok(FileSelection { contents: Some(contents), untrusted_file: None, watched_files });
    }
    let Some(path) = sources.search_from.and_then(discover_config_path) else {
        return Ok(FileSelection::default());
    };
    let found = FileOrigin::Discovered;
    let watched_files = vec![path.clone(), trusted_list_path(sources.root)];
    // A file above the workspace may belong to another user, so one that cannot be read must not
    // prevent the start.
    let trusted_bytes = match read_upstreams_file(&path, found) {
        Ok(bytes) => is_trusted(sources.root, &path, &bytes)?.then_some(bytes),
        Err(_) => None,
    };
    Ok(match trusted_bytes {
        Some(bytes) => {
            let contents = Some(ConfigContents { path, found, bytes });
            FileSelection { contents, untrusted_file: None, watched_files }
        }
        None => FileSelection { contents: None, untrusted_file: Some(path), watched_files },
    })
}

/// Reads an upstreams file; one byte more than the limit if it is too long, which the parser
/// reports.
pub fn read_upstreams_file(path: &Path, found: FileOrigin) -> Result<Vec<u8>> {
    let failed = |kind, problem: &str| {
        let hint = match found {
            FileOrigin::Discovered => "Make it a readable file, or remove it.",
            _ => {
                "Name the file with `--upstreams`, CODEX_TOOLLOOP_MCP_CONFIG_PATH or the key `upstreams`."
            }
        };
        Error::new(kind, format!("the upstreams file {} {problem}", path.display()))
            .with_reason("bad_config")
            .with_hint(hint)
    };
    // Opening a pipe would otherwise block until someone writes to it.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                failed(Kind::NotFound, "does not exist").with_source(error)
            }
            _ => failed(Kind::Unavailable, "cannot be read").with_source(error),
        })?;
    let unreadable = |error| failed(Kind::Unavailable, "cannot be read").with_source(error);
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(failed(Kind::InvalidArguments, "is not a regular file"));
    }
    if found != FileOrigin::Discovered {
        if metadata.mode() & WRITABLE_BY_EVERYONE != 0 {
            return Err(failed(Kind::PermissionDenied, "is writable by everyone")
                .with_hint("Run `chmod o-w` on it."));
        }
        check_directories(path, "the upstreams file")?;
    }
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Fails if every user can replace a file because they can write its directory. In one like /tmp
/// (with the sticky bit) only the owner of a file can.
///
/// The directory of a link and that of its target count. A directory that no one else can write
/// stays so, so it does not matter that the file was opened before.
fn check_directories(path: &Path, name: &str) -> Result<()> {
    let target = path.canonicalize().ok();
    for directory in [Some(path), target.as_deref()].into_iter().flatten().filter_map(Path::parent)
    {
        let mode = directory.metadata().map(|metadata| metadata.mode()).unwrap_or_default();
        if mode & WRITABLE_BY_EVERYONE != 0 && mode & STICKY == 0 {
            return Err(Error::new(
                Kind::PermissionDenied,
                format!("the directory {} of {name} is writable by everyone", directory.display()),
            )
            .with_reason("bad_config")
            .with_hint(format!("Run `chmod o-w` on it, or move {name}.")));
        }
    }
    Ok(())
}

/// Converts an error of the client, which names file, line and key.
pub fn convert_error(error: &ClientError) -> Error {
    Error::invalid_arguments(error.message().to_owned())
        .with_reason("bad_config")
        .with_hint(error.hint().unwrap_or("Correct the upstreams file.").to_owned())
}

fn convert_lock_error(error: &ClientError) -> Error {
    Error::invalid_arguments(error.message().to_owned()).with_reason("bad_config").with_hint(
        error
            .hint()
            .unwrap_or(
                "Restore the lock file, or remove it and run `ringfence upstream accept` again.",
            )
            .to_owned(),
    )
}
