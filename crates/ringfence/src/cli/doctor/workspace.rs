//! Directories for the trials: the workspace and root that a run would use, or temporary ones if
//! the config cannot be used.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jail::rights::NetworkAccess;
use rustix::fs::Access;

use super::canary::{CanaryTask, FORBIDDEN};
use crate::config::{Config, ConfigFlags};
use crate::sandbox::self_test::SelfTest;

/// Directories, files and listener used by the trials. Dropping it removes everything it created.
pub struct TrialWorkspace {
    /// Directory for the probes of single layers.
    pub probe_dir: PathBuf,
    pub trial: SelfTest,
    pub task: CanaryTask,
    /// Server on the host; a run without the host's network must not be able to reach it.
    pub listener: Option<TcpListener>,
    pub network: NetworkAccess,
    scratch_dir: PathBuf,
}

impl TrialWorkspace {
    /// Creates the directories, in the configured root and workspace where possible.
    pub fn create(config: Option<&Config>, flags: &ConfigFlags) -> io::Result<TrialWorkspace> {
        let name = format!("doctor-{}", std::process::id());
        let configured = config.and_then(|config| Some((config, config.workspace.as_deref()?)));
        let scratch = match configured {
            Some((config, _)) => config.root.join(name),
            None => std::env::temp_dir().canonicalize()?.join(format!("ringfence-{name}")),
        };
        create_private_dir(&scratch)?;
        let result = match configured {
            Some((config, workspace)) => {
                TrialWorkspace::in_configured_dirs(config, workspace, flags, &scratch)
            }
            None => TrialWorkspace::in_scratch_dirs(&scratch),
        };
        result.inspect_err(|_| drop(fs::remove_dir_all(&scratch)))
    }

    fn in_configured_dirs(
        config: &Config,
        workspace: &Path,
        flags: &ConfigFlags,
        scratch: &Path,
    ) -> io::Result<TrialWorkspace> {
        let mut location_flags = vec![
            "--root".into(),
            config.root.clone().into(),
            "--workspace".into(),
            workspace.into(),
        ];
        if let Some(file) = &flags.config {
            location_flags.extend(["--config".into(), std::path::absolute(file)?.into()]);
        }
        let env = std::env::vars_os().collect();
        let mut outside_dirs = vec![scratch.to_owned()];
        outside_dirs
            .extend(config.home.iter().cloned().chain(workspace.parent().map(Path::to_owned)));
        let writable: Vec<&Path> = config
            .default_sandbox
            .writable
            .iter()
            .map(PathBuf::as_path)
            .chain([workspace])
            .collect();
        outside_dirs.retain(|folder| !writable.iter().any(|root| folder.starts_with(root)));
        let mut trial_workspace = TrialWorkspace::with_canaries(
            scratch,
            (location_flags, env, workspace),
            &outside_dirs,
            config.default_sandbox.network_mode(),
        )?;
        if config.policy.intercept && jail::intercept::exec::SUPPORTED {
            trial_workspace.add_canary_rule(scratch)?;
        }
        Ok(trial_workspace)
    }

    fn in_scratch_dirs(scratch: &Path) -> io::Result<TrialWorkspace> {
        let [root, workspace, home] = ["root", "workspace", "home"].map(|name| scratch.join(name));
        for folder in [&root, &workspace, &home] {
            create_private_dir(folder)?;
        }
        let flags = vec![
            "--root".into(),
            root.clone().into(),
            "--workspace".into(),
            workspace.clone().into(),
        ];
        // Nothing from the user's environment, so that no config file is found.
        let env = vec![
            ("HOME".into(), home.clone().into()),
            ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
        ];
        let mut trial_workspace = TrialWorkspace::with_canaries(
            scratch,
            (flags, env, &workspace),
            &[home],
            NetworkAccess::Off,
        )?;
        // A run must not be able to see the root directory.
        let hidden = root.join("secret");
        fs::write(&hidden, "not for a run\n")?;
        trial_workspace.task.hidden = Some(hidden);
        if jail::intercept::exec::SUPPORTED {
            trial_workspace.add_canary_rule(scratch)?;
        }
        Ok(trial_workspace)
    }

    /// Adds a rule that forbids a program name that exists nowhere else.
    fn add_canary_rule(&mut self, scratch: &Path) -> io::Result<()> {
        let file = scratch.join("canary.rules");
        fs::write(
            &file,
            format!("prefix_rule(pattern=[\"{FORBIDDEN}\"], decision=\"forbidden\")\n"),
        )?;
        self.trial.location_flags.extend(["--rules".into(), file.into()]);
        self.task.ruled = true;
        Ok(())
    }

    fn with_canaries(
        scratch: &Path,
        (location_flags, env, workspace): (Vec<OsString>, Vec<(OsString, OsString)>, &Path),
        outside_dirs: &[PathBuf],
        network: NetworkAccess,
    ) -> io::Result<TrialWorkspace> {
        let probe_dir = scratch.join("probes");
        create_private_dir(&probe_dir)?;
        let hidden = scratch.join("secret");
        fs::write(&hidden, "not for a run\n")?;
        let listener = match network {
            NetworkAccess::All => None,
            NetworkAccess::Off | NetworkAccess::Proxied => TcpListener::bind("127.0.0.1:0").ok(),
        };
        let name = format!(".ringfence-doctor-{}", std::process::id());
        let task = CanaryTask {
            write: outside_dirs
                .iter()
                .filter(|folder| is_writable(folder))
                .map(|folder| folder.join(&name))
                .collect(),
            protected: Some(workspace.join(".ringfence").join(&name)),
            hidden: Some(hidden),
            reach: listener.as_ref().and_then(|listener| listener.local_addr().ok()),
            process: None,
            ruled: false,
        };
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        let report = scratch.join("report");
        let trial = SelfTest { location_flags, env, working_dir: workspace.to_owned(), report };
        Ok(TrialWorkspace {
            probe_dir,
            trial,
            task,
            listener,
            network,
            scratch_dir: scratch.to_owned(),
        })
    }

    /// Removes what a run wrote outside and returns whether there was anything, whatever the run
    /// itself reported.
    pub fn remove_written(&self) -> bool {
        // The run reports this one itself; only remove it from the workspace.
        let _ = self.task.protected.as_ref().map(fs::remove_file);
        self.task.write.iter().filter(|path| fs::remove_file(path).is_ok()).count() > 0
    }

    /// Returns whether a run connected to the listener.
    pub fn was_reached(&self) -> bool {
        self.listener.as_ref().is_some_and(|listener| listener.accept().is_ok())
    }
}

impl Drop for TrialWorkspace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch_dir);
    }
}

/// Creates a directory for the owner only. Fails if it exists: then another process created it.
fn create_private_dir(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)
}

fn is_writable(folder: &Path) -> bool {
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}
