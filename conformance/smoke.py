#!/usr/bin/env python3
"""Smoke test: real Codex releases work with a ringfence binary, step by step.

    conformance/smoke.py [--short] [--runs N] [--versions V,V] [--keep] [target/debug/ringfence]

Every release runs over stdio, over HTTP, and over HTTP with a JWT, three times each: first `codex exec`, then the TUI
in tmux. The model is a script on the loopback (codex_model.py). Every step is checked in what Codex reported and in
the audit log. The exit code is 1 if a check failed, or if less than 95 % of the calls that are meant to succeed did so
at the first attempt. --short is one run of the pinned release, over stdio and over HTTP with a JWT.
"""

import argparse
import collections
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import codex_model
from codex_run import Conversation, make_token, wait_for

HERE = Path(__file__).resolve().parent
OLD_VERSIONS = ["0.97.0", "0.120.0", "0.142.5"]
WAYS = {"stdio": ("stdio", False), "http": ("http", False), "http+jwt": ("http", True)}
SECRET = "the smoke test signs its tokens with this"
RULES = """
prefix_rule(pattern=["uname"], decision="forbidden", justification="told so")
prefix_rule(pattern=["whoami"], decision="prompt", justification="ask first")
"""
PAGE = "mkdir www; echo '<title>Hello</title>' >www/index.html; cd www; exec python3 -m http.server 8000 --bind 127.0.0.1"
CODE = "n = [int(x) for x in open('in.txt')]\nopen('out.txt', 'w').write(str(sum(n)))\nsum(n)"
TOOLS = "browser_navigate browser_screenshot code_exec file_list file_read file_replace file_search file_write shell_exec"

# A step: its name, whether the call is meant to succeed, the call, and regular expressions that what Codex reported
# and what the audit log says must match.
Step = collections.namedtuple("Step", "name succeeds tool arguments reported audited")
DONE = r"call\.stop +{} +completed"


def good(name, tool, reported, **arguments):
    return Step(name, True, tool, arguments, reported, DONE.format(tool.replace("_", r"\.")))


def shell(name, command, reported, audited, succeeds=False, **more):
    return Step(name, succeeds, "shell_exec", {"command": command} | more, reported, audited)


EXEC_STEPS = [
    good("list", "file_list", r"src/main\.rs", path=".", depth=0),
    good("read", "file_read", r"answer\(41\)", path="src/main.rs"),
    good("write", "file_write", r'"created":true', path="in.txt", content="3\n4\n5\n"),
    good("search", "file_search", r'"line":2', pattern=r"answer\(\d+\)"),
    good("edit", "file_replace", r"src/main\.rs", path="src/main.rs", edits=[{"old": "41", "new": "42"}]),
    good("shell", "shell_exec", r'"stdout":"5\\n4\\n3\\n"', command="sort -r in.txt | tee sorted.txt"),
    good("code", "code_exec", r'"result\\*":\\*"12', language="python", code=CODE),
    good("read back", "file_read", "12", path="out.txt"),
    shell("background", PAGE, r'"status":"running"', r"call\.stop +shell\.exec +running", True, yield_ms=500),
    good("browser", "browser_navigate", r'"title":"Hello"', url="http://localhost:8000/"),
    good("screenshot", "browser_screenshot", r"shot\.png|input_image|image", path="shot.png"),
    shell("forbidden, nested", "bash build.sh", "uname: forbidden: told so", r"exec +shell\.exec +refused .*uname.*by rule"),
    shell("prompt", "env whoami", "whoami: not allowed", r"approval +shell\.exec +denied .*by (client|nobody)"),
    Step("boundary, read", False, "file_read", {"path": "../root/audit/key"}, '"reason":"outside_workspace"',
         r"call\.stop +file\.read +denied .*outside_workspace"),
    shell("boundary, command", "touch /etc/ringfence-smoke", "Read-only file system", r"call\.stop +shell\.exec +failed"),
    shell("timeout", "echo early; sleep 300", r'"status":"timed_out".*early', r"call\.stop +shell\.exec +timed_out .*by deadline",
          timeout_ms=1000),
    good("after all that", "file_read", r"answer\(42\)", path="src/main.rs"),
]

# In the TUI a step also has an answer: the label of a menu entry, or None if no one is asked.
ASKED = r"approval +shell\.exec +{} .*by {}"
ONCE, SESSION, DENY = "once", "session", "deny"
LABELS = {ONCE: r"(\d)\. (?:Allow  |Yes,)", SESSION: r"(\d)\. Allow for this session", DENY: r"(\d)\. (?:Deny|No, but)"}


def tui_steps(version):
    """The steps, each with its answer. Before 0.119 the menu of Codex cannot allow anything for the session."""
    root = r'"status":"completed","exit_code":0,"stdout":"[a-z]'
    once = shell("accept once", "env whoami", root, ASKED.format("approved", "client, once"), True)
    if version < (0, 119):
        later = [(once._replace(name="asks again (no session before 0.119)"), ONCE)]
    else:
        later = [
            (shell("accept for session", "env whoami", root, ASKED.format("approved", "client, session"), True), SESSION),
            (shell("does not ask again", "env whoami", root, r"exec +shell\.exec +.*whoami.*by trust", True), None),
        ]
    deny = shell("deny", "env whoami --version", "whoami: not allowed", ASKED.format("denied", "client, once"))
    return [(once, ONCE), *later, (deny, DENY)]


def interrupt_step(version):
    """Before 0.160 Codex does not tell a server about an interrupt, so the call runs until its own time limit."""
    if version < (0, 160):
        return shell("interrupt (no notice before 0.160)", "sleep 300", "interrupted", r"call\.stop +shell\.exec +(timed_out|cancelled)",
                     timeout_ms=8000)
    return shell("interrupt", "sleep 300", "interrupted", r"call\.stop +shell\.exec +cancelled", timeout_ms=60000)


class Tally:
    """Rows of the tables, and their sum."""

    def __init__(self):
        self.meant = self.succeeded = self.checks = self.failed = 0

    def title(self, text):
        print(f"\n{text}\n  {'step':38} {'Codex reported':46} {'audit':58} ok", flush=True)

    def row(self, step, reported, audited, note=""):
        """Checks one step against what Codex reported and the lines of the audit log about the call."""
        ok = re.search(step.reported, reported) is not None and re.search(step.audited, audited) is not None
        self.checks += 1
        self.failed += not ok
        if step.succeeds:
            self.meant += 1
            self.succeeded += ok
        line = next((line for line in audited.splitlines() if re.search(step.audited, line)), audited[-300:])
        said = re.search(step.reported, reported)
        cells = (said[0] if said else reported[-300:]), re.sub(r"^\S+ \S+ +|\S+/s-\S+ +|[0-9a-f]{32} *", "", line)
        cells = [" ".join(cell.split())[: 300 if not ok else width] for cell, width in zip(cells, (45, 57))]
        print(f"  {step.name:38} {cells[0]:46} {cells[1]:58} {'ok' if ok else 'FAILED'}{note}", flush=True)

    def check(self, name, ok, detail=""):
        self.row(Step(name, False, None, None, "^yes", "^yes"), "yes" if ok else f"no {detail}", "yes" if ok else "no")


def reports(conversation):
    """What Codex showed the model as the result of each call, by the number of the step."""
    requests = [json.loads(line) for line in (conversation.at / "requests").read_text().splitlines()]
    requests = [request for request in requests if request.get("tools")]
    items = requests[-1]["input"] if requests else []
    results = {item["call_id"]: codex_model.text_of(item["output"]) for item in items if item["type"] == "function_call_output"}
    tools = {name for name, _, _ in codex_model.tools_of(requests[0]["tools"])} if requests else set()
    return tools, {int(call.removeprefix("call_")): text for call, text in results.items()}


def audit_of_calls(conversation):
    """The lines of the audit log, one text for each call, in the order in which the calls came."""
    calls = {}
    for line in conversation.audit().splitlines():
        if trace := re.search(r" ([0-9a-f]{32})\b", line):
            calls[trace[1]] = calls.get(trace[1], "") + line + "\n"
    return list(calls.values())


def prepare(workspace):
    (workspace / "src").mkdir(parents=True)
    (workspace / "src/main.rs").write_text("fn main() {\n    answer(41)\n}\n")
    (workspace / "build.sh").write_text("env uname -s\n")


def exec_run(tally, conversation, way):
    """One `codex exec` through all steps."""
    prepare(conversation.workspace)
    with conversation:
        code = conversation.exec("--json", "--sandbox", "workspace-write")
    conversation.wait_for_end()
    tools, results = reports(conversation)
    tally.check("discover", set(TOOLS.split()) <= tools, f"{sorted(tools)}, exit code {code}")
    audit = audit_of_calls(conversation)
    for number, step in enumerate(EXEC_STEPS):
        tally.row(step, results.get(number, "nothing"), audit[number] if number < len(audit) else "nothing")
    tally.check("Codex ends well", code == 0 and "the end" in (conversation.at / "events").read_text(), f"exit code {code}")
    tally.check("the picture is a PNG", (conversation.workspace / "shot.png").exists()
                and (conversation.workspace / "shot.png").read_bytes()[:4] == b"\x89PNG")
    principal = "smoke" if way == "http+jwt" else ""
    tally.check("the audit names the caller", all(f" {principal}" in lines for lines in audit), conversation.audit()[:300])
    tally.check("the audit log is intact", subprocess.run(
        [conversation.binary, "audit", "verify", "--root", conversation.root], capture_output=True).returncode == 0)


class Terminal:
    """Codex's TUI in a tmux of its own."""

    def __init__(self, conversation):
        self.tmux = ["tmux", "-f", "/dev/null", "-S", str(conversation.at / "tmux")]
        environment = conversation.codex_environment() | {"TERM": "xterm-256color"}
        words = [f"{name}={value}" for name, value in environment.items()]
        self.run("new-session", "-d", "-x", "160", "-y", "60", "-c", str(conversation.workspace), "env", "-i", *words,
                 conversation.codex, "--sandbox", "workspace-write", "--ask-for-approval", "on-request")

    def run(self, *words):
        return subprocess.run([*self.tmux, *words], capture_output=True, text=True, check=True).stdout

    def screen(self):
        return self.run("capture-pane", "-p")

    def press(self, *keys):
        for key in keys:
            self.run("send-keys", key)

    def choose(self, answer, question):
        """Moves to an entry of the menu and confirms it, until the question is gone: a recent Codex ignores keys for a
        moment after it has opened a menu, so each key depends on what the screen shows."""
        def answered():
            screen = self.screen()
            if question not in "".join(screen.split()):
                return True
            entry, marked = re.search(LABELS[answer], screen), re.search(r"› (\d)\.", screen)
            if entry and marked:
                self.press("Enter" if entry[1] == marked[1] else "Down")
                with contextlib.suppress(TimeoutError):
                    wait_for("a new screen", lambda: self.screen() != screen, 1)
            return False

        wait_for(f"the answer {answer}", answered)

    def close(self):
        subprocess.run([*self.tmux, "kill-server"], capture_output=True)


def tui_run(tally, conversation, version):
    """One session of the TUI: a human answers questions, then interrupts a call."""
    steps, interrupt = tui_steps(version), interrupt_step(version)
    interrupted = len(steps)

    def calls():
        return audit_of_calls(conversation)

    def approvals():
        return conversation.audit().count(" approval ")

    with conversation:
        terminal = Terminal(conversation)
        screen = ""
        try:
            wait_for("the prompt of Codex", lambda: re.search("^ *›", terminal.screen(), re.M))
            terminal.run("send-keys", "-l", "Follow the plan.")
            wait_for("the text in the prompt", lambda: "Follow the plan." in terminal.screen())
            # Codex takes a line end that follows typing at once for part of a pasted text.
            time.sleep(0.5)
            terminal.press("Enter")
            asked = 0
            for number, (step, answer) in enumerate(steps):
                wait_for(f"the call of step {step.name}", lambda: len(calls()) > number)
                if answer:
                    trace = re.search("[0-9a-f]{32}", calls()[number])[0]
                    wait_for(f"the question of step {step.name}", lambda: trace in "".join(terminal.screen().split()))
                    terminal.choose(answer, trace)
                    asked += 1
                    wait_for(f"the answer of step {step.name}", lambda: approvals() >= asked)
            wait_for("the call to interrupt", lambda: len(calls()) > interrupted)
            terminal.press("Escape")
            wait_for("the notice of the interrupt", lambda: "interrupted" in terminal.screen())
            screen = terminal.screen()
            wait_for("the end of the interrupted call", lambda: "call.stop" in calls()[interrupted])
        except (TimeoutError, subprocess.CalledProcessError) as error:
            print(f"  {error}\n{screen or terminal.screen()}")
        finally:
            terminal.close()
    _, results = reports(conversation)
    audit = [*calls(), *["nothing"] * (interrupted + 1)]
    for number, (step, _) in enumerate(steps):
        tally.row(step, results.get(number, "nothing"), audit[number])
    tally.row(interrupt, screen, audit[interrupted])


def refused_run(tally, conversation):
    """A token that another secret signed: Codex says that the server refused it, and nothing is called."""
    with conversation:
        code = conversation.exec("--json", "--sandbox", "workspace-write")
    said = (conversation.at / "log").read_text() + (conversation.at / "events").read_text()
    # Older releases go on without a server that they require.
    is_refused = code != 0 or re.search("401|server's key", said)
    tally.check("a wrong token is refused", is_refused and not audit_of_calls(conversation), f"{code} {said[-300:]}")


def install(version=None):
    words = [HERE / "codex-install.sh", *([version] if version else [])]
    codex = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    version = subprocess.run([codex, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return version, codex


def newest():
    """The newest release on npm, or None without a network: then it is the pinned one."""
    found = subprocess.run(["npm", "view", "@openai/codex", "version"], capture_output=True, text=True)
    if found.returncode == 0:
        return found.stdout.strip()
    print("npm cannot be reached: the pinned release stands for the newest", file=sys.stderr)
    return None


def smoke(tally, binary, codex, version, way, at):
    """One run of one release over one transport."""
    numbers = tuple(map(int, version.split(".")[:2]))
    transport, auth = WAYS[way]

    def conversation(name, steps, secret=SECRET):
        plan = [{"call": step.tool, "arguments": step.arguments} for step in steps] + [{"say": "the end"}]
        claims = {"sub": "smoke", "aud": "ringfence", "exp": int(time.time()) + 3600}
        keys = {"secret": SECRET, "token": make_token(secret, **claims)} if auth else {}
        return Conversation(at / name, binary, codex, plan, transport=transport, rules=RULES, version=numbers, **keys)

    exec_run(tally, conversation("exec", EXEC_STEPS), way)
    steps = [step for step, _ in tui_steps(numbers)] + [interrupt_step(numbers)]
    tui_run(tally, conversation("tui", steps), numbers)
    if auth:
        refused_run(tally, conversation("refused", [], secret="another secret, which is just as long as it"))


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--short", action="store_true", help="one run of the pinned release")
    words.add_argument("--runs", type=int, default=3, help="runs in a row (default: 3)")
    words.add_argument("--versions", help="releases of Codex, with commas between them")
    words.add_argument("--ways", default=",".join(WAYS), help="of stdio, http and http+jwt")
    words.add_argument("--keep", action="store_true", help="keep the files of all runs")
    words.add_argument("binary", nargs="?", default=HERE.parent / "target/debug/ringfence")
    given = words.parse_args()
    binary = Path(given.binary).resolve(strict=True)
    versions = given.versions.split(",") if given.versions else [None] if given.short else [*OLD_VERSIONS, newest()]
    ways = ["stdio", "http+jwt"] if given.short else given.ways.split(",")
    installed = [install(version) for version in versions]

    tally, scratch = Tally(), Path(tempfile.mkdtemp(prefix="smoke-"))
    try:
        for version, codex in installed:
            for way in ways:
                for run in range(1, (1 if given.short else given.runs) + 1):
                    tally.title(f"Codex {version}, {way}, run {run}")
                    smoke(tally, binary, codex, version, way, scratch / f"{version}-{way}-{run}")
    finally:
        print(f"\nfiles: {scratch}") if given.keep else shutil.rmtree(scratch, ignore_errors=True)
    share = 100 * tally.succeeded / tally.meant
    print(f"\n{tally.checks - tally.failed} of {tally.checks} checks passed")
    print(f"first attempts: {tally.succeeded} of {tally.meant} ({share:.1f} %)")
    return 1 if tally.failed or share < 95 else 0


if __name__ == "__main__":
    sys.exit(main())
