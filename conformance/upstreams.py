#!/usr/bin/env python3
"""Calls one tool or more of each of twelve real MCP servers through ringfence. Started by upstreams.sh."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time

binary, packages, stage = sys.argv[1:]
packages = os.path.realpath(packages)
npm = os.path.join(packages, "node_modules")
workspace = os.path.join(stage, "workspace")
node = shutil.which("node")
browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")


def stdio(command, *args, **env):
    return {"trust": "trusted", "transport": {"type": "stdio", "command": command, "args": list(args), "env": env}}


def script(path, *args, **env):
    return stdio(node, os.path.join(npm, path), *args, **env)


SERVERS = {
    "everything": script("@modelcontextprotocol/server-everything/dist/index.js", "stdio"),
    "filesystem": script("@modelcontextprotocol/server-filesystem/dist/index.js", workspace),
    "memory": script(
        "@modelcontextprotocol/server-memory/dist/index.js", MEMORY_FILE_PATH=os.path.join(workspace, "memory.json")
    ),
    "thinking": script("@modelcontextprotocol/server-sequential-thinking/dist/index.js"),
    "playwright": script("@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox", "--executable-path", browser),
    "devtools": script(
        "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js",
        *("--headless", "--isolated", "--executablePath", browser, "--chromeArg=--no-sandbox"),
    ),
    "context7": script("@upstash/context7-mcp/dist/index.js"),
    "notion": script("@notionhq/notion-mcp-server/bin/cli.mjs", NOTION_TOKEN="ntn_no_real_token"),
    "fetch": stdio(os.path.join(packages, "python/bin/mcp-server-fetch")),
    "git": stdio(os.path.join(packages, "python/bin/mcp-server-git"), "--repository", workspace),
    "time": stdio(os.path.join(packages, "python/bin/mcp-server-time")),
    "sqlite": stdio(os.path.join(packages, "sqlite/bin/mcp-server-sqlite"), "--db-path", os.path.join(workspace, "x.db")),
}
WRITERS = ["filesystem", "memory", "sqlite"]
# Tool, arguments, and a part of the text that the server itself answers. Three of them answer that there is no network.
CALLS = [
    ("everything__echo", {"message": "hello"}, "Echo: hello"),
    ("everything__get-tiny-image", {}, "image"),
    ("filesystem__write_file", {"path": os.path.join(workspace, "a.txt"), "content": "x"}, "Successfully wrote"),
    ("filesystem__list_directory", {"path": workspace}, "a.txt"),
    ("memory__create_entities", {"entities": [{"name": "a", "entityType": "b", "observations": ["c"]}]}, '"a"'),
    (
        "thinking__sequentialthinking",
        {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        "thoughtNumber",
    ),
    ("playwright__browser_navigate", {"url": "data:text/html,<title>found</title>"}, "found"),
    ("devtools__list_pages", {}, "about:blank"),
    ("context7__resolve-library-id", {"query": "hooks", "libraryName": "react"}, "fetch failed"),
    ("notion__API-get-self", {}, "EAI_AGAIN"),
    ("fetch__fetch", {"url": "http://127.0.0.1:9/"}, "not a public address"),
    ("git__git_status", {"repo_path": workspace}, "Untracked files"),
    ("time__get_current_time", {"timezone": "Europe/Berlin"}, "Europe/Berlin"),
    ("sqlite__create_table", {"query": "create table a(x)"}, "created"),
    ("sqlite__list_tables", {}, "'a'"),
]


class Client:
    """A client of 2025-11-25 on a pipe that answers every question with its first choice."""

    def __init__(self, arguments):
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers = {}
        threading.Thread(target=self.read, daemon=True).start()
        client = {"name": "check", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": client}
        self.request("initialize", params)
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message:
                self.answers[message["id"]].put(message)
            elif "id" in message:
                properties = message["params"]["requestedSchema"]["properties"]
                content = {name: schema["enum"][0] for name, schema in properties.items() if "enum" in schema}
                self.send({"id": message["id"], "result": {"action": "accept", "content": content}})

    def request(self, method, params):
        number = len(self.answers) + 1
        self.answers[number] = queue.Queue()
        self.send({"id": number, "method": method, "params": params})
        answer = self.answers[number].get(timeout=120)
        return answer.get("result") or answer["error"]

    def tools(self):
        return [tool["name"] for tool in self.request("tools/list", {})["tools"]]


def main():
    os.makedirs(workspace)
    config = os.path.join(stage, "etc")
    os.makedirs(config)
    subprocess.run(["git", "init", "--quiet", workspace], check=True)
    bundles = {name: {"serverId": name, "mode": "direct"} for name in SERVERS}
    with open(os.path.join(config, "upstreams.json"), "w") as file:
        json.dump({"servers": SERVERS, "bundles": bundles}, file)
    with open(os.path.join(config, "config.toml"), "w") as file:
        for name in SERVERS:
            effects = 'side_effects = ["filesystem_write"]\n' if name in WRITERS else ""
            file.write(f"[upstream.{name}]\nstart_timeout_ms = 120000\n{effects}")
    arguments = [binary, "serve", "--root", os.path.join(stage, "root"), "--workspace", workspace]
    arguments += ["--upstreams", os.path.join(config, "upstreams.json"), "--config", os.path.join(config, "config.toml")]
    client = Client(arguments)
    begun, listed = time.monotonic(), set()
    while len(listed) < len(SERVERS) and time.monotonic() - begun < 240:
        listed = {tool.split("__")[0] for tool in client.tools() if "__" in tool}
        time.sleep(0.2)
    print(f"{len(listed)} of {len(SERVERS)} servers listed after {time.monotonic() - begun:.1f} s")
    failed = sorted(set(SERVERS) - listed)
    for tool, args, expected in CALLS:
        begun = time.monotonic()
        result = client.request("tools/call", {"name": tool, "arguments": args})
        text = json.dumps(result.get("content", result), ensure_ascii=False)
        is_right = expected in text.replace('\\"', '"')
        print(f"{'ok    ' if is_right else 'FAILED'} {tool} ({time.monotonic() - begun:.2f} s)")
        if not is_right:
            print(f"       expected {expected!r} in {text[:1000]}")
            failed.append(tool)
    client.process.stdin.close()
    code = client.process.wait(timeout=60)
    left = subprocess.run(["pgrep", "-f", packages], capture_output=True, text=True).stdout.split()
    left = [process for process in left if process != str(os.getpid())]
    print(f"exit code {code}, {len(left)} processes left")
    passed = len(CALLS) - len([tool for tool in failed if "__" in tool])
    print(f"{passed} passed, {len(failed)} failed")
    sys.exit(1 if failed or code or left else 0)


main()
