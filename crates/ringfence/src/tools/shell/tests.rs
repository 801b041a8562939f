use std::time::Duration;

use super::*;
use crate::base::CancelCause;
use crate::base::call::{CallStatus, OutputBlock};
use crate::config::ProfileSetting;
use crate::sandbox::tests::{Place, config, launcher};
use crate::sandbox::{RunResult, SandboxConfig, ShownOutput};
use crate::session::Overrides;
use crate::tools::{DynTool, SessionState};

fn outcome(exit_code: Option<i32>, signal: Option<i32>, stop: Option<StopReason>) -> RunOutcome {
    RunOutcome {
        stdout: ShownOutput { text: "said\n".into(), bytes: 5, truncated: false },
        stderr: ShownOutput::default(),
        result: RunResult {
            stop_reason: stop,
            exit_code,
            signal,
            duration: Duration::new(1, 34_422_531),
            ..RunResult::default()
        },
    }
}

fn reply(output: &ToolOutput) -> Value {
    match output.content.as_slice() {
        [OutputBlock::Text(text)] => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_result_is_one_text_of_json_in_the_form_that_is_known() {
    let done = build_output(outcome(Some(3), None, None), None);
    let duration = json!({"secs": 1, "nanos": 34_422_531});
    assert_eq!(
        reply(&done),
        json!({"exit_code": 3, "output": "said\n", "duration": duration, "timed_out": false})
    );
    assert!(done.structured.is_none() && !done.is_error);
    let late = build_output(outcome(None, Some(15), Some(StopReason::Deadline)), None);
    assert_eq!(
        reply(&late),
        json!({"exit_code": 124, "output": "said\n", "duration": duration, "timed_out": true})
    );
    assert!(!late.is_error);
    assert_eq!(late.facts.status, Some(CallStatus::TimedOut));
    assert_eq!(reply(&build_output(outcome(None, Some(9), None), None))["exit_code"], 137);
    assert!(
        build_output(
            outcome(None, Some(15), Some(StopReason::Cancelled(CancelCause::Shutdown))),
            None
        )
        .is_error
    );
}

#[test]
fn arguments_are_those_of_the_other_server() {
    let place = Place::new();
    let config = config(&place.dir, ProfileSetting::Default);
    let shell = ShellTool::with_launcher(&config, launcher());
    let workspace = place.session.workspace.path().display().to_string();
    let cx = PrepareCx {
        state: &SessionState::new(place.session.clone()),
        workspace: &place.session.workspace,
        overrides: &Overrides::default(),
        config: &config,
        sandbox: &SandboxConfig::from_config(&config),
    };
    let prepare = |arguments: Value| {
        shell.check_call(arguments.as_object().unwrap(), &cx).map(|call| call.plan)
    };
    let plan = prepare(
        json!({"command": "true", "workdir": workspace, "timeout_ms": null, "login": null, "more": 1}),
    );
    let plan = plan.unwrap();
    assert_eq!((plan.timeout, plan.cwd), (Some(Duration::from_secs(10)), Some(workspace.clone())));
    for (arguments, said) in [
        (json!({"command": "true"}), "the argument `workdir` is missing"),
        (json!({"workdir": workspace}), "the argument `command` is missing"),
        (json!({"command": "true", "workdir": "."}), "`workdir` `.` is not an absolute path"),
        (json!({"command": "true", "workdir": format!("{workspace}/gone")}), "does not exist"),
        (json!({"command": "a\0b", "workdir": workspace}), "a command cannot contain a NUL byte"),
        (
            json!({"command": "true", "workdir": workspace, "timeout_ms": "soon"}),
            "`timeout_ms` is invalid",
        ),
    ] {
        let error = prepare(arguments).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArguments, "{error}");
        assert!(error.message().contains(said), "{error}");
    }
    let outside = prepare(json!({"command": "true", "workdir": "/etc"})).unwrap_err();
    assert_eq!(outside.reason_name(), Some("outside_workspace"));
}
