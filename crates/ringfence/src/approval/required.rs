//! Whether a tool needs approval for every call. A single call may need it for reasons of its own:
//! see `CallPlan::approval_reason`.

use crate::config::ApprovalSettings;

/// What is known about a tool before it is called.
pub struct ApprovalSubject<'a> {
    pub tool: &'a str,
    /// The tool itself requires approval: because it runs outside the sandbox, or because the
    /// operator says so in the command's entry.
    pub requires_approval: bool,
    /// The tool is built in, and neither an operator's command nor another server's tool.
    pub is_built_in: bool,
}

/// Returns whether every call of the tool needs approval, by its nature or by the operator's
/// setting for our own tools, which does not apply to other tools.
pub fn is_always_required(settings: &ApprovalSettings, subject: &ApprovalSubject<'_>) -> bool {
    subject.requires_approval || subject.is_built_in && settings.own_tools.covers_tool(subject.tool)
}
