//! Client overrides for commands: set once for the session (`ringfence/session/update`), with a
//! call in `_meta`, or in the headers of an HTTP request. The module of the same name in `call`
//! checks whether the operator allows them.

use std::collections::BTreeMap;

use http::HeaderMap;
use rmcp::model::RequestMetaObject;
use serde::Deserialize;
use serde_json::{Value, json};

use super::meta;
use crate::base::{Error, Result};
use crate::call::{PipelineState, overrides};
use crate::session::{Overrides, Session};

/// Method that updates the overrides of a session.
pub const UPDATE_METHOD: &str = "ringfence/session/update";
/// HTTP header with a directory, which applies to its request.
pub const CWD_HEADER: &str = "ringfence-cwd-override";
/// HTTP header with a JSON object of variables, which apply to their request.
pub const ENV_HEADER: &str = "ringfence-env-overrides";

/// Parameters of an update. A missing member leaves its value unchanged; null removes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverridesUpdate {
    #[serde(default, deserialize_with = "deserialize_given")]
    cwd_override: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_given")]
    env_overrides: Option<Option<BTreeMap<String, String>>>,
    #[serde(default, rename = "_meta")]
    _meta: Value,
}

fn deserialize_given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

/// Applies an update, completely or not at all, and returns the overrides that are now in effect.
pub fn update_session(
    params: Option<&Value>,
    session: &Session,
    state: &PipelineState,
) -> Result<Value> {
    let params = params.cloned().unwrap_or_else(|| json!({}));
    let update: OverridesUpdate = serde_json::from_value(params).map_err(|error| {
        Error::invalid_arguments(format!("invalid parameters for `{UPDATE_METHOD}`"))
            .with_hint("Give `cwd_override` (a string or null) and `env_overrides` (an object of strings, or null).")
            .with_source(error)
    })?;
    let mut new_overrides = Overrides::clone(&session.overrides());
    if let Some(cwd) = update.cwd_override {
        new_overrides.cwd = cwd;
    }
    if let Some(env) = update.env_overrides {
        new_overrides.env = env.unwrap_or_default().into_iter().collect();
    }
    let checked = overrides::check_overrides(&new_overrides, &state.config, &session.workspace)?;
    session.set_overrides(checked);
    Ok(overrides::describe_overrides(&session.overrides()))
}

/// Returns the overrides of a request: its `_meta` takes precedence over its headers.
pub fn read_request(
    request_meta: &RequestMetaObject,
    headers: Option<&HeaderMap>,
) -> Result<Overrides> {
    let invalid_error = |label: &str| {
        Error::invalid_arguments(format!("{label} is invalid"))
            .with_hint("A directory is a string; variables are an object of strings.")
    };
    let variables = |value: Value, label: &str| -> Result<Vec<(String, String)>> {
        let map: BTreeMap<String, String> =
            serde_json::from_value(value).map_err(|_| invalid_error(label))?;
        Ok(map.into_iter().collect())
    };
    let header = |name: &str| -> Result<Option<String>> {
        let value = headers.and_then(|headers| headers.get(name));
        value
            .map(|value| value.to_str().map(str::to_owned).map_err(|_| invalid_error(name)))
            .transpose()
    };
    let from_headers = Overrides {
        cwd: header(CWD_HEADER)?,
        env: match header(ENV_HEADER)? {
            Some(text) => variables(
                serde_json::from_str(&text).map_err(|_| invalid_error(ENV_HEADER))?,
                ENV_HEADER,
            )?,
            None => Vec::new(),
        },
    };
    let from_meta = Overrides {
        cwd: match request_meta.get(meta::CWD_OVERRIDE) {
            None | Some(Value::Null) => None,
            Some(Value::String(cwd)) => Some(cwd.clone()),
            Some(_) => return Err(invalid_error(meta::CWD_OVERRIDE)),
        },
        env: match request_meta.get(meta::ENV_OVERRIDES) {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => variables(value.clone(), meta::ENV_OVERRIDES)?,
        },
    };
    Ok(overrides::merge_overrides(from_meta, &from_headers))
}
