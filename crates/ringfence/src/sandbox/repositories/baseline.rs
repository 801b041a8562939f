//! What git would execute when a run started, to compare with when it ends.

use std::path::PathBuf;
use std::sync::Arc;

use super::{RepositoryFindings, SessionRepositories};
use crate::base::Result;
use crate::sandbox::SessionSandbox;

/// The programs that git would execute when a run started.
pub struct GitBaseline {
    repositories: Arc<SessionRepositories>,
    sandbox: Arc<SessionSandbox>,
    home: Option<PathBuf>,
    findings: Option<Arc<RepositoryFindings>>,
}

impl GitBaseline {
    /// Takes the present state.
    pub async fn capture(
        repositories: &Arc<SessionRepositories>,
        sandbox: &Arc<SessionSandbox>,
        home: Option<PathBuf>,
    ) -> Result<GitBaseline> {
        let findings = repositories.current_findings(sandbox, home.as_deref()).await?;
        Ok(GitBaseline {
            repositories: Arc::clone(repositories),
            sandbox: Arc::clone(sandbox),
            home,
            findings,
        })
    }

    /// Returns what was found.
    pub fn findings(&self) -> Option<&RepositoryFindings> {
        self.findings.as_deref()
    }

    /// Returns how the programs that git would execute have changed.
    pub async fn describe_changes(self) -> Vec<String> {
        let Some(before) = self.findings else { return Vec::new() };
        match self.repositories.current_findings(&self.sandbox, self.home.as_deref()).await {
            Ok(Some(current)) if !Arc::ptr_eq(&current, &before) => current.changes_since(&before),
            Ok(_) => Vec::new(),
            Err(error) => vec![format!("what git would execute could not be compared: {error}")],
        }
    }
}
