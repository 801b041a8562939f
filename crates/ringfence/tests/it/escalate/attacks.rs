//! Ways to have something else run outside than what a rule names. Each leaves a marker outside if it works.

use super::Place;
use crate::escape::{Cx, absent, by_default, held};

/// The operator's rules: two plain programs, and a script that trusts what it finds.
fn place(cx: &Cx) -> Place<'_> {
    let place = Place::new(cx);
    let deploy = place.tool(
        "deploy",
        "#!/bin/bash\nuname > /dev/null\n[ -r ~/.deployrc ] && . ~/.deployrc\necho deployed\n",
    );
    Place { rules: String::new(), ..place }
        .allow("[\"id\"]")
        .allow("[\"date\"]")
        .allow(&format!("[{deploy:?}]"))
}

/// Nothing of this makes the marker.
#[track_caller]
fn holds(script: &str) {
    by_default().holds(|cx| {
        let place = place(cx);
        place.bash(&format!("DEPLOY=$TOOLS/deploy\n{script}"));
        absent(place.marker())
    });
}

#[test]
fn a_script_that_is_put_in_front_of_the_search_path() {
    holds(
        "printf '#!/bin/sh\ntouch %s\n' $M > id; chmod +x id; PATH=$PWD:$PATH id; PATH=.:$PATH; id",
    );
}

#[test]
fn a_program_under_the_name_of_an_allowed_one() {
    holds(
        "cp /usr/bin/touch id; ./id $M; cp /usr/bin/touch /tmp/id 2>/dev/null && /tmp/id $M; (exec -a /usr/bin/id ./id $M)",
    );
}

#[test]
fn a_link_with_the_name_of_an_allowed_one() {
    holds("ln -s /usr/bin/touch id; ./id $M; PATH=$PWD:$PATH id $M");
}

#[test]
fn another_program_that_calls_itself_an_allowed_one() {
    holds(
        "(exec -a id touch $M); (exec -a /usr/bin/id touch $M); (exec -a date /usr/bin/touch $M)",
    );
}

/// One that goes by another name than the rule's would act by that.
#[test]
fn an_allowed_one_that_calls_itself_another_stays_inside() {
    super::as_everybody(|place| {
        let place = place.allow("[\"readlink\"]");
        let run = place.bash("readlink /proc/self/ns/mnt; (exec -a stat readlink /proc/self/ns/mnt); (exec -a '' readlink /proc/self/ns/mnt)");
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().to_str().unwrap().to_owned();
        let said = super::said(&run);
        let lines: Vec<&str> = said.lines().collect();
        assert!(
            lines.len() == 3 && lines[0] == own && lines[1] != own && lines[2] != own,
            "{run:?}"
        );
    });
}

const LIBRARY: &str = "cat > x.c <<E\n#include <unistd.h>\n#include <fcntl.h>\n__attribute__((constructor)) static void go(void) { close(open(\"$M\", O_CREAT|O_WRONLY, 0644)); }\nE\ncc -shared -fPIC -o x.so x.c\n";

#[test]
fn a_library_that_is_loaded_before() {
    holds(&format!("{LIBRARY}LD_PRELOAD=$PWD/x.so id"));
}

#[test]
fn a_library_that_audits_the_loader() {
    let library = LIBRARY
        .replace("__attribute__", "unsigned la_version(unsigned v) { return v; }\n__attribute__");
    holds(&format!("{library}LD_AUDIT=$PWD/x.so id"));
}

#[test]
fn the_loader_with_a_library_and_an_allowed_program() {
    holds(&format!(
        "{LIBRARY}$(ls /lib64/ld-linux*.so* /lib/ld-linux*.so* 2>/dev/null | head -n 1) --preload ./x.so /usr/bin/id"
    ));
}

#[test]
fn a_start_file_of_the_shell() {
    holds("echo \"touch $M\" > rc; BASH_ENV=$PWD/rc $DEPLOY");
}

#[test]
fn an_exported_function() {
    holds("uname() { touch $M; }; export -f uname; export M; $DEPLOY");
}

#[test]
fn a_command_that_an_allowed_script_calls_by_name() {
    holds("printf '#!/bin/sh\ntouch %s\n' $M > uname; chmod +x uname; PATH=$PWD:$PATH $DEPLOY");
}

#[test]
fn a_home_with_a_start_file() {
    holds(
        "echo \"touch $M\" > .deployrc; HOME=$PWD $DEPLOY; echo \"touch $M\" > ~/.deployrc; $DEPLOY",
    );
}

#[test]
fn options_of_the_shell_by_its_environment() {
    holds(
        "env SHELLOPTS=xtrace PS4=\"\\$(touch $M)\" bash $DEPLOY; env SHELLOPTS=xtrace PS4=\"\\$(touch $M)\" $DEPLOY",
    );
}

#[test]
fn a_program_without_a_file() {
    by_default().holds(|cx| {
        let place = place(cx);
        place.python(
            "import os
fd = os.memfd_create('id')
os.write(fd, open('/usr/bin/touch', 'rb').read())
if os.fork() == 0:
    os.execve(fd, ['id', OUTSIDE + '/marker'], os.environ)
os.wait()
",
        );
        absent(place.marker())
    });
}

/// A script that is started through a descriptor has no name of its own, and is the same script.
#[test]
fn a_forbidden_script_by_its_descriptor() {
    by_default().holds(|cx| {
        let place = place(cx);
        let shut = cx.inside("shut", "#!/bin/sh\necho said it\n");
        std::fs::set_permissions(&shut, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let place = place.rule(&format!("[{shut:?}]"), "forbidden");
        let run = place.python(
            "import os, ctypes
for at, name in ((os.open('shut', os.O_RDONLY), b''), (os.open('.', os.O_RDONLY), b'shut')):
    os.set_inheritable(at, True)
    if os.fork() == 0:
        argv = (ctypes.c_char_p * 2)(b'shut', None)
        ctypes.CDLL(None).syscall(322, at, name, argv, argv, 0x1000)
        os._exit(3)
    os.wait()
",
        );
        held(!run.stdout.contains("said it"), "the forbidden script ran")
    });
}

/// What the kernel ran and what a name leads to a moment later are two things: a shell with any text passes for the
/// allowed program if somebody looks at the name again.
const FLIP: &str = "import os, time
target, other, name, words = TARGET
stop = time.time() + 2
flipper = os.fork()
if flipper == 0:
    n = 0
    while time.time() < stop + 1:
        for to in (target, other):
            n += 1
            os.symlink(to, 'l%d' % n)
            os.rename('l%d' % n, name)
            for _ in range(n % 97 * 5): pass
    os._exit(0)
tries = 0
while time.time() < stop and not os.path.exists(OUTSIDE + '/marker'):
    pid = os.fork()
    if pid == 0:
        null = os.open('/dev/null', os.O_RDWR)
        for fd in (0, 1, 2): os.dup2(null, fd)
        try: os.execv(os.getcwd() + '/' + name, words)
        except OSError: os._exit(1)
    os.waitpid(pid, 0)
    tries += 1
os.kill(flipper, 9)
os.waitpid(flipper, 0)
say('tries', tries)
";

#[test]
fn a_link_that_leads_elsewhere_when_it_is_looked_at_again() {
    by_default().holds(|cx| {
        let place = place(cx);
        let words =
            "('/usr/bin/id', '/bin/bash', 'id', ['bash', '-c', 'touch ' + OUTSIDE + '/marker', os.getcwd() + '/id'])";
        place.python(&FLIP.replace("TARGET", words));
        absent(place.marker())
    });
}

#[test]
fn a_link_to_an_allowed_script_that_leads_to_a_shell() {
    by_default().holds(|cx| {
        let place = place(cx);
        let deploy = cx.path("tools/deploy");
        let words = format!("({deploy:?}, '/bin/bash', 'deploy', ['/bin/bash', '-c', 'touch ' + OUTSIDE + '/marker', os.getcwd() + '/deploy'])");
        place.python(&FLIP.replace("TARGET", &words));
        absent(place.marker())
    });
}

/// A shell whose words name an allowed program, and itself behind it.
#[test]
fn an_allowed_one_among_the_words_of_a_shell() {
    holds(
        "for word in /usr/bin/id id $DEPLOY; do
             python3 -c 'import os, sys; os.execv(\"/bin/bash\", [\"bash\", \"-c\", \"touch \" + sys.argv[1], sys.argv[2], \"/bin/bash\"])' $M $word
         done",
    );
}

#[test]
fn a_script_that_is_exchanged_while_it_starts() {
    by_default().holds(|cx| {
        let place = place(cx);
        let deploy = cx.path("tools/deploy");
        let evil = cx.inside("evil", &format!("#!/bin/bash\ntouch {}\n", place.marker()));
        std::fs::set_permissions(&evil, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let words = format!("({deploy:?}, {evil:?}, 'deploy', [os.getcwd() + '/deploy'])");
        place.python(&FLIP.replace("TARGET", &words));
        absent(place.marker())
    });
}

/// A file of a rule that the run puts where the operator's is: the private /tmp is another place.
#[test]
fn a_file_in_the_private_tmp_at_the_path_of_a_rule() {
    by_default().holds(|cx| {
        let folder = format!("/tmp/ringfence-{}-{}", std::process::id(), cx.secret());
        std::fs::create_dir(&folder).unwrap();
        super::open_to_all(&folder);
        let tool = format!("{folder}/tool");
        let place = place(cx).allow(&format!("[{tool:?}]"));
        if cx.is_fenced() {
            std::fs::write(&tool, "#!/bin/sh\ntrue\n").unwrap();
            super::open_to_all(&tool);
        }
        place.bash(&format!(
            "mkdir -p {folder}; cd {folder}; printf '#!/bin/sh\ntouch %s\n' $M > tool; chmod 755 tool; ./tool; {tool}"
        ));
        std::fs::remove_dir_all(&folder).unwrap();
        absent(place.marker())
    });
}

/// A rule on a file that the run can write: by its path, by the operator's search path, by a link in it.
#[test]
fn a_rule_on_a_file_that_the_run_can_write() {
    by_default().holds(|cx| {
        let search = format!("{}:{}:/usr/local/bin:/usr/bin:/bin", cx.workspace("bin"), cx.path("tools"));
        let own = cx.workspace("bin/own");
        let place = place(cx).env("PATH", &search).allow("[\"own\"]").allow("[\"linked\"]").allow(&format!("[{own:?}]"));
        cx.inside("bin/own", "#!/bin/sh\ntrue\n");
        std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&own, cx.path("tools/linked")).unwrap();
        place.bash("echo \"touch $M\" >> bin/own; own; linked; $PWD/bin/own; cp /usr/bin/touch bin/own; own $M; $PWD/bin/own $M");
        absent(place.marker())
    });
}

/// A directory that is another one outside, and one that is nowhere any more.
#[test]
fn a_command_in_a_directory_that_is_not_there_outside_stays_inside() {
    super::as_everybody(|place| {
        let run = place.bash(
            "cd /tmp; mkdir d; cd d; $OUT touch $M; echo $?; mkdir -p $HOME/../x 2>/dev/null; cd $HOME; mkdir gone; cd gone; rmdir ../gone; $OUT touch $M; echo $?
             cd /proc/self; $OUT touch $M; echo $?; cd /dev/shm; $OUT touch $M; echo $?; cd /; $OUT touch $'\\xff'; echo $?",
        );
        // Inside none of them can write there.
        assert_eq!(super::said(&run), "1\n".repeat(5), "{run:?}");
        assert!(
            run.stderr.contains("ran inside the sandbox (4 times): the directory is not the same"),
            "{run:?}"
        );
        assert!(!std::path::Path::new(&place.marker()).exists());
    });
}

/// Programs that run what their arguments, or their input, say.
#[test]
fn arguments_and_input_that_are_commands() {
    let ways: &[(&str, &str)] = &[
        ("find", "find . -maxdepth 0 -exec touch $M ';'"),
        ("tar", "touch a; tar cf a.tar a --checkpoint=1 --checkpoint-action=exec=\"touch $M\""),
        ("sed", "echo x | sed \"1e touch $M\""),
        ("awk", "awk \"BEGIN { system(\\\"touch $M\\\") }\" < /dev/null"),
        ("env", "env touch $M"),
        ("xargs", "echo $M | xargs touch"),
        ("perl", "perl -e 'open F, \">\", $ARGV[0]' $M"),
        ("sh", "echo touch $M | sh"),
        ("python3", "echo \"open('$M', 'w')\" | python3"),
        ("make", "printf 'all:\\n\\ttouch %s\\n' $M > Makefile; make"),
        ("touch", "touch $M"),
        // Programs that no list of dangerous ones would name.
        (
            "sort",
            "printf '#!/bin/sh\\ntouch %s\\ncat\\n' $M > c; chmod +x c; seq 50000 | sort -S 50k --compress-program=$PWD/c > /dev/null",
        ),
        ("split", "echo x | split --filter=\"touch $M\" -"),
        ("uniq", "echo x | uniq - $M"),
        ("shuf", "seq 3 | shuf -o $M"),
    ];
    for (program, script) in ways {
        by_default().holds(|cx| {
            let place = place(cx).asking().allow(&format!("[{program:?}]"));
            place.bash(script);
            absent(place.marker()).map_err(|effect| format!("{program}: {effect}"))
        });
    }
}

/// What the sandbox hides is not read outside instead: an `allow` on a program that reads is for its exact words.
#[test]
fn programs_that_read_what_their_arguments_say() {
    by_default().holds(|cx| {
        let secret = cx.outside("secret", "hidden-words\n");
        let programs = ["cat", "grep", "head", "date", "sort", "od", "cut", "ls"];
        let place = programs.iter().fold(place(cx).asking(), |place, program| place.allow(&format!("[{program:?}]")));
        let place = place.args(&["--hide", &secret]);
        let run = place.bash(&format!(
            "S={secret}; cat $S; grep . $S; head -n 1 $S; date -f $S; sort $S; od -c -An $S | tr -d ' '; cut -c 1- $S; true"
        ));
        let told = format!("{}{}", run.stdout, run.stderr);
        held(!told.contains("hidden-words") && !told.contains("hidden-words\\n"), "a hidden file was read outside")
    });
}

/// A tool that is on nobody's list: alone it is what its rule says, with words it is not.
#[test]
fn a_tool_of_the_operators_leaves_unasked_with_the_words_of_its_rule() {
    super::as_everybody(|place| {
        let tool = place.tool("where", "#!/bin/sh\nreadlink /proc/self/ns/mnt\n");
        let place = place
            .asking()
            .allow(&format!("[{tool:?}]"))
            .allow(&format!("[{tool:?}, \"a\", \"b\"]"))
            .allow("[\"make\"]");
        let run = place.bash(
            "printf 'all:\\n\\t@readlink /proc/self/ns/mnt\\n' > Makefile
             $TOOLS/where; $TOOLS/where a; $TOOLS/where a b; $TOOLS/where a b c; make -s; make; true",
        );
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().to_str().unwrap().to_owned();
        let said = super::said(&run);
        let outside: Vec<bool> = said.lines().map(|line| line == own).collect();
        assert_eq!(outside, [true, false, true, false, false, false], "{run:?}");
        assert!(
            run.stderr.contains("every word of the command"),
            "the note says what to do: {run:?}"
        );
    });
}

/// The words of a rule that end before the command does say nothing about the rest; a rule that has them all does.
#[test]
fn a_rule_that_says_it_all_is_enough() {
    super::as_everybody(|place| {
        let marker = place.marker();
        let place = place.asking().allow(&format!("[\"touch\", {marker:?}]"));
        let run =
            place.bash("touch $M; echo $?; touch $M $M.more 2>/dev/null; echo $?; ls $OUTSIDE");
        assert_eq!(super::said(&run), "0\n1\nmarker\n", "{run:?}");
    });
}

/// The process that waits is the run's: what is done to it changes nothing of what was looked at.
#[test]
fn memory_of_the_one_that_waits_is_not_looked_at_again() {
    by_default().never_bare().holds(|cx| {
        let place = place(cx);
        let slow = place.tool("slow", "#!/bin/sh\nsleep 0.5\necho \"$1\" > \"$2\"\n");
        let place = place.allow(&format!("[{slow:?}]"));
        place.python(&format!(
            "import subprocess, re
p = subprocess.Popen([{slow:?}, 'harmless', OUTSIDE + '/said'])
try:
    maps = open('/proc/%d/maps' % p.pid).read()
    start, end = (int(x, 16) for x in re.search(r'([0-9a-f]+)-([0-9a-f]+) .*\\[stack\\]', maps).groups())
    mem = open('/proc/%d/mem' % p.pid, 'r+b', buffering=0)
    mem.seek(start); old = mem.read(end - start)
    at = old.find(b'harmless')
    mem.seek(start + at); mem.write(b'poisoned')
except OSError as error: say('closed', error.errno)
p.wait()
"
        ));
        crate::escape::unchanged(cx.path("outside/said"), "harmless\n")
    });
}
