//! Python: what its standard library needs of the system.

use super::{Work, work};

fn python(program: &'static str) -> Work {
    // The bytecode that python leaves behind is named and timed by itself.
    Work::script("PYTHONDONTWRITEBYTECODE=1 python3 program.py")
        .file("program.py", program)
        .needs(&["python3"])
}

const MANAGER: &str = r#"
import multiprocessing as mp

def add(shared, lock, n):
    with lock:
        shared["sum"] = shared.get("sum", 0) + n

if __name__ == "__main__":
    with mp.Manager() as manager:
        shared, lock = manager.dict(), manager.Lock()
        workers = [mp.Process(target=add, args=(shared, lock, n)) for n in range(8)]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
        print("sum", shared["sum"], [worker.exitcode for worker in workers])
"#;

const POOL: &str = r#"
import multiprocessing as mp

def square(n): return n * n

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(3) as pool:
            print(method, sum(pool.map(square, range(1000), chunksize=10)))
"#;

const ASYNCIO: &str = r#"
import asyncio, sys

async def echo(n):
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(3)",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate(f"child {n}".encode())
    return out.decode(), child.returncode

async def main():
    print(await asyncio.gather(*(echo(n) for n in range(4))))
    shell = await asyncio.create_subprocess_shell("echo from a shell; exit 4")
    print(await shell.wait())

asyncio.run(main())
"#;

const PTY: &str = r#"
import os, pty, sys
status = pty.spawn(["bash", "-c", "test -t 0 && test -t 1 && tty >/dev/null && stty size && echo a terminal; exit 5"])
print("ended", os.waitstatus_to_exitcode(status))
"#;

const SQLITE: &str = r#"
import sqlite3, os
files = lambda: sorted(name for name in os.listdir(".") if name.startswith("data"))
a, b = (sqlite3.connect("data.db", timeout=5) for _ in range(2))
print(a.execute("pragma journal_mode=wal").fetchone())
a.execute("create table t (n integer)")
with a: a.executemany("insert into t values (?)", [(n,) for n in range(1000)])
print(b.execute("select sum(n) from t").fetchone(), files())
a.execute("begin immediate")
try: b.execute("pragma busy_timeout=1"); b.execute("begin immediate")
except sqlite3.OperationalError as error: print(error)
a.commit(); a.close(); b.close()
print(files())
"#;

const MMAP: &str = r#"
import mmap, os
from multiprocessing import shared_memory
with open("page", "w+b") as file:
    file.truncate(8192)
    shared = mmap.mmap(file.fileno(), 8192, mmap.MAP_SHARED)
    if os.fork() == 0:
        shared[4096:4101] = b"child"
        os._exit(0)
    os.wait()
    print(shared[4096:4101])
    shared.flush()
    print(os.pread(file.fileno(), 5, 4096))
block = shared_memory.SharedMemory(create=True, size=1 << 20)
again = shared_memory.SharedMemory(name=block.name)
block.buf[:3] = b"shm"
print(bytes(again.buf[:3]))
again.close(); block.close(); block.unlink()
"#;

const LOCKS: &str = r#"
import fcntl, os
def refused(lock, how):
    reader, writer = os.pipe()
    if os.fork() == 0:
        with open("lock", "r+") as file:
            try: lock(file, how | fcntl.LOCK_NB); os.write(writer, b"taken")
            except OSError as error: os.write(writer, os.strerror(error.errno).encode())
        os._exit(0)
    os.wait()
    return os.read(reader, 100).decode()
open("lock", "w").close()
for lock in (fcntl.flock, fcntl.lockf):
    with open("lock", "r+") as file:
        lock(file, fcntl.LOCK_EX)
        print(lock.__name__, refused(lock, fcntl.LOCK_EX))
        lock(file, fcntl.LOCK_UN)
        print(lock.__name__, refused(lock, fcntl.LOCK_EX))
"#;

const TLS: &str = r#"
import ssl
context = ssl.create_default_context()
print(len(context.get_ca_certs()) > 50, ssl.get_default_verify_paths().cafile, ssl.OPENSSL_VERSION)
"#;

const TESTS: &str = "
import tempfile, unittest

class Sums(unittest.TestCase):
    def test_one_and_one(self):
        self.assertEqual(1 + 1, 2)

    def test_temporary_files(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b'x')

    def test_that_fails(self):
        self.assertEqual(1, 2)
";

work! {
    /// It talks to its processes over a unix socket.
    python_multiprocessing_manager: python(MANAGER).says("sum 28 [0, 0, 0, 0, 0, 0, 0, 0]");
    python_multiprocessing_pool: python(POOL).says("forkserver 332833500");
    python_asyncio_subprocesses: python(ASYNCIO).says("('CHILD 3', 3)");
    python_allocates_a_terminal: python(PTY).says("a terminal").says("ended 5");
    python_sqlite_with_a_write_ahead_log: python(SQLITE).says("wal").says("data.db-wal").says("database is locked");
    python_shared_memory: python(MMAP).says("b'child'").says("b'shm'");
    python_file_locks: python(LOCKS).says("flock Resource temporarily unavailable").says("lockf taken");
    python_loads_certificates: python(TLS).says("True ");

    python_unittest: Work::script("
        # How long the tests took differs each time.
        PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -v test_sums 2>&1 | sed -E 's/in [0-9.]+s/in TIME/'
    ").file("test_sums.py", TESTS).needs(&["python3"]).ends(1).says("Ran 3 tests in TIME").says("FAILED (failures=1)");

    python_pytest: Work::script("
        python=python3; $python -c 'import pytest' 2>/dev/null || python=/usr/bin/python3
        # How long the tests took differs each time.
        PYTHONDONTWRITEBYTECODE=1 $python -m pytest -p no:cacheprovider test_sums.py 2>&1 |
            sed -E 's/in [0-9.]+s/in TIME/'
    ").file("test_sums.py", TESTS).needs(&["python3"]).ends(1).says("1 failed, 2 passed in TIME");

    /// Compiled files are left out: pip compiles its own, in the order that its processes come to them.
    python_venv: Work::script("
        python3 -m venv venv; . venv/bin/activate
        python -c 'import sys; print(sys.prefix)'; pip --version; pip list --format=freeze --disable-pip-version-check
        pip install --no-index --disable-pip-version-check nothing-of-that-name 2>&1 | tail -n 1
    ").needs(&["python3"]).ends(1).says("/ws/venv").says("No matching distribution").untidy("venv/lib");
}
