//! What a client wants to choose for its commands: told once for its session (`ringfence/session/update`), with a call
//! in `_meta`, or in the headers of an HTTP request. Whether it may is the operator's word (`call::shape`).

use std::collections::BTreeMap;

use rmcp::model::{Extensions, RequestMetaObject};
use serde::Deserialize;
use serde_json::{Value, json};

use super::meta;
use crate::base::{Error, Result};
use crate::call::{State, shape};
use crate::session::{Session, Shape};

pub const UPDATE: &str = "ringfence/session/update";
/// Of an HTTP request: a directory, and a JSON object of variables. They count for that request.
pub const CWD_HEADER: &str = "ringfence-cwd-override";
pub const ENV_HEADER: &str = "ringfence-env-overrides";

/// The parameters of an update: what is not named stays, null takes it back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    #[serde(default, deserialize_with = "given")]
    cwd_override: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    env_overrides: Option<Option<BTreeMap<String, String>>>,
    #[serde(default, rename = "_meta")]
    _meta: Value,
}

fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

/// Takes an update, whole or not at all, and answers with what holds from now on.
pub fn update(params: Option<&Value>, session: &Session, state: &State) -> Result<Value> {
    let params = params.cloned().unwrap_or_else(|| json!({}));
    let update: Update = serde_json::from_value(params).map_err(|error| {
        Error::invalid_arguments(format!("the parameters of `{UPDATE}` do not fit"))
            .hint("Give `cwd_override` (text or null) and `env_overrides` (an object of texts, or null).")
            .source(error)
    })?;
    let mut wanted = Shape::clone(&session.shape());
    if let Some(cwd) = update.cwd_override {
        wanted.cwd = cwd;
    }
    if let Some(env) = update.env_overrides {
        wanted.env = env.unwrap_or_default().into_iter().collect();
    }
    let checked = shape::check(&wanted, &state.config, &session.workspace)?;
    session.set_shape(checked);
    Ok(shape::about(&session.shape()))
}

/// What a request itself wants: its `_meta` over its headers.
pub fn of_request(about: &RequestMetaObject, extensions: &Extensions) -> Result<Shape> {
    let unfit = |what: &str| {
        Error::invalid_arguments(format!("{what} does not fit"))
            .hint("A directory is text, variables are an object of texts.")
    };
    let variables = |value: Value, what: &str| -> Result<Vec<(String, String)>> {
        let map: BTreeMap<String, String> =
            serde_json::from_value(value).map_err(|_| unfit(what))?;
        Ok(map.into_iter().collect())
    };
    let headers = extensions.get::<::http::request::Parts>().map(|parts| &parts.headers);
    let header = |name: &str| -> Result<Option<String>> {
        let value = headers.and_then(|headers| headers.get(name));
        value.map(|value| value.to_str().map(str::to_owned).map_err(|_| unfit(name))).transpose()
    };
    let from_headers = Shape {
        cwd: header(CWD_HEADER)?,
        env: match header(ENV_HEADER)? {
            Some(text) => {
                variables(serde_json::from_str(&text).map_err(|_| unfit(ENV_HEADER))?, ENV_HEADER)?
            }
            None => Vec::new(),
        },
    };
    let from_meta = Shape {
        cwd: match about.get(meta::CWD_OVERRIDE) {
            None | Some(Value::Null) => None,
            Some(Value::String(cwd)) => Some(cwd.clone()),
            Some(_) => return Err(unfit(meta::CWD_OVERRIDE)),
        },
        env: match about.get(meta::ENV_OVERRIDES) {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => variables(value.clone(), meta::ENV_OVERRIDES)?,
        },
    };
    Ok(shape::over(from_meta, &from_headers))
}
