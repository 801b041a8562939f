"""The steps that every client takes, and the judgement of each: by what the client reported and by the audit log.

A report is a JSON object: `step`, and of `tools`, `text`, `image`, `questions`, `progress`, `error` what the client saw.
"""

import base64
import hashlib
import json
import struct
import zlib

# Columns of the matrix.
CELLS = ["connect", "list", "call", "image", "background", "once", "session", "deny", "progress", "cancel", "error"]
RULES = 'prefix_rule(pattern=["whoami"], decision="prompt", justification="ask first")\n'
NOTE = "the number is 4711\n"
TICKS = "for i in 1 2 3 4; do echo tick $i; sleep 0.4; done"
ASK = "env whoami"

# `answer` is for the client that is asked; `cancel` waits for the file `started` in the workspace, then cancels.
STEPS = [
    {"step": "call", "tool": "file.read", "arguments": {"path": "note.txt"}},
    {"step": "image", "tool": "file.read", "arguments": {"path": "picture.png"}},
    {"step": "background", "tool": "shell.exec", "arguments": {"command": "sleep 60", "yield_ms": 200}},
    {"step": "follow", "tool": "shell.session", "arguments": {"op": "list"}},
    {"step": "once", "tool": "shell.exec", "arguments": {"command": ASK}, "answer": "once"},
    {"step": "session", "tool": "shell.exec", "arguments": {"command": ASK}, "answer": "session"},
    {"step": "again", "tool": "shell.exec", "arguments": {"command": ASK}, "answer": "session"},
    {"step": "deny", "tool": "shell.exec", "arguments": {"command": f"{ASK} --version"}, "answer": "deny"},
    {"step": "progress", "tool": "shell.exec", "arguments": {"command": TICKS}},
    {"step": "error", "tool": "file.read", "arguments": {"path": "../outside"}},
    {"step": "cancel", "tool": "shell.exec", "arguments": {"command": "touch started; sleep 300"}, "cancel": True},
    # Long enough for a notice of the cancellation to be acted upon first.
    {"step": "after", "tool": "shell.exec", "arguments": {"command": "sleep 1"}},
]

OK, FAILED = "ok", "FAILED"
NO_HANDLE = "It speaks 2026-07-28 and sends no session handle, so its calls over HTTP share no session"


def make_picture():
    """A PNG of 64 by 64 pixels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((x * 4, y * 4, 128)[i] for x in range(64) for i in range(3)) for y in range(64))
    head = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PICTURE = make_picture()


def prepare(workspace):
    workspace.mkdir(parents=True)
    (workspace / "note.txt").write_text(NOTE)
    (workspace / "picture.png").write_bytes(PICTURE)


def spell(name):
    """A tool's name as it is compared: clients show dots, underscores or hyphens."""
    return name.replace(".", "_").replace("-", "_")


def is_picture(data):
    """Whether base64 data is the picture. Clients may send it on with other line breaks, but not changed."""
    try:
        return hashlib.sha256(base64.b64decode(data)).digest() == hashlib.sha256(PICTURE).digest()
    except (ValueError, TypeError):
        return False


def group_calls(records):
    """The records of the audit log of each call, in the order in which the calls came."""
    calls = {}
    for record in records:
        if trace := record.get("trace_id"):
            calls.setdefault(trace, []).append(record)
    return [call for call in calls.values() if any(record["event"] == "call.start" for record in call)]


class Judge:
    """Fills the cells of one client over one transport."""

    def __init__(self, reports, records, lacks):
        self.reports = {report["step"]: report for report in reports}
        self.lacks = lacks
        calls = iter(group_calls(records))
        # Reports and calls come in one order; a step that made no call says so.
        self.calls = {report["step"]: next(calls, []) for report in reports
                      if report["step"] not in ("connect", "list") and report.get("called", True)}

    def report(self, step):
        return self.reports.get(step, {})

    def text(self, step):
        return str(self.report(step).get("text") or "")

    def audited(self, step, **wanted):
        return any(all(record.get(key) == value for key, value in wanted.items()) for record in self.calls.get(step, []))

    def stopped(self, step, status):
        return self.audited(step, event="call.stop", status=status)

    def connect(self):
        return "connect" in self.reports

    def list(self):
        names = {spell(name) for name in self.report("list").get("tools", [])}
        return {"file_read", "shell_exec"} <= {next((end for end in ("file_read", "shell_exec") if name.endswith(end)), "")
                                               for name in names}

    def call(self):
        return "4711" in self.text("call") and self.stopped("call", "completed")

    def image(self):
        return is_picture(self.report("image").get("image")) and self.stopped("image", "completed")

    def background(self):
        return self.stopped("background", "running") and "sleep 60" in self.text("follow")

    def answered(self, step, outcome, mode):
        return self.audited(step, event="approval", outcome=outcome, by="client", mode=mode)

    def ran(self, step):
        return "exit_code\":0" in self.text(step).replace(" ", "").replace("\\", "") or "exit code 0" in self.text(step)

    def once(self):
        return self.answered("once", "approved", "once") and self.ran("once")

    def session(self):
        trusted = self.audited("again", event="exec", by="trust") and not self.report("again").get("questions")
        return self.answered("session", "approved", "session") and self.ran("session") and trusted

    def deny(self):
        return self.answered("deny", "denied", "once") and "not allowed" in self.text("deny")

    def progress(self):
        return any("tick" in str(line) for line in self.report("progress").get("progress", []))

    def cancel(self):
        """The call ended before the next one did, so the client told the server and did not just disconnect."""
        def sequence(step):
            return next((record["seq"] for record in self.calls.get(step, []) if record["event"] == "call.stop"), 0)

        in_time = "after" not in self.calls or sequence("cancel") < sequence("after")
        return self.stopped("cancel", "cancelled") and in_time

    def error(self):
        return "outside the workspace" in self.text("error") and "relative to the workspace" in self.text("error")

    def cell(self, name):
        """`ok`, a reason why the client does not offer it, or FAILED with what was seen."""
        if getattr(self, name)():
            return OK
        if name in ("once", "session", "deny") and self.audited(name, event="approval", outcome="denied", by="nobody"):
            return "Denied: it declares no elicitation"
        offered = [question["offered"] for question in self.report("session").get("questions") or [] if "offered" in question]
        if name == "session" and offered and "session" not in offered[0]:
            return NO_HANDLE
        if name == "background" and "persistent session" in self.text("background"):
            return NO_HANDLE
        if name == "cancel" and "after" in self.calls and self.stopped("cancel", "cancelled"):
            return "It sends no notice, so the call ends with the session"
        return (self.connect() and self.lacks.get(name)) or FAILED

    def detail(self, name):
        """What a failed cell was judged by."""
        steps = {"session": ["session", "again"], "background": ["background", "follow"]}.get(name, [name])
        keys = ("event", "outcome", "by", "mode", "status", "ran")
        audit = [{key: record[key] for key in keys if key in record} for step in steps for record in self.calls.get(step, [])]
        return json.dumps({"reported": [self.report(step) for step in steps], "audit": audit})[:1500]

    def cells(self):
        return {name: self.cell(name) for name in CELLS}
