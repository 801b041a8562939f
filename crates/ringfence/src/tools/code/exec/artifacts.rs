//! Files of the workspace that a run has created, changed or removed.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::base::workspace::Workspace;
use crate::base::workspace::snapshot::{Snapshot, diff_snapshots};
use crate::base::{CancelToken, Result};
use crate::tools::file::mime;

/// Maximum number of files in a snapshot. With more, the snapshot would delay the run.
pub const MAX_FILES: usize = 10_000;
/// Maximum number of artifacts in a result.
pub const MAX_SHOWN: usize = 40;
/// Caches that interpreters write next to the code are not results.
const CACHE_DIRS: &[&str] = &["__pycache__"];

#[derive(Debug, Serialize, JsonSchema)]
pub struct Artifact {
    pub path: String,
    /// created, changed or removed.
    pub change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime: Option<&'static str>,
}

/// The files before a run.
pub struct FilesBefore {
    workspace: Arc<Workspace>,
    files: Option<Snapshot>,
}

/// The files that a run has created, changed or removed.
#[derive(Default)]
pub struct ArtifactList {
    pub artifacts: Vec<Artifact>,
    pub warning: Option<String>,
}

impl FilesBefore {
    /// Takes a snapshot. If that fails, only the list of artifacts is lost.
    pub async fn capture(workspace: &Arc<Workspace>, cancel: &CancelToken) -> FilesBefore {
        let (shared, cancel) = (Arc::clone(workspace), cancel.clone());
        let snapshot =
            tokio::task::spawn_blocking(move || Snapshot::capture(&shared, MAX_FILES, &cancel))
                .await;
        FilesBefore { workspace: Arc::clone(workspace), files: snapshot.ok().and_then(Result::ok) }
    }

    /// Returns what has changed since, plus those files of `saved_figures` that are in the
    /// workspace.
    pub async fn list_artifacts(self, saved_figures: Vec<String>) -> ArtifactList {
        tokio::task::spawn_blocking(move || self.list_artifacts_blocking(&saved_figures))
            .await
            .unwrap_or_default()
    }

    fn list_artifacts_blocking(self, saved_figures: &[String]) -> ArtifactList {
        let unknown_warning =
            || Some("cannot determine which files were created or changed".to_owned());
        let Some(before) = &self.files else {
            return ArtifactList { artifacts: Vec::new(), warning: unknown_warning() };
        };
        // The run is over, however it ended, so a cancelled call still gets its list.
        let Ok(after) = Snapshot::capture(&self.workspace, MAX_FILES, &CancelToken::new()) else {
            return ArtifactList { artifacts: Vec::new(), warning: unknown_warning() };
        };
        let differences = diff_snapshots(before, &after);
        let is_cache = |path: &Path| {
            path.iter().any(|part| CACHE_DIRS.iter().any(|cache| part.to_str() == Some(*cache)))
        };
        let lists = [
            ("created", &differences.created),
            ("changed", &differences.changed),
            ("removed", &differences.removed),
        ];
        let changed_paths =
            lists.iter().flat_map(|(change, paths)| paths.iter().map(|path| (*change, path)));
        let mut changed_paths: Vec<_> = changed_paths.filter(|(_, path)| !is_cache(path)).collect();
        let omitted_count = changed_paths.len().saturating_sub(MAX_SHOWN);
        changed_paths.truncate(MAX_SHOWN);
        let describe = |(change, path): (&'static str, &std::path::PathBuf)| {
            let path = path.to_string_lossy().into_owned();
            let bytes = after.files.get(Path::new(&path)).map(|mark| mark.size);
            let mime = bytes.and_then(|_| self.mime_type(&path));
            Artifact { path, change, bytes, mime }
        };
        let mut artifacts: Vec<Artifact> = changed_paths.into_iter().map(describe).collect();
        for path in saved_figures {
            // Snapshots do not include files that git ignores. The run supplied this name, so it is
            // opened with the same checks as a path from a caller.
            if let Ok(opened) = self.workspace.open_read(path)
                && !artifacts.iter().any(|artifact| artifact.path == opened.path)
            {
                let bytes = opened.file.metadata().ok().map(|meta| meta.len());
                let mime = self.mime_type(&opened.path);
                artifacts.push(Artifact { path: opened.path, change: "created", bytes, mime });
            }
        }
        let warning = match (differences.complete, omitted_count) {
            (true, 0) => None,
            (true, omitted_count) => {
                Some(format!("{omitted_count} more files were created, changed or removed"))
            }
            (false, _) => Some(format!(
                "the list of artifacts may be incomplete: the workspace has more than {MAX_FILES} files, or some cannot be read"
            )),
        };
        ArtifactList { artifacts, warning }
    }

    /// Determines the MIME type by the first bytes, else by the name.
    fn mime_type(&self, path: &str) -> Option<&'static str> {
        let mut head = [0; 16];
        let count = self
            .workspace
            .open_read(path)
            .ok()
            .and_then(|mut opened| opened.file.read(&mut head).ok());
        mime::detect_by_content(&head[..count.unwrap_or(0)]).or_else(|| mime::detect_by_name(path))
    }
}
