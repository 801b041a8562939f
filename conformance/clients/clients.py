"""The clients of the matrix, each with its package, its transports, and what it does not offer."""

import json
import subprocess
from pathlib import Path

import agents
import commands
import packages
from place import TRANSPORTS

ADAPTERS = Path(__file__).resolve().parent / "adapters"
PATIENCE = 120
NO_PROGRESS = "It offers no progress to its user"


class AdapterClient:
    """A library, driven by a program in adapters/ that prints a report for each step."""

    transports = TRANSPORTS

    def __init__(self, name, title, adapter, **missing):
        self.title, self.adapter, self.missing = title, adapter, missing
        package = (packages.NPM.get(name) or packages.PYPI[name])[0]
        self.version = packages.version_of(package)
        if name in packages.NPM:
            self.command = ["node", str(packages.install_npm(name) / adapter)]
        else:
            self.command = [str(packages.install_pypi(name)), str(ADAPTERS / adapter)]

    def lacks(self, _transport):
        return self.missing

    def take_steps(self, place):
        return read_reports(self.command, place, place.target())


def read_reports(command, place, target):
    """Runs an adapter to its end, and returns its reports. What it says on standard error is kept in `log`."""
    with open(place.at / "log", "w") as log:
        adapter = subprocess.Popen([*command, json.dumps(target)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                   text=True, env=place.environment(), cwd=place.workspace, start_new_session=True)
    printed = commands.end_program(adapter, PATIENCE) or ""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def adapter(*words, **missing):
    return lambda: AdapterClient(*words, **missing)


def bridge(kind):
    return lambda: kind(read_reports, ["node", str(packages.install_npm("typescript-1") / "typescript_1.mjs")])


CLIENTS = {
    "codex": lambda: agents.Codex("codex", "Codex", "codex"),
    "claude-code": lambda: agents.ClaudeCode("claude-code", "Claude Code", "claude"),
    "gemini": lambda: agents.Gemini("gemini", "Gemini CLI", "gemini"),
    "qwen": lambda: agents.QwenCode("qwen", "Qwen Code", "qwen"),
    "opencode": lambda: agents.OpenCode("opencode", "opencode", "opencode"),
    "copilot": lambda: agents.CopilotCli("copilot", "Copilot CLI", "copilot"),
    "python-1": adapter("python-1", "Python SDK 1.x", "python_1.py"),
    "python-2": adapter("python-2", "Python SDK 2.x", "python_2.py"),
    "typescript-1": adapter("typescript-1", "TypeScript SDK 1.x", "typescript_1.mjs"),
    "typescript-2": adapter("typescript-2", "TypeScript SDK 2.x", "typescript_2.mjs"),
    "fastmcp": adapter("fastmcp", "FastMCP", "fastmcp_4.py"),
    "ai-sdk": adapter("ai-sdk", "AI SDK MCP", "ai_sdk.mjs", progress=NO_PROGRESS),
    "openai-agents": adapter("openai-agents", "OpenAI Agents SDK", "openai_agents.py", progress=NO_PROGRESS),
    "langchain": adapter("langchain", "LangChain adapters", "langchain_0.py"),
    "inspector": lambda: commands.Inspector("inspector", "Inspector"),
    "mcporter": lambda: commands.Mcporter("mcporter", "mcporter"),
    "mcp-remote": bridge(commands.McpRemote),
    "supergateway": bridge(commands.Supergateway),
}
# `make sdk` and `make inspector` run the Python SDK 1.x, the TypeScript SDK 1.x and the Inspector.
SHORT = ["python-2", "typescript-2", "ai-sdk", "mcp-remote"]
