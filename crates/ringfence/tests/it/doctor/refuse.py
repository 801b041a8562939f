# Refuses system calls, as a container's filter does, and becomes the command:  refuse.py NAME[&FLAG]=ERRNO… -- COMMAND…
# With a flag, only where the first argument has it.
import ctypes, os, platform, struct, sys

NUMBERS = {
    "x86_64": {"unshare": 272, "landlock_create_ruleset": 444, "seccomp": 317, "pidfd_getfd": 438, "mount_setattr": 442},
    "aarch64": {"unshare": 97, "landlock_create_ruleset": 444, "seccomp": 277, "pidfd_getfd": 438, "mount_setattr": 442},
}[platform.machine()]
split = sys.argv.index("--")
LOAD, JEQ, JSET, RET, ALLOW, ERRNO = 0x20, 0x15, 0x45, 0x06, 0x7FFF0000, 0x00050000
program = [(LOAD, 0, 0, 0)]
for word in sys.argv[1:split]:
    name, errno = word.split("=")
    name, _, flag = name.partition("&")
    refuse = (RET, 0, 0, ERRNO | int(errno))
    if flag:
        # The number of the call is loaded again for those that pass.
        steps = [(LOAD, 0, 0, 16), (JSET, 0, 1, int(flag, 16)), refuse, (LOAD, 0, 0, 0)]
    else:
        steps = [refuse]
    program += [(JEQ, 0, len(steps), NUMBERS[name])] + steps
program.append((RET, 0, 0, ALLOW))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[split + 1], sys.argv[split + 1:])
