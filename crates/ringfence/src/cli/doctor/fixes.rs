//! Suggests fixes for failed layers. Host settings are read only to find the likely cause of a
//! failure, never to decide whether a layer works.

use jail::error::Layer;
use jail::probe::{HostSettings, SandboxFeature};
use rustix::io::Errno;

/// Returns the kernel feature that a sandbox layer depends on.
pub fn part_for_layer(layer: Layer) -> Option<SandboxFeature> {
    match layer {
        Layer::UserNamespace => Some(SandboxFeature::UserNamespace),
        Layer::Mounts => Some(SandboxFeature::MountNamespace),
        Layer::Namespaces => Some(SandboxFeature::PidNamespace),
        Layer::Proc => Some(SandboxFeature::Proc),
        Layer::Network => Some(SandboxFeature::NetworkNamespace),
        Layer::Capabilities => Some(SandboxFeature::Capabilities),
        Layer::Landlock => Some(SandboxFeature::Landlock),
        Layer::Seccomp => Some(SandboxFeature::Seccomp),
        Layer::Limits => Some(SandboxFeature::Limits),
        Layer::Exec => Some(SandboxFeature::Trace),
        Layer::Protected
        | Layer::Directory
        | Layer::Canary
        | Layer::Program
        | Layer::Interpreter => None,
    }
}

/// Returns what to do when `part` failed with `errno` on this host.
pub fn suggest_fix(part: SandboxFeature, errno: Option<i32>, host: &HostSettings) -> String {
    let errno = errno.map(Errno::from_raw_os_error);
    match part {
        SandboxFeature::UserNamespace => fix_user_namespace(errno, host),
        SandboxFeature::MountNamespace
        | SandboxFeature::PidNamespace
        | SandboxFeature::NetworkNamespace => fix_namespace(part, errno, host),
        SandboxFeature::Proc => fix_proc(host),
        SandboxFeature::Landlock => fix_landlock(host),
        SandboxFeature::Seccomp => fix_seccomp(errno),
        SandboxFeature::PidfdGetfd => fix_pidfd_getfd(host),
        SandboxFeature::Trace => fix_trace(host),
        SandboxFeature::Limits => fix_limits(),
        SandboxFeature::NoNewPrivileges | SandboxFeature::Capabilities | SandboxFeature::Bwrap => {
            fix_host_policy(host)
        }
    }
}

const CONTAINER_FIX: &str = "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined` \
                      (or a seccomp profile that allows unshare, clone and mount), or use the profile `contained`";

fn fix_user_namespace(errno: Option<Errno>, host: &HostSettings) -> String {
    if errno == Some(Errno::NOSPC) || host.max_user_namespaces == Some(0) {
        return "user.max_user_namespaces is too low: `sudo sysctl -w user.max_user_namespaces=15000`, and the same \
                line in /etc/sysctl.d to make it permanent. For a container, set it on the host."
            .to_owned();
    }
    if host.apparmor_restricts && !host.root {
        return APPARMOR_FIX.to_owned();
    }
    if host.clone_switched_off && !host.root {
        return "`sudo sysctl -w kernel.unprivileged_userns_clone=1`, and the same line in /etc/sysctl.d to make it permanent."
            .to_owned();
    }
    match errno {
        Some(Errno::INVAL | Errno::NOSYS) => {
            "this kernel is built without user namespaces (CONFIG_USER_NS).".to_owned()
        }
        _ => fix_host_policy(host),
    }
}

const APPARMOR_FIX: &str = "AppArmor allows user namespaces only to programs with a profile: install bubblewrap, which may have one, or give this binary a profile (see docs/doctor.md), \
                        or lift the restriction for all programs with `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`.";

fn fix_namespace(part: SandboxFeature, errno: Option<Errno>, host: &HostSettings) -> String {
    let setting = match part {
        SandboxFeature::MountNamespace => "user.max_mnt_namespaces",
        SandboxFeature::PidNamespace => "user.max_pid_namespaces",
        _ => "user.max_net_namespaces",
    };
    match errno {
        Some(Errno::NOSPC) => {
            format!("{setting} is too low: `sudo sysctl -w {setting}=15000`. For a container, set it on the host.")
        }
        Some(Errno::NOSYS) => {
            "this kernel is too old, or a seccomp filter blocks the call: the sandbox needs Linux 5.14 or newer.".to_owned()
        }
        _ if host.apparmor_restricts && !host.root => APPARMOR_FIX.to_owned(),
        _ => fix_host_policy(host),
    }
}

fn fix_proc(host: &HostSettings) -> String {
    match &host.container {
        Some(kind) => format!(
            "{kind} masks parts of /proc, so the kernel does not allow mounting a new one: start the container with \
             `--security-opt systempaths=unconfined` (podman: `--security-opt unmask=ALL`), or use the profile `contained`."
        ),
        None => {
            "a new /proc can be mounted only if the current one is fully visible: something is mounted over parts of it."
                .to_owned()
        }
    }
}

const WITHOUT_LANDLOCK: &str =
    "without it, `default` works in the tier `mounts`, and `contained` does not work.";

fn fix_landlock(host: &HostSettings) -> String {
    match &host.security_modules {
        Some(modules) if !modules.split(',').any(|module| module == "landlock") => format!(
            "Landlock is not enabled: put `lsm=landlock,{modules}` on the kernel's command line and reboot. If the kernel \
             does not have it, it is older than Linux 6.2; {WITHOUT_LANDLOCK}"
        ),
        _ => format!(
            "Linux 6.2 or newer has ABI 3, unless a seccomp filter blocks it; {WITHOUT_LANDLOCK}"
        ),
    }
}

fn fix_seccomp(errno: Option<Errno>) -> String {
    match errno {
        Some(Errno::BUSY) => "another sandbox already has a seccomp listener on this process, and only one is possible: start \
                              ringfence outside of it."
            .to_owned(),
        _ => "the sandbox needs seccomp with a listener (Linux 5.6 or newer); this kernel or the container's policy does not \
              provide it. There is no substitute."
            .to_owned(),
    }
}

fn fix_pidfd_getfd(host: &HostSettings) -> String {
    match host.ptrace_scope {
        Some(3) => "kernel.yama.ptrace_scope is 3, which can only be changed by rebooting with another value; until then no run can open connections.".to_owned(),
        _ => "in a container, add `--cap-add SYS_PTRACE`; without it a run in `contained` cannot connect to its own sockets."
            .to_owned(),
    }
}

fn fix_trace(host: &HostSettings) -> String {
    match host.ptrace_scope {
        Some(3) => "kernel.yama.ptrace_scope is 3, which can only be changed by rebooting with another value. Without tracing no exec can be judged: set `intercept = false` under [policy] to run without rules.".to_owned(),
        _ => "in a container, add `--cap-add SYS_PTRACE`. Without tracing no exec can be judged: set `intercept = false` under [policy] to run without rules.".to_owned(),
    }
}

fn fix_limits() -> String {
    "limits are polled instead, and can be exceeded briefly. To have the kernel enforce them, start ringfence with \
     `systemd-run --user --scope -p Delegate=yes`, or in a container with a writable cgroup v2."
        .to_owned()
}

fn fix_host_policy(host: &HostSettings) -> String {
    match (&host.container, host.filtered) {
        (Some(kind), _) => format!("this looks like {kind}, whose security policy is the likely cause: {CONTAINER_FIX}."),
        (None, true) => {
            format!("a seccomp filter inherited by this process blocks it. In a container, {CONTAINER_FIX}.")
        }
        (None, false) => {
            "a security policy on this host blocks it; the kernel log (`journalctl -k`) names it. A process in a \
                          chroot cannot create user namespaces either."
                .to_owned()
        }
    }
}
