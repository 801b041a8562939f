//! Prompts, resources and completions for the official conformance suite. They exist only with
//! `--conformance-fixtures`; the fixture tools are in `tools/fixtures.rs`.

use rmcp::model::*;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};

use super::dispatch::refuse_request;
use super::methods::tools_list::TTL_MS;
use super::version;
use crate::base::{Error, Kind};

type FixtureResult<T> = std::result::Result<T, ErrorData>;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";

/// Adds the capabilities of the fixtures to those of this server.
pub fn declare_capabilities(capabilities: &mut ServerCapabilities) {
    let fixtures = ServerCapabilities::builder()
        .enable_prompts()
        .enable_prompts_list_changed()
        .enable_resources()
        .enable_resources_subscribe()
        .enable_completions()
        .enable_tasks()
        .build();
    capabilities.prompts = fixtures.prompts;
    capabilities.resources = fixtures.resources;
    capabilities.completions = fixtures.completions;
    capabilities.extensions = fixtures.extensions;
}

/// Completes an argument of a prompt or resource template.
pub fn complete_argument(request: CompleteRequestParams) -> FixtureResult<CompleteResult> {
    let offered: &[&str] = match &request.r#ref {
        Reference::Prompt(prompt) if prompt.name == "test_prompt_with_arguments" => {
            &["paris", "park", "party"]
        }
        Reference::Resource(_) if request.argument.name == "id" => &["1", "2", "3"],
        _ => &[],
    };
    let values = offered.iter().filter(|value| value.starts_with(&request.argument.value));
    let info = CompletionInfo::new(values.map(|value| (*value).to_owned()).collect());
    info.map(CompleteResult::new).map_err(|reason| refuse_request(Error::internal(reason)))
}

/// Returns the list of prompts.
pub fn list_prompts() -> ListPromptsResult {
    let argument = |name: &str, required| {
        PromptArgument::new(name).with_description(name).with_required(required)
    };
    let result = ListPromptsResult::with_all_items(vec![
        Prompt::new("test_simple_prompt", Some("One message"), None),
        Prompt::new(
            "test_prompt_with_arguments",
            Some("A message made of two arguments"),
            Some(vec![argument("arg1", true), argument("arg2", true)]),
        ),
        Prompt::new(
            "test_prompt_with_embedded_resource",
            Some("A message with a resource inside"),
            Some(vec![argument("resourceUri", true)]),
        ),
        Prompt::new("test_prompt_with_image", Some("A message with an image"), None),
        Prompt::new(
            "test_input_required_result_prompt",
            Some("A message made of what the user says"),
            None,
        ),
    ]);
    result.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Private)
}

/// Returns one prompt.
pub fn get_prompt(
    request: GetPromptRequestParams,
    context: &RequestContext<RoleServer>,
) -> FixtureResult<GetPromptResponse> {
    let arguments = request.arguments.unwrap_or_default();
    let argument = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
    let text = |text: &str| PromptMessage::new_text(Role::User, text);
    let messages = match request.name.as_str() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (one, two) = (argument("arg1"), argument("arg2"));
            vec![text(&format!("Prompt with arguments: arg1='{one}', arg2='{two}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let contents = ResourceContents::text(
                "Embedded resource content for testing.",
                argument("resourceUri"),
            );
            let resource = ContentBlock::resource(contents.with_mime_type("text/plain"));
            vec![
                PromptMessage::new(Role::User, resource),
                text("Please process the resource above."),
            ]
        }
        "test_prompt_with_image" => {
            let image = ContentBlock::Image(ImageContent::new(PNG, "image/png"));
            vec![PromptMessage::new(Role::User, image), text("Please look at the image above.")]
        }
        "test_input_required_result_prompt" => {
            let said = request.input_responses.and_then(|mut said| said.remove("user_context"));
            let stateless = context
                .protocol_version()
                .is_some_and(|protocol_version| protocol_version.as_str() >= version::STATELESS);
            match (said, stateless) {
                (Some(Value::Object(said)), _) => {
                    vec![text(&format!("The user said: {}", Value::Object(said)))]
                }
                (_, true) => return ask_for_context(),
                (_, false) => {
                    return Err(refuse_request(Error::invalid_arguments(
                        "this prompt needs 2026-07-28",
                    )));
                }
            }
        }
        _ => return Err(refuse_request(Error::new(Kind::NotFound, "there is no such prompt"))),
    };
    Ok(GetPromptResult::new(messages).with_description("A prompt for testing").into())
}

fn ask_for_context() -> FixtureResult<GetPromptResponse> {
    let question = json!({
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": "What context should the prompt use?",
            "requestedSchema": {
                "type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"],
            },
        },
    });
    let question = serde_json::from_value(question).map_err(|error| {
        refuse_request(Error::internal("a question does not match the protocol").with_source(error))
    })?;
    let questions = InputRequests::from_iter([("user_context".to_owned(), question)]);
    Ok(InputRequiredResult::from_input_requests(questions).into())
}

/// Returns the list of resources.
pub fn list_resources() -> ListResourcesResult {
    let resource =
        |uri: &str, name: &str, mime: &str| Resource::new(uri, name).with_mime_type(mime);
    let result = ListResourcesResult::with_all_items(vec![
        resource("test://static-text", "Static text", "text/plain"),
        resource("test://static-binary", "Static image", "image/png"),
        resource("test://watched-resource", "Watched text", "text/plain"),
    ]);
    result.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Private)
}

/// Returns the list of resource templates.
pub fn list_resource_templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new("test://template/{id}/data", "Data by id")
        .with_mime_type("application/json");
    ListResourceTemplatesResult::with_all_items(vec![template])
        .with_ttl_ms(TTL_MS)
        .with_cache_scope(CacheScope::Private)
}

/// Returns the content of one resource.
pub fn read_resource(request: ReadResourceRequestParams) -> FixtureResult<ReadResourceResponse> {
    let uri = request.uri.as_str();
    let template = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
    let contents = match (uri, template) {
        ("test://static-text", _) => {
            text_contents("This is the content of the static text resource.", uri, "text/plain")
        }
        ("test://watched-resource", _) => {
            text_contents("Watched resource content.", uri, "text/plain")
        }
        ("test://static-binary", _) => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        (_, Some(id)) => {
            let data =
                json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            text_contents(&data.to_string(), uri, "application/json")
        }
        _ => {
            return Err(refuse_request(
                Error::new(Kind::NotFound, "there is no such resource").with_fact("uri", uri),
            ));
        }
    };
    let result = ReadResourceResult::new(vec![contents]);
    Ok(result.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Private).into())
}

fn text_contents(text: &str, uri: &str, mime: &str) -> ResourceContents {
    ResourceContents::text(text, uri).with_mime_type(mime)
}

#[cfg(test)]
mod tests {
    use crate::config::scratch::Scratch;
    use crate::mcp::methods::initialize;
    use crate::mcp::server::tests::server;
    use std::sync::Arc;

    use crate::registry::Registry;

    #[test]
    fn fixtures_are_there_with_the_flag_alone() {
        let scratch = Scratch::new();
        let server = server(&scratch);
        let names = |registry: &Registry| -> Vec<String> {
            registry.listed_tools().iter().map(|tool| tool.spec().name.clone()).collect()
        };
        let shipped = names(&server.pipeline.state().registry);
        let fixtures: Vec<String> = crate::tools::fixtures::all_fixtures()
            .iter()
            .map(|tool| tool.spec().name.clone())
            .collect();
        assert!(
            !shipped.is_empty() && fixtures.iter().all(|name| !shipped.contains(name)),
            "{shipped:?}"
        );
        let capabilities =
            initialize::server_info(&server, &crate::session::ClientInfo::default(), None)
                .capabilities;
        assert!(
            capabilities.prompts.is_none()
                && capabilities.resources.is_none()
                && !capabilities.supports_tasks()
        );
        let mut config = crate::config::Config::clone(&server.config);
        config.conformance_fixtures = true;
        assert_eq!(names(&Registry::new(&config, &Arc::default())), [shipped, fixtures].concat());
    }
}
