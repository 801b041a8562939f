/* `how WAY FILE WORD...`: runs FILE with FILE and the WORDs as its arguments, in one of many ways. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *file, **argv;
static char stack[1 << 16] __attribute__((aligned(16)));

static long at(int folder, const char *name, int flags) {
    return syscall(SYS_execveat, folder, name, argv, environ, flags);
}

static int finish(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, __WALL) != child) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void *in_thread(void *leader) {
    if (leader) pthread_join(*(pthread_t *)leader, 0);
    execv(file, argv);
    return 0;
}

static int in_clone(void *unused) {
    execve(file, argv, environ);
    _exit(127);
}

/* The bytes of FILE in a file that has no name. */
static int copy_to(int to) {
    struct stat about;
    int from = open(file, O_RDONLY | O_CLOEXEC);
    fstat(from, &about);
    for (off_t left = about.st_size; left > 0;) {
        ssize_t sent = sendfile(to, from, 0, left);
        if (sent <= 0) exit(99);
        left -= sent;
    }
    return to;
}

/* Opened for reading alone: what is open for writing cannot be run. */
static int reopened(int fd) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again = open(name, O_RDONLY);
    close(fd);
    return again;
}

static void by_fd(int fd) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    execv(name, argv);
}

static void many_words(size_t length, int count) {
    char **many = calloc(count + 3, sizeof *many), *word = malloc(length + 1);
    memset(word, 'x', length);
    word[length] = 0;
    many[0] = file;
    many[1] = "--version";
    for (int i = 0; i < count; i++) many[i + 2] = word;
    argv = many;
}

static void limit_stack(rlim_t size) {
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = size < limit.rlim_max ? size : limit.rlim_max;
    setrlimit(RLIMIT_STACK, &limit);
}

/* A filter of its own, under which the program can write nothing and trace nothing. */
static void filter_more(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    /* With SECCOMP_RET_TRACE and nobody to trace, the call fails; execveat is left to the fence. */
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(98);
}

static void nothing(int signal) {}

/* A relative of it sends signals all the time, so that the call is taken back and made again. */
static void bombarded(void) {
    struct sigaction act = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    sigaction(SIGWINCH, &act, 0);
    pid_t target = getpid();
    if (!fork()) {
        for (int i = 0; i < 20000; i++) if (kill(target, SIGWINCH)) break;
        _exit(0);
    }
    execv(file, argv);
}

static int stopped(void) {
    pid_t child = fork();
    if (!child) {
        raise(SIGSTOP);
        execv(file, argv);
        _exit(127);
    }
    waitpid(child, 0, WUNTRACED);
    kill(child, SIGCONT);
    for (int i = 0; i < 50; i++) {
        kill(child, SIGSTOP);
        usleep(100);
        kill(child, SIGCONT);
    }
    return finish(child);
}

int main(int count, char **words) {
    const char *way = words[1];
    file = words[2];
    argv = words + 2;
#define IS(name) (!strcmp(way, name))
    if (IS("raw")) {
        long result;
        __asm__ volatile("syscall" : "=a"(result) : "a"(59), "D"(file), "S"(argv), "d"(environ) : "rcx", "r11", "memory");
    } else if (IS("execveat")) at(AT_FDCWD, file, 0);
    else if (IS("empty-path")) at(open(file, O_PATH), "", AT_EMPTY_PATH);
    else if (IS("empty-path-cloexec")) at(open(file, O_PATH | O_CLOEXEC), "", AT_EMPTY_PATH);
    else if (IS("folder")) {
        char *copy = strdup(file);
        int folder = open(dirname(copy), O_PATH | O_DIRECTORY);
        at(folder, basename(file), 0);
    } else if (IS("nofollow")) {
        char *real = realpath(file, 0);
        at(AT_FDCWD, real, AT_SYMLINK_NOFOLLOW);
    } else if (IS("fexecve")) fexecve(open(file, O_RDONLY), argv, environ);
    else if (IS("fd")) by_fd(open(file, O_RDONLY));
    else if (IS("memfd")) fexecve(copy_to(memfd_create("m", MFD_CLOEXEC)), argv, environ);
    else if (IS("memfd-named")) by_fd(copy_to(memfd_create("nproc", 0)));
    else if (IS("tmpfile")) {
        int fd = open(".", O_TMPFILE | O_RDWR, 0700);
        if (fd < 0) fd = memfd_create("m", 0);
        by_fd(reopened(copy_to(fd)));
    } else if (IS("deleted")) {
        int fd = reopened(copy_to(open("gone", O_RDWR | O_CREAT, 0700)));
        unlink("gone");
        by_fd(fd);
    } else if (IS("vfork")) {
        pid_t child = vfork();
        if (!child) { execv(file, argv); _exit(127); }
        return finish(child);
    } else if (IS("clone-vm")) {
        return finish(clone(in_clone, stack + sizeof stack, CLONE_VM | SIGCHLD, 0));
    } else if (IS("clone-files")) {
        return finish(clone(in_clone, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_VFORK, 0));
    } else if (IS("thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, in_thread, 0);
        pthread_join(thread, 0);
    } else if (IS("thread-alone")) {
        static pthread_t leader;
        pthread_t thread;
        leader = pthread_self();
        pthread_create(&thread, 0, in_thread, &leader);
        pthread_exit(0);
    } else if (IS("spawn")) {
        pid_t child;
        if (posix_spawn(&child, file, 0, 0, argv, environ)) return 127;
        return finish(child);
    } else if (IS("spawn-session")) {
        pid_t child;
        posix_spawnattr_t how;
        posix_spawnattr_init(&how);
        posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSID);
        if (posix_spawn(&child, file, 0, &how, argv, environ)) return 127;
        return finish(child);
    } else if (IS("no-words")) { char *none[] = {0}; execve(file, none, environ); }
    else if (IS("null-words")) syscall(SYS_execve, file, 0, environ);
    else if (IS("null-everything")) syscall(SYS_execve, file, 0, 0);
    else if (IS("empty-word")) { argv[0] = ""; execv(file, argv); }
    else if (IS("another-name")) { char *name = strdup(file); argv[0] = "true"; execv(name, argv); }
    else if (IS("bytes")) { char *name = strdup(file); argv[0] = "\xff\xfe\x01\x7f\n\x1b[2J"; execv(name, argv); }
    else if (IS("256-kib")) { many_words(1000, 270); execv(file, argv); }
    else if (IS("longest-word")) { many_words(131071, 2); execv(file, argv); }
    else if (IS("2-mib")) { many_words(100000, 19); execv(file, argv); }
    else if (IS("5-mib")) { limit_stack(RLIM_INFINITY); many_words(100000, 52); execv(file, argv); }
    else if (IS("many-words")) { many_words(1, 100000); execv(file, argv); }
    else if (IS("small-stack")) { limit_stack(atoi(getenv("STACK_KIB")) << 10); execv(file, argv); }
    else if (IS("deaf")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, 0);
        for (int i = 1; i < 65; i++) signal(i, SIG_IGN);
        execv(file, argv);
    } else if (IS("bombarded")) bombarded();
    else if (IS("stopped")) return stopped();
    else if (IS("undumpable")) { prctl(PR_SET_DUMPABLE, 0); execv(file, argv); }
    else if (IS("filtered")) { filter_more(); at(AT_FDCWD, file, 0); }
    else if (IS("personality")) { personality(ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC | STICKY_TIMEOUTS); execv(file, argv); }
    else if (IS("group")) {
        pid_t child = fork();
        if (!child) { setpgid(0, 0); execv(file, argv); _exit(127); }
        setpgid(child, child);
        return finish(child);
    }
    else if (IS("orphan")) {
        int ends[2];
        pipe(ends);
        if (!fork()) { if (!fork()) { setsid(); execv(file, argv); } _exit(0); }
        close(ends[1]);
        char one;
        read(ends[0], &one, 1);
        return 1;
    } else if (IS("many-files")) {
        for (int i = 0; i < 500; i++) dup(1);
        execv(file, argv);
    } else if (IS("few-files")) {
        struct rlimit none = {4, 4};
        setrlimit(RLIMIT_NOFILE, &none);
        execv(file, argv);
    } else if (IS("no-folder")) {
        mkdir("folder", 0700);
        chdir("folder");
        rmdir("../folder");
        execv(file, argv);
    } else if (IS("again-and-again")) {
        for (int i = 0; i < 200; i++) execv("/nonexistent", argv);
        execv(file, argv);
    } else if (IS("system")) { setenv("FILE", file, 1); return system("$FILE --version") ? 1 : 0; }
    else return 96;
    perror(way);
    return 127;
}
