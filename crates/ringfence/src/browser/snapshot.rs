//! Describes a page as text: what is visible and can be acted on, from its accessibility tree,
//! frames included, with a ref for each element that can be acted on.

mod tree;

pub use tree::MAX_LINES;

use futures::future::join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::page::{BrowserPage, is_valid_id};
use super::refs::{self, NodeRef};
use crate::base::Result;
use tree::{AccessibilityTree, OutlineWriter};

/// Maximum number of frames included.
const MAX_FRAMES: usize = 30;
/// Maximum length of the plain text of a page.
const MAX_TEXT_CHARS: usize = 1 << 20;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotMode {
    #[default]
    Interactive,
    Full,
    Text,
}

/// Request for a snapshot.
#[derive(Debug, Clone, Default)]
pub struct SnapshotRequest {
    /// Amount of detail.
    pub mode: SnapshotMode,
    /// Element to start from; the whole page if None.
    pub target: Option<String>,
    /// Maximum depth of the outline.
    pub depth: Option<usize>,
}

impl SnapshotRequest {
    fn request_key(&self) -> String {
        format!("{:?}", (self.mode, &self.target, self.depth))
    }
}

/// All lines of a snapshot, or those that differ from the previous one.
#[derive(Debug)]
pub enum SnapshotLines {
    /// All lines.
    All(Vec<String>),
    /// Changes since the previous snapshot of the same request: `+ line` and `- line`.
    Changes(Vec<String>),
}

impl BrowserPage {
    /// Takes a snapshot. With `diff`, returns only the changes if the previous snapshot was of the
    /// same request.
    pub async fn take_snapshot(
        &self,
        wanted: &SnapshotRequest,
        diff: bool,
    ) -> Result<SnapshotLines> {
        let lines = match wanted.mode {
            SnapshotMode::Text => self.text_lines(wanted.target.as_deref()).await?,
            SnapshotMode::Interactive | SnapshotMode::Full => self.outline_lines(wanted).await?,
        };
        let last = self.state().last_snapshot.replace((wanted.request_key(), lines.clone()));
        match last.filter(|(key, _)| diff && *key == wanted.request_key()) {
            Some((_, before)) => Ok(SnapshotLines::Changes(diff_lines(&before, &lines))),
            None => Ok(SnapshotLines::All(lines)),
        }
    }

    async fn text_lines(&self, target: Option<&str>) -> Result<Vec<String>> {
        const WORDS: &str = "function(most){ const e = this.body || this; return String(e.innerText ?? e.textContent ?? '').slice(0, most) }";
        let object = match target {
            Some(target) => self.find_element(target).await?.object,
            None => {
                let world = self.isolated_world(None).await?;
                let wanted = json!({"expression": "document", "contextId": world});
                let found = self.call_method("Runtime.evaluate", wanted).await?;
                self.remote_object(&found["result"]).ok_or_else(|| refs::stale_error("document"))?
            }
        };
        let said =
            self.call_function_on(&object, WORDS, json!([{"value": MAX_TEXT_CHARS}])).await?;
        let lines = said.as_str().unwrap_or_default().lines().map(str::trim_end);
        // Collapse runs of empty lines.
        let mut kept: Vec<String> = Vec::new();
        for line in lines {
            if !line.is_empty() || kept.last().is_some_and(|last| !last.is_empty()) {
                kept.push(line.to_owned());
            }
        }
        Ok(kept)
    }

    async fn outline_lines(&self, wanted: &SnapshotRequest) -> Result<Vec<String>> {
        let wanted_node = match &wanted.target {
            Some(target) => Some(self.find_element(target).await?.backend_node),
            None => None,
        };
        let (mut trees, mut documents) = self.fetch_trees().await?;
        // Refs of one document must not be attributed to the next one.
        if !self.still_shows(&trees, &documents) {
            (trees, documents) = self.fetch_trees().await?;
        }
        let mut state = self.state();
        let refs = &mut state.refs;
        let mut name = |tree: usize, backend: i64| {
            refs.name_node(NodeRef {
                frame: trees[tree].frame.clone(),
                document: documents[tree].clone(),
                backend_node: backend,
            })
        };
        let lines =
            OutlineWriter::new(&trees, wanted.mode == SnapshotMode::Full, wanted.depth, &mut name)
                .write(wanted_node);
        match (lines, &wanted.target) {
            (Some(lines), _) => Ok(lines),
            (None, Some(target)) => Err(refs::stale_error(target)),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Returns whether the frames still show these documents.
    fn still_shows(&self, trees: &[AccessibilityTree], documents: &[String]) -> bool {
        let state = self.state();
        let shown = |tree: &AccessibilityTree| {
            state.frames.get(&tree.frame).map(|frame| frame.document.as_str())
        };
        trees.iter().zip(documents).all(|(tree, document)| shown(tree) == Some(document.as_str()))
    }

    /// Returns the tree of each frame, and the document that the frame showed before the tree was
    /// requested.
    async fn fetch_trees(&self) -> Result<(Vec<AccessibilityTree>, Vec<String>)> {
        let frames = self.refresh_frames().await?;
        let trees =
            join_all(frames.iter().take(MAX_FRAMES).map(|(frame, is_main, document)| async move {
                let owner = async {
                    match is_main {
                        true => Ok(Value::Null),
                        false => {
                            self.call_method("DOM.getFrameOwner", json!({"frameId": frame})).await
                        }
                    }
                };
                let nodes =
                    self.call_method("Accessibility.getFullAXTree", json!({"frameId": frame}));
                let (owner, nodes) = futures::join!(owner, nodes);
                // Skip a frame that was removed in the meantime.
                let backend = owner.ok()?["backendNodeId"].as_i64();
                Some((
                    AccessibilityTree::new(frame.clone(), backend, nodes.ok()?["nodes"].take()),
                    document.clone(),
                ))
            }))
            .await;
        Ok(trees.into_iter().flatten().unzip())
    }

    /// Updates the frames from the browser and returns them, the main frame first.
    async fn refresh_frames(&self) -> Result<Vec<(String, bool, String)>> {
        let tree = self.call_method("Page.getFrameTree", json!({})).await?;
        let mut all = Vec::new();
        let mut state = self.state();
        let mut open = vec![&tree["frameTree"]];
        while let Some(branch) = open.pop() {
            let frame = &branch["frame"];
            let id = frame["id"].as_str().unwrap_or_default().to_owned();
            let parent = frame["parentId"].as_str().map(str::to_owned);
            let document = frame["loaderId"].as_str().unwrap_or_default().to_owned();
            open.extend(branch["childFrames"].as_array().into_iter().flatten().rev());
            if !is_valid_id(&id)
                || !is_valid_id(&document)
                || !parent.as_deref().is_none_or(is_valid_id)
            {
                continue;
            }
            all.push((id.clone(), parent.is_none(), document.clone()));
            if parent.is_none() {
                state.commit_document(&document);
            }
            state.set_frame(&id, super::page::PageFrame { parent, document });
        }
        Ok(all)
    }
}

/// Returns the added and removed lines, in order.
fn diff_lines(before: &[String], now: &[String]) -> Vec<String> {
    use similar::ChangeTag;
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let now: Vec<&str> = now.iter().map(String::as_str).collect();
    let diff = similar::TextDiff::from_slices(&before, &now);
    let sign = |change: similar::Change<&str>| match change.tag() {
        ChangeTag::Insert => Some(format!("+ {}", change.value())),
        ChangeTag::Delete => Some(format!("- {}", change.value())),
        ChangeTag::Equal => None,
    };
    diff.iter_all_changes().filter_map(sign).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_shown() {
        let lines = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(diff_lines(&lines("a,b,c"), &lines("a,x,c,d")), ["- b", "+ x", "+ d"]);
        assert!(diff_lines(&lines("a,b"), &lines("a,b")).is_empty());
    }
}
