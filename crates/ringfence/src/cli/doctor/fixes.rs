//! What to do about a refusal. Settings of the host are looked at to find the likely cause, and only for that.

use jail::fault::Layer;
use jail::probe::{Host, Part};
use rustix::io::Errno;

/// The part that a layer of the fence rests on.
pub fn part_of(layer: Layer) -> Option<Part> {
    match layer {
        Layer::UserNamespace => Some(Part::UserNamespace),
        Layer::Mounts => Some(Part::MountNamespace),
        Layer::Namespaces => Some(Part::PidNamespace),
        Layer::Proc => Some(Part::Proc),
        Layer::Network => Some(Part::NetworkNamespace),
        Layer::Capabilities => Some(Part::Capabilities),
        Layer::Landlock => Some(Part::Landlock),
        Layer::Seccomp => Some(Part::Seccomp),
        Layer::Limits => Some(Part::Limits),
        Layer::Exec => Some(Part::Trace),
        Layer::Protected
        | Layer::Directory
        | Layer::Canary
        | Layer::Program
        | Layer::Interpreter => None,
    }
}

pub fn of(part: Part, errno: Option<i32>, host: &Host) -> String {
    let errno = errno.map(Errno::from_raw_os_error);
    match part {
        Part::UserNamespace => user_namespace(errno, host),
        Part::MountNamespace | Part::PidNamespace | Part::NetworkNamespace => {
            namespace(part, errno, host)
        }
        Part::Proc => proc(host),
        Part::Landlock => landlock(host),
        Part::Seccomp => seccomp(errno),
        Part::PidfdGetfd => pidfd_getfd(host),
        Part::Trace => trace(host),
        Part::Limits => limits(),
        Part::NoNewPrivileges | Part::Capabilities | Part::Bwrap => started_by(host),
    }
}

const DOCKER: &str = "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined` \
                      (or a seccomp profile that allows unshare, clone and mount), or use the profile `contained`";

fn user_namespace(errno: Option<Errno>, host: &Host) -> String {
    if errno == Some(Errno::NOSPC) || host.max_user_namespaces == Some(0) {
        return "user.max_user_namespaces is too low: `sudo sysctl -w user.max_user_namespaces=15000`, and the same \
                line in /etc/sysctl.d to keep it. In a container it is set outside."
            .to_owned();
    }
    if host.apparmor_restricts && !host.root {
        return APPARMOR.to_owned();
    }
    if host.clone_switched_off && !host.root {
        return "`sudo sysctl -w kernel.unprivileged_userns_clone=1`, and the same line in /etc/sysctl.d to keep it."
            .to_owned();
    }
    match errno {
        Some(Errno::INVAL | Errno::NOSYS) => {
            "this kernel is built without user namespaces (CONFIG_USER_NS).".to_owned()
        }
        _ => started_by(host),
    }
}

const APPARMOR: &str = "AppArmor lets only named programs make user namespaces: install bubblewrap, which may be one of them, or give this binary a profile (docs/doctor.md \
                        has one), or switch it off for all with `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`.";

fn namespace(part: Part, errno: Option<Errno>, host: &Host) -> String {
    let setting = match part {
        Part::MountNamespace => "user.max_mnt_namespaces",
        Part::PidNamespace => "user.max_pid_namespaces",
        _ => "user.max_net_namespaces",
    };
    match errno {
        Some(Errno::NOSPC) => {
            format!("{setting} is too low: `sudo sysctl -w {setting}=15000`. In a container it is set outside.")
        }
        Some(Errno::NOSYS) => {
            "this kernel is too old, or a filter hides the call: the fence needs Linux 5.12 for its mounts.".to_owned()
        }
        _ if host.apparmor_restricts && !host.root => APPARMOR.to_owned(),
        _ => started_by(host),
    }
}

fn proc(host: &Host) -> String {
    match &host.container {
        Some(kind) => format!(
            "{kind} masks parts of /proc, and then no fresh one may be mounted: start the container with \
             `--security-opt systempaths=unconfined` (podman: `--security-opt unmask=ALL`), or use the profile `contained`."
        ),
        None => {
            "a fresh /proc may be mounted only where the present one is whole: something is mounted over parts of it."
                .to_owned()
        }
    }
}

fn landlock(host: &Host) -> String {
    match &host.security_modules {
        Some(modules) if !modules.split(',').any(|module| module == "landlock") => format!(
            "Landlock is not started: put `lsm=landlock,{modules}` on the kernel's command line and boot again. A kernel \
             that does not have it is too old (6.2 or newer is needed)."
        ),
        _ => "the fence needs Landlock of Linux 6.2 or newer (ABI 3), and no filter in the way of its system calls."
            .to_owned(),
    }
}

fn seccomp(errno: Option<Errno>) -> String {
    match errno {
        Some(Errno::BUSY) => "another sandbox already listens to this process's system calls, and there can be one: start \
                              ringfence outside of it."
            .to_owned(),
        _ => "the fence needs seccomp with a listener (Linux 5.6 or newer); a kernel of another make, or a policy of the \
              container, does not give it. Nothing can stand in for it."
            .to_owned(),
    }
}

fn pidfd_getfd(host: &Host) -> String {
    match host.ptrace_scope {
        Some(3) => "kernel.yama.ptrace_scope is 3, which only a boot with another value undoes; without it no run can connect.".to_owned(),
        _ => "in a container add `--cap-add SYS_PTRACE`; without it a run in `contained` cannot connect to sockets of its own."
            .to_owned(),
    }
}

fn trace(host: &Host) -> String {
    match host.ptrace_scope {
        Some(3) => "kernel.yama.ptrace_scope is 3, which only a boot with another value undoes. Without tracing no exec can be judged: set `intercept = false` under [policy] to run without rules.".to_owned(),
        _ => "in a container add `--cap-add SYS_PTRACE`. Without tracing no exec can be judged: set `intercept = false` under [policy] to run without rules.".to_owned(),
    }
}

fn limits() -> String {
    "limits are watched instead, and can be exceeded for a moment. To have them enforced start ringfence with \
     `systemd-run --user --scope -p Delegate=yes`, or in a container with a writable cgroup v2."
        .to_owned()
}

fn started_by(host: &Host) -> String {
    match (&host.container, host.filtered) {
        (Some(kind), _) => format!("this looks like {kind}, whose policy is the likely reason: {DOCKER}."),
        (None, true) => {
            format!("a seccomp filter of whatever started this process refuses it. In a container, {DOCKER}.")
        }
        (None, false) => {
            "a security policy of this host refuses it; its log (`journalctl -k`) says which. A process in a \
                          chroot may not make user namespaces either."
                .to_owned()
        }
    }
}
