//! Compilers and what they make: C, with and without sanitizers, make, and Rust.

use super::{Work, work};

const SUM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
static void *fill(void *place) { memset(place, 7, 100); return place; }
int main(int count, char **words) {
    char *place = malloc(100);
    pthread_t thread;
    if (pthread_create(&thread, NULL, fill, place) != 0) return 2;
    pthread_join(thread, NULL);
    int at = count > 1 ? atoi(words[1]) : 99;
    printf("place[%d] is %d\n", at, place[at]);
    free(place);
    return 0;
}
"#;

const MAKEFILE: &str = "
parts := $(foreach n,1 2 3 4 5 6 7 8 9 10 11 12,part$(n).o)
program: $(parts) main.o
\tgcc -o $@ $^
part%.o:
\techo 'int part$*(void) { return $*; }' | gcc -x c -c -o $@ -
main.o:
\t{ for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo \"int part$$n(void);\"; done; echo '#include <stdio.h>'; \\
\techo 'int main(void) { printf(\"parts %d\", part1() + part12()); return 0; }'; } | gcc -x c -c -o $@ -
";

const CARGO: &str = "
    [package]
    name = \"small\"
    version = \"0.1.0\"
    edition = \"2021\"
    # It is no part of the workspace around it.
    [workspace]
";

const RUST: &str = "
pub fn twice(n: u32) -> u32 { n * 2 }

fn main() { println!(\"twice 21 is {}\", twice(21)); }

#[test]
fn doubles() { assert_eq!(twice(2), 4); }

#[test]
fn starts_others() { assert!(std::process::Command::new(\"true\").status().unwrap().success()); }
";

fn cargo(script: &str) -> Work {
    Work::script(script)
        .file("Cargo.toml", CARGO)
        .file("main.rs", RUST)
        .prepared("mkdir src; mv main.rs src/")
        .needs(&["cargo"])
        .own_toolchain()
        // Hashes and random names, cargo's own affair.
        .untidy("target")
}

work! {
    gcc: Work::script("gcc -O2 -Wall -pthread -o sum sum.c; ./sum; ./sum 5")
        .file("sum.c", SUM).needs(&["gcc"]).says("place[99] is 7");

    address_sanitizer_of_a_clean_program: Work::script("gcc -g -fsanitize=address -pthread -o sum sum.c; ./sum")
        .file("sum.c", SUM).needs(&["gcc"]).says("place[99] is 7");

    /// Addresses and pids are drawn anew by each process: they are replaced.
    address_sanitizer_reports_an_overflow: Work::script("
        gcc -g -fsanitize=address -pthread -o sum sum.c
        ./sum 100 2>&1 | sed -E 's/==[0-9]+==/==PID==/; s/0x[0-9a-f]+/ADDRESS/g'
    ").file("sum.c", SUM).needs(&["gcc"]).ends(1).says("heap-buffer-overflow").says("sum.c:13 in main");

    undefined_behaviour_sanitizer: Work::script("
        echo 'int main(int c, char **v) { return (2147483647 + c) == 5; }' >over.c
        gcc -fsanitize=undefined -o over over.c; ./over
    ").needs(&["gcc"]).says("signed integer overflow");

    /// The order in which four jobs speak differs each time: it is sorted.
    make_with_four_jobs: Work::script("make -j4 | sort; ./program; make -j4").file("Makefile", MAKEFILE)
        .needs(&["make", "gcc"]).says("parts 13").says("up to date");

    /// How long it took differs each time.
    cargo_build: cargo("cargo build --offline 2>&1 | sed -E 's/in [0-9.]+s/in TIME/'; target/debug/small")
        .says("Finished").says("twice 21 is 42");

    /// With a repository of its own each, which a run makes.
    cargo_new: Work::script("cargo new one; cargo new --lib deep/two; git -C one status --short; ls -A one deep/two")
        .file("Cargo.toml", "[workspace]\n").needs(&["cargo", "git"]).own_toolchain().says("Cargo.toml").says(".git")
        .untidy("one/.git").untidy("deep/two/.git");

    /// How long it took differs each time, and so does the order of the tests' threads.
    cargo_test: cargo("
        cargo test --offline -- --test-threads=1 2>&1 | sed -E 's/in [0-9.]+s/in TIME/; s/small-[0-9a-f]+/small-HASH/'
    ").says("2 passed");
}
