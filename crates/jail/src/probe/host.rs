//! Host settings that explain why something was refused. They are read afterwards and decide
//! nothing.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Settings of the host that affect the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSettings {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// This process runs as root.
    pub root: bool,
    /// The kind of container that this appears to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Active security modules of the kernel, if they can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_modules: Option<String>,
    /// Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`.
    pub apparmor_restricts: bool,
    /// Debian's `kernel.unprivileged_userns_clone` is 0.
    pub clone_switched_off: bool,
    /// `user.max_user_namespaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_user_namespaces: Option<u64>,
    /// Yama's `kernel.yama.ptrace_scope`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ptrace_scope: Option<u64>,
    /// A seccomp filter was already in place when we were started.
    pub filtered: bool,
}

impl HostSettings {
    /// Reads the settings of this host.
    pub fn read() -> HostSettings {
        HostSettings {
            kernel: read_text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            root: rustix::process::geteuid().is_root(),
            container: detect_container(),
            security_modules: read_text("/sys/kernel/security/lsm"),
            apparmor_restricts: read_number(
                "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            ) == Some(1),
            clone_switched_off: read_number("/proc/sys/kernel/unprivileged_userns_clone")
                == Some(0),
            max_user_namespaces: read_number("/proc/sys/user/max_user_namespaces"),
            ptrace_scope: read_number("/proc/sys/kernel/yama/ptrace_scope"),
            filtered: has_seccomp_filter(),
        }
    }
}

fn read_text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn read_number(path: &str) -> Option<u64> {
    read_text(path)?.parse().ok()
}

fn has_seccomp_filter() -> bool {
    let status = read_text("/proc/self/status").unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() != "0")
}

fn detect_container() -> Option<String> {
    let markers = [
        ("/.dockerenv", "docker"),
        ("/run/.containerenv", "podman"),
        ("/run/systemd/container", "container"),
    ];
    markers.iter().find(|(path, _)| Path::new(path).exists()).map(|(_, name)| (*name).to_owned())
}
