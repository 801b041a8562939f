//! Real work under rules gives what it gives without a fence.

use std::process::Command;

use super::{modes, start};
use crate::escape::Cx;

/// Writes a program of many files, and a Makefile for it.
const SOURCES: &str = r##"
for i in $(seq 150); do
    echo "#include \"all.h\"
int part_$i(int x) { int sum = $i; for (int k = 0; k < x; k++) sum = sum * 31 + k; return sum; }" >part_$i.c
    echo "int part_$i(int);" >>all.h
done
{
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) { unsigned sum = 0;\n'
    for i in $(seq 150); do echo "sum += part_$i($i);"; done
    echo 'printf("%u\n", sum); return 0; }'
} >main.c
cat >Makefile <<'END'
PARTS := $(patsubst %.c,%.o,$(wildcard part_*.c))
result: program
	./program >result
program: main.o libparts.a
	$(CC) -o $@ main.o libparts.a
libparts.a: $(PARTS)
	$(AR) rcsD $@ $(sort $^)
%.o: %.c all.h
	$(CC) -O1 -c -o $@ $<
END
"##;

/// Its progress is a line with a dot: in which order they come is a matter of luck.
const MAKE: &str = "make -j2 2>&1 | tee log | sed -u 's/^/. /'; echo \"code ${PIPESTATUS[0]}\"; cat result; \
    cat *.o libparts.a program | sha256sum; sort log | sha256sum; echo finished";

/// A repository, a script over its history and a pipeline of both.
const PIPELINE: &str = r#"
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
git init -q -b main repo
cd repo
for i in $(seq 12); do
    python3 -c "import sys; print('\n'.join(str(n * $i) for n in range(50)))" >file_$i
    git add file_$i
    git commit -q -m "add $i"
done
git log --format='%H %s' | python3 -c '
import subprocess, sys
for line in sys.stdin:
    commit, _, subject = line.strip().partition(" ")
    shown = subprocess.run(["git", "show", "--stat", "--format=", commit], capture_output=True, text=True, check=True)
    print(commit, subject, shown.stdout.split("|")[0].strip())
' | tee said | sort | awk '{ print $1, $NF }' | xargs -n 2 -P 4 sh -c 'git cat-file -s "$0:$1"' | sort -n | uniq -c
sha256sum said
git fsck 2>&1
echo finished
"#;

/// The same script without a fence and, at the same path, in it.
fn is_the_same(prepare: &str, work: &str) {
    let cx = Cx::new(*modes().last().unwrap());
    let prepared = |folder: &str| {
        let script = format!("rm -rf * && {prepare}");
        let status = Command::new("bash").args(["-euc", &script]).current_dir(folder).status();
        assert!(status.unwrap().success());
        let opened = Command::new("chmod").args(["-R", "a+rwX", folder]).status();
        assert!(opened.unwrap().success());
    };
    let workspace = cx.path("workspace");
    prepared(&workspace);
    let mut bare = Command::new("bash");
    bare.args(["-c", work]).current_dir(&workspace);
    // A test may be run by make, which talks to those that it runs.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
        bare.env_remove(name);
    }
    let bare = bare.output().unwrap();
    prepared(&workspace);
    let script = format!("echo begun\n{work}\nprintf '\\nended\\n'");
    let mut live = start(&cx, true, &[], &["bash", "-c", &script]);
    // Each of its lines has a time of its own.
    live.wait_for("finished");
    let fenced = live.end();
    let bare = results(&String::from_utf8_lossy(&bare.stdout));
    assert_eq!(bare, results(&fenced.stdout), "{}", fenced.stderr);
    assert!(!bare.is_empty() && !fenced.stderr.contains("ringfence"), "{}", fenced.stderr);
}

fn results(said: &str) -> Vec<String> {
    let ours = ["begun", "ended", ""];
    said.lines()
        .filter(|line| !line.starts_with(". ") && !ours.contains(line))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_build_of_150_files() {
    is_the_same(SOURCES, MAKE);
}

#[test]
fn a_repository_and_a_pipeline() {
    is_the_same("true", PIPELINE);
}
