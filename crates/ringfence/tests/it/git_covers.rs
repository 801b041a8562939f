//! What git on the host would execute: no run can change it, and what a run makes is reported. Every case asks the
//! host's real git afterwards.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::place::visible_folder;
use crate::support::process::marker;
use crate::support::subset::assert_holds;
use crate::support::{DEADLINE, Options, SESSIONS, Transport, eventually, server};

/// A home, a root and a workspace of their own.
struct Stage(PathBuf);

impl Stage {
    fn new() -> Stage {
        let place = visible_folder().join(format!("git-{}", marker()));
        for name in ["home", "root", "ws"] {
            std::fs::create_dir_all(place.join(name)).unwrap();
        }
        let stage = Stage(place.canonicalize().unwrap());
        stage.write(
            "home/.gitconfig",
            "[user]\n\tname = me\n\temail = me@example.com\n[protocol \"file\"]\n\tallow = always\n",
        );
        stage
    }

    /// With a repository and a commit in it.
    fn with_repository() -> Stage {
        let stage = Stage::new();
        stage.repository("ws");
        stage
    }

    fn repository(&self, name: &str) {
        std::fs::create_dir_all(self.0.join(name)).unwrap();
        self.git(name, &["init", "-q", "-b", "main", "."]);
        self.write(&format!("{name}/file"), "one\n");
        self.git(name, &["add", "file"]);
        self.git(name, &["commit", "-q", "-m", "one"]);
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    fn command(&self, program: &Path, at: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.0.join("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1");
        // A clone of this project lies above.
        command.env("GIT_CEILING_DIRECTORIES", &self.0);
        command.current_dir(self.0.join(at));
        command
    }

    #[track_caller]
    fn git(&self, at: &str, words: &[&str]) -> String {
        let output = self.command(Path::new("/usr/bin/git"), at).args(words).output().unwrap();
        assert!(output.status.success(), "git {words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs a script in the sandbox.
    fn run(&self, script: &str) -> (Output, Value) {
        let report = self.0.join("report.json");
        let mut command = self.command(&server::binary(), "ws");
        command.arg("sandbox").arg("--root").arg(self.0.join("root")).arg("--report").arg(&report);
        let output = command.args(["--", "bash", "-c", script]).output().unwrap();
        let text =
            std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output, serde_json::from_str(&text).unwrap())
    }

    /// Runs a script that tries to plant `planted`, and fails if it is there afterwards.
    #[track_caller]
    fn keeps_out(&self, script: &str) {
        let (output, _) = self.run(script);
        let found =
            Command::new("grep").args(["-rlq", "planted"]).arg(self.0.join("ws")).status().unwrap();
        assert!(!found.success(), "{script}\n{output:?}");
    }

    fn changes(&self, script: &str) -> Vec<String> {
        let (_, report) = self.run(script);
        let changes = report["git_changed"].as_array().unwrap_or_else(|| panic!("{report}"));
        changes.iter().map(|change| change.as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A repository with a submodule at `libs/part`, which has one at `inner`.
fn with_submodules() -> Stage {
    let stage = Stage::with_repository();
    for name in ["inner", "part"] {
        stage.repository(name);
    }
    let url = |name: &str| stage.0.join(name).display().to_string();
    stage.git("part", &["submodule", "--quiet", "add", &url("inner"), "inner"]);
    stage.git("part", &["commit", "-q", "-m", "inner"]);
    stage.git("ws", &["submodule", "--quiet", "add", &url("part"), "libs/part"]);
    stage.git("ws", &["submodule", "--quiet", "update", "--init", "--recursive"]);
    stage.git("ws", &["commit", "-q", "-m", "part"]);
    stage
}

#[test]
fn submodules_at_any_depth_are_covered_whatever_was_planted_above_them() {
    let stage = with_submodules();
    stage.run("echo x > .git/modules/libs/HEAD; mkdir -p .git/modules/libs/objects .git/modules/libs/refs");
    for at in ["libs/part", "libs/part/modules/inner"] {
        stage.keeps_out(&format!(
            "echo planted > .git/modules/{at}/config; echo planted > .git/modules/{at}/hooks/pre-commit"
        ));
        stage.keeps_out(&format!("perl -e 'rename shift, shift' .git/modules/{at} .git/old; mkdir -p .git/modules/{at}/hooks; echo planted > .git/modules/{at}/hooks/pre-commit"));
    }
    // Their pointers lead where they led.
    stage.run("mkdir evil; for at in libs/part libs/part/inner; do rm -f $at/.git; echo 'gitdir: ../../evil' > $at/.git; done");
    assert!(
        stage.git("ws/libs/part", &["rev-parse", "--git-dir"]).ends_with(".git/modules/libs/part")
    );
    assert!(
        stage.git("ws/libs/part/inner", &["rev-parse", "--git-dir"]).ends_with("modules/inner")
    );
}

#[test]
fn a_submodule_with_a_repository_of_its_own_is_covered() {
    let stage = with_submodules();
    std::fs::remove_file(stage.0.join("ws/libs/part/.git")).unwrap();
    std::fs::rename(stage.0.join("ws/.git/modules/libs/part"), stage.0.join("ws/libs/part/.git"))
        .unwrap();
    stage.git("ws", &["config", "--file", "libs/part/.git/config", "--unset", "core.worktree"]);
    stage.keeps_out(
        "echo planted >> libs/part/.git/config; echo planted > libs/part/.git/hooks/pre-commit",
    );
    stage.keeps_out("perl -e 'rename shift, shift' libs/part gone; mkdir -p libs/part/.git/hooks; echo planted > libs/part/.git/hooks/pre-commit");
}

#[test]
fn no_bare_repository_is_laid_into_a_plain_workspace() {
    let stage = Stage::new();
    let (output, _) = stage.run(
        "mkdir -p objects refs; echo 'ref: refs/heads/main' > HEAD; printf '[core]\\n\\tbare = true\\n\\tfsmonitor = touch planted\\n' > config; git init -q --bare .; ls",
    );
    let asked = stage
        .command(Path::new("/usr/bin/git"), "ws")
        .args(["rev-parse", "--git-dir"])
        .output()
        .unwrap();
    assert!(!asked.status.success(), "{asked:?} {output:?}");
    assert!(
        !stage.0.join("ws/HEAD").exists() && !stage.0.join("ws/.git").exists(),
        "what stood in is gone again"
    );
}

#[test]
fn hooks_are_covered_however_their_directory_is_written() {
    let long = format!("# {}\n[core]\n\thooksPath = tools/hooks\n", "x".repeat(70 << 10));
    for text in [
        "[core]\n\thooksPath = tools/hooks ; a comment\n",
        "[core] hooksPath = tools/hooks\n",
        "[core]\n\tHooksPath = \"tools/\"hooks\n",
        "[core]\n\thookspath = \\\ntools/hooks\n",
        "; hooksPath = other\n[core]\n\thooksPath = tools/hooks\n\t# hooksPath = else\n",
        "[include]\n\tpath = ../shared.inc\n",
        &long,
    ] {
        let stage = Stage::with_repository();
        stage.write("ws/shared.inc", "[core]\n\thooksPath = tools/hooks\n");
        stage.write("ws/tools/hooks/pre-push", "#!/bin/sh\n");
        let config = std::fs::read_to_string(stage.0.join("ws/.git/config")).unwrap();
        stage.write("ws/.git/config", &format!("{config}{text}"));
        assert!(
            stage.git("ws", &["rev-parse", "--git-path", "hooks"]).ends_with("tools/hooks"),
            "{text:.200}"
        );
        stage.keeps_out(
            "echo planted > tools/hooks/pre-commit; mv tools old; mkdir -p tools/hooks; echo planted > tools/hooks/x",
        );
        if text.starts_with("[include]") {
            stage.keeps_out("echo '# planted' >> shared.inc; echo '# planted' > new; mv new shared.inc; rm -f new");
        }
    }
}

#[test]
fn hooks_that_the_user_or_a_worktree_configures_are_covered() {
    let stage = Stage::with_repository();
    stage.git("ws", &["config", "--global", "core.hooksPath", ".githooks"]);
    stage.write("ws/.githooks/pre-push", "#!/bin/sh\n");
    stage.keeps_out("echo planted > .githooks/pre-commit");
    let stage = Stage::with_repository();
    stage.git("ws", &["config", "extensions.worktreeConfig", "true"]);
    stage.git("ws", &["config", "--worktree", "core.hooksPath", "tools/of\u{fc}"]);
    let raw = std::ffi::OsStr::from_bytes(b"tools/of\xc3\xbc");
    std::fs::create_dir_all(stage.0.join("ws").join(raw)).unwrap();
    stage
        .keeps_out("echo planted > tools/of*/pre-commit; echo '# planted' >> .git/config.worktree");
}

#[test]
fn files_that_would_be_included_later_are_covered_now() {
    let stage = Stage::with_repository();
    stage.git("ws", &["config", "includeIf.onbranch:other.path", "../later.inc"]);
    stage.keeps_out("git checkout -q -b other; printf '[alias]\\n\\tplanted = !sh\\n' > later.inc");
}

#[test]
fn worktrees_in_the_workspace_are_covered() {
    let stage = Stage::with_repository();
    stage.git("ws", &["worktree", "add", "-q", "deep/er/tree"]);
    stage.keeps_out("for f in commondir gitdir config.worktree; do echo planted > .git/worktrees/tree/$f; done; echo 'gitdir: planted' > deep/er/tree/.git");
    assert!(
        stage.git("ws/deep/er/tree", &["rev-parse", "--git-dir"]).ends_with(".git/worktrees/tree")
    );
}

/// A link there could lead anywhere later, so that nothing in the directory can be written.
#[test]
fn submodules_of_a_worktree_that_are_links_are_closed() {
    let stage = Stage::with_repository();
    stage.git("ws", &["worktree", "add", "-q", "tree"]);
    stage.write("ws/.git/worktrees/tree/modules/real/HEAD", "ref: refs/heads/main\n");
    std::os::unix::fs::symlink("real", stage.0.join("ws/.git/worktrees/tree/modules/part"))
        .unwrap();
    stage.keeps_out(
        "cd .git/worktrees/tree/modules; echo planted > new; rm part; ln -s ../../../elsewhere part; mv ../modules ../m; mkdir -p ../modules/part; echo planted > ../modules/part/config",
    );
}

#[test]
fn what_a_run_makes_is_reported_and_covered_from_the_next_run_on() {
    let stage = Stage::with_repository();
    assert_eq!(stage.changes("git init -q nested"), ["a repository was made: nested/.git"]);
    stage.keeps_out(
        "echo planted > nested/.git/hooks/pre-commit; echo '# planted' >> nested/.git/config",
    );
    // Ordinary work is no change.
    assert_eq!(
        stage.changes(
            "echo two > file; git commit -qam two; git checkout -q -b feature; git tag v1"
        ),
        [""; 0]
    );
    let host = stage.0.join("ws/.git/hooks/post-commit");
    std::fs::write(&host, "#!/bin/sh\n").unwrap();
    assert_eq!(stage.changes("true"), [""; 0]);
}

#[test]
fn what_the_host_adds_while_a_run_lives_is_compared_too() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let (stage, workspace) = (Stage::new(), server.workspace().display().to_string());
    // An absolute path stays what it is.
    stage.repository(&workspace);
    stage.repository("late");
    let mut client = server.connect(SESSIONS);
    let command = "touch begun; until [ -e added ]; do sleep 0.01; done; echo '[core]' >> .git/modules/late/config";
    let id = client.start_call("shell.exec", &json!({"command": command}));
    eventually(DEADLINE, "the run has begun", || server.workspace().join("begun").exists());
    stage.git(
        &workspace,
        &["submodule", "--quiet", "add", &stage.0.join("late").display().to_string(), "late"],
    );
    std::fs::write(server.workspace().join("added"), "").unwrap();
    let result = client.wait(&id)["result"]["structuredContent"].clone();
    let changes = result["git_changed"].as_array().unwrap_or_else(|| panic!("{result:#}"));
    assert!(
        changes.iter().any(|change| change == "a repository was made: late (.git/modules/late)"),
        "{changes:?}"
    );
    assert_holds(json!({"git_changed": result["git_changed"]}), &server.stops(1)[0]);
}

/// Being asked gives a hostile repository nothing: nothing of it runs, and it holds nobody up.
#[test]
fn a_hostile_repository_gains_nothing_by_being_asked() {
    let stage = Stage::with_repository();
    let trap = stage.write("trap", "#!/bin/sh\ntouch \"$(dirname \"$0\")/sprung\"\n");
    std::fs::set_permissions(&trap, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for key in [
        "core.fsmonitor",
        "core.pager",
        "core.sshCommand",
        "diff.external",
        "core.editor",
        "pager.config",
    ] {
        stage.git("ws", &["config", key, &trap.display().to_string()]);
    }
    let (output, _) = stage.run("true");
    assert!(output.status.success() && !stage.0.join("sprung").exists(), "{output:?}");
    // A pipe that nobody writes to: the answer does not come, and nothing of the repository can be written.
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        stage.0.join("ws/pipe"),
        rustix::fs::Mode::from_raw_mode(0o644),
    )
    .unwrap();
    stage.git("ws", &["config", "--file", ".git/config", "include.path", "../pipe"]);
    let (output, _) = stage.run("echo planted > .git/anything; echo ok > fine");
    assert!(
        stage.0.join("ws/fine").exists() && !stage.0.join("ws/.git/anything").exists(),
        "{output:?}"
    );
}

#[test]
fn ordinary_work_with_git_goes_on() {
    let stage = with_submodules();
    let part = stage.0.join("part").display().to_string();
    let (output, _) = stage.run(&format!(
        "set -e; cd libs/part; echo two > file; git commit -qam two; cd ../..; git add libs/part; git commit -qm bump
         git worktree add -q tree; cd tree; echo three > file; git commit -qam three; cd ..
         git clone -q '{part}' cloned; cd cloned; git submodule --quiet update --init; echo x > y; git add y; git commit -qm y
         git stash list; git gc -q; cd ..; git gc -q; git log --oneline | wc -l"
    ));
    assert!(output.status.success(), "{output:?}");
}

/// Git writes the settings of a submodule anew whenever it updates it, though they are what they were.
#[test]
fn submodules_that_were_checked_out_before_are_updated() {
    let stage = with_submodules();
    stage.git("part", &["commit", "-q", "--allow-empty", "-m", "two"]);
    stage.git("ws/libs/part", &["pull", "-q"]);
    stage.git("ws", &["commit", "-q", "-am", "bump"]);
    stage.git("ws/libs/part", &["checkout", "-q", "HEAD~1"]);
    let (output, report) = stage.run(
        "git submodule update --init --recursive && ! git config -f .git/modules/libs/part/config core.pager planted",
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["git_changed"], json!([]), "{report}");
    assert_eq!(stage.git("ws", &["status", "--short"]), "");
    stage.keeps_out(
        "cd .git/modules/libs/part; cp config config.lock; echo planted >> config.lock; mv config.lock config; cp config other; mv -f other config; rm -f config.lock other",
    );
    // What it would replace is the same, and still nobody's to replace: it is what it was afterwards.
    let settings = stage.0.join("ws/.git/modules/libs/part/config");
    let before = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&settings).unwrap());
    let (output, _) = stage.run(
        "cd .git/modules/libs/part; cp config config.lock; mv config.lock config; ls config.lock",
    );
    assert!(!output.status.success(), "the new file is gone: {output:?}");
    assert_eq!(before, std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&settings).unwrap()));
}

#[test]
fn a_hook_that_is_a_link_to_a_script_of_the_project_is_covered() {
    let stage = Stage::with_repository();
    stage.write("ws/scripts/check", "#!/bin/sh\n");
    std::os::unix::fs::symlink("../../scripts/check", stage.0.join("ws/.git/hooks/pre-commit"))
        .unwrap();
    stage.keeps_out(
        "echo planted > scripts/check; echo planted > new; mv new scripts/check; rm -f new",
    );
}

#[test]
fn hooks_behind_several_links_are_covered() {
    let stage = Stage::with_repository();
    stage.write("ws/h2/pre-push", "#!/bin/sh\n");
    for (target, name) in [("h2", "h1"), ("h1", "hk")] {
        std::os::unix::fs::symlink(target, stage.0.join("ws").join(name)).unwrap();
    }
    stage.git("ws", &["config", "core.hooksPath", "hk"]);
    stage.run(
        "mkdir evil; echo planted > evil/pre-commit; ln -sfn evil h1; rm -f h1; ln -s evil h1",
    );
    assert!(!stage.0.join("ws/hk/pre-commit").exists());
}

#[test]
fn settings_that_are_reached_by_links_are_covered() {
    let stage = Stage::with_repository();
    // Dotfiles that are kept in the project.
    let dotfile =
        stage.write("ws/dot/gitconfig", "[user]\n\tname = me\n\temail = me@example.com\n");
    std::fs::remove_file(stage.0.join("home/.gitconfig")).unwrap();
    std::os::unix::fs::symlink(&dotfile, stage.0.join("home/.gitconfig")).unwrap();
    std::os::unix::fs::symlink(stage.0.join("ws"), stage.0.join("alias")).unwrap();
    stage.write("ws/conf/shared.inc", "");
    stage.git(
        "ws",
        &["config", "include.path", &stage.0.join("alias/conf/shared.inc").display().to_string()],
    );
    stage.keeps_out("echo '# planted' >> dot/gitconfig; echo '# planted' >> conf/shared.inc");
}

#[test]
fn hooks_of_a_repository_around_the_workspace_are_covered() {
    let stage = Stage::new();
    stage.repository(".");
    stage.git(".", &["config", "core.hooksPath", "ws/hooks"]);
    stage.write("ws/hooks/pre-push", "#!/bin/sh\n");
    stage.keeps_out("echo planted > hooks/pre-commit");
}

#[test]
fn hooks_are_covered_where_settings_move_the_work_tree() {
    let stage = Stage::with_repository();
    stage.write("ws/src/.githooks/pre-push", "#!/bin/sh\n");
    stage.git("ws", &["config", "core.hooksPath", ".githooks"]);
    stage.git("ws", &["config", "core.worktree", "../src"]);
    stage.keeps_out("echo planted > src/.githooks/pre-commit");
}

/// What calls the scripts next to it is not all that has to be covered.
#[test]
fn hooks_of_husky_are_covered() {
    let stage = Stage::with_repository();
    stage.write("ws/.husky/_/pre-commit", "#!/bin/sh\n. .husky/pre-commit\n");
    stage.git("ws", &["config", "core.hooksPath", ".husky/_"]);
    stage.keeps_out("echo planted > .husky/pre-commit");
}

/// One repository that holds git up, or many, hide no other.
#[test]
fn a_run_cannot_keep_git_from_answering() {
    let stage = with_submodules();
    stage.git("ws", &["config", "core.hooksPath", ".githooks"]);
    stage.write("ws/.githooks/pre-push", "#!/bin/sh\n");
    stage.run(
        "mkdir -p .git/worktrees/e; mkfifo .git/worktrees/e/gitdir; for n in $(seq 100 170); do git init -q 0$n; done",
    );
    stage.keeps_out("echo planted > .githooks/pre-commit");
    stage
        .keeps_out("echo planted > .git/modules/libs/part/hooks/pre-commit; echo planted > 0170/.git/hooks/pre-commit");
}

/// A list that cannot be finished is no list: what it would have named is not left open.
#[test]
fn a_pipe_that_git_waits_for_hides_no_submodule() {
    let stage = Stage::with_repository();
    stage.repository("part");
    let (url, deep) = (stage.0.join("part").display().to_string(), "a/b/c/d/e/part");
    stage.git("ws", &["clone", "-q", &url, deep]);
    stage.git("ws", &["add", deep]);
    stage.run("mkdir -p .git/worktrees/e; mkfifo .git/worktrees/e/gitdir");
    stage.keeps_out(&format!("echo planted > {deep}/.git/config"));
}

/// A repository of a run's making closes no directory of the user's, and stops no later run.
#[test]
fn a_repository_that_a_run_made_cannot_stop_the_next_run() {
    let stage = Stage::with_repository();
    stage.write("ws/src/main", "");
    stage.run("git init -q n; git -C n config core.hooksPath ..; git init -q m; git -C m config core.hooksPath ../src; mkdir -p .git/worktrees/w{1..2000}");
    let (output, _) = stage.run("echo x > src/new && echo y > file");
    assert!(output.status.success(), "{output:?}");
    // The workspace's own is another matter.
    stage.git("ws", &["config", "core.hooksPath", "."]);
    let refused = stage
        .command(&server::binary(), "ws")
        .args(["sandbox", "--root"])
        .arg(stage.0.join("root"))
        .args(["--", "true"])
        .output()
        .unwrap();
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("core.hooksPath"),
        "{refused:?}"
    );
}

#[test]
fn repositories_in_disguise_are_reported() {
    let stage = Stage::with_repository();
    let disguised = "cp -r .git docs; rm -f docs/HEAD; mkdir shell; mv docs shell/x; echo 'ref: refs/heads/main' > shell/HEAD; echo x > shell/commondir";
    let changes = stage.changes(disguised);
    assert!(changes.iter().any(|change| change.contains("made: shell")), "{changes:?}");
    let stage = with_submodules();
    stage.git("ws", &["submodule", "--quiet", "deinit", "-f", "libs/part"]);
    stage.keeps_out("mkdir -p .git/zz/hooks && mv .git/modules/libs/part .git/gone; ln -s ../../zz .git/modules/libs/part; echo planted > .git/modules/libs/part/hooks/post-checkout");
}
