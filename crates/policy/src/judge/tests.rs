use super::*;
use crate::rule::PatternToken;

const GIT: HostFile = HostFile { path: String::new(), device: 1, inode: 10, size: 100 };

fn rule(program: &str, rest: &[&str], decision: Decision) -> PrefixRule {
    PrefixRule {
        program: program.to_owned(),
        rest: rest
            .iter()
            .map(|word| PatternToken(word.split('|').map(str::to_owned).collect()))
            .collect(),
        decision,
        justification: None,
        origin: RuleOrigin { file: "t.rules".to_owned(), line: 1 },
        project: false,
    }
}

fn judge(rules: Vec<PrefixRule>) -> ExecJudge {
    let programs = rules.iter().map(|rule| {
        let files = vec![HostFile { path: "/usr/bin/git".to_owned(), ..GIT }];
        let paths = vec!["/usr/bin/git".to_owned(), "/usr/bin/git-shell".to_owned()];
        (rule.program.clone(), HostProgram { files, paths, ..HostProgram::default() })
    });
    let programs = programs.collect();
    ExecJudge::new(RuleTable { prefixes: rules, programs, ..RuleTable::default() }, false)
}

fn ask(
    judge: &ExecJudge,
    path: &str,
    called: &str,
    inode: u64,
    argv: &[&str],
) -> Option<(Decision, MatchBasis)> {
    let argv: Vec<&[u8]> = argv.iter().map(|word| word.as_bytes()).collect();
    let view = ExecCandidate {
        real_path: path,
        called_path: called,
        device: 1,
        inode,
        size: 100,
        argv: &argv,
        is_started: true,
    };
    judge.judge_exec(&[view], |_, _| inode == 77).map(|verdict| (verdict.decision, verdict.seen))
}

#[test]
fn the_strictest_rule_wins_and_a_path_hides_no_name() {
    let judge = judge(vec![
        rule("/usr/bin/git", &["status"], Decision::Allow),
        rule("git", &["status"], Decision::Forbidden),
        rule("git", &["push|pull"], Decision::Prompt),
    ]);
    let seen = |argv: &[&str]| ask(&judge, "/usr/bin/git", "/usr/bin/git", 10, argv);
    assert_eq!(seen(&["git", "status", "-s"]), Some((Decision::Forbidden, MatchBasis::Itself)));
    assert_eq!(seen(&["git", "pull"]), Some((Decision::Prompt, MatchBasis::Itself)));
    assert_eq!(seen(&["git", "log"]), None);
    assert_eq!(seen(&["git"]), None);
}

#[test]
fn a_rule_that_loosens_is_for_the_very_file_under_its_own_name() {
    let judge = judge(vec![rule("git", &["push"], Decision::Allow)]);
    let seen = |path, called, inode, argv: &[&str]| ask(&judge, path, called, inode, argv);
    let itself = Some((Decision::Allow, MatchBasis::Itself));
    assert_eq!(seen("/usr/bin/git", "/usr/bin/git", 10, &["git", "push"]), itself);
    assert_eq!(seen("/usr/bin/git", "/usr/bin/git", 10, &["/usr/bin/git", "push"]), itself);
    // Planted, called by another name, copied.
    assert_eq!(seen("/ws/git", "/ws/git", 11, &["git", "push"]), None);
    assert_eq!(seen("/usr/bin/git", "/usr/bin/git", 10, &["git-push", "push"]), None);
    assert_eq!(seen("/ws/g", "/ws/g", 77, &["git", "push"]), None);
}

#[test]
fn a_rule_that_tightens_is_for_the_name_the_file_and_its_copies() {
    let judge = judge(vec![rule("git", &["push"], Decision::Forbidden)]);
    let seen = |path, called, inode, argv: &[&str]| {
        ask(&judge, path, called, inode, argv).map(|(_, seen)| seen)
    };
    assert_eq!(seen("/ws/git", "/ws/git", 11, &["x", "push"]), Some(MatchBasis::Name));
    assert_eq!(seen("/usr/bin/git", "/ws/link", 10, &["x", "push"]), Some(MatchBasis::Name));
    assert_eq!(seen("/usr/lib/git", "/ws/link", 10, &["x", "push"]), Some(MatchBasis::Name));
    assert_eq!(seen("/ws/hard", "/ws/hard", 10, &["x", "push"]), Some(MatchBasis::File));
    assert_eq!(seen("/ws/copy", "/ws/copy", 77, &["x", "push"]), Some(MatchBasis::Copy));
    assert_eq!(seen("/ws/other", "/ws/other", 78, &["git", "push"]), None);
    // The host's other name for the file is another program, unless its first argument says that it
    // is this one.
    assert_eq!(seen("/usr/bin/git-shell", "/usr/bin/git-shell", 10, &["git-shell", "push"]), None);
    assert_eq!(
        seen("/usr/bin/git-shell", "/usr/bin/git-shell", 10, &["git", "push"]),
        Some(MatchBasis::File)
    );
}

#[test]
fn a_name_with_a_dash_is_the_command_behind_it() {
    let judge = judge(vec![
        rule("git", &["push", "origin"], Decision::Prompt),
        rule("git", &["tag"], Decision::Allow),
    ]);
    let seen =
        |path, inode, argv: &[&str]| ask(&judge, path, path, inode, argv).map(|(_, seen)| seen);
    // Not `Itself`: outside the sandbox it would be started by the rule's name, and would do
    // something else.
    assert_eq!(seen("/usr/bin/git", 10, &["git-push", "origin"]), Some(MatchBasis::Name));
    assert_eq!(seen("/usr/bin/git-shell", 10, &["/x/git-push", "origin"]), Some(MatchBasis::File));
    assert_eq!(seen("/ws/git-push", 77, &["git-push", "origin"]), Some(MatchBasis::Copy));
    assert_eq!(seen("/usr/bin/git", 10, &["git-push", "other"]), None);
    assert_eq!(seen("/usr/bin/git", 10, &["git-pull", "origin"]), None);
    assert_eq!(seen("/usr/bin/git", 10, &["git-tag"]), None);
}

#[test]
fn others_of_the_name_are_tightened_and_never_allowed() {
    let program =
        HostProgram { also: vec![HostFile { inode: 20, ..GIT }], ..HostProgram::default() };
    let with = |decision| {
        let prefixes = vec![rule("git", &["push"], decision)];
        let programs = [("git".to_owned(), program.clone())].into();
        ExecJudge::new(RuleTable { prefixes, programs, ..RuleTable::default() }, false)
    };
    let forbid = with(Decision::Forbidden);
    assert_eq!(
        ask(&forbid, "/ws/g", "/ws/g", 20, &["g", "push"]),
        Some((Decision::Forbidden, MatchBasis::File))
    );
    assert_eq!(
        ask(&forbid, "/ws/g", "/ws/g", 77, &["g", "push"]),
        Some((Decision::Forbidden, MatchBasis::Copy))
    );
    assert_eq!(
        ask(&with(Decision::Allow), "/usr/bin/git", "/usr/bin/git", 20, &["git", "push"]),
        None
    );
}

#[test]
fn heuristics_ask_about_forced_removal_where_no_rule_speaks() {
    let judge = ExecJudge::new(RuleTable::default(), true);
    let seen = |argv: &[&str]| {
        ask(&judge, "/usr/bin/rm", "/usr/bin/rm", 5, argv).map(|(decision, _)| decision)
    };
    assert_eq!(seen(&["rm", "-rf", "x"]), Some(Decision::Prompt));
    assert_eq!(seen(&["rm", "x", "--force"]), Some(Decision::Prompt));
    assert_eq!(seen(&["rm", "-r", "x"]), None);
    assert_eq!(seen(&["rm", "--", "-f"]), None);
    assert_eq!(seen(&["rm", "--preserve-root=all", "f"]), None);
}

#[test]
fn a_projects_rule_holds_back_and_lets_nothing_out() {
    let mut asked = rule("git", &["push"], Decision::Prompt);
    asked.project = true;
    let out = |rules: Vec<PrefixRule>| {
        let argv: Vec<&[u8]> = vec![b"git", b"push"];
        let view = ExecCandidate {
            real_path: "/usr/bin/git",
            called_path: "/usr/bin/git",
            device: 1,
            inode: 10,
            size: 100,
            argv: &argv,
            is_started: true,
        };
        let verdict = judge(rules).judge_exec(&[view], |_, _| false).unwrap();
        (verdict.decision, verdict.out)
    };
    assert_eq!(out(vec![asked.clone()]), (Decision::Prompt, None));
    let allowed = rule("git", &[], Decision::Allow);
    assert_eq!(
        out(vec![asked.clone(), allowed.clone()]),
        (Decision::Prompt, Some("git".to_owned()))
    );
    assert_eq!(out(vec![allowed]), (Decision::Allow, Some("git".to_owned())));
    let forbidden = rule("git", &["push"], Decision::Forbidden);
    assert_eq!(out(vec![asked, forbidden]), (Decision::Forbidden, None));
}

#[test]
fn a_command_under_a_name_of_its_own_is_the_command() {
    let judge = judge(vec![rule("git", &["push"], Decision::Forbidden)]);
    let seen = |argv: &[&str]| {
        ask(&judge, "/usr/bin/git", "/usr/lib/git-core/git-push", 10, argv)
            .map(|(decision, _)| decision)
    };
    assert_eq!(seen(&["git-push"]), Some(Decision::Forbidden));
    assert_eq!(seen(&["git-pull"]), None);
}

/// The interpreter was called by the script's name but is not the script.
#[test]
fn a_script_that_is_asked_about_is_known_as_itself() {
    let judge = judge(vec![rule("git", &["push"], Decision::Prompt)]);
    let argv: Vec<&[u8]> = vec![b"/bin/sh", b"/usr/bin/git", b"push"];
    let program = ExecCandidate {
        real_path: "/bin/dash",
        called_path: "/usr/bin/git",
        device: 1,
        inode: 5,
        size: 9,
        argv: &argv,
        is_started: true,
    };
    let script = ExecCandidate {
        real_path: "/usr/bin/git",
        called_path: "/usr/bin/git",
        device: 1,
        inode: 10,
        size: 100,
        argv: &argv[1..],
        is_started: true,
    };
    let verdict = judge.judge_exec(&[program, script], |_, _| false).unwrap();
    assert_eq!(
        (verdict.decision, verdict.seen, verdict.view),
        (Decision::Prompt, MatchBasis::Itself, 1)
    );
}

/// The name of an allowed program among the arguments of another program is just an argument.
#[test]
fn what_is_only_named_lets_nothing_out() {
    let judge = judge(vec![rule("git", &[], Decision::Allow)]);
    let argv: Vec<&[u8]> = vec![b"bash", b"-c", b"evil", b"/usr/bin/git", b"/bin/bash"];
    let program = ExecCandidate {
        real_path: "/bin/bash",
        called_path: "/bin/bash",
        device: 1,
        inode: 5,
        size: 9,
        argv: &argv,
        is_started: true,
    };
    let named = ExecCandidate {
        real_path: "/usr/bin/git",
        called_path: "/usr/bin/git",
        device: 1,
        inode: 10,
        size: 100,
        argv: &argv[3..],
        is_started: false,
    };
    assert_eq!(judge.judge_exec(&[program, named], |_, _| false), None);
}
