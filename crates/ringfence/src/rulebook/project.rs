//! Rules of a project: `.codex/rules` in the workspace.
//!
//! They come with a repository that may be untrusted, so they may only tighten: their `forbidden`
//! and `prompt` rules apply, their `allow` rules are ignored.

use std::path::Path;

use ::policy::{Decision, RuleTable};
use rules::{RulesError, RulesSource};
use rustix::fs::{Dir, Mode, OFlags, openat};

use super::IgnoredRule;
use super::files::{self, FoundRules, RuleFile};
use crate::base::workspace::Workspace;
use crate::base::{Error, Kind};

const RULES_DIR: &str = ".codex/rules";
const MAX_FILES: usize = 64;
const MAX_BYTES: u64 = 1 << 20;

/// Adds the project's files, and any error in locating them.
pub fn find_project_rules(workspace: &Path, found: &mut FoundRules) {
    let folder = workspace.join(RULES_DIR).to_string_lossy().into_owned();
    match list_rule_names(workspace) {
        Ok(names) if names.len() > MAX_FILES => {
            let message =
                format!("contains {} files; a project may have at most {MAX_FILES}", names.len());
            found.faults.push(RulesError::for_file(&folder, &message));
        }
        Ok(names) => found.project.extend(names.iter().map(|name| {
            let metadata =
                open_rule_file(workspace, name).ok().and_then(|file| file.metadata().ok());
            RuleFile::new(workspace.join(RULES_DIR).join(name), metadata.as_ref())
        })),
        Err(error) if error.kind() == Kind::NotFound => {}
        Err(error) => found.faults.push(RulesError::for_file(
            &folder,
            &format!("cannot be listed: {}", error.message_chain()),
        )),
    }
}

fn list_rule_names(workspace: &Path) -> Result<Vec<String>, Error> {
    let (dir, _) = Workspace::open(workspace, &[])?.open_dir(RULES_DIR)?;
    let read_error =
        |error: rustix::io::Errno| Error::internal("the folder cannot be read").with_source(error);
    let mut names = Vec::new();
    // The directory was opened with O_PATH and cannot be listed; reopen it for reading relative to
    // itself.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(dir, ".", flags, Mode::empty()).map_err(read_error)?;
    for entry in Dir::new(dir).map_err(read_error)? {
        let entry = entry.map_err(read_error)?;
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
fn open_rule_file(workspace: &Path, name: &str) -> Result<std::fs::File, Error> {
    Ok(Workspace::open(workspace, &[])?.open_read(&format!("{RULES_DIR}/{name}"))?.file)
}

/// Reads the project's files.
pub fn read_project_rules(
    workspace: &Path,
    project: &[RuleFile],
) -> (Vec<RulesSource>, Vec<RulesError>) {
    let mut sources = Vec::new();
    let mut faults = Vec::new();
    for rule_file in project {
        let name = rule_file.path.file_name().unwrap_or_default().to_string_lossy();
        let opened = open_rule_file(workspace, &name).map_err(|error| error.message_chain());
        match opened
            .and_then(|file| files::read_text(file, MAX_BYTES).map_err(|error| error.to_string()))
        {
            Ok(text) => sources.push(RulesSource { name: rule_file.name(), text }),
            Err(error) => faults.push(RulesError::for_file(
                &rule_file.name(),
                &format!("cannot read the rules file, so its rules do not apply: {error}"),
            )),
        }
    }
    (sources, faults)
}

/// Keeps only the rules of a project's file that tighten, and returns what was ignored.
pub fn keep_tightening_rules(file: &str, table: &mut RuleTable) -> Vec<IgnoredRule> {
    let mut ignored = Vec::new();
    table.prefixes.retain(|rule| {
        let is_kept = rule.decision != Decision::Allow;
        if !is_kept {
            let message = format!("a project's rules cannot allow `{}`", rule.program);
            ignored.push(IgnoredRule { file: file.to_owned(), line: rule.origin.line, message });
        }
        is_kept
    });
    for rule in &mut table.prefixes {
        rule.project = true;
    }
    table.networks.retain(|rule| {
        let is_kept = rule.decision != Decision::Allow;
        if !is_kept {
            let message = format!("a project's rules cannot allow {}", rule.host);
            ignored.push(IgnoredRule { file: file.to_owned(), line: rule.origin.line, message });
        }
        is_kept
    });
    for name in std::mem::take(&mut table.host_executables).into_keys() {
        ignored.push(IgnoredRule::for_file(
            file,
            &format!("a project's rules cannot define which files `{name}` refers to"),
        ));
    }
    ignored
}
