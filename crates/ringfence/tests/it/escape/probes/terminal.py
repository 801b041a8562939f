import fcntl, os, struct, sys, termios, threading

# A person's terminal around a command: a session leader like a shell, which starts the command and afterwards looks
# at what was typed into the terminal, what was written on it, and whose it is.
kind, command = sys.argv[1], sys.argv[2:]
master, slave = os.openpty()
name = os.ttyname(slave)
command = [part.replace("{terminal}", name) for part in command]
shell = os.fork()
if shell == 0:
    os.close(master)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    child = os.fork()
    if child == 0:
        os.dup2(slave if kind == "typed" else os.open("/dev/null", os.O_RDONLY), 0)
        os.close(slave)
        os.execvp(command[0], command)
    status = os.waitpid(child, 0)[1]
    os.set_blocking(slave, False)
    try:
        typed = os.read(slave, 100)
    except OSError:
        typed = b""
    try:
        owner = struct.unpack("i", fcntl.ioctl(slave, 0x5429, bytes(4)))[0] == os.getpid()
    except OSError:
        owner = False
    print("typed", typed, flush=True)
    print("owner", owner, flush=True)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
os.close(slave)
screen = bytearray()


def watch():
    while True:
        try:
            screen.extend(os.read(master, 1000))
        except OSError:
            return


watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
status = os.waitpid(shell, 0)[1]
watcher.join(5)
print("screen", bytes(screen), flush=True)
sys.exit(os.waitstatus_to_exitcode(status))
