//! `initialize` and `server/discover`: the description of this server.

use std::path::Path;

use rmcp::model::{Implementation, MetaObject, ProtocolVersion, ServerCapabilities, ServerConfig};
use serde_json::{Map, json};

use super::mcp_capabilities::tool_table;
use crate::mcp::{Server, codex, codex_legacy, meta};
use crate::registry::NameStyle;
use crate::session::ClientInfo;
use crate::tools::ToolOrigin;

/// Returns the description for both protocol eras; `initialize` then sets the negotiated version.
pub fn server_info(server: &Server, client: &ClientInfo, workspace: Option<&Path>) -> ServerConfig {
    let mut capabilities = ServerCapabilities::default();
    capabilities.tools =
        Some(serde_json::from_value(json!({"listChanged": true})).unwrap_or_default());
    let is_legacy = codex_legacy::is_active(server);
    if !is_legacy {
        capabilities.logging = Some(Map::new());
        capabilities.experimental = Some(codex::state_capabilities());
    }
    if server.config.conformance_fixtures {
        crate::mcp::fixtures::declare_capabilities(&mut capabilities);
    }
    let mut info = ServerConfig::new(capabilities)
        .with_server_info(
            Implementation::new("ringfence", env!("CARGO_PKG_VERSION"))
                .with_title("Ringfence")
                .with_description("Tools that coding agents can be trusted with"),
        )
        .with_protocol_version(ProtocolVersion::V_2025_11_25);
    if is_legacy {
        return info;
    }
    info.instructions = Some(build_instructions(server, client, workspace));
    let table = tool_table(&server.pipeline.state(), workspace);
    info.meta = Some(MetaObject::from(Map::from_iter([(meta::TOOLS.to_owned(), table)])));
    info
}

/// Returns the instructions. At first Codex shows a model nothing else, so they name the tools and
/// what they are for.
fn build_instructions(server: &Server, client: &ClientInfo, workspace: Option<&Path>) -> String {
    let state = server.pipeline.state();
    let style = NameStyle::for_client(state.config.tool_names, client);
    let can_read_files = state.registry.get("file.read").is_some();
    let output_note = match can_read_files {
        true => format!(
            " Long output is cut: read on with {} path \"output:<id>\".",
            style.spell_name("file.read")
        ),
        false => " Long output is cut in the middle.".to_owned(),
    };
    let path_note = if can_read_files {
        " Paths are relative to the workspace; leaving it is refused."
    } else {
        ""
    };
    let mut text = format!(
        "Tools for working in one workspace, policy-checked and audited.{path_note}{output_note} \
         Every error has kind, hint and trace_id. Tools:"
    );
    for tool in state.registry.visible_tools(workspace) {
        let spec = tool.spec();
        let name = style.spell_name(&spec.name);
        // These are our words: the title of another server's tool has no place among them.
        let line = match tool.origin() {
            ToolOrigin::Upstream => format!(" {name};"),
            _ => format!(" {name} ({});", spec.title.to_lowercase()),
        };
        // Codex reads about one kilobyte.
        if text.len() + line.len() > 1000 {
            break;
        }
        text.push_str(&line);
    }
    text
}
