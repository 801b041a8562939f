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
    pub fn for_file(file: &str, what: &str) -> IgnoredRule {
        IgnoredRule { file: file.to_owned(), line: 0, message: what.to_owned() }
    }

    /// Returns `file:line`, or the file alone.
    pub fn location(&self) -> String {
        if self.line == 0 { self.file.clone() } else { format!("{}:{}", self.file, self.line) }
    }
}

impl Rulebook {
    /// Writes errors, ignored entries and a summary to the log.
    pub fn log_summary(&self) {
        for fault in &self.faults {
            tracing::warn!(at = ?fault.location(), "rules: {}; nothing leaves the sandbox until this is fixed", fault.message);
        }
        for ignored in &self.ignored {
            tracing::warn!(at = ?ignored.location(), "rules: {}", ignored.message);
        }
        let (rules, files) = (self.table.prefixes.len(), self.files.len());
        tracing::info!(generation = self.generation, rules, files, "rules loaded");
    }

    fn add_reading(&mut self, source: &RulesSource, reading: ParsedRules) {
        self.files.push(PathBuf::from(&source.name));
        self.example_counts.insert(source.name.clone(), reading.examples);
        self.faults.extend(reading.faults);
        rules::merge_tables(&mut self.table, reading.table);
    }
}

/// Reads the files that were found, and looks up the programs that the rules refer to.
pub async fn load_rulebook(
    launcher: &Launcher,
    places: &RuleLocations,
    found: &FoundRules,
    workspace: Option<&Path>,
    generation: u64,
) -> (Rulebook, WatchedPaths) {
    let mut book = Rulebook {
        faults: found.faults.clone(),
        ignored: found.ignored.clone(),
        generation,
        ..Rulebook::default()
    };
    let operator = found.operator.clone();
    let sources = read_blocking(move || files::read_sources(&operator), &mut book).await;
    let readings = evaluate::evaluate_rules(launcher, &sources, &HostExecutables::new()).await;
    for (source, reading) in sources.iter().zip(readings) {
        book.add_reading(source, reading);
    }
    if let Some(workspace) = workspace {
        let (project, at) = (found.project.clone(), workspace.to_owned());
        let sources =
            read_blocking(move || project::read_project_rules(&at, &project), &mut book).await;
        // Evaluate in a separate child process, so that untrusted rules cannot break the
        // operator's.
        let readings =
            evaluate::evaluate_rules(launcher, &sources, &book.table.host_executables).await;
        for (source, mut reading) in sources.iter().zip(readings) {
            book.ignored.extend(project::keep_tightening_rules(&source.name, &mut reading.table));
            book.add_reading(source, reading);
        }
    }
    let (table, path) = (book.table.clone(), places.search_path.clone());
    let looked = tokio::task::spawn_blocking(move || programs::find_programs(&table, &path)).await;
    let (programs, watched) = looked.unwrap_or_default();
    book.table.programs = programs;
    (book, watched)
}

/// Reads files on a blocking thread.
async fn read_blocking(
    read: impl FnOnce() -> (Vec<RulesSource>, Vec<RulesError>) + Send + 'static,
    book: &mut Rulebook,
) -> Vec<RulesSource> {
    let lost =
        || (Vec::new(), vec![RulesError::for_file("rules", "the rules files could not be read")]);
    let (sources, faults) = tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| lost());
    book.faults.extend(faults);
    sources
}
