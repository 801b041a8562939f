"""The clients' packages from npm and PyPI: pinned, and installed below .node/clients/ on first use."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = HERE.parent.parent / ".node/clients"

# Several clients need a newer Node than distributions ship; npm provides it.
NODE = "node@24.21.0"
NPM = {
    "ai-sdk": ["@ai-sdk/mcp@2.0.99"],
    "claude-code": ["@anthropic-ai/claude-code@2.1.327"],
    "codex": ["@openai/codex@0.169.0"],
    "copilot": ["@github/copilot@1.0.102"],
    "gemini": ["@google/gemini-cli@0.61.0"],
    "inspector": ["@modelcontextprotocol/inspector@2.12.0"],
    "mcp-remote": ["mcp-remote@0.15.1"],
    "mcporter": ["mcporter@0.12.3"],
    "opencode": ["opencode-ai@1.18.33"],
    "qwen": ["@qwen-code/qwen-code@0.24.4"],
    "supergateway": ["supergateway@4.0.0"],
    "typescript-1": ["@modelcontextprotocol/sdk@1.32.2"],
    "typescript-2": ["@modelcontextprotocol/client@2.4.0"],
}
PYPI = {
    "fastmcp": ["fastmcp==4.0.11"],
    "langchain": ["langchain-mcp-adapters==0.3.2"],
    "openai-agents": ["openai-agents==0.24.0"],
    "python-1": ["mcp==1.30.0"],
    "python-2": ["mcp==2.3.0"],
}


def version_of(package):
    """The version in a pinned name such as `@scope/name@1.2.3` or `name==1.2.3`."""
    return package.rpartition("==" if "==" in package else "@")[2]


def run_installer(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"cannot install: {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def install_into(home, pinned, *commands):
    """Runs the commands, unless this selection is already installed. Several tests may do so at once; one installs."""
    home.mkdir(parents=True, exist_ok=True)
    with open(home / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = home / "installed"
        if not mark.exists() or mark.read_text() != pinned:
            print(f"clients: installing {pinned} below .node/clients/", flush=True)
            for command in commands:
                run_installer(*command)
            mark.write_text(pinned)
    return home


def npm_install(name, packages):
    home = PACKAGES / name
    words = ["npm", "install", "--prefix", home, "--save-exact", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]
    return install_into(home, " ".join(packages), [*words, *packages])


def install_node():
    """Installs Node, and puts it first on PATH, for installation scripts and clients."""
    program = npm_install("node", [NODE]) / "node_modules/node/bin"
    os.environ["PATH"] = f"{program}:{os.environ['PATH']}"
    return program / "node"


def install_npm(name):
    """Installs a client from npm, next to the adapters, which import it from there. Returns its directory."""
    home = npm_install(name, NPM[name])
    for adapter in (HERE / "adapters").glob("*.mjs"):
        shutil.copy(adapter, home)
    return home


def install_pypi(name):
    """Installs a client from PyPI in an environment of its own, and returns the environment's Python."""
    home = PACKAGES / name
    pip = [home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *PYPI[name]]
    return install_into(home, " ".join(PYPI[name]), ["python3", "-m", "venv", home], pip) / "bin/python"
