//! The files that decide what the server does: config, keys, secrets, log and other servers. No run
//! may change them, and no workspace may contain them.

use std::path::{Path, PathBuf};

use super::config_file::LoadedConfigFile;
use super::{directories, token_keys};
use crate::base::{Error, Result};
use crate::config::upstreams::load::lock_path_next_to;
use crate::config::{UpstreamConfig, link_chain};

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

    /// Adds the upstreams file that the operator named, and the lock file next to it.
    pub fn add_upstreams(&mut self, file: Option<&Path>) -> Result<()> {
        let Some(path) = file else { return Ok(()) };
        // Headers and variables in it may be secrets. It may be next to config.toml and to
        // programs, so only the file itself is hidden.
        let steps = self.add_path("the upstreams file", path)?;
        self.private.extend(steps);
        self.add_path("the lock file of the upstreams", &lock_path_next_to(path))?;
        Ok(())
    }

    /// Adds the files about other servers below the root. A workspace may contain the root, which
    /// is closed to all tools, so this comes after the check of the workspace.
    pub fn add_upstream_state(&mut self, upstreams: &UpstreamConfig, root: &Path) {
        let files = upstreams.watched_files.iter().filter(|path| path.starts_with(root));
        self.paths.extend(files.map(|path| ("the list of trusted upstreams", path.clone())));
    }

    fn add_file(&mut self, label: &'static str, path: &Path) -> Result<()> {
        let [link, target] = self.add_path(label, path)?;
        self.private.extend([link.clone(), target.clone()]);
        if label != token_keys::PUBLIC_KEY_FILE {
            self.secret.extend([link, target]);
        }
        Ok(())
    }

    /// Adds a path, and returns the link and its target.
    fn add_path(&mut self, label: &'static str, path: &Path) -> Result<[PathBuf; 2]> {
        // A link, its target, and everything between them: changing one changes what is read.
        let link = directories::canonicalize_partial(path.parent().unwrap_or(path))?
            .join(path.file_name().unwrap_or_default());
        let target = directories::canonicalize_partial(path)?;
        let steps = link_chain::path_directories(path).into_iter();
        let steps = steps.chain([link.clone(), target.clone()]);
        self.paths.extend(steps.map(|step| (label, step)));
        Ok([link, target])
    }
}
