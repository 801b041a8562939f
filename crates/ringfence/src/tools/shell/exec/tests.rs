use serde_json::json;

use super::*;
use crate::approval::Gate;
use crate::audit::{AuditLog, CallRecord};
use crate::base::call::ParsedArgs;
use crate::base::call::{CallStatus, OutputBlock};
use crate::base::client_handle::{ClientCapabilities, ClientHandle};
use crate::base::clock::Deadline;
use crate::base::{CancelCause, CancelToken, Kind, TraceId};
use crate::config::ProfileSetting;
use crate::sandbox::SandboxConfig;
use crate::sandbox::tests::{Place, config as config_with_profile, launcher};
use crate::session::Overrides;
use crate::tools::DynTool;
use crate::tools::{CallControl, CallServices, CallSettings, SessionRef, SessionState};

fn config(place: &Place) -> Config {
    let mut config = config_with_profile(&place.dir, ProfileSetting::Default);
    config.limits.grace = Duration::from_millis(200);
    config.limits.timeout_ceiling = Duration::from_secs(600);
    config
}

fn cx(place: &Place, limit: Duration) -> Arc<RunCx> {
    let audit = AuditLog::open(&place.dir.join("root"), 1 << 20).unwrap();
    let trace_id = TraceId::generate();
    let config = config(place);
    let state = Arc::new(SessionState::new(place.session.clone()));
    Arc::new(RunCx {
        session_ref: SessionRef { state, persistent: true },
        settings: CallSettings {
            sandbox: Arc::new(SandboxConfig::from_config(&config)),
            config: Arc::new(config),
            workspace: place.session.workspace.clone(),
            own_sandbox: None,
            overrides: Arc::default(),
            text_budget: 2000,
            timeout_hint: "Raise `timeout_ms`.".to_owned(),
        },
        control: CallControl {
            client: ClientHandle::new(ClientCapabilities::default()).0,
            cancel: CancelToken::new(),
            deadline: Arc::new(Deadline::after(limit)),
            call_events: CallRecord::open(&audit, &trace_id, serde_json::Map::new()).call_events(),
            max_approval_wait: None,
        },
        services: CallServices {
            policy: crate::rulebook::RulebookCache::with_launcher(
                crate::rulebook::RuleLocations::default(),
                launcher(),
            ),
            gate: Arc::new(Gate::new(false)),
            list_changes: crate::base::list_changes::ListChanges::default(),
            tasks: tokio_util::task::TaskTracker::new(),
        },
        trace_id,
    })
}

fn call() -> Prepared {
    Prepared {
        trace_id: TraceId::generate(),
        tool: "shell.exec".into(),
        description: String::new(),
        definition_hash: String::new(),
        trust_scope: None,
        args: ParsedArgs::default(),
        arguments_hash: String::new(),
        shown_arguments: Value::Null,
        shown_command: None,
        target: None,
        arguments_in_command: &[],
        cwd: String::new(),
        shown_env: Vec::new(),
        profile: "default",
        effects: Vec::new(),
        time_limit: Duration::from_secs(30),
        approval_reason: None,
    }
}

fn args(arguments: Value) -> Args {
    serde_json::from_value(arguments).unwrap()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn prepare(place: &Place, arguments: Value) -> Result<CallPlan> {
    let cx = PrepareCx {
        state: &SessionState::new(place.session.clone()),
        workspace: &place.session.workspace,
        overrides: &Overrides::default(),
        config: &config(place),
        sandbox: &SandboxConfig::from_config(&config(place)),
    };
    let tool = ShellExec::with_launcher(&config(place), launcher());
    Ok(tool.check_call(&object(arguments), &cx)?.plan)
}

async fn run(place: &Place, arguments: Value) -> Result<ToolOutput> {
    ShellExec::with_launcher(&config(place), launcher())
        .execute_call(&cx(place, Duration::from_secs(30)), args(arguments), call())
        .await
}

fn text(output: &ToolOutput) -> &str {
    match output.content.as_slice() {
        [OutputBlock::Text(text)] => text,
        other => panic!("{other:?}"),
    }
}

fn field<'a>(output: &'a ToolOutput, name: &str) -> &'a Value {
    &output.structured.as_ref().unwrap()[name]
}

#[test]
fn a_call_asks_only_without_a_fence_and_says_its_limit() {
    let place = Place::new();
    let plan = prepare(&place, json!({"command": "true"})).unwrap();
    assert_eq!(plan.approval_reason, None);
    let unfenced = config_with_profile(&place.dir, ProfileSetting::None);
    let tool = ShellExec::new(&unfenced);
    let asked = tool.check_call(
        &object(json!({"command": "true"})),
        &PrepareCx {
            state: &SessionState::new(place.session.clone()),
            workspace: &place.session.workspace,
            overrides: &Overrides::default(),
            config: &unfenced,
            sandbox: &SandboxConfig::from_config(&unfenced),
        },
    );
    assert_eq!(asked.unwrap().plan.approval_reason.as_deref(), Some("It runs without a sandbox."));
    assert_eq!((plan.timeout, plan.cwd), (Some(DEFAULT_TIMEOUT), None));
    let plan =
        prepare(&place, json!({"argv": ["true"], "timeout_ms": 86_400_000, "cwd": "."})).unwrap();
    assert_eq!(plan.timeout, Some(Duration::from_secs(600)));
}

#[test]
fn wrong_arguments_are_refused_before_anybody_is_asked() {
    let place = Place::new();
    let kind = |arguments: Value| prepare(&place, arguments).map(|_| ()).unwrap_err();
    for arguments in [
        json!({}),
        json!({"command": "a", "argv": ["a"]}),
        json!({"argv": []}),
        json!({"argv": ["echo", "a\0b"]}),
        json!({"command": "a", "timeout_ms": 0}),
        json!({"command": "a", "sesion": "x"}),
    ] {
        assert_eq!(kind(arguments.clone()).kind(), Kind::InvalidArguments, "{arguments}");
    }
    let refused = kind(json!({"command": "a", "env": {"LD_PRELOAD": "x"}}));
    assert_eq!((refused.kind(), refused.reason_name()), (Kind::PermissionDenied, Some("env_name")));
    assert_eq!(kind(json!({"command": "a", "cwd": "none"})).kind(), Kind::NotFound);
}

#[test]
fn a_directory_outside_the_workspace_is_not_opened() {
    let place = Place::new();
    let workspace = place.dir.join("ws");
    std::fs::create_dir(workspace.join("sub")).unwrap();
    std::os::unix::fs::symlink("/etc", workspace.join("out")).unwrap();
    std::os::unix::fs::symlink("sub", workspace.join("in")).unwrap();
    std::fs::write(workspace.join("file"), "").unwrap();
    for cwd in ["..", "/etc", "out", "sub/../..", "/proc/self/root", "out/ssl"] {
        let error = place.session.workspace.open_dir(cwd).unwrap_err();
        assert_eq!(error.reason_name(), Some("outside_workspace"), "{cwd}: {error:?}");
    }
    for cwd in [
        None,
        Some("sub"),
        Some("in"),
        Some("sub/.."),
        Some(workspace.join("sub").to_str().unwrap()),
    ] {
        assert!(place.session.workspace.open_dir(cwd.unwrap_or(".")).is_ok(), "{cwd:?}");
    }
    assert_eq!(
        place.session.workspace.open_dir("file").unwrap_err().reason_name(),
        Some("not_a_directory")
    );
}

#[test]
fn the_schemas_are_what_clients_take() {
    let spec = ShellExec::new(&config(&Place::new())).spec;
    let input = Value::Object((*spec.input_schema).clone());
    assert_eq!(input["properties"]["argv"]["items"]["type"], "string");
    assert_eq!(input["properties"]["env"]["additionalProperties"]["type"], "string");
    assert_eq!(input.get("required"), None);
    let output = Value::Object((*spec.output_schema.unwrap()).clone());
    assert_eq!(output["properties"]["exit_code"]["type"], "integer");
    assert_eq!(output["properties"]["error"]["type"], "object");
    assert!(
        !input.to_string().contains("null") && !output.to_string().contains("null"),
        "{output}"
    );
}

#[tokio::test]
async fn a_failed_command_is_a_result() {
    let place = Place::new();
    let arguments =
        json!({"command": "printf out; echo $X >&2; pwd; exit 3", "env": {"X": "err"}, "cwd": "."});
    let output = run(&place, arguments).await.unwrap();
    assert!(!output.is_error);
    assert_eq!(
        (field(&output, "status"), field(&output, "exit_code")),
        (&json!("failed"), &json!(3))
    );
    assert_eq!(
        (field(&output, "stderr"), field(&output, "stderr_bytes")),
        (&json!("err\n"), &json!(4))
    );
    let sandbox = field(&output, "sandbox");
    assert_eq!((&sandbox["profile"], &sandbox["network"]), (&json!("default"), &json!("off")));
    assert_eq!(sandbox["denials"], json!([]));
    let workspace = place.dir.join("ws");
    let expected = format!("out{}\n[stderr]\nerr\nexit code 3, ", workspace.display());
    assert!(text(&output).starts_with(&expected), "{}", text(&output));
    assert_eq!((output.facts.status, output.facts.exit_code), (Some(CallStatus::Failed), Some(3)));
    assert_eq!(output.facts.stderr_bytes, Some(4));
}

#[tokio::test]
async fn argv_meets_no_shell() {
    let place = Place::new();
    let output = run(&place, json!({"argv": ["printf", "%s", "$HOME; *"]})).await.unwrap();
    assert_eq!(
        (field(&output, "stdout"), field(&output, "status")),
        (&json!("$HOME; *"), &json!("completed"))
    );
    let output = run(&place, json!({"argv": ["cat"], "stdin": "hello"})).await.unwrap();
    assert_eq!(field(&output, "stdout"), "hello");
    let error = run(&place, json!({"argv": ["no-such-program"]})).await.unwrap_err();
    assert_eq!((error.kind(), error.reason_name()), (Kind::NotFound, Some("spawn_failed")));
}

#[tokio::test]
async fn a_deadline_is_an_error_with_what_was_said() {
    let place = Place::new();
    let cx = cx(&place, Duration::from_secs(30));
    let tool = ShellExec::with_launcher(&config(&place), launcher());
    let call = Prepared { time_limit: Duration::from_millis(200), ..call() };
    let args = args(json!({"command": "echo before; sleep 60"}));
    let output = tool.execute_call(&cx, args, call).await.unwrap();
    assert!(output.is_error);
    assert_eq!(
        (field(&output, "status"), field(&output, "stdout")),
        (&json!("timed_out"), &json!("before\n"))
    );
    let error = field(&output, "error");
    assert_eq!(
        (&error["kind"], &error["trace_id"]),
        (&json!("deadline_exceeded"), &json!(cx.trace_id.as_str()))
    );
    assert!(error["hint"].is_string() && error["message"].is_string() && error["code"].is_i64());
    assert_eq!(output.facts.status, Some(CallStatus::TimedOut));
}

#[tokio::test]
async fn a_cancelled_call_says_so() {
    let place = Place::new();
    let cx = cx(&place, Duration::from_secs(30));
    cx.control.cancel.cancel(CancelCause::Operator);
    let tool = ShellExec::with_launcher(&config(&place), launcher());
    let output =
        tool.execute_call(&cx, args(json!({"command": "sleep 60"})), call()).await.unwrap();
    assert!(output.is_error);
    assert_eq!(
        (field(&output, "status"), &field(&output, "error")["cause"]),
        (&json!("cancelled"), &json!("operator"))
    );
    assert_eq!(output.facts.status, Some(CallStatus::Cancelled));
}

#[tokio::test]
async fn long_output_is_cut_and_can_be_read_on() {
    let place = Place::new();
    let output = run(&place, json!({"command": "seq 10000; echo bad >&2", "max_bytes": 1000}))
        .await
        .unwrap();
    assert_eq!(
        (field(&output, "truncated"), field(&output, "stdout_bytes")),
        (&json!(true), &json!(48894))
    );
    let handle = field(&output, "output").as_str().unwrap();
    assert!(text(&output).len() < 1300 && text(&output).contains(handle));
    let whole =
        std::io::read_to_string(place.session.outputs.open_output(handle).unwrap()).unwrap();
    assert_eq!(whole.len(), 48894 + 4);
}
