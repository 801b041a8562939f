"""Calls of the file tools, on each transport."""

from contextlib import ExitStack

import clients
import peers
from clients import join_texts
from measure import OURS, RowGroup

PEERS = ("server-filesystem", "desktop-commander", "supergateway")
READS = {transport: f"file.read, 10 KB, {transport}" for transport in ("stdio", "HTTP", "SSE")}
ANSWER = "file.read, 10 KB: answer"
WRITE, LIST, REPLACE = "file.write, a small file", "file.list, 200 files", "file.replace, 1 place in 10 KB"
BEHIND = "server-filesystem behind supergateway"
TEXT = ("0123456789" * 7 + "abcdefgh\n") * 130
FILES = 200
# Calls of a turn, and of one player in a round.
READ_COUNT, CALL_COUNT = 50, 10


def measure(stage):
    place = stage.section("calls")
    (place.workspace / "ten-kilobytes.txt").write_text(TEXT)
    (place.workspace / "many").mkdir()
    for number in range(FILES):
        (place.workspace / f"many/file-{number:03}.txt").write_text("x\n")
    with ExitStack() as stack:
        stdio = {name: place.client(name, stack) for name in (OURS, "server-filesystem", "desktop-commander")}
        yield from measure_stdio(stage, place, stdio)
        yield from measure_http(stage, place, stack, stdio)
        yield from measure_writes(stage, place, stdio)
        yield from measure_lists(stage, place, stdio)
        yield from measure_replacements(stage, place, stdio)


def read_arguments(place, name):
    path = place.workspace / "ten-kilobytes.txt"
    tools = {OURS: ("file.read", path.name), "desktop-commander": ("read_file", str(path))}
    tool, where = tools.get(name, ("read_text_file", str(path)))
    return tool, {"path": where}


def read_file(client, place, name):
    timing = client.call(*read_arguments(place, name), READ_COUNT)
    if TEXT[:9000] not in join_texts(timing.answer):
        raise RuntimeError("the text is not in the answer")
    return timing


def measure_stdio(stage, place, stdio):
    row = READS["stdio"]
    group = RowGroup(stage, row, ANSWER, rounds=30)

    def turn(name, client):
        timing = read_file(client, place, name)
        return {row: timing.ms, ANSWER: timing.size / 1024}

    for name, client in stdio.items():
        group.add(name, lambda name=name, client=client: turn(name, client), warm=2)
    yield from group.measure()


def measure_http(stage, place, stack, stdio):
    """The peer has no HTTP of its own: it is measured on its pipe, and behind a gateway."""
    ours = None
    for transport in ("HTTP", "SSE"):
        row = READS[transport]
        if not stage.wants(row):
            continue
        ours = ours or place.http_server(stack)
        connect = clients.connect_http if transport == "HTTP" else clients.connect_sse
        group = RowGroup(stage, row, rounds=30)
        group.add(OURS, reader_turn(lambda connect=connect: connect(stage, ours), stack, place, OURS), warm=2)
        behind = lambda transport=transport: connect_gateway(stage, place, stack, transport)
        group.add(BEHIND, reader_turn(behind, stack, place, BEHIND), warm=2, needs=("supergateway", "server-filesystem"))
        group.add("server-filesystem", lambda: read_file(stdio["server-filesystem"], place, "server-filesystem").ms, warm=2)
        group.note("server-filesystem has only stdio, which is shown here")
        yield from group.measure()


def reader_turn(opened, stack, place, name):
    """Returns a turn that connects in its first round, so that a failure leaves only this player out."""
    client = None

    def turn():
        nonlocal client
        if client is None:
            client = opened()
            stack.callback(client.close)
        return read_file(client, place, name).ms

    return turn


def connect_gateway(stage, place, stack, transport):
    """Returns a client of the peer behind a gateway, which is closed after its client: an open event stream would keep it."""
    port, backend = clients.find_free_port(), " ".join(peers.make_argv("server-filesystem", str(place.workspace)))
    flags = ["--outputTransport", "streamableHttp", "--stateful"] if transport == "HTTP" else ["--outputTransport", "sse"]
    words = peers.make_argv("supergateway", "--stdio", backend, *flags, "--port", str(port), "--logLevel", "none")
    server = clients.HttpServer(words, stage.env, port)
    stack.callback(server.close)
    return clients.connect_http(stage, server) if transport == "HTTP" else clients.connect_sse(stage, server, "/sse")


def measure_writes(stage, place, stdio):
    small = place.workspace / "small.txt"
    tools = {OURS: ("file.write", small.name, {}), "server-filesystem": ("write_file", str(small), {})}
    # desktop-commander replaces nothing without this mode.
    tools["desktop-commander"] = ("write_file", str(small), {"mode": "rewrite"})
    group, count = RowGroup(stage, WRITE, rounds=30), 0

    def turn(name):
        nonlocal count
        count += 1
        tool, where, mode = tools[name]
        content = f"number {count}\n"
        taken = stdio[name].call(tool, {"path": where, "content": content, **mode}).ms
        if small.read_text() != content:
            raise RuntimeError("the text was not written to the file")
        return taken

    for name in stdio:
        group.add(name, lambda name=name: turn(name), each=CALL_COUNT, warm=CALL_COUNT)
    yield from group.measure()


def measure_lists(stage, place, stdio):
    many = str(place.workspace / "many")
    tools = {OURS: ("file.list", {"path": "many"}), "server-filesystem": ("list_directory", {"path": many})}
    tools["desktop-commander"] = ("list_directory", {"path": many, "depth": 1})
    group = RowGroup(stage, LIST, rounds=30)

    def turn(name):
        timing = stdio[name].call(*tools[name], CALL_COUNT)
        if join_texts(timing.answer).count("file-") < FILES:
            raise RuntimeError("files are missing in the answer")
        return timing.ms

    for name in stdio:
        group.add(name, lambda name=name: turn(name), warm=2)
    yield from group.measure()


def measure_replacements(stage, place, stdio):
    group = RowGroup(stage, REPLACE, rounds=30)
    for name, client in stdio.items():
        # A file for each, because each continues from its own last state.
        group.add(name, replacement_turn(client, name, place.workspace / f"{name}.txt"), each=CALL_COUNT, warm=CALL_COUNT)
    yield from group.measure()


def replacement_turn(client, name, file):
    lines = [f"line {number} with some words to fill it up to a length that lines of text have\n" for number in range(130)]
    lines[90] = "state: 0\n"
    file.write_text("".join(lines))
    count = 0

    def turn():
        nonlocal count
        old, new = f"state: {count}\n", f"state: {count + 1}\n"
        tool, arguments = {
            OURS: ("file.replace", {"path": file.name, "edits": [{"old": old, "new": new}]}),
            "server-filesystem": ("edit_file", {"path": str(file), "edits": [{"oldText": old, "newText": new}]}),
            "desktop-commander": ("edit_block", {"file_path": str(file), "old_string": old, "new_string": new}),
        }[name]
        taken = client.call(tool, arguments).ms
        count += 1
        if new not in file.read_text():
            raise RuntimeError("the replacement is not in the file")
        return taken

    return turn
