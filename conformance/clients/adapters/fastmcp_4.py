"""Takes the steps with FastMCP's client: python fastmcp_4.py TARGET"""

import asyncio
import os

from common import Walk, describe_result, read_target
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport


def find_server(target):
    match target["transport"]:
        case "http":
            return StreamableHttpTransport(target["url"])
        case "sse":
            return SSETransport(target["url"])
    program, *words = target["command"]
    return StdioTransport(program, words, env=dict(os.environ))


async def main():
    target = read_target()
    walk = Walk(target)

    async def elicit(message, _response_type, params, _context):
        schema = getattr(params, "requested_schema", None) or getattr(params, "requestedSchema", {})
        action, content = walk.answer(message, schema)
        return ElicitResult(action=action, content=content)

    async with Client(find_server(target), elicitation_handler=elicit) as client:

        async def list_tools():
            return [tool.name for tool in await client.list_tools()]

        async def call(tool, arguments, on_progress):
            result = await client.call_tool(tool, arguments, progress_handler=on_progress, raise_on_error=False)
            return describe_result(result)

        await walk.take(list_tools, call)


asyncio.run(main())
