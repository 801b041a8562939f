"""Takes the steps with LangChain's MCP adapters: python langchain_0.py TARGET"""

import asyncio
import os

from common import Walk, read_target
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from mcp.types import ElicitResult


def describe_server(target):
    match target["transport"]:
        case "http":
            return {"transport": "streamable_http", "url": target["url"]}
        case "sse":
            return {"transport": "sse", "url": target["url"]}
    program, *words = target["command"]
    return {"transport": "stdio", "command": program, "args": words, "env": dict(os.environ)}


def describe_message(message):
    """What the model gets: the content of a tool message."""
    parts = message.content if isinstance(message.content, list) else [{"type": "text", "text": message.content}]
    parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]
    images = [part.get("base64") or part.get("data") for part in parts if part.get("type") == "image"]
    return {"text": "\n".join(part.get("text") or "" for part in parts), "image": images[0] if images else None}


async def main():
    target = read_target()
    walk = Walk(target)

    async def elicit(_mcp_context, params, _context):
        action, content = walk.answer(params.message, params.requestedSchema)
        return ElicitResult(action=action, content=content)

    async def on_progress(progress, total, message, _context):
        await walk.on_progress(progress, total, message)

    callbacks = Callbacks(on_elicitation=elicit, on_progress=on_progress)
    client = MultiServerMCPClient({"ringfence": describe_server(target)}, callbacks=callbacks)
    async with client.session("ringfence") as session:
        tools = {}

        async def list_tools():
            for tool in await load_mcp_tools(session, callbacks=callbacks, server_name="ringfence"):
                tools[tool.name] = tool
            return list(tools)

        async def call(tool, arguments, _on_progress):
            request = {"type": "tool_call", "id": "1", "name": tool, "args": arguments}
            return describe_message(await tools[tool].ainvoke(request))

        await walk.take(list_tools, call)


asyncio.run(main())
