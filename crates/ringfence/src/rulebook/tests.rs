//! Tests with rules files in a scratch home and workspace, read by the real binary.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::config::scratch::Scratch;
use crate::sandbox::tests::launcher;
use ::policy::Decision;

struct House {
    scratch: Scratch,
    policy: RulebookCache,
}

impl House {
    fn new() -> House {
        let scratch = Scratch::new();
        let places = RuleLocations {
            dirs: vec![scratch.dir("home/rules")],
            search_path: scratch.dir("bin").into_os_string(),
            ..RuleLocations::default()
        };
        scratch.dir("ws");
        House { policy: RulebookCache::with_launcher(places, launcher()), scratch }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        self.scratch.file(name, text)
    }

    fn program(&self, name: &str) -> PathBuf {
        let path = self.write(name, "#!/bin/sh\n");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    async fn current(&self) -> Arc<Rulebook> {
        self.policy.current_rules(&self.scratch.path().join("ws")).await
    }
}

fn says(book: &Rulebook, command: &str) -> Option<Decision> {
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    book.table.check_command(&words, true).decision
}

#[tokio::test]
async fn files_are_read_in_the_order_of_their_names_and_again_when_they_change() {
    let house = House::new();
    assert_eq!(house.current().await.files.len(), 0);
    house.write("home/rules/b.rules", "prefix_rule(['b'])");
    house.write("home/rules/a.rules", "prefix_rule(['a'], 'prompt')");
    house.write("home/rules/notes.txt", "no rules");
    let first = house.current().await;
    assert_eq!(
        first.table.prefixes.iter().map(|rule| rule.program.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert!(Arc::ptr_eq(&first, &house.current().await), "nothing has changed");

    house.write("home/rules/a.rules", "prefix_rule(['a'], 'forbidden')");
    let second = house.current().await;
    assert_eq!(says(&second, "a"), Some(Decision::Forbidden));
    assert!(second.generation > first.generation);
    assert_eq!(says(&first, "a"), Some(Decision::Prompt), "a running call keeps its rules");

    std::fs::remove_file(house.scratch.path().join("home/rules/b.rules")).unwrap();
    let third = house.current().await;
    assert_eq!(says(&third, "b"), None);
}

#[tokio::test]
async fn a_broken_file_is_told_of_and_the_sound_ones_hold() {
    let house = House::new();
    house.write(
        "home/rules/a.rules",
        "prefix_rule(['a'], 'forbidden')\nprefix_rule(['x'], 'allow')\nnonsense(",
    );
    house.write(
        "home/rules/b.rules",
        "prefix_rule(['b'], 'forbidden')\nprefix_rule(['y'])\nfail('x')",
    );
    house.write("home/rules/c.rules", "prefix_rule(['c'])");
    house.write(
        "home/rules/d.rules",
        &format!("x = {}{}", "(".repeat(200_000), ")".repeat(200_000)),
    );
    std::fs::write(house.scratch.path().join("home/rules/e.rules"), b"\xff").unwrap();
    let book = house.current().await;
    let files: Vec<&str> =
        book.faults.iter().map(|fault| fault.file.rsplit('/').next().unwrap()).collect();
    assert_eq!(files, ["e.rules", "a.rules", "b.rules", "d.rules"], "{:#?}", book.faults);
    assert_eq!(says(&book, "b"), Some(Decision::Forbidden));
    assert_eq!(says(&book, "y"), None, "what a broken file allows does not hold");
    assert_eq!(says(&book, "c"), Some(Decision::Allow));
    house.write("home/rules/a.rules", "");
    assert_eq!(house.current().await.faults.len(), 3, "mended without a restart");
}

#[tokio::test]
async fn a_file_that_was_named_must_be_there() {
    let house = House::new();
    let places =
        RuleLocations { files: vec!["/nonexistent/x.rules".into()], ..RuleLocations::default() };
    let book = RulebookCache::with_launcher(places, launcher())
        .current_rules(&house.scratch.path().join("ws"))
        .await;
    assert_eq!(book.faults.len(), 1);
    assert!(book.faults[0].message.contains("cannot read the rules file"), "{:?}", book.faults);
}

#[tokio::test]
async fn a_link_in_the_folder_is_not_read_and_told_of() {
    let house = House::new();
    let target = house.write("elsewhere.rules", "prefix_rule(['a'])");
    symlink(target, house.scratch.path().join("home/rules/a.rules")).unwrap();
    let book = house.current().await;
    assert!(book.files.is_empty() && book.faults.is_empty());
    assert!(book.ignored[0].message.contains("--rules"), "{:?}", book.ignored);
}

#[tokio::test]
async fn a_project_tightens_and_never_loosens() {
    let house = House::new();
    house.write(
        "home/rules/a.rules",
        "prefix_rule(['git'], 'prompt')\nprefix_rule(['ls'])\nhost_executable('ls', [])",
    );
    house.write(
        "ws/.codex/rules/p.rules",
        "prefix_rule(['git'], 'allow')\nprefix_rule(['ls'], 'forbidden')\nprefix_rule(['new'])\n\
         network_rule('a.example', 'https', 'allow')\nnetwork_rule('b.example', 'https', 'deny')\nhost_executable('ls', ['/x/ls'])",
    );
    let book = house.current().await;
    assert!(book.faults.is_empty(), "{:?}", book.faults);
    assert_eq!(says(&book, "git x"), Some(Decision::Prompt));
    assert_eq!(says(&book, "ls"), Some(Decision::Forbidden));
    assert_eq!(says(&book, "new"), None);
    assert_eq!(book.table.networks.len(), 1);
    assert!(book.table.host_executables["ls"].is_empty());
    let told: Vec<u32> = book.ignored.iter().map(|ignored| ignored.line).collect();
    assert_eq!(told, [1, 3, 4, 0], "{:?}", book.ignored);
    assert_eq!(book.files.len(), 2);
}

#[tokio::test]
async fn a_project_cannot_reach_out_or_hang_or_drown_the_operators_rules() {
    let house = House::new();
    house.write("home/rules/a.rules", "prefix_rule(['rm'], 'forbidden')");
    let outside = house.write("outside.rules", "prefix_rule(['secret'], 'prompt')");
    let rules = house.scratch.dir("ws/.codex/rules");
    symlink(outside, rules.join("out.rules")).unwrap();
    house.write(
        "ws/.codex/rules/deep.rules",
        &format!("x = {}{}", "(".repeat(200_000), ")".repeat(200_000)),
    );
    house.write("ws/.codex/rules/large.rules", &"#".repeat(2 << 20));
    rustix::fs::mkfifoat(rustix::fs::CWD, rules.join("pipe.rules"), rustix::fs::Mode::RWXU)
        .unwrap();
    let book = house.current().await;
    assert_eq!(says(&book, "rm x"), Some(Decision::Forbidden));
    assert_eq!(says(&book, "secret"), None);
    assert_eq!(book.faults.len(), 4, "{:#?}", book.faults);

    for number in 0..100 {
        house.write(&format!("ws/.codex/rules/{number}.rules"), "");
    }
    let book = house.current().await;
    assert_eq!(book.files.len(), 1, "too many: none is read");
    assert!(book.faults[0].message.contains("64"), "{:?}", book.faults);
}

#[tokio::test]
async fn a_name_stands_for_the_first_program_on_the_search_path_and_all_that_leads_to_it() {
    let house = House::new();
    let real = house.program("bin/real-git");
    let bin = house.scratch.path().join("bin");
    symlink(&real, bin.join("git")).unwrap();
    std::fs::hard_link(&real, bin.join("git-upload-pack")).unwrap();
    house.write("bin/data", "not a program");
    house.write(
        "home/rules/a.rules",
        &format!("prefix_rule([['git', 'data', 'gone', './git', {real:?}]])"),
    );
    let book = house.current().await;
    let git = &book.table.programs["git"];
    assert_eq!(git.files.len(), 1);
    assert_eq!(git.files[0].path, real.canonicalize().unwrap().to_str().unwrap());
    let names: Vec<&str> = git.paths.iter().map(|path| path.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["git", "git-upload-pack", "real-git"]);
    assert_eq!(book.table.programs[real.to_str().unwrap()].files, git.files);
    for nothing in ["data", "gone", "./git"] {
        assert!(book.table.programs[nothing].files.is_empty(), "{nothing}");
    }

    // Another file of the same name is another program.
    std::fs::remove_file(bin.join("git")).unwrap();
    house.program("bin/git");
    assert_ne!(house.current().await.table.programs["git"].files, git.files);
}

#[tokio::test]
async fn when_there_is_a_list_only_listed_files_go_by_the_name() {
    let house = House::new();
    let first = house.program("bin/git");
    let other = house.program("other/git");
    house.write(
        "home/rules/a.rules",
        &format!("prefix_rule(['git'])\nhost_executable('git', [{other:?}, '/nonexistent/git'])"),
    );
    let git = &house.current().await.table.programs["git"];
    let paths = |files: &[::policy::HostFile]| {
        files.iter().map(|file| file.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(paths(&git.files), [other.to_str().unwrap()]);
    // The other file has the same name, so a rule that forbids the name applies to it too.
    assert_eq!(paths(&git.also), [first.to_str().unwrap()]);
}

#[test]
fn the_places_are_codex_home_or_the_one_in_the_home_directory() {
    let places = |pairs: &[(&str, &str)]| {
        RuleLocations::from_env(
            &ProcessEnv::new(pairs.iter().copied(), "/here"),
            vec!["x.rules".into()],
        )
    };
    let system = Path::new("/etc/codex/rules");
    assert_eq!(places(&[("HOME", "/h")]).dirs, [system, Path::new("/h/.codex/rules")]);
    assert_eq!(
        places(&[("HOME", "/h"), ("CODEX_HOME", "c")]).dirs,
        [system, Path::new("/here/c/rules")]
    );
    assert_eq!(places(&[]).dirs, [system]);
    assert_eq!(places(&[]).files, [Path::new("/here/x.rules")]);
    assert_eq!(places(&[]).search_path, DEFAULT_PATH);
    assert_eq!(places(&[("PATH", "/p")]).search_path, "/p");
}
