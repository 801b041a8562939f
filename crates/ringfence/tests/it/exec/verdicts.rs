//! What rules say together: the strictest counts, a path and a name mean the same file, and questions are refused.

use std::io::Write;

use super::{bash, modes, program};
use crate::escape::Cx;

/// What becomes of `uname -s` under these rules: what it said and how it ended.
fn uname(rules: &str, args: &[&str], command: &str) -> (String, String) {
    let cx = Cx::new(*modes().last().unwrap());
    cx.outside("house.rules", rules);
    let run = bash(&cx, args, &format!("{command}\necho \"code $?\""));
    let said: Vec<&str> = run
        .stdout
        .lines()
        .filter(|line| *line != "begun" && *line != "ended" && !line.is_empty())
        .collect();
    (said.join(" "), run.stderr)
}

fn rule(words: &str, decision: &str) -> String {
    format!(
        "prefix_rule(pattern = {words}, decision = \"{decision}\", justification = \"because of {decision}\")\n"
    )
}

#[track_caller]
fn is_forbidden(rules: &str, command: &str) {
    let (said, errors) = uname(rules, &[], command);
    assert_eq!(said, "code 1", "{rules}{command}: {errors}");
    assert!(errors.contains(": forbidden: because of forbidden"), "{rules}{command}: {errors}");
}

#[track_caller]
fn runs(rules: &str, args: &[&str], command: &str) {
    let (said, errors) = uname(rules, args, command);
    assert_eq!(said, "Linux code 0", "{rules}{command}: {errors}");
    assert!(!errors.contains("ringfence"), "{rules}{command}: {errors}");
}

#[test]
fn the_strictest_counts_whatever_the_order_and_the_form() {
    let name = r#"["uname"]"#;
    let path = r#"["/usr/bin/uname"]"#;
    for (one, other) in [(name, path), (path, name), (name, name), (path, path)] {
        is_forbidden(&(rule(one, "allow") + &rule(other, "forbidden")), "uname -s");
        is_forbidden(&(rule(one, "forbidden") + &rule(other, "allow")), "/bin/uname -s");
        is_forbidden(&(rule(one, "prompt") + &rule(other, "forbidden")), "env uname -s");
    }
}

#[test]
fn a_rule_with_words_is_for_these_words() {
    let rules = rule(r#"["uname", "-s"]"#, "forbidden") + &rule(r#"["uname"]"#, "allow");
    is_forbidden(&rules, "uname -s");
    is_forbidden(&rules, "uname -s -s");
    is_forbidden(&rules, "cp /usr/bin/uname x; ./x -s");
    runs(&rules, &[], "uname --kernel-name");
    runs(&rules, &[], "uname");
    let rules = rule(r#"["uname", ["-a", "-s"]]"#, "forbidden");
    is_forbidden(&rules, "uname -s");
    is_forbidden(&rules, "uname -a");
    runs(&rules, &[], "uname --kernel-name");
}

#[test]
fn a_rule_for_a_path_is_for_its_file() {
    let rules = rule(r#"["/usr/bin/uname"]"#, "forbidden");
    for command in ["uname -s", "/bin/uname -s", "/usr/bin/../bin/uname -s", "sh -c 'uname -s'"] {
        is_forbidden(&rules, command);
    }
    for command in ["ln -s /bin/uname x; ./x -s", "cp /bin/uname x; ./x -s"] {
        let (said, errors) = uname(&rules, &[], command);
        assert_eq!(said, "code 1", "{errors}");
        assert!(errors.contains("forbidden: because of forbidden"), "{errors}");
    }
}

#[test]
fn a_question_is_refused_unless_the_caller_says_otherwise() {
    let rules = rule(r#"["uname"]"#, "prompt");
    for command in [
        "uname -s",
        "env -i /usr/bin/uname -s",
        "cp /bin/uname x; ./x -s",
        "exec -a x uname -s; exit",
    ] {
        let (said, errors) = uname(&rules, &[], &format!("({command})"));
        assert_eq!(said, "code 1", "{command}: {errors}");
        assert!(errors.contains("not allowed: a rule requires approval"), "{command}: {errors}");
        runs(&rules, &["--on-prompt", "allow"], &format!("({command})"));
    }
}

#[test]
fn questions_that_come_together_are_all_answered() {
    let rules = rule(r#"["uname"]"#, "prompt");
    let many = "seq 40 | xargs -P 20 -I{} sh -c 'uname -s; :' >said; sort -u said";
    runs(&rules, &["--on-prompt", "allow"], many);
    let (said, errors) = uname(&rules, &[], many);
    assert_eq!(said, "code 0");
    assert_eq!(errors.matches("not allowed").count(), 40, "{errors}");
}

#[test]
fn what_was_stopped_is_in_the_report() {
    let cx = Cx::new(*modes().last().unwrap());
    let report = cx.path("tmp/report");
    bash(&cx, &["--report", &report], "uname; uname; git push -h; git tag -h >/dev/null; true");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let denials = report["denials"].as_array().unwrap();
    for expected in [
        serde_json::json!({"kind": "exec", "name": "uname", "count": 2}),
        serde_json::json!({"kind": "exec", "name": "git push", "count": 1}),
    ] {
        assert!(denials.contains(&expected), "{report}");
    }
}

#[test]
fn a_refusal_is_one_line_whatever_the_name_of_the_file() {
    let (said, errors) = uname(
        &rule(r#"["uname"]"#, "forbidden"),
        &[],
        "cp /bin/uname $'a\\nb\\e[2J'; ./$'a\\nb\\e[2J'",
    );
    assert_eq!(said, "code 1");
    assert_eq!(errors.lines().count(), 1, "{errors:?}");
    assert!(!errors.contains('\u{1b}'), "{errors:?}");
}

/// The kernel starts what a program names as its loader. A program without a library runs as such a loader just as well.
#[test]
fn a_program_that_another_names_as_its_loader() {
    let cx = Cx::new(*modes().last().unwrap());
    for name in ["forbidden-script", "harmless"] {
        let own = std::path::PathBuf::from(cx.path(&format!("outside/bin/{name}")));
        cx.folder(&cx.path("outside/bin"));
        std::fs::copy(program("alone", &["-nostdlib", "-static-pie"]), &own).unwrap();
        // Not the same bytes, or the one would be a copy of the other.
        std::fs::OpenOptions::new()
            .append(true)
            .open(&own)
            .unwrap()
            .write_all(name.as_bytes())
            .unwrap();
    }
    let script = r#"
echo 'int main(void) { return 0; }' >x.c
for name in harmless forbidden-script; do
    cc -o x-$name x.c -Wl,--dynamic-linker=$(command -v $name)
    ./x-$name
    cp $(command -v $name) ld-linux-$name
    cc -o y-$name x.c -Wl,--dynamic-linker=$PWD/ld-linux-$name
    ./y-$name
done"#;
    let run = bash(&cx, &[], script);
    assert_eq!(run.stdout.matches("it runs").count(), 2, "{run:?}");
    assert_eq!(
        run.stderr.matches("forbidden-script: forbidden: not in this house").count(),
        2,
        "{run:?}"
    );
}

/// Inode numbers of two file systems in memory are soon the same. What is mapped is known by its device as well.
#[test]
fn a_loader_with_the_inode_number_of_the_program() {
    let cx = Cx::new(*modes().last().unwrap());
    for name in ["forbidden-script", "harmless"] {
        let own = std::path::PathBuf::from(cx.path(&format!("outside/bin/{name}")));
        cx.folder(&cx.path("outside/bin"));
        std::fs::copy(program("alone", &["-nostdlib", "-static-pie"]), &own).unwrap();
        std::fs::OpenOptions::new()
            .append(true)
            .open(&own)
            .unwrap()
            .write_all(name.as_bytes())
            .unwrap();
    }
    let script = r#"
echo 'int main(void) { return 0; }' >x.c
cat >match.py <<E
import os, shutil, sys
def number(path): return os.stat(path).st_ino
while number(sys.argv[1]) != number(sys.argv[2]):
    lower = min(sys.argv[1:], key=number)
    shutil.copy(lower, lower + '.new')
    os.rename(lower + '.new', lower)
print('same number' if os.stat(sys.argv[1]).st_dev != os.stat(sys.argv[2]).st_dev else 'one device')
E
for name in harmless forbidden-script; do
    cp $(command -v $name) /dev/shm/l-$name
    cc -o /tmp/p-$name x.c -Wl,--dynamic-linker=/dev/shm/l-$name
    python3 match.py /dev/shm/l-$name /tmp/p-$name
    /tmp/p-$name
done"#;
    let run = bash(&cx, &[], script);
    assert_eq!(run.stdout.matches("same number").count(), 2, "{run:?}");
    assert_eq!(run.stdout.matches("it runs").count(), 1, "{run:?}");
    assert!(run.stderr.contains("l-forbidden-script: forbidden: not in this house"), "{run:?}");
}

/// A loader may look for a name without a slash in directories that only it knows; a file of that name at hand says
/// nothing.
#[test]
fn a_name_that_the_loader_looks_for_is_refused() {
    let script = "mkdir lib; cp /usr/bin/uname lib/x; cp /usr/bin/true x
        /lib64/ld-linux-x86-64.so.2 --library-path $PWD/lib:/lib/x86_64-linux-gnu x -s";
    let (said, errors) = uname(&rule(r#"["uname"]"#, "forbidden"), &[], script);
    assert_eq!(said, "code 1", "{errors}");
    assert!(
        errors.contains("x: forbidden: cannot determine which file this refers to"),
        "{errors}"
    );
    runs(&rule(r#"["cksum"]"#, "prompt"), &[], "/lib64/ld-linux-x86-64.so.2 /usr/bin/uname -s");
}
