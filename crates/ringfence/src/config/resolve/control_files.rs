//! The files that decide what the server does: config, keys, secrets and log. No run may change
//! them, and no workspace may contain them.

use std::path::{Path, PathBuf};

use super::config_file::LoadedConfigFile;
use super::{directories, token_keys};
use crate::base::{Error, Result};
use crate::config::link_chain;

/// The control files, each with what it is.
pub struct ControlFiles {
    /// Every file, with the directories and links on the way to it.
    pub paths: Vec<(&'static str, PathBuf)>,
    /// Files that the file tools must not show.
    pub private: Vec<PathBuf>,
    /// Those of them whose content is secret.
    pub secret: Vec<PathBuf>,
}

impl ControlFiles {
    /// Starts with the config file.
    pub fn from_config_file(source: &LoadedConfigFile) -> ControlFiles {
        let directories = source.locations.iter().cloned();
        let link_directories =
            source.path.iter().flat_map(|path| link_chain::path_directories(path));
        let paths =
            directories.chain(link_directories).map(|path| ("the config file", path)).collect();
        ControlFiles { paths, private: Vec::new(), secret: Vec::new() }
    }

    /// Adds the keys that tokens are checked with.
    pub fn add_keys(&mut self, files: Vec<(&'static str, PathBuf)>) -> Result<()> {
        files.into_iter().try_for_each(|(label, path)| self.add_file(label, &path))
    }

    /// Adds the files that secrets come from.
    pub fn add_secrets(
        &mut self,
        env_file: Option<&Path>,
        key_file: Option<PathBuf>,
    ) -> Result<()> {
        if let Some(path) = env_file {
            self.add_file("the env file of secrets", path)?;
        }
        if let Some(path) = key_file {
            self.add_file("the key of the secret store", &path)?;
        }
        Ok(())
    }

    /// Adds the log file, which must not be inside a workspace.
    pub fn add_log(&mut self, file: Option<&Path>, root: &Path) -> Result<()> {
        let Some(path) = file else { return Ok(()) };
        // The workspaces of HTTP principals are not known individually.
        if path.starts_with(root.join("workspaces")) {
            return Err(Error::invalid_arguments(format!(
                "the log file {} is inside a workspace",
                path.display()
            ))
            .with_reason("bad_log_file")
            .with_hint("Name another file with `--log-file` (or RINGFENCE_LOG_FILE)."));
        }
        self.paths.push(("the log file", path.to_owned()));
        Ok(())
    }

    fn add_file(&mut self, label: &'static str, path: &Path) -> Result<()> {
        // A link, its target, and everything between them: changing one changes what is read.
        let link = directories::canonicalize_partial(path.parent().unwrap_or(path))?
            .join(path.file_name().unwrap_or_default());
        let target = directories::canonicalize_partial(path)?;
        let steps = link_chain::path_directories(path).into_iter();
        let steps = steps.chain([link.clone(), target.clone()]);
        self.paths.extend(steps.map(|step| (label, step)));
        self.private.extend([link.clone(), target.clone()]);
        if label != token_keys::PUBLIC_KEY_FILE {
            self.secret.extend([link, target]);
        }
        Ok(())
    }
}
