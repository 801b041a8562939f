#!/usr/bin/env python3
"""A Responses API with a script in place of a model, to drive a real Codex without a network.

    codex_model.py serve PLAN REQUESTS PORT_FILE

listens on a free port of 127.0.0.1, writes the number to PORT_FILE, and appends the body of each request to REQUESTS
as one JSON line. PLAN is a JSON list of what the model does, one step per request:

    {"search": "write a file"}                      look for tools with Codex's own tool_search
    {"call": "file_write", "arguments": {...}}      call a tool of the MCP server named ringfence
    {"shell": "make"}                               run a command with Codex's own tool
    {"fail": "no"}                                  refuse the request in these words
    {"say": "done"}                                 end the turn

The place in the plan is not kept here: a request carries the whole conversation, and the items in it that the model
made are the steps already taken. So a request that is sent twice gets the same answer twice.

    codex_model.py said REQUESTS

prints what the conversation was when the model was asked last, one line each: `ROLE TEXT`.

    codex_model.py shown REQUESTS

prints what Codex showed the model, one line each: `listed TOOL PROPERTY...` for tools that were there from the start,
`source TEXT` for what was said about tools still to be searched for, `found STEP TOOL PROPERTY...` for the answer to a
search, `result STEP TEXT` for the answer to a call (steps count from 0, line ends are written `\\n`).
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVER = "ringfence"
NAMESPACE = f"mcp__{SERVER}"
USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}


def steps_taken(request):
    def made_by_model(item):
        kind = item.get("type")
        return kind in ("function_call", "tool_search_call") or (kind == "message" and item.get("role") == "assistant")

    return sum(map(made_by_model, request["input"]))


def tools_of(entries):
    """The tools of our server among the entries of a list: how to call each, and its definition. Until 0.120 Codex
    lists them one by one under a prefix; later in a namespace, whose name had the underscores of the prefix until 0.140."""
    for entry in entries:
        name = entry.get("name", "")
        if entry.get("type") == "namespace" and name.rstrip("_") == NAMESPACE:
            for tool in entry["tools"]:
                yield tool["name"], {"namespace": name, "name": tool["name"]}, tool
        elif name.startswith(f"{NAMESPACE}__"):
            yield name.removeprefix(f"{NAMESPACE}__"), {"name": name}, entry


def spelling_of(tool, request):
    """How a tool is called. One that only a search has shown is in the namespace, and so is one that does not exist."""
    names = {name: spelling for name, spelling, _ in tools_of(request["tools"])}
    return names.get(tool, {"namespace": NAMESPACE, "name": tool})


def item_for(step, number, request):
    """The output item with which the model takes a step."""
    call = {"call_id": f"call_{number}"}
    match step:
        case {"search": query}:
            return call | {"type": "tool_search_call", "execution": "client", "arguments": {"query": query}}
        case {"call": name, "arguments": arguments}:
            arguments = json.dumps(arguments)
            return call | {"type": "function_call", "arguments": arguments} | spelling_of(name, request)
        case {"shell": command}:
            arguments = json.dumps({"cmd": command, "login": False, "yield_time_ms": 30000})
            return call | {"type": "function_call", "name": "exec_command", "arguments": arguments}
        case {"say": text}:
            content = [{"type": "output_text", "text": text}]
            return {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
    raise ValueError(f"no such step: {step}")


def events(plan, request):
    number = steps_taken(request)
    step = plan[number] if number < len(plan) else {"say": "the plan has no further step"}
    if not request.get("tools"):
        # No step of the conversation: the interactive Codex asks like this for a title.
        step = {"say": json.dumps({"title": "A scripted conversation"})}
    response = {"id": f"resp_{number}"}
    yield {"type": "response.created", "response": response}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item_for(step, number, request)}
    yield {"type": "response.completed", "response": response | {"usage": USAGE}}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/responses":
            self.send_error(404)
            return
        request = json.loads(body)
        self.server.record(request)
        plan, number = self.server.plan, steps_taken(request)
        if number < len(plan) and "fail" in plan[number]:
            said = json.dumps({"error": {"message": plan[number]["fail"], "type": "invalid_request_error"}})
            self.send_response(400)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(said.encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events(plan, request):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_):
        pass


class Model(ThreadingHTTPServer):
    """The scripted model, on a free port of the loopback."""

    def __init__(self, plan, requests):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan = plan
        self.requests = requests
        self.writing = threading.Lock()

    def record(self, request):
        with self.writing, open(self.requests, "a") as file:
            file.write(json.dumps(request) + "\n")


def serve(plan, requests, port_file):
    with open(plan) as file:
        model = Model(json.load(file), requests)
    # Renamed into place, so that whoever waits for the file never reads half a number.
    with open(f"{port_file}.new", "w") as file:
        file.write(str(model.server_port))
    os.rename(f"{port_file}.new", port_file)
    model.serve_forever()


def listed(entries):
    """The tools of our server among the entries of a list, each with the names of its properties."""
    for name, _, tool in tools_of(entries):
        yield " ".join([name, *sorted(tool["parameters"].get("properties", {}))])


def text_of(output):
    if isinstance(output, list):
        output = "\n".join(part.get("text", f"[{part['type']}]") for part in output)
    return output.replace("\n", "\\n")


def shown(requests):
    with open(requests) as file:
        conversation = [request for line in file if (request := json.loads(line)).get("tools")]
    for tool in listed(conversation[0]["tools"]):
        print("listed", tool)
    for tool in conversation[0]["tools"]:
        if tool["type"] == "tool_search":
            for line in tool["description"].splitlines():
                if line.startswith(f"- {SERVER}: "):
                    print("source", line.removeprefix("- "))
    for item in conversation[-1]["input"]:
        step = item.get("call_id", "").removeprefix("call_")
        match item["type"]:
            case "tool_search_output":
                for tool in listed(item["tools"]):
                    print("found", step, tool)
            case "function_call_output":
                print("result", step, text_of(item["output"]))


def said(requests):
    with open(requests) as file:
        last = [json.loads(line) for line in file][-1]
    for item in last["input"]:
        if item["type"] == "message":
            print(item["role"], text_of(item["content"]))


if __name__ == "__main__":
    {"serve": serve, "said": said, "shown": shown}[sys.argv[1]](*sys.argv[2:])
