//! Ways to more rights: other users, other namespaces, and the system calls that no tool of a project needs.

use std::os::unix::fs::{PermissionsExt, chown};

use super::{Cx, Effect, by_default, everywhere, held, is_root, unchanged};

/// Every attempt of the probe must end with this error, which is part of the promise.
fn ends_with(cx: &Cx, error: &str, script: &str) -> Effect {
    cx.python(script, &[]).refused_with(error)
}

#[test]
fn no_right_is_kept_and_none_can_be_gained() {
    everywhere().holds(|cx| {
        let run = cx.bash("grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status", &[]);
        held(run.stdout.contains("NoNewPrivs:\t1"), "new privileges can be gained")?;
        held(run.stdout.contains("Seccomp:\t2"), "no filter is in place")
    });
}

#[test]
fn no_capability_is_kept() {
    by_default().bare_as_root().holds(|cx| {
        let run = cx.bash("grep ^Cap /proc/self/status", &[]);
        let mut sets = run.stdout.lines().filter(|line| line.starts_with("Cap"));
        held(sets.all(|line| line.ends_with("\t0000000000000000")), run.stdout.clone())
    });
}

/// A program that makes whoever runs it root, as `su` is one.
fn setuid(path: &str) -> String {
    std::fs::copy("/usr/bin/id", path).unwrap();
    let owner = if is_root() { Some(0) } else { None };
    chown(path, owner, owner).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o6755)).unwrap();
    path.to_owned()
}

fn keeps_its_user(cx: &Cx, path: &str) -> Effect {
    let program = setuid(path);
    let run = cx.bash(r#"echo before $(id -u); echo after $("$1" -u)"#, &[&program]);
    held(run.word("before") == run.word("after"), format!("it runs as {}", run.word("after")))
}

/// Only root can lay it out, so that without root this says no more than that it runs.
#[test]
fn a_setuid_program_of_the_system_gives_no_rights() {
    let attack = if is_root() { everywhere() } else { everywhere().never_bare() };
    attack.holds(|cx| keeps_its_user(cx, &cx.path("outside/id")));
}

#[test]
fn a_setuid_program_in_the_workspace_gives_no_rights() {
    let attack = if is_root() { everywhere() } else { everywhere().never_bare() };
    attack.holds(|cx| keeps_its_user(cx, &cx.workspace("id")));
}

/// Inside, such a program is worth nothing; the file itself stays in the workspace, where others may find it.
#[test]
fn a_setuid_program_made_inside_gives_no_rights_outside() {
    everywhere().holds(|cx| {
        let run = cx.bash("cp /usr/bin/id mine; chmod 6755 mine; echo maker $(id -u)", &[]);
        let program = cx.workspace("mine");
        if !is_root() {
            // Nobody else is at hand to run it, so that its mode has to tell.
            let mode = std::fs::metadata(&program).unwrap().permissions().mode();
            return held(mode & 0o6000 == 0, format!("its mode is {mode:o}"));
        }
        let other = ["--reuid", "65534", "--regid", "65534", "--clear-groups", &program, "-u"];
        let output = std::process::Command::new("setpriv").args(other).output().unwrap();
        let user = String::from_utf8(output.stdout).unwrap();
        held(user.trim() != run.word("maker"), format!("somebody else became user {user}"))
    });
}

#[test]
fn nobody_becomes_another_user() {
    let script = r"
tried('user', lambda: os.setresuid(12345, 12345, 12345))
tried('group', lambda: os.setresgid(12345, 12345, 12345))
tried('groups', lambda: os.setgroups([12345]))
";
    everywhere().bare_as_root().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn no_user_namespace_is_made() {
    let script = "tried('unshare', lambda: syscall('unshare', 0x10000000)); tried('with mounts', lambda: syscall('unshare', 0x10020000))";
    everywhere().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn no_namespace_of_any_kind_is_made() {
    let script = "for flag in [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x80]: tried(hex(flag), lambda: syscall('unshare', flag))";
    everywhere().bare_as_root().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn no_child_is_born_into_a_namespace() {
    let script = r"
def born(flags):
    child = syscall('clone', flags | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
for flag in [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]:
    tried(hex(flag), lambda: born(flag))
    tried(hex(flag), lambda: born(flag | 0x10000000))
";
    everywhere().holds(|cx| ends_with(cx, "EPERM", script));
}

/// The newer call has its flags in memory, where a filter cannot see them.
#[test]
fn no_child_is_born_by_the_newer_call() {
    let script = r"
def born():
    arguments = struct.pack('=8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)
    child = syscall('clone3', arguments, 64)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
tried('clone3', born)
";
    everywhere().holds(|cx| ends_with(cx, "ENOSYS", script));
}

#[test]
fn no_namespace_is_entered() {
    let script = r"
for name in ['mnt', 'net', 'pid', 'ipc', 'uts', 'cgroup']:
    tried(name, lambda: syscall('setns', os.open('/proc/self/ns/' + name, os.O_RDONLY), 0))
tried('pidfd', lambda: syscall('setns', os.pidfd_open(os.getpid()), 0x4000000))
";
    everywhere().bare_as_root().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn nothing_is_mounted() {
    let script = r"
os.mkdir('at')
tried('bind', lambda: syscall('mount', b'/', b'at', 0, 4096, 0))
tried('tmpfs', lambda: syscall('mount', b'tmpfs', b'at', b'tmpfs', 0, 0))
tried('proc', lambda: syscall('mount', b'proc', b'at', b'proc', 0, 0))
tried('writable', lambda: syscall('mount', 0, b'/', 0, 32 | 4096, 0))
tried('private', lambda: syscall('mount', 0, b'/', 0, 0x44000, 0))
";
    everywhere().never_bare().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn nothing_is_unmounted() {
    let script = r"
for path in [b'/proc', b'/tmp', b'/proc/sys', b'/dev', b'.', b'/']:
    for flags in [0, 2, 8]:
        tried('umount', lambda: syscall('umount2', path, flags))
tried('pivot', lambda: syscall('pivot_root', b'.', b'.'))
";
    everywhere().never_bare().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn nothing_is_mounted_by_the_newer_calls() {
    let script = r"
tried('open_tree', lambda: syscall('open_tree', -100, b'/', 1))
tried('bare open_tree', lambda: syscall('open_tree', -100, b'/', 0))
tried('fsopen', lambda: syscall('fsopen', b'tmpfs', 0))
tried('fspick', lambda: syscall('fspick', -100, b'/', 0))
tried('fsmount', lambda: syscall('fsmount', 0, 0, 0))
tried('fsconfig', lambda: syscall('fsconfig', 0, 6, 0, 0, 0))
tried('move_mount', lambda: syscall('move_mount', -100, b'/usr', -100, b'/mnt', 0))
tried('mount_setattr', lambda: syscall('mount_setattr', -100, b'/', 0, struct.pack('=4Q', 0, 1, 0, 0), 32))
";
    everywhere().never_bare().holds(|cx| ends_with(cx, "EPERM", script));
}

/// What a person would type.
#[test]
fn a_file_outside_is_not_reached_by_a_mount() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "before");
        let script = r#"
mkdir at; unshare -Urm sh -c 'mount --bind "$(dirname "$1")" at && echo after > at/file' sh "$1"
unshare -Urm sh -c 'mount -o remount,rw,bind /; echo after > "$1"' sh "$1"
unshare -Ur sh -c 'echo after > "$1"' sh "$1""#;
        cx.bash(script, &[&file]);
        unchanged(file, "before")
    });
}

#[test]
fn the_root_directory_is_not_changed() {
    by_default()
        .bare_as_root()
        .holds(|cx| cx.python("tried('chroot', lambda: os.chroot('.'))", &[]).refused());
}

#[test]
fn nothing_is_opened_by_its_handle() {
    let script = r"
handle = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0) + bytes(128))
syscall('name_to_handle_at', -100, b'/etc/hostname', handle, ctypes.byref(ctypes.c_int()), 0)
tried('handle', lambda: syscall('open_by_handle_at', os.open('/etc', os.O_RDONLY), handle, 0))
";
    everywhere().bare_as_root().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn no_program_enters_the_kernel() {
    let script = "[tried(str(command), lambda: syscall('bpf', command, struct.pack('=IIII', 2, 4, 4, 1) + bytes(100), 116)) for command in [0, 5, 18]]";
    everywhere().bare_as_root().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn the_kernel_is_not_measured() {
    let script = "tried('perf', lambda: syscall('perf_event_open', struct.pack('=IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0))";
    everywhere().bare_as_root().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn page_faults_are_not_held_up() {
    let script = "tried('any', lambda: syscall('userfaultfd', 0)); tried('user only', lambda: syscall('userfaultfd', 1))";
    everywhere().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn no_key_of_the_kernel_is_reached() {
    everywhere().holds(|cx| {
        let (secret, name) = (cx.secret(), cx.secret());
        let add = "syscall('add_key', b'user', sys.argv[1].encode(), sys.argv[2].encode(), len(sys.argv[2]), -4)";
        cx.bystander(add, &[&name, &secret]).end();
        let script = r"
text = ctypes.create_string_buffer(100)
def read(key):
    syscall('keyctl', 11, key, text, 100)
    say(text.value)
tried('search', lambda: read(syscall('keyctl', 10, -4, b'user', sys.argv[1].encode(), 0)))
tried('request', lambda: read(syscall('request_key', b'user', sys.argv[1].encode(), 0, 0)))
tried('ring', lambda: syscall('keyctl', 0, -4, 1))
tried('session', lambda: syscall('keyctl', 1, 0))
tried('add', lambda: syscall('add_key', b'user', b'x', b'y', 1, -4))
";
        let run = cx.python(script, &[&name]);
        let remove = "syscall('keyctl', 9, syscall('keyctl', 10, -4, b'user', sys.argv[1].encode(), 0), -4)";
        cx.bystander(remove, &[&name]).end();
        run.knows_nothing_of(&secret)?;
        run.refused_with("EPERM")
    });
}

/// With arguments that could not do harm even if they were taken.
#[test]
fn neither_kernel_nor_module_is_loaded() {
    let script = r"
tried('kexec', lambda: syscall('kexec_load', 0, 0, 0, 0))
tried('kexec file', lambda: syscall('kexec_file_load', -1, -1, 0, 0, 4))
tried('module', lambda: syscall('init_module', b'', 0, b''))
tried('module file', lambda: syscall('finit_module', -1, b'', 0))
tried('unload', lambda: syscall('delete_module', b'no such module', 0))
";
    everywhere().never_bare().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn no_own_process_is_traced_or_read() {
    let script = r"
text = ctypes.create_string_buffer(b'x' * 40)
vector = struct.pack('LL', ctypes.addressof(text), 40)
tried('me', lambda: syscall('ptrace', 0, 0, 0, 0))
tried('read', lambda: syscall('process_vm_readv', os.getpid(), vector, 1, vector, 1, 0))
tried('write', lambda: syscall('process_vm_writev', os.getpid(), vector, 1, vector, 1, 0))
tried('descriptor', lambda: syscall('pidfd_getfd', os.pidfd_open(os.getpid()), 0, 0))
";
    everywhere().holds(|cx| ends_with(cx, "EPERM", script));
}

#[test]
fn no_ring_carries_out_what_a_filter_forbids() {
    let script = r"
tried('setup', lambda: syscall('io_uring_setup', 8, ctypes.create_string_buffer(120)))
tried('enter', lambda: syscall('io_uring_enter', 0, 0, 0, 0, 0, 0))
tried('register', lambda: syscall('io_uring_register', 0, 0, 0, 0))
";
    everywhere().holds(|cx| ends_with(cx, "ENOSYS", script));
}

/// The other entry to the kernel has other numbers, which a filter could mistake for its own.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_call_of_another_architecture_is_the_last() {
    everywhere().holds(|cx| {
        let program = cx.compile("entry", include_str!("probes/entry.c"));
        let run = cx.fence().dies().start(&[&program]).end();
        held(!run.stdout.contains("answered"), "it was answered")?;
        held(run.code == Some(159), format!("it did not end by SIGSYS: {run:?}"))
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_call_of_the_third_architecture_is_refused() {
    let script = r"
x32 = 0x40000000
os.mkdir('at')
tried('mount', lambda: syscall(x32 + 165, b'tmpfs', b'at', b'tmpfs', 0, 0))
tried('unshare', lambda: syscall(x32 + 272, 0x10000000))
tried('number', lambda: syscall(x32 + 39))
tried('trace', lambda: syscall(x32 + 521, 0, 0, 0, 0))
";
    everywhere().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn the_filter_is_not_taken_off() {
    let script = r"
tried('off', lambda: syscall('prctl', 22, 0, 0, 0, 0))
tried('new privileges', lambda: syscall('prctl', 38, 0, 0, 0, 0))
tried('unshare', lambda: syscall('unshare', 0x10000000))
";
    everywhere().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn no_process_passes_for_another_program() {
    let script = r"
tried('file', lambda: syscall('prctl', 35, 13, os.open('/bin/sh', os.O_RDONLY), 0, 0))
tried('start of code', lambda: syscall('prctl', 35, 1, 4096, 0, 0))
";
    by_default().never_bare().holds(|cx| cx.python(script, &[]).refused());
}

/// A program without a file is fenced like any other.
#[test]
fn a_program_in_memory_is_fenced_as_well() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "before");
        let script = r"
fd = os.memfd_create('x', 0)
os.write(fd, open('/bin/bash', 'rb').read())
if os.fork() == 0:
    tried('exec', lambda: os.execve(fd, ['bash', '-c', 'echo after > ' + sys.argv[1]], {}))
    os._exit(0)
os.wait()
";
        cx.python(script, &[&file]);
        unchanged(file, "before")
    });
}

#[test]
fn a_refused_call_is_in_the_report() {
    everywhere().never_bare().holds(|cx| {
        let report = cx.path("report.json");
        cx.fence()
            .args(&["--report", &report])
            .python("tried('mount', lambda: syscall('mount', b'x', b'/', b'tmpfs', 0, 0))", &[]);
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        let denials = report["denials"].as_array().cloned().unwrap_or_default();
        held(
            denials.iter().any(|denial| denial["kind"] == "syscall" && denial["name"] == "mount"),
            format!("it is not: {report}"),
        )
    });
}
