//! User actions on a page: mouse, keyboard, forms, drag and drop, uploads.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::element::PageElement;
use super::keys;
use super::page::{BrowserPage, DialogAnswers};
use super::page_log::escape_line;
use crate::base::{Error, Kind, Result};

/// Maximum number of characters typed key by key.
const MAX_TYPED_CHARS: usize = 10_000;
/// Time for a page to start whatever it does in response to an action.
const SETTLE_TIME: Duration = Duration::from_millis(300);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActOp {
    Click,
    DoubleClick,
    Hover,
    Type,
    Fill,
    Press,
    Select,
    Check,
    Uncheck,
    Scroll,
    Drag,
    Upload,
    WaitFor,
    Back,
    Forward,
    Reload,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MouseButton {
    #[default]
    Left,
    Right,
    Middle,
}

/// Element found by a ref or selector, with the name the caller used for it.
struct NamedElement<'a> {
    element: PageElement,
    name: &'a str,
}

/// Intercepts drags until dropped, even if the call is cancelled.
struct DragInterception<'a>(&'a BrowserPage);

impl Drop for DragInterception<'_> {
    fn drop(&mut self) {
        self.0.state().drag_data = None;
        self.0.connection.send_command(
            Some(&self.0.session),
            "Input.setInterceptDrags",
            json!({"enabled": false}),
        );
    }
}

/// Answers dialogs as a call asked for until dropped, even if the call is cancelled.
pub struct DialogAnswering<'a>(&'a BrowserPage);

impl Drop for DialogAnswering<'_> {
    fn drop(&mut self) {
        self.0.state().answers = DialogAnswers::default();
    }
}

impl BrowserPage {
    /// Sets how dialogs are answered until the returned guard is dropped.
    pub fn answer_dialogs(&self, answers: DialogAnswers) -> DialogAnswering<'_> {
        self.state().answers = answers;
        DialogAnswering(self)
    }

    async fn wait_for_element<'a>(
        &self,
        target: &'a str,
        deadline: Instant,
    ) -> Result<NamedElement<'a>> {
        loop {
            match self.find_element(target).await {
                Ok(element) => return Ok(NamedElement { element, name: target }),
                // An element that does not exist yet may appear.
                Err(error)
                    if error.kind() == Kind::NotFound
                        && Instant::now() + RETRY_INTERVAL < deadline =>
                {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn send_mouse_event(
        &self,
        kind: &str,
        position: (f64, f64),
        extra_params: Value,
    ) -> Result<()> {
        let mut event = json!({"type": kind, "x": position.0, "y": position.1});
        for (name, value) in extra_params.as_object().into_iter().flatten() {
            event[name] = value.clone();
        }
        self.call_method("Input.dispatchMouseEvent", event).await.map(drop)
    }

    /// Clicks an element once it can be clicked. Like most actions here, returns the number of
    /// other elements that match the target.
    pub async fn click_element(
        &self,
        target: &str,
        button: MouseButton,
        count: u32,
        deadline: Instant,
    ) -> Result<u64> {
        let found = self.wait_for_element(target, deadline).await?;
        let position = self.wait_clickable(&found.element, found.name, deadline).await?;
        self.click_at(position, button, count).await?;
        Ok(found.element.other_matches)
    }

    async fn click_at(&self, position: (f64, f64), button: MouseButton, count: u32) -> Result<()> {
        let (name, bit) = match button {
            MouseButton::Left => ("left", 1),
            MouseButton::Right => ("right", 2),
            MouseButton::Middle => ("middle", 4),
        };
        self.send_mouse_event("mouseMoved", position, json!({})).await?;
        for click in 1..=count {
            self.send_mouse_event(
                "mousePressed",
                position,
                json!({"button": name, "buttons": bit, "clickCount": click}),
            )
            .await?;
            self.send_mouse_event(
                "mouseReleased",
                position,
                json!({"button": name, "clickCount": click}),
            )
            .await?;
        }
        Ok(())
    }

    /// Moves the mouse over an element.
    pub async fn hover_element(&self, target: &str, deadline: Instant) -> Result<u64> {
        let found = self.wait_for_element(target, deadline).await?;
        let position = self.wait_clickable(&found.element, found.name, deadline).await?;
        self.send_mouse_event("mouseMoved", position, json!({})).await?;
        Ok(found.element.other_matches)
    }

    /// Replaces the text of a field.
    pub async fn fill_element(&self, target: &str, text: &str, deadline: Instant) -> Result<u64> {
        const READY: &str = r#"function(text){
          let e = this; if (e.tagName === 'LABEL' && e.control) e = e.control;
          if (e.disabled) return 'disabled';
          if (e.readOnly) return 'readonly';
          if (e.tagName === 'SELECT') return 'select';
          const kind = e.tagName === 'INPUT' ? e.type : '';
          if (['checkbox','radio','file','button','submit','image','reset'].includes(kind)) return 'other';
          e.focus();
          if (['date','time','datetime-local','month','week','color','range'].includes(kind)) {
            const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set; set.call(e, text);
            if (e.value !== text) return 'malformed';
            e.dispatchEvent(new Event('input', {bubbles: true, composed: true})); e.dispatchEvent(new Event('change', {bubbles: true}));
            return 'done';
          }
          if (e.tagName === 'INPUT' || e.tagName === 'TEXTAREA') { e.select(); return 'type'; }
          if (e.isContentEditable) { const r = document.createRange(); r.selectNodeContents(e); const s = getSelection(); s.removeAllRanges(); s.addRange(r); return 'type'; }
          return 'other';
        }"#;
        let found = self.wait_for_element(target, deadline).await?;
        let outcome =
            self.call_function_on(&found.element.object, READY, json!([{"value": text}])).await?;
        let conflict = |reason, message: &str, hint: &str| {
            Err(Error::new(
                Kind::Conflict,
                format!("{} {message}", crate::base::workspace::quote_path(target)),
            )
            .with_reason(reason)
            .with_hint(hint))
        };
        match outcome.as_str().unwrap_or_default() {
            "type" if text.is_empty() => {
                self.send_stroke(&keys::parse_combination("Delete")?).await?
            }
            "type" => drop(self.call_method("Input.insertText", json!({"text": text})).await?),
            "done" => {}
            "disabled" => {
                return conflict("disabled", "is disabled", "Fill in what it depends on first.");
            }
            "readonly" => {
                return conflict("disabled", "is read-only", "Find out what fills it in.");
            }
            "select" => {
                return conflict(
                    "wrong_element",
                    "is a list of choices",
                    "Use op select with `values`.",
                );
            }
            "malformed" => {
                return conflict(
                    "wrong_value",
                    "does not accept this text",
                    "Dates are 2026-12-31, times 23:59.",
                );
            }
            _ => {
                return conflict(
                    "wrong_element",
                    "does not accept text",
                    "Choose a textbox from browser.snapshot.",
                );
            }
        }
        Ok(found.element.other_matches)
    }

    /// Types text key by key into the target, or into the focused element.
    pub async fn type_text(
        &self,
        target: Option<&str>,
        text: &str,
        deadline: Instant,
    ) -> Result<u64> {
        if text.chars().count() > MAX_TYPED_CHARS {
            return Err(Error::invalid_arguments(format!(
                "at most {MAX_TYPED_CHARS} characters can be typed key by key"
            ))
            .with_hint("Use op fill for long text."));
        }
        let other_matches = self.focus_element(target, deadline).await?;
        for letter in text.chars() {
            self.send_stroke(&keys::character_stroke(letter, 0)).await?;
        }
        Ok(other_matches)
    }

    /// Presses a key or key combination.
    pub async fn press_key(
        &self,
        target: Option<&str>,
        key: &str,
        deadline: Instant,
    ) -> Result<u64> {
        let stroke = keys::parse_combination(key)?;
        let other_matches = self.focus_element(target, deadline).await?;
        self.send_stroke(&stroke).await?;
        Ok(other_matches)
    }

    async fn focus_element(&self, target: Option<&str>, deadline: Instant) -> Result<u64> {
        let Some(target) = target else { return Ok(0) };
        let found = self.wait_for_element(target, deadline).await?;
        self.call_method("DOM.focus", json!({"backendNodeId": found.element.backend_node}))
            .await
            .map_err(|_| {
            Error::new(
                Kind::Conflict,
                format!("{} cannot be focused", crate::base::workspace::quote_path(target)),
            )
            .with_reason("wrong_element")
            .with_hint("Click it, or choose a textbox from browser.snapshot.")
        })?;
        Ok(found.element.other_matches)
    }

    async fn send_stroke(&self, stroke: &keys::KeyStroke) -> Result<()> {
        self.call_method("Input.dispatchKeyEvent", stroke.down.clone()).await?;
        self.call_method("Input.dispatchKeyEvent", stroke.up.clone()).await.map(drop)
    }

    /// Selects options by value or by label.
    pub async fn select_options(
        &self,
        target: &str,
        values: &[String],
        deadline: Instant,
    ) -> Result<u64> {
        const CHOOSE: &str = r#"function(values){
          if (this.tagName !== 'SELECT') return {error: 'other'};
          if (this.disabled) return {error: 'disabled'};
          const squeeze = t => t.replace(/\s+/g, ' ').trim();
          const all = [...this.options], chosen = [];
          for (const v of values) {
            const o = all.find(o => o.value === v) || all.find(o => squeeze(o.label) === squeeze(v)) || all.find(o => squeeze(o.text) === squeeze(v));
            if (!o) return {error: 'missing', value: v, all: all.slice(0, 30).map(o => squeeze(o.label || o.text).slice(0, 60))};
            chosen.push(o);
          }
          if (!this.multiple && chosen.length > 1) return {error: 'single'};
          this.focus();
          if (this.multiple) for (const o of all) o.selected = chosen.includes(o); else if (chosen[0]) chosen[0].selected = true;
          this.dispatchEvent(new Event('input', {bubbles: true, composed: true})); this.dispatchEvent(new Event('change', {bubbles: true}));
          return {};
        }"#;
        let found = self.wait_for_element(target, deadline).await?;
        let outcome = self
            .call_function_on(&found.element.object, CHOOSE, json!([{"value": values}]))
            .await?;
        let name = crate::base::workspace::quote_path(target);
        match outcome["error"].as_str() {
            None => Ok(found.element.other_matches),
            Some("missing") => {
                Err(Error::new(Kind::NotFound, format!("{name} has no such option"))
                    .with_reason("no_match")
                    .with_hint(format!(
                        "It has: {}.",
                        outcome["all"]
                            .as_array()
                            .into_iter()
                            .flatten()
                            .filter_map(Value::as_str)
                            .map(escape_line)
                            .collect::<Vec<_>>()
                            .join(", ")
                    )))
            }
            Some("single") => {
                Err(Error::invalid_arguments(format!("{name} accepts only one option")))
            }
            Some("disabled") => {
                Err(Error::new(Kind::Conflict, format!("{name} is disabled"))
                    .with_reason("disabled"))
            }
            Some(_) => Err(Error::new(Kind::Conflict, format!("{name} is not a <select>"))
                .with_reason("wrong_element")
                .with_hint("If it is a custom list, open it and choose from it with clicks.")),
        }
    }

    /// Checks or unchecks a checkbox, radio button or switch.
    pub async fn set_checked(&self, target: &str, checked: bool, deadline: Instant) -> Result<u64> {
        const CHECKED: &str = r#"function(){
          let e = this; if (e.tagName === 'LABEL' && e.control) e = e.control;
          if (e.tagName === 'INPUT' && ['checkbox','radio'].includes(e.type)) return e.checked;
          const aria = e.getAttribute && e.getAttribute('aria-checked'); return aria === null ? 'other' : aria === 'true';
        }"#;
        let found = self.wait_for_element(target, deadline).await?;
        let name = crate::base::workspace::quote_path(target);
        let current = self.call_function_on(&found.element.object, CHECKED, json!([])).await?;
        if current == "other" {
            return Err(Error::new(
                Kind::Conflict,
                format!("{name} cannot be checked or unchecked"),
            )
            .with_reason("wrong_element"));
        }
        if current != checked {
            let position = self.wait_clickable(&found.element, target, deadline).await?;
            self.click_at(position, MouseButton::Left, 1).await?;
            if self.call_function_on(&found.element.object, CHECKED, json!([])).await? != checked {
                return Err(Error::new(
                    Kind::Conflict,
                    format!("{name} was clicked but did not change"),
                )
                .with_reason("unchanged")
                .with_hint(
                    "To uncheck a radio button, check another one. Look at the page with browser.snapshot.",
                ));
            }
        }
        Ok(found.element.other_matches)
    }

    /// Scrolls the page or an element; without a distance, scrolls the element into view.
    pub async fn scroll_by(
        &self,
        target: Option<&str>,
        by: Option<(f64, f64)>,
        deadline: Instant,
    ) -> Result<u64> {
        let by =
            json!([{"value": by.map_or(0.0, |by| by.0)}, {"value": by.map_or(0.0, |by| by.1)}]);
        let has_offset = by[0]["value"] != 0.0 || by[1]["value"] != 0.0;
        match target {
            Some(target) => {
                let found = self.wait_for_element(target, deadline).await?;
                match has_offset {
                    true => {
                        let scroll = "function(x, y){ this.scrollBy({left: x, top: y, behavior: 'instant'}) }";
                        self.call_function_on(&found.element.object, scroll, by).await?;
                    }
                    false => {
                        let node = json!({"backendNodeId": found.element.backend_node});
                        self.call_method("DOM.scrollIntoViewIfNeeded", node).await?;
                    }
                }
                Ok(found.element.other_matches)
            }
            None => {
                let (x, y) = (&by[0]["value"], &by[1]["value"]);
                self.evaluate_value(
                    &format!("window.scrollBy({{left: {x}, top: {y}, behavior: 'instant'}})"),
                    false,
                )
                .await?;
                Ok(0)
            }
        }
    }

    /// Drags one element onto another, with the mouse and, if the page uses it, as HTML drag and
    /// drop.
    pub async fn drag_element(
        &self,
        target: &str,
        drop_target: &str,
        deadline: Instant,
    ) -> Result<u64> {
        let (source, destination) = (
            self.wait_for_element(target, deadline).await?,
            self.wait_for_element(drop_target, deadline).await?,
        );
        let start = self.wait_clickable(&source.element, target, deadline).await?;
        self.state().drag_data = None;
        let _intercepted = DragInterception(self);
        self.call_method("Input.setInterceptDrags", json!({"enabled": true})).await?;
        self.drag_between(start, &destination.element, drop_target)
            .await
            .map(|()| source.element.other_matches)
    }

    async fn drag_between(
        &self,
        start: (f64, f64),
        destination: &PageElement,
        name: &str,
    ) -> Result<()> {
        self.send_mouse_event("mouseMoved", start, json!({})).await?;
        self.send_mouse_event(
            "mousePressed",
            start,
            json!({"button": "left", "buttons": 1, "clickCount": 1}),
        )
        .await?;
        let button_state = json!({"button": "left", "buttons": 1});
        // Browsers ignore the first few pixels of a drag as jitter.
        self.send_mouse_event("mouseMoved", (start.0 + 6.0, start.1 + 6.0), button_state.clone())
            .await?;
        let end = self.box_centre(destination).await?.ok_or_else(|| {
            Error::new(
                Kind::Conflict,
                format!("{} is not visible", crate::base::workspace::quote_path(name)),
            )
            .with_reason("not_visible")
        })?;
        for step in 1..=5 {
            let fraction = f64::from(step) / 5.0;
            let position =
                (start.0 + (end.0 - start.0) * fraction, start.1 + (end.1 - start.1) * fraction);
            self.send_mouse_event("mouseMoved", position, button_state.clone()).await?;
        }
        let drag_data = self.state().drag_data.take();
        if let Some(data) = drag_data {
            for kind in ["dragEnter", "dragOver", "drop"] {
                let event = json!({"type": kind, "x": end.0, "y": end.1, "data": data});
                self.call_method("Input.dispatchDragEvent", event).await?;
            }
        }
        self.send_mouse_event("mouseReleased", end, json!({"button": "left", "clickCount": 1}))
            .await
    }

    /// Sets the files of a file input. `copied_files` runs only once the input has been found.
    pub async fn upload_files(
        &self,
        target: &str,
        copied_files: impl Future<Output = Result<Vec<PathBuf>>>,
        deadline: Instant,
    ) -> Result<u64> {
        let found = self.wait_for_element(target, deadline).await?;
        let files: Vec<String> =
            copied_files.await?.iter().map(|file| file.display().to_string()).collect();
        let params = json!({"files": files, "backendNodeId": found.element.backend_node});
        match self.call_method("DOM.setFileInputFiles", params).await {
            Ok(_) => Ok(found.element.other_matches),
            Err(error) if error.kind() == Kind::Conflict => Err(Error::new(
                Kind::Conflict,
                format!("{} does not accept files", crate::base::workspace::quote_path(target)),
            )
            .with_reason("wrong_element")
            .with_hint(
                "Target the <input type=file>; CSS also finds an invisible one: input[type=file].",
            )
            .with_source(error)),
            Err(error) => Err(error),
        }
    }

    /// Waits until an element is visible, or until it is gone.
    pub async fn wait_for_target(
        &self,
        target: &str,
        until_gone: bool,
        deadline: Instant,
    ) -> Result<()> {
        const SEEN: &str = "function(){ const r = this.getBoundingClientRect(); return this.isConnected && r.width > 0 && r.height > 0 && getComputedStyle(this).visibility !== 'hidden' }";
        loop {
            let is_visible = match self.find_element(target).await {
                Ok(element) => {
                    self.call_function_on(&element.object, SEEN, json!([]))
                        .await
                        .unwrap_or_default()
                        == true
                }
                Err(error) if error.kind() == Kind::InvalidArguments => return Err(error),
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // It does not exist, or the page is changing right now.
                Err(_) => false,
            };
            if is_visible != until_gone {
                return Ok(());
            }
            if Instant::now() + RETRY_INTERVAL >= deadline {
                let outcome = if until_gone { "did not disappear" } else { "did not appear" };
                let name = crate::base::workspace::quote_path(target);
                return Err(Error::new(Kind::DeadlineExceeded, format!("{name} {outcome} in time"))
                    .with_hint("Look at the page with browser.snapshot and browser.logs, or raise `timeout_ms`."));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Waits for what an action has started: briefly for the page's own scripts, and for another
    /// page to load.
    pub async fn wait_until_settled(&self, previous_document: &str, deadline: Instant) {
        // A page that is being left does not answer; the timeout covers that.
        let page_timer = self.evaluate_value("new Promise(done => setTimeout(done, 30))", true);
        let _ = tokio::time::timeout(SETTLE_TIME, page_timer).await;
        let (has_left, is_navigating) = {
            let state = self.state();
            (state.current_document() != previous_document, state.is_navigating)
        };
        if has_left || is_navigating {
            let arrival = self.wait_until(|state| {
                let stays = !state.is_navigating && state.current_document() == previous_document;
                let arrived =
                    state.current_document() != previous_document && state.has_reached("load");
                (stays || arrived).then_some(())
            });
            // If it takes longer, the current state is reported.
            let _ = tokio::time::timeout_at(deadline, arrival).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::browser::cdp::CdpConnection;

    /// A call can be dropped at any point; what it changed is restored nevertheless.
    #[tokio::test]
    async fn what_a_call_has_set_goes_with_it() {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let page = BrowserPage::new("p1".into(), &CdpConnection::new(near), "s", "t", Weak::new());
        let answering =
            page.answer_dialogs(DialogAnswers { accept: true, text: Some("yes".into()) });
        assert!(page.state().answers.accept);
        drop(answering);
        assert!(!page.state().answers.accept && page.state().answers.text.is_none());
        page.state().drag_data = Some(json!({}));
        drop(DragInterception(&page));
        assert!(page.state().drag_data.is_none());
        let mut said = Vec::new();
        while !said.ends_with(b"\0") {
            assert!(far.read_buf(&mut said).await.unwrap() > 0);
        }
        let said: Value = serde_json::from_slice(&said[..said.len() - 1]).unwrap();
        assert_eq!(said["method"], "Input.setInterceptDrags");
        assert_eq!(said["params"], json!({"enabled": false}));
    }
}
