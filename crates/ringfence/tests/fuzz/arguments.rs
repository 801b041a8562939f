//! Arguments: for each tool there is, what its schema suggests, then spoiled. Checking them must not panic, must not
//! let through what the schema forbids, and must say in a few words what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ringfence::{
    ConfigFlags, Kind, Overrides, PrepareCx, Principal, ProcessEnv, Server, TraceId, prepare_root,
    resolve_config,
};
use serde_json::{Map, Value, json};

use crate::rng::Rng;
use crate::{Shown, Stage, assert_error_body, each_case, mutate};

/// A value as the schema wants it.
fn fitting(rng: &mut Rng, schema: &Value) -> Value {
    if let Some(options) = schema["enum"].as_array().filter(|options| !options.is_empty()) {
        return rng.pick(options).clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!(mutate::any_string(rng)),
        Some("integer") => match schema["minimum"].as_i64() {
            Some(least) => json!(rng.pick(&[least, least.saturating_add(1), 1000, i64::MAX])),
            None => json!(rng.pick(&[i64::MIN, -1, 0, 1, 1000, i64::MAX])),
        },
        Some("number") => mutate::any_number(rng),
        Some("boolean") => json!(rng.one_in(2)),
        Some("array") => (0..rng.below(4)).map(|_| fitting(rng, &schema["items"])).collect(),
        Some("object") => match schema["properties"].as_object() {
            Some(properties) => {
                let mut map = Map::new();
                for (name, property) in properties {
                    let required = schema["required"]
                        .as_array()
                        .is_some_and(|names| names.iter().any(|n| n == name));
                    if required || rng.one_in(2) {
                        map.insert(name.clone(), fitting(rng, property));
                    }
                }
                Value::Object(map)
            }
            None => {
                let values = schema
                    .get("additionalProperties")
                    .filter(|s| s.is_object())
                    .unwrap_or(&Value::Null);
                Value::Object(
                    (0..rng.below(4))
                        .map(|_| (mutate::any_string(rng), fitting(rng, values)))
                        .collect(),
                )
            }
        },
        _ => mutate::any_value(rng, 2),
    }
}

/// Whether the schema forbids a value for certain. `null` stands for an argument that was left out.
fn forbids(schema: &Value, value: &Value) -> bool {
    if value.is_null() {
        return false;
    }
    let wrong_type = match schema["type"].as_str() {
        Some("string") => !value.is_string(),
        Some("integer") => !value.is_number(),
        Some("number") => !value.is_number(),
        Some("boolean") => !value.is_boolean(),
        Some("array") => !value.is_array(),
        Some("object") => !value.is_object(),
        _ => false,
    };
    let not_an_option = schema["enum"].as_array().is_some_and(|options| !options.contains(value));
    let below = schema["type"] == "integer"
        && schema["minimum"].as_f64() > value.as_f64()
        && value.is_number();
    let inside = match value {
        Value::Object(map) => forbids_members(schema, map),
        Value::Array(items) => {
            items.iter().any(|item| !item.is_null() && forbids(&schema["items"], item))
        }
        _ => false,
    };
    wrong_type || not_an_option || below || inside
}

fn forbids_members(schema: &Value, map: &Map<String, Value>) -> bool {
    let properties = schema["properties"].as_object();
    let missing = schema["required"].as_array().is_some_and(|names| {
        names.iter().filter_map(Value::as_str).any(|name| !map.contains_key(name))
    });
    let member = |name: &String, value: &Value| match properties
        .and_then(|properties| properties.get(name))
    {
        Some(property) => forbids(property, value),
        None => match &schema["additionalProperties"] {
            Value::Bool(allowed) => !allowed,
            more => more.is_object() && forbids(more, value),
        },
    };
    missing || map.iter().any(|(name, value)| member(name, value))
}

#[test]
fn arguments_are_checked_without_a_panic_and_in_few_words() {
    let stage = Stage::new();
    let flags = ConfigFlags {
        root: Some(stage.root()),
        workspace: Some(stage.workspace()),
        ..ConfigFlags::default()
    };
    let config = resolve_config(&flags, &ProcessEnv::new([("HOME", "/nonexistent")], "/")).unwrap();
    prepare_root(&config).unwrap();
    let server = Server::new(config).unwrap();
    let line = server.connect_client(Principal::local(), "stdio").unwrap();
    let cx = PrepareCx {
        state: &line.state,
        workspace: &line.session().workspace,
        overrides: &Overrides::default(),
        config: &server.config,
        sandbox: &server.pipeline.state().sandbox,
    };
    let (mut refused, mut taken, mut forbidden) = (0u64, 0u64, 0u64);
    each_case("arguments", 20_000, |rng| {
        let state = server.pipeline.state();
        let tool = rng.pick(state.registry.listed_tools());
        let schema = Value::Object((*tool.spec().input_schema).clone());
        let mut arguments = fitting(rng, &schema);
        for _ in 0..rng.below(4) {
            mutate::spoil(rng, &mut arguments);
        }
        // Anything else than an object does not come so far.
        let Value::Object(map) = arguments else { return };
        let text = json!({&tool.spec().name: &map}).to_string();
        let about = Shown(text.as_bytes());
        let result = catch_unwind(AssertUnwindSafe(|| tool.check_call(&map, &cx)));
        match result.unwrap_or_else(|_| panic!("prepare panicked on {about:?}")) {
            Err(error) => {
                refused += 1;
                assert_error_body(&error.to_body(&TraceId::generate()), &about);
                assert_ne!(error.kind(), Kind::Internal, "{error:?} for {about:?}");
            }
            Ok(_) => {
                taken += 1;
                assert!(
                    !forbids_members(&schema, &map),
                    "the schema forbids it and it was taken: {about:?}"
                );
            }
        }
        forbidden += u64::from(forbids_members(&schema, &map));
    });
    println!("arguments: {refused} refused ({forbidden} against their schema), {taken} taken");
    assert!(refused > 0 && taken > 0, "the cases are one-sided");
}
