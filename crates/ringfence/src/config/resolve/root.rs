//! Resolves the root directory of the server and its workspace.

use std::path::{Path, PathBuf};

use super::ConfigFlags;
use super::config_file::LoadedConfigFile;
use super::directories::{self, ForbiddenDirs, NamedDir};
use super::picker::{Layers, SettingPicker};
use crate::base::{Error, Kind, Result};
use crate::config::env::{self, ProcessEnv};
use crate::config::{Config, SettingOrigin};

const PER_PRINCIPAL: &str = "<root>/workspaces/<principal>";

fn display_path(path: &Path) -> String {
    path.display().to_string()
}

pub fn resolve_root_dir(
    picker: &mut SettingPicker<'_>,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    source: &LoadedConfigFile,
) -> Result<(PathBuf, SettingOrigin)> {
    let to_absolute = |path: &Path| directories::make_absolute(path, env.cwd.as_deref(), None);
    let layers = Layers {
        flag: flags.root.as_deref().map(to_absolute).transpose()?.map(|path| (path, "--root")),
        env: env
            .get_path(env::SANDBOX_ROOT)
            .map(to_absolute)
            .transpose()?
            .map(|path| (path, env::SANDBOX_ROOT)),
        file: source
            .parsed
            .file
            .root
            .as_deref()
            .map(|path| picker.resolve_file_path(path))
            .transpose()?,
        default: default_root(env),
    };
    let (path, origin) =
        picker.pick_optional("root", layers, |path| display_path(path)).ok_or_else(|| {
            Error::invalid_arguments(
                "there is no directory for runtime files: neither HOME nor XDG_STATE_HOME is set",
            )
            .with_hint("Name a directory with `--root` (or SANDBOX_ROOT).")
        })?;
    let path = directories::canonicalize_partial(&path)?;
    if path.parent().is_none() {
        return Err(Error::invalid_arguments("`/` cannot be the root directory of this server")
            .with_hint("Name a directory of its own with `--root` (or SANDBOX_ROOT)."));
    }
    Ok((path, origin))
}

fn default_root(env: &ProcessEnv) -> Option<PathBuf> {
    if cfg!(target_os = "macos") {
        return Some(env.get_absolute(env::HOME)?.join("Library/Application Support/ringfence"));
    }
    let base = match env.get_absolute(env::XDG_STATE_HOME) {
        Some(base) => base.to_owned(),
        None => env.get_absolute(env::HOME)?.join(".local/state"),
    };
    Some(base.join("ringfence"))
}

/// Returns the workspace and the paths closed inside it. Over HTTP there is none unless one is
/// configured: each principal gets its own.
pub fn resolve_workspace(
    picker: &mut SettingPicker<'_>,
    flags: &ConfigFlags,
    env: &ProcessEnv,
    source: &LoadedConfigFile,
    forbidden: &ForbiddenDirs<'_>,
    first: Option<&Config>,
) -> Result<(Option<PathBuf>, Vec<PathBuf>)> {
    let to_absolute = |path: &Path| directories::make_absolute(path, env.cwd.as_deref(), None);
    let layers = Layers {
        flag: flags
            .workspace
            .as_deref()
            .map(to_absolute)
            .transpose()?
            .map(|path| (path, "--workspace")),
        env: env
            .get_path(env::SANDBOX_WORKSPACE)
            .map(to_absolute)
            .transpose()?
            .map(|path| (path, env::SANDBOX_WORKSPACE)),
        file: source
            .parsed
            .file
            .workspace
            .as_deref()
            .map(|path| picker.resolve_file_path(path))
            .transpose()?,
        default: if flags.http.is_none() { env.cwd.clone() } else { None },
    };
    let picked = picker.pick_optional("workspace", layers, |path| display_path(path));
    if let Some(first) = first {
        if picked.is_none() && flags.http.is_some() {
            picker.record_setting("workspace", PER_PRINCIPAL.to_owned(), SettingOrigin::Default);
        }
        let Some(path) = &first.workspace else { return Ok((None, Vec::new())) };
        let closed_paths = directories::check_workspace(
            &NamedDir { path, is_explicit: first.is_explicit("workspace") },
            forbidden,
        )?;
        return Ok((Some(path.clone()), closed_paths));
    }
    let Some((path, origin)) = picked else {
        if flags.http.is_some() {
            picker.record_setting("workspace", PER_PRINCIPAL.to_owned(), SettingOrigin::Default);
            return Ok((None, Vec::new()));
        }
        return Err(Error::invalid_arguments("the current directory no longer exists")
            .with_hint("Name one with `--workspace`."));
    };
    let unusable = || {
        Error::new(
            Kind::NotFound,
            format!("the workspace {} is not a usable directory", path.display()),
        )
        .with_reason("bad_workspace")
        .with_hint("Name an existing directory with `--workspace` (or SANDBOX_WORKSPACE).")
    };
    let path = path.canonicalize().map_err(|error| unusable().with_source(error))?;
    if !path.is_dir() {
        return Err(unusable());
    }
    let closed_paths = directories::check_workspace(
        &NamedDir { path: &path, is_explicit: origin.is_explicit() },
        forbidden,
    )?;
    Ok((Some(path), closed_paths))
}
