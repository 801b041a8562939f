//! Resolves a ref or selector to an element, and finds the point where it can be clicked.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::cdp::CdpConnection;
use super::page::BrowserPage;
use super::page_log::escape_line;
use super::refs;
use crate::base::{Error, Kind, Result};

/// Interval between two checks of an element that is not ready yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Element of a page, with its object in our isolated world and its node id.
pub struct PageElement {
    /// The element's object in our isolated world.
    pub object: RemoteObject,
    /// The browser's id of the node.
    pub backend_node: i64,
    /// Number of other elements that the selector matches.
    pub other_matches: u64,
}

/// Object in a page; released when this is dropped.
pub struct RemoteObject {
    id: String,
    connection: CdpConnection,
    session: String,
}

impl std::ops::Deref for RemoteObject {
    type Target = str;

    fn deref(&self) -> &str {
        &self.id
    }
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        if !self.connection.is_closed() {
            self.connection.send_command(
                Some(&self.session),
                "Runtime.releaseObject",
                json!({"objectId": self.id}),
            );
        }
    }
}

/// Finds the first visible match, or else the first match.
const FIND_SCRIPT: &str = r#"(function(q){
  const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 && getComputedStyle(e).visibility !== 'hidden'; };
  let all = [];
  if (q.startsWith('text=')) {
    const squeeze = t => (t || '').replace(/\s+/g, ' ').trim().toLowerCase();
    const want = squeeze(q.slice(5));
    const has = e => squeeze(e.innerText ?? e.textContent).includes(want) || (e.matches('input[type=submit],input[type=button]') && squeeze(e.value).includes(want));
    const walk = root => { for (const e of root.querySelectorAll('*')) { if (['SCRIPT','STYLE','HEAD','TITLE'].includes(e.tagName)) continue; if (has(e) && ![...e.children].some(has)) all.push(e); if (e.shadowRoot) walk(e.shadowRoot); } };
    if (want) walk(document.body || document);
  } else all = [...document.querySelectorAll(q)];
  const hit = all.find(seen) || all[0] || null;
  return {hit, others: Math.max(0, all.length - 1)};
})"#;

/// Checks whether a click would reach the element, and if not, what is in the way.
const REACH_SCRIPT: &str = r#"function(){
  const e = this.nodeType === 1 ? this : this.parentElement;
  if (!e || !e.isConnected) return {why: 'stale'};
  const r = [...e.getClientRects()].find(r => r.width > 0 && r.height > 0);
  if (!r || getComputedStyle(e).visibility === 'hidden') return {why: 'not_visible'};
  if (e.disabled || e.closest('fieldset:disabled') && e.matches('button,input,select,textarea')) return {why: 'disabled'};
  const x = r.left + r.width / 2, y = r.top + r.height / 2;
  const root = e.getRootNode();
  const hit = (root.elementFromPoint ? root : document).elementFromPoint(x, y);
  if (!hit || hit === e || e.contains(hit)) return {why: null};
  const label = hit.closest && hit.closest('label');
  if (label && (label.control === e || label.contains(e))) return {why: null};
  if (hit.contains(e) && hit.shadowRoot) return {why: null};
  const shown = hit.tagName.toLowerCase() + (hit.id ? '#' + hit.id : '') + (hit.classList.length ? '.' + hit.classList[0] : '');
  return {why: 'obscured', by: shown.slice(0, 80)};
}"#;

impl BrowserPage {
    /// Returns the element that a ref (`e12`), a CSS selector or `text=…` names.
    pub async fn find_element(&self, target: &str) -> Result<PageElement> {
        if refs::parse_ref(target).is_some() {
            return self.find_ref(target).await;
        }
        let selector = serde_json::to_string(target).unwrap_or_default();
        let expression = format!("{FIND_SCRIPT}({selector})");
        let world = self.isolated_world(None).await?;
        let answer = self
            .call_method("Runtime.evaluate", json!({"expression": expression, "contextId": world}))
            .await?;
        if let Some(exception) = answer.get("exceptionDetails") {
            return Err(Error::invalid_arguments(format!(
                "`target` is not a valid selector: {}",
                super::page::exception_text(exception)
            ))
            .with_hint("Use a ref of browser.snapshot (e12), a CSS selector, or text=some words.")
            .with_fact("argument", "target"));
        }
        let search_result =
            self.remote_object(&answer["result"]).ok_or_else(|| no_match_error(target))?;
        let other_matches = self
            .call_function_on(&search_result, "function(){ return this.others }", json!([]))
            .await?;
        let params = json!({"objectId": &*search_result, "functionDeclaration": "function(){ return this.hit }"});
        let hit = self.call_method("Runtime.callFunctionOn", params).await?;
        let object = self.remote_object(&hit["result"]).ok_or_else(|| no_match_error(target))?;
        let node_description =
            self.call_method("DOM.describeNode", json!({"objectId": &*object})).await?;
        let backend_node = node_description["node"]["backendNodeId"].as_i64().unwrap_or(0);
        Ok(PageElement { object, backend_node, other_matches: other_matches.as_u64().unwrap_or(0) })
    }

    /// Takes ownership of an object that the browser has just returned.
    pub fn remote_object(&self, object: &Value) -> Option<RemoteObject> {
        let id = object["objectId"].as_str()?.to_owned();
        Some(RemoteObject {
            id,
            connection: self.connection.clone(),
            session: self.session.clone(),
        })
    }

    /// Returns the element's object in the world of the page's own scripts.
    pub async fn page_object(&self, element: &PageElement) -> Result<RemoteObject> {
        let resolved_node = self
            .call_method("DOM.resolveNode", json!({"backendNodeId": element.backend_node}))
            .await?;
        self.remote_object(&resolved_node["object"]).ok_or_else(|| refs::stale_error("target"))
    }

    async fn find_ref(&self, name: &str) -> Result<PageElement> {
        let node = {
            let state = self.state();
            let node = state.refs.find_node(name)?;
            let current_document =
                state.frames.get(&node.frame).map(|frame| frame.document.as_str());
            if current_document.is_some_and(|document| document != node.document) {
                return Err(refs::stale_error(name));
            }
            node
        };
        let resolution = async {
            let world = self.isolated_world(Some(&node.frame)).await?;
            let params = json!({"backendNodeId": node.backend_node, "executionContextId": world});
            self.call_method("DOM.resolveNode", params).await
        };
        let resolution = resolution.await;
        let resolution = resolution.map_err(|error| {
            if error.kind() == Kind::Conflict { refs::stale_error(name) } else { error }
        })?;
        let object =
            self.remote_object(&resolution["object"]).ok_or_else(|| refs::stale_error(name))?;
        if self
            .call_function_on(&object, "function(){ return this.isConnected }", json!([]))
            .await?
            != json!(true)
        {
            return Err(refs::stale_error(name));
        }
        Ok(PageElement { object, backend_node: node.backend_node, other_matches: 0 })
    }

    /// Returns the point to click, in window coordinates. Waits until the element can be clicked,
    /// or returns what is in the way.
    pub async fn wait_clickable(
        &self,
        element: &PageElement,
        name: &str,
        deadline: Instant,
    ) -> Result<(f64, f64)> {
        loop {
            // An element without a box cannot be scrolled to; the check below reports that.
            let _ = self
                .call_method(
                    "DOM.scrollIntoViewIfNeeded",
                    json!({"backendNodeId": element.backend_node}),
                )
                .await;
            let reachability =
                self.call_function_on(&element.object, REACH_SCRIPT, json!([])).await?;
            match reachability["why"].as_str() {
                None => return self.click_point(element).await,
                Some("stale") => return Err(refs::stale_error(name)),
                Some(obstacle) if Instant::now() + RETRY_INTERVAL >= deadline => {
                    return Err(blocked_error(name, obstacle, &reachability["by"]));
                }
                Some(_) => sleep_until(Instant::now() + RETRY_INTERVAL).await,
            }
        }
    }

    async fn click_point(&self, element: &PageElement) -> Result<(f64, f64)> {
        self.box_centre(element)
            .await?
            .ok_or_else(|| blocked_error("the element", "not_visible", &Value::Null))
    }

    /// Returns the centre of the element's first box that has an area, in window coordinates.
    pub async fn box_centre(&self, element: &PageElement) -> Result<Option<(f64, f64)>> {
        let quads = self
            .call_method("DOM.getContentQuads", json!({"backendNodeId": element.backend_node}))
            .await?;
        let corners = |quad: &Value| -> Option<Vec<f64>> {
            quad.as_array()?.iter().map(Value::as_f64).collect()
        };
        let mut quads = quads["quads"].as_array().into_iter().flatten().filter_map(corners);
        let spread = |quad: &[f64], axis: usize| {
            let coordinates = || quad.iter().skip(axis).step_by(2).copied();
            coordinates().fold(f64::NEG_INFINITY, f64::max)
                - coordinates().fold(f64::INFINITY, f64::min)
        };
        let quad =
            quads.find(|quad| quad.len() == 8 && spread(quad, 0) >= 1.0 && spread(quad, 1) >= 1.0);
        let mean = |quad: &[f64], axis: usize| quad.iter().skip(axis).step_by(2).sum::<f64>() / 4.0;
        Ok(quad.map(|quad| (mean(&quad, 0), mean(&quad, 1))))
    }
}

fn no_match_error(target: &str) -> Error {
    Error::new(
        Kind::NotFound,
        format!("nothing on the page matches {}", crate::base::workspace::quote_path(target)),
    )
    .with_reason("no_match")
    .with_hint(
        "Look at the page with browser.snapshot and use its refs, or wait for it with op wait_for.",
    )
}

fn blocked_error(name: &str, obstacle: &str, obscured_by: &Value) -> Error {
    let name = crate::base::workspace::quote_path(name);
    let error = |reason, message: String| Error::new(Kind::Conflict, message).with_reason(reason);
    match obstacle {
        "disabled" => error("disabled", format!("{name} is disabled"))
            .with_hint("Fill in what it depends on, or wait until it is enabled."),
        "obscured" => error(
            "obscured",
            format!(
                "{name} is covered by {}",
                escape_line(obscured_by.as_str().unwrap_or("something"))
            ),
        )
        .with_hint("Close what covers it (a dialog, a banner), or scroll."),
        _ => error("not_visible", format!("{name} is not visible"))
            .with_hint("Open what contains it, or choose another element from browser.snapshot."),
    }
}
