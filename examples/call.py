#!/usr/bin/env python3
"""Calls one tool of a Ringfence config: call.py CONFIG WORKSPACE TOOL [ARGUMENTS as JSON]

RINGFENCE names another binary than the one on PATH. What the server asks is shown on standard error; a line that
begins with `y` on standard input is a yes.
"""

import json
import os
import subprocess
import sys

config, workspace, tool = sys.argv[1:4]
arguments = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
command = [os.environ.get("RINGFENCE", "ringfence"), "serve", "--config", config, "--workspace", workspace]
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def send(**message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def answer(number):
    """The answer to a request; questions that come before it are passed on."""
    for line in server.stdout:
        message = json.loads(line)
        if message.get("method") == "elicitation/create":
            print(message["params"]["message"], "\nAllow it once? [y/N] ", end="", file=sys.stderr, flush=True)
            yes = sys.stdin.readline().strip().lower().startswith("y")
            result = {"action": "accept", "content": {}} if yes else {"action": "decline"}
            send(id=message["id"], result=result)
        elif message.get("id") == number:
            return message
    sys.exit("the server is gone")


about = {"name": "call.py", "version": "1"}
send(id=1, method="initialize", params={
    "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": about})
answer(1)
send(method="notifications/initialized")
send(id=2, method="tools/call", params={"name": tool, "arguments": arguments})
message = answer(2)
server.stdin.close()
server.wait()
if "error" in message:
    sys.exit(message["error"]["message"])
for part in message["result"]["content"]:
    print(part.get("text", f"({part['type']})"))
sys.exit(1 if message["result"].get("isError") else 0)
