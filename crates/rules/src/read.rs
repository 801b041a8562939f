//! Reads a single file: evaluates it, tests its examples and collects all errors.

use policy::{Decision, RuleTable};
use serde::{Deserialize, Serialize};
use starlark::environment::{GlobalsBuilder, Module};
use starlark::eval::Evaluator;
use starlark::syntax::{AstModule, Dialect};

use crate::builtins::{self, EvaluationNotes, text_span};
use crate::error::{RulesError, TextSpan};
use crate::{HostExecutables, RulesSource, bracket};

/// Limits of the interpreter, in bytes and steps. Ordinary files need a few hundred of each.
const MAX_HEAP_BYTES: usize = 64 << 20;
const MAX_TICKS: u64 = 1_000_000;

/// Rules and errors of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParsedRules {
    /// If the file has errors, only rules that prompt or forbid: the author may not have meant what
    /// such a file allows.
    pub table: RuleTable,
    pub faults: Vec<RulesError>,
    /// Number of examples that were tested.
    pub examples: usize,
}

/// Reads one file. `known` has the `host_executable` entries of the files before it.
pub fn read_rules(source: &RulesSource, known: &HostExecutables) -> ParsedRules {
    builtins::start_notes(&source.name);
    let outcome = evaluate_source(source);
    let EvaluationNotes { mut table, examples, faults: noted, .. } = builtins::take_notes();
    let mut faults: Vec<RulesError> = noted
        .into_iter()
        .map(|(span, message)| RulesError::at_span(&source.name, &source.text, span, &message))
        .collect();
    let count = examples.iter().map(|examples| examples.count()).sum();
    match outcome {
        Err(error) => faults.push(explain_error(source, &error)),
        Ok(()) => {
            let mut programs = known.clone();
            programs.extend(table.host_executables.clone());
            for examples in &examples {
                let failures = examples.find_failures(&programs);
                faults.extend(failures.iter().map(|message| {
                    RulesError::at_span(&source.name, &source.text, examples.span, message)
                }));
            }
        }
    }
    if !faults.is_empty() {
        drop_allow_rules(&mut table);
    }
    ParsedRules { table, faults, examples: count }
}

/// Keeps only rules that prompt or forbid.
fn drop_allow_rules(table: &mut RuleTable) {
    table.prefixes.retain(|rule| rule.decision != Decision::Allow);
    table.networks.retain(|rule| rule.decision != Decision::Allow);
    table.host_executables.clear();
}

fn evaluate_source(source: &RulesSource) -> starlark::Result<()> {
    // The dialect in which Codex reads its files.
    let dialect = Dialect { enable_f_strings: true, ..Dialect::Extended };
    let ast = AstModule::parse(&source.name, source.text.clone(), &dialect)?;
    let globals = GlobalsBuilder::standard().with(builtins::builtins).build();
    Module::with_temp_heap(|module| {
        let mut eval = Evaluator::new(&module);
        eval.set_max_heap_size(MAX_HEAP_BYTES).map_err(starlark::Error::new_other)?;
        eval.set_max_tick_count(MAX_TICKS).map_err(starlark::Error::new_other)?;
        eval.eval_module(ast, &globals).map(|_| ())
    })
}

fn explain_error(source: &RulesSource, error: &starlark::Error) -> RulesError {
    let mut message = error.without_diagnostic().to_string();
    // The lines after the first are advice for programs that embed the interpreter.
    if let Some((first, _)) = message.split_once('\n') {
        message.truncate(first.len());
    }
    if message.starts_with("No imports are available") {
        message = "load() is not available: a rules file must be self-contained".to_owned();
    }
    let span = error.span().map_or(TextSpan { line: 0, column: 0, width: 1 }, text_span);
    let (span, message) = point_at_bracket(&source.text, span, message);
    RulesError::at_span(&source.name, &source.text, span, &message)
}

/// The interpreter notices an unclosed bracket only where the next statement begins, or at the end
/// of the file. The place where it was opened is more helpful.
fn point_at_bracket(text: &str, span: TextSpan, message: String) -> (TextSpan, String) {
    if !message.contains("expected symbol") {
        return (span, message);
    }
    match bracket::find_open_bracket(text, span.line) {
        Some((line, column, c)) if span.line >= text.lines().count() => (
            TextSpan { line, column, width: 1 },
            format!("Parse error: this `{c}` is never closed"),
        ),
        Some((line, _, c)) => {
            (span, format!("{message}; the `{c}` on line {} is still open", line + 1))
        }
        None => (span, message),
    }
}
