//! Turns a request into a frozen [`Prepared`]: checks the arguments, determines the effects and
//! sets the limits. Nothing is executed yet.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CallRequest, Pipeline, PipelineState};
use crate::approval::required::{ApprovalSubject, is_always_required};
use crate::base::call::{Prepared, digest_json};
use crate::base::workspace::Workspace;
use crate::base::{Error, Kind, Result};
use crate::config::{Config, EscalationMode};
use crate::redact::arguments::redact_arguments;
use crate::redact::known_secrets;
use crate::redact::secret::{is_sensitive, redact_url_passwords};
use crate::rulebook::EscalationStatus;
use crate::sandbox::repositories::UNPROTECTABLE;
use crate::sandbox::{Launcher, SandboxConfig, git, profile};
use crate::session::Overrides;
use crate::tools::{CheckedCall, DynTool, PrepareCx, ToolOrigin};

/// Returns the tool with this name if it is visible in the workspace.
pub fn find_tool(
    state: &PipelineState,
    name: &str,
    workspace: &Workspace,
) -> Result<Arc<dyn DynTool>> {
    let offered_tool = state.registry.get(name).filter(|tool| tool.is_offered_in(workspace.path()));
    offered_tool.cloned().ok_or_else(|| {
        // Hidden and missing tools get the same message, so that probing reveals nothing.
        let shown_name: String = name.chars().take(64).collect();
        Error::new(Kind::UnknownTool, format!("there is no tool `{shown_name}`"))
    })
}

/// Returns the workspace restricted to what this call may touch, and a description of the client's
/// sandbox for the result.
pub async fn restrict_workspace(
    pipeline: &Pipeline,
    tool: &dyn DynTool,
    config: &Config,
    sandbox: &SandboxConfig,
    request: &CallRequest,
) -> Result<(Arc<Workspace>, Option<Value>)> {
    let full_workspace = match tool.own_sandbox() {
        Some(own_sandbox) => {
            own_sandbox.restricted_workspace(&request.session_ref.state.sandboxes.dedicated)?
        }
        None => {
            profile::workspace_hiding_private(&request.session_ref.session().workspace, sandbox)
        }
    };
    let (workspace, sandbox_effect) = apply_client_sandbox(request, full_workspace).await?;
    let workspace = guard_repositories(tool, sandbox, request, workspace).await?;
    if sandbox.escalate == EscalationMode::Off {
        return Ok((workspace, sandbox_effect));
    }
    let rulebook = pipeline.policy.current_rules(workspace.path()).await;
    if !git::escalates_git(&rulebook.table) {
        return Ok((workspace, sandbox_effect));
    }
    // git executes what a repository configures. Where a rule lets git out of the sandbox, no run
    // may change the repository. Where nothing can leave the sandbox, the rule must not take away
    // what runs may do without it.
    match rulebook.escalation_status(
        config,
        sandbox.escalate,
        pipeline.gate.can_ask(request.client_capabilities),
    ) {
        EscalationStatus::Possible => {
            Ok((Arc::new(workspace.with_restrictions(git::close_repository)), sandbox_effect))
        }
        // A rules file is broken for a moment while it is being edited. The repository is not noted
        // as open then, so that `git` remains usable afterwards.
        EscalationStatus::Prevented(_) if !rulebook.faults.is_empty() => {
            Ok((workspace, sandbox_effect))
        }
        EscalationStatus::Off | EscalationStatus::Prevented(_) => {
            pipeline.policy.note_open_repository(workspace.path());
            Ok((workspace, sandbox_effect))
        }
    }
}

/// Protects what git on the host would execute, for tools that change files or run commands.
async fn guard_repositories(
    tool: &dyn DynTool,
    sandbox: &SandboxConfig,
    request: &CallRequest,
    workspace: Arc<Workspace>,
) -> Result<Arc<Workspace>> {
    // A server outlives the call: what it may touch is determined when it is started.
    if tool.origin() == ToolOrigin::Upstream {
        return Ok(workspace);
    }
    let effects = &tool.spec().effects;
    let runs_programs = effects.contains(&"exec");
    if !runs_programs && !effects.contains(&"filesystem_write") {
        return Ok(workspace);
    }
    let sandboxes = &request.session_ref.state.sandboxes;
    let home = sandbox.host.home.as_deref();
    let session_sandbox = sandboxes.sandbox_for_call(
        sandbox,
        &Launcher::from_current_exe(),
        tool.own_sandbox().map(AsRef::as_ref),
        &workspace,
    );
    let findings = match session_sandbox {
        Ok(session_sandbox) => {
            sandboxes.repositories.current_findings(&session_sandbox, home).await
        }
        Err(error) => Err(error),
    };
    match findings {
        Ok(Some(findings)) => Ok(Arc::new(
            workspace
                .with_restrictions(|rights| rights.git_protected = Some(findings.covered.clone())),
        )),
        Ok(None) => Ok(workspace),
        // Files can be written even where no sandbox can be built; names that git executes are
        // still refused.
        Err(error) if !runs_programs && error.reason_name() != Some(UNPROTECTABLE) => Ok(workspace),
        Err(error) => Err(error),
    }
}

async fn apply_client_sandbox(
    request: &CallRequest,
    workspace: Arc<Workspace>,
) -> Result<(Arc<Workspace>, Option<Value>)> {
    let Some(client_sandbox) = request.client_sandbox.clone() else { return Ok((workspace, None)) };
    // A client may send patterns, and finding their matches reads the file system.
    let task = tokio::task::spawn_blocking(move || {
        let (workspace, ignored) = workspace.with_client_sandbox(&client_sandbox)?;
        let sandbox_effect = client_sandbox.describe_effect(workspace.rights(), &ignored);
        Ok((Arc::new(workspace), Some(sandbox_effect)))
    });
    task.await.map_err(|error| {
        Error::internal("the client's sandbox could not be applied").with_source(error)
    })?
}

/// Has the tool check the arguments, and freezes everything that will be shown, approved and run.
pub fn prepare_call(
    pipeline_state: &PipelineState,
    sandbox: &SandboxConfig,
    tool: &dyn DynTool,
    request: &CallRequest,
    overrides: &Overrides,
    workspace: &Workspace,
) -> Result<Prepared> {
    let spec = tool.spec();
    let config = &*pipeline_state.config;
    let state = &request.session_ref.state;
    let cx = PrepareCx { state, workspace, overrides, config, sandbox };
    let CheckedCall { plan, args } = tool.check_call(&request.arguments, &cx)?;
    // The tool itself comes first, because it may report more precisely what is missing.
    if let Some(reason) = tool.unavailable_reason() {
        return Err(Error::new(
            Kind::Unavailable,
            format!("`{}` cannot run on this host: {reason}", spec.name),
        )
        .with_hint("Ask the operator of the host, or do it another way."));
    }
    let approval_reason = plan.approval_reason.or_else(|| {
        needs_approval(config, tool)
            .then(|| "The operator requires approval for every call of this tool.".to_owned())
    });
    let definition_hash = match pipeline_state.registry.get_definition_hash(&spec.name) {
        Some(definition_hash) => definition_hash.to_owned(),
        // A tool that meta tools reach need not be on the list.
        None => tool.definition_hash(),
    };
    let mut definition = match &plan.trust_scope {
        Some(trust_scope) => digest_json(&json!([definition_hash, trust_scope])),
        None => definition_hash,
    };
    // Trust covers a command as it was shown: in another directory, or with other variables, it is
    // a different command.
    if !overrides.is_empty() {
        definition = digest_json(&json!([definition, overrides.cwd, overrides.env]));
    }
    Ok(Prepared {
        trace_id: request.trace_id.clone(),
        tool: spec.name.clone(),
        description: spec.description.clone(),
        definition_hash: definition,
        trust_scope: plan.trust_scope,
        arguments_hash: digest_json(&Value::Object(request.arguments.clone())),
        shown_arguments: match &approval_reason {
            Some(_) => redact_arguments(&request.arguments, &plan.hidden_arguments),
            None => Value::Null,
        },
        shown_command: plan.command,
        target: plan.target,
        arguments_in_command: plan.command_covers,
        args,
        cwd: plan.cwd.unwrap_or_else(|| state.session.workspace.display_path()),
        shown_env: format_env(&plan.env),
        profile: spec.profile,
        effects: spec.effects.clone(),
        time_limit: effective_timeout(config, spec.timeout, plan.timeout, request.timeout),
        approval_reason,
    })
}

/// Returns the time limit that the call requests, or else the tool's default, capped by the
/// client's and the operator's limits.
fn effective_timeout(
    config: &Config,
    tool_timeout: Duration,
    call_timeout: Option<Duration>,
    client_timeout: Option<Duration>,
) -> Duration {
    let ceiling = config.limits.timeout_ceiling;
    call_timeout.unwrap_or(tool_timeout).min(client_timeout.unwrap_or(ceiling)).min(ceiling)
}

/// `_meta` key for the time that a client will wait.
pub const TIMEOUT_META: &str = "dev.ringfence/timeout_ms";

/// Returns the hint for a call that timed out: which limit to raise, and who can do it.
pub fn timeout_hint(
    config: &Config,
    tool: &dyn DynTool,
    client_timeout: Option<Duration>,
    limit: Duration,
) -> String {
    let ceiling = config.limits.timeout_ceiling;
    let ceiling_ms = ceiling.as_millis();
    let takes_timeout = tool
        .spec()
        .input_schema
        .get("properties")
        .is_some_and(|properties| properties.get("timeout_ms").is_some());
    match tool.own_sandbox() {
        _ if client_timeout == Some(limit) && limit < ceiling => {
            format!(
                "Raise `{}` in `_meta` (at most {ceiling_ms}) or do less in one call.",
                TIMEOUT_META
            )
        }
        Some(own_sandbox) if limit < ceiling => format!(
            "Do less in one call, or ask the operator to raise `timeout_ms` (at most {ceiling_ms}) under {}.",
            own_sandbox.config_table()
        ),
        None if takes_timeout && limit < ceiling => {
            format!("Raise `timeout_ms` (at most {ceiling_ms}) or do less in one call.")
        }
        _ if limit >= ceiling => {
            "Do less in one call, or ask the operator to raise `timeout_ms` under [limits]."
                .to_owned()
        }
        _ => "Do less in one call: fewer files, a smaller range or a narrower pattern.".to_owned(),
    }
}

/// Returns whether every call of the tool needs approval.
pub fn needs_approval(config: &Config, tool: &dyn DynTool) -> bool {
    let subject = ApprovalSubject {
        tool: &tool.spec().name,
        requires_approval: tool.spec().requires_approval,
        is_built_in: tool.origin() == ToolOrigin::BuiltIn,
    };
    is_always_required(&config.approval, &subject)
}

fn format_env(env: &[(String, String)]) -> Vec<String> {
    let format_variable = |(name, value): &(String, String)| match (
        is_sensitive(name),
        known_secrets::redact_str(&redact_url_passwords(value)),
    ) {
        (true, _) => format!("{name} (set)"),
        (false, value) => format!("{name}={value}"),
    };
    env.iter().map(format_variable).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_prompt_shows_no_secret_and_everything_else() {
        let Value::Object(arguments) = json!({
            "command": "make", "env": {"GITHUB_TOKEN": "hunter2", "CI": "1"}, "api_key": ["hunter2"],
            "stdin": format!("{}{}end", "x".repeat(20_000), "y".repeat(2_000)),
        }) else {
            unreachable!()
        };
        let shown = redact_arguments(&arguments, &BTreeSet::new());
        assert!(!shown.to_string().contains("hunter2"), "{shown}");
        assert_eq!(shown["env"]["CI"], "1");
        let stdin = shown["stdin"].as_str().unwrap();
        assert_eq!(stdin.len(), 22_003);
        assert_eq!(shown["env"]["GITHUB_TOKEN"], "[not shown, 7 characters given by this call]");
        let long = "x".repeat(5000);
        let env = [("A_TOKEN", "hunter2"), ("LANG", "C"), ("LONG", &long)];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(format_env(&env), ["A_TOKEN (set)", "LANG=C", &format!("LONG={long}")]);
    }
}
