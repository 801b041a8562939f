"""Where a run takes place: its directories, environment, compiled helpers and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import browsers
import clients
import peers
from measure import OURS

PROGRAMS = peers.HERE / "programs"


class BenchStage:
    """One run of the bench."""

    def __init__(self, options, folder, wanted, missing):
        self.folder, self.binary = folder, str(Path(options.binary).resolve())
        self.quick, self.tree, self.wanted, self.missing = options.quick, options.tree, set(wanted), missing
        # The same PATH for all, without a developer's own additions, such as scripts that select a Python.
        self.path = ":".join(dict.fromkeys(["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", str(Path(peers.NODE).parent)]))
        self.browser = browsers.find_browser(self.path)
        self.python = shutil.which("python3", path=self.path) or sys.executable
        # Peers that take part.
        self.present = []
        home = folder / "home"
        home.mkdir()
        self.env = {"PATH": self.path, "HOME": str(home), "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}
        self.env |= browsers.environment(self.browser or "")
        self.wire, self.spawn = (compile_helper(name, folder) for name in ("wire", "spawn"))

    def wants(self, *rows):
        return any(row in self.wanted for row in rows)

    def size(self, full, quick):
        return quick if self.quick else full

    def reduced(self, text):
        """Returns what a row has to say about a quick run."""
        return text if self.quick else ""

    def progress(self, text):
        print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)

    def binary_size(self):
        return f"{Path(self.binary).stat().st_size / (1 << 20):.1f} MB"

    def section(self, name):
        return SectionFolder(self, self.folder / name)


class SectionFolder:
    """Workspace and root of one section, so that sections do not influence each other."""

    def __init__(self, stage, folder):
        self.stage, self.folder = stage, folder
        self.workspace, self.root = folder / "workspace", folder / "root"
        for path in (self.workspace, self.root):
            path.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)

    def places(self, workspace=None):
        return ["--root", str(self.root), "--workspace", str(workspace or self.workspace)]

    def serve(self, *flags, workspace=None):
        return [self.stage.binary, "serve", *self.places(workspace), *flags]

    def sandbox(self, *flags):
        return [self.stage.binary, "sandbox", *self.places(), *flags, "--"]

    def argv(self, name, workspace=None):
        """Returns the command line of a server on stdio."""
        workspace = str(workspace or self.workspace)
        if name == OURS:
            return self.serve(workspace=workspace)
        if name == "server-filesystem":
            return peers.make_argv(name, workspace)
        if name == "desktop-commander":
            return peers.make_argv(name, "--no-onboarding")
        return peers.make_argv(name, *browsers.choose_flags(name, self.stage.browser or "none", self.folder))

    def client(self, name, stack, workspace=None):
        """Returns a client, to be closed with the stack, which starts its server with the first call."""
        client = clients.connect_stdio(self.stage, self.argv(name, workspace))
        stack.callback(client.close)
        return client

    def http_server(self, stack, *flags):
        server = clients.HttpServer(self.serve("--http", "127.0.0.1:0", *flags), self.stage.env)
        stack.callback(server.close)
        return server

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)


def compile_helper(name, folder):
    program = folder / name
    subprocess.run(["gcc", "-O2", "-pthread", "-o", str(program), str(PROGRAMS / f"{name}.c")], check=True)
    return program


def describe_machine():
    """Returns what the figures depend on: processor, memory, kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), os.uname().machine)
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024 / 1024
    return {"processor": processor, "cores": os.cpu_count(), "memory": f"{memory:.0f} GB", "kernel": os.uname().release}
