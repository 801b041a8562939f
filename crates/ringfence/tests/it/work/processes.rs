//! Processes: how they end, what they hear, and the programs that look after others.

use super::{Who, Work, work};

fn ending(text: &str, code: i32) -> Work {
    Work::argv(["sh", "-c", text]).ends(code)
}

const TMUX: &str = "
    folder=$(mktemp -d /tmp/tmux.XXXXXX); tmux() { command tmux -f /dev/null -S \"$folder/socket\" \"$@\"; }
    tmux new-session -d -x 80 -y 24 -s work 'env -i PATH=\"$PATH\" PS1=\"% \" sh'
    tmux send-keys -t work 'echo $((6 * 7)) is the answer; tmux_is=done' Enter
    # The program in the pane speaks when it is ready.
    n=0; until tmux capture-pane -p -t work | grep -o '42 is the answer'; do
        n=$((n + 1)); [ $n -lt 200 ] || exit 9; sleep 0.05
    done
    tmux list-sessions -F '#{session_name} #{session_windows}'
    tmux kill-server; rm -r \"$folder\"
";

work! {
    exit_0: ending("exit 0", 0);
    exit_1: ending("exit 1", 1);
    exit_77: ending("echo skipped; exit 77", 77).says("skipped");
    exit_255: ending("exit 255", 255);
    killed_by_kill: ending("echo going; kill -KILL $$", 137).says("going");
    killed_by_term: ending("kill -TERM $$", 143);
    killed_by_abort: ending("ulimit -c 0; kill -ABRT $$", 134);
    a_program_that_is_not_there: Work::script("no-program-of-that-name").ends(127).says("command not found");
    a_program_that_may_not_run: Work::script("echo x >file; ./file").ends(126).says("Permission denied");

    term_is_trapped: Work::script("
        trap 'echo heard TERM; exit 3' TERM; trap 'echo heard USR1' USR1; trap 'echo the end' EXIT
        kill -USR1 $$; (kill -TERM $$); while :; do sleep 0.01; done
    ").ends(3).says("heard USR1").says("heard TERM").says("the end");

    /// A program that ignores SIGPIPE hands that on, and then `yes | head` complains instead of ending.
    no_signal_is_ignored_or_blocked: Work::script("
        # The first 31: those above are the threads' own affair.
        while read -r name mask; do
            echo \"$name $((0x$mask & 0x7fffffff))\"
        done < <(grep -E '^Sig(Blk|Ign)' /proc/self/status)
         set +o pipefail; yes | head -n 1; echo ${PIPESTATUS[@]}
    ").says("141 0").says("SigIgn: 0");

    children_are_signalled: Work::script("
        sleep 300 & kill $!; code=0; wait $! || code=$?; echo ended by $((code - 128))
        : >said; (trap '' TERM; echo ready; exec sleep 300) >said &
        n=0; until grep -q ready said; do n=$((n + 1)); [ $n -lt 500 ]; sleep 0.01; done
        kill $!; kill -0 $! && echo still there; kill -9 $!; code=0; wait $! 2>/dev/null || code=$?; echo $code
    ").says("ended by 15").says("still there").says("137");

    stdin_is_passed_through: Work::script("
        read -r first; echo \"first: $first\"; sha256sum; read -r more || echo and no more
    ")
        .stdin([b"one line\n".to_vec(), vec![b'x'; 5_000_000]].concat()).says("first: one line").says("and no more");

    stdin_that_is_empty: Work::script("wc -c; test ! -t 0 && echo no terminal").says("no terminal");

    /// An argument may have 128 KiB, and all of them 2 MiB.
    a_long_command_line: Work::argv(
        ["bash".to_owned(), "-c".into(), "echo $# ${#1} ${#2001}".into(), "bash".into(), "a".repeat(100_000)]
            .into_iter().chain((0..2000).map(|n| format!("argument {n:090}"))),
    ).says("2001 100000 99");

    a_large_environment: Work::script("
        for n in $(seq 1000); do export \"VARIABLE_$n=$(printf '%0100d' \"$n\")\"; done
        export LONG=$(head -c 100000 /dev/zero | tr '\\0' x); env | grep -c ^VARIABLE_; printenv LONG | wc -c
    ").says("1000").says("100001");

    background_jobs: Work::script("
        jobs=; for n in 1 2 3 4; do (sleep 0.0$n; exit $n) & jobs=\"$jobs $!\"; done; sum=0
        for job in $jobs; do code=0; wait $job || code=$?; sum=$((sum + code)); done; echo sum $sum
    ").says("sum 10");

    timeout: Work::script("timeout 0.2 sleep 5").ends(124);
    timeout_that_kills: Work::argv(["timeout", "-s", "KILL", "0.2", "sleep", "5"]).ends(137);

    nohup_and_setsid: Work::script("
        nohup sh -c 'echo from nohup' >out 2>&1; cat out; setsid --wait sh -c 'echo from setsid; exit 6' || echo $?
        setsid sh -c 'echo in the background >late.tmp; mv late.tmp late' & wait
        n=0; until [ -e late ]; do n=$((n + 1)); [ $n -lt 500 ]; sleep 0.01; done; cat late
    ").needs(&["setsid"]).says("from nohup").says("from setsid").says("in the background");

    /// Every figure but the exit status differs each time.
    time_with_all_its_figures: Work::script("
        /usr/bin/time -v sh -c 'exit 4' 2>&1 | grep -E 'Exit status|Command being' ; /usr/bin/time -f '%x %C' true
    ").needs(&["/usr/bin/time"]).ends(4).says("Exit status: 4");

    /// What `script` says of the time differs each time.
    script_allocates_a_terminal: Work::script("
        script -qec 'tty >/dev/null && stty -a | grep -o isig && echo a terminal; exit 8' /dev/null
    ").needs(&["script"]).ends(8).says("a terminal");

    tmux: Work::script(TMUX).needs(&["tmux"]).says("42 is the answer").says("work 1");

    limits_can_be_lowered: Work::script("ulimit -n 64; ulimit -n; ulimit -Sc 0; ulimit -c; nice -n 5 nice; ulimit -s")
        .says("64\n");

    /// Build tools and test runners do this to their own processes, by number too.
    priorities_of_own_processes: Work::script("
        prlimit --pid $$ --nofile=100:200; prlimit --pid $$ --nofile --noheadings -o SOFT,HARD
        sleep 300 & child=$!; trap 'kill $child' EXIT
        prlimit --pid $child --core=0; renice -n 19 -p $child >/dev/null; ps -o ni= -p $child
        taskset -cp 0 $child >/dev/null; taskset -cp $child | sed 's/.*list: //'; taskset -c 0 nproc
        ionice -c 3 -p $child; ionice -p $child; chrt --batch -p 0 $child; chrt -p $child | sed 's/.*: //'
        renice -n 19 -g $$ >/dev/null 2>&1 || renice -n 19 -p $$ >/dev/null; ps -o ni= -p $$
    ").needs(&["prlimit", "renice", "taskset", "ionice", "chrt"]).says("100").says("19").says("idle").says("SCHED_BATCH");

    many_processes: Work::script("
        seq 300 | xargs -P 8 -n 1 sh -c 'echo $0' | sort -n | sha256sum; for n in $(seq 100); do /bin/true; done
    ").says("-");

    proc_is_there: Work::script("
        readlink /proc/self/exe; tr '\\0' ' ' </proc/self/cmdline; grep -c ^processor /proc/cpuinfo; nproc
        test -r /proc/meminfo -a -d /proc/$$/fd -a -r /proc/$$/status -a -r /proc/stat && echo readable
    ").says("/readlink").says("readable");
}

/// Here the two must differ: outside, everything on the machine is to be seen.
fn sees_only_its_own(who: Who) {
    let work = Work::script(
        "
        sleep 300 & until [ \"$(cat /proc/$!/comm)\" = sleep ]; do :; done; ps -eo pid=,comm=; kill $!
    ",
    )
    .needs(&["ps"])
    .says("sleep");
    let Some(run) = work.in_the_fence(who) else { return };
    let text = String::from_utf8(run.stdout).unwrap();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let ours = ["bash", "sleep", "ps"];
    assert!(ours.iter().all(|name| names.contains(name)), "{names:?}");
    assert!(
        names.len() <= ours.len() + 1,
        "nothing but the first process of the fence is added: {names:?}"
    );
}

mod ps_shows_only_its_own {
    use super::*;

    #[test]
    fn as_root() {
        sees_only_its_own(Who::Root);
    }

    #[test]
    fn as_user() {
        sees_only_its_own(Who::User);
    }
}
