"""Takes the steps with the Python SDK 2.x: python python_2.py TARGET"""

import asyncio
import os

import mcp_types as types
from common import Walk, describe_result, read_target
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client


def find_server(target):
    match target["transport"]:
        case "http":
            return target["url"]
        case "sse":
            return sse_client(target["url"])
    program, *words = target["command"]
    return StdioServerParameters(command=program, args=words, env=dict(os.environ))


async def main():
    target = read_target()
    walk, handle = Walk(target), {}

    async def elicit(_context, params):
        action, content = walk.answer(params.message, params.requested_schema)
        return types.ElicitResult(action=action, content=content)

    async with Client(find_server(target), elicitation_callback=elicit) as client:

        async def list_tools():
            return [tool.name for tool in (await client.list_tools()).tools]

        async def call(tool, arguments, on_progress):
            # On 2026-07-28 a session lasts as long as its handle is sent back.
            result = await client.call_tool(tool, arguments, progress_callback=on_progress, meta=dict(handle) or None)
            handle.update({key: value for key, value in (result.meta or {}).items() if key == "dev.ringfence/session"})
            return describe_result(result)

        await walk.take(list_tools, call)


asyncio.run(main())
