/* A program that needs no library: it says that it runs, and ends. */
static long call(long number, long one, long two, long three) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(one), "S"(two), "d"(three) : "rcx", "r11", "memory");
    return result;
}

void _start(void) {
    static const char said[] = "it runs\n";
    call(1, 1, (long)said, sizeof said - 1);
    call(231, 0, 0, 0);
}
