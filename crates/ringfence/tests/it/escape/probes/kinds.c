#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Children of unusual kinds, each of which becomes `sleep` with the given word: one by vfork, one that is its parent's
   sibling, one whose end is told to nobody, one that shares the memory of its parent. */
static char *argv_of_sleep[3];
static char stack[65536] __attribute__((aligned(16)));

static int sleep_away(void *unused) {
    setsid();
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    execvp("sleep", argv_of_sleep);
    _exit(1);
}

int main(int count, char **arguments) {
    puts("begun");
    fflush(stdout);
    argv_of_sleep[0] = "sleep";
    argv_of_sleep[1] = arguments[1];
    int ends[2];
    pipe2(ends, O_CLOEXEC);
    int children = 0;
    pid_t child = vfork();
    if (child == 0)
        sleep_away(0);
    children += child > 0;
    unsigned long kinds[] = {CLONE_PARENT | SIGCHLD, 0};
    for (int kind = 0; kind < 2; kind++) {
        long made = syscall(SYS_clone, kinds[kind], 0, 0, 0, 0);
        if (made == 0)
            sleep_away(0);
        children += made > 0;
    }
    children += clone(sleep_away, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_UNTRACED, 0) > 0;
    /* They are what they are looked for by when none of them has the pipe any more. */
    close(ends[1]);
    char byte;
    while (read(ends[0], &byte, 1) > 0)
        ;
    printf("children %d\nended\n", children);
    fflush(stdout);
    _exit(0);
}
