//! Rules of a project: `.codex/rules` in the workspace.
//!
//! They come with a repository that may be untrusted, so they may only tighten: their `forbidden`
//! and `prompt` rules apply, their `allow` rules are ignored.

use std::path::Path;

use ::policy::{Decision, RuleTable};
use rules::{RulesError, RulesSource};
use rustix::fs::{Dir, Mode, OFlags, openat};

use super::Ignored;
use super::files::{self, Found, Rules};
use crate::base::workspace::Workspace;
use crate::base::{Error, Kind};

const FOLDER: &str = ".codex/rules";
const MAX_FILES: usize = 64;
const MAX_BYTES: u64 = 1 << 20;

/// Adds the project's files, and any error in locating them.
pub fn find(at: &Path, found: &mut Found) {
    let folder = at.join(FOLDER).to_string_lossy().into_owned();
    match names(at) {
        Ok(names) if names.len() > MAX_FILES => {
            let message =
                format!("contains {} files; a project may have at most {MAX_FILES}", names.len());
            found.faults.push(RulesError::for_file(&folder, &message));
        }
        Ok(names) => found.project.extend(names.iter().map(|name| {
            let about = open(at, name).ok().and_then(|file| file.metadata().ok());
            Rules::new(at.join(FOLDER).join(name), about.as_ref())
        })),
        Err(error) if error.kind() == Kind::NotFound => {}
        Err(error) => found
            .faults
            .push(RulesError::for_file(&folder, &format!("cannot be listed: {}", error.detail()))),
    }
}

fn names(at: &Path) -> Result<Vec<String>, Error> {
    let (dir, _) = Workspace::open(at, &[])?.open_dir(FOLDER)?;
    let unreadable =
        |error: rustix::io::Errno| Error::internal("the folder cannot be read").source(error);
    let mut names = Vec::new();
    // The directory was opened with O_PATH and cannot be listed; reopen it for reading relative to
    // itself.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(dir, ".", flags, Mode::empty()).map_err(unreadable)?;
    for entry in Dir::new(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy();
        if name.ends_with(".rules") && name != ".rules" {
            names.push(name.into_owned());
        }
        // Stop once it is clear that there are too many.
        if names.len() > 4 * MAX_FILES {
            break;
        }
    }
    names.sort();
    Ok(names)
}

/// Opens a file beneath the workspace, never through a link that leads out of it.
fn open(at: &Path, name: &str) -> Result<std::fs::File, Error> {
    Ok(Workspace::open(at, &[])?.open_read(&format!("{FOLDER}/{name}"))?.file)
}

/// Reads the project's files.
pub fn read(at: &Path, project: &[Rules]) -> (Vec<RulesSource>, Vec<RulesError>) {
    let mut sources = Vec::new();
    let mut faults = Vec::new();
    for rules in project {
        let name = rules.path.file_name().unwrap_or_default().to_string_lossy();
        let opened = open(at, &name).map_err(|error| error.detail());
        match opened
            .and_then(|file| files::text(file, MAX_BYTES).map_err(|error| error.to_string()))
        {
            Ok(text) => sources.push(RulesSource { name: rules.name(), text }),
            Err(error) => faults
                .push(RulesError::for_file(&rules.name(), &format!("cannot be read: {error}"))),
        }
    }
    (sources, faults)
}

/// Keeps only the rules of a project's file that tighten, and returns what was ignored.
pub fn tighten(file: &str, table: &mut RuleTable) -> Vec<Ignored> {
    let mut ignored = Vec::new();
    table.prefixes.retain(|rule| {
        let kept = rule.decision != Decision::Allow;
        if !kept {
            let what = format!("a project's rules cannot allow `{}`", rule.program);
            ignored.push(Ignored { file: file.to_owned(), line: rule.origin.line, what });
        }
        kept
    });
    for rule in &mut table.prefixes {
        rule.project = true;
    }
    table.networks.retain(|rule| {
        let kept = rule.decision != Decision::Allow;
        if !kept {
            let what = format!("a project's rules cannot allow {}", rule.host);
            ignored.push(Ignored { file: file.to_owned(), line: rule.origin.line, what });
        }
        kept
    });
    for name in std::mem::take(&mut table.host_executables).into_keys() {
        ignored.push(Ignored::file(
            file,
            &format!("a project's rules cannot define which files `{name}` refers to"),
        ));
    }
    ignored
}
