//! User actions on a page: mouse, keyboard, forms, drag and drop, uploads.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::element::Element;
use super::keys;
use super::log::plain;
use super::page::{Answers, Page};
use crate::base::{Error, Kind, Result};

/// Maximum number of characters typed key by key.
const TYPED: usize = 10_000;
/// Time for a page to start whatever it does in response to an action.
const SETTLE: Duration = Duration::from_millis(300);
const AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Op {
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
pub enum Button {
    #[default]
    Left,
    Right,
    Middle,
}

/// Element found by a ref or selector, with the name the caller used for it.
struct Found<'a> {
    element: Element,
    name: &'a str,
}

/// Intercepts drags until dropped, even if the call is cancelled.
struct Intercepted<'a>(&'a Page);

impl Drop for Intercepted<'_> {
    fn drop(&mut self) {
        self.0.state().drag = None;
        self.0.line.order(
            Some(&self.0.session),
            "Input.setInterceptDrags",
            json!({"enabled": false}),
        );
    }
}

/// Answers dialogs as a call asked for until dropped, even if the call is cancelled.
pub struct Answering<'a>(&'a Page);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.state().answers = Answers::default();
    }
}

impl Page {
    /// Sets how dialogs are answered until the returned guard is dropped.
    pub fn answering(&self, answers: Answers) -> Answering<'_> {
        self.state().answers = answers;
        Answering(self)
    }

    async fn found<'a>(&self, target: &'a str, until: Instant) -> Result<Found<'a>> {
        loop {
            match self.find(target).await {
                Ok(element) => return Ok(Found { element, name: target }),
                // An element that does not exist yet may appear.
                Err(error) if error.kind() == Kind::NotFound && Instant::now() + AGAIN < until => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn mouse(&self, kind: &str, at: (f64, f64), more: Value) -> Result<()> {
        let mut event = json!({"type": kind, "x": at.0, "y": at.1});
        for (name, value) in more.as_object().into_iter().flatten() {
            event[name] = value.clone();
        }
        self.call("Input.dispatchMouseEvent", event).await.map(drop)
    }

    /// Clicks an element once it can be clicked. Like most actions here, returns the number of
    /// other elements that match the target.
    pub async fn click(
        &self,
        target: &str,
        button: Button,
        count: u32,
        until: Instant,
    ) -> Result<u64> {
        let found = self.found(target, until).await?;
        let at = self.reach(&found.element, found.name, until).await?;
        self.click_at(at, button, count).await?;
        Ok(found.element.others)
    }

    async fn click_at(&self, at: (f64, f64), button: Button, count: u32) -> Result<()> {
        let (name, bit) = match button {
            Button::Left => ("left", 1),
            Button::Right => ("right", 2),
            Button::Middle => ("middle", 4),
        };
        self.mouse("mouseMoved", at, json!({})).await?;
        for click in 1..=count {
            self.mouse(
                "mousePressed",
                at,
                json!({"button": name, "buttons": bit, "clickCount": click}),
            )
            .await?;
            self.mouse("mouseReleased", at, json!({"button": name, "clickCount": click})).await?;
        }
        Ok(())
    }

    /// Moves the mouse over an element.
    pub async fn hover(&self, target: &str, until: Instant) -> Result<u64> {
        let found = self.found(target, until).await?;
        let at = self.reach(&found.element, found.name, until).await?;
        self.mouse("mouseMoved", at, json!({})).await?;
        Ok(found.element.others)
    }

    /// Replaces the text of a field.
    pub async fn fill(&self, target: &str, text: &str, until: Instant) -> Result<u64> {
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
        let found = self.found(target, until).await?;
        let said = self.call_on(&found.element.object, READY, json!([{"value": text}])).await?;
        let wrong = |reason, message: &str, hint: &str| {
            Err(Error::new(
                Kind::Conflict,
                format!("{} {message}", crate::base::workspace::quoted(target)),
            )
            .reason(reason)
            .hint(hint))
        };
        match said.as_str().unwrap_or_default() {
            "type" if text.is_empty() => self.stroke(&keys::combination("Delete")?).await?,
            "type" => drop(self.call("Input.insertText", json!({"text": text})).await?),
            "done" => {}
            "disabled" => {
                return wrong("disabled", "is disabled", "Fill in what it depends on first.");
            }
            "readonly" => {
                return wrong("disabled", "is read-only", "Find out what fills it in.");
            }
            "select" => {
                return wrong(
                    "wrong_element",
                    "is a list of choices",
                    "Use op select with `values`.",
                );
            }
            "malformed" => {
                return wrong(
                    "wrong_value",
                    "does not accept this text",
                    "Dates are 2026-12-31, times 23:59.",
                );
            }
            _ => {
                return wrong(
                    "wrong_element",
                    "does not accept text",
                    "Choose a textbox from browser.snapshot.",
                );
            }
        }
        Ok(found.element.others)
    }

    /// Types text key by key into the target, or into the focused element.
    pub async fn type_text(&self, target: Option<&str>, text: &str, until: Instant) -> Result<u64> {
        if text.chars().count() > TYPED {
            return Err(Error::invalid_arguments(format!(
                "at most {TYPED} characters can be typed key by key"
            ))
            .hint("Use op fill for long text."));
        }
        let others = self.focus(target, until).await?;
        for letter in text.chars() {
            self.stroke(&keys::character(letter, 0)).await?;
        }
        Ok(others)
    }

    /// Presses a key or key combination.
    pub async fn press(&self, target: Option<&str>, key: &str, until: Instant) -> Result<u64> {
        let stroke = keys::combination(key)?;
        let others = self.focus(target, until).await?;
        self.stroke(&stroke).await?;
        Ok(others)
    }

    async fn focus(&self, target: Option<&str>, until: Instant) -> Result<u64> {
        let Some(target) = target else { return Ok(0) };
        let found = self.found(target, until).await?;
        self.call("DOM.focus", json!({"backendNodeId": found.element.backend})).await.map_err(
            |_| {
                Error::new(
                    Kind::Conflict,
                    format!("{} cannot be focused", crate::base::workspace::quoted(target)),
                )
                .reason("wrong_element")
                .hint("Click it, or choose a textbox from browser.snapshot.")
            },
        )?;
        Ok(found.element.others)
    }

    async fn stroke(&self, stroke: &keys::Stroke) -> Result<()> {
        self.call("Input.dispatchKeyEvent", stroke.down.clone()).await?;
        self.call("Input.dispatchKeyEvent", stroke.up.clone()).await.map(drop)
    }

    /// Selects options by value or by label.
    pub async fn select(&self, target: &str, values: &[String], until: Instant) -> Result<u64> {
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
        let found = self.found(target, until).await?;
        let said = self.call_on(&found.element.object, CHOOSE, json!([{"value": values}])).await?;
        let name = crate::base::workspace::quoted(target);
        match said["error"].as_str() {
            None => Ok(found.element.others),
            Some("missing") => {
                Err(Error::new(Kind::NotFound, format!("{name} has no such option"))
                    .reason("no_match")
                    .hint(format!(
                        "It has: {}.",
                        said["all"]
                            .as_array()
                            .into_iter()
                            .flatten()
                            .filter_map(Value::as_str)
                            .map(plain)
                            .collect::<Vec<_>>()
                            .join(", ")
                    )))
            }
            Some("single") => {
                Err(Error::invalid_arguments(format!("{name} accepts only one option")))
            }
            Some("disabled") => {
                Err(Error::new(Kind::Conflict, format!("{name} is disabled")).reason("disabled"))
            }
            Some(_) => Err(Error::new(Kind::Conflict, format!("{name} is not a <select>"))
                .reason("wrong_element")
                .hint("If it is a custom list, open it and choose from it with clicks.")),
        }
    }

    /// Checks or unchecks a checkbox, radio button or switch.
    pub async fn check(&self, target: &str, wanted: bool, until: Instant) -> Result<u64> {
        const CHECKED: &str = r#"function(){
          let e = this; if (e.tagName === 'LABEL' && e.control) e = e.control;
          if (e.tagName === 'INPUT' && ['checkbox','radio'].includes(e.type)) return e.checked;
          const aria = e.getAttribute && e.getAttribute('aria-checked'); return aria === null ? 'other' : aria === 'true';
        }"#;
        let found = self.found(target, until).await?;
        let name = crate::base::workspace::quoted(target);
        let is = self.call_on(&found.element.object, CHECKED, json!([])).await?;
        if is == "other" {
            return Err(Error::new(
                Kind::Conflict,
                format!("{name} cannot be checked or unchecked"),
            )
            .reason("wrong_element"));
        }
        if is != wanted {
            let at = self.reach(&found.element, target, until).await?;
            self.click_at(at, Button::Left, 1).await?;
            if self.call_on(&found.element.object, CHECKED, json!([])).await? != wanted {
                return Err(Error::new(
                    Kind::Conflict,
                    format!("{name} was clicked but did not change"),
                )
                .reason("unchanged")
                .hint(
                    "To uncheck a radio button, check another one. Look at the page with browser.snapshot.",
                ));
            }
        }
        Ok(found.element.others)
    }

    /// Scrolls the page or an element; without a distance, scrolls the element into view.
    pub async fn scroll(
        &self,
        target: Option<&str>,
        by: Option<(f64, f64)>,
        until: Instant,
    ) -> Result<u64> {
        let by =
            json!([{"value": by.map_or(0.0, |by| by.0)}, {"value": by.map_or(0.0, |by| by.1)}]);
        let moved = by[0]["value"] != 0.0 || by[1]["value"] != 0.0;
        match target {
            Some(target) => {
                let found = self.found(target, until).await?;
                match moved {
                    true => {
                        let scroll = "function(x, y){ this.scrollBy({left: x, top: y, behavior: 'instant'}) }";
                        self.call_on(&found.element.object, scroll, by).await?;
                    }
                    false => {
                        let node = json!({"backendNodeId": found.element.backend});
                        self.call("DOM.scrollIntoViewIfNeeded", node).await?;
                    }
                }
                Ok(found.element.others)
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
    pub async fn drag(&self, target: &str, to: &str, until: Instant) -> Result<u64> {
        let (from, onto) = (self.found(target, until).await?, self.found(to, until).await?);
        let start = self.reach(&from.element, target, until).await?;
        self.state().drag = None;
        let _intercepted = Intercepted(self);
        self.call("Input.setInterceptDrags", json!({"enabled": true})).await?;
        self.drag_between(start, &onto.element, to).await.map(|()| from.element.others)
    }

    async fn drag_between(&self, start: (f64, f64), onto: &Element, name: &str) -> Result<()> {
        self.mouse("mouseMoved", start, json!({})).await?;
        self.mouse("mousePressed", start, json!({"button": "left", "buttons": 1, "clickCount": 1}))
            .await?;
        let held = json!({"button": "left", "buttons": 1});
        // Browsers ignore the first few pixels of a drag as jitter.
        self.mouse("mouseMoved", (start.0 + 6.0, start.1 + 6.0), held.clone()).await?;
        let end = self.place_of(onto).await?.ok_or_else(|| {
            Error::new(
                Kind::Conflict,
                format!("{} is not visible", crate::base::workspace::quoted(name)),
            )
            .reason("not_visible")
        })?;
        for step in 1..=5 {
            let part = f64::from(step) / 5.0;
            let at = (start.0 + (end.0 - start.0) * part, start.1 + (end.1 - start.1) * part);
            self.mouse("mouseMoved", at, held.clone()).await?;
        }
        let dragged = self.state().drag.take();
        if let Some(data) = dragged {
            for kind in ["dragEnter", "dragOver", "drop"] {
                let event = json!({"type": kind, "x": end.0, "y": end.1, "data": data});
                self.call("Input.dispatchDragEvent", event).await?;
            }
        }
        self.mouse("mouseReleased", end, json!({"button": "left", "clickCount": 1})).await
    }

    /// Sets the files of a file input. `copy` runs only once the input has been found.
    pub async fn upload(
        &self,
        target: &str,
        copy: impl Future<Output = Result<Vec<PathBuf>>>,
        until: Instant,
    ) -> Result<u64> {
        let found = self.found(target, until).await?;
        let files: Vec<String> =
            copy.await?.iter().map(|file| file.display().to_string()).collect();
        let params = json!({"files": files, "backendNodeId": found.element.backend});
        match self.call("DOM.setFileInputFiles", params).await {
            Ok(_) => Ok(found.element.others),
            Err(error) if error.kind() == Kind::Conflict => Err(Error::new(
                Kind::Conflict,
                format!("{} does not accept files", crate::base::workspace::quoted(target)),
            )
            .reason("wrong_element")
            .hint(
                "Target the <input type=file>; CSS also finds an invisible one: input[type=file].",
            )
            .source(error)),
            Err(error) => Err(error),
        }
    }

    /// Waits until an element is visible, or until it is gone.
    pub async fn wait_for(&self, target: &str, gone: bool, until: Instant) -> Result<()> {
        const SEEN: &str = "function(){ const r = this.getBoundingClientRect(); return this.isConnected && r.width > 0 && r.height > 0 && getComputedStyle(this).visibility !== 'hidden' }";
        loop {
            let seen = match self.find(target).await {
                Ok(element) => {
                    self.call_on(&element.object, SEEN, json!([])).await.unwrap_or_default() == true
                }
                Err(error) if error.kind() == Kind::InvalidArguments => return Err(error),
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // It does not exist, or the page is changing right now.
                Err(_) => false,
            };
            if seen != gone {
                return Ok(());
            }
            if Instant::now() + AGAIN >= until {
                let what = if gone { "did not disappear" } else { "did not appear" };
                let name = crate::base::workspace::quoted(target);
                return Err(Error::new(Kind::DeadlineExceeded, format!("{name} {what} in time"))
                    .hint("Look at the page with browser.snapshot and browser.logs, or raise `timeout_ms`."));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits for what an action has started: briefly for the page's own scripts, and for another
    /// page to load.
    pub async fn settle(&self, before: &str, until: Instant) {
        // A page that is being left does not answer; the timeout covers that.
        let turn = self.evaluate_value("new Promise(done => setTimeout(done, 30))", true);
        let _ = tokio::time::timeout(SETTLE, turn).await;
        let (left, leaving) = {
            let state = self.state();
            (state.document() != before, state.leaving)
        };
        if left || leaving {
            let there = self.wait(|state| {
                let stays = !state.leaving && state.document() == before;
                let arrived = state.document() != before && state.has_reached("load");
                (stays || arrived).then_some(())
            });
            // If it takes longer, the current state is reported.
            let _ = tokio::time::timeout_at(until, there).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::browser::cdp::Line;

    /// A call can be dropped at any point; what it changed is restored nevertheless.
    #[tokio::test]
    async fn what_a_call_has_set_goes_with_it() {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let page = Page::new("p1".into(), &Line::new(near), "s", "t", Weak::new());
        let answering = page.answering(Answers { accept: true, text: Some("yes".into()) });
        assert!(page.state().answers.accept);
        drop(answering);
        assert!(!page.state().answers.accept && page.state().answers.text.is_none());
        page.state().drag = Some(json!({}));
        drop(Intercepted(&page));
        assert!(page.state().drag.is_none());
        let mut said = Vec::new();
        while !said.ends_with(b"\0") {
            assert!(far.read_buf(&mut said).await.unwrap() > 0);
        }
        let said: Value = serde_json::from_slice(&said[..said.len() - 1]).unwrap();
        assert_eq!(said["method"], "Input.setInterceptDrags");
        assert_eq!(said["params"], json!({"enabled": false}));
    }
}
