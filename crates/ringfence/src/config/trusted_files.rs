//! Upstreams files that were found in a project, and which of them the operator trusts.
//!
//! Such a file can come with a repository that someone else wrote, and names programs to start. It
//! is used only if the operator trusted exactly these bytes: `<root>/upstreams/trusted.json` maps
//! the absolute path of each file to the SHA-256 of its contents. A file is read once; what was
//! hashed is what is parsed.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_client::config::{ClientConfig, ConfigContents, FileOrigin, load_contents};

use super::upstreams::load::{convert_error, read_upstreams_file};
use super::upstreams::servers::check_upstreams_file;
use crate::base::{Error, Kind, Result, ids};

/// Maximum size of the list of trusted files.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// An upstreams file as it was read: what the operator is shown is what becomes trusted.
#[derive(Debug)]
pub struct TrustCandidate {
    /// Absolute path, without links.
    pub path: PathBuf,
    /// SHA-256 of its contents, in hexadecimal.
    pub sha256: String,
    /// Its servers and bundles.
    pub config: ClientConfig,
}

impl TrustCandidate {
    /// Reads a file. Fails if it is not a valid upstreams file.
    pub fn read(path: &Path) -> Result<TrustCandidate> {
        let path = path.canonicalize().map_err(|error| {
            Error::new(Kind::NotFound, format!("there is no file {}", path.display()))
                .with_hint("Give the path of an upstreams file.")
                .with_source(error)
        })?;
        let bytes = read_upstreams_file(&path, FileOrigin::Discovered)?;
        let sha256 = hash_contents(&bytes);
        let file = ConfigContents { path: path.clone(), found: FileOrigin::Discovered, bytes };
        let directory = path.parent().unwrap_or(&path);
        let loaded =
            load_contents(Some(&file), None, directory).map_err(|error| convert_error(&error))?;
        check_upstreams_file(&loaded)?;
        Ok(TrustCandidate { config: loaded.config, path, sha256 })
    }

    /// Adds the file to the list of trusted ones, in place of an earlier version of it.
    pub fn trust(&self, root: &Path) -> Result<()> {
        let mut files = read_trusted_files(root)?;
        files.insert(self.path.clone(), self.sha256.clone());
        write_trusted_files(root, &files)
    }
}

/// Trusts a file with its present contents.
#[cfg(test)]
pub fn trust_file(root: &Path, path: &Path) -> Result<TrustCandidate> {
    let candidate = TrustCandidate::read(path)?;
    candidate.trust(root)?;
    Ok(candidate)
}

/// Returns the path of the list of trusted files.
pub fn trusted_list_path(root: &Path) -> PathBuf {
    root.join("upstreams/trusted.json")
}

/// Returns the trusted files, each with the SHA-256 of its contents. A list that does not exist is
/// empty.
pub fn read_trusted_files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let path = trusted_list_path(root);
    let unusable = |problem: &dyn std::fmt::Display| {
        Error::invalid_arguments(format!("{}: {problem}", path.display()))
            .with_reason("bad_config")
            .with_hint("Remove the file, and run `ringfence upstream trust` for each file again.")
    };
    let mut text = String::new();
    match File::open(&path) {
        Ok(file) => file
            .take(MAX_LIST_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| unusable(&"it cannot be read").with_source(error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(unusable(&"it cannot be read").with_source(error)),
    };
    if text.len() as u64 > MAX_LIST_BYTES {
        return Err(unusable(&"it is larger than 1 MiB"));
    }
    let files: BTreeMap<PathBuf, String> =
        serde_json::from_str(&text).map_err(|error| unusable(&error))?;
    Ok(files)
}

/// Returns whether these bytes of a file are trusted. A link has the trust of its target.
pub(super) fn is_trusted(root: &Path, path: &Path, bytes: &[u8]) -> Result<bool> {
    let files = read_trusted_files(root)?;
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Ok(files.get(&path).is_some_and(|trusted| *trusted == hash_contents(bytes)))
}

/// Returns the SHA-256 in hexadecimal.
pub(super) fn hash_contents(bytes: &[u8]) -> String {
    ids::to_hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

/// Writes the list as a whole: a reader sees the old one or the new one.
fn write_trusted_files(root: &Path, files: &BTreeMap<PathBuf, String>) -> Result<()> {
    let path = trusted_list_path(root);
    let failed = |error: io::Error| {
        Error::new(Kind::Unavailable, format!("{} cannot be written", path.display()))
            .with_hint(
                "Check the permissions of the root directory, or name another with `--root`.",
            )
            .with_source(error)
    };
    let mut text = serde_json::to_string_pretty(files).map_err(|error| {
        Error::internal("the list of trusted files cannot be written as JSON").with_source(error)
    })?;
    text.push('\n');
    let directory = root.join("upstreams");
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
    let new_path = directory.join(ids::short_id("trusted"));
    let written =
        File::options().write(true).create_new(true).mode(0o600).open(&new_path).and_then(
            |mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                std::fs::rename(&new_path, &path)
            },
        );
    written.map_err(|error| {
        // Nothing is to be left behind; the first error says what went wrong.
        let _ = std::fs::remove_file(&new_path);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    const FILE: &str = r#"{"servers": {"git": {"trust": "trusted",
        "transport": {"type": "stdio", "command": "git-mcp"}}}}"#;

    #[test]
    fn only_the_trusted_bytes_of_a_file_are_trusted() {
        let scratch = Scratch::new();
        let (root, file) = (scratch.dir("root"), scratch.file("a/mcp.json", FILE));
        assert!(!is_trusted(&root, &file, FILE.as_bytes()).unwrap());
        let candidate = trust_file(&root, &file).unwrap();
        assert_eq!(candidate.config.servers.len(), 1);
        assert!(is_trusted(&root, &file, FILE.as_bytes()).unwrap());
        assert!(!is_trusted(&root, &file, b"{}").unwrap());
        let other = scratch.file("b/mcp.json", FILE);
        assert!(!is_trusted(&root, &other, FILE.as_bytes()).unwrap());
        std::os::unix::fs::symlink(&file, scratch.path().join("link.json")).unwrap();
        assert!(is_trusted(&root, &scratch.path().join("link.json"), FILE.as_bytes()).unwrap());
        // A later version takes the place of the earlier one.
        std::fs::write(&file, "{}").unwrap();
        trust_file(&root, &file).unwrap();
        assert!(!is_trusted(&root, &file, FILE.as_bytes()).unwrap());
        assert_eq!(read_trusted_files(&root).unwrap().len(), 1);
        assert_eq!(std::fs::read_dir(root.join("upstreams")).unwrap().count(), 1);
    }

    #[test]
    fn the_operator_trusts_what_was_shown() {
        let scratch = Scratch::new();
        let (root, file) = (scratch.dir("root"), scratch.file("mcp.json", FILE));
        let candidate = TrustCandidate::read(&file).unwrap();
        std::fs::write(&file, "{}").unwrap();
        candidate.trust(&root).unwrap();
        assert!(is_trusted(&root, &file, FILE.as_bytes()).unwrap());
        assert!(!is_trusted(&root, &file, b"{}").unwrap());
    }

    #[test]
    fn a_broken_file_is_not_trusted_and_a_broken_list_is_an_error() {
        let scratch = Scratch::new();
        let root = scratch.dir("root");
        let error = trust_file(&root, &scratch.file("mcp.json", "{\n\"x\": 1}")).unwrap_err();
        assert!(error.message().contains("mcp.json:2: x: there is no such key"), "{error}");
        let error = trust_file(&root, Path::new("/nonexistent/mcp.json")).unwrap_err();
        assert!(error.message().contains("/nonexistent/mcp.json"), "{error}");
        assert!(!root.join("upstreams").exists());
        scratch.file("root/upstreams/trusted.json", "{\n\"/a\": 1}");
        let error = read_trusted_files(&root).unwrap_err();
        let message = error.message();
        assert!(message.contains("trusted.json") && message.contains("line 2"), "{error}");
        assert!(is_trusted(&root, Path::new("/a"), b"").is_err());
    }
}
