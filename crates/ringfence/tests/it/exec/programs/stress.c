/* `stress WAY ROUNDS`: execs that come from many threads at once, fail, or are stopped and killed on the way. It says
   how many of them ended in another way than they must. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int bad;

static void expect(int so, const char *what, long detail) {
    if (!so && bad++ < 10) fprintf(stderr, "%s: %lx\n", what, detail);
}

static void *succeed(void *unused) {
    char *words[] = {"true", 0};
    for (;;) execve("/bin/true", words, environ);
}

static void *fail(void *unused) {
    char *words[] = {"x", 0};
    for (;;) execve("/nonexistent", words, environ);
}

/* Threads of one process that exec at the same time: one of them gets through. */
static void threads(int rounds) {
    for (int i = 0; i < rounds; i++) {
        pid_t child = fork();
        if (!child) {
            pthread_t thread;
            for (int k = 0; k < 4; k++) pthread_create(&thread, 0, fail, 0);
            for (int k = 0; k < 4; k++) pthread_create(&thread, 0, succeed, 0);
            succeed(0);
        }
        int status;
        waitpid(child, &status, 0);
        expect(status == 0, "of many threads", status);
    }
}

static void *fail_often(void *rounds) {
    char *words[] = {"x", 0};
    const char *names[] = {"/nonexistent", "/etc/passwd", "/", "/etc/passwd/x"};
    const int errors[] = {ENOENT, EACCES, EACCES, ENOTDIR};
    for (long i = 0; i < (long)rounds; i++) {
        int result = execve(names[i & 3], words, environ);
        expect(result == -1 && errno == errors[i & 3], names[i & 3], errno);
    }
    return 0;
}

static void failures(int rounds) {
    pthread_t threads[16];
    for (int k = 0; k < 16; k++) pthread_create(&threads[k], 0, fail_often, (void *)(long)rounds);
    for (int k = 0; k < 16; k++) pthread_join(threads[k], 0);
}

static void spawns(int rounds) {
    char *words[] = {"true", 0};
    for (int i = 0; i < rounds; i++) {
        pid_t child;
        int status = -1, error = posix_spawn(&child, i & 1 ? "/bin/true" : "/nonexistent", 0, 0, words, environ);
        if (i & 1) {
            waitpid(child, &status, 0);
            expect(error == 0 && status == 0, "a spawn", status);
        } else expect(error == ENOENT, "a spawn of nothing", error);
    }
}

static pid_t sleeper(void) {
    pid_t child = fork();
    if (!child) {
        char *words[] = {"sleep", "60", 0};
        execve("/bin/sleep", words, environ);
        _exit(9);
    }
    return child;
}

/* Stopped and killed at every point of an exec. */
static void kills(int rounds) {
    for (int i = 0; i < rounds; i++) {
        pid_t child = sleeper();
        int status = 0;
        usleep(i % 23 * 50);
        if (i & 1) {
            kill(child, SIGSTOP);
            usleep(i % 5 * 50);
            kill(child, SIGCONT);
            usleep(i % 7 * 30);
        }
        kill(child, SIGKILL);
        pid_t got = waitpid(child, &status, 0);
        expect(got == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a killed one", status);
    }
}

/* Many at once, and then all are killed. */
static void storms(int rounds) {
    for (int i = 0; i < rounds; i++) {
        pid_t children[32];
        for (int k = 0; k < 32; k++) {
            children[k] = fork();
            if (!children[k]) {
                char *words[] = {"stress", "chain", "1000000", 0};
                execve("/proc/self/exe", words, environ);
                _exit(9);
            }
        }
        usleep(i % 10 * 1000);
        for (int k = 0; k < 32; k++) kill(children[k], SIGKILL);
        for (int k = 0; k < 32; k++) {
            int status = 0;
            waitpid(children[k], &status, 0);
            expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "one in a storm", status);
        }
    }
}

/* One program after the other in the same process; the last ends with 7. */
static int chain(int rounds) {
    char left[16], *words[] = {"stress", "chain", left, 0};
    if (!rounds) return 7;
    snprintf(left, sizeof left, "%d", rounds - 1);
    execve("/proc/self/exe", words, environ);
    perror("chain");
    return 1;
}

static void pauses(int rounds) {
    pid_t child = fork();
    if (!child) _exit(chain(rounds));
    int status = 0;
    for (int i = 0; !waitpid(child, &status, WNOHANG); i++) {
        kill(child, SIGSTOP);
        usleep(i % 9 * 20);
        kill(child, SIGCONT);
        usleep(i % 13 * 100);
    }
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "one that is stopped", status);
    /* Stopped, it stays stopped until it is told to go on. */
    child = sleeper();
    usleep(300);
    kill(child, SIGSTOP);
    pid_t got = waitpid(child, &status, WUNTRACED);
    expect(got == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "a stop", status);
    kill(child, SIGCONT);
    got = waitpid(child, &status, WCONTINUED);
    expect(got == child && WIFCONTINUED(status), "a continuation", status);
    kill(child, SIGTERM);
    waitpid(child, &status, 0);
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "its end", status);
}

static void statuses(int rounds) {
    for (int i = 0; i < rounds; i++) {
        char script[64], *words[] = {"sh", "-c", script, 0};
        int signals[] = {SIGTERM, SIGKILL, SIGHUP, SIGUSR1, SIGINT, SIGALRM}, signal = signals[i / 2 % 6], status = 0;
        snprintf(script, sizeof script, i & 1 ? "kill -%d $$" : "exit %d", i & 1 ? signal : i % 256);
        pid_t child;
        posix_spawn(&child, "/bin/sh", 0, 0, words, environ);
        waitpid(child, &status, 0);
        expect(i & 1 ? WIFSIGNALED(status) && WTERMSIG(status) == signal : status == (i % 256) << 8, "an end", status);
    }
}

/* Of all that is seen here, nothing is dead and not fetched, and nothing is held. */
static int remains(void) {
    int found = 0;
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[300], state = 0;
        snprintf(name, sizeof name, "/proc/%s/stat", entry->d_name);
        FILE *file = atoi(entry->d_name) ? fopen(name, "r") : 0;
        if (!file) continue;
        if (fscanf(file, "%*d (%*[^)]) %c", &state) == 1) found += state == 'Z' || state == 't';
        fclose(file);
    }
    closedir(folder);
    return found;
}

int main(int count, char **words) {
    int rounds = atoi(words[2]);
#define IS(name) (!strcmp(words[1], name))
    if (IS("chain")) return chain(rounds);
    if (IS("threads")) threads(rounds);
    else if (IS("failures")) failures(rounds);
    else if (IS("spawns")) spawns(rounds);
    else if (IS("kills")) kills(rounds);
    else if (IS("storms")) storms(rounds);
    else if (IS("pauses")) pauses(rounds);
    else if (IS("statuses")) statuses(rounds);
    else return 96;
    /* Where all processes are its own: what has just ended is gone in a moment. */
    if (count > 3) {
        int left = remains();
        for (int i = 0; left && i < 100; i++) usleep(10000), left = remains();
        expect(!left, "left behind", left);
    }
    printf("bad %d\n", bad);
    return 0;
}
