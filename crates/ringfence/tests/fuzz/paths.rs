//! The opener of paths, on trees full of links: whatever a path looks like, nothing outside is opened, nothing closed
//! is entered and nothing protected is written, while another thread swaps what it can.

use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use jail::rights::Rights;
use ringfence::{Workspace, WriteTarget};

use crate::rng::Rng;
use crate::{Stage, each_case};

const NAMES: &[&str] = &[
    "a",
    "b",
    "c",
    "..",
    ".",
    "",
    "link",
    "up",
    "out",
    "closed",
    "hidden",
    ".git",
    ".GIT",
    "config",
    "hooks",
    ".codex",
    "proc",
    "self",
    "root",
    "fd",
    "modules",
    "x\u{202e}",
    "\u{0}",
    " ",
    "file.txt",
    "loop",
];

#[test]
fn no_path_leads_out_or_to_what_is_protected() {
    let stage = Stage::new();
    let workspace = tree(&stage);
    let mut rights = Rights { workspace: stage.workspace(), ..Rights::default() };
    rights.protect_control_files();
    rights.repositories.push(stage.workspace().join(".git"));
    rights.hidden.push(stage.workspace().join("hidden"));
    let workspace = workspace.with_rights(rights.clone()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| swap(&stage.workspace(), &stop));
        each_case("paths", 20_000, |rng| {
            let path = path(rng, &stage);
            check(&workspace, &rights, &path, rng.one_in(2));
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(std::fs::read_to_string(stage.path().join("outside/secret")).unwrap(), "secret");
    assert_eq!(
        std::fs::read_dir(stage.path().join("outside")).unwrap().count(),
        1,
        "nothing was made outside"
    );
}

fn check(workspace: &Workspace, rights: &Rights, path: &str, create: bool) {
    let inside = |fd: i32| -> PathBuf {
        let real = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        assert!(real.starts_with(workspace.path()), "{path:?} led to {}", real.display());
        let closed =
            ["closed", "hidden"].iter().any(|name| real.starts_with(workspace.path().join(name)));
        assert!(!closed, "{path:?} led to {}", real.display());
        real
    };
    if let Ok(opened) = workspace.open_read(path) {
        inside(opened.file.as_raw_fd());
    }
    if let Ok((directory, _)) = workspace.open_dir(path) {
        inside(directory.as_raw_fd());
    }
    if let Ok(WriteTarget::Ready { dir, name, .. }) = workspace.find_write_target(path, create) {
        let real = inside(dir.as_raw_fd()).join(name);
        assert!(!rights.protects_path(&real), "{path:?} would write {}", real.display());
    }
}

fn path(rng: &mut Rng, stage: &Stage) -> String {
    let mut path = match rng.below(6) {
        0 => format!("{}/", stage.workspace().display()),
        1 => "/".to_owned(),
        2 => "/proc/self/cwd/".to_owned(),
        _ => String::new(),
    };
    for _ in 0..rng.below(9) {
        path.push_str(rng.pick::<&str>(NAMES));
        path.push('/');
    }
    path.push_str(rng.pick::<&str>(NAMES));
    path
}

/// A workspace with links up, out, around and into what is closed.
fn tree(stage: &Stage) -> Workspace {
    let (base, outside) = (stage.workspace(), stage.path().join("outside"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    for directory in
        ["a/b/c", "b/a", "closed/a", "hidden/a", ".git/hooks", ".git/modules/a", ".codex"]
    {
        std::fs::create_dir_all(base.join(directory)).unwrap();
    }
    for (target, link) in [
        ("..", "a/up"),
        ("../../..", "a/b/up"),
        ("../outside", "out"),
        ("loop", "loop"),
        ("closed", "link"),
        ("../.git", "a/link"),
        ("/proc/self/root", "proc"),
        ("../.codex", "b/link"),
    ] {
        symlink(target, base.join(link)).unwrap();
    }
    symlink(&outside, base.join("a/b/out")).unwrap();
    Workspace::open(&base, &[base.join("closed")]).unwrap()
}

/// Puts links in the place of directories and takes them away again, as fast as it can.
fn swap(base: &Path, stop: &AtomicBool) {
    let (directory, away) = (base.join("a/b"), base.join("a/away"));
    while !stop.load(Ordering::Relaxed) {
        if std::fs::rename(&directory, &away).is_ok() {
            let _ = symlink("../../outside", &directory);
            std::thread::yield_now();
            let _ = std::fs::remove_file(&directory);
            // What the opener has made meanwhile goes, so that the directory can come back.
            let _ = std::fs::remove_dir_all(&directory);
            let _ = std::fs::rename(&away, &directory);
        }
        let _ = symlink("../outside", base.join("c"));
        let _ = std::fs::remove_file(base.join("c"));
    }
}
