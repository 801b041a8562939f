//! Turns the operator's settings into the rights of a run.

use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jail::rights::{NetworkAccess, ProtectedPath, Rights, StandIn, protected_in_repository};
use jail::{control_files, paths_to_cover};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use super::config::SandboxConfig;
use super::hidden::listed_paths;
use crate::base::call::digest_json;
use crate::base::held_dir::HeldDir;
use crate::base::ids::short_id;
use crate::base::workspace::{Workspace, WriteTarget};
use crate::base::{Error, Result, lexical};
use crate::config::{HostRequirement, ProfileSetting};
use crate::net::AllowList;

/// Path below HOME at which git looks for its global ignore list.
const GIT_IGNORE_PATH: &str = ".config/git/ignore";
/// Key files in the root, which unlock what is stored there.
const ROOT_KEYS: &[&str] = &["audit/key", "secrets/key"];

/// Returns what a run in this workspace may touch: one value that both the file tools and the
/// sandbox enforce.
pub fn run_rights(config: &SandboxConfig, workspace: &Path) -> Result<Rights> {
    rights_with_home(config, workspace, cache_home(config, workspace, None)?)
}

/// Returns the rights for one tool alone, with its own HOME, which no one but `owner` uses.
pub fn tool_rights(config: &SandboxConfig, workspace: &Path, owner: &[&str]) -> Result<Rights> {
    rights_with_home(config, workspace, cache_home(config, workspace, Some(owner))?)
}

fn rights_with_home(config: &SandboxConfig, workspace: &Path, home: PathBuf) -> Result<Rights> {
    let sandbox = &config.settings;
    let mut rights = Rights {
        workspace: workspace.to_owned(),
        home: Some(home),
        network: sandbox.network_mode(),
        ..Rights::default()
    };
    for path in &sandbox.writable {
        rights.writable.push(resolve_writable(path)?);
    }
    rights.include_repository();
    rights.unprotected = unprotected_paths(config, &rights)?;
    rights.protect_control_files();
    for path in &sandbox.protect {
        let path = lexical::normalize_path(workspace, path);
        if !rights.writable_roots().any(|root| path.starts_with(root) && path != root) {
            return Err(Error::invalid_arguments("a path in `protect` is not inside a writable directory")
                .with_hint("Everything outside the workspace and `writable` is read-only anyway; name a path inside.")
                .with_source(path.display().to_string()));
        }
        rights
            .protected
            .extend(paths_to_cover(ProtectedPath { path, stand_in: StandIn::Directory }));
    }
    check_link_targets(&rights)?;
    rights.hidden = hidden_paths(config, workspace);
    Ok(rights)
}

/// Refuses a protected name that is a link to a place that runs must be able to write as a whole:
/// nothing there can be covered.
fn check_link_targets(rights: &Rights) -> Result<()> {
    // A name that is itself writable is so by the operator's choice.
    let is_name = |path: &Path| {
        control_files::list_names().any(|(name, _)| rights.workspace.join(name) == path)
    };
    let is_root = |path: &Path| rights.writable_roots().any(|root| root == path);
    match rights.protected.iter().any(|known| is_root(&known.path) && !is_name(&known.path)) {
        true => Err(Error::permission_denied(
            "sandbox",
            "a protected path is a link to a directory that runs must be able to write",
        )
        .with_hint("Make it a plain file or directory, or name it in `unprotect` under [sandbox].")
        .with_source(rights.workspace.display().to_string())),
        false => Ok(()),
    }
}

/// Returns the protected paths that the operator leaves to runs. A path that takes nothing from the
/// list is most likely a mistake.
fn unprotected_paths(config: &SandboxConfig, rights: &Rights) -> Result<Vec<PathBuf>> {
    let control_paths = control_files::list_names().map(|(name, _)| rights.workspace.join(name));
    let for_git =
        rights.repositories.iter().flat_map(|repository| protected_in_repository(repository));
    let protected_paths: Vec<PathBuf> =
        control_paths.chain(for_git.map(|protected| protected.path)).collect();
    let mut unprotected = Vec::new();
    for path in &config.settings.unprotect {
        let path = map_into_repository(rights, lexical::normalize_path(&rights.workspace, path));
        let holds_workspace = rights.workspace.starts_with(&path);
        if holds_workspace || !protected_paths.iter().any(|known| known.starts_with(&path)) {
            let known: Vec<String> = protected_paths
                .iter()
                .map(|known| {
                    known.strip_prefix(&rights.workspace).unwrap_or(known).display().to_string()
                })
                .collect();
            return Err(Error::invalid_arguments("a path in `unprotect` is not a protected one")
                .with_fact("key", "sandbox.unprotect")
                .with_hint(format!(
                    "Name one of these, or a directory with some of them: {}.",
                    known.join(", ")
                ))
                .with_source(path.display().to_string()));
        }
        unprotected.push(path);
    }
    Ok(unprotected)
}

/// Maps a path below `.git` into the repository that it refers to, which is elsewhere for a work
/// tree.
fn map_into_repository(rights: &Rights, path: PathBuf) -> PathBuf {
    let relative_path = path
        .strip_prefix(rights.workspace.join(".git"))
        .ok()
        .filter(|relative_path| !relative_path.as_os_str().is_empty());
    match (relative_path, rights.repositories.first()) {
        (Some(relative_path), Some(repository)) => repository.join(relative_path),
        _ => path,
    }
}

/// Returns the workspace with everything hidden that has become private since it was opened.
pub fn workspace_hiding_private(
    workspace: &Arc<Workspace>,
    config: &SandboxConfig,
) -> Arc<Workspace> {
    match hides_private_paths(workspace.rights(), config) {
        true => Arc::clone(workspace),
        false => Arc::new(workspace.with_restrictions(|rights| hide_private_paths(rights, config))),
    }
}

pub(super) fn hides_private_paths(rights: &Rights, config: &SandboxConfig) -> bool {
    // As text: to compare as paths means to parse both, for each pair, with each call.
    let is_hidden =
        |path: &PathBuf| rights.hidden.iter().any(|other| other.as_os_str() == path.as_os_str());
    config.host.private_paths.iter().all(is_hidden)
}

pub(super) fn hide_private_paths(rights: &mut Rights, config: &SandboxConfig) {
    rights.hidden.extend(config.host.private_paths.iter().cloned());
    sort_paths(&mut rights.hidden);
}

/// Sorts paths as text, which puts a directory before what is in it, too. To compare them as paths
/// means to parse both each time.
fn sort_paths(paths: &mut Vec<PathBuf>) {
    paths.sort_unstable_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    paths.dedup();
}

/// Refuses settings that the profile cannot enforce, rather than enforce less than they say.
pub fn check_profile(config: &SandboxConfig) -> Result<()> {
    let sandbox = &config.settings;
    proxy_allow_list(config)?;
    if sandbox.allow_network && !sandbox.deny_domains.is_empty() {
        return Err(Error::invalid_arguments("`deny_domains` has no effect with `allow_network`")
            .with_fact("key", "sandbox.deny_domains")
            .with_hint("With the host's whole network nothing is filtered. Use `allow_domains`, or remove one of the two."));
    }
    if sandbox.profile == ProfileSetting::Default
        && sandbox.require.contains(&HostRequirement::Landlock3)
        && !jail::has_required_landlock()
    {
        return Err(Error::permission_denied(
            "sandbox",
            "this kernel has no Landlock 3, which `require` names",
        )
        .with_fact("key", "sandbox.require")
        .with_hint("Use Linux 6.2 or newer with Landlock enabled, or remove the key to run in the tier `mounts`."));
    }
    if sandbox.profile == ProfileSetting::Contained {
        let unsupported = |action: &str, key: &str| {
            Error::invalid_arguments(format!("the profile `contained` cannot {action}"))
                .with_fact("key", key)
                .with_hint("Use the profile `default`, or remove the key.")
        };
        if !sandbox.protect.is_empty() {
            return Err(unsupported("protect paths inside the workspace", "sandbox.protect"));
        }
        if !sandbox.unprotect.is_empty() {
            return Err(unsupported(
                "protect anything that could be left out",
                "sandbox.unprotect",
            ));
        }
        if !sandbox.hide.is_empty() {
            return Err(unsupported("hide paths", "sandbox.hide"));
        }
        if sandbox.network_mode() == NetworkAccess::Proxied {
            return Err(unsupported("filter the network", "sandbox.profile"));
        }
    }
    Ok(())
}

/// Returns the allow-list for the proxy of a run, if it has one.
pub fn proxy_allow_list(config: &SandboxConfig) -> Result<Option<AllowList>> {
    let sandbox = &config.settings;
    match sandbox.network_mode() {
        NetworkAccess::Proxied => AllowList::from_merged_lists(
            &sandbox.allow_domains,
            &sandbox.deny_domains,
            &sandbox.allow_addresses,
            sandbox.flag_entries,
        )
        .map(Some),
        NetworkAccess::Off | NetworkAccess::All => Ok(None),
    }
}

fn resolve_writable(path: &Path) -> Result<PathBuf> {
    let hint = "Name an existing directory, other than `/`, in `writable`.";
    let resolved = path
        .canonicalize()
        .ok()
        .filter(|resolved| resolved.is_dir() && resolved.parent().is_some());
    resolved.ok_or_else(|| {
        Error::invalid_arguments("a path in `writable` cannot be made writable")
            .with_hint(hint)
            .with_source(path.display().to_string())
    })
}

/// Directory for temporary files of a session without its own /tmp. Removed when dropped.
pub struct ScratchDir {
    _held: HeldDir,
}

impl ScratchDir {
    /// Creates the directory if the profile needs one, and adds it to the rights.
    pub fn create(config: &SandboxConfig, rights: &mut Rights) -> Result<Option<ScratchDir>> {
        if config.settings.profile != ProfileSetting::Contained {
            return Ok(None);
        }
        let held_dir =
            HeldDir::create(config.host.root.join("tmp").join(short_id("t"))).map_err(|error| {
                Error::internal("cannot create the directory for temporary files")
                    .with_source(error)
            })?;
        rights.scratch = Some(held_dir.path().to_owned());
        Ok(Some(ScratchDir { _held: held_dir }))
    }
}

pub(super) fn hidden_paths(config: &SandboxConfig, workspace: &Path) -> Vec<PathBuf> {
    let host = &*config.host;
    let listed = listed_paths(host, workspace);
    let configured =
        config.settings.hide.iter().map(|path| lexical::normalize_path(workspace, path));
    // The configured home of Codex. In the workspace it would hide a part of that, and is the
    // operator's own choice.
    let codex_home = host
        .codex_home
        .iter()
        .filter(|home| !home.starts_with(workspace) && !workspace.starts_with(home));
    let private_paths = host
        .config_file
        .iter()
        .chain(&host.log_file)
        .chain(&host.private_paths)
        .chain(codex_home)
        .cloned();
    // The log, the sockets and other callers' files are in the root; what a run needs of it is
    // opened on top. The keys are listed one by one, so that the canary of every run tries to read
    // them wherever the root is.
    let root_paths =
        [host.root.clone()].into_iter().chain(ROOT_KEYS.iter().map(|key| host.root.join(key)));
    let mut hidden: Vec<PathBuf> =
        listed.into_iter().chain(configured).chain(private_paths).chain(root_paths).collect();
    sort_paths(&mut hidden);
    hidden
}

/// Returns the HOME of a run, creating it if necessary: one for each workspace, so that caches
/// persist and nothing of one project reaches another.
pub(super) fn cache_home(
    config: &SandboxConfig,
    workspace: &Path,
    owner: Option<&[&str]>,
) -> Result<PathBuf> {
    let workspace_json = serde_json::Value::from(workspace.display().to_string());
    let name = digest_json(&owner.map_or_else(
        || workspace_json.clone(),
        |owner| serde_json::json!([workspace_json, owner]),
    ));
    let home = config
        .host
        .root
        .join("homes")
        .join(name.trim_start_matches("sha256:").get(..16).unwrap_or("0"));
    DirBuilder::new().recursive(true).mode(0o700).create(&home).map_err(|error| {
        Error::internal("cannot create the cache directory of the workspace").with_source(error)
    })?;
    // A run may have made this impossible, which hurts only itself.
    if let Err(error) = ignore_stand_ins(config, &home) {
        tracing::debug!("cannot write git's ignore list: {error}");
    }
    Ok(home)
}

/// Makes git ignore the stand-ins for missing protected directories: `git clean` would try to
/// remove them.
fn ignore_stand_ins(config: &SandboxConfig, home: &Path) -> std::io::Result<()> {
    let user_ignores = config.host.home.as_ref().map(|home| home.join(".config/git/ignore"));
    let user_ignores =
        user_ignores.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    // With a trailing slash they match only directories: a real `.mcp.json` is not ignored.
    let names: String =
        control_files::list_names().map(|(name, _)| format!("/{}/\n", name.display())).collect();
    // A run may have put anything here, even a link to elsewhere, so it is opened like any path
    // from a caller.
    let Ok(WriteTarget::Ready { dir, .. }) =
        Workspace::open(home, &[]).and_then(|home| home.find_write_target(GIT_IGNORE_PATH, true))
    else {
        return Ok(());
    };
    let content = format!("{user_ignores}{names}");
    // Replacing a file makes the disk write, and nothing has changed since most starts.
    if is_content(&dir, "ignore", content.as_bytes()) {
        return Ok(());
    }
    let _ = unlinkat(&dir, "ignore.new", AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new_file = openat(&dir, "ignore.new", flags, Mode::from_raw_mode(0o600))?;
    std::fs::File::from(new_file).write_all(content.as_bytes())?;
    Ok(renameat(&dir, "ignore.new", &dir, "ignore")?)
}

/// Returns whether a file that a run may have made is a regular one with exactly this content.
fn is_content(dir: &OwnedFd, name: &str, content: &[u8]) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(dir, name, flags, Mode::empty()).map(std::fs::File::from) else {
        return false;
    };
    let is_same_length =
        |metadata: std::fs::Metadata| metadata.is_file() && metadata.len() == content.len() as u64;
    let mut found = vec![0; content.len()];
    file.metadata().is_ok_and(is_same_length)
        && (&file).read_exact(&mut found).is_ok()
        && found == content
}

/// Returns the variables that programs need to work in the sandbox.
pub fn sandbox_environment(config: &SandboxConfig, rights: &Rights) -> Vec<(String, String)> {
    let mut env = Vec::new();
    let mut set =
        |name: &str, value: &Path| env.push((name.to_owned(), value.display().to_string()));
    if let Some(home) = &rights.home {
        set("HOME", home);
    }
    if let Some(scratch) = &rights.scratch {
        set("TMPDIR", scratch);
    }
    if let Some(home) = &config.host.home {
        // The identity for commits and the toolchain are the user's own choice; both are read-only.
        let git_config = [home.join(".gitconfig"), home.join(".config/git/config")];
        if let Some(git_config) = git_config.iter().find(|path| path.is_file()) {
            set("GIT_CONFIG_GLOBAL", git_config);
        }
    }
    if let Some(rustup) = config.host.rustup_home.as_ref().filter(|path| path.is_dir()) {
        set("RUSTUP_HOME", rustup);
    }
    // The leak check traces its own process, which no run may do.
    set("ASAN_OPTIONS", Path::new("detect_leaks=0"));
    set("LSAN_OPTIONS", Path::new("detect_leaks=0"));
    env
}
