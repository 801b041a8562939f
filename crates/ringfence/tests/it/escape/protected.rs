//! What lies in the workspace and is still not the agent's to write: what makes git and agents run code.

use std::os::unix::fs::PermissionsExt;

use jail::control_files::list_names;
use jail::rights::StandIn;

use super::{Cx, Effect, absent, by_default, held, unchanged};

/// A repository, as far as these attacks look at one.
fn repository(cx: &Cx) {
    for (name, text) in [
        ("HEAD", "ref: refs/heads/main\n"),
        ("config", "before"),
        ("hooks/pre-commit.sample", "before"),
        ("hooks/post-merge", "before"),
        ("modules/part/HEAD", "ref: refs/heads/main\n"),
        ("modules/part/config", "before"),
        ("modules/part/objects/x", ""),
        ("modules/part/refs/x", ""),
        ("objects/x", ""),
        ("refs/x", ""),
    ] {
        cx.inside(&format!(".git/{name}"), text);
    }
}

/// The hooks and the settings are what they were, and no hook was added.
fn is_untouched(cx: &Cx) -> Effect {
    for name in ["config", "hooks/pre-commit.sample", "hooks/post-merge", "modules/part/config"] {
        unchanged(cx.workspace(&format!(".git/{name}")), "before")?;
    }
    for name in ["hooks/new", "config.worktree", "commondir"] {
        absent(cx.workspace(&format!(".git/{name}")))?;
    }
    let link = std::fs::symlink_metadata(cx.workspace(".git/config")).unwrap().is_symlink();
    held(!link, "the config is a symbolic link now")
}

fn leaves_the_repository(script: &str) {
    by_default().holds(|cx| {
        repository(cx);
        cx.bash(script, &[]);
        is_untouched(cx)
    });
}

#[test]
fn the_config_of_git_is_not_written() {
    leaves_the_repository("echo after > .git/config");
}

/// Git writes a file beside it and moves that over the old one.
#[test]
fn the_config_of_git_is_not_replaced_by_git_itself() {
    leaves_the_repository(
        "git config --file .git/config core.fsmonitor evil; echo after > .git/x; mv -f .git/x .git/config",
    );
}

#[test]
fn the_config_of_git_is_not_replaced_by_a_symbolic_link() {
    leaves_the_repository("echo after > mine; rm -f .git/config; ln -sfn ../mine .git/config");
}

#[test]
fn the_config_of_git_is_not_written_by_a_second_name() {
    leaves_the_repository("ln .git/config second && echo after > second");
}

#[test]
fn the_config_of_git_is_not_written_from_its_directory() {
    by_default().holds(|cx| {
        repository(cx);
        let script = r"
folder = os.open('.git', os.O_PATH | os.O_DIRECTORY)
def write(flags):
    os.write(os.open('config', os.O_WRONLY | flags, dir_fd=folder), b'after')
tried('open', lambda: write(0))
tried('truncate', lambda: write(os.O_TRUNC))
tried('unlink', lambda: os.unlink('config', dir_fd=folder))
tried('create', lambda: write(os.O_CREAT))
";
        cx.python(script, &[]).refused()?;
        is_untouched(cx)
    });
}

#[test]
fn the_config_of_git_is_not_written_by_way_of_proc() {
    leaves_the_repository(
        "cd .git; echo after > /proc/self/cwd/config; exec 7< config; echo after > /proc/self/fd/7; exec 8< .; echo after > /proc/self/fd/8/config",
    );
}

#[test]
fn no_hook_is_added() {
    leaves_the_repository(
        "echo after > .git/hooks/new; ln -s /bin/sh .git/hooks/new; mv .git/objects/x .git/hooks/new",
    );
}

#[test]
fn a_hook_is_not_rewritten() {
    leaves_the_repository("echo after > .git/hooks/post-merge");
}

#[test]
fn a_hook_is_not_made_to_run() {
    by_default().holds(|cx| {
        repository(cx);
        cx.bash("chmod +x .git/hooks/post-merge .git/hooks/pre-commit.sample", &[]);
        let mode =
            std::fs::metadata(cx.workspace(".git/hooks/post-merge")).unwrap().permissions().mode();
        held(mode & 0o111 == 0, format!("its mode is {mode:o}"))
    });
}

#[test]
fn the_directory_of_the_hooks_is_not_replaced() {
    leaves_the_repository("mv .git/hooks .git/old; mkdir .git/hooks; echo after > .git/hooks/new");
}

/// The way around a protected path is to move its parent and to build another in its place.
#[test]
fn the_directory_of_git_is_not_replaced() {
    leaves_the_repository(
        "mv .git old; mkdir -p .git/hooks; echo after > .git/hooks/new; echo after > .git/config",
    );
}

#[test]
fn the_directory_of_git_does_not_change_places_with_another() {
    by_default().holds(|cx| {
        repository(cx);
        let script = r"
os.makedirs('mine/hooks')
put('mine/config', 'after')
tried('exchange', lambda: syscall('renameat2', -100, b'mine', -100, b'.git', 2))
";
        cx.python(script, &[]);
        is_untouched(cx)
    });
}

#[test]
fn deleting_the_repository_leaves_hooks_and_config() {
    leaves_the_repository("rm -rf .git; mkdir -p .git/hooks; echo after > .git/config");
}

#[test]
fn settings_of_git_that_do_not_exist_are_not_made() {
    leaves_the_repository(
        "for name in config.worktree commondir; do echo after > .git/$name; mkdir .git/$name; ln -s x .git/$name; done",
    );
}

#[test]
fn the_config_of_a_submodule_is_not_written() {
    leaves_the_repository(
        "echo after > .git/modules/part/config; mv .git/modules/part .git/modules/p; mv .git/modules .git/m; mkdir -p .git/modules/part; echo after > .git/modules/part/config",
    );
}

#[test]
fn a_workspace_without_git_gets_none() {
    by_default().holds(|cx| {
        cx.bash(
            "git init -q .; mkdir -p .git/hooks; echo after > .git/config; echo 'gitdir: x' > .git; ln -s x .git",
            &[],
        );
        absent(cx.workspace(".git"))
    });
}

/// In a worktree or a submodule `.git` is a file that says where the rest is.
#[test]
fn a_git_file_is_not_pointed_elsewhere() {
    by_default().holds(|cx| {
        let elsewhere = cx.folder(&cx.path("outside/repository"));
        let text = format!("gitdir: {elsewhere}\n");
        let file = cx.inside(".git", &text);
        cx.bash(
            "mkdir -p mine/hooks; echo 'gitdir: mine' > .git; rm -f .git; mv .git x; echo 'gitdir: mine' > .git",
            &[],
        );
        unchanged(file, &text)
    });
}

/// What agents, editors and shells take orders from. Files and directories are attacked alike.
fn steering() -> Vec<(String, bool)> {
    let name =
        |(name, stand_in): (&std::path::Path, StandIn)| (name.display().to_string(), stand_in);
    list_names().map(name).map(|(name, stand_in)| (name, stand_in == StandIn::Nothing)).collect()
}

#[test]
fn what_steers_agents_and_editors_is_not_written() {
    by_default().holds(|cx| {
        let is_file = |name: &str| name.ends_with(".json") || name == ".envrc";
        let place = |name: &str| if is_file(name) { name.to_owned() } else { format!("{name}/settings") };
        for (name, _) in steering() {
            cx.inside(&place(&name), "before");
        }
        let script = r#"
for at in "$@"; do
    for file in $at $at/settings $at/new; do echo after > $file; rm -f $file; echo after > $file; done
    echo after > mine; mv -f mine $at; ln mine $at; ln -sf mine $at; ln $at second; echo after > second
    mv $at away; rm -rf $at; mkdir -p $at; echo after > $at/settings; echo after > $at; echo after > $at/new
done
mv .vscode other; mkdir .vscode; echo after > .vscode/tasks.json"#;
        let names: Vec<String> = steering().into_iter().map(|(name, _)| name).collect();
        cx.bash(script, &names.iter().map(String::as_str).collect::<Vec<_>>());
        names.iter().try_for_each(|name| {
            absent(cx.workspace(&format!("{name}/new")))?;
            unchanged(cx.workspace(&place(name)), "before")
        })
    });
}

#[test]
fn what_would_steer_agents_and_editors_is_not_made() {
    by_default().holds(|cx| {
        let script = r#"
for at in "$@"; do
    mkdir -p $at; echo after > $at/settings; rmdir $at; mv $at away; ln -s mine $at; echo after > $at
    echo after > mine; mv mine $at; ln mine $at
done
mv .vscode other; mkdir .vscode; echo after > .vscode/tasks.json"#;
        let names: Vec<String> =
            steering().into_iter().filter(|(_, if_present)| !if_present).map(|(name, _)| name).collect();
        cx.bash(script, &names.iter().map(String::as_str).collect::<Vec<_>>());
        // What stood in for them while the run lived is gone as well.
        names.iter().try_for_each(|name| absent(cx.workspace(name)))
    });
}

/// A checked-out tree may hold a link under a protected name: it leads where it led, and nobody writes there.
#[test]
fn a_protected_name_that_is_a_link_is_not_written_through_or_replaced() {
    by_default().holds(|cx| {
        let file = cx.inside("real/settings", "before");
        cx.inside("deep/hooks", "before");
        std::os::unix::fs::symlink("real", cx.workspace(".codex")).unwrap();
        std::os::unix::fs::symlink("deep/../nowhere/yet", cx.workspace(".claude")).unwrap();
        let script = r#"echo after > begun
echo after > .codex/settings; echo after > real/settings; echo after > real/new; mv real other
rm -f .codex; mv .codex x; ln -sfn mine .codex; mkdir .codex; echo after > .codex/settings
mkdir -p nowhere/yet; echo after > nowhere/yet/settings; mv nowhere elsewhere; mkdir -p nowhere/yet
echo after > nowhere/yet/settings; echo after > .claude/settings; ln -sfn mine .claude"#;
        cx.bash(script, &[]);
        unchanged(cx.workspace("begun"), "after\n")?;
        unchanged(file, "before")?;
        unchanged(cx.workspace(".codex/settings"), "before")?;
        for (link, target) in [(".codex", "real"), (".claude", "deep/../nowhere/yet")] {
            let leads = std::fs::read_link(cx.workspace(link)).ok();
            held(
                leads.as_deref() == Some(std::path::Path::new(target)),
                format!("{link} leads to {leads:?}"),
            )?;
        }
        absent(cx.workspace("real/new"))?;
        absent(cx.workspace("nowhere"))
    });
}

/// Whatever decides where a protected name leads: links between the first and the last, and directories that a link
/// only passes through.
#[test]
fn nothing_on_the_way_of_a_link_is_replaced() {
    by_default().holds(|cx| {
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, cx.workspace(name)).unwrap()
        };
        for name in ["conf/real", "v1/real", "pass/x", "real"] {
            cx.inside(name, "before");
        }
        link("conf/link", ".mcp.json");
        link("real", "conf/link");
        link("current/real", ".envrc");
        link("v1", "current");
        link("pass/../real", ".claude");
        link("one", ".gemini");
        link("two", "one");
        link("not/../yet", ".cursor");
        let script = r#"
mkdir -p evil/deep; for at in evil/real evil/yet evil/settings; do echo after > $at; done
ln -sfn ../evil/real conf/link; ln -sfn evil current; mv current c; ln -s evil current
mv pass p; ln -s evil/deep pass; ln -sfn evil one; rm -f one; ln -s evil one; ln -s evil two
ln -s evil/deep not; mkdir -p not/../yet; mv not n; ln -s evil/deep not"#;
        cx.bash(script, &[]);
        for name in [".mcp.json", ".envrc", ".claude"] {
            unchanged(cx.workspace(name), "before")?;
        }
        for name in [".gemini/settings", ".cursor"] {
            held(
                std::fs::metadata(cx.workspace(name)).is_err(),
                format!("{name} leads somewhere"),
            )?;
        }
        Ok(())
    });
}

#[test]
fn a_path_that_the_caller_protects_is_not_written() {
    by_default().holds(|cx| {
        let file = cx.inside("deep/down/rules", "before");
        let script =
            "echo after > deep/down/rules; rm -f deep/down/rules; mv deep/down/rules x; echo after > deep/down/rules";
        cx.fence().args(&["--protect", &file]).bash(script, &[]);
        unchanged(file, "before")
    });
}

#[test]
fn no_parent_of_a_protected_path_is_moved_away() {
    by_default().holds(|cx| {
        let file = cx.inside("deep/down/rules", "before");
        let script = "mv deep/down x; mv deep y; mkdir -p deep/down; echo after > deep/down/rules";
        cx.fence().args(&["--protect", &file]).bash(script, &[]);
        unchanged(file, "before")
    });
}

#[test]
fn a_protected_path_without_parents_is_not_made() {
    by_default().holds(|cx| {
        let path = cx.workspace("not/there/yet");
        let script = "mkdir -p not/there; echo after > not/there/yet; mkdir not/there/yet; mv not other; mkdir -p not/there; echo after > not/there/yet";
        cx.fence().args(&["--protect", &path]).bash(script, &[]);
        absent(path)
    });
}

#[test]
fn a_writable_root_around_the_workspace_uncovers_nothing() {
    by_default().holds(|cx| {
        let (around, workspace) = (cx.path("outside"), cx.path("outside/project"));
        let config = cx.file(&format!("{workspace}/.git/config"), "before");
        cx.file(&format!("{workspace}/.git/HEAD"), "ref: refs/heads/main\n");
        let script = r#"
echo after > "$1/project/.git/config"; mv "$1/project" "$1/moved"
mkdir -p "$1/project/.git"; echo after > "$1/project/.git/config""#;
        cx.fence()
            .workspace(Some(&workspace))
            .args(&["--writable", &around])
            .bash(script, &[&around]);
        unchanged(config, "before")
    });
}

/// A `.git` file comes with a checkout or an archive, and names any directory it likes.
#[test]
fn a_git_file_gives_no_right_to_the_repository_that_it_names() {
    by_default().holds(|cx| {
        let repository = cx.path("outside/repository");
        for (name, text) in [
            ("HEAD", "ref: refs/heads/main\n"),
            ("objects/x", "x"),
            ("worktrees/w/commondir", "../..\n"),
        ] {
            cx.file(&format!("{repository}/{name}"), text);
        }
        let elsewhere = cx.path("outside/elsewhere/.git");
        cx.file(&format!("{repository}/worktrees/w/gitdir"), &format!("{elsewhere}\n"));
        let head = format!("{repository}/HEAD");
        cx.inside(".git", &format!("gitdir: {repository}/worktrees/w\n"));
        cx.bash(r#"echo after > "$1"; mkdir "$(dirname "$1")/hooks""#, &[&head]);
        absent(format!("{repository}/hooks"))?;
        unchanged(head, "ref: refs/heads/main\n")
    });
}

/// The repository of a worktree lies outside and can be written, so that commits work: but not its hooks.
#[test]
fn the_repository_of_a_worktree_keeps_its_hooks_and_config() {
    by_default().holds(|cx| {
        let (main, tree) = (cx.path("outside/main"), cx.path("outside/tree"));
        let script = r#"
git init -q "$1" && cd "$1" && git config user.name n && git config user.email n@example.org
git commit -q --allow-empty -m first && git worktree add -q "$2""#;
        outside(cx, script, &[&main, &tree]);
        let config = std::fs::read_to_string(format!("{main}/.git/config")).unwrap();
        let attack = r#"
git -C "$2" commit -q --allow-empty -m second
git -C "$2" config core.fsmonitor evil; git -C "$2" config --worktree core.fsmonitor evil
cd "$1"; echo x > .git/hooks/post-commit; mkdir .git/hooks; echo x > .git/hooks/post-commit
echo x >> .git/config; echo x > .git/config.worktree; echo x > .git/worktrees/tree/config.worktree
echo x > file"#;
        let run = cx.fence().workspace(Some(&tree)).cwd(&tree).bash(attack, &[&main, &tree]);
        let log = outside(cx, r#"git -C "$1" log --format=%s"#, &[&tree]);
        assert_eq!(log, "second\nfirst\n", "[{}] commits do not work: {run:?}", cx.mode);
        for name in [
            "file",
            ".git/hooks/post-commit",
            ".git/config.worktree",
            ".git/worktrees/tree/config.worktree",
        ] {
            absent(format!("{main}/{name}"))?;
        }
        unchanged(format!("{main}/.git/config"), &config)
    });
}

/// What a person does beside the run, as the same user.
fn outside(cx: &Cx, script: &str, args: &[&str]) -> String {
    let output = super::fence::as_user(cx)
        .args(["bash", "-ec", script, "bash"])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The stand-in for a missing path belongs to every run that lives.
#[test]
fn the_end_of_one_run_uncovers_nothing_in_another() {
    by_default().holds(|cx| {
        let script = r"
say('ready')
sys.stdin.readline()
tried('mkdir', lambda: os.mkdir('.codex'))
tried('create', lambda: put('.codex/settings', 'after'))
tried('link', lambda: os.symlink('mine', '.agents'))
say('attacked')
sys.stdin.readline()
";
        let mut long = cx.fence().start_python(script, &[]);
        long.wait_for("ready");
        cx.bash("true", &[]);
        long.tell("go");
        long.wait_for("attacked");
        absent(cx.workspace(".codex/settings"))?;
        long.tell("end");
        long.end().refused()?;
        [".codex", ".agents"].iter().try_for_each(|name| absent(cx.workspace(name)))
    });
}

#[test]
fn commits_still_work() {
    by_default().never_bare().holds(|cx| {
        outside(
            cx,
            "git init -q . && git config user.name n && git config user.email n@example.org",
            &[],
        );
        let run = cx.bash(
            "echo x > file && git add file && git commit -q -m first && git log --format=%s",
            &[],
        );
        assert!(run.stdout.contains("first"), "[{}] {run:?}", cx.mode);
        held(outside(cx, "git log --format=%s", &[]) == "first\n", "the commit is not there")
    });
}
