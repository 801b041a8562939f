//! Result of a command, in the format that `shell.exec` and `shell.session` share.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::base::call::{CallFacts, CallStatus, ToolOutput};
use crate::base::{Error, Kind, Result};
use crate::config::ProfileSetting;
use crate::sandbox::{KeptCommand, PartialOutput, RunOutcome, RunResult, ShownOutput, StopReason};
use crate::tools::RunCx;
use crate::tools::run::command::{self, to_millis};
use crate::tools::run::likely_limit;

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Reply {
    /// completed (exit code 0), failed, killed (by a signal), running, timed_out or cancelled.
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Bytes since the last read, returned or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub truncated: bool,
    /// Handle of the whole output, for file.read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    pub duration_ms: u64,
    /// Handle for shell.session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<String>,
    /// Handle of the shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    // Commands that a rule lets out of the sandbox and that ran inside. Undocumented on purpose:
    // every byte of a schema is in every list of tools, and the names explain themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub kept_inside: Vec<KeptCommand>,
    // Changes to what git on the host would execute, compared to before the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub git_changed: Vec<String>,
    // The likely reason for a failure, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    pub trace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Map<String, Value>>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct SandboxReport {
    pub profile: &'static str,
    /// mounts, if the kernel has no Landlock 3. Otherwise absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<&'static str>,
    /// off (except localhost), proxied or all.
    pub network: &'static str,
    /// cgroup2, cgroup1 or rlimits.
    pub limits: String,
    /// Refusals, as far as they are known for certain.
    pub denials: Vec<Map<String, Value>>,
}

impl Reply {
    /// Builds the reply for a command that has ended.
    pub fn from_outcome(cx: &RunCx, profile: ProfileSetting, outcome: RunOutcome) -> Reply {
        let result = outcome.result;
        let error = stop_error(cx, &result);
        let tier = result.weaker_tier();
        let denials =
            result.denials.iter().filter_map(|denial| denial.as_object().cloned()).collect();
        let has_failed = result.stop_reason.is_none() && result.exit_code != Some(0);
        let mut reply = Reply {
            status: command::status_name(&result),
            exit_code: result.exit_code,
            signal: result.signal,
            output: result.output_handle,
            duration_ms: to_millis(result.duration),
            sandbox: Some(SandboxReport {
                profile: profile.name(),
                tier,
                network: if profile == ProfileSetting::None {
                    "all"
                } else {
                    cx.settings.workspace.rights().network.name()
                },
                limits: result.limits_mechanism,
                denials,
            }),
            warnings: result.warnings,
            kept_inside: result.kept_inside,
            git_changed: result.git_changed,
            error: error
                .as_ref()
                .and_then(|error| error.to_body(&cx.trace_id).as_object().cloned()),
            ..Reply::from_streams(cx, outcome.stdout, outcome.stderr)
        };
        if has_failed {
            reply.explain_failure(cx, profile, "");
        }
        reply
    }

    /// Builds the reply for a command that is still running.
    pub fn from_partial(cx: &RunCx, partial: PartialOutput, id: &str) -> Reply {
        Reply {
            status: CallStatus::Running.name(),
            output: partial.output_handle,
            duration_ms: to_millis(partial.duration),
            exec_id: Some(id.to_owned()),
            warnings: partial.warnings,
            kept_inside: partial.kept_inside,
            ..Reply::from_streams(cx, partial.stdout, partial.stderr)
        }
    }

    fn from_streams(cx: &RunCx, stdout: ShownOutput, stderr: ShownOutput) -> Reply {
        Reply {
            truncated: stdout.truncated || stderr.truncated,
            stdout_bytes: stdout.bytes,
            stderr_bytes: stderr.bytes,
            stdout: stdout.text,
            stderr: stderr.text,
            trace_id: cx.trace_id.to_string(),
            ..Reply::default()
        }
    }

    /// Adds the likely reason for a failure. `exception` is an error that was reported other than
    /// on the standard streams. While a run continues, its denials are not known yet.
    pub fn explain_failure(&mut self, cx: &RunCx, profile: ProfileSetting, exception: &str) {
        let denials = self.sandbox.as_ref().map_or(&[][..], |sandbox| &sandbox.denials);
        self.hint = likely_limit::hint_for_failure(
            cx,
            profile,
            &[&self.stdout, &self.stderr, exception],
            denials,
        );
    }

    /// Withholds the output and says why.
    pub fn withhold_output(&mut self, reason: &str) {
        (self.stdout, self.stderr, self.output, self.hint) =
            (String::new(), String::new(), None, None);
        self.truncated = true;
        self.warnings.push(format!("its output is not shown: {reason}"));
    }

    /// Builds the result of the call.
    pub fn into_output(self, facts: CallFacts) -> Result<ToolOutput> {
        let (text, is_error) = (self.format_text(), self.error.is_some());
        let structured = serde_json::to_value(self)
            .map_err(|e| Error::internal("the result cannot be serialized").with_source(e))?;
        Ok(ToolOutput { is_error, facts, ..ToolOutput::from_structured(text, structured) })
    }

    /// Formats standard output, then standard error, then one line about how the command ended.
    fn format_text(&self) -> String {
        let mut text = self.stdout.clone();
        let end_line = |text: &mut String| {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
        };
        if !self.stderr.is_empty() {
            end_line(&mut text);
            text.push_str("[stderr]\n");
            text.push_str(&self.stderr);
        }
        end_line(&mut text);
        for warning in &self.warnings {
            text.push_str(&format!("warning: {warning}\n"));
        }
        for kept_command in &self.kept_inside {
            text.push_str(&format!("note: {}\n", kept_command.summary_line()));
        }
        for change in &self.git_changed {
            text.push_str(&format!("git: {change}\n"));
        }
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
        let ending = match (self.status, self.exit_code, self.signal) {
            ("timed_out", ..) => "timed out".to_owned(),
            ("running", ..) => match &self.exec_id {
                Some(id) => format!("still running as {id}: read on with shell.session"),
                None => "still running".to_owned(),
            },
            ("cancelled", ..) => "cancelled".to_owned(),
            (_, Some(code), _) => format!("exit code {code}"),
            (_, None, Some(signal)) => format!("killed by signal {signal}"),
            (_, None, None) => "ended".to_owned(),
        };
        text.push_str(&format!("{ending}, {} ms", self.duration_ms));
        if let Some(session) = &self.session {
            text.push_str(&format!(", session {session}"));
        }
        // Some clients show a model this text alone.
        if let Some(error) = &self.error {
            let part = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
            text.push_str(&format!(
                "\n{}: {}\n{}\ntrace_id: {}",
                part("kind"),
                part("message"),
                part("hint"),
                self.trace_id
            ));
        }
        text
    }
}

/// Returns the error for a command that was stopped before it ended on its own.
fn stop_error(cx: &RunCx, result: &RunResult) -> Option<Error> {
    match result.stop_reason? {
        StopReason::Deadline => {
            let message =
                format!("the command was stopped after {} ms", to_millis(result.duration));
            let hint = format!("Its output until then is included. {}", cx.settings.timeout_hint);
            Some(Error::new(Kind::DeadlineExceeded, message).with_hint(hint))
        }
        StopReason::Cancelled(cause) => Some(
            Error::new(Kind::Cancelled, "the command was stopped before it ended")
                .with_fact("cause", cause.name()),
        ),
    }
}
