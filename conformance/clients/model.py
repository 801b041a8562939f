"""A script in place of a model, on the loopback, in the dialects that agents speak.

Anthropic's Messages, OpenAI's Chat Completions and Responses, and Gemini's generateContent. The script is a list of steps, each a call
of a tool of ours; after the last one the model ends the turn. The place in the script is not kept here: a request
carries the whole conversation, and the calls in it are the steps already taken.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import codex_model
from steps import is_picture, spell

END = "the end"


def strings_in(value):
    """Every string in a JSON value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


class Messages:
    """Anthropic's Messages API."""

    path = r"/v1/messages(\?|$)"

    def tools(self, request):
        return [tool["name"] for tool in request.get("tools", [])]

    def turns(self, request):
        """The conversation: for each message whether the model made it, how many calls it has, and the message."""
        for message in request["messages"]:
            content = message["content"] if isinstance(message["content"], list) else []
            calls = sum(part.get("type") == "tool_use" for part in content)
            yield message["role"] == "assistant", calls, message

    def answer(self, request, name, arguments, number):
        call = {"type": "tool_use", "id": f"toolu_{number:04}", "name": name, "input": arguments}
        block = call if name else {"type": "text", "text": END}
        reason = "tool_use" if name else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": request["model"],
                   "stop_sequence": None, "usage": usage}
        if not request.get("stream"):
            return message | {"content": [block], "stop_reason": reason}
        start = block | ({"input": {}} if name else {"text": ""})
        delta = ({"type": "input_json_delta", "partial_json": json.dumps(arguments)} if name
                 else {"type": "text_delta", "text": END})
        return [
            {"type": "message_start", "message": message | {"content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]


class Completions:
    """OpenAI's Chat Completions API."""

    path = r"/v1/chat/completions"

    def tools(self, request):
        return [tool["function"]["name"] for tool in request.get("tools") or [] if "function" in tool]

    def turns(self, request):
        for message in request["messages"]:
            yield message["role"] == "assistant", len(message.get("tool_calls") or []), message

    def answer(self, request, name, arguments, number):
        message = {"role": "assistant", "content": None if name else END}
        if name:
            function = {"name": name, "arguments": json.dumps(arguments)}
            message["tool_calls"] = [{"index": 0, "id": f"call_{number:04}", "type": "function", "function": function}]
        reason = "tool_calls" if name else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": f"chat_{number}", "created": 1, "model": request["model"]}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return head | {"object": "chat.completion", "choices": [choice], "usage": usage}
        head["object"] = "chat.completion.chunk"
        return [
            head | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
            None,
        ]


class Contents:
    """Gemini's generateContent."""

    path = r"/v1beta/models/[^:]+:(generateContent|streamGenerateContent)"

    def tools(self, request):
        entries = [entry.get("functionDeclarations", []) for entry in request.get("tools") or []]
        return [tool["name"] for entry in entries for tool in entry]

    def turns(self, request):
        for content in request["contents"]:
            parts = content.get("parts", [])
            yield content.get("role") == "model", sum("functionCall" in part for part in parts), content

    def answer(self, request, name, arguments, number):
        # A model that thinks signs its calls, and the client sends the signature back.
        part = ({"functionCall": {"id": f"call_{number}", "name": name, "args": arguments}, "thoughtSignature": "c2lnbmVk"}
                if name else {"text": END})
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
        return [answer] if request["streamed"] else answer


class Responses:
    """OpenAI's Responses API, as Codex speaks it."""

    path = r"/v1/responses"

    def tools(self, request):
        return [name for name, _, _ in codex_model.tools_of(request.get("tools", []))]

    def turns(self, request):
        for item in request["input"]:
            call = item["type"] == "function_call"
            yield call or item.get("role") == "assistant", int(call), item

    def answer(self, request, name, arguments, number):
        step = {"call": name, "arguments": arguments} if name else {"say": END}
        response = {"id": f"resp_{number}"}
        return [
            {"type": "response.created", "response": response},
            {"type": "response.output_item.done", "output_index": 0, "item": codex_model.item_for(step, number, request)},
            {"type": "response.completed", "response": response | {"usage": codex_model.USAGE}},
        ]


DIALECTS = [Messages(), Completions(), Contents(), Responses()]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def send_body(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_body(json.dumps({"data": [{"id": "scripted", "object": "model"}], "models": []}).encode())

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        dialect = next((dialect for dialect in DIALECTS if re.match(dialect.path, self.path)), None)
        if dialect is None:
            # Counting tokens, among others.
            self.send_body(b'{"input_tokens": 1, "totalTokens": 1}')
            return
        request = json.loads(body) | {"streamed": "streamGenerate" in self.path}
        answer = self.server.answer(dialect, request)
        if isinstance(answer, dict):
            self.send_body(json.dumps(answer).encode())
            return
        events = [("data: [DONE]" if event is None else
                   (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}") for event in answer]
        self.send_body("".join(f"{event}\n\n" for event in events).encode(), "text/event-stream")

    def log_message(self, *_):
        pass


class Model(ThreadingHTTPServer):
    """The scripted model, on a free port. Use it as a context manager; then `reports` has what the agent showed it."""

    daemon_threads = True

    def __init__(self, steps):
        super().__init__(("127.0.0.1", 0), Handler)
        self.steps, self.requests, self.lock = steps, [], threading.Lock()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, dialect, request):
        number = sum(calls for _, calls, _ in dialect.turns(request))
        names = {name: spell(name) for name in dialect.tools(request)}
        step = self.steps[number] if number < len(self.steps) else {}
        wanted = spell(step.get("tool", "-"))
        # Agents put a prefix before a tool's name, and have tools of their own whose names may end alike.
        ours = [name for name, spelled in names.items() if spelled == wanted or re.search(rf"ringfence_+{wanted}$", spelled)]
        if any("file_read" in spelled for spelled in names.values()):
            with self.lock:
                self.requests.append((dialect, request, list(names)))
        return dialect.answer(request, ours[0] if ours else None, step.get("arguments"), number)

    def reports(self):
        """The list of tools, and what the agent said about each call, with the picture where it was sent on."""
        if not self.requests:
            return []
        dialect, request, _ = max(self.requests, key=lambda entry: sum(calls for _, calls, _ in entry[0].turns(entry[1])))
        shown, number = [[] for _ in self.steps], -1
        for made_by_model, calls, message in dialect.turns(request):
            number += calls
            if not made_by_model and 0 <= number < len(shown):
                shown[number] += strings_in(message)
        reports = [{"step": "connect"}, {"step": "list", "tools": self.requests[0][2]}]
        for step, strings in zip(self.steps[: number + 1], shown):
            pictures = [data for text in strings if is_picture(data := text.rpartition("base64,")[2])]
            text = "\n".join(text for text in strings if len(text) < 5000)
            reports.append({"step": step["step"], "text": text, "image": pictures[0] if pictures else None})
        return reports
