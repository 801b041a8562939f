/* Helper of the bench: a loop with little overhead, and a crowd of processes that resist termination.
 *
 *   spawn time COUNT PROGRAM ARGUMENT...   starts it COUNT times, one after the other; prints the nanoseconds of each
 *   spawn crowd COUNT MARK                 leaves COUNT daemons that ignore every signal they can; MARK identifies them
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* Measures from before the start to after the end, with /dev/null as input and output. */
static int measure(int count, char **words) {
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    for (int fd = 0; fd < 3; fd++) posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_RDWR, 0);
    while (count-- > 0) {
        pid_t child;
        int status;
        long long began = now();
        if (posix_spawnp(&child, words[0], &quiet, NULL, words, environ) != 0) return 127;
        if (waitpid(child, &status, 0) != child || status != 0) return 1;
        printf("%lld\n", now() - began);
    }
    return 0;
}

static void stay(void) {
    for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
    for (;;) pause();
}

/* Each daemon has its own session and its parent has exited, so no process group or parent leads to it. */
static int crowd(int count) {
    for (int n = 0; n < count; n++) {
        pid_t first = fork();
        if (first < 0) return 1;
        if (first == 0) {
            setsid();
            pid_t second = fork();
            if (second < 0) _exit(1);
            if (second == 0) stay();
            _exit(0);
        }
        int status;
        if (waitpid(first, &status, 0) != first || status != 0) return 1;
    }
    stay();
    return 0;
}

int main(int count, char **words) {
    if (count >= 4 && strcmp(words[1], "time") == 0) return measure(atoi(words[2]), words + 3);
    if (count == 4 && strcmp(words[1], "crowd") == 0) return crowd(atoi(words[2]));
    fprintf(stderr, "spawn time COUNT PROGRAM ARGUMENT... | spawn crowd COUNT MARK\n");
    return 2;
}
