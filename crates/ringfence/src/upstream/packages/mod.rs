//! Servers that a package runner (`npx`, `bunx`, `uvx`, `pipx`) would download and start.
//!
//! `ringfence upstream install` downloads them ([`install`]) into a tree below the root, and
//! `mcp.lock` records its digest. A start never downloads and never uses the runner: it starts the
//! program from the tree, which no run can write, once the tree is as it was recorded.

pub mod install;
mod manager;
mod npm;
mod python;
mod registry;
mod request;
mod tool_run;
mod tree;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ringfence_client::LockedPackage;
use ringfence_client::config::TransportConfig;
use serde_json::json;

use crate::base::call::digest_json;
use crate::base::workspace::Workspace;
use crate::base::{Error, IgnorePoison, Kind, Result};
use crate::config::{Config, UpstreamServer};
use crate::sandbox::env::merge_env;
use crate::tools::run::program::{ProgramEntry, find_program};
use manager::prepend_path;
use request::{PackageRequest, PackageRunner};
use tree::{TreeStamp, digest_tree, stamp_tree};

/// Directory below the root, with one directory for each command of each upstreams file.
const PACKAGES_DIR: &str = "upstreams/packages";
/// Installed files, in the directory of their command.
const TREE_DIR: &str = "tree";

/// Trees that this process has compared with `mcp.lock`.
#[derive(Default)]
pub struct VerifiedTrees(Mutex<HashMap<PathBuf, VerifiedTree>>);

struct VerifiedTree {
    stamp: TreeStamp,
    digest: String,
}

/// Server whose command is a package runner.
pub struct PackageServer {
    server_id: String,
    /// What its command asks for, or why that is not understood.
    request: std::result::Result<PackageRequest, String>,
    /// The runner, as the server's command names it.
    command: String,
    /// Directory that belongs to this command and these arguments in this upstreams file.
    directory: PathBuf,
    /// What is recorded as installed.
    locked: Option<LockedPackage>,
    verified_trees: Arc<VerifiedTrees>,
}

/// What is started of an installed package.
pub struct PackageLaunch {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Directory of the runner, where its interpreter may be too.
    pub runner_dir: Option<PathBuf>,
}

impl PackageServer {
    /// Returns the package server that this server is, if its command is a package runner.
    pub fn from_server(
        server: &UpstreamServer,
        config: &Config,
        verified_trees: &Arc<VerifiedTrees>,
    ) -> Option<PackageServer> {
        let TransportConfig::Stdio(stdio) = &server.server.transport else { return None };
        let runner = PackageRunner::from_command(&stdio.command)?;
        Some(PackageServer {
            server_id: server.id.clone(),
            request: PackageRequest::parse(runner, &stdio.args),
            command: stdio.command.clone(),
            directory: package_dir(config, &stdio.command, &stdio.args),
            locked: config.upstreams.lock.packages.get(&server.id).cloned(),
            verified_trees: Arc::clone(verified_trees),
        })
    }

    /// Returns the directory of its installed files, which need not exist.
    pub fn tree(&self) -> PathBuf {
        self.directory.join(TREE_DIR)
    }

    /// Returns the recorded digest of its files, if it is installed.
    pub fn recorded_digest(&self) -> Option<&str> {
        self.installed().map(|locked| locked.tree.as_str())
    }

    /// Returns whether `mcp.lock` has the same version with another archive.
    pub fn has_other_archive(&self, new: &LockedPackage) -> bool {
        self.locked.as_ref().is_some_and(|old| {
            (&old.runner, &old.requested, &old.version)
                == (&new.runner, &new.requested, &new.version)
                && old.integrity.is_some()
                && old.integrity != new.integrity
        })
    }

    /// Returns whether it is installed.
    pub fn is_installed(&self) -> bool {
        self.installed().is_some()
    }

    /// Fails unless it is installed. Reads no file.
    pub fn check_installed(&self) -> Result<()> {
        self.request()?;
        match self.installed() {
            Some(_) => Ok(()),
            None => Err(Error::new(
                Kind::Unavailable,
                format!("the package of the server `{}` is not installed", self.server_id),
            )
            .with_reason("not_installed")
            .with_fact("upstream", self.server_id.as_str())
            .with_hint(format!("Install it: `ringfence upstream install {}`.", self.server_id))),
        }
    }

    /// Fails unless its files are exactly those that were installed. They are read only if
    /// something may have changed since they were last compared.
    pub async fn check_unchanged(&self) -> Result<()> {
        self.check_installed()?;
        let recorded = self.recorded_digest().unwrap_or_default().to_owned();
        let (tree, verified) = (self.tree(), Arc::clone(&self.verified_trees));
        let check = tokio::task::spawn_blocking(move || verified.current_digest(&tree));
        let checked = check.await.map_err(|error| {
            Error::internal("the installed package cannot be checked").with_source(error)
        })?;
        let changed = || {
            Error::permission_denied(
                "package_changed",
                format!(
                    "the installed files of the server `{}` are not those that were installed",
                    self.server_id
                ),
            )
            .with_fact("upstream", self.server_id.as_str())
            .with_hint(format!(
                "Have the operator find out who changed them, then run `ringfence upstream install {}`.",
                self.server_id
            ))
        };
        match checked {
            Ok(digest) if digest == recorded => Ok(()),
            Ok(_) => Err(changed()),
            Err(error) => Err(changed().with_source(error)),
        }
    }

    /// Returns what is started of it, by a session with this workspace.
    pub fn launch(&self, workspace: &Workspace) -> Result<PackageLaunch> {
        let (request, tree) = (self.request()?, self.tree());
        let (program, env) = match request.runner.is_python() {
            true => (python::find_program(&tree, request)?, python::start_env(&tree)),
            false => (npm::find_program(&tree, request)?, npm::start_env()),
        };
        let args = request.args.clone();
        Ok(PackageLaunch { program, args, env, runner_dir: self.runner_dir(workspace) })
    }

    /// Returns the directory of the runner, if the command names it and no agent can write there:
    /// what is next to the runner is started too.
    fn runner_dir(&self, workspace: &Workspace) -> Option<PathBuf> {
        if !Path::new(&self.command).is_absolute() {
            return None;
        }
        let entry = ProgramEntry { command: &self.command, path: None, is_privileged: true };
        find_program(&entry, workspace).ok()?.parent().map(Path::to_owned)
    }

    fn request(&self) -> Result<&PackageRequest> {
        self.request.as_ref().map_err(|problem| {
            Error::new(
                Kind::Unavailable,
                format!(
                    "the command of the server `{}` is not understood: {problem}",
                    self.server_id
                ),
            )
            .with_reason("package_command")
            .with_fact("upstream", self.server_id.as_str())
            .with_hint(format!(
                "Install the package by hand and name its program as `command` of the server `{}`.",
                self.server_id
            ))
        })
    }

    /// Returns the record, if it is about what this command asks for and the files exist.
    fn installed(&self) -> Option<&LockedPackage> {
        let request = self.request.as_ref().ok()?;
        let is_recorded = |locked: &&LockedPackage| {
            locked.runner == request.runner.name() && locked.requested == request.packages
        };
        self.locked.as_ref().filter(is_recorded).filter(|_| self.tree().is_dir())
    }
}

impl PackageLaunch {
    /// Returns the environment of the start: the server's own, with what the package needs.
    pub fn complete_env(&self, env: Vec<(String, String)>) -> Vec<(String, String)> {
        merge_env(prepend_path(env, self.runner_dir.as_deref()), self.env.clone())
    }
}

impl VerifiedTrees {
    /// Returns the digest of a tree. Blocks.
    fn current_digest(&self, tree: &Path) -> io::Result<String> {
        let stamp = stamp_tree(tree)?;
        if let Some(verified) = self.0.lock().ignore_poison().get(tree)
            && verified.stamp == stamp
        {
            return Ok(verified.digest.clone());
        }
        let digest = digest_tree(tree)?;
        // A change while it was read makes another stamp, so that it is read again.
        let verified = VerifiedTree { stamp, digest: digest.clone() };
        self.0.lock().ignore_poison().insert(tree.to_owned(), verified);
        Ok(digest)
    }
}

/// Returns the directory that belongs to a command with these arguments in this upstreams file.
fn package_dir(config: &Config, command: &str, args: &[String]) -> PathBuf {
    let digest = digest_json(&json!([command, args]));
    let name = format!("{}{}", owner_prefix(config), digest.trim_start_matches("sha256:"));
    config.root.join(PACKAGES_DIR).join(name)
}

/// Returns how the directories of this upstreams file begin. Files that share a root have lock
/// files of their own, and so installations of their own: an installation for one must neither
/// remove nor replace what another has recorded.
fn owner_prefix(config: &Config) -> String {
    let lock_path = config.upstreams.lock_path.as_deref().unwrap_or(Path::new(""));
    // The same file, however its path is written. It need not exist yet.
    let directory = lock_path.parent().and_then(|parent| parent.canonicalize().ok());
    let path = directory.map_or_else(
        || lock_path.to_owned(),
        |directory| directory.join(lock_path.file_name().unwrap_or_default()),
    );
    let digest = digest_json(&json!(path.as_os_str().as_encoded_bytes()));
    format!("{}-", &digest.trim_start_matches("sha256:")[..16])
}
