//! The terminal that the fence was started from: nothing is typed into it, written on it, or taken from its owner.

use super::{Effect, Run, everywhere, held};

fn nothing_typed(run: &Run) -> Effect {
    held(run.word("typed") == "b''", format!("{} was typed", run.word("typed")))?;
    held(!run.word("screen").contains("planted"), "it was echoed")
}

#[test]
fn nothing_is_typed_into_the_terminal() {
    let script = r"
import termios
for letter in b'planted\n':
    tried('type', lambda: fcntl.ioctl(0, termios.TIOCSTI, bytes([letter])))
";
    everywhere()
        .bare_as_root()
        .holds(|cx| nothing_typed(&cx.fence().on_a_terminal().python(script, &[])));
}

/// The kernel looks at half of the number only; a filter that looks at all of it is passed by.
#[test]
fn nothing_is_typed_with_a_longer_number() {
    let script = r"
for letter in b'planted\n':
    tried('type', lambda: syscall('ioctl', 0, 0x7fff00005412, bytes([letter])))
";
    everywhere()
        .bare_as_root()
        .holds(|cx| nothing_typed(&cx.fence().on_a_terminal().python(script, &[])));
}

#[test]
fn nothing_is_selected_and_pasted_on_a_console() {
    let script = "for number in [0x541c, 0x10000541c]: tried('paste', lambda: syscall('ioctl', 0, number, bytes([3])))";
    everywhere()
        .never_bare()
        .holds(|cx| cx.fence().on_a_terminal().python(script, &[]).refused_with("EPERM"));
}

/// A line discipline is code in the kernel that anybody with a terminal can load. The one that is set is in use already,
/// so that nothing changes where it works.
#[test]
fn no_line_discipline_is_set() {
    let script = r"
for number in [0x5423, 0x100005423]:
    tried('discipline', lambda: syscall('ioctl', 0, number, struct.pack('i', 0)))
";
    everywhere().holds(|cx| cx.fence().on_a_terminal().python(script, &[]).refused_with("EPERM"));
}

#[test]
fn the_terminal_of_the_caller_is_nobodys_terminal_inside() {
    let script = "tried('terminal', lambda: os.write(os.open('/dev/tty', os.O_RDWR), b'planted'))";
    everywhere().holds(|cx| {
        let run = cx.fence().beside_a_terminal().python(script, &[]);
        held(!run.word("screen").contains("planted"), "it was written on")
    });
}

#[test]
fn the_terminal_of_the_caller_is_not_written_by_its_name() {
    let script = r"
for path in [sys.argv[1], '/proc/self/root' + sys.argv[1]]:
    tried('name', lambda: os.write(os.open(path, os.O_WRONLY | os.O_NOCTTY), b'planted'))
";
    everywhere().holds(|cx| {
        let run = cx.fence().beside_a_terminal().python(script, &["{terminal}"]);
        held(!run.word("screen").contains("planted"), "it was written on")
    });
}

/// A leader of a session can take a terminal away from another session, if it may.
#[test]
fn the_terminal_stays_with_its_owner() {
    let script = r"
import termios
if os.fork() == 0:
    tried('session', os.setsid)
    for force in [0, 1]:
        tried('take', lambda: fcntl.ioctl(0, termios.TIOCSCTTY, force))
    os._exit(0)
os.wait()
";
    everywhere().bare_as_root().holds(|cx| {
        let run = cx.fence().on_a_terminal().python(script, &[]);
        held(run.word("owner") == "True", "it was taken away")
    });
}

#[test]
fn the_console_is_not_taken_over() {
    let script = r"
tried('redirect', lambda: syscall('ioctl', 0, 0x541d, 0))
tried('hang up', lambda: syscall('ioctl', 0, 0x5437, 0))
tried('console', lambda: os.open('/dev/console', os.O_WRONLY | os.O_NOCTTY))
tried('first', lambda: os.open('/dev/tty1', os.O_WRONLY | os.O_NOCTTY))
tried('serial', lambda: os.open('/dev/ttyS0', os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK))
";
    everywhere().never_bare().holds(|cx| cx.fence().on_a_terminal().python(script, &[]).refused());
}

/// A session of its own: no signal from a key and no job control reaches in or out.
#[test]
fn the_session_is_not_the_callers() {
    everywhere().holds(|cx| {
        let run = cx
            .fence()
            .before("echo caller $(ps -o sid= -p $$)")
            .python("say('inside', os.getsid(0)); say('leader', os.getsid(0) == os.getpid())", &[]);
        // In a namespace of its own the numbers mean something else, and 0 is a session that cannot be seen.
        held(
            run.word("inside") != run.word("caller") && run.word("inside") != "0",
            "it is the caller's",
        )
    });
}
