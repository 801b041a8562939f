//! Result of running code: that of a command, plus its value, its exception and its files.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::artifacts::{Artifact, ArtifactList};
use super::driver_exchange::TurnReport;
use super::driver_messages::{CodeException, DriverReport};
use crate::base::call::{CallFacts, CallStatus, OutputBlock, ToolOutput};
use crate::base::{Error, Kind, Result};
use crate::config::ProfileSetting;
use crate::sandbox::{RunState, StopReason};
use crate::tools::run::command::{self, to_millis};
use crate::tools::shell::exec::Reply as Plain;
use crate::tools::{RunCx, arguments};

/// The first block of a result, as JSON; images follow.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Reply {
    #[serde(flatten)]
    plain: Plain,
    /// The value of the last expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// Files of the workspace that it made, changed or removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<Artifact>,
    /// How many images follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    figures: Option<usize>,
}

impl Reply {
    /// Returns a short schema: fields that `shell.exec` also has are described there.
    pub fn output_schema() -> Map<String, Value> {
        let mut schema = arguments::reply_schema::<Reply>();
        if let Some(Value::Object(fields)) = schema.get_mut("properties") {
            for (_, field) in
                fields.iter_mut().filter(|(name, _)| !OWN_FIELDS.contains(&name.as_str()))
            {
                if let Value::Object(field) = field {
                    field.remove("description");
                    field.remove("properties");
                    field.remove("required");
                }
            }
        }
        schema
    }
}

const OWN_FIELDS: &[&str] = &["result", "artifacts", "figures"];

/// How and where the code ran.
pub struct CodeRunInfo<'a> {
    pub profile: ProfileSetting,
    /// How long this code took.
    pub took: Duration,
    /// The handle of the interpreter, if it stays.
    pub session: Option<&'a str>,
    pub language: &'static str,
}

/// Builds the result.
pub fn build_output(
    cx: &RunCx,
    run_info: &CodeRunInfo<'_>,
    run_state: RunState,
    turn_report: TurnReport,
    artifact_list: ArtifactList,
) -> Result<ToolOutput> {
    let TurnReport { report, stop } = turn_report;
    let report = report.unwrap_or_default();
    let (mut plain, facts) = match run_state {
        RunState::Over(mut outcome) => {
            // It may have exited on its own after the interrupt.
            outcome.result.stop_reason = outcome.result.stop_reason.or(stop);
            let facts = command::collect_facts(&outcome.result);
            let mut plain = Plain::from_outcome(cx, run_info.profile, outcome);
            if let Some(id) = run_info.session {
                plain.warnings.push(session_ended_warning(id, run_info.language, stop));
            }
            (plain, facts)
        }
        RunState::Running(partial) => {
            let mut plain = Plain::from_partial(cx, partial, "");
            plain.exec_id = None;
            plain.duration_ms = to_millis(run_info.took);
            plain.session = run_info.session.map(str::to_owned);
            plain.exit_code = report.status;
            let status = run_status(&report, stop);
            plain.status = status.name();
            plain.error = stop.and_then(|stop| interrupt_error(cx, stop, run_info.language));
            let facts = CallFacts {
                status: Some(status),
                exit_code: plain.exit_code,
                stdout_bytes: Some(plain.stdout_bytes),
                stderr_bytes: Some(plain.stderr_bytes),
                ..CallFacts::default()
            };
            (plain, facts)
        }
    };
    if !plain.truncated {
        plain.output = None;
    }
    let is_error = plain.error.is_some();
    if facts.status == Some(CallStatus::Failed) {
        let thrown = report
            .error
            .as_ref()
            .map_or(String::new(), |thrown| format!("{}: {}", thrown.name, thrown.message));
        plain.explain_failure(cx, run_info.profile, &thrown);
    }
    if let Some(thrown) = report.error {
        add_exception(&mut plain.error, thrown);
    }
    plain.warnings.extend(report.warnings);
    plain.warnings.extend(artifact_list.warning);
    let figures = (!report.figures.is_empty()).then_some(report.figures.len());
    let reply = Reply { plain, result: report.value, artifacts: artifact_list.artifacts, figures };
    let json = serde_json::to_string(&reply)
        .map_err(|e| Error::internal("the result cannot be serialized").with_source(e))?;
    let images = report
        .figures
        .into_iter()
        .map(|data| OutputBlock::Image { data, mime: "image/png".to_owned() });
    let content = std::iter::once(OutputBlock::Text(json)).chain(images).collect();
    Ok(ToolOutput { content, is_error, facts, ..ToolOutput::default() })
}

fn run_status(report: &DriverReport, stop: Option<StopReason>) -> CallStatus {
    match (stop, &report.error, report.status) {
        (Some(StopReason::Deadline), ..) => CallStatus::TimedOut,
        (Some(StopReason::Cancelled(_)), ..) => CallStatus::Cancelled,
        (None, None, None | Some(0)) => CallStatus::Completed,
        (None, ..) => CallStatus::Failed,
    }
}

/// Adds an exception, which is a result. Together with an error of our own it only says where the
/// code was.
fn add_exception(error: &mut Option<Map<String, Value>>, exception: CodeException) {
    let has_own_error = error.is_some();
    let error = error.get_or_insert_default();
    error.insert("name".to_owned(), json!(exception.name));
    if !has_own_error {
        error.insert("message".to_owned(), json!(exception.message));
    }
    if let Some(line) = exception.line {
        error.insert("line".to_owned(), json!(line));
    }
    if !exception.traceback.is_empty() {
        error.insert("traceback".to_owned(), json!(exception.traceback));
    }
}

fn interrupt_error(cx: &RunCx, stop: StopReason, language: &str) -> Option<Map<String, Value>> {
    let error = match stop {
        StopReason::Deadline => {
            Error::new(Kind::DeadlineExceeded, "the code was interrupted because it timed out")
                .with_hint(format!(
                    "The {language} session keeps its state. {}",
                    cx.settings.timeout_hint
                ))
        }
        StopReason::Cancelled(cause) => {
            Error::new(Kind::Cancelled, "the code was interrupted").with_fact("cause", cause.name())
        }
    };
    error.to_body(&cx.trace_id).as_object().cloned()
}

fn session_ended_warning(id: &str, language: &str, stop: Option<StopReason>) -> String {
    match stop {
        Some(_) => format!(
            "the {language} session {id} was lost: it did not respond to an interrupt and was stopped"
        ),
        None => format!("the {language} session {id} has ended"),
    }
}
