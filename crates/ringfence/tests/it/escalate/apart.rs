//! What goes along on the way out, and what stays behind.

use super::{NOBODY, NOBODY_ID, Place, as_everybody, said};
use crate::escape::{Cx, Mode, Profile, User, is_root};
use crate::support::process::with_argument;

#[test]
fn it_runs_outside_and_what_called_it_does_not() {
    as_everybody(|place| {
        let run = place.bash(
            "for kind in mnt pid net ipc; do readlink /proc/self/ns/$kind; $OUT readlink /proc/self/ns/$kind; done",
        );
        let said = said(&run);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 8, "{run:?}");
        for (at, kind) in ["mnt", "pid", "net", "ipc"].iter().enumerate() {
            let own = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            assert_ne!(lines[2 * at], own.to_str().unwrap(), "inside: {run:?}");
            assert_eq!(lines[2 * at + 1], own.to_str().unwrap(), "outside: {run:?}");
        }
    });
}

#[test]
fn it_starts_where_it_was_called_and_sees_the_same_files() {
    as_everybody(|place| {
        super::open_to_all(place.cx.path("workspace"));
        let run = place.bash(
            "mkdir -p 'a b/c'; chmod 777 'a b/c'; cd 'a b/c'; echo inside > one
             $OUT pwd -P; $OUT cat one; $OUT sh -c 'echo outside > two'; cat two
             $OUT touch $OUTSIDE/made; ls $OUTSIDE; touch $OUTSIDE/not 2>/dev/null; echo $?",
        );
        let folder = place.cx.workspace("a b/c");
        assert_eq!(said(&run), format!("{folder}\ninside\noutside\nmade\n1\n"), "{run:?}");
    });
}

/// The operator's, what is listed, and nothing else of the run's: neither a name nor a value.
#[test]
fn its_environment_is_the_operators() {
    as_everybody(|place| {
        let workspace = place.cx.path("workspace");
        let place = place
            .policy("escalate_env = [\"KEPT\", \"GONE\"]")
            .env("OPERATORS", "own")
            .env("MCP_AUTH_JWT_SECRET", "s3cret")
            .env("RINGFENCE_TOOLS", "core")
            .env("PATH", &format!("{}:/usr/local/bin:/usr/bin:/bin", workspace));
        let run = place.bash(
            "export KEPT=kept OPERATORS=changed HOME=$PWD PATH=$PWD:$PATH LD_PRELOAD=$PWD/x.so GIT_DIR=$PWD XDG_CONFIG_HOME=$PWD
             export BASH_ENV=$PWD/x PYTHONPATH=$PWD NEW=new TMPDIR=$PWD GCONV_PATH=$PWD LANG=xx
             $OUT env 2>/dev/null | sort",
        );
        let said = said(&run);
        let mut lines: Vec<&str> = said
            .lines()
            .filter(|line| !line.starts_with("PWD=") && !line.starts_with("_="))
            .collect();
        lines.retain(|line| !["OLDPWD", "SHLVL"].iter().any(|name| line.starts_with(name)));
        let home = place.cx.path("home");
        let expected: Vec<String> = match place.cx.mode.user {
            // Another user's environment is its own, and never root's.
            User::Root => [
                "HOME=/nonexistent",
                "KEPT=kept",
                "LOGNAME=nobody",
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "SHELL=/usr/sbin/nologin",
                "USER=nobody",
            ]
            .map(str::to_owned)
            .to_vec(),
            _ => vec![
                format!("HOME={home}"),
                "KEPT=kept".into(),
                "OPERATORS=own".into(),
                "PATH=/usr/local/bin:/usr/bin:/bin".into(),
                format!("TMPDIR={}", place.cx.path("tmp")),
            ],
        };
        // Whatever may call git is told what git itself is told, and nothing of the run's own.
        let own = format!("GIT_DIR={workspace}");
        lines.retain(|line| {
            *line == own
                || !["GIT_CONFIG_", "GIT_DIR=", "GIT_WORK_TREE="]
                    .iter()
                    .any(|told| line.starts_with(told))
        });
        assert_eq!(lines, expected, "{run:?}");
    });
}

/// Mask, limits and priority are the server's: a run that changes its own does not change what leaves.
#[test]
fn mask_limits_and_priority_are_not_the_runs() {
    as_everybody(|place| {
        let facts = "sh -c 'umask; ulimit -n; nice'";
        let plain = said(&place.bash(&format!("$OUT {facts}")));
        let run =
            place.bash(&format!("umask 0; ulimit -n 17; renice -n 5 $$ >/dev/null; $OUT {facts}"));
        assert_eq!(said(&run), plain, "{run:?}");
        assert!(plain.starts_with("0022\n"), "{plain}");
    });
}

#[test]
fn it_has_no_terminal() {
    as_everybody(|place| {
        let script = format!(
            "{}\n$OUT sh -c 'tty; cat < /dev/tty'; $OUT ps -o tty= -p 1 >/dev/null; $OUT sh -c 'test -t 0 || test -t 1 || echo none; cat'",
            place.names()
        );
        let on = place
            .fence()
            .on_a_terminal()
            .start(&["bash", "-c", &format!("echo begun\n{script}\nprintf '\\nended\\n'")])
            .end();
        let clean = on.stdout.replace('\r', "");
        assert!(clean.contains("not a tty"), "{on:?}");
        assert!(clean.contains("none"), "{on:?}");
        let beside = place.fence().beside_a_terminal().bash(&script, &[]);
        assert!(
            beside.stdout.contains("not a tty") && beside.stdout.contains("none"),
            "{beside:?}"
        );
    });
}

/// Programs of many names act by the first argument: it is the rule's word, whatever the caller says.
#[test]
fn its_first_argument_is_the_path_that_the_rule_stands_for() {
    as_everybody(|place| {
        let place = place.allow("[\"sleep\"]");
        let marker = place.cx.marker();
        let mut live = place.fence().start_python(
            &format!("import subprocess\np = subprocess.Popen(['some/where/sleep', {marker:?}], executable='/usr/bin/sleep')\nsay('up')\np.wait()"),
            &[],
        );
        live.wait_for("up");
        let own = std::fs::read_link("/proc/self/ns/pid").unwrap();
        let mut line = String::new();
        crate::support::eventually(crate::support::DEADLINE, "it runs outside", || {
            let here = with_argument(&marker).into_iter().find(|pid| {
                std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|other| other == own)
            });
            line = here
                .map(|pid| {
                    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
                })
                .unwrap_or_default();
            line.ends_with(&format!("{marker}\0")) && !line.contains("python")
        });
        let (first, rest) = line.split_once('\0').unwrap();
        assert_eq!(rest, format!("{marker}\0"));
        assert!(
            ["/usr/bin/sleep", "/bin/sleep"].contains(&first),
            "one of the paths that the name stands for: {first}"
        );
        live.kill();
    });
}

#[test]
fn commands_of_root_leave_as_the_named_user() {
    if !is_root() {
        return println!("not root: there is nobody to become");
    }
    let cx = Cx::new(Mode { user: User::Root, profile: Some(Profile::Default) });
    let run = Place::new(&cx).bash(
        "$OUT id -u; $OUT id -g; $OUT id -G; $OUT grep -E '^(CapEff|CapPrm|CapInh|CapAmb|NoNewPrivs)' /proc/self/status
         $OUT cat /etc/shadow >/dev/null 2>&1; echo $?; $OUT touch /root/x 2>/dev/null; echo $?",
    );
    let said = said(&run);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines[..3],
        [NOBODY_ID.to_string(), NOBODY_ID.to_string(), NOBODY_ID.to_string()],
        "{run:?}"
    );
    for line in &lines[3..lines.len() - 2] {
        let value = line.split_whitespace().nth(1).unwrap();
        assert!(line.starts_with("NoNewPrivs") || value.trim_matches('0').is_empty(), "{run:?}");
    }
    assert_eq!(lines[lines.len() - 2..], ["1", "1"], "{run:?}");
}

#[test]
fn root_lets_nothing_out_as_root() {
    if !is_root() {
        return println!("not root: nothing to refuse");
    }
    for (line, why) in [
        ("", "the server runs as root"),
        ("escalate_as = \"root\"", "names root"),
        ("escalate_as = \"no-such-user\"", "no-such-user"),
    ] {
        let cx = Cx::new(Mode { user: User::Root, profile: Some(Profile::Default) });
        let mut place = Place::new(&cx);
        place.config = format!("[policy]\nescalate = \"outside\"\n{line}\n");
        let run = place.bash("$OUT touch $M 2>/dev/null; echo $?; $OUT true; echo $?");
        assert_eq!(said(&run), "1\n0\n", "what is allowed runs inside: {run:?}");
        assert!(
            run.stderr.contains("ran inside the sandbox (2 times)") && run.stderr.contains(why),
            "{run:?}"
        );
        assert!(!std::path::Path::new(&place.marker()).exists());
    }
}

#[test]
fn an_ordinary_user_cannot_name_another() {
    as_everybody(|mut place| {
        if place.cx.mode.user == User::Root {
            return;
        }
        place.config = format!("[policy]\nescalate = \"outside\"\nescalate_as = {NOBODY:?}\n");
        let run = place.bash("$OUT touch $M 2>/dev/null; echo $?; $OUT true; echo $?");
        assert_eq!(said(&run), "1\n0\n", "what is allowed runs inside: {run:?}");
        assert!(run.stderr.contains("only root"), "{run:?}");
    });
}

/// Off is inside without a question, whatever a rule allows.
#[test]
fn off_is_inside() {
    as_everybody(|place| {
        let place = place.args(&["--escalate", "off"]);
        let run = place.bash("$OUT touch $M 2>/dev/null; echo $?; [ $($OUT readlink /proc/self/ns/mnt) = $(readlink /proc/self/ns/mnt) ]; echo $?");
        assert_eq!(said(&run), "1\n0\n", "{run:?}");
    });
}

/// What no rule names, and what one forbids beside the one that allows.
#[test]
fn only_what_a_rule_names_leaves() {
    as_everybody(|place| {
        let out = place.out();
        let place =
            place.rule(&format!("[{out:?}, \"touch\"]"), "forbidden").rule("[\"stat\"]", "prompt");
        let run = place.bash(
            "touch $M 2>/dev/null; echo $?; $OUT touch $M; echo $?; stat / >/dev/null; echo $?; $OUT true; echo $?",
        );
        assert_eq!(said(&run), "1\n1\n1\n0\n", "{run:?}");
        assert!(run.stderr.contains("forbidden") && run.stderr.contains("not allowed"), "{run:?}");
        assert!(!std::path::Path::new(&place.marker()).exists());
    });
}
