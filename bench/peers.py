"""The programs that take part beside ringfence: where they come from, how they are started, and their versions."""

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
FOLDER = HERE / ".peers"
MODULES = FOLDER / "node_modules"
VENV = FOLDER / "python"
NODE = shutil.which("node") or "node"
PATIENCE = 300
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class Package(NamedTuple):
    """A package of npm, the file that starts it, and the programs that it needs."""

    name: str
    file: str
    programs: tuple = ()


# Of agent-browser and codex the binaries themselves, without the scripts that npm starts them through.
PACKAGES = {
    "agent-browser": Package("agent-browser", f"bin/agent-browser-{sys.platform}-{MACHINE}"),
    "server-filesystem": Package("@modelcontextprotocol/server-filesystem", "dist/index.js"),
    "playwright": Package("@playwright/mcp", "cli.js"),
    "chrome-devtools": Package("chrome-devtools-mcp", "build/src/bin/chrome-devtools-mcp.js"),
    "desktop-commander": Package("@wonderwhy-er/desktop-commander", "dist/index.js"),
    "codex": Package("@openai/codex", f"../codex-linux-{MACHINE}/vendor/{platform.machine()}-unknown-linux-musl/bin/codex"),
    "srt": Package("@anthropic-ai/sandbox-runtime", "dist/cli.js", ("bwrap", "socat", "rg")),
    "codex-shell-tool-mcp": Package("@openai/codex-shell-tool-mcp", "bin/mcp-server.js"),
    "supergateway": Package("supergateway", "dist/index.js"),
    "mcp-proxy (npm)": Package("mcp-proxy", "dist/bin/mcp-proxy.mjs"),
}
BINARIES = ("agent-browser", "codex")
# From PyPI, and from crates.io: the latter takes minutes, so it takes part only if it is there.
PYPI, CRATE = "mcp-proxy (PyPI)", "mcp-proxy (crate)"
PYPI_PROGRAM = VENV / "bin/mcp-proxy"
CRATE_PROGRAM = FOLDER / "bin/mcp-proxy"
# Programs of the system. `native` and `cat` are always there.
PROGRAMS = ("rg", "bwrap")
# Takes part only if it is named.
OPTIONAL = ("desktop-commander",)


def make_argv(name, *flags):
    """Returns the command line of a peer."""
    if name == PYPI:
        return [str(PYPI_PROGRAM), *flags]
    if name == CRATE:
        return [str(CRATE_PROGRAM), *flags]
    program = [str(MODULES / PACKAGES[name].name / PACKAGES[name].file)]
    return [*(program if name in BINARIES else [NODE, *program]), *flags]


def install_peers(wanted):
    """Installs the peers that are missing, each in its current version. Returns why others cannot take part, by name."""
    FOLDER.mkdir(exist_ok=True)
    if not (FOLDER / "package.json").exists():
        (FOLDER / "package.json").write_text('{"private": true}\n')
    missing = {}
    for name in wanted:
        try:
            if reason := find_obstacle(name):
                missing[name] = reason
        except (subprocess.SubprocessError, OSError) as error:
            missing[name] = f"cannot be installed ({' '.join(str(error).split())[-150:]})"
    return missing


def find_obstacle(name):
    """Installs one peer; returns what prevents it from taking part."""
    if name in PACKAGES:
        lacking = [program for program in PACKAGES[name].programs if not shutil.which(program)]
        if lacking:
            return f"needs {', '.join(lacking)}: conformance/packages.sh --bench installs it"
        if not (MODULES / PACKAGES[name].name).exists():
            # By tag: npm would choose an old version for an old Node, and some of these do not need Node to run.
            npm = ["npm", "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel", "error"]
            install(name, [*npm, f"{PACKAGES[name].name}@latest"])
    if name == PYPI and not PYPI_PROGRAM.exists():
        install(name, [sys.executable, "-m", "venv", str(VENV)])
        install(name, [str(VENV / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "mcp-proxy"])
    if name == CRATE and not CRATE_PROGRAM.exists():
        return "not installed: bench/README.md says how"
    if name in PROGRAMS and not shutil.which(name):
        return "not installed: conformance/packages.sh --bench installs it"
    return None


def install(name, words):
    print(f"installing {name}: {words[-1]}", file=sys.stderr)
    subprocess.run(words, cwd=FOLDER, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def read_version(name):
    """Returns the version according to npm, because some servers announce another one, or what the program prints."""
    if name in PACKAGES:
        return json.loads((MODULES / PACKAGES[name].name / "package.json").read_text())["version"]
    if name == PYPI:
        words = [str(VENV / "bin/pip"), "show", "mcp-proxy"]
        lines = read_output(words).splitlines()
        return next((line.split()[1] for line in lines if line.startswith("Version:")), "?")
    if name == CRATE:
        # The program does not print its version; cargo has recorded it.
        found = re.search(r'"mcp-proxy (\S+) ', (FOLDER / ".crates.toml").read_text())
        return found[1] if found else "?"
    return read_program_version(name)


def read_program_version(program):
    """Returns the first word with a digit that a program prints about its version."""
    words = read_output([program, "--version"]).split()
    return next((word.strip("v,()") for word in words if any(letter.isdigit() for letter in word)), "?")


def read_output(words):
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
