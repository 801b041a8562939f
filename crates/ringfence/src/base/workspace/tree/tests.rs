//! Trees that are meant to do harm, and those that people have.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jail::rights::Rights;
use rustix::fs::{CWD, mkdirat, mknodat};

use super::*;
use crate::base::CancelCause;
use crate::base::workspace::tests::{Scratch, while_swapping};

const SIGHT: WalkFilter = WalkFilter { skip_ignored: true, show_hidden: false, inverted: false };
const ALL: WalkFilter = WalkFilter { skip_ignored: false, show_hidden: true, inverted: false };
const LEFT_OUT: WalkFilter = WalkFilter { inverted: true, ..SIGHT };

/// Notes every path, and the text of every file.
#[derive(Default)]
struct Notes {
    paths: Mutex<BTreeSet<String>>,
    texts: Mutex<BTreeSet<String>>,
    left_out: AtomicUsize,
    too_long: AtomicUsize,
    lost: AtomicUsize,
    entered: AtomicUsize,
    most_held: AtomicUsize,
}

impl TreeVisitor for Notes {
    type ThreadState = ();

    fn new_thread_state(&self) {}

    fn visit_dir(&self, tree: &WorkspaceTree, directory: &TreeDir, seen: DirListing) -> NextSteps {
        self.entered.fetch_add(1, Ordering::Relaxed);
        self.most_held.fetch_max(tree.open_dirs.load(Ordering::Relaxed), Ordering::Relaxed);
        self.left_out.fetch_add(usize::try_from(seen.skipped).unwrap(), Ordering::Relaxed);
        self.too_long.fetch_add(usize::try_from(seen.too_long).unwrap(), Ordering::Relaxed);
        let mut next = NextSteps::default();
        for entry in seen.entries {
            let path = directory.path().join(&entry.name).to_string_lossy().into_owned();
            self.paths.lock().unwrap().insert(path);
            match entry.kind {
                FileType::Directory => next.descend.push(entry),
                FileType::RegularFile => next.process.push(entry),
                _ => {}
            }
        }
        next
    }

    fn process_entries(
        &self,
        (): &mut (),
        tree: &WorkspaceTree,
        directory: &TreeDir,
        entries: Vec<TreeEntry>,
    ) {
        for entry in entries {
            if let Ok((file, _)) = tree.open_file(directory, &entry.name)
                && let Ok(text) = std::io::read_to_string(file)
            {
                self.texts.lock().unwrap().insert(text);
            }
        }
    }

    fn dir_failed(&self, _: &Path, _: &OsStr, _: usize, _: Errno) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}

fn tree(workspace: Workspace, path: &str, sight: WalkFilter) -> WorkspaceTree {
    match WorkspaceTree::find_start(&Arc::new(workspace), path, sight).unwrap() {
        WalkStart::Tree(tree) => tree,
        WalkStart::File(..) => panic!("a directory"),
    }
}

fn walk(workspace: Workspace, path: &str, sight: WalkFilter) -> Notes {
    let notes = Notes::default();
    tree(workspace, path, sight).walk(&notes, 3, &WalkStop::without_deadline(&CancelToken::new()));
    notes
}

impl Notes {
    fn list(self) -> Vec<String> {
        self.paths.into_inner().unwrap().into_iter().collect()
    }
}

/// For trees of very many names: in memory, where there is such a place, since a disk takes a
/// minute for them.
fn roomy() -> Scratch {
    let memory = Path::new("/dev/shm").join(crate::base::ids::short_id("ringfence-test"));
    match fs::create_dir_all(memory.join("ws")) {
        Ok(()) => Scratch { dir: memory },
        Err(_) => Scratch::new(),
    }
}

fn make(ws: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        fs::create_dir_all(ws.join(path).parent().unwrap()).unwrap();
        fs::write(ws.join(path), text).unwrap();
    }
}

#[test]
fn rules_hold_where_git_says_they_do() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    make(
        &ws,
        &[
            (
                ".gitignore",
                "\u{feff}*.log\n/only-here\ntarget/\n# a comment\nsub/deep/no\n!keep.log\n[z-\n",
            ),
            (".git/info/exclude", "excluded\n"),
            (".ignore", "!excluded-not\nby-ignore\n"),
            ("a.log", ""),
            ("keep.log", ""),
            ("only-here", ""),
            ("excluded", ""),
            ("by-ignore", ""),
            ("sub/only-here", ""),
            ("sub/.gitignore", "!b.log\nmine\n"),
            ("sub/b.log", ""),
            ("sub/c.log", ""),
            ("sub/mine", ""),
            ("sub/deep/no", ""),
            ("sub/deep/yes", ""),
            ("target/x", ""),
            ("sub/target", "a file, not a directory"),
            ("nested/.git/HEAD", ""),
            ("nested/d.log", "another repository"),
            ("nested/.gitignore", "e.txt\n"),
            ("nested/e.txt", ""),
            ("nested/by-ignore", ""),
            (".hidden/x", ""),
            (".dot", ""),
        ],
    );
    let notes = walk(scratch.workspace(), ".", SIGHT);
    assert_eq!(notes.left_out.load(Ordering::Relaxed), 16);
    let expected = [
        "keep.log",
        "nested",
        "nested/d.log",
        "sub",
        "sub/b.log",
        "sub/deep",
        "sub/deep/yes",
        "sub/only-here",
        "sub/target",
    ];
    assert_eq!(notes.list(), expected);
    let all = walk(scratch.workspace(), ".", ALL).list();
    // The other way round, with the directories that lead there.
    let left_out = walk(scratch.workspace(), ".", LEFT_OUT).list();
    let rest: Vec<_> = all.iter().filter(|path| !expected.contains(&path.as_str())).collect();
    let on_the_way = ["nested", "sub", "sub/deep"];
    assert_eq!(
        left_out.iter().filter(|path| !on_the_way.contains(&path.as_str())).collect::<Vec<_>>(),
        rest
    );
    assert!(rest.iter().any(|path| *path == "target/x"), "{rest:?}");
    // From within, the rules above hold as well.
    assert_eq!(
        walk(scratch.workspace(), "sub", SIGHT).list(),
        ["sub/b.log", "sub/deep", "sub/deep/yes", "sub/only-here", "sub/target"]
    );
    assert_eq!(walk(scratch.workspace(), "sub/deep", SIGHT).list(), ["sub/deep/yes"]);
    // What is named is walked, ignored or not; `.git` too.
    assert_eq!(walk(scratch.workspace(), "target", SIGHT).list(), ["target/x"]);
    assert_eq!(walk(scratch.workspace(), ".git", SIGHT).list(), [".git/info", ".git/info/exclude"]);
    let all = walk(scratch.workspace(), ".", ALL).list();
    assert!(all.contains(&".hidden/x".to_owned()) && all.contains(&"a.log".to_owned()), "{all:?}");
    assert!(!all.iter().any(|path| path.split('/').any(|name| name == ".git")), "{all:?}");
}

#[test]
fn what_may_not_be_read_is_not_seen() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    make(
        &ws,
        &[
            ("state/root/log", "SHUT"),
            ("state/other", "x"),
            ("secret/key", "SHUT"),
            ("a/moved-later", "SHUT"),
        ],
    );
    symlink("../secret", ws.join("a/link")).unwrap();
    let closed = [ws.join("state/root"), ws.join("later")];
    let workspace = Workspace::open(&ws, &closed).unwrap();
    let rights =
        Rights { hidden: vec![ws.join("secret"), ws.join("a/moved-later")], ..Rights::default() };
    let workspace = workspace.with_rights(rights).unwrap();
    fs::rename(ws.join("secret"), ws.join("a/elsewhere")).unwrap();
    fs::rename(ws.join("a/moved-later"), ws.join("b")).unwrap();
    make(&ws, &[("later", "SHUT"), ("secret", "SHUT"), ("a/moved-later", "SHUT")]);
    let notes = walk(workspace, ".", ALL);
    assert_eq!(*notes.texts.lock().unwrap(), BTreeSet::from(["x".to_owned()]));
    assert_eq!(notes.list(), ["a", "a/link", "state", "state/other"]);
}

/// Paths that a client's sandbox denies are not visited either, just as `file.read` refuses them.
#[test]
fn what_a_client_denies_is_not_seen() {
    use crate::base::client_sandbox::{
        ClientAccess, ClientAccessEntry as Row, ClientAccessPath, ClientFileAccess, ClientSandbox,
    };
    use crate::base::glob::Glob;
    let scratch = Scratch::new();
    let ws = fs::canonicalize(scratch.ws()).unwrap();
    make(
        &ws,
        &[
            ("a/.env", "SHUT"),
            ("a/deep/b.key", "SHUT"),
            ("private/x", "SHUT"),
            ("a/open", "x"),
            ("y", "x"),
        ],
    );
    let row = |path: PathBuf, access| Row {
        path: ClientAccessPath::Path(path),
        access,
        skip_missing: false,
    };
    let files = ClientFileAccess {
        cwd: None,
        entries: vec![
            row(ws.clone(), ClientAccess::Write),
            row(ws.join("private"), ClientAccess::Deny),
        ],
        denied_globs: ["**/.env", "**/*.key"]
            .map(|glob| Glob::parse(&format!("{}/{glob}", ws.display())).unwrap())
            .into(),
    };
    let narrowing = ClientSandbox {
        mode: "managed".into(),
        files: Some(files),
        allows_network: true,
        unsandboxed: false,
        ignored: vec![],
    };
    let (workspace, _) = scratch.workspace().with_client_sandbox(&narrowing).unwrap();
    for path in ["a/.env", "a/deep/b.key", "private/x"] {
        assert_eq!(
            workspace.open_read(path).err().unwrap().reason_name(),
            Some("client_denied"),
            "{path}"
        );
    }
    let notes = walk(workspace, ".", ALL);
    assert_eq!(*notes.texts.lock().unwrap(), BTreeSet::from(["x".to_owned()]));
    assert_eq!(notes.list(), ["a", "a/deep", "a/open", "y"]);
    // Without the client's word all of it is there.
    assert_eq!(walk(scratch.workspace(), ".", ALL).list().len(), 8);
}

#[test]
fn a_tree_of_ten_thousand_levels_ends() {
    let scratch = roomy();
    // Two directories on each level, so that there is always something left to do further up.
    let mut here = openat(CWD, scratch.ws(), OPEN_DIR_FLAGS, Mode::empty()).unwrap();
    for _ in 0..10_000 {
        mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
        mkdirat(&here, "e", Mode::from_raw_mode(0o755)).unwrap();
        here = open_dir_at(&here, "d".as_ref()).unwrap();
    }
    drop(here);
    for openat2 in [true, false] {
        let workspace = scratch.workspace();
        workspace.openat2.store(openat2, Ordering::Relaxed);
        let notes = walk(workspace, ".", SIGHT);
        // As deep as a path can be named, and no deeper.
        assert_eq!(notes.entered.load(Ordering::Relaxed), 1 + 2 * 2048);
        assert_eq!(notes.too_long.load(Ordering::Relaxed), 2);
        assert_eq!(notes.lost.load(Ordering::Relaxed), 0);
        let most = notes.most_held.load(Ordering::Relaxed);
        assert!(most <= MAX_OPEN_DIRS + 8, "{most} open at a time");
    }
    // The standard library would recurse on this.
    let removed = std::process::Command::new("rm").arg("-rf").arg(scratch.ws()).status().unwrap();
    assert!(removed.success());
}

#[test]
fn a_directory_of_two_hundred_thousand_names_is_read_whole() {
    let scratch = roomy();
    let dir = openat(CWD, scratch.ws(), OPEN_DIR_FLAGS, Mode::empty()).unwrap();
    for number in 0..200_000 {
        mknodat(&dir, format!("{number}"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }
    let start = Instant::now();
    let notes = walk(scratch.workspace(), ".", SIGHT);
    assert_eq!(notes.list().len(), 200_000);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn strange_names_are_names() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    for name in [b"new\nline".as_slice(), b"not \xff utf-8", b"-rf", b" ", b"\\", b"*"] {
        fs::write(ws.join(OsStr::from_bytes(name)), "x").unwrap();
    }
    let dir = ws.join(OsStr::from_bytes(b"dir \xfe"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("in"), "y").unwrap();
    let notes = walk(scratch.workspace(), ".", SIGHT);
    assert_eq!(*notes.texts.lock().unwrap(), BTreeSet::from(["x".to_owned(), "y".to_owned()]));
    assert_eq!(notes.list().len(), 8);
}

#[test]
fn nothing_is_followed_and_nothing_blocks() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    mknodat(CWD, ws.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    mknodat(CWD, ws.join(".gitignore"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    symlink(scratch.dir.join("outside"), ws.join("out")).unwrap();
    symlink(".", ws.join("self")).unwrap();
    symlink("/etc/passwd", ws.join(".ignore")).unwrap();
    symlink("/", ws.join(".git")).unwrap();
    let notes = walk(scratch.workspace(), ".", SIGHT);
    assert_eq!(notes.list(), ["fifo", "out", "self"]);
    // What was a file when its name was read and is a pipe when it is opened.
    let tree = tree(scratch.workspace(), ".", SIGHT);
    assert_eq!(tree.open_file(&tree.root, "fifo".as_ref()).err(), Some(Errno::INVAL));
    assert_eq!(tree.open_file(&tree.root, "out".as_ref()).err(), Some(Errno::LOOP));
}

#[test]
fn a_walk_ends_when_told_to() {
    let scratch = Scratch::new();
    for number in 0..50 {
        make(&scratch.ws(), &[(&format!("{number}/x"), "")]);
    }
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    for halt in [
        WalkStop::without_deadline(&cancel),
        WalkStop::new(CancelToken::new(), Some(Instant::now())),
    ] {
        let notes = Notes::default();
        tree(scratch.workspace(), ".", SIGHT).walk(&notes, 3, &halt);
        assert_eq!(notes.entered.load(Ordering::Relaxed), 1);
    }
}

/// What the standard library's own walk would do: look at a name, and then open it.
fn naive(at: &Path, texts: &mut BTreeSet<String>) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            naive(&entry.path(), texts);
        } else if entry.file_type().is_ok_and(|kind| kind.is_file())
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            texts.insert(text);
        }
    }
}

/// One thread swaps a directory with a symlink that leads out, as fast as it can, while the tree is
/// walked.
#[test]
fn no_race_shows_what_is_outside() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    make(&ws, &[("real/secret", "inside"), ("real/sub/secret", "inside")]);
    make(&scratch.dir, &[("outside/sub/secret", "OUTSIDE"), ("outside/only-outside", "OUTSIDE")]);
    symlink(scratch.dir.join("outside"), ws.join("swap")).unwrap();
    let (mut naive_texts, mut walks) = (BTreeSet::new(), 0);
    let notes = Notes::default();
    while_swapping(&ws.join("real"), &ws.join("swap"), || {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            tree(scratch.workspace(), ".", ALL).walk(
                &notes,
                2,
                &WalkStop::without_deadline(&CancelToken::new()),
            );
            walks += 1;
        }
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until && !naive_texts.contains("OUTSIDE") {
            naive(&ws, &mut naive_texts);
        }
    });
    assert!(
        naive_texts.contains("OUTSIDE"),
        "the race is no race: a naive walk stays inside as well"
    );
    assert_eq!(
        *notes.texts.lock().unwrap(),
        BTreeSet::from(["inside".to_owned()]),
        "{walks} walks"
    );
    assert!(notes.lost.load(Ordering::Relaxed) > 0, "no walk of {walks} met the swap");
    assert!(!notes.list().iter().any(|path| path.contains("only-outside")));
}
