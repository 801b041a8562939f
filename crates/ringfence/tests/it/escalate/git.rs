//! git outside: the ordinary push works, and nothing that the run can write makes git run a program.

use std::process::Stdio;

use super::{Place, as_everybody, said};
use crate::escape::{Cx, Effect, User, absent, as_user, by_default, everywhere};

/// A repository with a commit and a remote outside, which the operator has pushed to once.
const REPOSITORY: &str = "set -e
git init -q -b main .
git config user.name it; git config user.email it@example.invalid
echo one > file; git add file; git commit -q -m one
git init -q --bare $OUTSIDE/remote.git
git remote add origin $OUTSIDE/remote.git
git push -q -u origin main
";

/// What is set up outside, by the user whose run it will be.
pub fn prepare(place: &Place<'_>, script: &str) {
    let mut command = as_user(place.cx);
    let output = command
        .args(["bash", "-c", &format!("{}\n{script}", place.names())])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    if place.cx.mode.user == User::Root {
        // Root's commands leave as somebody else, who has to be able to work here.
        let shared = [place.cx.path("workspace"), place.cx.path("outside")];
        let done = std::process::Command::new("chmod")
            .arg("-R")
            .arg("a+rwX")
            .args(&shared)
            .status()
            .unwrap();
        let given = std::process::Command::new("chown")
            .args(["-R", super::NOBODY])
            .arg(place.cx.path("outside"))
            .status();
        assert!(done.success() && given.unwrap().success());
    }
}

/// A workspace whose rules let `git push` out, and no more than the given ones beside.
pub fn place<'a>(cx: &'a Cx, patterns: &[&str]) -> Place<'a> {
    let place = Place { rules: String::new(), ..Place::new(cx) }.asking();
    patterns.iter().fold(place.allow("[\"git\", \"push\"]"), |place, pattern| place.allow(pattern))
}

#[track_caller]
fn holds(prepared: &str, script: &str) {
    by_default().holds(|cx| attack(cx, &[], prepared, script));
}

pub fn attack(cx: &Cx, patterns: &[&str], prepared: &str, script: &str) -> Effect {
    let place = place(cx, patterns);
    prepare(&place, &format!("{REPOSITORY}{prepared}"));
    place.bash(&format!("echo more >> file; {script}"));
    absent(place.marker())
}

/// Before it is let out, the operator commits; the run itself cannot, since a rule lets git out.
#[test]
fn an_ordinary_push_reaches_a_remote_outside() {
    as_everybody(|before| {
        let place = place(before.cx, &["[\"git\", \"push\", \"origin\", \"main\"]"]);
        prepare(&place, &format!("{REPOSITORY}echo two > file; git commit -q -a -m two"));
        let run = place.bash(
            "git push 2>/dev/null; echo $?; git --git-dir=$OUTSIDE/remote.git -c safe.directory='*' log --format=%s main
             mkdir -p sub; cd sub; git push origin main 2>/dev/null; echo $?; git push origin main:other 2>/dev/null || echo inside",
        );
        assert_eq!(said(&run), "0\ntwo\none\n0\ninside\n", "{run:?}");
        assert!(
            run.stderr.contains(
                "`git push` ran inside the sandbox: its rule does not name the whole command"
            ),
            "{run:?}"
        );
    });
}

#[test]
fn a_push_that_is_asked_about_runs_when_it_is_allowed() {
    as_everybody(|before| {
        let place = place(before.cx, &[]).args(&["--on-prompt", "allow"]);
        prepare(&place, REPOSITORY);
        let run = place.bash("git push -q origin main:other; echo $?; git --git-dir=$OUTSIDE/remote.git -c safe.directory='*' branch --format='%(refname:short)'");
        assert_eq!(said(&run), "0\nmain\nother\n", "{run:?}");
    });
}

/// git is told which repository it works on. A command that makes one, or that chooses one by an option, would work on
/// that one instead of its own, and succeed. It stays inside, and works on its own there.
#[test]
fn a_command_for_another_repository_never_works_on_the_workspaces() {
    let patterns = [
        "[\"git\", \"init\", \"sub\"]",
        "[\"git\", \"init\"]",
        "[\"git\", \"-C\", \"two\", \"init\"]",
        "[\"git\", \"--git-dir=four\", \"init\"]",
        "[\"git\", \"clone\", \"-q\", \".\", \"five\"]",
        "[\"git\", \"-C\", \"nested\", \"log\", \"--format=%s\"]",
    ];
    let nested = "mkdir two three; git init -q nested
        git -C nested -c user.name=it -c user.email=it@example.invalid commit -q --allow-empty -m nested";
    as_everybody(|before| {
        let place = place(before.cx, &patterns);
        prepare(&place, &format!("{REPOSITORY}{nested}"));
        let run = place.bash(
            "git init sub; git -C two init; (cd three; git init); git --git-dir=four init; git clone -q . five; git -C nested log --format=%s
             for d in sub two three five; do [ -f $d/.git/HEAD ] && echo made $d; done; [ -f four/HEAD ] && echo made four",
        );
        let said = said(&run);
        assert!(!said.contains("Reinitialized"), "{run:?}");
        assert!(
            said.ends_with("\nnested\nmade sub\nmade two\nmade three\nmade five\nmade four\n"),
            "{run:?}"
        );
        assert!(
            run.stderr.contains("`git init sub` ran inside the sandbox: `git init`"),
            "{run:?}"
        );
        assert!(run.stderr.contains("`git -C two init` ran inside the sandbox: "), "{run:?}");
    });
}

/// A work tree belongs to the repository that git is told of.
#[test]
fn a_work_tree_is_added_to_the_repository_that_git_is_told_of() {
    as_everybody(|before| {
        let place = place(before.cx, &["[\"git\", \"worktree\", \"add\", \"tree\"]"]);
        prepare(&place, REPOSITORY);
        let run = place
            .bash("git worktree add tree 2>/dev/null; echo $?; cat tree/file; ls .git/worktrees");
        assert!(said(&run).starts_with("0\n") || said(&run).contains("\n0\n"), "{run:?}");
        assert!(said(&run).ends_with("one\ntree\n"), "{run:?}");
    });
}

/// While a rule lets git out, all of the repository is closed to the run, and commits are left to the operator.
#[test]
fn the_repository_is_closed_to_the_run() {
    as_everybody(|before| {
        let place = place(before.cx, &[]);
        prepare(&place, REPOSITORY);
        let run = place.bash("for f in index HEAD refs/heads/x objects/x info/attributes config hooks/x; do echo x 2>/dev/null > .git/$f && echo wrote $f; done; true");
        assert_eq!(said(&run), "", "{run:?}");
    });
}

#[test]
fn the_program_on_the_other_side() {
    holds(
        "",
        "git push --receive-pack=\"touch $M; git-receive-pack\" origin main; git push --exec=\"touch $M; git-receive-pack\" origin main",
    );
}

#[test]
fn settings_on_the_command_line() {
    holds(
        "",
        "git -c remote.origin.receivepack=\"touch $M; git-receive-pack\" push; git -c core.hooksPath=$PWD -c alias.push='!touch '$M push",
    );
}

#[test]
fn settings_in_the_environment() {
    holds("", "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=remote.origin.receivepack GIT_CONFIG_VALUE_0=\"touch $M; git-receive-pack\"; git push
        unset GIT_CONFIG_COUNT; GIT_CONFIG_PARAMETERS=\"'remote.origin.receivepack=touch $M; git-receive-pack'\" git push");
}

const EVIL: &str =
    "printf '[remote \"origin\"]\\n\\treceivepack = \"touch %s; git-receive-pack\"\\n' $M";

#[test]
fn a_home_with_settings() {
    holds(
        "",
        &format!(
            "mkdir h; {EVIL} > h/.gitconfig; HOME=$PWD/h git push; {EVIL} > ~/.gitconfig; git push"
        ),
    );
}

#[test]
fn settings_in_a_place_of_the_desktop() {
    holds(
        "",
        &format!(
            "mkdir -p h/git; {EVIL} > h/git/config; XDG_CONFIG_HOME=$PWD/h git push; GIT_CONFIG_GLOBAL=$PWD/h/git/config git push; GIT_CONFIG_SYSTEM=$PWD/h/git/config git push"
        ),
    );
}

#[test]
fn another_repository_by_the_environment() {
    holds(
        "",
        &format!(
            "cp -r .git evil; {EVIL} >> evil/config; GIT_DIR=$PWD/evil git push; GIT_COMMON_DIR=$PWD/evil GIT_DIR=$PWD/.git git push"
        ),
    );
}

#[test]
fn other_programs_of_git_by_the_environment() {
    holds(
        "",
        "mkdir x; for p in git-receive-pack git-push git-pack-objects; do printf '#!/bin/sh\ntouch %s\n' $M > x/$p; chmod +x x/$p; done; GIT_EXEC_PATH=$PWD/x git push",
    );
}

#[test]
fn a_program_for_the_way_there() {
    holds(
        "git remote set-url origin ssh://host.invalid/x",
        "printf '#!/bin/sh\ntouch %s\n' $M > ssh; chmod +x ssh; GIT_SSH=$PWD/ssh git push; GIT_SSH_COMMAND=$PWD/ssh git push; PATH=$PWD:$PATH git push",
    );
}

#[test]
fn another_protocol_by_the_environment() {
    holds("", "GIT_ALLOW_PROTOCOL=ext git push \"ext::touch $M\"");
}

#[test]
fn a_changed_config() {
    holds(
        "",
        &format!(
            "{EVIL} >> .git/config; git config remote.origin.receivepack \"touch $M; git-receive-pack\"; git push"
        ),
    );
}

#[test]
fn a_repository_in_the_place_of_the_right_one() {
    holds(
        "",
        &format!(
            "mv .git old; cp -r old .git 2>/dev/null; {EVIL} >> .git/config; git push; rm -rf .git; git init -q .; {EVIL} >> .git/config; git push"
        ),
    );
}

#[test]
fn a_hook_of_the_run() {
    holds(
        "",
        "mkdir -p .git/hooks; printf '#!/bin/sh\ntouch %s\n' $M > .git/hooks/pre-push; chmod +x .git/hooks/pre-push; git push",
    );
}

/// The repository's settings are closed to the run, and a file of the workspace that they take in is not.
#[test]
fn a_file_of_the_workspace_that_the_settings_include() {
    for prepared in [
        "git config include.path ../.gitconfig",
        "git config includeIf.onbranch:main.path ../.gitconfig",
    ] {
        holds(prepared, &format!("{EVIL} > .gitconfig; git push"));
    }
}

/// Without mounts nothing of a workspace can be closed to the run.
#[test]
fn a_changed_config_in_the_contained_profile() {
    everywhere().holds(|cx| {
        attack(
            cx,
            &[],
            "",
            "git config remote.origin.receivepack \"touch $M; git-receive-pack\"; git push",
        )
    });
}

/// The operator's own hook is a program too, and runs what the run can write.
#[test]
fn a_hook_of_the_operator_that_runs_a_file_of_the_workspace() {
    holds(
        "mkdir -p .git/hooks; printf '#!/bin/sh\n./check\n' > .git/hooks/pre-push; chmod +x .git/hooks/pre-push; printf '#!/bin/sh\n' > check; chmod +x check",
        "echo \"touch $M\" >> check; git push",
    );
}

#[test]
fn git_that_goes_by_the_name_of_one_of_its_commands() {
    by_default().holds(|cx| {
        let script = "(exec -a git-push git --receive-pack=\"touch $M; git-receive-pack\" origin main); (exec -a git-status git status); ln -s $(which git) git-push; ./git-push --receive-pack=\"touch $M; git-receive-pack\" origin main";
        attack(cx, &["[\"git\", \"status\"]"], "", script)
    });
}
