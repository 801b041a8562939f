//! Writes outside the workspace, by every name and every system call that changes something.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::{Cx, Profile};
use super::{Effect, absent, by_default, everywhere, held, unchanged};

/// The attack gets the path of a file outside, which must then be as it was.
fn leaves_alone(cx: &Cx, script: &str) -> Effect {
    let file = cx.outside("file", "before");
    cx.bash(script, &[&file]);
    unchanged(file, "before")
}

/// The attack gets a path outside where nothing is, and where nothing may be afterwards.
fn leaves_empty(cx: &Cx, script: &str) -> Effect {
    let path = cx.path("outside/new");
    cx.python(script, &[&path]);
    absent(path)
}

#[test]
fn a_file_outside_is_not_overwritten() {
    everywhere().holds(|cx| leaves_alone(cx, r#"echo after > "$1""#));
}

#[test]
fn a_file_outside_is_not_appended_to() {
    everywhere().holds(|cx| leaves_alone(cx, r#"echo after >> "$1""#));
}

#[test]
fn a_file_outside_is_not_cut_short() {
    everywhere().holds(|cx| leaves_alone(cx, r#"truncate -s 0 "$1""#));
}

#[test]
fn a_file_outside_is_not_deleted() {
    everywhere().holds(|cx| leaves_alone(cx, r#"rm -f "$1""#));
}

#[test]
fn a_file_outside_is_not_moved_into_the_workspace() {
    everywhere().holds(|cx| leaves_alone(cx, r#"mv -f "$1" taken"#));
}

#[test]
fn a_file_of_the_workspace_is_not_moved_over_one_outside() {
    everywhere().holds(|cx| leaves_alone(cx, r#"echo after > mine; mv -f mine "$1""#));
}

#[test]
fn a_file_outside_is_not_written_through_a_symbolic_link() {
    everywhere().holds(|cx| leaves_alone(cx, r#"ln -s "$1" link; echo after > link"#));
}

#[test]
fn a_file_outside_is_not_written_by_way_of_the_parent_directory() {
    everywhere().holds(|cx| {
        leaves_alone(cx, "echo after > ../outside/file; echo after > $PWD/../outside/file")
    });
}

#[test]
fn a_file_outside_is_not_written_by_way_of_the_root_in_proc() {
    everywhere().holds(|cx| {
        leaves_alone(cx, r#"for at in self/root 1/root; do echo after > "/proc/$at$1"; done"#)
    });
}

#[test]
fn a_file_outside_is_not_written_by_way_of_the_directory_in_proc() {
    everywhere().holds(|cx| leaves_alone(cx, "echo after > /proc/self/cwd/../outside/file"));
}

#[test]
fn a_file_outside_is_not_written_by_its_second_name_in_the_workspace() {
    everywhere().holds(|cx| leaves_alone(cx, r#"ln "$1" second && echo after > second"#));
}

#[test]
fn a_file_outside_that_was_opened_to_read_is_not_reopened_to_write() {
    everywhere().holds(|cx| leaves_alone(cx, r#"exec 7< "$1"; echo after > /proc/self/fd/7"#));
}

#[test]
fn a_file_outside_is_not_changed_by_a_mapping() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "before");
        let script = r"
import mmap
def change():
    fd = os.open(sys.argv[1], os.O_RDWR)
    memory = mmap.mmap(fd, 6)
    memory[:6] = b'after!'
tried('mapping', change)
";
        cx.python(script, &[&file]);
        unchanged(file, "before")
    });
}

#[test]
fn files_inside_and_outside_do_not_change_places() {
    everywhere().holds(|cx| {
        let (file, mine) = (cx.outside("file", "before"), cx.inside("mine", "after"));
        let script = "tried('exchange', lambda: syscall('renameat2', -100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2))";
        cx.python(script, &[&mine, &file]);
        unchanged(file, "before")
    });
}

#[test]
fn no_file_is_made_outside() {
    everywhere().holds(|cx| leaves_empty(cx, "tried('create', lambda: put(sys.argv[1], 'x'))"));
}

#[test]
fn no_directory_is_made_outside() {
    everywhere().holds(|cx| leaves_empty(cx, "tried('mkdir', lambda: os.mkdir(sys.argv[1]))"));
}

#[test]
fn no_symbolic_link_is_made_outside() {
    everywhere().holds(|cx| {
        leaves_empty(cx, "tried('symlink', lambda: os.symlink('/etc/passwd', sys.argv[1]))")
    });
}

#[test]
fn no_hard_link_to_the_workspace_is_made_outside() {
    let script = "put('mine', 'x'); tried('link', lambda: os.link('mine', sys.argv[1]))";
    everywhere().holds(|cx| leaves_empty(cx, script));
}

#[test]
fn no_pipe_is_made_outside() {
    everywhere().holds(|cx| leaves_empty(cx, "tried('mkfifo', lambda: os.mkfifo(sys.argv[1]))"));
}

#[test]
fn no_socket_is_made_outside() {
    let script = "tried('bind', lambda: socket.socket(socket.AF_UNIX).bind(sys.argv[1]))";
    everywhere().holds(|cx| leaves_empty(cx, script));
}

#[test]
fn a_nameless_file_gets_no_name_outside() {
    let script = r"
def give_a_name(folder):
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    path = f'/proc/self/fd/{fd}'.encode()
    syscall('linkat', -100, path, -100, sys.argv[1].encode(), 0x400)
tried('from outside', lambda: give_a_name(os.path.dirname(sys.argv[1])))
tried('from the workspace', lambda: give_a_name('.'))
";
    everywhere().holds(|cx| leaves_empty(cx, script));
}

#[test]
fn a_directory_outside_is_not_removed() {
    everywhere().holds(|cx| {
        let folder = cx.folder(&cx.path("outside/folder"));
        cx.bash(r#"rmdir "$1"; mv "$1" "$1-moved""#, &[&folder]);
        held(std::path::Path::new(&folder).is_dir(), "the directory is gone")
    });
}

#[test]
fn the_workspace_itself_is_not_moved_away() {
    everywhere().holds(|cx| {
        let inode = |path: &str| std::fs::metadata(path).map_or(0, |data| data.ino());
        let workspace = cx.path("workspace");
        let before = inode(&workspace);
        cx.bash(r#"mv "$1" "$1-moved"; mkdir "$1""#, &[&workspace]);
        held(inode(&workspace) == before, "another directory has its name")
    });
}

#[test]
fn a_neighbour_whose_name_begins_like_the_workspace_is_not_written() {
    everywhere().holds(|cx| {
        cx.folder(&cx.path("workspace-of-another"));
        let file = cx.file(&cx.path("workspace-of-another/file"), "before");
        cx.bash(r#"echo after > "$1""#, &[&file]);
        unchanged(file, "before")
    });
}

/// Where a command is started is the caller's word, and no right to write there.
#[test]
fn being_started_outside_gives_no_right_to_write_there() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "before");
        cx.fence()
            .cwd(&cx.path("outside"))
            .bash(r#"echo after > file; echo after > "$1""#, &[&file]);
        unchanged(file, "before")
    });
}

#[test]
fn the_home_directory_is_no_workspace_that_anyone_gets_by_accident() {
    everywhere().holds(|cx| {
        let file = cx.file(&cx.path("home/.profile"), "before");
        let fence = cx.fence().workspace(None).cwd(&cx.path("home"));
        fence.start(&["sh", "-c", "echo begun; echo after > .profile"]).end_unless_refused();
        unchanged(file, "before")
    });
}

#[test]
fn the_root_of_the_system_is_no_workspace_that_anyone_gets_by_accident() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "before");
        let script = r#"echo begun; echo after > "$1""#;
        cx.fence()
            .workspace(None)
            .cwd("/")
            .start(&["sh", "-c", script, "sh", &file])
            .end_unless_refused();
        unchanged(file, "before")
    });
}

#[test]
fn a_second_writable_root_is_no_wider_than_it_says() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "before");
        let granted = cx.folder(&cx.path("granted"));
        let script =
            r#"echo mine > "$2/mine"; ln -s "$1" "$2/link"; echo after > "$2/link"; echo after > "$2/../outside/file""#;
        cx.fence().args(&["--writable", &granted]).bash(script, &[&file, &granted]);
        // That it can be written at all is the other half of the promise.
        assert_eq!(std::fs::read_to_string(format!("{granted}/mine")).unwrap_or_default(), "mine\n", "{}", cx.mode);
        unchanged(file, "before")
    });
}

/// A name in a shared directory that others can guess.
fn keeps_to_itself(cx: &Cx, folder: &str) -> Effect {
    let name = format!("{folder}/{}", cx.secret());
    cx.bash(r#"echo guessed > "$1""#, &[&name]);
    let outcome = absent(&name);
    let _ = std::fs::remove_file(&name);
    outcome
}

#[test]
fn what_is_written_to_tmp_stays_inside() {
    everywhere().holds(|cx| keeps_to_itself(cx, "/tmp"));
}

#[test]
fn what_is_written_to_the_other_tmp_stays_inside() {
    everywhere().holds(|cx| keeps_to_itself(cx, "/var/tmp"));
}

#[test]
fn what_is_written_to_shared_memory_stays_inside() {
    everywhere().holds(|cx| keeps_to_itself(cx, "/dev/shm"));
}

#[test]
fn what_is_written_to_run_stays_inside() {
    everywhere().bare_as_root().holds(|cx| keeps_to_itself(cx, "/run"));
}

#[test]
fn a_file_in_the_callers_tmp_is_not_overwritten() {
    everywhere().holds(|cx| {
        let file = cx.file(&cx.path("tmp/file"), "before");
        cx.bash(r#"echo after > "$1""#, &[&file]);
        unchanged(file, "before")
    });
}

#[test]
fn a_program_of_the_system_is_not_replaced() {
    everywhere().never_bare().holds(|cx| {
        let script = r#"for at in /usr/bin /usr/local/bin /etc /usr/lib; do touch "$at/$1"; done"#;
        let name = cx.secret();
        cx.bash(script, &[&name]);
        ["/usr/bin", "/usr/local/bin", "/etc", "/usr/lib"]
            .iter()
            .try_for_each(|at| absent(format!("{at}/{name}")))
    });
}

#[test]
fn the_mode_of_a_file_outside_stays() {
    by_default().holds(|cx| {
        let file = cx.outside("file", "before");
        let mode = || std::fs::metadata(&file).unwrap().permissions().mode();
        let before = mode();
        cx.bash(r#"chmod 0777 "$1"; exec 7< "$1"; chmod 0777 /proc/self/fd/7"#, &[&file]);
        held(mode() == before, format!("it is now {:o}", mode()))
    });
}

#[test]
fn the_times_of_a_file_outside_stay() {
    by_default().holds(|cx| {
        let file = cx.outside("file", "before");
        let time = || std::fs::metadata(&file).unwrap().mtime();
        let before = time();
        cx.bash(r#"touch -m -d 2001-01-01 "$1""#, &[&file]);
        held(time() == before, "it is older now")
    });
}

#[test]
fn the_owner_of_a_file_outside_stays() {
    by_default().bare_as_root().holds(|cx| {
        let file = cx.outside("file", "before");
        let owner = || std::fs::metadata(&file).map(|data| (data.uid(), data.gid())).unwrap();
        let before = owner();
        cx.bash(r#"chown 1234 "$1"; chgrp 1234 "$1""#, &[&file]);
        held(owner() == before, format!("it belongs to {:?}", owner()))
    });
}

#[test]
fn a_file_outside_gets_no_extended_attribute() {
    by_default().holds(|cx| {
        let file = cx.outside("file", "before");
        cx.python(
            "tried('setxattr', lambda: os.setxattr(sys.argv[1], 'user.mark', b'after'))",
            &[&file],
        );
        let found = rustix::fs::getxattr(&file, "user.mark", &mut [0_u8; 16]).is_ok();
        held(!found, "it has one now")
    });
}

/// The flags of `chattr` are set on a descriptor that is only open to read.
#[test]
fn the_flags_of_a_file_outside_stay() {
    by_default().holds(|cx| {
        let file = cx.outside("file", "before");
        let script = r"
def set_nodump():
    fd = os.open(sys.argv[1], os.O_RDONLY)
    flags = bytearray(8)
    fcntl.ioctl(fd, 0x80086601, flags)
    old = struct.unpack('l', flags)[0]
    fcntl.ioctl(fd, 0x40086602, struct.pack('l', old ^ 0x40))
tried('flags', set_nodump)
";
        let flags = || rustix::fs::ioctl_getflags(std::fs::File::open(&file).unwrap()).unwrap();
        let before = flags();
        cx.python(script, &[&file]);
        held(flags() == before, format!("they are now {:?}", flags()))
    });
}

#[test]
fn the_workspace_and_tmp_can_be_written() {
    everywhere().never_bare().holds(|cx| {
        let script = r#"echo mine > mine && mkdir folder && mv mine folder/ && echo tmp > "${TMPDIR:-/tmp}/x" && cat "${TMPDIR:-/tmp}/x""#;
        let run = cx.bash(script, &[]);
        assert!(run.stdout.contains("tmp"), "[{}] {run:?}", cx.mode);
        unchanged(cx.workspace("folder/mine"), "mine\n")
    });
}

#[test]
fn the_home_inside_can_be_written_and_is_not_the_callers() {
    by_default().never_bare().holds(|cx| {
        let run = cx.bash(r#"echo mine > "$HOME/mine" && cat "$HOME/mine""#, &[]);
        assert!(
            cx.mode.profile == Some(Profile::Default) && run.stdout.contains("mine"),
            "[{}] {run:?}",
            cx.mode
        );
        absent(cx.path("home/mine"))
    });
}
