"""Smallest MCP server: one tool that reports what the process sees and may do."""

import json
import os
import sys


def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__


def look():
    beside = os.path.join(os.path.dirname(__file__), "new")
    return {
        "argv": sys.argv[1:],
        "env": dict(os.environ),
        "own": attempt(lambda: open(__file__, "a").write("#")),
        "beside": attempt(lambda: open(beside, "w").close()),
    }


def reply(message):
    method = message["method"]
    if method == "initialize":
        info = {"name": "tiny", "version": "1.0.0"}
        return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
    if method == "tools/list":
        tool = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        return {"result": {"tools": [tool]}}
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": json.dumps(look())}]}}
    return {"error": {"code": -32601, "message": "no such method"}}


def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], **reply(message)}
            print(json.dumps(answer), flush=True)
