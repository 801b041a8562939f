//! The three functions of a rules file.
//!
//! An invalid call is recorded and reading continues, so that the author sees all errors at once
//! and the restrictions in the rest of the file still apply. Only errors of the interpreter itself
//! (an unknown argument, a number instead of a string) end the reading.

use std::cell::RefCell;

use policy::{Decision, NetworkRule, PatternToken, PrefixRule, RuleOrigin, RuleTable};
use starlark::codemap::FileSpan;
use starlark::environment::GlobalsBuilder;
use starlark::eval::Evaluator;
use starlark::starlark_module;
use starlark::values::Value;
use starlark::values::list::{ListRef, UnpackList};
use starlark::values::none::NoneType;

use crate::error::TextSpan;
use crate::example::{self, RuleExamples};
use crate::validate;

/// More than anyone writes by hand; every rule adds cost to every exec.
const MAX_RULES: usize = 20_000;
/// More errors than this would not help the reader.
const MAX_FAULTS: usize = 50;

/// Rules, examples and errors of a file so far.
#[derive(Default)]
pub struct EvaluationNotes {
    file: String,
    pub table: RuleTable,
    pub examples: Vec<RuleExamples>,
    pub faults: Vec<(TextSpan, String)>,
}

// The interpreter can pass a custom value to its functions, but only if the type implements an
// unsafe trait. It runs a file on a single thread from start to end, so a thread-local works as
// well.
thread_local! {
    static NOTES: RefCell<EvaluationNotes> = RefCell::default();
}

/// Starts collecting for a file.
pub fn start_notes(file: &str) {
    NOTES.set(EvaluationNotes { file: file.to_owned(), ..EvaluationNotes::default() });
}

/// Returns what was collected.
pub fn take_notes() -> EvaluationNotes {
    NOTES.take()
}

/// Returns where a span begins, and how much of its first line it covers.
pub fn text_span(span: &FileSpan) -> TextSpan {
    let resolved = span.resolve_span();
    let (begin, end) = (resolved.begin, resolved.end);
    // Marking all lines of a long statement says no more than marking the first.
    let width =
        if end.line == begin.line { end.column.saturating_sub(begin.column) } else { usize::MAX };
    TextSpan { line: begin.line, column: begin.column, width: width.max(1) }
}

/// Location of a call, and the line of the top-level statement that led to it, possibly through
/// functions.
struct CallSite {
    span: TextSpan,
    statement_line: u32,
}

impl CallSite {
    /// Adds the line of the statement, if that is not the line of the call.
    fn mention_caller(&self, message: String) -> String {
        match usize::try_from(self.statement_line) {
            Ok(line) if line == self.span.line + 1 => message,
            _ => format!("{message}; called from line {}", self.statement_line),
        }
    }
}

fn locate_call(eval: &Evaluator<'_, '_, '_>) -> CallSite {
    let span_at = |depth: usize| eval.call_stack_nth_location(depth).map(|span| text_span(&span));
    let inner = span_at(0).unwrap_or(TextSpan { line: 0, column: 0, width: 1 });
    // The outermost frame may be the file itself, which has no caller.
    let outer = (0..eval.call_stack_count()).rev().find_map(span_at).unwrap_or(inner);
    CallSite { span: inner, statement_line: u32::try_from(outer.line + 1).unwrap_or(u32::MAX) }
}

/// Evaluates a call and records its error, if any.
fn record_call(
    eval: &Evaluator<'_, '_, '_>,
    apply_call: impl FnOnce(&mut EvaluationNotes, &CallSite, RuleOrigin) -> Result<(), String>,
) -> starlark::Result<NoneType> {
    let site = locate_call(eval);
    NOTES.with_borrow_mut(|notes| {
        let origin = RuleOrigin { file: notes.file.clone(), line: site.statement_line };
        if let Err(message) = apply_call(notes, &site, origin) {
            if notes.faults.len() + 1 >= MAX_FAULTS {
                return Err(abort_error(format!("{message}; the rest of this file was skipped")));
            }
            notes.faults.push((site.span, site.mention_caller(message)));
        }
        let table = &notes.table;
        match table.prefixes.len() + table.networks.len() + table.host_executables.len() > MAX_RULES
        {
            true => Err(abort_error(format!("a file may contain at most {MAX_RULES} rules"))),
            false => Ok(NoneType),
        }
    })
}

/// Creates an interpreter error, which ends the reading.
fn abort_error(message: String) -> starlark::Error {
    starlark::Error::new_other(std::io::Error::other(message))
}

#[starlark_module]
pub fn builtins(builder: &mut GlobalsBuilder) {
    fn prefix_rule<'v>(
        pattern: UnpackList<Value<'v>>,
        decision: Option<&'v str>,
        r#match: Option<UnpackList<Value<'v>>>,
        not_match: Option<UnpackList<Value<'v>>>,
        justification: Option<&'v str>,
        eval: &mut Evaluator<'v, '_, '_>,
    ) -> starlark::Result<NoneType> {
        record_call(eval, |notes, site, origin| {
            let decision = decision.map_or(Ok(Decision::Allow), parse_decision)?;
            let justification = parse_justification(justification)?;
            let tokens: Vec<PatternToken> =
                pattern.items.into_iter().map(parse_token).collect::<Result<_, _>>()?;
            let Some((first, rest)) = tokens.split_first() else {
                return Err("pattern must not be empty".to_owned());
            };
            let examples =
                |given: Option<UnpackList<Value<'v>>>| -> Result<Vec<Vec<String>>, String> {
                    given
                        .into_iter()
                        .flat_map(|list| list.items)
                        .map(example::parse_command)
                        .collect()
                };
            let (matching, not_matching) = (examples(r#match)?, examples(not_match)?);
            let rule = |program: &String| PrefixRule {
                program: program.clone(),
                rest: rest.to_vec(),
                decision,
                justification: justification.clone(),
                origin: origin.clone(),
                project: false,
            };
            let rules: Vec<PrefixRule> = first.0.iter().map(rule).collect();
            notes.table.prefixes.extend(rules.iter().cloned());
            if !(matching.is_empty() && not_matching.is_empty()) {
                notes.examples.push(RuleExamples {
                    rules,
                    matching,
                    not_matching,
                    span: site.span,
                });
            }
            Ok(())
        })
    }

    fn network_rule<'v>(
        host: &'v str,
        protocol: &'v str,
        decision: &'v str,
        justification: Option<&'v str>,
        eval: &mut Evaluator<'v, '_, '_>,
    ) -> starlark::Result<NoneType> {
        record_call(eval, |notes, _, origin| {
            let protocol = validate::parse_protocol(protocol)?;
            // Only this function accepts a second word for it.
            let decision =
                if decision == "deny" { Decision::Forbidden } else { parse_decision(decision)? };
            let justification = parse_justification(justification)?;
            let host = validate::parse_host(host)?;
            notes.table.networks.push(NetworkRule {
                host,
                protocol,
                decision,
                justification,
                origin,
            });
            Ok(())
        })
    }

    fn host_executable<'v>(
        name: &'v str,
        paths: UnpackList<Value<'v>>,
        eval: &mut Evaluator<'v, '_, '_>,
    ) -> starlark::Result<NoneType> {
        record_call(eval, |notes, _, _| {
            validate::check_program_name(name)?;
            let mut known: Vec<String> = Vec::new();
            for value in paths.items {
                let path =
                    validate::parse_program_path(name, &example::expect_string(value, "paths")?)?;
                if !known.contains(&path) {
                    known.push(path);
                }
            }
            notes.table.host_executables.insert(name.to_owned(), known);
            Ok(())
        })
    }
}

fn parse_decision(given: &str) -> Result<Decision, String> {
    let expected = "decision must be \"allow\", \"prompt\" or \"forbidden\"";
    match given {
        "allow" => Ok(Decision::Allow),
        "prompt" => Ok(Decision::Prompt),
        "forbidden" => Ok(Decision::Forbidden),
        "deny" | "forbid" | "block" | "reject" => {
            Err(format!("{expected} (got {given:?}; did you mean \"forbidden\"?)"))
        }
        "ask" => Err(format!("{expected} (got {given:?}; did you mean \"prompt\"?)")),
        other => Err(format!("{expected} (got {other:?})")),
    }
}

fn parse_justification(given: Option<&str>) -> Result<Option<String>, String> {
    match given {
        Some(text) if text.trim().is_empty() => {
            Err("justification must not be empty: say why, or leave it out".to_owned())
        }
        other => Ok(other.map(str::to_owned)),
    }
}

/// Parses one position of a pattern: a word, or a list of alternative words.
fn parse_token(value: Value<'_>) -> Result<PatternToken, String> {
    if let Some(word) = value.unpack_str() {
        return Ok(PatternToken(vec![word.to_owned()]));
    }
    let Some(list) = ListRef::from_value(value) else {
        return Err(format!(
            "a pattern must contain only strings and lists of strings (got {})",
            value.get_type()
        ));
    };
    let words = list
        .content()
        .iter()
        .map(|word| example::expect_string(*word, "alternatives in a pattern"));
    let words: Vec<String> = words.collect::<Result<_, _>>()?;
    if words.is_empty() {
        Err("a list of alternatives in a pattern must not be empty".to_owned())
    } else {
        Ok(PatternToken(words))
    }
}
