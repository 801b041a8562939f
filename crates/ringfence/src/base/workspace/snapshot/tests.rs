use std::fs;

use super::*;
use crate::base::CancelCause;
use crate::base::workspace::tests::Scratch;

fn take(scratch: &Scratch, cap: usize) -> Snapshot {
    Snapshot::capture(&Arc::new(scratch.workspace()), cap, &CancelToken::new()).unwrap()
}

#[test]
fn what_a_run_made_changed_and_removed_is_told() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::create_dir_all(ws.join("src/deep")).unwrap();
    fs::create_dir_all(ws.join(".git/objects")).unwrap();
    fs::write(ws.join(".gitignore"), "build/\n*.log\n").unwrap();
    for name in ["kept", "changed", "same-size", "gone", "src/deep/moved"] {
        fs::write(ws.join(name), "old").unwrap();
    }
    let before = take(&scratch, 10_000);
    assert!(before.complete);
    assert_eq!(
        diff_snapshots(&before, &take(&scratch, 10_000)),
        FileChanges { complete: true, ..FileChanges::default() }
    );

    fs::write(ws.join("changed"), "longer").unwrap();
    // The same bytes in number and an mtime that is put back: another file stands there all the
    // same.
    let mtime = fs::metadata(ws.join("same-size")).unwrap().modified().unwrap();
    fs::write(ws.join("new"), "new").unwrap();
    fs::File::options().write(true).open(ws.join("new")).unwrap().set_modified(mtime).unwrap();
    fs::rename(ws.join("new"), ws.join("same-size")).unwrap();
    fs::remove_file(ws.join("gone")).unwrap();
    fs::rename(ws.join("src/deep/moved"), ws.join("src/moved")).unwrap();
    fs::create_dir(ws.join("build")).unwrap();
    for ignored in ["build/out", "run.log", ".git/objects/x"] {
        fs::write(ws.join(ignored), "made").unwrap();
    }
    std::os::unix::fs::symlink("kept", ws.join("link")).unwrap();
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(
        diff_snapshots(&before, &take(&scratch, 10_000)),
        FileChanges {
            created: paths(&["src/moved"]),
            changed: paths(&["changed", "same-size"]),
            removed: paths(&["gone", "src/deep/moved"]),
            complete: true,
        }
    );
}

#[test]
fn a_snapshot_that_is_full_says_so_and_nothing_false() {
    let scratch = Scratch::new();
    for number in 0..300 {
        fs::write(scratch.ws().join(format!("f{number}")), "x").unwrap();
    }
    let small = take(&scratch, 100);
    assert_eq!((small.files.len(), small.complete), (100, false));
    let whole = take(&scratch, 300);
    assert_eq!((whole.files.len(), whole.complete), (300, true));
    assert_eq!(diff_snapshots(&small, &whole), FileChanges::default());
    assert_eq!(diff_snapshots(&whole, &small), FileChanges::default());
    fs::write(scratch.ws().join("f0"), "other").unwrap();
    fs::write(scratch.ws().join("f1"), "other").unwrap();
    assert_eq!(diff_snapshots(&whole, &take(&scratch, 300)).changed.len(), 2);
}

#[test]
fn a_cancelled_snapshot_is_none() {
    let scratch = Scratch::new();
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    let error = Snapshot::capture(&Arc::new(scratch.workspace()), 10, &cancel).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
}

#[test]
fn a_snapshot_of_long_paths_is_bounded_by_their_bytes() {
    let scratch = Scratch::new();
    for number in 0..20 {
        fs::write(scratch.ws().join(format!("{}{number:02}", "n".repeat(98))), "x").unwrap();
    }
    let within = |bytes| {
        Snapshot::capture_within(&Arc::new(scratch.workspace()), 100, bytes, &CancelToken::new())
            .unwrap()
    };
    assert_eq!((within(1000).files.len(), within(1000).complete), (10, false));
    assert_eq!((within(2000).files.len(), within(2000).complete), (20, true));
}
