/* Preloaded by bench/instructions. Under valgrind, /proc/self/exe is valgrind's own program; a server that starts itself
 * from there, as ringfence starts a session's zygote, gets the binary that COUNTED_BINARY names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>

/* Read at the start: a child's environment is a different one by the time it is started. */
static const char *binary;

__attribute__((constructor)) static void read_environment(void) {
    binary = getenv("COUNTED_BINARY");
}

static const char *find_program(const char *name) {
    return binary && !strcmp(name, "/proc/self/exe") ? binary : name;
}

int execvp(const char *name, char *const words[]) {
    int (*next)(const char *, char *const[]) = dlsym(RTLD_NEXT, "execvp");
    return next(find_program(name), words);
}

int posix_spawnp(pid_t *child, const char *name, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const words[], char *const environment[]) {
    int (*next)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]) =
        dlsym(RTLD_NEXT, "posix_spawnp");
    return next(child, find_program(name), actions, attributes, words, environment);
}
