"""What the adapters of Python clients share: they take the steps and print one JSON line for each."""

import asyncio
import json
import os
import sys


def read_target():
    return json.loads(sys.argv[1])


def print_report(**report):
    print(json.dumps(report, default=str), flush=True)


def describe_result(result):
    """Text, image and structured content of a CallToolResult, whose fields the SDKs spell in two ways."""
    texts = [block.text for block in result.content if block.type == "text"]
    images = [block.data for block in result.content if block.type == "image"]
    structured = getattr(result, "structured_content", None) or getattr(result, "structuredContent", None)
    return {"text": "\n".join(texts), "image": images[0] if images else None, "structured": structured}


class Walk:
    """Takes all steps. `call(tool, arguments, on_progress)` returns a description of the result; `list_tools()` names."""

    def __init__(self, target):
        self.target = target
        self.step, self.questions, self.lines = {}, [], []

    def answer(self, message, schema):
        """The answer of the current step to a question: an action and its content."""
        offered = schema.get("properties", {}).get("choice", {}).get("enum", [])
        self.questions.append({"message": message, "offered": offered})
        answer = self.step.get("answer", "deny")
        if answer == "deny":
            return "decline", None
        return "accept", {"choice": answer if answer in offered else "once"}

    async def on_progress(self, progress, total=None, message=None, *_):
        self.lines.append(message)

    async def cancel(self, call):
        """Cancels the call as soon as its command runs, and reports nothing but that."""
        started = os.path.join(self.target["workspace"], "started")
        task = asyncio.ensure_future(call)
        while not os.path.exists(started) and not task.done():
            await asyncio.sleep(0.05)
        task.cancel()
        try:
            return await task
        except (asyncio.CancelledError, Exception) as error:
            return {"error": repr(error)}

    async def take(self, list_tools, call):
        print_report(step="connect")
        names = await list_tools()
        print_report(step="list", tools=names)
        spelled = {name.replace(".", "_").rsplit("ringfence_", 1)[-1]: name for name in names}
        for step in self.target["steps"]:
            self.step, self.questions, self.lines = step, [], []
            pending = call(spelled[step["tool"].replace(".", "_")], step["arguments"], self.on_progress)
            try:
                seen = await (self.cancel(pending) if step.get("cancel") else pending)
            except Exception as error:
                seen = {"text": str(error), "error": type(error).__name__}
            print_report(**{"step": step["step"], "questions": self.questions, "progress": self.lines} | seen)
