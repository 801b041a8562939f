//! No exec escapes the rules, and none that they do not name is changed.
//!
//! A way around a rule is a script that runs whatever program it is given. In each mode of the fence it is given one
//! that no rule names, and must get it to run; then one that is forbidden, which must say so and do nothing. Without
//! rules the second must run as well: what works nowhere proves nothing.

mod build;
mod bypass;
mod crafted;
mod git;
mod interpreters;
mod loader;
mod nested;
mod race;
mod scripts;
mod stress;
mod terminals;
mod verdicts;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::UNIX_EPOCH;

use crate::escape::{Cx, Live, Mode, Profile, Run, User, is_root};

const RULES: &str = r#"
prefix_rule(pattern = ["uname"], decision = "forbidden", justification = "not in this house")
prefix_rule(pattern = ["git", "push"], decision = "forbidden", justification = "not in this house")
prefix_rule(pattern = ["forbidden-script"], decision = "forbidden", justification = "not in this house")
"#;
const REFUSAL: &str = "forbidden: not in this house";

/// What a way is tried with: something that is forbidden, and something like it that is not.
#[derive(Clone, Copy)]
pub enum With {
    /// `$1` is the path of a program, `$2` its name.
    Program,
    /// `$1` is the path of a script for `/bin/sh`, `$2` its name.
    Script,
    /// `$1` is the name of a command of git.
    Git,
}

/// One way around a rule.
pub struct Way {
    pub name: &'static str,
    pub script: &'static str,
    pub with: With,
    /// How the script ends when the program was stopped. A program that is forbidden ends with 1.
    pub ends: i32,
}

/// So many share a run: a run has a time within which it must end.
const TOGETHER: usize = 20;

/// Tries all ways in one mode, and fails with those that lead around the rule.
#[track_caller]
pub fn are_closed(ways: &[Way], user: User, profile: Profile) {
    let own = if is_root() { user } else { User::Own };
    if user == User::Root && !is_root() {
        println!("NOT RUN: only root can see what root sees");
        return;
    }
    lead_nowhere(ways, Mode { user: own, profile: Some(profile) }, true);
}

/// Without rules all of them lead to where they are meant to.
#[track_caller]
pub fn work_without_rules(ways: &[Way]) {
    lead_nowhere(ways, *modes().last().unwrap(), false);
}

#[track_caller]
fn lead_nowhere(ways: &[Way], mode: Mode, ruled: bool) {
    let wrong: Vec<String> =
        ways.chunks(TOGETHER).flat_map(|ways| try_together(ways, mode, ruled)).collect();
    assert!(wrong.is_empty(), "{} of {} [{mode}]:\n{}", wrong.len(), ways.len(), wrong.join("\n"));
}

fn try_together(ways: &[Way], mode: Mode, ruled: bool) -> Vec<String> {
    let cx = Cx::new(mode);
    let (allowed, forbidden) = ways[0].with.words(&cx);
    for way in ways {
        cx.inside(&format!("ways/{}", way.name), way.script);
    }
    let run = start(&cx, ruled, &[], &["bash", "-c", TRIAL, "bash", &allowed, &forbidden]).end();
    assert_eq!(run.stdout.lines().count(), 2, "{run:?}");
    ways.iter().filter_map(|way| way.judge(&cx, ruled).err()).collect()
}

impl Way {
    fn judge(&self, cx: &Cx, ruled: bool) -> Result<(), String> {
        let said = |which: &str| Said::read(cx, &format!("{}.{which}", self.name));
        let (control, attack) = (said("allowed"), said("forbidden"));
        let all = || format!("{}: allowed: {control:?}\nforbidden: {attack:?}\n", self.name);
        if !control.ran() || control.is_refused() {
            return Err(format!("what is not forbidden does not run: {}", all()));
        }
        let as_wanted = match ruled {
            true => !attack.ran() && attack.is_refused() && attack.code == self.ends.to_string(),
            false => attack.ran() && !attack.is_refused(),
        };
        if as_wanted { Ok(()) } else { Err(all()) }
    }
}

/// Goes each way with the one and with the other, each time in a folder of its own.
const TRIAL: &str = r#"
echo begun
go() {
    mkdir "$1"
    cd "$1"
    timeout -k 1 10 bash -c "$2" bash "$3" "${3##*/}" >../"$1".out 2>../"$1".err </dev/null
    echo $? >../"$1".code
    cd ..
}
for way in ways/*; do
    script=$(<"$way")
    go "${way##*/}.allowed" "$script" "$1"
    go "${way##*/}.forbidden" "$script" "$2"
done
echo ended
"#;

/// What one try has left.
#[derive(Debug)]
struct Said {
    out: String,
    err: String,
    code: String,
}

impl Said {
    fn read(cx: &Cx, name: &str) -> Said {
        let part = |end: &str| {
            let bytes = std::fs::read(cx.workspace(&format!("{name}.{end}"))).unwrap_or_default();
            String::from_utf8_lossy(&bytes).chars().take(3000).collect::<String>()
        };
        Said { out: part("out"), err: part("err"), code: part("code").trim().to_owned() }
    }

    /// Whatever is on its standard output was said by the program: the ways themselves are silent.
    fn ran(&self) -> bool {
        self.out.lines().any(|line| !line.contains("ringfence:") && !line.trim().is_empty())
    }

    fn is_refused(&self) -> bool {
        self.err.contains(REFUSAL) || self.out.contains(REFUSAL)
    }
}

impl With {
    fn words(self, cx: &Cx) -> (String, String) {
        match self {
            With::Program => ("/usr/bin/nproc".into(), "/usr/bin/uname".into()),
            With::Git => ("tag".into(), "push".into()),
            With::Script => {
                let script = |name: &str, text: &str| {
                    let path = cx.outside(
                        &format!("bin/{name}"),
                        &format!("#!/bin/sh\necho {text} \"$#\"\n"),
                    );
                    make_executable(&path);
                    path
                };
                (
                    script("allowed-script", "allowed"),
                    script("forbidden-script", "it was not stopped"),
                )
            }
        }
    }
}

pub fn make_executable(path: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Both profiles, as root and as an ordinary user.
pub fn modes() -> Vec<Mode> {
    let users: &[User] = if is_root() { &[User::Root, User::Other] } else { &[User::Own] };
    let modes =
        |profile| users.iter().map(move |user| Mode { user: *user, profile: Some(profile) });
    modes(Profile::Contained).chain(modes(Profile::Default)).collect()
}

/// Starts a command in the fence. Our programs are named by variables.
pub fn start(cx: &Cx, ruled: bool, args: &[&str], command: &[&str]) -> Live {
    let rules = cx.path("outside/house.rules");
    if !std::path::Path::new(&rules).exists() {
        cx.outside("house.rules", RULES);
    }
    let ours = if ruled { vec!["--rules", &rules] } else { vec![] };
    let bin = cx.path("outside/bin");
    let before = format!("export PATH=\"$PATH:{bin}\"");
    let fence = cx.fence().before(&before).args(&ours).args(args);
    let (dynamic, fixed) = (program("how", &[]), program("how", &["-static"]));
    let named = [format!("HOW={}", dynamic.display()), format!("STATIC={}", fixed.display())];
    fence.start(&[&["env", &named[0], &named[1]], command].concat())
}

/// The same in the last mode, for what does not depend on it.
pub fn bash(cx: &Cx, args: &[&str], script: &str) -> Run {
    let script = format!("echo begun\n{script}\nprintf '\\nended\\n'\n");
    start(cx, true, args, &["bash", "-c", &script]).end()
}

/// A program of ours, where everybody can run it. It is compiled once for each state of its source.
pub fn program(name: &str, flags: &[&str]) -> PathBuf {
    let source = format!("{}/tests/it/exec/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let changed =
        std::fs::metadata(&source).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    let folder = crate::support::place::visible_folder().join("ringfence-exec");
    let made = folder.join(format!("{name}{}-{}", flags.concat(), changed.as_nanos()));
    if !made.exists() {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        std::fs::create_dir_all(&folder).unwrap();
        // Under another name first: a parallel test must not run half a file.
        let partial = folder.join(format!(
            "{}.{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-w", "-pthread"]).args(flags).arg("-o").arg(&partial).arg(source);
        let output = compile.output().expect("a C compiler (`cc`) is needed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(partial, &made).unwrap();
    }
    made
}

/// Ways by their names, and a test of all of them for each mode. A number before a script is the code with which it
/// ends when the program was stopped.
macro_rules! ways {
    ($with:ident: $($(#[$about:meta])* $name:ident $(($code:literal))? $script:literal;)+) => {
        const WAYS: &[$crate::exec::Way] = &[$($(#[$about])* $crate::exec::Way {
            name: stringify!($name),
            script: $script,
            with: $crate::exec::With::$with,
            ends: 1 $(- 1 + $code)?,
        }),+];

        #[test]
        fn as_root_by_default() {
            $crate::exec::are_closed(WAYS, $crate::escape::User::Root, $crate::escape::Profile::Default);
        }

        #[test]
        fn as_root_contained() {
            $crate::exec::are_closed(WAYS, $crate::escape::User::Root, $crate::escape::Profile::Contained);
        }

        #[test]
        fn as_user_by_default() {
            $crate::exec::are_closed(WAYS, $crate::escape::User::Other, $crate::escape::Profile::Default);
        }

        #[test]
        fn as_user_contained() {
            $crate::exec::are_closed(WAYS, $crate::escape::User::Other, $crate::escape::Profile::Contained);
        }

        #[test]
        fn without_rules() {
            $crate::exec::work_without_rules(WAYS);
        }
    };
}
pub(crate) use ways;
