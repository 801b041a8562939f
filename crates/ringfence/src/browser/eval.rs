//! Runs a caller's script in a page: statements, an expression or a function. Promises are awaited,
//! and the value is bounded before it leaves the page.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::page::{BrowserPage, exception_text};
use crate::base::{Error, Kind, Result};

/// Converts any value to JSON of bounded size.
const BOUND_SCRIPT: &str = r#"function(most){
  const seen = new WeakSet(); let left = most, cut = false;
  const plain = (v, depth) => {
    if (left <= 0) { cut = true; return null; }
    left -= 8;
    switch (typeof v) {
      case 'string': { const t = v.length > left ? (cut = true, v.slice(0, Math.max(0, left))) : v; left -= t.length; return t; }
      case 'bigint': return v.toString() + 'n';
      case 'number': return Number.isFinite(v) ? v : String(v);
      case 'undefined': return null;
      case 'function': return 'function ' + v.name;
      case 'symbol': return v.toString();
      case 'boolean': return v;
    }
    if (v === null) return null;
    if (seen.has(v)) return '[circular]';
    if (depth > 12) { cut = true; return '[deep]'; }
    seen.add(v);
    try {
      if (v instanceof Node) return v.nodeType === 1 ? v.outerHTML.slice(0, 200) : v.nodeName;
      if (v instanceof Error) return v.name + ': ' + v.message;
      if (v instanceof Date) return isNaN(v) ? 'Invalid Date' : v.toISOString();
      if (v instanceof RegExp) return v.toString();
      if (v instanceof Map) return [...v].map(e => plain(e, depth + 1));
      if (v instanceof Set || v instanceof NodeList || v instanceof HTMLCollection || Array.isArray(v) || ArrayBuffer.isView(v)) {
        const out = []; for (const e of v) { if (left <= 0) { cut = true; break; } out.push(plain(e, depth + 1)); } return out;
      }
      if (typeof v.toJSON === 'function') return plain(v.toJSON(), depth + 1);
      const out = {};
      for (const k of Object.keys(v)) { if (left <= 0) { cut = true; break; } left -= k.length; let f; try { f = v[k]; } catch (e) { f = '[throws]'; } if (typeof f !== 'function') out[k] = plain(f, depth + 1); }
      return out;
    } finally { seen.delete(v); }
  };
  const value = plain(this, 0);
  return {value, cut};
}"#;

/// Value of a script.
#[derive(Debug)]
pub struct EvalResult {
    /// The value as JSON.
    pub value: Value,
    /// JavaScript type: undefined, string, number, object …
    pub js_type: String,
    /// True if the value was truncated.
    pub truncated: bool,
}

impl BrowserPage {
    /// Runs a script and returns its value, or what it threw. With a target, the script is a
    /// function of that element.
    pub async fn eval_script(
        &self,
        script: &str,
        target: Option<&str>,
        max_bytes: usize,
        timeout: Duration,
    ) -> Result<EvalResult> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let mut answer = match target {
            None => self.evaluate_expression(script, timeout_ms).await?,
            Some(target) => {
                let object = self.page_object(&self.find_element(target).await?).await?;
                self.call_on_object(&object, &wrap_as_function(script), timeout).await?
            }
        };
        if answer["result"]["type"] == "function"
            && let Some(object) = answer["result"]["objectId"].as_str()
        {
            answer = self.call_on_object(object, "function(){ return this() }", timeout).await?;
        }
        // A script with statements returns a promise that has not been awaited.
        if answer["result"]["subtype"] == "promise"
            && let Some(object) = answer["result"]["objectId"].as_str()
        {
            answer = self
                .call_with_timeout(
                    "Runtime.awaitPromise",
                    json!({"promiseObjectId": object}),
                    timeout,
                )
                .await?;
            if let Some(exception) = answer.get("exceptionDetails") {
                return Err(script_error(&exception_text(exception)));
            }
        }
        self.bound_result(&answer["result"], max_bytes).await
    }

    async fn evaluate_expression(&self, script: &str, timeout_ms: u64) -> Result<Value> {
        let params = |expression: &str| {
            json!({
                "expression": expression, "awaitPromise": true, "replMode": true, "userGesture": true,
                "timeout": timeout_ms, "objectGroup": "eval",
            })
        };
        let (started, timeout) = (Instant::now(), Duration::from_millis(timeout_ms));
        let answer = match self.call_with_timeout("Runtime.evaluate", params(script), timeout).await
        {
            // The browser reports a script that it terminated only as a failed call.
            Err(error)
                if error.kind() == Kind::Conflict
                    && started.elapsed().as_millis() >= u128::from(timeout_ms) =>
            {
                return Err(script_error("Execution was terminated"));
            }
            answer => answer?,
        };
        let Some(exception) = answer.get("exceptionDetails") else { return Ok(answer) };
        let text = exception_text(exception);
        let retry = match () {
            // The script is a function body, or an object literal that was parsed as a block.
            () if text.contains("Illegal return statement") => {
                format!("(async () => {{ {script}\n}})()")
            }
            () if text.starts_with("SyntaxError") && script.trim_start().starts_with('{') => {
                format!("({script}\n)")
            }
            () => return Err(script_error(&text)),
        };
        let answer = self.call_with_timeout("Runtime.evaluate", params(&retry), timeout).await?;
        match answer.get("exceptionDetails") {
            Some(exception) => Err(script_error(&exception_text(exception))),
            None => Ok(answer),
        }
    }

    async fn call_on_object(
        &self,
        object: &str,
        function: &str,
        timeout: Duration,
    ) -> Result<Value> {
        let params = json!({
            "objectId": object, "functionDeclaration": function, "arguments": [{"objectId": object}],
            "awaitPromise": true, "userGesture": true, "objectGroup": "eval",
        });
        let answer = self.call_with_timeout("Runtime.callFunctionOn", params, timeout).await?;
        match answer.get("exceptionDetails") {
            Some(exception) => Err(script_error(&exception_text(exception))),
            None => Ok(answer),
        }
    }

    async fn bound_result(&self, result: &Value, max_bytes: usize) -> Result<EvalResult> {
        let js_type = result["type"].as_str().unwrap_or("undefined").to_owned();
        let Some(object) = result["objectId"].as_str() else {
            let plain_value =
                result.get("value").or_else(|| result.get("unserializableValue")).cloned();
            let (value, truncated) = match plain_value.unwrap_or(Value::Null) {
                Value::String(text) if text.len() > max_bytes => {
                    (Value::from(super::page_log::truncate_text(&text, max_bytes)), true)
                }
                other => (other, false),
            };
            let js_type = if result["subtype"] == "null" { "null".to_owned() } else { js_type };
            return Ok(EvalResult { value, js_type, truncated });
        };
        let bounded =
            self.call_function_on(object, BOUND_SCRIPT, json!([{"value": max_bytes}])).await;
        self.connection.send_command(
            Some(&self.session),
            "Runtime.releaseObjectGroup",
            json!({"objectGroup": "eval"}),
        );
        let mut bounded = bounded?;
        let js_type = result["subtype"].as_str().map_or(js_type, str::to_owned);
        Ok(EvalResult {
            value: bounded["value"].take(),
            js_type,
            truncated: bounded["cut"] == true,
        })
    }
}

/// Wraps a script as a function of `el`. `el => el.value` and `function (el) {…}` are functions
/// already.
fn wrap_as_function(script: &str) -> String {
    let trimmed = script.trim();
    let is_function = ["function", "async function", "async (", "async("]
        .iter()
        .any(|prefix| trimmed.starts_with(prefix))
        || trimmed.split_once("=>").is_some_and(|(parameters, _)| {
            let parameters = parameters.trim();
            parameters.starts_with('(') && parameters.ends_with(')')
                || parameters.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$'))
        });
    match is_function {
        true => format!("function(el){{ return ({trimmed}\n)(el) }}"),
        false => format!("function(el){{ return ({trimmed}\n) }}"),
    }
}

fn script_error(text: &str) -> Error {
    match text {
        text if text.contains("Execution was terminated") => {
            Error::new(Kind::DeadlineExceeded, "the script ran too long and was terminated")
                .with_hint("Raise `timeout_ms`, or do less in one script.")
        }
        text => Error::new(Kind::InvalidArguments, format!("the script threw: {text}"))
            .with_reason("exception")
            .with_hint("Correct the script. Statements, an expression or a function are fine, and `await` works."),
    }
}
