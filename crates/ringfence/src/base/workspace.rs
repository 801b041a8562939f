//! placeholder, replaced by the workspace work
use std::path::{Path, PathBuf};
use super::error::Result;

pub struct Workspace { path: PathBuf }

impl Workspace {
    pub fn open(path: &Path, _closed: &[PathBuf]) -> Result<Workspace> { Ok(Workspace { path: path.to_owned() }) }
    pub fn path(&self) -> &Path { &self.path }
    pub fn display(&self) -> String { self.path.display().to_string() }
}
