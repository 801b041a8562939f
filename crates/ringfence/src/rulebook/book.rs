//! A rulebook: everything that holds, from all files, made once and never changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::policy::Table;
use rules::{Fault, HostExecutables, Reading, Source};

use super::files::{self, Found};
use super::programs::{self, Watched};
use super::{Places, project};
use crate::sandbox::{Launcher, evaluate};

/// The rules that hold for a call from its beginning to its end.
#[derive(Debug, Clone, Default)]
pub struct Rulebook {
    /// Of a file with faults only what it forbids and what it asks about.
    pub table: Table,
    /// While there are any, nothing may be let out of the fence.
    pub faults: Vec<Fault>,
    /// What was read, the operator's files before the project's.
    pub files: Vec<PathBuf>,
    /// Another number, other rules.
    pub generation: u64,
    /// What was there and does not count.
    pub ignored: Vec<Ignored>,
    /// How many examples were tried, by file.
    pub examples: BTreeMap<String, usize>,
}

/// Something that stands in a file and does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    pub file: String,
    /// From one; zero when it is no one line.
    pub line: u32,
    pub what: String,
}

impl Ignored {
    pub fn file(file: &str, what: &str) -> Ignored {
        Ignored { file: file.to_owned(), line: 0, what: what.to_owned() }
    }

    pub fn location(&self) -> String {
        if self.line == 0 { self.file.clone() } else { format!("{}:{}", self.file, self.line) }
    }
}

impl Rulebook {
    /// For the operator's log, one line each.
    pub fn log(&self) {
        for fault in &self.faults {
            tracing::warn!(at = ?fault.location(), "rules: {}; nothing is let out of the fence until it is mended", fault.message);
        }
        for ignored in &self.ignored {
            tracing::warn!(at = ?ignored.location(), "rules: {}", ignored.what);
        }
        let (rules, files) = (self.table.prefixes.len(), self.files.len());
        tracing::info!(generation = self.generation, rules, files, "rules are read");
    }

    fn add(&mut self, source: &Source, reading: Reading) {
        self.files.push(PathBuf::from(&source.name));
        self.examples.insert(source.name.clone(), reading.examples);
        self.faults.extend(reading.faults);
        rules::add(&mut self.table, reading.table);
    }
}

/// Reads what was found, and looks up the programs that the rules speak of.
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
    let readings = evaluate::evaluate(launcher, &sources, &HostExecutables::new()).await;
    for (source, reading) in sources.iter().zip(readings) {
        book.add(source, reading);
    }
    if let Some(workspace) = workspace {
        let (project, at) = (found.project.clone(), workspace.to_owned());
        let sources = blocking(move || project::read(&at, &project), &mut book).await;
        // A child of its own: what a stranger wrote must not cost the operator's rules.
        let readings = evaluate::evaluate(launcher, &sources, &book.table.host_executables).await;
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

/// Reads files where that may take its time.
async fn blocking(
    read: impl FnOnce() -> (Vec<Source>, Vec<Fault>) + Send + 'static,
    book: &mut Rulebook,
) -> Vec<Source> {
    let lost = || (Vec::new(), vec![Fault::of_file("rules", "the rules files could not be read")]);
    let (sources, faults) = tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| lost());
    book.faults.extend(faults);
    sources
}
