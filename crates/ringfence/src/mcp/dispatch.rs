//! Handler for the protocol engine: passes each MCP method to the module that answers it.

#![expect(deprecated, reason = "2025 clients still set a log level and subscribe")]

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::ServerHandler;
use rmcp::model::*;
use rmcp::service::{NotificationContext, Peer, RequestContext, RoleServer, SubscriptionContext};
use serde_json::Value;

use super::methods::{
    METHODS, REMOVED_IN_STATELESS, initialize, mcp_capabilities, tools_call, tools_list,
};
use super::server::Line;
use super::{Server, codex, legacy, meta, render, shaping, version};
use crate::base::change::Change;
use crate::base::{Error, Kind, Result, TraceId};
use crate::registry::NameStyle;
use crate::session::{Client, Session, View};

/// Implementation of the engine's server interface.
#[derive(Clone)]
pub struct Handler {
    pub server: Arc<Server>,
}

type Answer<T> = std::result::Result<T, ErrorData>;

impl Handler {
    /// Admits a request after a handshake, or if it carries its own protocol version.
    fn admit(&self, context: &RequestContext<RoleServer>) -> Result<(Line, String, bool)> {
        let line = line_of(&context.extensions)?;
        let Some(version) = context.protocol_version() else {
            return Err(Error::new(Kind::InvalidRequest, "no handshake has been made")
                .reason("not_initialized")
                .hint("Send `initialize` first, or carry the protocol version in `_meta` (2026-07-28)."));
        };
        let stateless = version.as_str() >= self::version::STATELESS;
        Ok((line, version.as_str().to_owned(), stateless))
    }

    fn unknown_method(&self, method: &str) -> ErrorData {
        let shown: String = method.chars().take(64).collect();
        match legacy::is_spoken(&self.server) {
            true => legacy::unknown_method(&shown),
            false => {
                refused(Error::new(Kind::MethodNotFound, format!("there is no method `{shown}`")))
            }
        }
    }

    pub(super) fn admitted(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Answer<(Line, String, bool)> {
        self.admit(context).map_err(refused)
    }
}

pub(super) fn refused(error: Error) -> ErrorData {
    let trace_id = TraceId::mint();
    render::log_refusal(&error, &trace_id);
    render::error_data(&error, &trace_id)
}

/// Returns the connection of a message. Stdio and SSE attach it to the message, HTTP to the request
/// that carried it.
pub(super) fn line_of(extensions: &Extensions) -> Result<Line> {
    extensions
        .get::<Line>()
        .or_else(|| {
            extensions
                .get::<::http::request::Parts>()
                .and_then(|parts| parts.extensions.get::<Line>())
        })
        .cloned()
        .ok_or_else(|| Error::internal("a request arrived without its connection"))
}

pub(super) fn client_of(context: &RequestContext<RoleServer>) -> Client {
    context
        .client_info()
        .map_or_else(Client::default, |info| Client { name: info.name, version: info.version })
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        initialize::info(&self.server, &Client::default(), None)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn initialize(
        &self,
        mut request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<InitializeResult> {
        let agreed = version::negotiate(request.protocol_version.as_str()).map_err(refused)?;
        let client = Client {
            name: request.client_info.name.clone(),
            version: request.client_info.version.clone(),
        };
        self.server.pipeline.refresh().await;
        let line = line_of(&context.extensions).ok();
        let workspace = line.as_ref().map(|line| line.session.workspace.path());
        let mut info = initialize::info(&self.server, &client, workspace);
        info.protocol_version = wire_version(agreed);
        request.protocol_version = info.protocol_version.clone();
        if let Some(line) = line {
            line.session.set_client(client);
        }
        context.peer.set_peer_info(request);
        Ok(info)
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Answer<DiscoverResult> {
        let line = line_of(&context.extensions).map_err(refused)?;
        self.server.pipeline.refresh().await;
        let workspace = Some(line.session.workspace.path());
        let mut result = DiscoverResult::from_server_info(
            self.supported_protocol_versions().into_owned(),
            initialize::info(&self.server, &client_of(&context), workspace),
        );
        result.ttl_ms = tools_list::TTL_MS;
        let handle = self.server.mint_handle(&line.principal).map_err(refused)?;
        let table = mcp_capabilities::table(&self.server.pipeline.state(), workspace);
        let about = result.meta.get_or_insert_default();
        if !legacy::is_spoken(&self.server) {
            about.insert(meta::TOOLS.to_owned(), table);
        }
        about.insert(meta::SESSION.to_owned(), Value::from(handle));
        Ok(result)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Answer<ListToolsResult> {
        let (line, _, stateless) = self.admitted(&context)?;
        let view = self.view_of(&line, stateless, &context).map_err(refused)?;
        Ok(tools_list::list(&self.server, &view.session, &client_of(&context), stateless).await)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<CallToolResponse> {
        let (line, protocol, stateless) = self.admitted(&context)?;
        let client = client_of(&context);
        let incoming = tools_call::Incoming {
            server: &self.server,
            line,
            client,
            protocol,
            stateless,
            context: &context,
        };
        tools_call::call(incoming, request).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let state = self.server.pipeline.state();
        let tool = state.registry.get(name)?;
        let schemas = state.registry.schemas(name)?;
        let style = if name.contains('.') { NameStyle::Dots } else { NameStyle::Underscores };
        Some(tools_list::wire(&**tool, schemas, style, None))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Answer<CustomResult> {
        // With the surface off, none of our own methods exists.
        let ours = ["mcp.capabilities", codex::UPDATE, shaping::UPDATE];
        if ours.contains(&request.method.as_str()) && legacy::is_spoken(&self.server) {
            return Err(self.unknown_method(&request.method));
        }
        if request.method == "mcp.capabilities" {
            let line = line_of(&context.extensions).ok();
            let session = line.as_ref().map(|line| &*line.session);
            return Ok(CustomResult::new(
                mcp_capabilities::capabilities(&self.server, session).await,
            ));
        }
        if request.method == codex::UPDATE {
            self.admitted(&context)?;
            let pushed = codex::Pushed::of(&context.extensions)
                .ok_or_else(|| refused(codex::no_session()))?;
            pushed.answer().map_err(refused)?;
            return Ok(CustomResult::new(serde_json::json!({})));
        }
        if request.method == shaping::UPDATE {
            let (line, _, stateless) = self.admitted(&context)?;
            let session = self.session_of(&line, stateless, &context).map_err(refused)?;
            self.server.pipeline.refresh().await;
            let state = self.server.pipeline.state();
            let answer =
                shaping::update(request.params.as_ref(), &session, &state).map_err(refused)?;
            return Ok(CustomResult::new(answer));
        }
        let method = request.method.as_str();
        let stateless =
            context.protocol_version().is_some_and(|spoken| spoken.as_str() >= version::STATELESS);
        // The engine passes on what it could not read: an unknown method, or parameters that do not
        // match.
        if METHODS.contains(&method) && !(stateless && REMOVED_IN_STATELESS.contains(&method)) {
            return Err(refused(Error::invalid_arguments(format!(
                "invalid parameters for `{method}`"
            ))));
        }
        Err(self.unknown_method(method))
    }

    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<()> {
        let (_, _, stateless) = self.admitted(&context)?;
        match stateless || legacy::is_spoken(&self.server) {
            true => Err(self.unknown_method("logging/setLevel")),
            false => Ok(()),
        }
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if let Ok(line) = line_of(&context.extensions) {
            tokio::spawn(announce(self.server.clone(), line, context.peer));
        }
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Answer<()> {
        let mut changes = self.server.pipeline.changes.subscribe();
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = context.cancelled() => return Ok(()),
                _ = self.server.shutdown.cancelled() => return Ok(()),
            };
            let sent = match change {
                Ok(Change::Tools) => context.sink().notify_tool_list_changed().await,
                Ok(Change::Prompts) => context.sink().notify_prompt_list_changed().await,
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => continue,
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return Ok(()),
            };
            if let Err(error) = sent {
                tracing::debug!("a subscriber missed a change: {error}");
            }
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<GetTaskResult> {
        let (line, ..) = self.admitted(&context)?;
        let task =
            self.server.tasks.look(&line.principal, &request.task_id).await.map_err(refused)?;
        Ok(GetTaskResult::new(task))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<()> {
        let (line, ..) = self.admitted(&context)?;
        let answers = request.input_responses;
        self.server.tasks.answer(&line.principal, &request.task_id, answers).await.map_err(refused)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<()> {
        let (line, ..) = self.admitted(&context)?;
        self.server.tasks.cancel(&line.principal, &request.task_id).map_err(refused)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<CompleteResult> {
        self.fixtures(&context, "completion/complete")?;
        super::fixtures::complete(request)
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Answer<ListPromptsResult> {
        self.fixtures(&context, "prompts/list")?;
        Ok(super::fixtures::prompts())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<GetPromptResponse> {
        self.fixtures(&context, "prompts/get")?;
        super::fixtures::prompt(request, &context)
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Answer<ListResourcesResult> {
        self.fixtures(&context, "resources/list")?;
        Ok(super::fixtures::resources())
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Answer<ListResourceTemplatesResult> {
        self.fixtures(&context, "resources/templates/list")?;
        Ok(super::fixtures::resource_templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<ReadResourceResponse> {
        self.fixtures(&context, "resources/read")?;
        super::fixtures::resource(request)
    }

    async fn subscribe(
        &self,
        _request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<()> {
        self.fixtures(&context, "resources/subscribe")
    }

    async fn unsubscribe(
        &self,
        _request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Answer<()> {
        self.fixtures(&context, "resources/unsubscribe")
    }
}

impl Handler {
    /// Returns the session that a request belongs to.
    fn view_of(
        &self,
        line: &Line,
        stateless: bool,
        context: &RequestContext<RoleServer>,
    ) -> Result<View> {
        match stateless {
            true => self
                .server
                .view_by_handle(line, context.meta.get(meta::SESSION).and_then(Value::as_str)),
            false => Ok(View { session: Arc::clone(&line.session), lasting: line.lasting }),
        }
    }

    /// Returns the session that a setting is to be stored in.
    fn session_of(
        &self,
        line: &Line,
        stateless: bool,
        context: &RequestContext<RoleServer>,
    ) -> Result<Arc<Session>> {
        let view = self.view_of(line, stateless, context)?;
        Some(view.session).filter(|_| view.lasting).ok_or_else(|| {
            Error::new(Kind::InvalidRequest, "there is no session to store this in")
                .reason("no_session")
                .hint(
                    "Send the session handle in `_meta`, or the overrides in `_meta` of each call.",
                )
        })
    }

    /// Admits a request for prompts, resources or completions, which exist for the conformance
    /// suite alone.
    fn fixtures(&self, context: &RequestContext<RoleServer>, method: &str) -> Answer<()> {
        if !self.server.config.conformance_fixtures {
            return Err(self.unknown_method(method));
        }
        self.admitted(context).map(|_| ())
    }
}

fn wire_version(version: &str) -> ProtocolVersion {
    serde_json::from_value(Value::from(version)).unwrap_or(ProtocolVersion::V_2025_11_25)
}

/// Notifies a 2025 client of changes until its session ends.
async fn announce(server: Arc<Server>, line: Line, peer: Peer<RoleServer>) {
    let mut changes = server.pipeline.changes.subscribe();
    let over = line.session.cancel.clone();
    // Release the session, so that it can end while we wait.
    drop(line);
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            _ = over.cancelled() => return,
        };
        let sent = match change {
            Ok(Change::Tools) => peer.notify_tool_list_changed().await,
            Ok(Change::Prompts) => peer.notify_prompt_list_changed().await,
            Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => continue,
            Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
        };
        if sent.is_err() {
            return;
        }
    }
}
