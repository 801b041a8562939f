//! placeholder
use rmcp::model::*;
use rmcp::service::{RequestContext, RoleServer};

type Answer<T> = std::result::Result<T, ErrorData>;

pub fn declare(_capabilities: &mut ServerCapabilities) {}
pub fn complete(_request: CompleteRequestParams) -> Answer<CompleteResult> {
    Ok(CompleteResult::default())
}
pub fn prompts() -> ListPromptsResult {
    ListPromptsResult::default()
}
pub fn prompt(_request: GetPromptRequestParams, _context: &RequestContext<RoleServer>) -> Answer<GetPromptResponse> {
    Err(ErrorData::invalid_params("none", None))
}
pub fn resources() -> ListResourcesResult {
    ListResourcesResult::default()
}
pub fn resource_templates() -> ListResourceTemplatesResult {
    ListResourceTemplatesResult::default()
}
pub fn resource(_request: ReadResourceRequestParams) -> Answer<ReadResourceResponse> {
    Err(ErrorData::invalid_params("none", None))
}
