"""Calls of a tool that does nothing, on another server, through gateways. Ringfence checks, approves and records each call
meanwhile; the others pass messages on."""

import json
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import clients
import peers
import processes
from measure import OURS, RowGroup

PEERS = ("supergateway", "mcp-proxy (npm)", "mcp-proxy (crate)", "mcp-proxy (PyPI)")
CLIENTS = {8: "8 clients", 1: "1 client"}
CPU = {number: f"no-op through a gateway, {text}: CPU" for number, text in CLIENTS.items()}
TIME = {number: f"no-op through a gateway, {text}" for number, text in CLIENTS.items()}
MEMORY, ALL_MEMORY, START = "gateway memory", "gateway memory, with its sandboxes", "start to tools/list, 12 servers"
ALONE = "node alone"
HELLO = {"text": "hello"}


def measure(stage):
    place = stage.section("gateway")
    # A sandbox sees its workspace, wherever the sources are.
    shutil.copy(peers.HERE / "programs/echo.mjs", place.workspace)
    yield from measure_calls(stage, place)
    yield from measure_starts(stage, place)


def echo_words(place):
    return [peers.NODE, str(place.workspace / "echo.mjs")]


def write_upstreams(stage, place, count):
    """Writes a file with servers, and what is accepted of them, so that nothing is started for a list."""
    names = [f"echo{number}" for number in range(count)]
    echo = echo_words(place)
    transport = {"type": "stdio", "command": echo[0], "args": echo[1:]}
    servers = {name: {"trust": "trusted", "transport": transport} for name in names}
    bundles = {name: {"serverId": name, "mode": "direct"} for name in names}
    folder = place.folder / f"upstreams{count}"
    folder.mkdir()
    (folder / "upstreams.json").write_text(json.dumps({"servers": servers, "bundles": bundles}))
    client = clients.Client(echo, stage.env)
    try:
        hello = client.initialize()
        tools = {tool["name"]: tool for tool in client.request("tools/list", {})["tools"]}
    finally:
        client.close()
    locked = {name: {"identity": hello["serverInfo"], "tools": tools} for name in names}
    (folder / "mcp.lock").write_text(json.dumps({"version": 1, "servers": locked}))
    return str(folder / "upstreams.json")


def write_crate_config(place, port):
    echo = echo_words(place)
    listen = f'[proxy]\nname = "bench"\n[proxy.listen]\nhost = "127.0.0.1"\nport = {port}\n'
    backend = f'[[backends]]\nname = "echo"\ntransport = "stdio"\ncommand = {json.dumps(echo[0])}\nargs = {json.dumps(echo[1:])}\n'
    return place.write("mcp-proxy.toml", listen + backend)


def list_gateways(stage, place):
    """Returns, by name, the command line for a port, the path and the name of the tool."""
    ours = place.serve("--upstreams", write_upstreams(stage, place, 1), "--http")
    stateful = ["--stdio", " ".join(echo_words(place)), "--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none", "--port"]
    return {
        OURS: (lambda port: [*ours, f"127.0.0.1:{port}"], "/mcp", "echo0__echo"),
        "supergateway": (lambda port: peers.make_argv("supergateway", *stateful, str(port)), "/mcp", "echo"),
        "mcp-proxy (npm)": (lambda port: peers.make_argv("mcp-proxy (npm)", "--port", str(port), "--", *echo_words(place)), "/mcp", "echo"),
        "mcp-proxy (crate)": (lambda port: peers.make_argv(peers.CRATE, "--config", write_crate_config(place, port)), "/", "echo/echo"),
        "mcp-proxy (PyPI)": (lambda port: peers.make_argv(peers.PYPI, "--port", str(port), "--", *echo_words(place)), "/mcp", "echo"),
    }


def measure_calls(stage, place):
    group = RowGroup(stage, *CPU.values(), *TIME.values(), MEMORY, ALL_MEMORY, rounds=5, quick=3)
    if not stage.wants(*group.rows):
        return
    count = stage.size(2000, 200)
    for name, gateway in list_gateways(stage, place).items():
        group.add(name, lambda gateway=gateway: pass_calls(stage, *gateway, count), warm=0)
    group.add(ALONE, lambda: call_alone(stage, place, count), rival=False, warm=0)
    yield from group.measure()


def pass_calls(stage, argv, path, tool, count):
    port, found = clients.find_free_port(), {}
    server = clients.HttpServer(argv(port), stage.env, port, path)
    try:
        for number in CLIENTS:
            client = clients.connect_http(stage, server, number, number)
            try:
                client.call(tool, HELLO, 1, warm=max(1, count // 10 // number))
                before = processes.read_cpu_ms(find_own_processes(server.pid))
                timing = client.call(tool, HELLO, count // number)
                used = processes.read_cpu_ms(find_own_processes(server.pid)) - before
            finally:
                client.close()
            if clients.join_texts(timing.answer) != HELLO["text"]:
                raise RuntimeError(f"unexpected answer: {timing.answer}")
            found |= {CPU[number]: used * 1000 / len(timing.ms), TIME[number]: timing.ms}
        # The collectors of the peers need a moment after the last connection.
        time.sleep(1)
        found[MEMORY] = processes.measure_pss_mb([server.pid])
        found[ALL_MEMORY] = processes.measure_pss_mb(find_own_processes(server.pid))
        return found
    finally:
        server.close()


def find_own_processes(pid):
    """Returns the processes of the gateway, without the server behind it."""
    return [process for process in processes.find_tree(pid) if process == pid or not is_echo(process)]


def is_echo(pid):
    if not any(word.endswith(b"echo.mjs") for word in processes.read_command_line(pid)):
        return False
    try:
        return Path(f"/proc/{pid}/exe").resolve() == Path(peers.NODE).resolve()
    except OSError:
        return True


def call_alone(stage, place, count):
    """Calls the same tool without a gateway, on its pipe."""
    client = clients.connect_stdio(stage, echo_words(place))
    try:
        return {TIME[1]: client.call("echo", HELLO, count, warm=count // 10).ms}
    finally:
        client.close()


def measure_starts(stage, place):
    """Measures from the start to a list with the tools of twelve accepted servers, of which none is started."""
    group = RowGroup(stage, START, rounds=20)
    if not stage.wants(START):
        return
    argv = place.serve("--upstreams", write_upstreams(stage, place, 12))

    def turn():
        with ExitStack() as stack:
            began = time.perf_counter()
            client = clients.Client(argv, stage.env)
            stack.callback(client.close)
            client.initialize()
            tools = client.request("tools/list", {})["tools"]
            taken = (time.perf_counter() - began) * 1000
            if sum("__" in tool["name"] for tool in tools) != 12:
                raise RuntimeError("the list is incomplete")
            if len(processes.find_tree(client.process.pid)) != 1:
                raise RuntimeError("servers were started for a list")
            return taken

    group.add(OURS, turn)
    yield from group.measure()
