//! Installs the package of a server: plan, download in a sandbox, check, and take it into use.
//!
//! Everything happens in a new directory, which replaces the installed one as a whole or is
//! removed.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_client::LockedPackage;
use ringfence_client::config::TransportConfig;

use super::super::start::StartContext;
use super::manager::{InstallPaths, ManagerCommand, PackageManager, manager_env};
use super::registry::{RegistryAccess, public_registry, registry_from_env};
use super::request::{PackageRequest, PackageRunner};
use super::tool_run::{ToolEnd, ToolLaunch, run_tool};
use super::tree::digest_tree;
use super::{PACKAGES_DIR, PackageServer, owner_prefix, package_dir};
use crate::base::held_dir::{HeldDir, sweep_abandoned};
use crate::base::ids::short_id;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::sandbox::{InstallSpec, SandboxConfig, env, open_install_sandbox};

/// Directory of installations in progress, in the directory of their command.
const STAGING_DIR: &str = "new";
/// Held while a process installs.
const LOCK_FILE: &str = "install.lock";
/// Starts a program without some of its variables.
const ENV_PROGRAM: &str = "/usr/bin/env";

/// Installation that can be shown to the operator and then made.
pub struct InstallPlan<'a> {
    package: &'a PackageServer,
    request: &'a PackageRequest,
    context: &'a StartContext,
    manager: PackageManager,
    pub registry: RegistryAccess,
    pub run_scripts: bool,
    staging: HeldDir,
    lock: File,
}

/// Package that was installed and is not in use yet. Dropping it removes it.
pub struct NewPackage {
    /// What is to be recorded.
    pub locked: LockedPackage,
    /// Program that is started.
    pub program: String,
    staging: HeldDir,
    /// Never read: other processes wait until it is in use or removed.
    _lock: File,
}

impl<'a> InstallPlan<'a> {
    /// Finds the package manager and the registry. Nothing is downloaded.
    pub async fn new(
        package: &'a PackageServer,
        context: &'a StartContext,
        run_scripts: bool,
    ) -> Result<InstallPlan<'a>> {
        let request = package.request()?;
        let lock = lock_packages(&context.config)?;
        let manager = PackageManager::find(package, request, context)?;
        sweep_abandoned(&package.directory.join(STAGING_DIR));
        let staging = create_staging(&package.directory).map_err(|error| {
            Error::internal("cannot create the directory of the installation").with_source(error)
        })?;
        let manager = manager.without_wrapper(package, context, staging.path()).await?;
        let is_python = request.runner.is_python();
        let (url, is_named) = match registry_from_env(is_python) {
            Some(url) => (url, true),
            None => match manager.ask_registry(package, context, staging.path()).await? {
                Some(url) => (url, true),
                None => (public_registry(is_python).to_owned(), false),
            },
        };
        let registry = RegistryAccess::find(&url, is_named).await?;
        Ok(InstallPlan { package, request, context, manager, registry, run_scripts, staging, lock })
    }

    /// Returns what it would do, for people.
    pub fn describe(&self) -> String {
        let scripts = match (self.run_scripts, self.request.runner.is_python()) {
            (true, _) => "Code of the packages runs in the sandbox while they are installed.",
            (false, false) => "Install scripts do not run.",
            (false, true) => "Only wheels are installed, which run no code.",
        };
        let was = match self.package.installed() {
            Some(locked) => format!(" Version {} is installed now.", locked.version),
            None => String::new(),
        };
        format!(
            "{} from {}, by {}. {scripts}{was}\n",
            self.request.packages.join(", "),
            self.registry.host,
            self.manager.program().display()
        )
    }

    /// Downloads and checks the packages. Every line of the package manager is passed on.
    pub async fn install(self, on_line: &mut dyn FnMut(&str)) -> Result<NewPackage> {
        let paths = InstallPaths::new(self.staging.path());
        let command = self.manager.install_command(self.request, &paths, self.run_scripts);
        for (name, text) in &command.files {
            std::fs::write(paths.tree.join(name), text).map_err(|error| {
                Error::internal("cannot write the files of the installation").with_source(error)
            })?;
        }
        let end = self.run_manager(command, &paths, on_line).await?;
        if !end.has_succeeded {
            return Err(self.explain_failure(&end));
        }
        let tree = paths.tree.clone();
        let digest = tokio::task::spawn_blocking(move || digest_tree(&tree)).await;
        let digest = digest.map_err(io::Error::other).and_then(|digest| digest);
        // Before anything in the tree is read: a package may have put links and pipes there.
        let digest = digest.map_err(|error| {
            Error::permission_denied("package_contents", error.to_string())
                .with_hint("Do not use this package.")
        })?;
        let (program, version) = self.manager.inspect(self.request, &paths)?;
        let locked = LockedPackage {
            runner: self.request.runner.name().to_owned(),
            requested: self.request.packages.clone(),
            version: version.version,
            integrity: version.integrity,
            tree: digest,
        };
        let program = program.file_name().unwrap_or_default().display().to_string();
        Ok(NewPackage { locked, program, staging: self.staging, _lock: self.lock })
    }

    async fn run_manager(
        &self,
        command: ManagerCommand,
        paths: &InstallPaths,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<ToolEnd> {
        let sandbox_config = SandboxConfig::from_config(&self.context.config);
        let spec = InstallSpec {
            directory: &paths.staging,
            home: &paths.home,
            workspace: self.context.session_workspace.path(),
            programs: &[self.manager.program().to_owned()],
            allow_domains: self.registry.allow_domains.clone(),
            allow_addresses: self.registry.allow_addresses.clone(),
        };
        let sandbox = open_install_sandbox(&sandbox_config, spec)?;
        let mut own_env = command.env;
        own_env.extend(env::certificate_settings());
        own_env.extend(self.manager.registry_env(&self.registry.url));
        let mut args = vec![command.program.display().to_string()];
        args.extend(command.args);
        // The proxy is the only way out, also to this machine.
        let unset = ["-u", "NO_PROXY", "-u", "no_proxy"].map(str::to_owned);
        let program = match self.registry.is_loopback {
            true => ENV_PROGRAM.to_owned(),
            false => args.remove(0),
        };
        if self.registry.is_loopback {
            args.splice(0..0, unset);
        }
        let launch = ToolLaunch {
            program,
            args,
            env: env::merge_env(manager_env(self.package, self.context)?, own_env),
            directory: &paths.staging,
            merge_stderr: true,
        };
        run_tool(self.context, &sandbox, launch, on_line).await
    }

    fn explain_failure(&self, end: &ToolEnd) -> Error {
        let name = self.manager.program().file_name().unwrap_or_default().display();
        let refused = match end.refused_hosts.is_empty() {
            true => String::new(),
            false => format!("; it was not let through to {}", end.refused_hosts.join(", ")),
        };
        Error::new(
            Kind::Unavailable,
            format!("`{name}` could not install the package: {}{refused}", end.description),
        )
        .with_reason("install_failed")
        .with_hint("Its own words are above. Nothing was changed.")
    }
}

impl NewPackage {
    /// Replaces what is installed. Blocks.
    pub fn activate(&self, package: &PackageServer) -> Result<()> {
        let tree = package.tree();
        // The same files stay where they are: servers may be running from them.
        if digest_tree(&tree).is_ok_and(|digest| digest == self.locked.tree) {
            return Ok(());
        }
        let replace = || {
            match std::fs::rename(&tree, self.staging.path().join("old")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            std::fs::rename(self.staging.path().join(super::TREE_DIR), &tree)
        };
        replace().map_err(|error| {
            Error::internal("the installed files cannot be taken into use").with_source(error)
        })
    }
}

impl PackageServer {
    /// Returns all servers with the same command and arguments, and so with the same files.
    pub fn list_users(&self, config: &Config) -> Vec<String> {
        let servers = package_dirs(config).filter(|(_, directory)| *directory == self.directory);
        servers.map(|(id, _)| id.to_owned()).collect()
    }
}

/// Removes the directories of this upstreams file that none of its servers uses. Those of other
/// files are not touched.
pub fn remove_unused(config: &Config) {
    let used: BTreeSet<PathBuf> = package_dirs(config).map(|(_, directory)| directory).collect();
    let prefix = owner_prefix(config);
    let entries = std::fs::read_dir(config.root.join(PACKAGES_DIR)).into_iter().flatten();
    let own = entries
        .filter_map(io::Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    for path in own.map(|entry| entry.path()) {
        if path.is_dir()
            && !used.contains(&path)
            && let Err(error) = std::fs::remove_dir_all(&path)
        {
            tracing::warn!("cannot remove an unused package: {error}");
        }
    }
}

/// Returns the servers whose command is a package runner, each with its directory.
fn package_dirs(config: &Config) -> impl Iterator<Item = (&str, PathBuf)> {
    config.upstreams.servers.values().filter_map(|server| match &server.server.transport {
        TransportConfig::Stdio(stdio) => PackageRunner::from_command(&stdio.command)
            .map(|_| (server.id.as_str(), package_dir(config, &stdio.command, &stdio.args))),
        TransportConfig::Http(_) | TransportConfig::Sse(_) => None,
    })
}

/// Keeps other processes from installing at the same time.
fn lock_packages(config: &Config) -> Result<File> {
    let directory = config.root.join(PACKAGES_DIR);
    let lock_error = |error: io::Error| {
        Error::internal("cannot lock the directory of the packages").with_source(error)
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(lock_error)?;
    let options = OpenOptions::new().write(true).create(true).mode(0o600).clone();
    let file = options.open(directory.join(LOCK_FILE)).map_err(lock_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Error::new(Kind::Conflict, "another installation is in progress")
                .with_hint("Wait until it ends."))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(lock_error(error)),
    }
}

fn create_staging(directory: &Path) -> io::Result<HeldDir> {
    let staging = HeldDir::create(directory.join(STAGING_DIR).join(short_id("i")))?;
    let paths = InstallPaths::new(staging.path());
    for directory in [&paths.tree, &paths.home, &paths.cache] {
        DirBuilder::new().mode(0o755).create(directory)?;
    }
    Ok(staging)
}
