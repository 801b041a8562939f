"""Lists and calls every tool with the official Python SDK, and validates each result with the validator that it uses.

    python sdk.py CALLS WORKSPACE COMMAND...
"""

import asyncio
import json
import os
import sys

import jsonschema
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def check(session, schema, tool, arguments, kinds):
    """What is wrong with one call. `kinds` are those of the error it must fail with, none where it must succeed."""
    # Raises where the SDK's own check of a successful result fails.
    result = await session.call_tool(tool, arguments)
    if result.isError != bool(kinds):
        return str(result)
    # The SDK leaves failed results unchecked; frameworks on top of it do not.
    if schema and result.structuredContent is not None:
        jsonschema.validate(result.structuredContent, schema)
    error = (result.structuredContent or {}).get("error", {})
    if kinds and not (error.get("kind") in kinds and error.get("hint") and error.get("trace_id")):
        return str(result)
    return None


async def main(calls, workspace, command, *args):
    with open(calls) as file:
        plan = json.loads(file.read().replace("WORKSPACE", workspace))
    server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
    count = failed = 0
    with open(os.devnull, "w") as nowhere:
        async with stdio_client(server, errlog=nowhere) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            tools = {tool.meta.get("dev.ringfence/name", tool.name): tool for tool in (await session.list_tools()).tools}
            every = [{"tool": name, "arguments": {"no_such_argument": True}, "kind": "invalid_arguments"} for name in tools]
            for call in every + plan:
                count += 1
                tool = tools[call["tool"]]
                kinds = call["kind"].split("|") if "kind" in call else []
                try:
                    wrong = await check(session, tool.outputSchema, tool.name, call["arguments"], kinds)
                except Exception as error:
                    wrong = f"{type(error).__name__}: {error}"
                if wrong:
                    failed += 1
                    print(f"sdk: FAILED: Python: {tool.name} {call['arguments']}: {wrong}", file=sys.stderr)
            # The SDK's default name is that of frameworks whose APIs take no dot.
            if any("." in tool.name for tool in tools.values()) or len(tools) < 18:
                failed += 1
                print(f"sdk: FAILED: Python: listed {[tool.name for tool in tools.values()]}", file=sys.stderr)
    print(f"sdk: Python: {count - failed}/{count}")
    return 1 if failed else 0


sys.exit(asyncio.run(main(*sys.argv[1:])))
