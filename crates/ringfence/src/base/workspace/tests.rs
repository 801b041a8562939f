//! Every way out that we know of is tried here, on the real file system.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use super::*;
use crate::base::ids::short_id;

/// A directory of its own with a workspace `ws` and something `outside` of it; gone with the value.
pub(crate) struct Scratch {
    pub dir: PathBuf,
}

impl Scratch {
    pub fn new() -> Scratch {
        let dir = std::env::temp_dir().join(short_id("ringfence-test"));
        fs::create_dir_all(dir.join("ws")).unwrap();
        fs::create_dir_all(dir.join("outside")).unwrap();
        fs::write(dir.join("outside/secret"), "OUTSIDE").unwrap();
        Scratch { dir }
    }

    pub fn ws(&self) -> PathBuf {
        self.dir.join("ws")
    }

    pub fn workspace(&self) -> Workspace {
        Workspace::open(&self.ws(), &[]).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Swaps two names as fast as it can while `work` runs, and stops when that ends, however it ends.
pub(crate) fn while_swapping(one: &Path, two: &Path, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE).unwrap();
            }
        });
        work();
    });
}

fn read(workspace: &Workspace, path: &str) -> Result<String> {
    let mut text = String::new();
    if let Some(mut opened) = workspace.open_read_without_waiting(path) {
        opened.file.read_to_string(&mut text).unwrap();
        assert_ne!(text, "OUTSIDE");
        text.clear();
    }
    workspace.open_read(path)?.file.read_to_string(&mut text).unwrap();
    Ok(text)
}

fn refusal<T>(result: Result<T>) -> (Kind, Option<&'static str>) {
    let error = result.err().expect("a refusal");
    assert!(!error.message().contains("outside/"), "{error:?}");
    (error.kind(), error.reason_name())
}

const OUTSIDE: (Kind, Option<&str>) = (Kind::PermissionDenied, Some("outside_workspace"));
const SPECIAL: (Kind, Option<&str>) = (Kind::PermissionDenied, Some("not_a_regular_file"));
const CLOSED: (Kind, Option<&str>) = (Kind::PermissionDenied, Some("closed"));

/// Both ways of taking a step are held to everything.
fn both_ways(scratch: &Scratch, closed: &[PathBuf], test: impl Fn(&Workspace)) {
    for openat2 in [true, false] {
        let workspace = Workspace::open(&scratch.ws(), closed).unwrap();
        workspace.openat2.store(openat2, Ordering::Relaxed);
        test(&workspace);
        assert_eq!(
            workspace.openat2.load(Ordering::Relaxed),
            openat2,
            "the way that was meant was taken"
        );
    }
}

#[test]
fn nothing_outside_is_reached() {
    let scratch = Scratch::new();
    let (ws, outside) = (scratch.ws(), scratch.dir.join("outside"));
    fs::create_dir_all(ws.join("a/b")).unwrap();
    symlink(outside.join("secret"), ws.join("file-out")).unwrap();
    symlink(&outside, ws.join("dir-out")).unwrap();
    symlink("../outside", ws.join("relative-out")).unwrap();
    symlink("../../../outside/secret", ws.join("a/b/far-out")).unwrap();
    symlink("dir-out", ws.join("chain1")).unwrap();
    symlink("chain1", ws.join("chain2")).unwrap();
    symlink("loop", ws.join("loop")).unwrap();
    symlink("/proc/self/root", ws.join("magic")).unwrap();
    symlink(format!("/proc/self/root{}", ws.display()), ws.join("magic-inside")).unwrap();
    // A workspace's name as a prefix of another directory's is no way in.
    fs::create_dir(scratch.dir.join("ws2")).unwrap();
    fs::write(scratch.dir.join("ws2/secret"), "OUTSIDE").unwrap();
    let refused = [
        "../outside/secret".to_owned(),
        "a/../../outside/secret".to_owned(),
        "..".to_owned(),
        "/etc/passwd".to_owned(),
        "/".to_owned(),
        "/proc/self/root/etc/passwd".to_owned(),
        "/proc/self/cwd/Cargo.toml".to_owned(),
        "/proc/self/environ".to_owned(),
        "/dev/null".to_owned(),
        outside.join("secret").display().to_string(),
        format!("{}2/secret", ws.display()),
        format!("{}/../outside/secret", ws.display()),
        "file-out".to_owned(),
        "dir-out/secret".to_owned(),
        "relative-out/secret".to_owned(),
        "a/b/far-out".to_owned(),
        "a/b/../../chain2/secret".to_owned(),
        "loop".to_owned(),
        "loop/x".to_owned(),
        "magic/etc/passwd".to_owned(),
        "magic-inside/a".to_owned(),
    ];
    both_ways(&scratch, &[], |workspace| {
        for path in &refused {
            assert_eq!(refusal(workspace.open_read(path)), OUTSIDE, "read {path}");
            assert!(workspace.open_read_without_waiting(path).is_none(), "read {path} at once");
            assert_eq!(refusal(workspace.find_write_target(path, true)), OUTSIDE, "write {path}");
            assert_eq!(refusal(workspace.open_dir(path)), OUTSIDE, "list {path}");
        }
        assert_eq!(refusal(workspace.find_write_target("dir-out/new/x", true)), OUTSIDE);
        assert_eq!(refusal(workspace.find_write_target("new/../../outside/x", true)), OUTSIDE);
        assert_eq!(refusal(workspace.find_write_target("new/../x", true)), (Kind::NotFound, None));
    });
    assert!(!ws.join("new").exists());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn magic_links_are_text_to_us() {
    let workspace = Workspace::open(Path::new("/proc/self"), &[]).unwrap();
    for path in ["root/etc/passwd", "cwd/Cargo.toml", "exe", "fd/0", "task/../root/etc/passwd"] {
        let (kind, _) = refusal(workspace.open_read(path));
        assert!(matches!(kind, Kind::PermissionDenied | Kind::NotFound), "{path}");
    }
    assert_eq!(refusal(workspace.open_read("root/etc/passwd")), OUTSIDE);
}

#[test]
fn paths_that_stay_inside_work() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::create_dir_all(ws.join("a/b")).unwrap();
    fs::write(ws.join("a/file"), "inside").unwrap();
    symlink(ws.join("a"), ws.join("absolute")).unwrap();
    symlink("../absolute/file", ws.join("a/up")).unwrap();
    symlink("a/up", ws.join("chain")).unwrap();
    // A second name for the workspace, as an operator may have given it.
    symlink(&ws, scratch.dir.join("alias")).unwrap();
    let alias = Workspace::open(&scratch.dir.join("alias"), &[]).unwrap();
    for path in ["alias/a/file", "ws/a/file"] {
        assert_eq!(read(&alias, scratch.dir.join(path).to_str().unwrap()).unwrap(), "inside");
    }
    let absolute = ws.join("a/file").display().to_string();
    both_ways(&scratch, &[], |workspace| {
        for path in [
            "a/file",
            "./a//file",
            "a/b/../file",
            "a/b/../../a/file",
            "absolute/file",
            "a/up",
            "chain",
            &absolute,
        ] {
            let opened =
                workspace.open_read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(opened.path, "a/file", "{path}");
        }
        assert_eq!(workspace.open_dir(".").unwrap().1, ".");
        assert_eq!(workspace.open_dir("absolute/b").unwrap().1, "a/b");
    });
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::create_dir(ws.join("dir")).unwrap();
    fs::write(ws.join("file"), "x").unwrap();
    mknodat(CWD, ws.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(ws.join("socket")).unwrap();
    symlink("fifo", ws.join("to-fifo")).unwrap();
    let mut special = vec!["fifo", "socket", "to-fifo"];
    // Only root may make a device; there the null device would gladly be written to.
    if rustix::process::geteuid().is_root() {
        let null = rustix::fs::makedev(1, 3);
        if mknodat(
            CWD,
            ws.join("null"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            null,
        )
        .is_ok()
        {
            special.push("null");
        }
    }
    both_ways(&scratch, &[], |workspace| {
        for path in &special {
            assert_eq!(refusal(workspace.open_read(path)), SPECIAL, "{path}");
            assert_eq!(refusal(workspace.find_write_target(path, true)), SPECIAL, "{path}");
        }
        let directory = (Kind::InvalidArguments, Some("is_directory"));
        assert_eq!(refusal(workspace.open_read("dir")), directory);
        assert_eq!(refusal(workspace.find_write_target("dir", true)), directory);
        assert_eq!(refusal(workspace.find_write_target("new/", true)), directory);
        assert_eq!(refusal(workspace.open_read("nothing")), (Kind::NotFound, None));
        assert_eq!(
            refusal(workspace.open_read("file/x")),
            (Kind::NotFound, Some("not_a_directory"))
        );
        assert_eq!(
            refusal(workspace.open_read("file/../file")),
            (Kind::NotFound, Some("not_a_directory"))
        );
        for path in ["", "a\0b", &"x/".repeat(3000)] {
            assert_eq!(refusal(workspace.open_read(path)).0, Kind::InvalidArguments);
        }
    });
}

#[test]
fn a_closed_directory_stays_closed_however_it_is_reached() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    let root = ws.join("state/ringfence");
    fs::create_dir_all(root.join("audit")).unwrap();
    fs::write(root.join("audit/log"), "chain").unwrap();
    fs::create_dir(ws.join("a")).unwrap();
    symlink("state/ringfence", ws.join("link")).unwrap();
    symlink(root.join("audit"), ws.join("a/deep")).unwrap();
    symlink("../state", ws.join("a/above")).unwrap();
    // `later` does not exist yet; what lies elsewhere closes nothing, not even an ancestor of the
    // workspace.
    let closed = [root.clone(), ws.join("later"), scratch.dir.clone(), PathBuf::from("/nowhere")];
    let absolute = root.join("audit/log").display().to_string();
    let ways = [
        "state/ringfence/audit/log",
        "link/audit/log",
        "a/deep/log",
        "a/above/ringfence/x",
        "later/x",
        "later",
        &absolute,
    ];
    both_ways(&scratch, &closed, |workspace| {
        for path in ways {
            assert_eq!(refusal(workspace.open_read(path)), CLOSED, "{path}");
            assert_eq!(refusal(workspace.find_write_target(path, true)), CLOSED, "{path}");
        }
        assert_eq!(refusal(workspace.open_dir("link")), CLOSED);
        assert_eq!(workspace.open_dir("a/above").unwrap().1, "state");
    });
    // Moved, it is still the same directory.
    let workspace = Workspace::open(&ws, &closed).unwrap();
    fs::rename(&root, ws.join("a/moved")).unwrap();
    assert_eq!(refusal(workspace.open_read("a/moved/audit/log")), CLOSED);
    assert!(!ws.join("later").exists());
    assert!(Workspace::open(&ws, std::slice::from_ref(&ws)).is_err());
}

#[test]
fn parents_are_made_only_when_told_to() {
    let scratch = Scratch::new();
    both_ways(&scratch, &[], |workspace| {
        let _ = fs::remove_dir_all(scratch.ws().join("x"));
        assert!(
            matches!(workspace.find_write_target("x/y/z", false).unwrap(), WriteTarget::NoParent { path } if path == "x/y/z")
        );
        assert!(!scratch.ws().join("x").exists());
        assert!(matches!(
            workspace.find_write_target("x/y/z", true).unwrap(),
            WriteTarget::Ready { existing: None, .. }
        ));
        assert!(scratch.ws().join("x/y").is_dir());
    });
}

/// One thread swaps a directory with a symlink that leads out, as fast as it can; two others read
/// and write through the name all the while.
#[test]
fn no_race_leads_out() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::create_dir_all(ws.join("real/sub")).unwrap();
    fs::write(ws.join("real/secret"), "inside").unwrap();
    symlink(scratch.dir.join("outside"), ws.join("swap")).unwrap();
    fs::create_dir(scratch.dir.join("outside/sub")).unwrap();
    for openat2 in [true, false] {
        let workspace = scratch.workspace();
        workspace.openat2.store(openat2, Ordering::Relaxed);
        let (mut inside, mut refused, mut wrote) = (0u64, 0u64, 0u64);
        while_swapping(&ws.join("real"), &ws.join("swap"), || {
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until {
                for path in ["real/secret", "real/sub/../secret"] {
                    match read(&workspace, path) {
                        Ok(text) => {
                            assert_eq!(text, "inside");
                            inside += 1;
                        }
                        Err(error) => {
                            assert_eq!(error.reason_name(), Some("outside_workspace"), "{error:?}");
                            refused += 1;
                        }
                    }
                }
                if let Ok(WriteTarget::Ready { dir, name, .. }) =
                    workspace.find_write_target("real/new/written", true)
                {
                    let flags =
                        OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    openat(&dir, &name, flags, Mode::from_raw_mode(0o644)).unwrap();
                    wrote += 1;
                }
            }
        });
        assert!(
            inside > 0 && refused > 0 && wrote > 0,
            "{inside} inside, {refused} refused, {wrote} written"
        );
        let mut outside: Vec<_> = fs::read_dir(scratch.dir.join("outside"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        outside.sort();
        assert_eq!(outside, ["secret", "sub"]);
    }
}

#[test]
fn file_modes_hold_for_those_they_bind() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("locked"), "x").unwrap();
    fs::set_permissions(scratch.ws().join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let opened = scratch.workspace().open_read("locked");
    if rustix::process::geteuid().is_root() {
        assert!(opened.is_ok());
    } else {
        assert_eq!(refusal(opened), (Kind::PermissionDenied, Some("file_mode")));
    }
}
