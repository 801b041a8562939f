//! Git, in a plain repository, in a worktree whose repository lies elsewhere, and in a submodule.

use super::{Work, work};

/// The time is part of a commit's name: with a fixed one both runs make the same commits.
const DATES: &str =
    "export GIT_AUTHOR_DATE='2024-01-02T03:04:05Z' GIT_COMMITTER_DATE='2024-01-02T03:04:05Z'\n";

/// Two commits, one changed file and one new one.
const REPOSITORY: &str = "
    git init -q -b main .
    mkdir deep
    printf 'one\\n' >a.txt
    printf 'two\\n' >deep/b.txt
    git add . && git commit -qm first
    printf 'three\\n' >deep/b.txt
    git commit -qam second
    printf 'more\\n' >>a.txt
    printf 'new\\n' >c.txt
";

fn dated(script: &str) -> String {
    format!("{DATES}{script}")
}

fn git(script: &str) -> Work {
    Work::script(&dated(script)).prepared(&dated(REPOSITORY)).needs(&["git"])
}

/// The repository is beside the workspace, where nothing of it is writable by being in the workspace.
fn in_worktree(script: &str) -> Work {
    let moved = "
        mkdir ../main && mv .git a.txt c.txt deep ../main/ && cd ../main
        git worktree add -q -b side ../tree
        printf 'more\\n' >>../tree/a.txt
        printf 'new\\n' >../tree/c.txt
    ";
    git(script).prepared(&dated(&format!("{REPOSITORY}{moved}"))).workspace("tree")
}

work! {
    git_status: git("git status --short --branch; git status").says(" M a.txt").says("?? c.txt");

    /// The name comes from the user's own ~/.gitconfig.
    git_commit: git("git add -A; git commit -m third; git rev-parse HEAD; git show --stat --format=fuller")
        .says("A Worker <worker@example.org>");

    git_commit_with_a_given_name: git("
        git -c user.name=Somebody -c user.email=some@example.org commit -am third
        git log -1 --format='%an %ae %H'
    ").says("Somebody some@example.org");

    git_log: git("git log --stat --graph --format=fuller").says("second");

    git_diff: git("git diff; git diff --stat HEAD~1; git diff --no-index a.txt c.txt || echo $?").says("+more");

    git_stash: git("
        git stash push -u -m later; git stash list; git status --short
        git stash pop; git status --short
    ").says("On main: later");

    /// Deleting or renaming a branch is not part of it: git then rewrites `.git/config`, which is read-only there.
    git_branches_are_merged_and_rebased: git("
        git reset -q --hard; rm c.txt
        git checkout -q -b side HEAD~1; printf 'side\\n' >side.txt; git add .; git commit -qm side
        git checkout -q -b merged main; git merge --no-edit side
        git checkout -q side; git rebase main
        git tag -a -m one v1; git log --all --format='%H %s %D'
    ").says("tag: v1");

    git_gc: git("
        git gc -q --prune=now; git fsck --full --strict; git repack -adq
        git verify-pack -v .git/objects/pack/*.idx | grep -c ' commit '
    ").says("2\n");

    /// What the fence puts up in place of protected names that are missing is not git's to clean away.
    git_clean: git("mkdir -p made/here; touch made/here/x; git clean -nd; git clean -ffdq; git status --short")
        .says("Would remove made/");

    git_status_in_a_worktree: in_worktree("git status --short --branch; git rev-parse --git-common-dir")
        .says("## side");

    git_commit_in_a_worktree: in_worktree("git add -A; git commit -m third; git log -1 --format='%H %an %D'")
        .says("A Worker");

    git_log_in_a_worktree: in_worktree("git log --format=fuller --all; git worktree list").says("second");

    git_diff_in_a_worktree: in_worktree("git diff; git diff --stat main~1").says("+more");

    git_stash_in_a_worktree: in_worktree("git stash push -u; git status --short; git stash pop").says("Dropped");

    /// A submodule's repository lies in `.git/modules`, and its own configuration is among what is protected.
    git_commit_in_a_submodule: git("
        cd lib; printf 'changed\\n' >>code.txt; git commit -am change; cd ..
        git add lib; git commit -m bump; git submodule status; git log -p -1 --submodule=log
    ").prepared(&dated("
        git init -q -b main ../library; cd ../library
        printf 'code\\n' >code.txt; git add .; git commit -qm library; cd ../ws
        git init -q -b main .
        git -c protocol.file.allow=always submodule --quiet add ../library lib
        git commit -qm first
    ")).says("> change");

    /// Git links objects where it can and copies them where it cannot: which of the two is left open.
    git_clone_of_a_local_path: git("
        git clone -q . copies/one; git clone -q --bare \"file://$PWD\" copies/two
        git -C copies/one log --format=%H; git -C copies/two rev-parse main
        cd copies/one; printf 'x\\n' >x; git add x; git commit -qm x; git log -1 --format='%H %an'
    ").says("A Worker").untidy(".git/objects").untidy("copies/one/.git/objects");

    /// A new repository is the agent's own: nothing in it was there to be protected.
    git_init_in_a_folder: git("
        mkdir fresh; cd fresh; git init -q -b main; git config core.abbrev 12
        printf 'x\\n' >x; git add x; git commit -qm x; git log --oneline
    ").says(" x");
}

/// A repository that a command makes in the workspace itself could name programs that the user's own git runs later.
/// So there is none to be made there; in a folder of its own it works, as above.
fn no_repository_is_made(who: super::Who) {
    let work =
        Work::script("git init -q -b main").needs(&["git"]).ends(128).says("Read-only file system");
    let Some(run) = work.in_the_fence(who) else { return };
    assert!(run.files.is_empty(), "nothing is left of the attempt: {:?}", run.files);
}

mod git_init_of_the_workspace_is_refused {
    use crate::work::Who;

    #[test]
    fn as_root() {
        super::no_repository_is_made(Who::Root);
    }

    #[test]
    fn as_user() {
        super::no_repository_is_made(Who::User);
    }
}
