"""Other programs that run a command in a sandbox, made to do the same as ours."""

import json
import subprocess
from pathlib import Path

import peers
from measure import OURS

# Paths in the workspace that no run may change; the same for every sandbox that can be configured.
PROTECTED_FILES = [".git/config"]
PROTECTED_FOLDERS = [".git/hooks", ".codex", ".agents", ".ringfence"]
NATIVE, BUBBLEWRAP = "native", "bwrap"
OUTSIDE = Path("/etc/ringfence-bench")


def prepare_repository(place):
    """Makes the workspace a repository, like most workspaces."""
    subprocess.run(["git", "init", "-q", str(place.workspace)], check=True, stdout=subprocess.DEVNULL)
    for name in PROTECTED_FOLDERS:
        (place.workspace / name).mkdir(parents=True, exist_ok=True)


def bubblewrap_words(stage, place):
    """Returns the mounts of our own sandbox with the flags that Codex uses; without Landlock and seccomp."""
    argv = ["bwrap", "--new-session", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]
    for folder in ("/tmp", "/run", "/dev/shm"):
        argv += ["--tmpfs", folder]
    for folder in (stage.env["HOME"], str(place.workspace)):
        argv += ["--bind", folder, folder]
    for name in PROTECTED_FILES + PROTECTED_FOLDERS:
        argv += ["--ro-bind", str(place.workspace / name), str(place.workspace / name)]
    argv += ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"]
    return [*argv, "--proc", "/proc", "--chdir", str(place.workspace), "--cap-drop", "ALL", "--"]


def sandbox_words(stage, place):
    """Returns, by name, the words that run a command in each sandbox."""
    settings = place.write("srt.json", json.dumps({
        "network": {"allowedDomains": [], "deniedDomains": []},
        "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": PROTECTED_FILES + PROTECTED_FOLDERS},
    }))  # fmt: skip
    return {
        NATIVE: [],
        OURS: place.sandbox(),
        BUBBLEWRAP: bubblewrap_words(stage, place),
        "codex": peers.make_argv("codex", "sandbox", "-c", 'sandbox_mode="workspace-write"', "--"),
        "srt": peers.make_argv("srt", "-s", settings),
    }


def make_environment(stage, name):
    """Returns the environment of a sandbox: Codex refuses a home of its own below a directory for temporary files."""
    if name != "codex":
        return stage.env
    home = peers.FOLDER / "codex-home"
    home.mkdir(exist_ok=True)
    return {**stage.env, "CODEX_HOME": str(home)}


def require_confinement(place, prefix, env):
    """Raises if a sandbox does not run or does not confine; its figure would be meaningless."""
    inside = place.workspace / "inside"
    inside.unlink(missing_ok=True)
    words = [*prefix, "sh", "-c", f"echo in >inside; echo out 2>/dev/null >{OUTSIDE}; exit 7"]
    ended = subprocess.run(words, cwd=place.workspace, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    if ended.returncode != 7:
        raise RuntimeError(f"exit code {ended.returncode}, not 7: {ended.stderr.decode(errors='replace').strip()[-200:]}")
    if OUTSIDE.exists():
        OUTSIDE.unlink()
        raise RuntimeError("it let /etc be written")
    if not inside.exists():
        raise RuntimeError("it did not let the workspace be written")
