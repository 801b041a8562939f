/* `race WAY TRIES`: runs `a` or `b` of this folder TRIES times while somebody exchanges the one for the other at every
   moment, and says how often which of them ran. `a` and `b` are links to programs that say a number and a word. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* What is exchanged, in memory that the other side shares. */
struct shared {
    volatile char path[64];
    volatile char word[64];
    char *volatile words[4];
    volatile int stop, turns;
};
static struct shared *shared;
static const char *way;
static int one, other;

#define IS(name) (!strcmp(way, name))

static void flip(int turn) {
    if (IS("path") || IS("path-thread") || IS("path-vm")) shared->path[2] = "ab"[turn];
    else if (IS("word") || IS("word-thread")) memcpy((char *)shared->word, turn ? "forbidden" : "permitted", 9);
    else if (IS("words")) shared->words[1] = turn ? "forbidden" : "permitted";
    else if (IS("files") || IS("links")) syscall(SYS_renameat2, AT_FDCWD, "a", AT_FDCWD, "b", 2);
    else if (IS("interpreter")) syscall(SYS_renameat2, AT_FDCWD, "a", AT_FDCWD, "b", 2);
    else if (IS("descriptor") || IS("descriptor-path")) dup2(turn ? one : other, 20);
    else if (IS("folder")) fchdir(turn ? one : other);
}

static void *flip_on(void *unused) {
    for (int turn = 0; !shared->stop; turn ^= 1) {
        flip(turn);
        /* Whoever runs something needs a processor as well. */
        if (++shared->turns % 17 == 0) sched_yield();
    }
    return 0;
}

static int flip_in_clone(void *unused) {
    flip_on(0);
    return 0;
}

static void run(void) {
    char *plain[] = {"x", 0};
    if (IS("word") || IS("word-thread") || IS("words")) execve("/bin/echo", (char **)shared->words, environ);
    else if (IS("descriptor")) syscall(SYS_execveat, 20, "", plain, environ, AT_EMPTY_PATH);
    else if (IS("descriptor-path")) execve("/proc/self/fd/20", plain, environ);
    else if (IS("interpreter")) execve("./script", plain, environ);
    else if (IS("files") || IS("links")) execve("./a", plain, environ);
    else if (IS("folder")) execve("./x", plain, environ);
    else execve((char *)shared->path, plain, environ);
    _exit(77);
}

/* Who exchanges lives in the same process as who runs, shares its memory, or only what was mapped for both. */
static void attempt(int out) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    dup2(out, 1);
    int inside = strstr(way, "-thread") || strstr(way, "descriptor") || IS("folder");
    if (inside) {
        /* Tables of descriptors and folders come apart at an exec, so this one is a process of its own with them. */
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD;
        pthread_t thread;
        if (strstr(way, "-thread")) pthread_create(&thread, 0, flip_on, 0);
        else clone(flip_in_clone, stack + sizeof stack, flags, 0);
        for (int until = 3 + rand() % 64; shared->turns < until;) sched_yield();
    }
    run();
}

int main(int count, char **arguments) {
    way = arguments[1];
    int tries = atoi(arguments[2]);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy((char *)shared->path, "./a");
    strcpy((char *)shared->word, "permitted");
    shared->words[0] = "echo";
    shared->words[1] = (char *)shared->word;
    int open_as = IS("folder") ? O_PATH | O_DIRECTORY : O_RDONLY;
    one = open(IS("folder") ? "one" : "a", open_as | O_CLOEXEC);
    other = open(IS("folder") ? "other" : "b", open_as | O_CLOEXEC);
    if (!IS("folder")) dup2(one, 20);
    int home = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int outside = !(strstr(way, "-thread") || strstr(way, "descriptor") || IS("folder"));
    pthread_t thread;
    if (outside) pthread_create(&thread, 0, flip_on, 0);
    int permitted = 0, forbidden = 0, refused = 0, failed = 0;
    for (int i = 0; i < tries; i++) {
        int ends[2], status = 0;
        char said[4096] = "";
        pipe2(ends, O_CLOEXEC);
        if (IS("folder")) fchdir(home), fchdir(one);
        srand(i);
        shared->stop = 0;
        if (!outside) shared->turns = 0;
        pid_t child = fork();
        if (!child) attempt(ends[1]);
        close(ends[1]);
        /* What shares the child's descriptors holds the pipe open for as long as it lives. */
        waitpid(child, &status, 0);
        if (!outside) shared->stop = 1;
        /* To the end, which comes when whoever exchanged things is gone as well. */
        size_t length = 0;
        for (ssize_t got; (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0;) length += got;
        close(ends[0]);
        if (length) (strstr(said, "Linux") || strstr(said, "uname") || strstr(said, "forbidden")) ? forbidden++ : permitted++;
        else if (WIFEXITED(status) && WEXITSTATUS(status) == 1) refused++;
        else failed++;
    }
    shared->stop = 1;
    printf("permitted %d\nforbidden %d\nrefused %d\nfailed %d\n", permitted, forbidden, refused, failed);
    return 0;
}
