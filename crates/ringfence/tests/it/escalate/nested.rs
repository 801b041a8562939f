//! Repositories that a run makes or changes somewhere below: git outside must not take them for the operator's.

use serde_json::json;

use super::git::{attack, prepare};
use super::{Place, escalating, open_to_all};
use crate::escape::{Cx, Mode, Profile, User, absent, by_default, everywhere, is_root};
use crate::support::place::{visible_binary, visible_folder};
use crate::support::server::Scratch;
use crate::support::{Approve, DEADLINE, MODERN, Options, SESSIONS, Transport, eventually};

/// A repository with all that makes git run a program.
const NEST: &str = "nest() { git init -q -b main $1; ( cd $1; git config user.name it; git config user.email it@example.invalid
    echo x > x; git add x; git commit -q -m x; git remote add origin $OUTSIDE/remote.git; git config push.default current
    git config remote.origin.receivepack \"touch $M; git-receive-pack\"; git config remote.origin.uploadpack \"touch $M; git-upload-pack\"
    git config core.fsmonitor \"touch $M; false\"; git config filter.f.clean \"touch $M; cat\"; echo '* filter=f' > .gitattributes
    mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch %s\\n' $M > .git/hooks/pre-push; chmod +x .git/hooks/pre-push; echo y > x ); rm -f $M; }
";

#[test]
fn a_push_in_a_nested_repository() {
    by_default().holds(|cx| attack(cx, &[], "", &format!("{NEST}nest sub; cd sub; git push")));
}

#[test]
fn a_status_in_a_nested_repository() {
    by_default().holds(|cx| {
        attack(
            cx,
            &["[\"git\", \"status\"]"],
            "",
            &format!("{NEST}nest sub; cd sub; git status; mkdir -p d; cd d; git status"),
        )
    });
}

#[test]
fn a_push_in_a_directory_that_is_a_repository_itself() {
    by_default().holds(|cx| {
        attack(
            cx,
            &[],
            "",
            &format!(
                "{NEST}nest sub; mv sub/.git bare; cd bare; git config core.bare true; git push"
            ),
        )
    });
}

#[test]
fn a_push_in_the_home_of_the_run() {
    everywhere().holds(|cx| {
        attack(
            cx,
            &[],
            "",
            &format!(
                "{NEST}cd ~ && nest sub && cd sub && git push; cd ${{TMPDIR:-/tmp}} && nest sub2 && cd sub2 && git push"
            ),
        )
    });
}

const SUBMODULE: &str = "git init -q --bare -b main $OUTSIDE/part.git; git clone -q $OUTSIDE/part.git part-work 2>/dev/null; ( cd part-work; git config user.name it; git config user.email it@example.invalid; echo p > p; git add p; git commit -q -m p; git push -q origin HEAD:main ); rm -rf part-work
git -c protocol.file.allow=always submodule --quiet add -b main $OUTSIDE/part.git part; git commit -q -m part; git push -q
";

/// The operator's submodule, whose directory the run puts another repository in.
#[test]
fn a_fetch_that_goes_on_in_a_submodule() {
    by_default().holds(|cx| {
        let script = format!("{NEST}mv part old || rm -rf part; nest part; printf '[fetch]\\n\\trecurseSubmodules = true\\n' >> .gitmodules; git config -f .gitmodules submodule.part.fetchRecurseSubmodules true; git fetch");
        attack(cx, &["[\"git\", \"fetch\"]"], SUBMODULE, &script)
    });
}

#[test]
fn a_status_that_looks_into_a_submodule() {
    by_default().holds(|cx| {
        let script = format!("{NEST}mv part old || rm -rf part; nest part; git config -f .gitmodules submodule.part.ignore none; git status; git diff");
        attack(cx, &["[\"git\", \"status\"]", "[\"git\", \"diff\"]"], SUBMODULE, &script)
    });
}

#[test]
fn a_push_that_goes_on_in_a_submodule() {
    by_default().holds(|cx| {
        let script = "rm -f part/.git; cp -r .git/modules/part part/.git; git config -f part/.git/config --unset core.worktree; git -C part config remote.origin.receivepack \"touch $M; git-receive-pack\"; git push";
        attack(cx, &[], &format!("{SUBMODULE}git config push.recurseSubmodules on-demand; (cd part; git config user.name it; git config user.email i@e; git checkout -q -B main origin/main; echo z > p; git commit -q -a -m z); git add part; git commit -q -m z"), script)
    });
}

const WORKTREE: &str = "git init -q -b main $OUTSIDE/../main; cd $OUTSIDE/../main
    git config user.name it; git config user.email it@example.invalid; echo one > f; git add f; git commit -q -m one
    git init -q --bare $OUTSIDE/remote.git; git remote add origin $OUTSIDE/remote.git; git push -q origin main
    git config push.default current; rmdir ../workspace; git worktree add -q -b side ../workspace; mkdir ../workspace/sub";

const SEPARATE: &str = "git init -q -b main --separate-git-dir $OUTSIDE/../main .
    git config user.name it; git config user.email it@example.invalid; echo one > f; git add f; git commit -q -m one
    git init -q --bare $OUTSIDE/remote.git; git remote add origin $OUTSIDE/remote.git; git config push.default current; mkdir sub";

/// Such a `.git` is a file, and git finds its repository by looking upwards from where it stands. While somebody is
/// asked, the run has all the time to put one nearer.
#[test]
fn a_repository_that_appears_while_somebody_is_asked() {
    for repository in [SEPARATE, WORKTREE] {
        // git itself refuses what belongs to somebody else, so it has to be the same user inside and outside.
        let user = if is_root() { User::Other } else { User::Own };
        let cx = Cx::new(Mode { user, profile: Some(Profile::Default) });
        let setup = Place { rules: String::new(), ..Place::new(&cx) };
        prepare(&setup, &format!("set -e; {repository}"));
        let rules = "prefix_rule(pattern = [\"git\", \"push\"], decision = \"prompt\")\n";
        let rules = cx.file(&cx.path("test.rules"), rules);
        let mut options =
            Options::new(Transport::Stdio).on(&cx.scratch()).config(&escalating(false));
        if is_root() {
            let started = format!(
                "#!/bin/sh\nexec setpriv --reuid 1000 --regid 1000 --clear-groups {} \"$@\"\n",
                visible_binary().display()
            );
            options = options.through(setup.tool("ringfence", &started).into());
        }
        let mut server = options.arg("--rules").arg(&rules).spawn();
        let mut client = server.connect(SESSIONS);
        client.approve = Approve::Never;
        let script = format!(
            "{}\n{NEST}cd sub; git push & until [ -e ../go ]; do sleep 0.01; done; nest .; touch ../done; wait $!; echo $?",
            setup.names()
        );
        let id = client.start_call("shell.exec", &json!({"command": script}));
        let (asked, question) = client.wait_question();
        assert!(
            question["message"].as_str().unwrap().contains("runs: outside the sandbox"),
            "{question}"
        );
        std::fs::write(server.workspace().join("go"), "").unwrap();
        eventually(DEADLINE, "the other repository is there", || {
            server.workspace().join("done").exists()
        });
        client.reply(&asked, Approve::Once.answer().unwrap());
        let message = client.wait(&id);
        absent(setup.marker()).unwrap_or_else(|effect| panic!("{effect}: {message}"));
        assert_eq!(
            message["result"]["structuredContent"]["stdout"], "0\n",
            "the right one is pushed: {message}"
        );
    }
}

/// What one call may not write another could: a client that narrows a call does not make older files safe.
#[test]
fn a_repository_of_an_earlier_call_that_could_write() {
    let scratch = Scratch::within(visible_folder());
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    open_to_all(&outside);
    open_to_all(scratch.path().join("workspace"));
    let rules = scratch.path().join("test.rules");
    std::fs::write(&rules, "prefix_rule(pattern = [\"git\", \"push\"])\n").unwrap();
    let mut server = Options::new(Transport::Stdio)
        .on(&scratch)
        .config(&escalating(is_root()))
        .arg("--rules")
        .arg(rules.to_str().unwrap())
        .spawn();
    let mut client = server.connect(MODERN);
    let names = format!("OUTSIDE={0} M={0}/marker", outside.display());
    let first = client.call("shell.exec", json!({"command": format!("{names}\n{NEST}nest sub; chmod -R a+rwX sub; git init -q --bare sub/remote.git; cd sub; git config remote.origin.url $PWD/remote.git")}));
    assert_eq!(first["result"]["structuredContent"]["exit_code"], 0, "{first}");
    let entries =
        json!([{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]);
    let system = json!({"type": "restricted", "entries": entries});
    let state = json!({"permissionProfile": {"type": "managed", "network": "restricted", "file_system": system}});
    let params = json!({"name": "shell.exec", "arguments": {"command": "touch x; cd sub; git push"}, "_meta": {"codex/sandbox-state-meta": state}});
    let second = client.request("tools/call", params);
    assert!(!server.workspace().join("x").exists(), "the second call may only read: {second}");
    absent(outside.join("marker")).unwrap_or_else(|effect| panic!("{effect}: {second}"));
}

/// Temporary files of a run without namespaces lie where everybody sees them.
#[test]
fn a_repository_among_the_temporary_files_of_the_contained_profile() {
    let scratch = Scratch::within(visible_folder());
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    open_to_all(&outside);
    let rules = scratch.path().join("test.rules");
    std::fs::write(&rules, "prefix_rule(pattern = [\"git\", \"push\"])\n").unwrap();
    // Root's commands leave as somebody who could not come in here; that must not be what holds.
    let config = format!("sandbox.profile = \"contained\"\n{}", escalating(is_root()));
    let mut server = Options::new(Transport::Stdio)
        .on(&scratch)
        .config(&config)
        .arg("--rules")
        .arg(rules.to_str().unwrap())
        .spawn();
    let mut client = server.connect(SESSIONS);
    let names = format!("OUTSIDE={0} M={0}/marker", outside.display());
    let message = client.call(
        "shell.exec",
        json!({"command": format!("{names}\n{NEST}cd $TMPDIR && nest sub; cd sub; git push; echo $?")}),
    );
    let result = &message["result"]["structuredContent"];
    let why = result["kept_inside"][0]["why"].as_str().unwrap_or_default();
    assert!(why.contains("without namespaces") && !why.contains("read-only"), "{message}");
    absent(outside.join("marker")).unwrap_or_else(|effect| panic!("{effect}: {message}"));
}
