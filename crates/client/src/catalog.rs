//! The tools of a server: their whole definitions, bounded and in a stable order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::error::{ClientError, ErrorKind, Result};
use crate::handshake::{ClientProfile, Era};
use crate::header_params::HeaderParam;
use crate::limits::Limits;

/// Longest cursor of a page. Real ones are shorter than 200 bytes.
const MAX_CURSOR_BYTES: usize = 4 << 10;
/// Longest reason for leaving out a tool; it may quote the definition.
const MAX_REASON_CHARS: usize = 300;
/// Time between two lists. A server may report several changes at once.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(100);

/// Hints of a tool about its effects. What a server does not say counts as the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolAnnotations {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}

/// Definition of one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolDefinition {
    /// Name on its own server.
    pub name: String,
    /// The whole definition as JSON text, as it came.
    pub text: String,
    pub annotations: ToolAnnotations,
    /// The tool runs only as a task.
    pub requires_task: bool,
}

/// Tools of a server at one moment, in the order of their names.
#[derive(Debug, Clone)]
pub struct ToolCatalog {
    pub tools: BTreeMap<String, ToolDefinition>,
    /// Tools that were left out, with the reason.
    pub rejected: Vec<String>,
    /// Parameters that go into headers, of the tools that have any.
    pub(crate) header_params: BTreeMap<String, Vec<HeaderParam>>,
    /// Number of the connection that listed them ([`ServerClient::connection_count`]).
    ///
    /// [`ServerClient::connection_count`]: crate::ServerClient::connection_count
    pub connection: u64,
    /// How long the server says that the list is valid.
    pub ttl: Option<Duration>,
    pub(crate) listed_at: Instant,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListPage<'a> {
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
    #[serde(default)]
    next_cursor: Option<String>,
    #[serde(default)]
    ttl_ms: Option<u64>,
}

/// Asks for all tools.
pub(crate) async fn list_tools(
    connection: &Connection,
    era: Era,
    profile: &ClientProfile,
    limits: &Limits,
) -> Result<ToolCatalog> {
    let listing = list_pages(connection, era, profile, limits);
    tokio::time::timeout(limits.list_timeout, listing).await.map_err(|_| {
        ClientError::new(
            ErrorKind::DeadlineExceeded,
            format!("the server did not list its tools within {:?}", limits.list_timeout),
        )
        .with_start_timeout()
    })?
}

async fn list_pages(
    connection: &Connection,
    era: Era,
    profile: &ClientProfile,
    limits: &Limits,
) -> Result<ToolCatalog> {
    let mut catalog = ToolCatalog {
        tools: BTreeMap::new(),
        rejected: Vec::new(),
        header_params: BTreeMap::new(),
        connection: 0,
        ttl: None,
        listed_at: Instant::now(),
    };
    let has_headers = era == Era::Stateless && connection.has_headers();
    let (mut cursor, mut cursors) = (None::<String>, BTreeSet::new());
    let mut bytes = 0;
    for _ in 0..limits.pages {
        let page = connection
            .request("tools/list", None, |_| {
                let mut params = json!({});
                if let Some(cursor) = &cursor {
                    params["cursor"] = Value::from(cursor.as_str());
                }
                if era == Era::Stateless {
                    params["_meta"] = Value::Object(profile.request_meta());
                }
                params
            })
            .await?;
        let page: ListPage<'_> = page.parse()?;
        bytes += page.tools.iter().map(|tool| tool.get().len()).sum::<usize>();
        if bytes > limits.catalog_bytes {
            return Err(too_many(&format!("more than {} bytes of tools", limits.catalog_bytes)));
        }
        catalog.ttl = page.ttl_ms.map(Duration::from_millis).or(catalog.ttl);
        for tool in page.tools {
            if catalog.tools.len() + catalog.rejected.len() >= limits.tools {
                return Err(too_many(&format!("more than {} tools", limits.tools)));
            }
            catalog.add_tool(tool.get(), has_headers, limits);
        }
        match page.next_cursor {
            None => return Ok(catalog),
            Some(next) if next.len() > MAX_CURSOR_BYTES => {
                return Err(too_many("its tools by a cursor that is too long"));
            }
            // A cursor that comes again would lead around in a circle.
            Some(next) if !cursors.insert(next.clone()) => {
                return Err(too_many("the same page again and again"));
            }
            Some(next) => cursor = Some(next),
        }
    }
    Err(too_many(&format!("more than {} pages of tools", limits.pages)))
}

fn too_many(what: &str) -> ClientError {
    ClientError::new(ErrorKind::TooLarge, format!("the server lists {what}"))
}

impl ToolCatalog {
    fn add_tool(&mut self, text: &str, has_headers: bool, limits: &Limits) {
        let mut reject = |reason: String| {
            self.rejected.push(reason.chars().take(MAX_REASON_CHARS).collect());
        };
        let tool = match ToolDefinition::parse(text, limits) {
            Ok(tool) => tool,
            Err(reason) => return reject(reason),
        };
        if self.tools.contains_key(&tool.name) {
            return reject(format!("the tool `{}` is listed twice", tool.name));
        }
        if has_headers {
            match HeaderParam::find_all(text) {
                Ok(params) if params.is_empty() => {}
                Ok(params) => drop(self.header_params.insert(tool.name.clone(), params)),
                Err(reason) => {
                    let reason = format!("the tool `{}` is not valid: {reason}", tool.name);
                    return reject(reason);
                }
            }
        }
        self.tools.insert(tool.name.clone(), tool);
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolFields {
    name: String,
    input_schema: serde_json::Map<String, Value>,
    #[serde(default)]
    annotations: Option<HintFields>,
    #[serde(default)]
    execution: Option<ExecutionFields>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct HintFields {
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    idempotent_hint: Option<bool>,
    open_world_hint: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExecutionFields {
    task_support: Option<String>,
}

impl ToolDefinition {
    /// Reads a definition. The error says why it is left out.
    pub fn parse(text: &str, limits: &Limits) -> Result<ToolDefinition, String> {
        if text.len() > limits.tool_bytes {
            return Err(format!("a tool's definition is longer than {} bytes", limits.tool_bytes));
        }
        if json_depth(text) > limits.schema_depth {
            return Err(format!(
                "a tool's definition is nested deeper than {} levels",
                limits.schema_depth
            ));
        }
        // All of it must be readable, since all of it is passed on.
        let fields: ToolFields = serde_json::from_str::<Value>(text)
            .and_then(serde_json::from_value)
            .map_err(|error| format!("a tool's definition has an unexpected form: {error}"))?;
        let is_plain = |c: char| !c.is_control();
        if fields.name.is_empty() || fields.name.len() > 128 || !fields.name.chars().all(is_plain) {
            return Err("a tool has no usable name".to_owned());
        }
        if fields.input_schema.get("type").is_some_and(|kind| kind != "object") {
            return Err(format!("the arguments of `{}` are not an object", fields.name));
        }
        let hints = fields.annotations.unwrap_or_default();
        let read_only = hints.read_only_hint.unwrap_or(false);
        let task_support = fields.execution.unwrap_or_default().task_support;
        Ok(ToolDefinition {
            annotations: ToolAnnotations {
                read_only,
                destructive: !read_only && hints.destructive_hint.unwrap_or(true),
                idempotent: hints.idempotent_hint.unwrap_or(read_only),
                open_world: hints.open_world_hint.unwrap_or(true),
            },
            requires_task: task_support.as_deref() == Some("required"),
            name: fields.name,
            text: text.to_owned(),
        })
    }
}

/// Returns how deeply a JSON text is nested, without building anything.
fn json_depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut is_escaped) = (0usize, 0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Catalog that is kept until it is out of date.
#[derive(Default)]
pub(crate) struct CachedCatalog {
    catalog: Option<Arc<ToolCatalog>>,
    /// Count of list changes that it takes into account.
    seen_changes: u64,
}

impl CachedCatalog {
    /// Returns the catalog, if it is still valid.
    pub(crate) fn current(&self, max_age: Duration, changes: u64) -> Option<Arc<ToolCatalog>> {
        let is_current = |catalog: &&Arc<ToolCatalog>| {
            changes == self.seen_changes
                && catalog.listed_at.elapsed() < catalog.ttl.map_or(max_age, |ttl| ttl.min(max_age))
        };
        self.catalog.as_ref().filter(is_current).cloned()
    }

    pub(crate) fn set(&mut self, catalog: Arc<ToolCatalog>, changes: u64) {
        (self.catalog, self.seen_changes) = (Some(catalog), changes);
    }

    pub(crate) fn clear(&mut self) {
        self.catalog = None;
    }

    /// Returns the time before which the server is not asked again.
    pub(crate) fn time_to_next_list(&self) -> Duration {
        let age = self.catalog.as_ref().map(|catalog| catalog.listed_at.elapsed());
        age.map_or(Duration::ZERO, |age| MIN_LIST_INTERVAL.saturating_sub(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_that_are_missing_count_as_the_worst() {
        let tool = ToolDefinition::parse(
            r#"{"name":"a","inputSchema":{"type":"object"},"extra":1}"#,
            &Limits::default(),
        )
        .unwrap();
        assert_eq!(
            tool.annotations,
            ToolAnnotations {
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: true
            }
        );
        assert!(tool.text.contains("extra"));
    }

    #[test]
    fn definitions_that_cannot_be_used_are_left_out_with_a_reason() {
        let limits = Limits { tool_bytes: 500, schema_depth: 5, ..Limits::default() };
        let deep =
            format!(r#"{{"name":"a","inputSchema":{}1{}}}"#, r#"{"a":"#.repeat(6), "}".repeat(6));
        let long = format!(r#"{{"name":"a","inputSchema":{{}},"x":"{}"}}"#, "y".repeat(500));
        for (text, reason) in [
            (r#"{"name":"","inputSchema":{}}"#, "no usable name"),
            (r#"{"name":"a\u0007","inputSchema":{}}"#, "no usable name"),
            (r#"{"name":"a"}"#, "unexpected form"),
            (r#"{"name":"a","inputSchema":[]}"#, "unexpected form"),
            (r#"{"name":"a","inputSchema":{"type":"array"}}"#, "not an object"),
            (&deep, "deeper than 5"),
            (&long, "longer than 500"),
        ] {
            let error = ToolDefinition::parse(text, &limits).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn annotations_for_headers_matter_only_where_there_are_headers() {
        let text = |name: &str, header: &str| {
            let property = json!({"type": "string", "x-mcp-header": header});
            json!({"name": name, "inputSchema": {"properties": {"a": property}}}).to_string()
        };
        for (has_headers, tools, with_headers) in [(true, 1, 1), (false, 2, 0)] {
            let mut catalog = ToolCatalog {
                tools: BTreeMap::new(),
                rejected: Vec::new(),
                header_params: BTreeMap::new(),
                connection: 0,
                ttl: None,
                listed_at: Instant::now(),
            };
            for (name, header) in [("right", "A"), ("wrong", "a b")] {
                catalog.add_tool(&text(name, header), has_headers, &Limits::default());
            }
            assert_eq!((catalog.tools.len(), catalog.header_params.len()), (tools, with_headers));
            assert_eq!(catalog.rejected.len(), 2 - tools);
        }
    }

    #[test]
    fn depth_ignores_what_is_inside_text() {
        assert_eq!(json_depth(r#"{"a":"[[[\"[[","b":[[1],{}]}"#), 3);
    }
}
