//! What a run could use up or hold, so that programs outside wait or fail: leases, and what the kernel counts for a whole
//! user or keeps for a session.

use rustix::fs::{Mode, OFlags};

use super::{Cx, Effect, by_default, everywhere, held};

/// A lease on a file of one's own keeps everybody else from opening it for `fs.lease-break-time`, 45 seconds.
#[test]
fn no_program_outside_waits_for_a_lease() {
    let script = r"
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDONLY)
for name, kind in [('write', fcntl.F_WRLCK), ('read', fcntl.F_RDLCK)]:
    tried(name, lambda: fcntl.fcntl(file, 1024, kind))
say('holding')
sys.stdin.readline()
";
    everywhere().holds(|cx| {
        let file = cx.outside("shared", "text");
        let mut run = cx.fence().start_python(script, &[&file]);
        run.wait_for("holding");
        // Without waiting, so that a lease shows as an error.
        let opened = rustix::fs::open(&file, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        run.tell("end");
        let refused = run.end().refused();
        held(opened.is_ok(), format!("who opens the file has to wait: {opened:?}"))?;
        refused
    });
}

/// A notice of a directory counts for nobody, and holds on to memory of the kernel.
#[test]
fn no_notice_of_a_directory_is_taken() {
    let script =
        "tried('notice', lambda: fcntl.fcntl(os.open('.', os.O_RDONLY), 1026, 0x4 | 0x80000000))";
    everywhere().holds(|cx| cx.python(script, &[]).refused());
}

/// The run takes all that it gets of something that the kernel counts for the whole user. A program outside must still
/// get some.
fn leaves_some(cx: &Cx, take: &str) -> Effect {
    let more = format!("{take}\nheld = []\n");
    let all = format!(
        "{more}try:\n    while True:\n        held.append(take(len(held)))\nexcept OSError as error:\n    say('taken', len(held), errno.errorcode[error.errno])\nsys.stdin.readline()"
    );
    let mut run = cx.fence().start_python(&all, &["inside"]);
    let taken = run.wait_for("taken");
    assert!(!taken.starts_with("0 "), "the run got none at all: {taken}");
    let other =
        cx.bystander(&format!("{more}tried('outside', lambda: take(0))"), &["outside"]).end();
    run.tell("end");
    run.end();
    held(
        other.stdout.lines().any(|line| line == "tried outside ok"),
        format!("the run took {taken}: {}", other.stdout),
    )
}

/// Only a session with a user namespace of its own can have limits of its own for these.
fn has_own_users(cx: &Cx) -> bool {
    !cx.is_fenced() || std::env::var("RINGFENCE_TIER").map_or(true, |tier| tier != "root")
}

#[test]
fn inotify_is_left_to_the_host() {
    by_default().holds(|cx| match has_own_users(cx) {
        true => leaves_some(cx, "take = lambda _: checked(libc.inotify_init1(0))"),
        false => Ok(()),
    });
}

/// Their bytes count for the whole user, and stay when their run has ended.
#[test]
fn no_named_message_queue_is_made() {
    let script = r"
name = str(os.getpid()).encode()
tried('queue', lambda: syscall('mq_open', name, os.O_CREAT | os.O_RDWR, 0o600, 0))
libc.mq_unlink(b'/' + name)
";
    everywhere().holds(|cx| cx.python(script, &[]).refused());
}

#[test]
fn waiting_signals_are_left_to_the_host() {
    let take = r"
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
value = struct.pack('iiiiiQ', signal.SIGRTMIN, 0, -1, 0, os.getpid(), os.getuid()) + bytes(96)
take = lambda _: syscall('rt_sigqueueinfo', os.getpid(), int(signal.SIGRTMIN), value)
";
    by_default().holds(|cx| leaves_some(cx, take));
}

/// They stay when their run has ended, so that no limit of a run holds them.
#[test]
fn a_session_keeps_a_bounded_amount_of_sysv_objects() {
    let script = r"
def all_of(count, make, remove):
    made = []
    try:
        for _ in range(count):
            made.append(checked(make()))
    finally:
        for id in made:
            remove(id)
def segments(count, size):
    return lambda: all_of(count, lambda: libc.shmget(0, ctypes.c_size_t(size), 0o1600), lambda id: libc.shmctl(id, 0, None))
tried('one segment', segments(1, 3 << 29))
tried('segments', segments(3, 1 << 29))
tried('small segments', segments(1100, 4096))
tried('queues', lambda: all_of(300, lambda: libc.msgget(0, 0o1600), lambda id: libc.msgctl(id, 0, None)))
tried('semaphores', lambda: all_of(40, lambda: libc.semget(0, 1000, 0o1600), lambda id: libc.semctl(id, 0, 0)))
";
    let needs_root = std::env::var("RINGFENCE_TIER").is_ok_and(|tier| tier == "bwrap");
    by_default().holds(|cx| {
        match cx.is_fenced() && needs_root && cx.mode.user != super::User::Root {
            // Bubblewrap maps no root, and only root may limit them.
            true => Ok(()),
            false => cx.python(script, &[]).refused(),
        }
    });
}

#[test]
fn what_a_program_needs_of_them_is_there() {
    let script = r"
memory = checked(libc.shmget(0, ctypes.c_size_t(512 << 20), 0o1600))
queue = checked(libc.msgget(0, 0o1600))
semaphores = checked(libc.semget(0, 250, 0o1600))
watches = [checked(libc.inotify_init1(0)) for _ in range(16)]
for watch in watches:
    checked(libc.inotify_add_watch(watch, b'.', 0x100))
terminals = [os.openpty() for _ in range(32)]
say('all', 'made')
";
    by_default().never_bare().holds(|cx| {
        let run = cx.python(script, &[]);
        held(run.word("all") == "made", format!("{run:?}"))
    });
}
