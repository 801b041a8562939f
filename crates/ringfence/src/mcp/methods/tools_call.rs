//! `tools/call`: starts or resumes a run for a request, and returns its result.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CreateTaskResult, ErrorData, Extensions,
    InputRequests, InputRequiredResult, RequestMetaObject,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Map, Value, json};

use crate::base::call::ToolOutput;
use crate::base::client_handle::ClientCapabilities;
use crate::base::{CancelCause, Error, IgnorePoison, Kind, Result, TraceId};
use crate::call::park::ResumableCall;
use crate::call::{CallRequest, request_digest};
use crate::mcp::attach::{AttachOutcome, AttachedRequest, attach_to_run};
use crate::mcp::server::{CallGuard, ClientConnection, DeclaredClient};
use crate::mcp::{Server, codex_legacy, meta, render};
use crate::mcp::{codex, overrides};
use crate::registry::NameStyle;
use crate::session::{ClientInfo, Overrides};
use crate::tools::{SessionRef, ToolOrigin};

/// A `tools/call` request with its connection and client.
pub struct IncomingCall<'a> {
    pub server: &'a Arc<Server>,
    pub connection: ClientConnection,
    pub client: Arc<DeclaredClient>,
    pub stateless: bool,
    /// `_meta` of the request.
    pub request_meta: &'a RequestMetaObject,
    /// Headers of the HTTP request that carried it.
    pub headers: Option<&'a HeaderMap>,
    /// The transport has reloaded the config for this request.
    pub is_config_checked: bool,
}

/// Call that is running for a request.
pub struct StartedCall {
    pub call: ResumableCall,
    /// Keeps its id in use, and makes it cancellable.
    pub _guard: CallGuard,
}

/// Call that its transport has started before the engine saw the request. The engine's handler
/// attaches to it.
#[derive(Clone)]
pub struct CallToAttach(Arc<Mutex<Option<StartedCall>>>);

impl CallToAttach {
    /// Wraps a call, to be inserted into the extensions of its request, or of the HTTP request that
    /// carries it.
    pub fn new(started: StartedCall) -> CallToAttach {
        CallToAttach(Arc::new(Mutex::new(Some(started))))
    }

    fn take_from(extensions: &Extensions) -> Option<StartedCall> {
        let CallToAttach(started) = extensions.get::<CallToAttach>().or_else(|| {
            extensions.get::<http::request::Parts>()?.extensions.get::<CallToAttach>()
        })?;
        started.lock().ignore_poison().take()
    }
}

/// Answers a `tools/call` request.
pub async fn answer_call(
    incoming: IncomingCall<'_>,
    params: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let mut trace_id = TraceId::generate();
    let name = params.name.clone();
    let outcome = handle_call(&incoming, params, context, &mut trace_id).await;
    render_outcome(&incoming, &name, outcome, &trace_id)
}

/// Returns what the client gets for a call.
pub fn render_outcome(
    incoming: &IncomingCall<'_>,
    tool: &str,
    outcome: Result<CallToolResponse>,
    trace_id: &TraceId,
) -> Result<CallToolResponse, ErrorData> {
    match outcome.map_err(|error| rewrite_hint(incoming, error)) {
        Ok(mut response) => {
            if let (true, CallToolResponse::Complete(result)) = (incoming.stateless, &mut response)
            {
                add_session_handle(incoming, result);
            }
            Ok(response)
        }
        Err(error) if codex_legacy::is_active(incoming.server) && !is_about_protocol(&error) => {
            Ok(CallToolResponse::Complete(codex_legacy::failure_result(&error, tool, trace_id)))
        }
        // A request that is not even a call is a protocol error; everything else is a result that a
        // model can read.
        Err(error) if is_protocol_error(&error, incoming.stateless) => {
            tracing::info!(%trace_id, tool = ?tool.chars().take(64).collect::<String>(), "{}", error.log_line());
            Err(render::error_data(&error, trace_id))
        }
        Err(error) => {
            let state = incoming.server.pipeline.state();
            let tool = state.registry.get(tool);
            let result = match tool.is_some_and(|tool| tool.origin() == ToolOrigin::Upstream) {
                true => render::upstream_failure_result(&error, trace_id),
                false => render::failure_result(&error, trace_id),
            };
            Ok(CallToolResponse::Complete(result))
        }
    }
}

/// Rewrites the tool names in an error's hint to match this client's list.
fn rewrite_hint(incoming: &IncomingCall<'_>, error: Error) -> Error {
    let state = incoming.server.pipeline.state();
    let style = NameStyle::for_client(state.config.tool_names, &incoming.client.info);
    match error.hint_text() {
        // A hint with suggestions quotes file names, and one of those may look like a tool.
        Some(hint) if error.get_fact("nearest").is_none() => {
            let hint = state.registry.rewrite_names(style, hint);
            error.with_hint(hint)
        }
        _ => error,
    }
}

/// Returns whether an error is reported as a protocol error. Only 2026-07-28 has one for a
/// capability that was not declared.
pub fn is_protocol_error(error: &Error, stateless: bool) -> bool {
    error.kind() == Kind::UnknownTool
        || is_about_protocol(error)
        || stateless && error.reason_name() == Some("missing_capability")
}

fn is_about_protocol(error: &Error) -> bool {
    matches!(
        error.reason_name(),
        Some("bad_state" | "expired_state" | "other_call" | "used_state" | "bad_session")
    )
}

/// Starts or resumes the run and attaches to it. `trace_id` becomes that of the run, which a retry
/// only resumes.
async fn handle_call(
    incoming: &IncomingCall<'_>,
    params: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
    trace_id: &mut TraceId,
) -> Result<CallToolResponse> {
    let StartedCall { call, _guard } = match CallToAttach::take_from(&context.extensions) {
        Some(started) => started,
        None => {
            let call = start_or_resume(incoming, params, trace_id).await?;
            let session_id = &incoming.connection.session().id;
            let request_id = serde_json::to_string(&context.id).unwrap_or_default();
            let cancel = call.run.cancel.clone();
            let guard = incoming.server.track_call(session_id, &request_id, cancel);
            StartedCall { call, _guard: guard }
        }
    };
    *trace_id = call.run.trace_id.clone();
    let attached = AttachedRequest {
        context,
        stateless: incoming.stateless,
        cause: disconnect_cause(incoming),
        connection_cancel: &incoming.connection.session().cancel,
    };
    match attach_to_run(call, &attached).await {
        AttachOutcome::Done(result) => {
            result.map(|output| complete_response(output, trace_id, incoming.stateless))
        }
        AttachOutcome::NeedsAnswers(call) => {
            let requests =
                collect_questions(&call).inspect_err(|error| log_internal(error, trace_id))?;
            let state = incoming
                .server
                .pipeline
                .parked
                .park_call(call)
                .inspect_err(|error| log_internal(error, trace_id))?;
            Ok(CallToolResponse::InputRequired(InputRequiredResult::new(
                Some(requests),
                Some(state),
            )))
        }
        AttachOutcome::Detached(call) => {
            let task_result = incoming.server.tasks.add_task(call, &incoming.connection.principal);
            let task = task_result.inspect_err(|error| log_internal(error, trace_id))?;
            Ok(CallToolResponse::Task(CreateTaskResult::new(task)))
        }
    }
}

/// Starts the run of a call, or resumes the one whose state the request carries.
pub async fn start_or_resume(
    incoming: &IncomingCall<'_>,
    params: CallToolRequestParams,
    trace_id: &TraceId,
) -> Result<ResumableCall> {
    let mut arguments = params.arguments.unwrap_or_default();
    let session_ref = find_session(incoming, &mut arguments)
        .inspect_err(|error| log_internal(error, trace_id))?;
    if let (Some(state), true) = (&params.request_state, incoming.stateless) {
        let digest = request_digest(&params.name, &arguments);
        let parked = &incoming.server.pipeline.parked;
        let mut call =
            parked.resume_call(state, incoming.connection.principal.name(), &digest).await?;
        call.deliver_answers(params.input_responses.unwrap_or_default());
        call.drop_closed_questions();
        return Ok(call);
    }
    if !incoming.is_config_checked {
        incoming.server.pipeline.reload_if_changed().await;
    }
    let overrides = overrides::read_request(incoming.request_meta, incoming.headers)?;
    let request =
        build_request(incoming, session_ref, &params.name, arguments, overrides, trace_id);
    let run = incoming.server.pipeline.start_call(request);
    let early_answers = params.input_responses.filter(|_| incoming.stateless).unwrap_or_default();
    Ok(ResumableCall::new(run).with_early_answers(early_answers))
}

/// Returns the response for a call that has ended.
pub fn complete_response(
    output: ToolOutput,
    trace_id: &TraceId,
    stateless: bool,
) -> CallToolResponse {
    CallToolResponse::Complete(render::tool_result(output, trace_id, stateless))
}

/// Logs an error around a run; errors of the run itself have been logged.
fn log_internal(error: &Error, trace_id: &TraceId) {
    if error.kind() == Kind::Internal {
        render::log_refusal(error, trace_id);
    }
}

/// Returns all open questions, for one round.
pub fn collect_questions(call: &ResumableCall) -> Result<InputRequests> {
    call.open_questions
        .iter()
        .map(|(key, question)| {
            let request = json!({"method": question.method, "params": question.params});
            let request = serde_json::from_value(request).map_err(|error| {
                Error::internal("a question does not match the protocol").with_source(error)
            })?;
            Ok((key.clone(), request))
        })
        .collect()
}

fn find_session(
    incoming: &IncomingCall<'_>,
    arguments: &mut Map<String, Value>,
) -> Result<SessionRef> {
    if !incoming.stateless {
        return Ok(SessionRef {
            state: Arc::clone(&incoming.connection.state),
            persistent: incoming.connection.persistent,
        });
    }
    let argument = arguments.remove(meta::SESSION_ARGUMENT);
    let handle = incoming.request_meta.get(meta::SESSION).or(argument.as_ref());
    incoming.server.session_by_handle(&incoming.connection, handle.and_then(Value::as_str))
}

fn build_request(
    incoming: &IncomingCall<'_>,
    session_ref: SessionRef,
    tool: &str,
    arguments: Map<String, Value>,
    overrides: Overrides,
    trace_id: &TraceId,
) -> CallRequest {
    let timeout = incoming
        .request_meta
        .get(meta::TIMEOUT_MS)
        .and_then(Value::as_u64)
        .map(Duration::from_millis);
    // In compatibility mode we declare nothing by which a client could report its sandbox.
    let client_sandbox = match codex_legacy::is_active(incoming.server) {
        true => None,
        false => codex::sandbox_for_call(
            incoming.request_meta,
            session_ref.session(),
            &incoming.connection,
        ),
    };
    let unsandboxed =
        client_sandbox.as_ref().is_some_and(|client_sandbox| client_sandbox.unsandboxed);
    let client = incoming.client.info.short_name();
    // The session of HTTP requests without a handle is shared by all clients of a principal.
    if session_ref.persistent || incoming.connection.persistent {
        session_ref.session().set_client_name(&client);
    }
    CallRequest {
        overrides,
        trace_id: trace_id.clone(),
        tool: tool.to_owned(),
        arguments,
        session_ref,
        client_capabilities: client_capabilities(incoming, unsandboxed),
        client_sandbox,
        timeout,
        response_timeout: timeout.filter(|_| !incoming.stateless),
        protocol: incoming.client.protocol.clone(),
        client,
        output_budget: output_budget(&incoming.client.info),
    }
}

/// Returns the capabilities of the client. `unsandboxed` is a client without a sandbox of its own,
/// which accepts whatever it is asked.
fn client_capabilities(incoming: &IncomingCall<'_>, unsandboxed: bool) -> ClientCapabilities {
    let declared = incoming.client.capabilities.as_ref();
    let request_meta = incoming.request_meta;
    ClientCapabilities {
        // `{}` means forms; a client that names only `url` cannot show one.
        elicitation: declared
            .and_then(|declared| declared.elicitation.as_ref())
            .is_some_and(|modes| modes.form.is_some() || modes.url.is_none()),
        elicitation_url: declared
            .and_then(|declared| declared.elicitation.as_ref())
            .is_some_and(|modes| modes.url.is_some()),
        sampling: declared.is_some_and(|declared| declared.sampling.is_some()),
        roots: declared.is_some_and(|declared| declared.roots.is_some()),
        tasks: incoming.stateless && declared.is_some_and(|declared| declared.supports_tasks()),
        progress: request_meta.get_progress_token().is_some(),
        logging: !codex_legacy::is_active(incoming.server)
            && (!incoming.stateless || request_meta.log_level().is_some()),
        auto_answers: unsandboxed || codex::auto_answers(request_meta),
        shows_empty_form_as_menu: incoming
            .client
            .info
            .name
            .to_ascii_lowercase()
            .starts_with("codex"),
    }
}

/// Returns how much text a client accepts before it truncates a result itself, which it does in the
/// wrong place.
fn output_budget(client: &ClientInfo) -> usize {
    if client.name.to_ascii_lowercase().contains("codex") { 10_000 } else { 24_000 }
}

/// Returns why the call is cancelled if the request ends without an answer. On 2026-07-28 over
/// HTTP, the stream was closed.
fn disconnect_cause(incoming: &IncomingCall<'_>) -> CancelCause {
    match (incoming.stateless, incoming.connection.transport) {
        (true, "http") => CancelCause::Disconnect,
        _ => CancelCause::Client,
    }
}

fn add_session_handle(incoming: &IncomingCall<'_>, result: &mut rmcp::model::CallToolResult) {
    let given_handle =
        incoming.request_meta.get(meta::SESSION).and_then(Value::as_str).map(str::to_owned);
    let handle = match given_handle {
        Some(handle) => Ok(handle),
        None => incoming.server.mint_handle(&incoming.connection.principal),
    };
    match handle {
        Ok(handle) => {
            result.meta.get_or_insert_default().insert(meta::SESSION.to_owned(), json!(handle));
        }
        Err(error) => tracing::error!("{}", error.log_line()),
    }
}
