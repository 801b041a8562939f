//! Attacks that win when something is looked at once and used another time.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use super::{absent, by_default, everywhere, held, unchanged};

/// A directory of the workspace that is a link to the outside half of the time.
#[test]
fn a_link_that_comes_and_goes_leads_nowhere() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "before");
        cx.inside("folder/file", "mine");
        let script = r"
os.symlink('../outside', 'link')
child = os.fork()
if child == 0:
    while True:
        syscall('renameat2', -100, b'folder', -100, b'link', 2)
end = time.monotonic() + 0.3
while time.monotonic() < end:
    try:
        put('folder/file', 'after')
    except OSError:
        pass
os.kill(child, 9)
";
        cx.python(script, &[]);
        unchanged(file, "before")
    });
}

#[test]
fn a_repository_that_moves_about_stays_protected() {
    by_default().holds(|cx| {
        for name in ["config", "hooks/post-merge"] {
            cx.inside(&format!(".git/{name}"), "before");
        }
        let script = r"
os.makedirs('other/hooks')
child = os.fork()
if child == 0:
    while True:
        for act in [lambda: os.rename('.git', 'away'), lambda: os.rename('away', '.git'), lambda: syscall('renameat2', -100, b'other', -100, b'.git', 2)]:
            try:
                act()
            except OSError:
                pass
end = time.monotonic() + 0.3
while time.monotonic() < end:
    for name in ['config', 'hooks/post-merge', 'hooks/new']:
        try:
            put('.git/' + name, 'after')
        except OSError:
            pass
os.kill(child, 9)
";
        cx.python(script, &[]);
        absent(cx.workspace(".git/hooks/new"))?;
        unchanged(cx.workspace(".git/config"), "before")?;
        unchanged(cx.workspace(".git/hooks/post-merge"), "before")
    });
}

/// Runs come and go while one tries to make what they all stand guard over.
#[test]
fn runs_that_come_and_go_leave_no_gap() {
    by_default().holds(|cx| {
        let script = r"
import select
say('ready')
made = 0
while not select.select([0], [], [], 0)[0]:
    for act in [lambda: os.mkdir('.codex'), lambda: put('.codex/settings', 'after'), lambda: os.symlink('x', '.ringfence')]:
        try:
            act()
            made += 1
        except OSError:
            pass
say('made', made)
";
        let mut long = cx.fence().start_python(script, &[]);
        long.wait_for("ready");
        for _ in 0..5 {
            cx.bash("true", &[]);
        }
        long.tell("end");
        let run = long.end();
        held(run.word("made") == "0", format!("{} were made", run.word("made")))?;
        [".codex", ".ringfence"].iter().try_for_each(|name| absent(cx.workspace(name)))
    });
}

fn call_beside(cx: &super::Cx, script: &str) -> super::Effect {
    let path = cx.workspace("b");
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    cx.python(script, &[]);
    listener.set_nonblocking(true).unwrap();
    held(listener.accept().is_err(), "the listener outside was reached")
}

/// The address of a call lies in memory that another process writes while the kernel and the fence read it.
#[test]
fn an_address_that_changes_in_memory_reaches_no_socket_outside() {
    let script = r"
import mmap
ear = socket.socket(1)
ear.bind('a')
ear.listen(4096)
memory = mmap.mmap(-1, 4096)
memory[:4] = struct.pack('=H', 1) + b'a\0'
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
child = os.fork()
if child == 0:
    while True:
        memory[2] = 97
        memory[2] = 98
end = time.monotonic() + 0.3
while time.monotonic() < end:
    link = socket.socket(1)
    try:
        syscall('connect', link.fileno(), address, 4)
    except OSError:
        pass
    link.close()
os.kill(child, 9)
";
    everywhere().holds(|cx| call_beside(cx, script));
}

/// The name stays and what it names changes.
#[test]
fn a_name_that_changes_hands_reaches_no_socket_outside() {
    let script = r"
ear = socket.socket(1)
ear.bind('a')
ear.listen(4096)
child = os.fork()
if child == 0:
    while True:
        syscall('renameat2', -100, b'a', -100, b'b', 2)
end = time.monotonic() + 0.3
while time.monotonic() < end:
    link = socket.socket(1)
    try:
        link.connect('a')
    except OSError:
        pass
    link.close()
os.kill(child, 9)
";
    everywhere().holds(|cx| call_beside(cx, script));
}

/// The path stays and the family changes: a fence that lets other families pass must not be shown one of them.
#[test]
fn a_family_that_changes_in_memory_reaches_no_socket_outside() {
    let script = r"
import mmap
memory = mmap.mmap(-1, 4096)
memory[2:4] = b'b\0'
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
child = os.fork()
if child == 0:
    while True:
        for family in [2, 1, 10, 1, 0, 1, 16, 1]:
            memory[0] = family
end = time.monotonic() + 0.3
while time.monotonic() < end:
    link = socket.socket(1)
    try:
        syscall('connect', link.fileno(), address, 28)
    except OSError:
        pass
    link.close()
os.kill(child, 9)
";
    everywhere().holds(|cx| call_beside(cx, script));
}

/// A report must not be written by the run, nor be led elsewhere.
#[test]
fn a_report_that_the_run_could_replace_is_refused() {
    everywhere().never_bare().holds(|cx| {
        let report = cx.workspace("report.json");
        cx.folder(&cx.workspace("folder"));
        std::os::unix::fs::symlink(cx.path("workspace"), cx.path("outside/link")).unwrap();
        for name in
            ["workspace/report.json", "workspace/folder/../report.json", "outside/link/report.json"]
        {
            let fence = cx.fence().args(&["--report", &cx.path(name)]);
            let began = fence.start(&["bash", "-c", "echo begun"]).end_unless_refused();
            held(!began, format!("it runs with its report in {name}"))?;
            absent(&report)?;
        }
        let file = cx.outside("file", "before");
        std::os::unix::fs::symlink(&file, cx.path("outside/report.json")).unwrap();
        let fence = cx.fence().args(&["--report", &cx.path("outside/report.json")]);
        let began = fence.start(&["bash", "-c", "echo begun"]).end_unless_refused();
        held(!began, "it runs with a link for its report")?;
        unchanged(file, "before")
    });
}

/// The home inside lasts from run to run, and the fence prepares it each time: it must not follow what a run put there.
#[test]
fn links_in_the_home_inside_lead_the_fence_nowhere() {
    by_default().never_bare().holds(|cx| {
        let folder = cx.folder(&cx.path("outside/folder"));
        let script = r#"cd "$HOME" && for name in .cache .config .local .npm .cargo go .cache/pip; do rm -rf "$name"; ln -s "$1" "$name"; done; true"#;
        cx.bash(script, &[&folder]);
        for _ in 0..2 {
            cx.fence().dies().bash("mkdir -p ~/.cache/x ~/.config/x; echo x > ~/.cache/y", &[]);
        }
        let found: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        held(found.is_empty(), format!("{found:?} was made outside"))
    });
}
