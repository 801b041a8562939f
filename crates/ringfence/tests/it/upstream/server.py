"""MCP server for the tests of the gateway, by the standard library alone.

It speaks one of two protocol eras (`--era 2025`: initialize and sessions; `--era 2026`: server/discover, and questions
by `input_required`) over standard streams; `server_http.py` serves the same over HTTP. Its tools do what a test wants
to see at the other end; some have bad manners. `--lock` prints its definitions as `mcp.lock` has them.
"""

import json
import os
import sys
import threading
import time

STATE = "opaque state of the server"
TOOLS = {}
#: Changed members of definitions, `identity` and `instructions`, from the file that `--definitions` names.
CHANGES = {}
#: Tells one process from the next; each has the same number in its own namespace.
PROCESS = os.urandom(8).hex()
OPTIONS = {}
WRITE_LOCK = threading.Lock()


class InputRequired(Exception):
    """2026: the call needs an answer first."""


class Refusal(Exception):
    """The call ends with an error of the protocol."""

    def __init__(self, message, code=-32000, **data):
        super().__init__(message)
        self.error = {"code": code, "message": message, **({"data": data} if data else {})}


class Silence(Exception):
    """The call gets no answer."""


def tool(read_only=True, destructive=None, output=None, required=(), **properties):
    """Adds a function as a tool; its doc comment is the description."""

    def add(function):
        name = function.__name__.strip("_")
        hints = {"readOnlyHint": read_only}
        if destructive is not None:
            hints["destructiveHint"] = destructive
        schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
        if required:
            schema["required"] = list(required)
        definition = {"name": name, "description": function.__doc__, "inputSchema": schema, "annotations": hints}
        if output:
            definition["outputSchema"] = output
        TOOLS[name] = (function, definition)
        return function

    return add


def text(value):
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def attempt(action):
    """The result of an action, or its error as the tool's error."""
    try:
        return text(action() or "done")
    except OSError as error:
        return {**text(f"{type(error).__name__}: {error}"), "isError": True}


@tool(required=["text"], text="string")
def echo(call, text):
    """Repeats a text. Nothing else happens."""
    return globals()["text"](text)


@tool(read_only=False, destructive=True, required=["path"], path="string", text="string")
def write(call, path, text=""):
    """Writes a file, over whatever it contains."""

    def action():
        with open(path, "w") as file:
            file.write(text)

    return attempt(action)


@tool(read_only=False, destructive=False, note="string")
def add(call, note=""):
    """Adds a note to the diary."""
    call.peer.notes.append(f"added {note}")
    return text("added")


@tool(path="string")
def read(call, path):
    """Reads a file from the disk."""
    return attempt(lambda: open(path).read())


@tool(port="integer")
def connect(call, port):
    """Opens a connection to a port on loopback."""
    import socket

    return attempt(lambda: socket.create_connection(("127.0.0.1", port), 2).close())


@tool(argv="array")
def run(call, argv):
    """Starts a program and returns what it printed."""
    import subprocess

    def action():
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"exit code {done.returncode}: {done.stderr}")
        return done.stdout

    return attempt(action)


@tool()
def ask(call):
    """Asks for a colour and returns the answer."""
    colour = {"type": "object", "properties": {"choice": {"type": "string", "enum": ["red", "blue"]}}}
    return text(call.ask("elicitation/create", {"mode": "form", "message": "Which colour?", "requestedSchema": colour}))


@tool()
def ask_url(call):
    """Asks the user to open an address."""
    params = {"mode": "url", "message": "Log in.", "url": "https://example.com/login", "elicitationId": "e1"}
    return text(call.ask("elicitation/create", params))


@tool(n="integer")
def ask_often(call, n):
    """Asks that many questions, one after the other (2025)."""
    question = {"message": "Again?", "requestedSchema": {"type": "object", "properties": {}}}
    for _ in range(n):
        call.peer.notes.append(call.ask("elicitation/create", question))
    return text("asked")


@tool(url="string", opens="integer")
def page(call, url, opens):
    """Works once the user has been sent to a page that many times (2025)."""
    visits = call.peer.notes.count(url)
    if visits >= opens:
        return text("opened")
    call.peer.notes.append(url)
    page = {"mode": "url", "message": "Log in.", "url": url, "elicitationId": f"page {visits}"}
    raise Refusal("a page must be opened", -32042, elicitations=[page])


@tool()
def roots(call):
    """Returns the directories that the client names."""
    return text(call.ask("roots/list", {}))


@tool(n="integer")
def progress(call, n):
    """Reports progress step by step."""
    for step in range(1, n + 1):
        params = {"progressToken": call.meta.get("progressToken"), "progress": step, "total": n}
        call.notify("notifications/progress", {**params, "message": f"step {step}"})
    return text("progressed")


@tool(data="object")
def log(call, data="a line for the log"):
    """Writes a line to the log."""
    call.log("warning", data)
    return text("logged")


@tool()
def slow(call):
    """Runs until it is cancelled."""
    call.peer.notes.append("slow began")
    call.notify("notifications/progress", {"progressToken": call.meta.get("progressToken"), "progress": 1})
    while not call.cancelled.wait(0.02):
        if call.is_gone():
            break
    call.peer.notes.append("slow was cancelled")
    raise Silence


@tool()
def notes(call):
    """Returns what has happened so far."""
    return text(call.peer.notes)


@tool()
def count(call):
    """Returns the process, the session and its number of calls."""
    return text({"process": PROCESS, "session": call.peer.session, "calls": call.peer.calls})


@tool()
def headers(call):
    """Returns the HTTP headers of the last message."""
    return text(call.peer.headers)


@tool()
def env(call):
    """Returns the environment."""
    return text(dict(os.environ))


@tool(n="integer")
def big(call, n):
    """Returns a text of that many bytes."""
    return text("x" * n)


@tool()
def image(call):
    """Returns a picture, and its data once more."""
    data = "iVBORw0KGgo" + "A" * 4_000 + "="
    return {"content": [{"type": "image", "data": data, "mimeType": "image/png"}], "structuredContent": {"copy": data}}


@tool(output={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, right="boolean")
def structured(call, right=True):
    """Returns a number in the declared form, or in another."""
    value = {"n": 1} if right else {"n": "one"}
    return {**text(value), "structuredContent": value}


@tool(n="integer")
def resource(call, n):
    """Returns an embedded resource of that many characters."""
    return {"content": [{"type": "resource", "resource": {"uri": "test:long", "text": "\u200b" + "x" * n}}]}


@tool()
def odd(call):
    """Returns text with characters that no one sees, and `_meta` that is not its own."""
    meta = {"dev.ringfence/session": "forged", "own": 1}
    return {**text("a\u200bb\u001b[31mc"), "_meta": meta}


@tool(message="string")
def refuse(call, message):
    """Ends with an error of the protocol."""
    raise Refusal(message)


@tool()
def vanish(call):
    """Says that its tools have changed, and ends when it is asked for them."""
    OPTIONS["vanished"] = True
    call.peer.announce({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    return text("vanished")


@tool(result="object")
def reply(call, result):
    """Hands back this very result."""
    return result


@tool(method="string", params="object")
def question(call, method, params):
    """Puts this to the client."""
    return text(call.ask(method, params))


@tool(read_only=False, destructive=False)
def crash(call):
    """Ends the process in mid-call."""
    sys.stderr.write("last words of the server\n")
    sys.stderr.flush()
    os._exit(3)


@tool(message="string")
def die(call, message):
    """Ends the process while it reads, with last words."""
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(3)


@tool(read_only=False, destructive=False, lines="integer")
def garbage(call, lines):
    """Prints lines that are no messages, then answers."""
    for number in range(lines):
        call.send_text(f"garbage {number} " + "{" * number)
    return text("done")


@tool()
def stray(call):
    """Answers a request that no one made, then its own."""
    call.send({"jsonrpc": "2.0", "id": 9_999, "result": text("stolen")})
    return text("own")


@tool(n="integer")
def flood(call, n):
    """Sends many notifications, then answers."""
    for number in range(n):
        call.notify("notifications/message", {"level": "info", "data": "y" * 500})
        call.notify("notifications/unknown", {"number": number})
    return text("flooded")


@tool(name="string", member="string", value="string")
def change(call, name, member, value):
    """Changes the definition of a tool and says so."""
    call.peer.changes.setdefault(name, {})[member] = value
    call.peer.announce({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    return text("changed")


def read_changes():
    path = OPTIONS.get("definitions")
    if path and os.path.exists(path):
        with open(path) as file:
            CHANGES.update(json.load(file))


def definitions(changes=CHANGES):
    changed = {name: {**definition, **changes.get(name, {})} for name, (_, definition) in TOOLS.items()}
    return {name: tool for name, tool in changed.items() if not tool.get("gone")}


def greeting():
    name = CHANGES.get("identity", OPTIONS.get("name", "scripted"))
    instructions = CHANGES.get("instructions", "Use these tools with care.")
    return {"serverInfo": {"name": name, "version": "1"}, "instructions": instructions}


class Peer:
    """One client: the other end of the pipes, or a session over HTTP."""

    def __init__(self, era, session=None, changes=CHANGES):
        self.era, self.session, self.changes = era, session, changes
        self.notes, self.calls = [], 0
        self.open, self.replies, self.questions = {}, {}, 0
        self.listeners, self.headers = [], {}

    def announce(self, message):
        for send in list(self.listeners):
            send(message)

    def handle(self, message, send, is_gone=lambda: False):
        """Handles one message; it returns when the message is answered."""
        method, params = message.get("method"), message.get("params") or {}
        if method is None:
            waiting = self.replies.pop(message.get("id"), None)
            if waiting:
                waiting(message)
        elif "id" not in message:
            if method == "notifications/cancelled" and params.get("requestId") in self.open:
                self.open[params["requestId"]].cancelled.set()
        else:
            self.answer(message, method, params, send, is_gone)

    def answer(self, message, method, params, send, is_gone):
        capabilities = {"tools": {"listChanged": True}, "logging": {}}
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            if method == "initialize" and self.era == "2025":
                answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": capabilities, **greeting()}
            elif method == "server/discover" and self.era == "2026":
                answer["result"] = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, **greeting()}
            elif method == "subscriptions/listen" and self.era == "2026":
                return self.listen(send, is_gone)
            elif method == "tools/list":
                if OPTIONS.get("vanished"):
                    os._exit(5)
                if OPTIONS.get("mortal"):
                    threading.Timer(0, os._exit, [4]).start()
                answer["result"] = {"tools": list(definitions(self.changes).values())}
            elif method == "tools/call" and params.get("name") in definitions(self.changes):
                answer["result"] = self.call(message["id"], params, send, is_gone)
            else:
                answer["error"] = {"code": -32601, "message": f"no {method}"}
        except Silence:
            return
        except Refusal as refusal:
            answer["error"] = refusal.error
        if self.era == "2026" and "result" in answer:
            answer["result"].setdefault("resultType", "complete")
        send(answer)

    def listen(self, send, is_gone):
        self.listeners.append(send)
        params = {"notifications": {"toolsListChanged": True}}
        send({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
        while OPTIONS.get("listen") and not is_gone():
            time.sleep(0.02)

    def call(self, request, params, send, is_gone):
        self.calls += 1
        call = self.open[request] = Call(self, params, send, is_gone)
        try:
            return TOOLS[params["name"]][0](call, **(params.get("arguments") or {}))
        except InputRequired as question:
            return question.args[0]
        finally:
            del self.open[request]


class Call:
    """One call of a tool."""

    def __init__(self, peer, params, send, is_gone):
        self.peer, self.params, self.send, self.is_gone = peer, params, send, is_gone
        self.meta = params.get("_meta") or {}
        self.cancelled = threading.Event()

    def notify(self, method, params):
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def send_text(self, line):
        self.send(line)

    def log(self, level, data):
        if self.peer.era == "2025" or "io.modelcontextprotocol/logLevel" in self.meta:
            self.notify("notifications/message", {"level": level, "logger": "diary", "data": data})

    def ask(self, method, params):
        if self.peer.era == "2026":
            answers = self.params.get("inputResponses")
            if answers is None:
                questions = {"question": {"method": method, "params": params}}
                state = {"resultType": "input_required", "inputRequests": questions, "requestState": STATE}
                raise InputRequired(state)
            return answers["question"] if self.params.get("requestState") == STATE else "the state is wrong"
        arrived, reply = threading.Event(), {}
        self.peer.questions += 1
        number = f"question {self.peer.questions}"
        self.peer.replies[number] = lambda message: (reply.update(message), arrived.set())
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        arrived.wait(30)
        return reply.get("result", reply.get("error"))


def serve_pipes():
    peer = Peer(OPTIONS.get("era", "2025"))

    def send(message):
        line = message if isinstance(message, str) else json.dumps(message)
        with WRITE_LOCK:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    peer.listeners = [send] if peer.era == "2025" else []
    for line in sys.stdin:
        if not OPTIONS.get("silent"):
            threading.Thread(target=peer.handle, args=(json.loads(line), send), daemon=True).start()


def main():
    words = sys.argv[1:]
    while words:
        word = words.pop(0).removeprefix("--")
        OPTIONS[word] = True if word in ("lock", "silent", "mortal") else words.pop(0)
    read_changes()
    if OPTIONS.get("lock"):
        said = greeting()
        locked = {"identity": said["serverInfo"], "instructions": said["instructions"], "tools": definitions()}
        print(json.dumps(locked))
    else:
        serve_pipes()


if __name__ == "__main__":
    main()
