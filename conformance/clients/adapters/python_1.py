"""Takes the steps with the Python SDK 1.x: python python_1.py TARGET"""

import asyncio
import contextlib
import os

from common import Walk, describe_result, read_target
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


def open_transport(target):
    match target["transport"]:
        case "http":
            return streamable_http_client(target["url"])
        case "sse":
            return sse_client(target["url"])
    program, *words = target["command"]
    return stdio_client(StdioServerParameters(command=program, args=words, env=dict(os.environ)), errlog=open(os.devnull, "w"))


async def main():
    target = read_target()
    walk = Walk(target)

    async def elicit(_context, params):
        action, content = walk.answer(params.message, params.requestedSchema)
        return types.ElicitResult(action=action, content=content)

    async with contextlib.AsyncExitStack() as stack:
        read, write, *_ = await stack.enter_async_context(open_transport(target))
        session = await stack.enter_async_context(ClientSession(read, write, elicitation_callback=elicit))
        await session.initialize()

        async def list_tools():
            return [tool.name for tool in (await session.list_tools()).tools]

        async def call(tool, arguments, on_progress):
            return describe_result(await session.call_tool(tool, arguments, progress_callback=on_progress))

        await walk.take(list_tools, call)


asyncio.run(main())
