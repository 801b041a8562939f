//! `tools/call`: starts or resumes a run for a request, and returns its result.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CreateTaskResult, ErrorData, InputRequests,
    InputRequiredResult,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Map, Value, json};

use crate::base::caller::Abilities;
use crate::base::{Cause, Error, Kind, Result, TraceId};
use crate::call::park::Held;
use crate::call::{CallRequest, request_digest};
use crate::mcp::ask::{Attached, Link, attach};
use crate::mcp::server::Line;
use crate::mcp::{Server, legacy, meta, render};
use crate::mcp::{codex, shaping};
use crate::registry::NameStyle;
use crate::session::{Client, Shape, View};

/// A `tools/call` request with its connection and client.
pub struct Incoming<'a> {
    pub server: &'a Arc<Server>,
    pub line: Line,
    pub client: Client,
    pub protocol: String,
    pub stateless: bool,
    pub context: &'a RequestContext<RoleServer>,
}

/// Answers a `tools/call` request.
pub async fn call(
    incoming: Incoming<'_>,
    params: CallToolRequestParams,
) -> Result<CallToolResponse, ErrorData> {
    let mut trace_id = TraceId::mint();
    let name = params.name.clone();
    let answer = handle(&incoming, params, &mut trace_id).await;
    let answer = answer.map_err(|error| respell_hint(&incoming, error));
    match answer {
        Ok(mut response) => {
            if let (true, CallToolResponse::Complete(result)) = (incoming.stateless, &mut response)
            {
                give_handle(&incoming, result);
            }
            Ok(response)
        }
        Err(error) if legacy::is_spoken(incoming.server) && !is_about_protocol(&error) => {
            Ok(CallToolResponse::Complete(legacy::failure(&error, &name, &trace_id)))
        }
        // A request that is not even a call is a protocol error; everything else is a result that a
        // model can read.
        Err(error) if is_protocol_error(&error, incoming.stateless) => {
            tracing::info!(%trace_id, tool = ?name.chars().take(64).collect::<String>(), "{}", error.log_line());
            Err(render::error_data(&error, &trace_id))
        }
        Err(error) => Ok(CallToolResponse::Complete(render::failure(&error, &trace_id))),
    }
}

/// Rewrites the tool names in an error's hint to match this client's list.
fn respell_hint(incoming: &Incoming<'_>, error: Error) -> Error {
    let state = incoming.server.pipeline.state();
    let style = NameStyle::for_client(state.config.tool_names, &incoming.client);
    match error.hint_text() {
        // A hint with suggestions quotes file names, and one of those may look like a tool.
        Some(hint) if error.fact("nearest").is_none() => {
            let hint = state.registry.respell(style, hint);
            error.hint(hint)
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
async fn handle(
    incoming: &Incoming<'_>,
    params: CallToolRequestParams,
    trace_id: &mut TraceId,
) -> Result<CallToolResponse> {
    let mut arguments = params.arguments.unwrap_or_default();
    let told = |error: &Error, trace_id: &TraceId| {
        // Errors of the run itself have been logged; this is for everything around it.
        if error.kind() == Kind::Internal {
            render::log_refusal(error, trace_id);
        }
    };
    let view = view(incoming, &mut arguments).inspect_err(|error| told(error, trace_id))?;
    let digest = request_digest(&params.name, &arguments);
    let held = match (&params.request_state, incoming.stateless) {
        (Some(state), true) => {
            let parked = &incoming.server.pipeline.parked;
            let mut held = parked.take_up(state, incoming.line.principal.name(), &digest).await?;
            held.answer(params.input_responses.unwrap_or_default());
            held.drop_settled();
            *trace_id = held.run.trace_id.clone();
            held
        }
        (_, stateless) => {
            incoming.server.pipeline.refresh().await;
            let shape = shaping::of_request(&incoming.context.meta, &incoming.context.extensions)?;
            let request = request(incoming, view, &params.name, (arguments, shape), trace_id);
            let run = incoming.server.pipeline.start(request);
            Held::new(run)
                .with_answers(params.input_responses.filter(|_| stateless).unwrap_or_default())
        }
    };
    let request_id = serde_json::to_string(&incoming.context.id).unwrap_or_default();
    let _running =
        incoming.server.running(&incoming.line.session.id, &request_id, held.run.cancel.clone());
    let link = Link {
        context: incoming.context,
        stateless: incoming.stateless,
        cause: cause(incoming),
        line: &incoming.line.session.cancel,
    };
    match attach(held, &link).await {
        Attached::Done(Ok(output)) => {
            Ok(CallToolResponse::Complete(render::result(output, trace_id)))
        }
        Attached::Done(Err(error)) => Err(error),
        Attached::Asks(held) => {
            let requests = questions(&held).inspect_err(|error| told(error, trace_id))?;
            let state = incoming
                .server
                .pipeline
                .parked
                .park(held)
                .inspect_err(|error| told(error, trace_id))?;
            Ok(CallToolResponse::InputRequired(InputRequiredResult::new(
                Some(requests),
                Some(state),
            )))
        }
        Attached::Detached(held) => {
            let kept = incoming.server.tasks.keep(held, &incoming.line.principal);
            let task = kept.inspect_err(|error| told(error, trace_id))?;
            Ok(CallToolResponse::Task(CreateTaskResult::new(task)))
        }
    }
}

/// Returns all open questions, for one round.
pub fn questions(held: &Held) -> Result<InputRequests> {
    held.open
        .iter()
        .map(|(key, question)| {
            let request = json!({"method": question.method, "params": question.params});
            let request = serde_json::from_value(request).map_err(|error| {
                Error::internal("a question does not match the protocol").source(error)
            })?;
            Ok((key.clone(), request))
        })
        .collect()
}

fn view(incoming: &Incoming<'_>, arguments: &mut Map<String, Value>) -> Result<View> {
    if !incoming.stateless {
        return Ok(View {
            session: Arc::clone(&incoming.line.session),
            lasting: incoming.line.lasting,
        });
    }
    let argument = arguments.remove(meta::SESSION_ARGUMENT);
    let handle = incoming.context.meta.get(meta::SESSION).or(argument.as_ref());
    incoming.server.view_by_handle(&incoming.line, handle.and_then(Value::as_str))
}

fn request(
    incoming: &Incoming<'_>,
    view: View,
    tool: &str,
    (arguments, shape): (Map<String, Value>, Shape),
    trace_id: &TraceId,
) -> CallRequest {
    let timeout = incoming
        .context
        .meta
        .get(meta::TIMEOUT_MS)
        .and_then(Value::as_u64)
        .map(Duration::from_millis);
    // In compatibility mode we declare nothing by which a client could report its sandbox.
    let narrowing = match legacy::is_spoken(incoming.server) {
        true => None,
        false => codex::narrowing(&incoming.context.meta, &view.session, &incoming.line),
    };
    let unsandboxed = narrowing.as_ref().is_some_and(|narrowing| narrowing.unsandboxed);
    CallRequest {
        shape,
        trace_id: trace_id.clone(),
        tool: tool.to_owned(),
        arguments,
        view,
        abilities: abilities(incoming, unsandboxed),
        narrowing,
        timeout,
        patience: timeout.filter(|_| !incoming.stateless),
        protocol: incoming.protocol.clone(),
        client: format!("{}/{}", incoming.client.name, incoming.client.version)
            .chars()
            .take(128)
            .collect(),
        budget: budget(&incoming.client),
    }
}

/// Returns the capabilities of the client. `unsandboxed` is a client without a sandbox of its own,
/// which accepts whatever it is asked.
fn abilities(incoming: &Incoming<'_>, unsandboxed: bool) -> Abilities {
    let declared = incoming.context.client_capabilities();
    let declared = declared.as_ref();
    Abilities {
        // `{}` means forms; a client that names only `url` cannot show one.
        elicitation: declared
            .and_then(|declared| declared.elicitation.as_ref())
            .is_some_and(|modes| modes.form.is_some() || modes.url.is_none()),
        sampling: declared.is_some_and(|declared| declared.sampling.is_some()),
        roots: declared.is_some_and(|declared| declared.roots.is_some()),
        tasks: incoming.stateless && declared.is_some_and(|declared| declared.supports_tasks()),
        progress: incoming.context.meta.get_progress_token().is_some(),
        logging: !legacy::is_spoken(incoming.server)
            && (!incoming.stateless || incoming.context.meta.log_level().is_some()),
        answers_unseen: unsandboxed || codex::answers_unseen(&incoming.context.meta),
        turns_empty_form_into_menu: incoming.client.name.to_ascii_lowercase().starts_with("codex"),
    }
}

/// Returns how much text a client accepts before it truncates a result itself, which it does in the
/// wrong place.
fn budget(client: &Client) -> usize {
    if client.name.to_ascii_lowercase().contains("codex") { 10_000 } else { 24_000 }
}

/// Returns why the call is cancelled if the request ends without an answer. On 2026-07-28 over
/// HTTP, the stream was closed.
fn cause(incoming: &Incoming<'_>) -> Cause {
    match (incoming.stateless, incoming.line.transport) {
        (true, "http") => Cause::Disconnect,
        _ => Cause::Client,
    }
}

fn give_handle(incoming: &Incoming<'_>, result: &mut rmcp::model::CallToolResult) {
    let given = incoming.context.meta.get(meta::SESSION).and_then(Value::as_str).map(str::to_owned);
    let handle = match given {
        Some(handle) => Ok(handle),
        None => incoming.server.mint_handle(&incoming.line.principal),
    };
    match handle {
        Ok(handle) => {
            result.meta.get_or_insert_default().insert(meta::SESSION.to_owned(), json!(handle));
        }
        Err(error) => tracing::error!("{}", error.log_line()),
    }
}
