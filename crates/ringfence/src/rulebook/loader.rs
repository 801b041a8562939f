//! Loads rulebooks: all rules in force, from all files. A rulebook is built once and never changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::policy::RuleTable;
use rules::{HostExecutables, ParsedRules, RulesError, RulesSource};

use super::files::{self, FoundRules};
use super::programs::{self, WatchedPaths};
use super::{RuleLocations, project};
use crate::sandbox::{Launcher, evaluate};

/// The rules that apply to a call from beginning to end.
#[derive(Debug, Clone, Default)]
pub struct Rulebook {
    /// All rules. A file with errors contributes only its `forbidden` and `prompt` rules.
    pub table: RuleTable,
    /// Errors in rules files. While there are any, nothing may leave the sandbox.
    pub faults: Vec<RulesError>,
    /// Files that were read, the operator's before the project's.
    pub files: Vec<PathBuf>,
    /// Number of this version; different rules have different numbers.
    pub generation: u64,
    /// Entries that were found and ignored.
    pub ignored: Vec<IgnoredRule>,
    /// Number of examples checked, by file.
    pub example_counts: BTreeMap<String, usize>,
}

/// Entry in a rules file that is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredRule {
    pub file: String,
    /// Line number from 1; 0 if it concerns no single line.
    pub line: u32,
    pub message: String,
}

impl IgnoredRule {
    /// Creates an entry that concerns a whole file.
    pub fn for_file(file: &str, message: &str) -> IgnoredRule {
        IgnoredRule { file: file.to_owned(), line: 0, message: message.to_owned() }
    }

    /// Returns `file:line`, or the file alone.
    pub fn location(&self) -> String {
        if self.line == 0 { self.file.clone() } else { format!("{}:{}", self.file, self.line) }
    }
}

impl Rulebook {
    /// Writes errors, ignored entries and a summary to the log.
    pub fn log_summary(&self) {
        for error in &self.faults {
            tracing::warn!(at = ?error.location(), "rules: {}; until this is fixed, no command leaves the sandbox", error.message);
        }
        for ignored in &self.ignored {
            tracing::warn!(at = ?ignored.location(), "rules: {}", ignored.message);
        }
        let (rules, files) = (self.table.prefixes.len(), self.files.len());
        tracing::info!(generation = self.generation, rules, files, "rules loaded");
    }

    fn add_reading(&mut self, source: &RulesSource, parsed: ParsedRules) {
        self.files.push(PathBuf::from(&source.name));
        self.example_counts.insert(source.name.clone(), parsed.examples);
        self.faults.extend(parsed.faults);
        rules::merge_tables(&mut self.table, parsed.table);
    }
}

/// Reads the files that were found, and looks up the programs that the rules refer to.
pub async fn load_rulebook(
    launcher: &Launcher,
    locations: &RuleLocations,
    found: &FoundRules,
    workspace: Option<&Path>,
    generation: u64,
) -> (Rulebook, WatchedPaths) {
    let mut rulebook = Rulebook {
        faults: found.faults.clone(),
        ignored: found.ignored.clone(),
        generation,
        ..Rulebook::default()
    };
    let operator = found.operator.clone();
    let sources = read_blocking(move || files::read_sources(&operator), &mut rulebook).await;
    let parsed_files = evaluate::evaluate_rules(launcher, &sources, &HostExecutables::new()).await;
    for (source, parsed) in sources.iter().zip(parsed_files) {
        rulebook.add_reading(source, parsed);
    }
    if let Some(workspace) = workspace {
        let (project, workspace_dir) = (found.project.clone(), workspace.to_owned());
        let sources = read_blocking(
            move || project::read_project_rules(&workspace_dir, &project),
            &mut rulebook,
        )
        .await;
        // Evaluate in a separate child process, so that untrusted rules cannot break the
        // operator's.
        let parsed_files =
            evaluate::evaluate_rules(launcher, &sources, &rulebook.table.host_executables).await;
        for (source, mut parsed) in sources.iter().zip(parsed_files) {
            rulebook
                .ignored
                .extend(project::keep_tightening_rules(&source.name, &mut parsed.table));
            rulebook.add_reading(source, parsed);
        }
    }
    let (table, path) = (rulebook.table.clone(), locations.search_path.clone());
    let lookup = tokio::task::spawn_blocking(move || programs::find_programs(&table, &path)).await;
    let (programs, watched) = lookup.unwrap_or_default();
    rulebook.table.programs = programs;
    (rulebook, watched)
}

/// Reads files on a blocking thread.
async fn read_blocking(
    read: impl FnOnce() -> (Vec<RulesSource>, Vec<RulesError>) + Send + 'static,
    rulebook: &mut Rulebook,
) -> Vec<RulesSource> {
    let read_failure =
        || (Vec::new(), vec![RulesError::for_file("rules", "the rules files could not be read")]);
    let (sources, faults) =
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| read_failure());
    rulebook.faults.extend(faults);
    sources
}
