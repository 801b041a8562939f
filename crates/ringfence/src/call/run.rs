//! A running call and the handle to it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tracing::Instrument;

use super::prepare::{find_tool, prepare_call, restrict_workspace, timeout_hint};
use super::{CallRequest, Pipeline, PipelineState, overrides};
use crate::approval::{Granted, QuestionContext};
use crate::audit::CallRecord;
use crate::base::call::{CallFacts, CallStatus, Prepared, ToolOutput, digest_json};
use crate::base::client_handle::{ClientEventReceiver, ClientHandle};
use crate::base::client_sandbox;
use crate::base::clock::Deadline;
use crate::base::{CancelCause, CancelToken, Error, Kind, Result, TraceId};
use crate::sandbox::{self, ReportCompleteness};
use crate::tools::{CallControl, CallServices, CallSettings, DelegatedCall, RunCx};

/// Handle to a call that has been started. Dropping it does not end the call; `cancel` does.
pub struct RunningCall {
    /// Trace id of the audit record, whichever request the result goes to.
    pub trace_id: TraceId,
    pub events: ClientEventReceiver,
    pub done: oneshot::Receiver<Result<ToolOutput>>,
    pub cancel: CancelToken,
    /// Hash of tool and arguments: a retry must be for the same call.
    pub digest: String,
    pub principal: String,
    /// How long its questions wait for an answer.
    pub expiry: Duration,
    /// How long it may take to end once it has been cancelled.
    pub grace: Duration,
}

impl Pipeline {
    /// Starts a call. It ends when the tool is done, at its deadline, when it is cancelled or with
    /// its session.
    pub fn start_call(self: &Arc<Self>, request: CallRequest) -> RunningCall {
        let (client, events) = ClientHandle::new(request.client_capabilities);
        let (finished, done) = oneshot::channel();
        let cancel = request.session_ref.session().cancel.new_child();
        let state = self.state();
        let run = RunningCall {
            expiry: state.config.approval.expiry,
            grace: state.config.limits.grace,
            trace_id: request.trace_id.clone(),
            events,
            done,
            cancel: cancel.clone(),
            digest: request_digest(&request.tool, &request.arguments),
            principal: request.session_ref.session().principal.name().to_owned(),
        };
        let pipeline = Arc::clone(self);
        // The record has the tool's own name, whichever spelling the caller used and however far
        // the call gets.
        let tool_name = state.registry.get(&request.tool).map(|tool| tool.spec().name.as_str());
        let shown_name: String = tool_name.unwrap_or(&request.tool).chars().take(128).collect();
        // An error-level span, so that its fields are on every log line about the call.
        let span = tracing::error_span!(
            "call",
            trace_id = request.trace_id.as_str(),
            session = request.session_ref.session().id,
            tool = shown_name
        );
        let work = async move {
            let record = CallRecord::open(
                &pipeline.audit,
                &request.trace_id,
                describe_request(&request, shown_name),
            );
            let result = pipeline.execute_and_record(&state, request, client, cancel, record).await;
            // The client may have disconnected; ignore the error. The record has been written in
            // any case.
            let _ = finished.send(result);
        };
        // The runtime moves what it spawns several times, and a call is large.
        self.running_calls.spawn(Box::pin(work).instrument(span));
        run
    }

    async fn execute_and_record(
        self: &Arc<Self>,
        state: &PipelineState,
        request: CallRequest,
        client: ClientHandle,
        cancel: CancelToken,
        mut record: CallRecord,
    ) -> Result<ToolOutput> {
        let result = self.execute(state, request, client, &cancel, &mut record).await;
        // The output of programs is already redacted. This covers other sources: a file, a page, a
        // driver.
        let result = result.map(ToolOutput::without_secrets).map_err(Error::without_secrets);
        match &result {
            Ok(output) => record.finish(&output.facts, None, cancel.cause()),
            Err(error) => {
                if let Err(wait) = record.admit_refusal() {
                    return Err(self.count_refusal(record, error, wait));
                }
                let supervisor_lost = error.reason_name() == Some(sandbox::SUPERVISOR_LOST);
                let report_gap = supervisor_lost
                    .then_some(ReportCompleteness::Missing)
                    .and_then(ReportCompleteness::audit_name);
                let facts = CallFacts {
                    status: Some(status_for_error(error)),
                    report_gap,
                    ..CallFacts::default()
                };
                // The log has the details that the caller does not get, under the same trace id.
                match error.kind() {
                    Kind::Internal => tracing::error!("{}", error.log_line()),
                    _ => tracing::info!("{}", error.log_line()),
                }
                record.finish(&facts, Some(error), cancel.cause());
            }
        }
        result
    }

    /// Executes the call from start to end. A panic in a tool is an internal error of that call
    /// only.
    async fn execute(
        self: &Arc<Self>,
        state: &PipelineState,
        request: CallRequest,
        client: ClientHandle,
        cancel: &CancelToken,
        record: &mut CallRecord,
    ) -> Result<ToolOutput> {
        self.release_stale_sandboxes(&request.session_ref.state.sandboxes);
        let tool = find_tool(state, &request.tool, &request.session_ref.session().workspace)?;
        let (tool, request) = match tool.delegate_call(&request.arguments)? {
            Some(DelegatedCall { tool: target, arguments }) => {
                record.set_field("tool", target.spec().name.as_str());
                record.set_field("via", tool.spec().name.as_str());
                (target, CallRequest { arguments, ..request })
            }
            None => (tool, request),
        };
        let config = &state.config;
        let own_sandbox = tool.own_sandbox().cloned();
        let sandbox = Arc::clone(
            own_sandbox.as_ref().map_or(&state.sandbox, |own_sandbox| &own_sandbox.sandbox_config),
        );
        let (workspace, client_sandbox) =
            restrict_workspace(self, &*tool, config, &sandbox, &request).await?;
        if let Some(description) = &client_sandbox {
            record.set_field("client_sandbox", description["mode"].clone());
        }
        let session = request.session_ref.session();
        let effective_overrides =
            overrides::merge_overrides(request.overrides.clone(), &session.overrides());
        let effective_overrides =
            overrides::check_overrides(&effective_overrides, config, &session.workspace)?;
        let overrides = (!effective_overrides.is_empty())
            .then(|| overrides::describe_overrides(&effective_overrides));
        if let Some(overrides) = &overrides {
            record.set_field("overrides", overrides.clone());
        }
        let mut prepared =
            prepare_call(state, &sandbox, &*tool, &request, &effective_overrides, &workspace)?;
        prepared.definition_hash = state.trust_key(&prepared.tool, prepared.definition_hash);
        let timeout_ms = u64::try_from(prepared.time_limit.as_millis()).unwrap_or(u64::MAX);
        record.set_fields([
            ("tool", prepared.tool.as_str().into()),
            ("arguments_hash", prepared.arguments_hash.as_str().into()),
            ("cwd", prepared.cwd.as_str().into()),
            ("profile", prepared.profile.into()),
            ("timeout_ms", timeout_ms.into()),
        ]);
        if let Some(target) = &prepared.target {
            record.set_field("upstream_tool", target.as_str());
        }
        let deadline = Arc::new(Deadline::after(prepared.time_limit));
        let limit = prepared.time_limit;
        let call_events = record.call_events();
        let response_timeout = request.response_timeout;
        let timeout_hint = timeout_hint(config, &*tool, request.timeout, limit);
        let question_context = QuestionContext {
            session,
            persistent: request.session_ref.persistent,
            client: &client,
            cancel,
            deadline: &deadline,
            call_events: &call_events,
            expiry: state.config.approval.expiry,
            response_timeout,
        };
        let granted = self.gate.pass_call(&question_context, prepared).await;
        record.set_field("approval", approval_outcome(&granted));
        let granted = granted?;
        record.write_start()?;
        let cx = Arc::new(RunCx {
            trace_id: request.trace_id,
            session_ref: request.session_ref,
            settings: CallSettings {
                config: Arc::clone(config),
                sandbox,
                workspace,
                own_sandbox,
                overrides: Arc::new(effective_overrides),
                text_budget: request.output_budget,
                timeout_hint,
            },
            control: CallControl {
                client,
                cancel: cancel.clone(),
                deadline: Arc::clone(&deadline),
                call_events,
                max_approval_wait: response_timeout,
            },
            services: CallServices {
                policy: self.policy.clone(),
                gate: Arc::clone(&self.gate),
                list_changes: self.list_changes.clone(),
                tasks: self.running_calls.clone(),
            },
        });
        let work =
            std::panic::AssertUnwindSafe(tool.run_call(Arc::clone(&cx), granted)).catch_unwind();
        tokio::pin!(work);
        let outcome = tokio::select! {
            result = &mut work => Some(result),
            () = deadline.wait_until_passed() => { cancel.cancel(CancelCause::Deadline); None }
            _ = cancel.cancelled() => None,
        };
        // The tool has the grace period to end its children and hand over what it has; then it is
        // dropped.
        let outcome = match outcome {
            Some(result) => Some(result),
            None => {
                tokio::time::timeout(sandbox::max_end_duration(state.config.limits.grace), work)
                    .await
                    .ok()
            }
        };
        match outcome {
            Some(Ok(result)) => result
                .map(|mut output| {
                    output.meta.extend(
                        client_sandbox
                            .map(|description| (client_sandbox::META_KEY.to_owned(), description)),
                    );
                    output
                        .meta
                        .extend(overrides.map(|description| {
                            (overrides::OVERRIDES_META.to_owned(), description)
                        }));
                    output
                })
                .map_err(|error| match error.kind() {
                    Kind::DeadlineExceeded => error.with_fallback_hint(&cx.settings.timeout_hint),
                    _ => error,
                }),
            Some(Err(_)) => Err(Error::internal("the tool failed unexpectedly")),
            None if cancel.cause() == Some(CancelCause::Deadline) => Err(Error::new(
                Kind::DeadlineExceeded,
                format!("no result within {} ms", limit.as_millis()),
            )
            .with_hint(cx.settings.timeout_hint.as_str())),
            None => Err(Error::new(Kind::Cancelled, "the call was cancelled")),
        }
    }
}

/// Returns what the record says about a request before it is known whether it can run.
fn describe_request(request: &CallRequest, tool: String) -> [(&'static str, Value); 7] {
    let session = request.session_ref.session();
    [
        ("session", session.id.as_str().into()),
        ("principal", session.principal.name().into()),
        ("workspace", session.workspace.display_path().into()),
        ("transport", session.transport.into()),
        ("protocol", request.protocol.as_str().into()),
        ("client", request.client.as_str().into()),
        ("tool", tool.into()),
    ]
}

/// Returns the hash of tool and arguments, whichever spelling of the tool's name is used.
pub fn request_digest(tool: &str, arguments: &Map<String, Value>) -> String {
    digest_json(&json!([crate::tools::with_underscores(tool), arguments]))
}

/// Returns the outcome of approval for the audit record.
fn approval_outcome(granted: &Result<Granted<Prepared>>) -> &'static str {
    match granted {
        Ok(granted) if granted.grant().by == "policy" => "not_needed",
        Ok(_) => "approved",
        Err(error) if matches!(error.kind(), Kind::ApprovalDenied | Kind::TooLarge) => "denied",
        // No one answered, or no one waits for the answer any more.
        Err(_) => "expired",
    }
}

fn status_for_error(error: &Error) -> CallStatus {
    match error.kind() {
        Kind::ApprovalDenied | Kind::ApprovalExpired | Kind::PermissionDenied => CallStatus::Denied,
        Kind::DeadlineExceeded => CallStatus::TimedOut,
        Kind::Cancelled => CallStatus::Cancelled,
        _ => CallStatus::Failed,
    }
}
