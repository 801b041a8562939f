"""Takes the steps with the OpenAI Agents SDK, as its agents call tools: python openai_agents.py TARGET"""

import asyncio
import json
import os

from agents import RunContextWrapper
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp, MCPUtil
from agents.tool_context import ToolContext
from common import Walk, read_target


def find_server(target):
    settings = {"cache_tools_list": True, "client_session_timeout_seconds": 60}
    match target["transport"]:
        case "http":
            return MCPServerStreamableHttp({"url": target["url"]}, **settings)
        case "sse":
            return MCPServerSse({"url": target["url"]}, **settings)
    program, *words = target["command"]
    return MCPServerStdio({"command": program, "args": words, "env": dict(os.environ)}, **settings)


def describe_output(output):
    """What an agent hands to its model: one part, or several."""
    parts = output if isinstance(output, list) else [output]
    parts = [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in parts]
    images = [part["image_url"].partition("base64,")[2] for part in parts if part.get("image_url")]
    return {"text": "\n".join(part.get("text") or "" for part in parts), "image": images[0] if images else None}


async def main():
    target = read_target()
    walk = Walk(target)
    async with find_server(target) as server:
        tools = {}

        async def list_tools():
            for tool in await server.list_tools():
                tools[tool.name] = MCPUtil.to_function_tool(tool, server, convert_schemas_to_strict=False)
            return list(tools)

        async def call(tool, arguments, _on_progress):
            words = json.dumps(arguments)
            context = ToolContext.from_agent_context(RunContextWrapper(None), tool_call_id="1", tool_name=tool, tool_arguments=words)
            return describe_output(await tools[tool].on_invoke_tool(context, words))

        await walk.take(list_tools, call)


asyncio.run(main())
