//! Finds the files that contain rules, and detects whether they have changed.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rules::{RulesError, RulesSource};

use super::{IgnoredRule, RuleLocations, project};

/// Maximum size of a rules file; no one writes more by hand.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Everything that was found. Equal values lead to the same rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundRules {
    /// The operator's files, in the order in which they are read.
    pub operator: Vec<RuleFile>,
    pub project: Vec<RuleFile>,
    /// Errors for files that could not be inspected.
    pub faults: Vec<RulesError>,
    pub ignored: Vec<IgnoredRule>,
}

/// Rules file and its state when it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFile {
    pub path: PathBuf,
    stamp: Option<RuleFileStamp>,
}

/// Metadata that changes whenever the file does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl RuleFileStamp {
    /// Creates a stamp from metadata.
    pub fn from_metadata(metadata: &Metadata) -> RuleFileStamp {
        RuleFileStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl RuleFile {
    /// Creates an entry; `metadata` is the metadata, if it could be read.
    pub fn new(path: PathBuf, metadata: Option<&Metadata>) -> RuleFile {
        RuleFile { path, stamp: metadata.map(RuleFileStamp::from_metadata) }
    }

    /// Returns the path as text.
    pub fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

impl FoundRules {
    /// Returns the result for a failed search.
    pub fn from_failure() -> FoundRules {
        FoundRules {
            faults: vec![RulesError::for_file("rules", "the rules files could not be inspected")],
            ..FoundRules::default()
        }
    }
}

/// Finds the operator's rules files and, given a workspace, the project's.
pub fn find_rule_files(locations: &RuleLocations, workspace: Option<&Path>) -> FoundRules {
    let mut found = FoundRules::default();
    for dir in &locations.dirs {
        if let Err(error) = add_directory(dir, &mut found)
            && error.kind() != ErrorKind::NotFound
        {
            found.faults.push(RulesError::for_file(
                &dir.to_string_lossy(),
                &format!("cannot be listed: {error}"),
            ));
        }
    }
    // A missing file is reported when it is read.
    found.operator.extend(
        locations
            .files
            .iter()
            .map(|path| RuleFile::new(path.clone(), path.metadata().ok().as_ref())),
    );
    if let Some(workspace) = workspace {
        project::find_project_rules(workspace, &mut found);
    }
    found
}

/// Adds the regular files named `*.rules`, sorted. Like Codex, this does not follow links here, but
/// it reports them.
fn add_directory(dir: &Path, found: &mut FoundRules) -> io::Result<()> {
    let mut rule_files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "rules") {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => {
                rule_files.push(RuleFile::new(path, Some(&metadata)))
            }
            Ok(metadata) if metadata.is_symlink() => found.ignored.push(IgnoredRule::for_file(
                &path.to_string_lossy(),
                "a symbolic link is not followed here, as in Codex: name its target with --rules",
            )),
            Ok(_) => {}
            // The file disappeared after it was listed; reading reports any other problem.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => rule_files.push(RuleFile::new(path, None)),
        }
    }
    rule_files.sort_by(|one, other| one.path.cmp(&other.path));
    found.operator.extend(rule_files);
    Ok(())
}

/// Reads the operator's files.
pub fn read_sources(rule_files: &[RuleFile]) -> (Vec<RulesSource>, Vec<RulesError>) {
    let mut sources = Vec::new();
    let mut faults = Vec::new();
    for file in rule_files {
        match File::open(&file.path).and_then(|opened| read_text(opened, MAX_FILE_BYTES)) {
            Ok(text) => sources.push(RulesSource { name: file.name(), text }),
            Err(error) => faults.push(RulesError::for_file(
                &file.name(),
                &format!("cannot read the rules file, so its rules do not apply: {error}"),
            )),
        }
    }
    (sources, faults)
}

/// Reads a file completely, if it is UTF-8 and at most `max_bytes` bytes long.
pub fn read_text(file: File, max_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("it is larger than {} KiB", max_bytes >> 10)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}
