import ctypes, errno, fcntl, os, platform, signal, socket, struct, sys, time

# What every probe begins with: raw system calls, and a word about each thing that was tried.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
socket.setdefaulttimeout(2)
X86 = platform.machine() == "x86_64"


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def checked(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def word(value):
    return ctypes.c_long(value) if isinstance(value, int) else value


# The numbers differ below 424 and are the same from there on.
NUMBERS = dict(
    open_tree=(428, 428), move_mount=(429, 429), fsopen=(430, 430), fsconfig=(431, 431), fsmount=(432, 432),
    fspick=(433, 433), pidfd_open=(434, 434), clone3=(435, 435), pidfd_getfd=(438, 438), mount_setattr=(442, 442),
    io_uring_setup=(425, 425), io_uring_enter=(426, 426), io_uring_register=(427, 427), pidfd_send_signal=(424, 424),
    mount=(165, 40), umount2=(166, 39), pivot_root=(155, 41), swapon=(167, 224), reboot=(169, 142), acct=(163, 89),
    setns=(308, 268), unshare=(272, 97), clone=(56, 220), ptrace=(101, 117), ioctl=(16, 29), chroot=(161, 51),
    process_vm_readv=(310, 270), process_vm_writev=(311, 271), bpf=(321, 280), perf_event_open=(298, 241),
    userfaultfd=(323, 282), add_key=(248, 217), request_key=(249, 218), keyctl=(250, 219), kexec_load=(246, 104),
    kexec_file_load=(320, 294), init_module=(175, 105), finit_module=(313, 273), delete_module=(176, 106),
    name_to_handle_at=(303, 264), open_by_handle_at=(304, 265), quotactl=(179, 60), syslog=(103, 116),
    clock_settime=(227, 112), sethostname=(170, 161), setdomainname=(171, 162), iopl=(172, None), ioperm=(173, None),
    fanotify_init=(300, 262), kcmp=(312, 272), renameat2=(316, 276), linkat=(265, 37), mq_open=(240, 180),
    tgkill=(234, 131), rt_sigqueueinfo=(129, 138), ioprio_set=(251, 30), prctl=(157, 167), memfd_create=(319, 279),
    connect=(42, 203), vhangup=(153, 58), prlimit64=(302, 261), sched_setattr=(314, 274), move_pages=(279, 239),
)


def syscall(name, *arguments):
    number = NUMBERS[name][0 if X86 else 1] if isinstance(name, str) else name
    return checked(libc.syscall(ctypes.c_long(number), *map(word, arguments)))


def tried(name, act):
    try:
        result = act()
    except OSError as error:
        say("tried", name, errno.errorcode.get(error.errno, type(error).__name__))
        return None
    say("tried", name, "ok")
    return result


def put(path, text):
    with open(path, "w") as file:
        file.write(text)


def get(path):
    with open(path) as file:
        return file.read()


say("begun")
