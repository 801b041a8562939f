//! Describes a page as text: what is visible and can be acted on, from its accessibility tree,
//! frames included, with a ref for each element that can be acted on.

mod tree;

pub use tree::LINES;

use futures::future::join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::page::{Page, is_id};
use super::refs::{self, Node};
use crate::base::Result;
use tree::{Tree, Writer};

/// Maximum number of frames included.
const FRAMES: usize = 30;
/// Maximum length of the plain text of a page.
const TEXT: usize = 1 << 20;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Interactive,
    Full,
    Text,
}

impl Mode {
    /// Returns the name used in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Interactive => "interactive",
            Mode::Full => "full",
            Mode::Text => "text",
        }
    }
}

/// Request for a snapshot.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Amount of detail.
    pub mode: Mode,
    /// Element to start from; the whole page if None.
    pub target: Option<String>,
    /// Maximum depth of the outline.
    pub depth: Option<usize>,
}

impl Wanted {
    fn key(&self) -> String {
        format!("{:?}", (self.mode, &self.target, self.depth))
    }
}

/// All lines of a snapshot, or those that differ from the previous one.
#[derive(Debug)]
pub enum Seen {
    /// All lines.
    All(Vec<String>),
    /// Changes since the previous snapshot of the same request: `+ line` and `- line`.
    Changes(Vec<String>),
}

impl Page {
    /// Takes a snapshot. With `diff`, returns only the changes if the previous snapshot was of the
    /// same request.
    pub async fn look(&self, wanted: &Wanted, diff: bool) -> Result<Seen> {
        let lines = match wanted.mode {
            Mode::Text => self.text(wanted.target.as_deref()).await?,
            Mode::Interactive | Mode::Full => self.outline(wanted).await?,
        };
        let last = self.state().shown.replace((wanted.key(), lines.clone()));
        match last.filter(|(key, _)| diff && *key == wanted.key()) {
            Some((_, before)) => Ok(Seen::Changes(changes(&before, &lines))),
            None => Ok(Seen::All(lines)),
        }
    }

    async fn text(&self, target: Option<&str>) -> Result<Vec<String>> {
        const WORDS: &str = "function(most){ const e = this.body || this; return String(e.innerText ?? e.textContent ?? '').slice(0, most) }";
        let object = match target {
            Some(target) => self.find(target).await?.object,
            None => {
                let world = self.world(None).await?;
                let wanted = json!({"expression": "document", "contextId": world});
                let found = self.call("Runtime.evaluate", wanted).await?;
                self.remote(&found["result"]).ok_or_else(|| refs::stale("document"))?
            }
        };
        let said = self.call_on(&object, WORDS, json!([{"value": TEXT}])).await?;
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

    async fn outline(&self, wanted: &Wanted) -> Result<Vec<String>> {
        let wanted_node = match &wanted.target {
            Some(target) => Some(self.find(target).await?.backend),
            None => None,
        };
        let (mut trees, mut documents) = self.trees().await?;
        // Refs of one document must not be attributed to the next one.
        if !self.shows(&trees, &documents) {
            (trees, documents) = self.trees().await?;
        }
        let mut state = self.state();
        let refs = &mut state.refs;
        let mut name = |tree: usize, backend: i64| {
            refs.name(Node {
                frame: trees[tree].frame.clone(),
                document: documents[tree].clone(),
                backend,
            })
        };
        let lines = Writer::new(&trees, wanted.mode == Mode::Full, wanted.depth, &mut name)
            .write(wanted_node);
        match (lines, &wanted.target) {
            (Some(lines), _) => Ok(lines),
            (None, Some(target)) => Err(refs::stale(target)),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Returns whether the frames still show these documents.
    fn shows(&self, trees: &[Tree], documents: &[String]) -> bool {
        let state = self.state();
        let shown =
            |tree: &Tree| state.frames.get(&tree.frame).map(|frame| frame.document.as_str());
        trees.iter().zip(documents).all(|(tree, document)| shown(tree) == Some(document.as_str()))
    }

    /// Returns the tree of each frame, and the document that the frame showed before the tree was
    /// requested.
    async fn trees(&self) -> Result<(Vec<Tree>, Vec<String>)> {
        let frames = self.refresh_frames().await?;
        let trees =
            join_all(frames.iter().take(FRAMES).map(|(frame, is_main, document)| async move {
                let owner = async {
                    match is_main {
                        true => Ok(Value::Null),
                        false => self.call("DOM.getFrameOwner", json!({"frameId": frame})).await,
                    }
                };
                let nodes = self.call("Accessibility.getFullAXTree", json!({"frameId": frame}));
                let (owner, nodes) = futures::join!(owner, nodes);
                // Skip a frame that was removed in the meantime.
                let backend = owner.ok()?["backendNodeId"].as_i64();
                Some((
                    Tree::new(frame.clone(), backend, nodes.ok()?["nodes"].take()),
                    document.clone(),
                ))
            }))
            .await;
        Ok(trees.into_iter().flatten().unzip())
    }

    /// Updates the frames from the browser and returns them, the main frame first.
    async fn refresh_frames(&self) -> Result<Vec<(String, bool, String)>> {
        let tree = self.call("Page.getFrameTree", json!({})).await?;
        let mut all = Vec::new();
        let mut state = self.state();
        let mut open = vec![&tree["frameTree"]];
        while let Some(branch) = open.pop() {
            let frame = &branch["frame"];
            let id = frame["id"].as_str().unwrap_or_default().to_owned();
            let parent = frame["parentId"].as_str().map(str::to_owned);
            let document = frame["loaderId"].as_str().unwrap_or_default().to_owned();
            open.extend(branch["childFrames"].as_array().into_iter().flatten().rev());
            if !is_id(&id) || !is_id(&document) || !parent.as_deref().is_none_or(is_id) {
                continue;
            }
            all.push((id.clone(), parent.is_none(), document.clone()));
            if parent.is_none() {
                state.commit(&document);
            }
            let url = super::log::cut(frame["url"].as_str().unwrap_or_default(), 2000);
            state.set_frame(&id, super::page::Frame { parent, document, url });
        }
        Ok(all)
    }
}

/// Returns the added and removed lines, in order.
fn changes(before: &[String], now: &[String]) -> Vec<String> {
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
        assert_eq!(changes(&lines("a,b,c"), &lines("a,x,c,d")), ["- b", "+ x", "+ d"]);
        assert!(changes(&lines("a,b"), &lines("a,b")).is_empty());
    }
}
