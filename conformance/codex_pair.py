#!/usr/bin/env python3
"""Speaks MCP to a ringfence server on its standard streams, for codex-pair.sh.

    codex_pair.py SCRIPT RESULT -- SERVER...

SCRIPT is a JSON list of steps, each with a request: {"method", "params"}; results go to RESULT, one JSON line each, in
order. A step may have:

    "answer": "accept" | "decline"     what questions of the server are answered meanwhile (accept when absent)
    "cancel": "text"                   the request is cancelled once progress shows this text
    "thread": true                     `threadId` becomes that of the last result that has one

A line of RESULT is {"answer": ..., "questions": [...], "progress": [...], "events": [...]}.
"""

import json
import subprocess
import sys


def main():
    script, result = sys.argv[1:3]
    server = subprocess.Popen(sys.argv[4:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    last_thread = ""

    def send(message):
        server.stdin.write((json.dumps({"jsonrpc": "2.0"} | message) + "\n").encode())
        server.stdin.flush()

    def take(number, step):
        heard = {"answer": None, "questions": [], "progress": [], "events": []}
        for line in server.stdout:
            message = json.loads(line)
            match message.get("method"):
                case "elicitation/create":
                    heard["questions"].append(message["params"])
                    action = step.get("answer", "accept")
                    content = {"content": {}} if action == "accept" else {}
                    send({"id": message["id"], "result": {"action": action} | content})
                case "notifications/progress":
                    heard["progress"].append(message["params"]["message"])
                    if "cancel" in step and step["cancel"] in message["params"]["message"]:
                        send({"method": "notifications/cancelled", "params": {"requestId": number}})
                        # Nothing is answered after that. The next request shows that the server goes on.
                        return heard
                case "codex/event":
                    heard["events"].append(message["params"])
                case None if message.get("id") == number:
                    heard["answer"] = message.get("result") or message.get("error")
                    return heard
        raise SystemExit("the server has ended")

    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "pair", "version": "1"},
    }
    send({"id": 0, "method": "initialize", "params": hello})
    take(0, {})
    send({"method": "notifications/initialized"})
    with open(script) as file, open(result, "w") as out:
        for number, step in enumerate(json.load(file), 1):
            params = step.get("params", {})
            if step.get("thread"):
                params["arguments"]["threadId"] = last_thread
            if step["method"] == "tools/call":
                params["_meta"] = {"progressToken": number}
            send({"id": number, "method": step["method"], "params": params})
            heard = take(number, step)
            answer = heard["answer"] or {}
            last_thread = (answer.get("structuredContent") or {}).get("threadId", last_thread)
            out.write(json.dumps(heard) + "\n")
            out.flush()
    server.stdin.close()
    sys.exit(server.wait(30))


if __name__ == "__main__":
    main()
