//! The three functions of a rules file.
//!
//! An invalid call is recorded and reading continues, so that the author sees all errors at once
//! and the restrictions in the rest of the file still apply. Only errors of the interpreter itself
//! (an unknown argument, a number instead of a string) end the reading.

use std::cell::RefCell;

use policy::{Decision, NetworkRule, Origin, PrefixRule, Table, Token};
use starlark::codemap::FileSpan;
use starlark::environment::GlobalsBuilder;
use starlark::eval::Evaluator;
use starlark::starlark_module;
use starlark::values::Value;
use starlark::values::list::{ListRef, UnpackList};
use starlark::values::none::NoneType;

use crate::example::{self, Examples};
use crate::fault::Place;
use crate::host;

/// More than anyone writes by hand; every rule adds cost to every exec.
const MAX_RULES: usize = 20_000;
/// More errors than this would not help the reader.
const MAX_FAULTS: usize = 50;

/// Rules, examples and errors of a file so far.
#[derive(Default)]
pub struct Notes {
    file: String,
    pub table: Table,
    pub examples: Vec<Examples>,
    pub faults: Vec<(Place, String)>,
}

// The interpreter can pass a custom value to its functions, but only if the type implements an
// unsafe trait. It runs a file on a single thread from start to end, so a thread-local works as
// well.
thread_local! {
    static NOTES: RefCell<Notes> = RefCell::default();
}

/// Starts collecting for a file.
pub fn begin(file: &str) {
    NOTES.set(Notes { file: file.to_owned(), ..Notes::default() });
}

/// Returns what was collected.
pub fn end() -> Notes {
    NOTES.take()
}

/// Returns where a span begins, and how much of its first line it covers.
pub fn place(span: &FileSpan) -> Place {
    let resolved = span.resolve_span();
    let (begin, end) = (resolved.begin, resolved.end);
    // Marking all lines of a long statement says no more than marking the first.
    let width =
        if end.line == begin.line { end.column.saturating_sub(begin.column) } else { usize::MAX };
    Place { line: begin.line, column: begin.column, width: width.max(1) }
}

/// Location of a call, and the line of the top-level statement that led to it, possibly through
/// functions.
struct Site {
    place: Place,
    line: u32,
}

impl Site {
    /// Adds the line of the statement, if that is not the line of the call.
    fn add_to(&self, message: String) -> String {
        match usize::try_from(self.line) {
            Ok(line) if line == self.place.line + 1 => message,
            _ => format!("{message}; called from line {}", self.line),
        }
    }
}

fn site(eval: &Evaluator<'_, '_, '_>) -> Site {
    let place_of = |depth: usize| eval.call_stack_nth_location(depth).map(|span| place(&span));
    let inner = place_of(0).unwrap_or(Place { line: 0, column: 0, width: 1 });
    // The outermost frame may be the file itself, which has no caller.
    let outer = (0..eval.call_stack_count()).rev().find_map(place_of).unwrap_or(inner);
    Site { place: inner, line: u32::try_from(outer.line + 1).unwrap_or(u32::MAX) }
}

/// Evaluates a call and records its error, if any.
fn note(
    eval: &Evaluator<'_, '_, '_>,
    say: impl FnOnce(&mut Notes, &Site, Origin) -> Result<(), String>,
) -> starlark::Result<NoneType> {
    let site = site(eval);
    NOTES.with_borrow_mut(|notes| {
        let origin = Origin { file: notes.file.clone(), line: site.line };
        if let Err(message) = say(notes, &site, origin) {
            if notes.faults.len() + 1 >= MAX_FAULTS {
                return Err(refuse(format!("{message}; the rest of this file was skipped")));
            }
            notes.faults.push((site.place, site.add_to(message)));
        }
        let table = &notes.table;
        match table.prefixes.len() + table.networks.len() + table.host_executables.len() > MAX_RULES
        {
            true => Err(refuse(format!("a file may contain at most {MAX_RULES} rules"))),
            false => Ok(NoneType),
        }
    })
}

/// Creates an interpreter error, which ends the reading.
fn refuse(message: String) -> starlark::Error {
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
        note(eval, |notes, site, origin| {
            let decision = decision.map_or(Ok(Decision::Allow), parse_decision)?;
            let justification = parse_justification(justification)?;
            let tokens: Vec<Token> =
                pattern.items.into_iter().map(parse_token).collect::<Result<_, _>>()?;
            let Some((first, rest)) = tokens.split_first() else {
                return Err("pattern must not be empty".to_owned());
            };
            let examples =
                |given: Option<UnpackList<Value<'v>>>| -> Result<Vec<Vec<String>>, String> {
                    given.into_iter().flat_map(|list| list.items).map(example::parse).collect()
                };
            let (matching, other) = (examples(r#match)?, examples(not_match)?);
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
            if !(matching.is_empty() && other.is_empty()) {
                notes.examples.push(Examples { rules, matching, other, place: site.place });
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
        note(eval, |notes, _, origin| {
            let protocol = host::protocol(protocol)?;
            // Only this function accepts a second word for it.
            let decision =
                if decision == "deny" { Decision::Forbidden } else { parse_decision(decision)? };
            let justification = parse_justification(justification)?;
            let host = host::network(host)?;
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
        note(eval, |notes, _, _| {
            host::executable(name)?;
            let mut known: Vec<String> = Vec::new();
            for value in paths.items {
                let path = host::executable_path(name, &example::string(value, "paths")?)?;
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
    let known = "decision must be \"allow\", \"prompt\" or \"forbidden\"";
    match given {
        "allow" => Ok(Decision::Allow),
        "prompt" => Ok(Decision::Prompt),
        "forbidden" => Ok(Decision::Forbidden),
        "deny" | "forbid" | "block" | "reject" => {
            Err(format!("{known} (got {given:?}; did you mean \"forbidden\"?)"))
        }
        "ask" => Err(format!("{known} (got {given:?}; did you mean \"prompt\"?)")),
        other => Err(format!("{known} (got {other:?})")),
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
fn parse_token(value: Value<'_>) -> Result<Token, String> {
    if let Some(word) = value.unpack_str() {
        return Ok(Token(vec![word.to_owned()]));
    }
    let Some(list) = ListRef::from_value(value) else {
        return Err(format!(
            "a pattern must contain only strings and lists of strings (got {})",
            value.get_type()
        ));
    };
    let words =
        list.content().iter().map(|word| example::string(*word, "alternatives in a pattern"));
    let words: Vec<String> = words.collect::<Result<_, _>>()?;
    if words.is_empty() {
        Err("a list of alternatives in a pattern must not be empty".to_owned())
    } else {
        Ok(Token(words))
    }
}
