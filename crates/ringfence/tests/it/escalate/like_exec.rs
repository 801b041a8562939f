//! What is let out runs as if it had been exec'd where it was called: its streams, its end, its signals.

use super::{as_everybody, said};
use crate::support::process::{wait_for_death, with_argument};
use crate::support::{DEADLINE, eventually};

#[test]
fn much_data_goes_both_ways() {
    as_everybody(|place| {
        let run = place.bash(
            "head -c 20000000 /dev/urandom > big; md5sum < big
             $OUT cat < big | $OUT cat | cat | $OUT md5sum
             $OUT cat big > copy; md5sum < copy",
        );
        let said = said(&run);
        let sums: Vec<&str> = said.lines().collect();
        assert_eq!(sums.len(), 3, "{run:?}");
        assert!(sums[0] == sums[1] && sums[1] == sums[2], "{run:?}");
    });
}

#[test]
fn standard_error_and_an_early_end_of_the_reader_are_as_usual() {
    as_everybody(|place| {
        let run = place.bash(
            "$OUT sh -c 'echo one; echo two >&2' 2>errors; cat errors
             $OUT yes | head -n 1; echo ${PIPESTATUS[*]}
             echo none | $OUT true; echo $?
             $OUT cat <&-; $OUT echo x >&-; echo $?",
        );
        // 141: a broken pipe, as for any program.
        assert!(said(&run).starts_with("one\ntwo\ny\n141 0\n0\n"), "{run:?}");
    });
}

/// A substitution is a pipe: one that is a standard stream goes along, any other descriptor does not.
#[test]
fn process_substitution_works_on_the_standard_streams() {
    as_everybody(|place| {
        let run = place.bash(
            "$OUT cat < <(echo read)
             $OUT echo written > >(cat > got); for i in $(seq 200); do [ -s got ] && break; sleep 0.01; done; cat got
             $OUT cat <(echo secret) 2>/dev/null; echo $?
             exec 7<<<inherited; $OUT ls /proc/self/fd",
        );
        assert_eq!(said(&run), "read\nwritten\n1\n0\n1\n2\n3\n", "{run:?}");
    });
}

#[test]
fn every_exit_code_comes_back() {
    as_everybody(|place| {
        let codes: Vec<u32> = match std::env::var_os("RINGFENCE_PROOF") {
            Some(_) => (0..256).collect(),
            None => {
                vec![0, 1, 2, 3, 42, 64, 100, 124, 125, 126, 127, 128, 129, 137, 143, 192, 254, 255]
            }
        };
        for some in codes.chunks(32) {
            let list: String = some.iter().map(|code| format!("{code} ")).collect();
            let run = place.bash(&format!(
                "for code in {list}; do $OUT sh -c \"exit $code\"; echo -n \"$? \"; done; echo"
            ));
            assert_eq!(said(&run).trim(), list.trim(), "{run:?}");
        }
    });
}

#[test]
fn death_by_a_signal_is_replayed() {
    as_everybody(|place| {
        let run = place.python(
            "import subprocess, signal
for name in ('TERM', 'KILL', 'SEGV', 'HUP', 'ABRT'):
    ended = subprocess.run([OUT, 'sh', '-c', 'ulimit -c 0; kill -' + name + ' $$'])
    say(name, ended.returncode == -getattr(signal, 'SIG' + name))
# One that is told to ignore it cannot die of it: it ends with the code that shells use.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ended = subprocess.run([OUT, 'perl', '-e', '$SIG{TERM}=\"DEFAULT\"; kill TERM => $$; sleep 5'], restore_signals=False)
say('ignored', ended.returncode)
",
        );
        for name in ["TERM", "KILL", "SEGV", "HUP", "ABRT"] {
            assert_eq!(run.word(name), "True", "{name}: {run:?}");
        }
        assert_eq!(run.word("ignored"), "143", "{run:?}");
    });
}

#[test]
fn signals_reach_what_runs_outside() {
    as_everybody(|place| {
        let trap = place.tool(
            "trap",
            "#!/usr/bin/perl\n$| = 1; $SIG{$_} = do { my $n = $_; sub { print \"got $n\\n\"; exit 7 if $n eq 'TERM' } } for qw(TERM INT USR1);\n\
             print \"ready\\n\"; sleep 1 while 1;\n",
        );
        let place = place.allow(&format!("[{trap:?}]"));
        let run = place.python(&format!(
            "import subprocess, signal
p = subprocess.Popen([{trap:?}], stdout=subprocess.PIPE, text=True)
say('first', p.stdout.readline().strip())
for name in ('USR1', 'INT', 'TERM'):
    p.send_signal(getattr(signal, 'SIG' + name))
    say(name, p.stdout.readline().strip())
say('code', p.wait())
"
        ));
        assert_eq!(run.word("first"), "ready");
        for name in ["USR1", "INT", "TERM"] {
            assert_eq!(run.word(name), format!("got {name}"), "{run:?}");
        }
        assert_eq!(run.word("code"), "7");
    });
}

#[test]
fn what_runs_outside_stops_and_goes_on_with_the_one_that_waits() {
    as_everybody(|place| {
        let marker = place.cx.marker();
        let mut live = place.fence().start_python(
            &format!(
                "import subprocess, signal, sys
p = subprocess.Popen([{:?}, 'sleep', {marker:?}])
say('begun')
for line in sys.stdin:
    p.send_signal(getattr(signal, line.strip()))
    say('sent')
    if line.strip() == 'SIGKILL':
        say('code', p.wait())
        break
",
                place.out()
            ),
            &[],
        );
        let state = |of: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().unwrap_or_default().chars().next().unwrap_or('?')
        };
        // The one that waits has the same words; the one outside is in the namespaces of this test.
        let own = std::fs::read_link("/proc/self/ns/pid").unwrap();
        let outside = || {
            let is_here = |pid: &u32| {
                std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|other| other == own)
            };
            with_argument(&marker).into_iter().find(is_here)
        };
        eventually(DEADLINE, "it runs outside", || outside().is_some());
        let pid = outside().unwrap();
        live.tell("SIGSTOP");
        eventually(DEADLINE, "it stops", || state(pid) == 'T');
        live.tell("SIGCONT");
        eventually(DEADLINE, "it goes on", || state(pid) == 'S');
        live.tell("SIGKILL");
        assert_eq!(live.wait_for("code"), "-9");
        wait_for_death(&marker, DEADLINE);
        drop(live.end());
    });
}

/// Everything that the one outside has started goes too, also what hides in a session of its own.
#[test]
fn killing_the_one_that_waits_kills_what_runs_in_its_stead() {
    as_everybody(|place| {
        let marker = place.cx.marker();
        let run = place.bash(&format!(
            "$OUT sh -c '(setsid -f sleep {marker}); echo up > $0/up; sleep {marker}' $OUTSIDE & p=$!
             until [ -e $OUTSIDE/up ]; do sleep 0.01; done
             kill -9 $p; wait $p; echo $?"
        ));
        assert_eq!(said(&run), "137\n", "{run:?}");
        wait_for_death(&marker, DEADLINE);
    });
}

#[test]
fn many_at_once_do_not_get_mixed_up() {
    as_everybody(|place| {
        let run = place.bash(
            "for i in $(seq 24); do ( got=$(echo $i | $OUT sh -c 'read n; echo $n; exit $n'); [ $? = $i ] && [ $got = $i ] && echo right ) & done; wait",
        );
        assert_eq!(said(&run), "right\n".repeat(24), "{run:?}");
    });
}
