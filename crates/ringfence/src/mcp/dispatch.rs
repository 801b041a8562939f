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
use super::server::{ClientConnection, DeclaredClient};
use super::{Server, codex, codex_legacy, meta, overrides, render, version};
use crate::base::list_changes::ChangedList;
use crate::base::{Error, Kind, Result, TraceId};
use crate::registry::NameStyle;
use crate::session::{ClientInfo, Session};
use crate::tools::SessionRef;

/// Implementation of the engine's server interface.
#[derive(Clone)]
pub struct ProtocolHandler {
    pub server: Arc<Server>,
}

type MethodResult<T> = std::result::Result<T, ErrorData>;

impl ProtocolHandler {
    /// Admits a request after a handshake, or if it carries its own protocol version.
    fn check_handshake(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<(ClientConnection, String, bool)> {
        let connection = connection_of(&context.extensions)?;
        let Some(version) = context.protocol_version() else {
            return Err(Error::new(Kind::InvalidRequest, "no handshake has been made")
                .with_reason("not_initialized")
                .with_hint("Send `initialize` first, or carry the protocol version in `_meta` (2026-07-28)."));
        };
        let stateless = version.as_str() >= self::version::STATELESS;
        Ok((connection, version.as_str().to_owned(), stateless))
    }

    fn unknown_method(&self, method: &str) -> ErrorData {
        let shown_method: String = method.chars().take(64).collect();
        match codex_legacy::is_active(&self.server) {
            true => codex_legacy::unknown_method_error(&shown_method),
            false => refuse_request(Error::new(
                Kind::MethodNotFound,
                format!("there is no method `{shown_method}`"),
            )),
        }
    }

    pub(super) fn admit_request(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> MethodResult<(ClientConnection, String, bool)> {
        self.check_handshake(context).map_err(refuse_request)
    }
}

pub(super) fn refuse_request(error: Error) -> ErrorData {
    let trace_id = TraceId::generate();
    render::log_refusal(&error, &trace_id);
    render::error_data(&error, &trace_id)
}

/// Marks a request whose transport has already reloaded the config, so that it is not checked
/// twice.
#[derive(Clone, Copy)]
pub(super) struct ConfigChecked;

/// Returns whether the transport has reloaded the config for this request.
fn is_config_checked(extensions: &Extensions) -> bool {
    let parts = extensions.get::<::http::request::Parts>();
    parts.is_some_and(|parts| parts.extensions.get::<ConfigChecked>().is_some())
}

/// Returns the connection of a message. Stdio and SSE attach it to the message, HTTP to the request
/// that carried it.
pub(super) fn connection_of(extensions: &Extensions) -> Result<ClientConnection> {
    extensions
        .get::<ClientConnection>()
        .or_else(|| {
            extensions
                .get::<::http::request::Parts>()
                .and_then(|parts| parts.extensions.get::<ClientConnection>())
        })
        .cloned()
        .ok_or_else(|| Error::internal("a request arrived without its connection"))
}

pub(super) fn client_info_of(context: &RequestContext<RoleServer>) -> ClientInfo {
    context.client_info().map_or_else(ClientInfo::default, |info| ClientInfo {
        name: info.name,
        version: info.version,
    })
}

impl ServerHandler for ProtocolHandler {
    fn get_info(&self) -> ServerConfig {
        initialize::server_info(&self.server, &ClientInfo::default(), None)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn initialize(
        &self,
        mut request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<InitializeResult> {
        let agreed_version = version::negotiate_version(request.protocol_version.as_str())
            .map_err(refuse_request)?;
        let client = ClientInfo {
            name: request.client_info.name.clone(),
            version: request.client_info.version.clone(),
        };
        self.server.pipeline.reload_if_changed().await;
        let connection = connection_of(&context.extensions).ok();
        let workspace = connection.as_ref().map(|connection| connection.session().workspace.path());
        let mut info = initialize::server_info(&self.server, &client, workspace);
        info.protocol_version = wire_version(agreed_version);
        request.protocol_version = info.protocol_version.clone();
        if let Some(connection) = &connection {
            connection.set_client(DeclaredClient {
                info: client,
                capabilities: Some(request.capabilities.clone()),
                protocol: request.protocol_version.as_str().to_owned(),
            });
        }
        context.peer.set_peer_info(request);
        Ok(info)
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> MethodResult<DiscoverResult> {
        let connection = connection_of(&context.extensions).map_err(refuse_request)?;
        self.server.pipeline.reload_if_changed().await;
        let workspace = Some(connection.session().workspace.path());
        let client = client_info_of(&context);
        if connection.persistent && !client.name.is_empty() {
            connection.session().set_client_name(&client.short_name());
        }
        let mut result = DiscoverResult::from_server_info(
            self.supported_protocol_versions().into_owned(),
            initialize::server_info(&self.server, &client, workspace),
        );
        result.ttl_ms = tools_list::TTL_MS;
        let handle = self.server.mint_handle(&connection.principal).map_err(refuse_request)?;
        let table = mcp_capabilities::tool_table(&self.server.pipeline.state(), workspace);
        let result_meta = result.meta.get_or_insert_default();
        if !codex_legacy::is_active(&self.server) {
            result_meta.insert(meta::TOOLS.to_owned(), table);
        }
        result_meta.insert(meta::SESSION.to_owned(), Value::from(handle));
        Ok(result)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<ListToolsResult> {
        let (connection, _, stateless) = self.admit_request(&context)?;
        let session_ref =
            self.find_session(&connection, stateless, &context).map_err(refuse_request)?;
        Ok(tools_list::list_tools(
            &self.server,
            &session_ref.state,
            &client_info_of(&context),
            stateless,
        )
        .await)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<CallToolResponse> {
        let (connection, protocol, stateless) = self.admit_request(&context)?;
        let client = DeclaredClient {
            info: client_info_of(&context),
            capabilities: context.client_capabilities(),
            protocol,
        };
        let parts = context.extensions.get::<::http::request::Parts>();
        let incoming = tools_call::IncomingCall {
            server: &self.server,
            connection,
            client: Arc::new(client),
            stateless,
            request_meta: &context.meta,
            headers: parts.map(|parts| &parts.headers),
            is_config_checked: is_config_checked(&context.extensions),
        };
        tools_call::answer_call(incoming, request, &context).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let state = self.server.pipeline.state();
        let tool = state.registry.get(name)?;
        let schemas = state.registry.get_schemas(name)?;
        let style = if name.contains('.') { NameStyle::Dots } else { NameStyle::Underscores };
        Some(tools_list::to_wire_tool(&**tool, schemas, style, None))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<CustomResult> {
        // With the surface off, none of our own methods exists.
        let own_methods = ["mcp.capabilities", codex::UPDATE_METHOD, overrides::UPDATE_METHOD];
        if own_methods.contains(&request.method.as_str()) && codex_legacy::is_active(&self.server) {
            return Err(self.unknown_method(&request.method));
        }
        if request.method == "mcp.capabilities" {
            let connection = connection_of(&context.extensions).ok();
            let session = connection.as_ref().map(|connection| &**connection.session());
            return Ok(CustomResult::new(
                mcp_capabilities::describe_server(&self.server, session).await,
            ));
        }
        if request.method == codex::UPDATE_METHOD {
            self.admit_request(&context)?;
            let pushed = codex::PushedState::from_extensions(&context.extensions)
                .ok_or_else(|| refuse_request(codex::no_session_error()))?;
            pushed.check_readable().map_err(refuse_request)?;
            return Ok(CustomResult::new(serde_json::json!({})));
        }
        if request.method == overrides::UPDATE_METHOD {
            let (connection, _, stateless) = self.admit_request(&context)?;
            let session = self
                .find_persistent_session(&connection, stateless, &context)
                .map_err(refuse_request)?;
            self.server.pipeline.reload_if_changed().await;
            let state = self.server.pipeline.state();
            let answer = overrides::update_session(request.params.as_ref(), &session, &state)
                .map_err(refuse_request)?;
            return Ok(CustomResult::new(answer));
        }
        let method = request.method.as_str();
        let stateless = context
            .protocol_version()
            .is_some_and(|protocol_version| protocol_version.as_str() >= version::STATELESS);
        // The engine passes on what it could not read: an unknown method, or parameters that do not
        // match.
        if METHODS.contains(&method) && !(stateless && REMOVED_IN_STATELESS.contains(&method)) {
            let error = Error::invalid_arguments(format!("invalid parameters for `{method}`"))
                .with_hint("See the MCP specification for its parameters.");
            return Err(refuse_request(error));
        }
        Err(self.unknown_method(method))
    }

    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<()> {
        let (_, _, stateless) = self.admit_request(&context)?;
        match stateless || codex_legacy::is_active(&self.server) {
            true => Err(self.unknown_method("logging/setLevel")),
            false => Ok(()),
        }
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if let Ok(connection) = connection_of(&context.extensions) {
            tokio::spawn(announce_changes(self.server.clone(), connection, context.peer));
        }
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> MethodResult<()> {
        let mut changes = self.server.pipeline.list_changes.subscribe();
        // At the end of input the engine waits five seconds for its handlers before it cancels
        // them; the session has ended by then. It ends with the server at the latest.
        let connection =
            connection_of(&context.request_context().extensions).map_err(refuse_request)?;
        let session_cancel = connection.session().cancel.clone();
        // Release the session, so that it can end while we wait.
        drop(connection);
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = context.cancelled() => return Ok(()),
                _ = session_cancel.cancelled() => return Ok(()),
            };
            let result = match change {
                Ok(ChangedList::Tools) => context.sink().notify_tool_list_changed().await,
                Ok(ChangedList::Prompts) => context.sink().notify_prompt_list_changed().await,
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => continue,
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return Ok(()),
            };
            if let Err(error) = result {
                tracing::debug!("a subscriber missed a change: {error}");
            }
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<GetTaskResult> {
        let (connection, ..) = self.admit_request(&context)?;
        let task = self
            .server
            .tasks
            .inspect_task(&connection.principal, &request.task_id)
            .await
            .map_err(refuse_request)?;
        Ok(GetTaskResult::new(task))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<()> {
        let (connection, ..) = self.admit_request(&context)?;
        let answers = request.input_responses;
        self.server
            .tasks
            .answer_task(&connection.principal, &request.task_id, answers)
            .await
            .map_err(refuse_request)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<()> {
        let (connection, ..) = self.admit_request(&context)?;
        self.server
            .tasks
            .cancel_task(&connection.principal, &request.task_id)
            .map_err(refuse_request)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<CompleteResult> {
        self.admit_fixture(&context, "completion/complete")?;
        super::fixtures::complete_argument(request)
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<ListPromptsResult> {
        self.admit_fixture(&context, "prompts/list")?;
        Ok(super::fixtures::list_prompts())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<GetPromptResponse> {
        self.admit_fixture(&context, "prompts/get")?;
        super::fixtures::get_prompt(request, &context)
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<ListResourcesResult> {
        self.admit_fixture(&context, "resources/list")?;
        Ok(super::fixtures::list_resources())
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<ListResourceTemplatesResult> {
        self.admit_fixture(&context, "resources/templates/list")?;
        Ok(super::fixtures::list_resource_templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<ReadResourceResponse> {
        self.admit_fixture(&context, "resources/read")?;
        super::fixtures::read_resource(request)
    }

    async fn subscribe(
        &self,
        _request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<()> {
        self.admit_fixture(&context, "resources/subscribe")
    }

    async fn unsubscribe(
        &self,
        _request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> MethodResult<()> {
        self.admit_fixture(&context, "resources/unsubscribe")
    }
}

impl ProtocolHandler {
    /// Returns the session that a request belongs to.
    fn find_session(
        &self,
        connection: &ClientConnection,
        stateless: bool,
        context: &RequestContext<RoleServer>,
    ) -> Result<SessionRef> {
        match stateless {
            true => self.server.session_by_handle(
                connection,
                context.meta.get(meta::SESSION).and_then(Value::as_str),
            ),
            false => Ok(SessionRef {
                state: Arc::clone(&connection.state),
                persistent: connection.persistent,
            }),
        }
    }

    /// Returns the session that a setting is to be stored in.
    fn find_persistent_session(
        &self,
        connection: &ClientConnection,
        stateless: bool,
        context: &RequestContext<RoleServer>,
    ) -> Result<Arc<Session>> {
        let session_ref = self.find_session(connection, stateless, context)?;
        Some(Arc::clone(session_ref.session())).filter(|_| session_ref.persistent).ok_or_else(
            || {
                Error::new(Kind::InvalidRequest, "there is no session to store this in")
                .with_reason("no_session")
                .with_hint(
                    "Send the session handle in `_meta`, or the overrides in `_meta` of each call.",
                )
            },
        )
    }

    /// Admits a request for prompts, resources or completions, which exist for the conformance
    /// suite alone.
    fn admit_fixture(
        &self,
        context: &RequestContext<RoleServer>,
        method: &str,
    ) -> MethodResult<()> {
        if !self.server.config.conformance_fixtures {
            return Err(self.unknown_method(method));
        }
        self.admit_request(context).map(|_| ())
    }
}

fn wire_version(version: &str) -> ProtocolVersion {
    serde_json::from_value(Value::from(version)).unwrap_or(ProtocolVersion::V_2025_11_25)
}

/// Notifies a 2025 client of changes until its session ends.
async fn announce_changes(
    server: Arc<Server>,
    connection: ClientConnection,
    peer: Peer<RoleServer>,
) {
    let mut changes = server.pipeline.list_changes.subscribe();
    let session_cancel = connection.session().cancel.clone();
    // Release the session, so that it can end while we wait.
    drop(connection);
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            _ = session_cancel.cancelled() => return,
        };
        let result = match change {
            Ok(ChangedList::Tools) => peer.notify_tool_list_changed().await,
            Ok(ChangedList::Prompts) => peer.notify_prompt_list_changed().await,
            Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => continue,
            Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
        };
        if result.is_err() {
            return;
        }
    }
}
