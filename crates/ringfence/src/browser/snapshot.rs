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
        request: &SnapshotRequest,
        diff: bool,
    ) -> Result<SnapshotLines> {
        let lines = match request.mode {
            SnapshotMode::Text => self.text_lines(request.target.as_deref()).await?,
            SnapshotMode::Interactive | SnapshotMode::Full => self.outline_lines(request).await?,
        };
        let previous = self.state().last_snapshot.replace((request.request_key(), lines.clone()));
        match previous.filter(|(key, _)| diff && *key == request.request_key()) {
            Some((_, previous_lines)) => {
                Ok(SnapshotLines::Changes(diff_lines(&previous_lines, &lines)))
            }
            None => Ok(SnapshotLines::All(lines)),
        }
    }

    async fn text_lines(&self, target: Option<&str>) -> Result<Vec<String>> {
        const INNER_TEXT_JS: &str = "function(most){ const e = this.body || this; return String(e.innerText ?? e.textContent ?? '').slice(0, most) }";
        let object = match target {
            Some(target) => self.find_element(target).await?.object,
            None => {
                let world = self.isolated_world(None).await?;
                let params = json!({"expression": "document", "contextId": world});
                let document_reply = self.call_method("Runtime.evaluate", params).await?;
                self.remote_object(&document_reply["result"])
                    .ok_or_else(|| refs::stale_error("document"))?
            }
        };
        let text = self
            .call_function_on(&object, INNER_TEXT_JS, json!([{"value": MAX_TEXT_CHARS}]))
            .await?;
        let lines = text.as_str().unwrap_or_default().lines().map(str::trim_end);
        // Collapse runs of empty lines.
        let mut kept_lines: Vec<String> = Vec::new();
        for line in lines {
            if !line.is_empty() || kept_lines.last().is_some_and(|last| !last.is_empty()) {
                kept_lines.push(line.to_owned());
            }
        }
        Ok(kept_lines)
    }

    async fn outline_lines(&self, request: &SnapshotRequest) -> Result<Vec<String>> {
        let root_node = match &request.target {
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
        let mut assign_ref = |tree: usize, backend_node: i64| {
            refs.name_node(NodeRef {
                frame: trees[tree].frame.clone(),
                document: documents[tree].clone(),
                backend_node,
            })
        };
        let lines = OutlineWriter::new(
            &trees,
            request.mode == SnapshotMode::Full,
            request.depth,
            &mut assign_ref,
        )
        .write(root_node);
        match (lines, &request.target) {
            (Some(lines), _) => Ok(lines),
            (None, Some(target)) => Err(refs::stale_error(target)),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Returns whether the frames still show these documents.
    fn still_shows(&self, trees: &[AccessibilityTree], documents: &[String]) -> bool {
        let state = self.state();
        let current_document = |tree: &AccessibilityTree| {
            state.frames.get(&tree.frame).map(|frame| frame.document.as_str())
        };
        trees
            .iter()
            .zip(documents)
            .all(|(tree, document)| current_document(tree) == Some(document.as_str()))
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
                let owner_node = owner.ok()?["backendNodeId"].as_i64();
                Some((
                    AccessibilityTree::new(frame.clone(), owner_node, nodes.ok()?["nodes"].take()),
                    document.clone(),
                ))
            }))
            .await;
        Ok(trees.into_iter().flatten().unzip())
    }

    /// Updates the frames from the browser and returns them, the main frame first.
    async fn refresh_frames(&self) -> Result<Vec<(String, bool, String)>> {
        let tree = self.call_method("Page.getFrameTree", json!({})).await?;
        let mut frames = Vec::new();
        let mut state = self.state();
        let mut pending = vec![&tree["frameTree"]];
        while let Some(branch) = pending.pop() {
            let frame = &branch["frame"];
            let id = frame["id"].as_str().unwrap_or_default().to_owned();
            let parent = frame["parentId"].as_str().map(str::to_owned);
            let document = frame["loaderId"].as_str().unwrap_or_default().to_owned();
            pending.extend(branch["childFrames"].as_array().into_iter().flatten().rev());
            if !is_valid_id(&id)
                || !is_valid_id(&document)
                || !parent.as_deref().is_none_or(is_valid_id)
            {
                continue;
            }
            frames.push((id.clone(), parent.is_none(), document.clone()));
            if parent.is_none() {
                state.commit_document(&document);
            }
            state.set_frame(&id, super::page::PageFrame { parent, document });
        }
        Ok(frames)
    }
}

/// Returns the added and removed lines, in order.
fn diff_lines(old_lines: &[String], new_lines: &[String]) -> Vec<String> {
    use similar::ChangeTag;
    let old_lines: Vec<&str> = old_lines.iter().map(String::as_str).collect();
    let new_lines: Vec<&str> = new_lines.iter().map(String::as_str).collect();
    let diff = similar::TextDiff::from_slices(&old_lines, &new_lines);
    let format_change = |change: similar::Change<&str>| match change.tag() {
        ChangeTag::Insert => Some(format!("+ {}", change.value())),
        ChangeTag::Delete => Some(format!("- {}", change.value())),
        ChangeTag::Equal => None,
    };
    diff.iter_all_changes().filter_map(format_change).collect()
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
