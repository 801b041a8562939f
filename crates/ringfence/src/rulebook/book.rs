//! Loads rulebooks: all rules in force, from all files. A rulebook is built once and never changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::policy::RuleTable;
use rules::{HostExecutables, ParsedRules, RulesError, RulesSource};

use super::files::{self, Found};
use super::programs::{self, Watched};
use super::{Places, project};
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
    pub ignored: Vec<Ignored>,
    /// Number of examples checked, by file.
    pub examples: BTreeMap<String, usize>,
}

/// Entry in a rules file that is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    pub file: String,
    /// Line number from 1; 0 if it concerns no single line.
    pub line: u32,
    pub what: String,
}

impl Ignored {
    /// Creates an entry that concerns a whole file.
    pub fn file(file: &str, what: &str) -> Ignored {
        Ignored { file: file.to_owned(), line: 0, what: what.to_owned() }
    }

    /// Returns `file:line`, or the file alone.
    pub fn location(&self) -> String {
        if self.line == 0 { self.file.clone() } else { format!("{}:{}", self.file, self.line) }
    }
}

impl Rulebook {
    /// Writes errors, ignored entries and a summary to the log.
    pub fn log(&self) {
        for fault in &self.faults {
            tracing::warn!(at = ?fault.location(), "rules: {}; nothing leaves the sandbox until this is fixed", fault.message);
        }
        for ignored in &self.ignored {
            tracing::warn!(at = ?ignored.location(), "rules: {}", ignored.what);
        }
        let (rules, files) = (self.table.prefixes.len(), self.files.len());
        tracing::info!(generation = self.generation, rules, files, "rules loaded");
    }

    fn add(&mut self, source: &RulesSource, reading: ParsedRules) {
        self.files.push(PathBuf::from(&source.name));
        self.examples.insert(source.name.clone(), reading.examples);
        self.faults.extend(reading.faults);
        rules::merge_tables(&mut self.table, reading.table);
    }
}

/// Reads the files that were found, and looks up the programs that the rules refer to.
pub async fn make(
    launcher: &Launcher,
    places: &Places,
    found: &Found,
    workspace: Option<&Path>,
    generation: u64,
) -> (Rulebook, Watched) {
    let mut book = Rulebook {
        faults: found.faults.clone(),
        ignored: found.ignored.clone(),
        generation,
        ..Rulebook::default()
    };
    let operator = found.operator.clone();
    let sources = blocking(move || files::read(&operator), &mut book).await;
    let readings = evaluate::evaluate_rules(launcher, &sources, &HostExecutables::new()).await;
    for (source, reading) in sources.iter().zip(readings) {
        book.add(source, reading);
    }
    if let Some(workspace) = workspace {
        let (project, at) = (found.project.clone(), workspace.to_owned());
        let sources = blocking(move || project::read(&at, &project), &mut book).await;
        // Evaluate in a separate child process, so that untrusted rules cannot break the
        // operator's.
        let readings =
            evaluate::evaluate_rules(launcher, &sources, &book.table.host_executables).await;
        for (source, mut reading) in sources.iter().zip(readings) {
            book.ignored.extend(project::tighten(&source.name, &mut reading.table));
            book.add(source, reading);
        }
    }
    let (table, path) = (book.table.clone(), places.search_path.clone());
    let looked = tokio::task::spawn_blocking(move || programs::find(&table, &path)).await;
    let (programs, watched) = looked.unwrap_or_default();
    book.table.programs = programs;
    (book, watched)
}

/// Reads files on a blocking thread.
async fn blocking(
    read: impl FnOnce() -> (Vec<RulesSource>, Vec<RulesError>) + Send + 'static,
    book: &mut Rulebook,
) -> Vec<RulesSource> {
    let lost =
        || (Vec::new(), vec![RulesError::for_file("rules", "the rules files could not be read")]);
    let (sources, faults) = tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| lost());
    book.faults.extend(faults);
    sources
}
