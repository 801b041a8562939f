//! `[sandbox]`: access and resource limits of every run.

use std::path::PathBuf;

use jail::limits::ResourceLimits;
use jail::rights::NetworkAccess;

use super::directories;
use super::{Layers, SettingPicker};
use crate::base::{Error, Result};
use crate::config::parse::raw;
use crate::config::values::{HostRequirement, ProfileSetting};

const MIB: u64 = 1024 * 1024;

/// Resolved `[sandbox]`.
#[derive(Debug, Clone)]
pub struct SandboxSettings {
    pub profile: ProfileSetting,
    /// Gives runs the host's whole network.
    pub allow_network: bool,
    /// Host names that the proxy lets through; if these and `allow_addresses` are empty, there is
    /// no network at all.
    pub allow_domains: Vec<String>,
    pub deny_domains: Vec<String>,
    pub allow_addresses: Vec<String>,
    /// For error messages.
    pub flag_entries: FlagEntryCounts,
    /// In addition to the workspace.
    pub writable: Vec<PathBuf>,
    /// Read-only inside writable directories; relative paths start at the workspace.
    pub protect: Vec<PathBuf>,
    /// Writable although protected by default; relative paths start at the workspace.
    pub unprotect: Vec<PathBuf>,
    /// Relative paths start at the workspace.
    pub hide: Vec<PathBuf>,
    /// Features of the kernel without which no command runs.
    pub require: Vec<HostRequirement>,
    pub limits: ResourceLimits,
}

/// Number of entries that come from flags. They are at the end of their list.
#[derive(Debug, Clone, Copy, Default)]
pub struct FlagEntryCounts {
    pub allow_domains: usize,
    pub deny_domains: usize,
    pub allow_addresses: usize,
}

impl SandboxSettings {
    /// Returns the kind of network that runs get.
    pub fn network_mode(&self) -> NetworkAccess {
        match (self.allow_network, self.allow_domains.is_empty() && self.allow_addresses.is_empty())
        {
            (true, _) => NetworkAccess::All,
            (false, true) => NetworkAccess::Off,
            (false, false) => NetworkAccess::Proxied,
        }
    }
}

/// Values from the command line.
#[derive(Debug, Clone, Default)]
pub struct SandboxFlags {
    pub profile: Option<ProfileSetting>,
    pub allow_network: bool,
    pub allow_domains: Vec<String>,
    pub deny_domains: Vec<String>,
    pub allow_addresses: Vec<String>,
    pub writable: Vec<PathBuf>,
    pub protect: Vec<PathBuf>,
    pub unprotect: Vec<PathBuf>,
    pub hide: Vec<PathBuf>,
}

/// Resolves `[sandbox]`.
pub fn resolve_sandbox(
    picker: &mut SettingPicker<'_>,
    flags: &SandboxFlags,
    file: &raw::SandboxSection,
    defaults: &raw::SandboxSection,
) -> Result<SandboxSettings> {
    let profile = Layers {
        flag: flags.profile.map(|profile| (profile, "--profile")),
        ..Layers::file_only(file.profile, defaults.profile)
    };
    let (profile, _) = picker
        .pick("sandbox.profile", profile, |profile: &ProfileSetting| profile.name().to_owned())?;
    if profile == ProfileSetting::Seatbelt && cfg!(not(target_os = "macos")) {
        return Err(Error::invalid_arguments("the profile `seatbelt` is for macOS")
            .with_fact("key", "sandbox.profile")
            .with_hint("Use `default`, the strongest sandbox that this system supports."));
    }
    let network = Layers {
        flag: flags.allow_network.then_some((true, "--allow-network")),
        ..Layers::file_only(file.allow_network, defaults.allow_network)
    };
    macro_rules! texts {
        ($field:ident, $flag:literal) => {
            picker
                .pick(
                    concat!("sandbox.", stringify!($field)),
                    together(&flags.$field, $flag, &file.$field),
                    |all| all.join(", "),
                )?
                .0
        };
    }
    macro_rules! paths {
        ($field:ident, $flag:literal, $settle:expr) => {{
            let written = file
                .$field
                .as_ref()
                .map(|all| all.iter().map(|path| $settle(picker, path)).collect());
            let layers = together(&flags.$field, $flag, &written.transpose()?);
            picker
                .pick(concat!("sandbox.", stringify!($field)), layers, |all: &Vec<PathBuf>| {
                    all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
                })?
                .0
        }};
    }
    macro_rules! number {
        ($field:ident) => {{
            let layers = Layers::file_only(file.$field, defaults.$field);
            picker
                .pick(concat!("sandbox.", stringify!($field)), layers, |value| value.0.to_string())?
                .0
                .0
        }};
    }
    Ok(SandboxSettings {
        profile,
        allow_network: picker.pick("sandbox.allow_network", network, bool::to_string)?.0,
        allow_domains: texts!(allow_domains, "--allow-domain"),
        deny_domains: texts!(deny_domains, "--deny-domain"),
        allow_addresses: texts!(allow_addresses, "--allow-address"),
        flag_entries: FlagEntryCounts {
            allow_domains: flags.allow_domains.len(),
            deny_domains: flags.deny_domains.len(),
            allow_addresses: flags.allow_addresses.len(),
        },
        writable: paths!(writable, "--writable", SettingPicker::resolve_file_path),
        protect: paths!(protect, "--protect", expand_home),
        unprotect: paths!(unprotect, "--unprotect", expand_home),
        hide: paths!(hide, "--hide", expand_home),
        require: picker
            .pick(
                "sandbox.require",
                Layers::file_only(file.require.clone(), Some(Vec::new())),
                |all: &Vec<HostRequirement>| {
                    all.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(", ")
                },
            )?
            .0,
        limits: ResourceLimits {
            memory_bytes: Some(number!(memory_mb) * MIB),
            processes: Some(number!(processes)),
            open_files: Some(number!(open_files)),
            soft_open_files: jail::limits::initial_file_limit(),
            file_bytes: Some(number!(file_mb) * MIB),
            cpu_seconds: Some(number!(cpu_s)),
        },
    })
}

/// Expands `~/` to the home directory; a relative path stays relative, and starts at the workspace.
fn expand_home(picker: &SettingPicker<'_>, path: &std::path::Path) -> Result<PathBuf> {
    match path.starts_with("~") {
        true => directories::make_absolute(path, None, picker.home_dir()),
        false => Ok(path.to_owned()),
    }
}

/// Combines lists: a flag adds to what the file says, and removes nothing from it.
fn together<T: Clone>(flags: &[T], flag: &'static str, file: &Option<Vec<T>>) -> Layers<Vec<T>> {
    let file_values = file.clone().unwrap_or_default();
    let merged: Vec<T> = file_values.iter().chain(flags).cloned().collect();
    match flags.is_empty() {
        true => Layers::file_only(file.clone(), Some(Vec::new())),
        false => Layers { flag: Some((merged, flag)), ..Layers::file_only(None, None) },
    }
}
