//! Files of every kind, in the workspace and in the temporary directory, and the programs that move them about.

use super::{Work, work};

/// Some files, links, a sparse one and an executable one.
const TREE: &str = "
    mkdir -p tree/deep/er; printf 'one\\n' >tree/one; printf 'two\\n' >tree/deep/two; chmod 751 tree/deep/two
    ln -s ../one tree/deep/to-one; ln tree/one tree/deep/er/same; truncate -s 10M tree/sparse
    mkfifo tree/fifo; touch -d '2020-01-02 03:04:05' tree/one tree/deep; : >'tree/a name with spaces'
";

/// What a tree is, without what differs each time: inode numbers and the times of folders that were just made.
const LISTED: &str =
    "listed() { (cd \"$1\"; find . ! -type d -printf '%p %y %M %s %n %l %TF\\n' | sort); }\n";

fn tree(script: &str) -> Work {
    Work::script(&format!("{LISTED}{script}")).prepared(TREE)
}

const INOTIFY: &str = r#"
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0)
assert libc.inotify_add_watch(fd, b".", 0x100 | 0x2 | 0x8 | 0x40 | 0x80 | 0x200) > 0, os.strerror(ctypes.get_errno())
with open("new", "w") as file: file.write("x")
os.rename("new", "moved"); os.remove("moved")
data, at = os.read(fd, 65536), 0
while at < len(data):
    _, mask, _, size = struct.unpack_from("iIII", data, at)
    print(hex(mask), data[at + 16:at + 16 + size].rstrip(b"\0").decode())
    at += 16 + size
"#;

work! {
    here_documents_and_process_substitution: Work::script("
        cat <<END >text\nhere is $((40 + 2))\nEND
        diff <(sort <<<$'b\\na') <(printf 'a\\nb\\n') && echo same
        paste text <(echo beside); cat <(cat text) - <<<'and a string'
    ").says("here is 42").says("same").says("beside");

    a_pipe_of_100_megabytes: Work::script("
        megabytes() { head -c 104857600 /dev/zero | tr '\\0' x; }; megabytes | sha256sum; megabytes | cat | wc -c
    ")
        .says("104857600");

    /// The output itself goes through the fence's own standard output.
    an_output_of_10_megabytes: Work::script("seq 1400000").says("1399999\n1400000\n");

    reading_the_system: Work::script("
        find /usr/bin /usr/lib/os-release /etc/ssl/certs -xdev ! -type d -printf '%p %s %m\\n' | sort | sha256sum
        (find /usr -xdev -name 'libc.so*' 2>/dev/null || true) | sort; head -n 1 /etc/passwd; stat -c '%F %a' /usr /etc
    ").says("libc.so.6");

    a_deep_folder: Work::script("
        path=$(printf 'level/%.0s' $(seq 300)); mkdir -p \"$path\"; echo bottom >\"$path/file\"; cat \"$path/file\"
        cd \"$path\"; echo relative >file; cd - >/dev/null; find level -type d | wc -l; rm -r level
    ").says("bottom").says("300");

    many_files: Work::script("
        mkdir many; cd many; seq 5000 | xargs touch; ls | wc -l; ls | xargs rm; ls | wc -l
    ").says("5000");

    flock: Work::script("
        exec 9>lock; flock 9; flock -n lock true || echo taken; flock -u 9; flock -n lock echo free
    ").needs(&["flock"]).says("taken").says("free");

    inotify: Work::script("python3 program.py").file("program.py", INOTIFY).needs(&["python3"])
        .says("0x100 new").says("0x80 moved");

    inotifywait: Work::script("
        mkdir watched; coproc inotifywait -m -q -e create,delete --format '%e %f' watched 2>&1
        # Until it says something it may not have begun to watch.
        n=0; until read -t 0.1 -r line <&\"${COPROC[0]}\"; do
            n=$((n + 1)); [ $n -lt 100 ]; touch watched/new; rm watched/new
        done
        echo \"$line\"; kill \"$COPROC_PID\"
    ").needs(&["inotifywait"]).says("CREATE new");

    fifos: Work::script("mkfifo pipe; (echo through a fifo >pipe) & cat pipe; wait; stat -c '%F %a' pipe")
        .says("through a fifo");

    /// How many blocks a file has is the file system's affair; that they are few is not.
    sparse_files: Work::script("
        truncate -s 1G hole; printf end | dd of=hole bs=1 seek=1073741821 conv=notrunc status=none
        stat -c %s hole; [ \"$(du -k hole | cut -f1)\" -lt 1024 ] && echo sparse
        fallocate -l 1M solid; stat -c %s solid
        cp --sparse=always hole copy; cmp hole copy && echo equal; rm hole copy
    ").says("1073741824").says("sparse").says("equal");

    links_modes_and_times: tree("
        cd tree; ln -s one link; ln one hard; stat -c '%h %a %F' one link hard; readlink -f link | sed 's|.*/||'
        chmod -R g-rwx deep/er; chmod 711 one; chmod 000 sparse; stat -c '%a %n' one deep/* sparse
        touch -d '2001-02-03 04:05:06' one; touch -h -d '2002-01-01' link; stat -c '%n %Y' one link
        chown \"$(id -u):$(id -g)\" one; mv one renamed; rm link; chmod 644 sparse
        rmdir deep 2>&1 || true; rm -rf deep; ls -A
    ").says("711 one").says("3 644 regular file").says("rmdir: failed");

    umask_is_kept: Work::script("
        umask; touch plain; mkdir folder; umask 077; touch secret; mkdir inner
        stat -c '%a %n' plain folder secret inner
    ").says("644 plain").says("600 secret");

    cp_archive: tree("cp -a tree copy; listed copy; diff -r --no-dereference tree/deep copy/deep && echo equal")
        .says("equal");

    tar: tree("
        tar -C tree -cf tree.tar --sort=name .; tar -C tree -czf tree.tgz .; mkdir out more
        tar -xpf tree.tar -C out; tar -xzf tree.tgz -C more; listed out; listed more; tar -tf tree.tar
    ").says("./deep/er/same");

    zip_and_unzip: tree("
        (cd tree; zip -qry ../tree.zip one deep); unzip -q tree.zip -d out; listed out; unzip -t tree.zip | tail -n 1
    ").needs(&["zip", "unzip"]).says("No errors detected");

    /// It speaks to itself over a pair of sockets.
    rsync: tree("
        rsync -aH --itemize-changes tree/ copy/; listed copy
        rsync -aHn --itemize-changes --delete tree/ copy/; echo done
    ")
        .needs(&["rsync"]).says("deep/to-one -> ../one").says("done");

    /// With a memory so small that it has to write to the temporary directory.
    sort_of_a_big_file: Work::script("
        seq 400000 | rev >numbers; sort -S 1M numbers | sha256sum; mkdir spill
        TMPDIR=$PWD/spill sort -S 1M -n numbers | sha256sum
        ls spill | wc -l
    ").says("-\n");

    temporary_files: Work::script("
        folder=$(mktemp -d); echo inside >\"$folder/file\"; cat \"$folder/file\"
        cp \"$folder/file\" .; mv \"$folder/file\" moved
        printf '#!/bin/sh\\necho a script in the temporary directory\\n' >\"$folder/run\"
        chmod +x \"$folder/run\"; \"$folder/run\"
        stat -c '%a %F' /tmp /dev/shm; echo shm >/dev/shm/$$; cat /dev/shm/$$; rm -r \"$folder\" /dev/shm/$$
    ").says("inside").says("a script in the temporary directory").says("1777 directory");

    a_home_that_can_be_written: Work::script("
        cd ~; mkdir -p .cache/thing .config .local/share; echo kept >.cache/thing/file
        cat ~/.cache/thing/file; rm -r .cache/thing
    ").says("kept");

    /// The fence has a /tmp of its own, and the workspace lies beneath the real one.
    a_workspace_in_tmp: Work::script("
        echo here >file; cat file; git add file; git status --short; echo there >/tmp/$$; cat /tmp/$$; rm /tmp/$$
    ").prepared("git init -q -b main").in_tmp().needs(&["git"]).says("A  file").says("there");

    devices: Work::script("
        echo gone >/dev/null; head -c 4 /dev/zero | od -An -tx1; head -c 8 /dev/urandom | wc -c
        head -c 8 /dev/random | wc -c
        echo full >/dev/full || echo no space
        { echo out >/dev/stdout; echo err >/dev/stderr; } 2>&1 | cat; cat /dev/fd/3 3<<<'by number'
    ").says("no space").says("by number");
}
