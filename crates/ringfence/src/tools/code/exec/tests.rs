use serde_json::json;

use super::*;
use crate::base::Kind;
use crate::config::ProfileSetting;
use crate::sandbox::SandboxConfig;
use crate::sandbox::tests::{Place, config as config_with_profile};
use crate::session::Overrides;
use crate::tools::{DynTool, SessionState};

fn prepare(place: &Place, arguments: Value) -> Result<CallPlan> {
    let config = config_with_profile(&place.dir, ProfileSetting::Default);
    let cx = PrepareCx {
        state: &SessionState::new(place.session.clone()),
        workspace: &place.session.workspace,
        overrides: &Overrides::default(),
        config: &config,
        sandbox: &SandboxConfig::from_config(&config),
    };
    Ok(CodeExec::new(&config).check_call(arguments.as_object().unwrap(), &cx)?.plan)
}

#[test]
fn wrong_arguments_are_refused_before_anybody_is_asked() {
    let place = Place::new();
    for arguments in [
        json!({"language": "bash"}),
        json!({"language": "bash", "code": ":", "file": "x"}),
        json!({"language": "bash", "code": "a\0b"}),
        json!({"language": "bash", "code": ":", "args": ["a\0b"]}),
        json!({"language": "bash", "code": ":", "timeout_ms": 0}),
        json!({"language": "bash", "code": ":", "reset": true}),
        json!({"language": "bash", "code": ":", "session": "new", "stdin": "x"}),
        json!({"language": "bash", "code": ":", "session": "sh-1", "cwd": "."}),
        json!({"language": "basic", "code": "10 PRINT"}),
        json!({"language": "perl", "code": "1", "session": "new"}),
        json!({"language": "bash", "code": ":", "runtime": "x"}),
    ] {
        let error = prepare(&place, arguments.clone()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArguments, "{arguments} {error:?}");
    }
    let error =
        prepare(&place, json!({"language": "bash", "file": "../x"})).map(|_| ()).unwrap_err();
    assert_eq!(error.reason_name(), Some("outside_workspace"));
    let error = prepare(&place, json!({"language": "bash", "code": ":", "session": "sh-1"}))
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    let error = prepare(&place, json!({"language": "bash", "code": ":", "env": {"BASH_ENV": "x"}}))
        .map(|_| ());
    assert_eq!(error.unwrap_err().reason_name(), Some("env_name"));
}

#[test]
fn a_call_has_a_minute_and_asks_only_without_a_fence() {
    let place = Place::new();
    let plan = prepare(&place, json!({"language": "bash", "code": ":"})).unwrap();
    assert_eq!((plan.approval_reason, plan.timeout), (None, Some(DEFAULT_TIMEOUT)));
    let unfenced = config_with_profile(&place.dir, ProfileSetting::None);
    let cx = PrepareCx {
        state: &SessionState::new(place.session.clone()),
        workspace: &place.session.workspace,
        overrides: &Overrides::default(),
        config: &unfenced,
        sandbox: &SandboxConfig::from_config(&unfenced),
    };
    let arguments = json!({"language": "bash", "code": ":"});
    let plan =
        CodeExec::new(&unfenced).check_call(arguments.as_object().unwrap(), &cx).unwrap().plan;
    assert!(plan.approval_reason.is_some());
}

#[test]
fn the_schema_names_what_can_be_run_here() {
    let spec = CodeExec::new(&config_with_profile(&Place::new().dir, ProfileSetting::Default)).spec;
    let languages = spec.input_schema["properties"]["language"]["enum"].as_array().unwrap();
    assert!(languages.contains(&json!("bash")), "{languages:?}");
    assert_eq!(spec.input_schema["required"], json!(["language"]));
    let output = Value::Object((*spec.output_schema.unwrap()).clone());
    for field in ["status", "stdout", "result", "artifacts", "error", "session"] {
        assert!(output["properties"][field].is_object(), "{field}: {output}");
    }
    assert!(!spec.lists_output_schema && !output.to_string().contains("null"));
}
