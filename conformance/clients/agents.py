"""Agents on the command line, each with the scripted model of model.py in place of its own."""

import json
import re
import subprocess

import packages
import terminal
from codex_run import CODEX_CONFIG, wait_for
from commands import NO_NOTICE, end_program, interrupt_program
from model import Model
from steps import STEPS, is_picture

PATIENCE = 60
PROMPT = "Follow the plan."


class Agent:
    """A headless agent. `words(place, model)` starts it; `more(place, model)` is its environment."""

    transports = ["stdio", "http", "sse"]
    missing = {"progress": "Its headless mode shows no progress"}

    def __init__(self, name, title, program):
        self.title, self.version = title, packages.version_of(packages.NPM[name][0])
        self.program = str(packages.install_npm(name) / "node_modules/.bin" / program)

    def lacks(self, _transport):
        return self.missing

    def entry(self, place):
        """The server in the form that most agents share."""
        program, *words = place.command()
        if place.url:
            return {"type": place.transport, "url": place.url}
        return {"type": "stdio", "command": program, "args": words}

    def more(self, _place, _model):
        return {}

    def take_steps(self, place):
        # Nothing follows a call that was cancelled: the agent has ended with it.
        return self.take_headless(place, STEPS[:-1])

    def take_headless(self, place, chosen):
        with Model(chosen) as model:
            words = self.words(place, model)
            with open(place.at / "log", "w") as log:
                agent = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=place.workspace,
                                         env=place.environment(**self.more(place, model)), start_new_session=True)
            if any(step.get("cancel") for step in chosen):
                interrupt_program(agent, place)
            else:
                end_program(agent, PATIENCE)
            return self.add_progress(place, model.reports())

    def add_progress(self, place, reports):
        """What the agent printed while the command of the step ran, and the call that was cancelled."""
        log = (place.at / "log").read_text()
        lines = [line for line in log.splitlines() if self.is_progress(line)]
        for report in reports:
            if report["step"] == "progress":
                report["progress"] = lines
            elif report["step"] == "image" and not report["image"]:
                # Shown to the user, although the model got no image.
                report["image"] = next((data for data in re.findall('"data":"([^"]{99,})"', log) if is_picture(data)), None)
        return reports + ([{"step": "cancel"}] if (place.workspace / "started").exists() else [])

    def is_progress(self, _line):
        return False


class TerminalAgent(Agent):
    """An agent that also has a terminal interface in which it asks questions."""

    def pass_start(self, terminal):
        """Passes everything that the agent shows before its prompt."""
        wait_for("the prompt of the agent", lambda: re.search(self.prompt, terminal.screen()), PATIENCE)

    def take_steps(self, place):
        reports = self.take_headless(place, [step for step in STEPS[:-1] if step not in terminal.STEPS_SEEN])
        with Model(terminal.STEPS_SEEN) as model:
            environment = place.environment(**self.more(place, model))
            notes = terminal.follow_plan(place, self, self.terminal_words(place, model), environment, PROMPT)
            seen = model.reports()[2:]
        if (place.workspace / "started").exists():
            seen = [report for report in seen if report["step"] != "cancel"] + [{"step": "cancel"}]
        return reports + [report | notes.get(report["step"], {}) for report in seen]


class Codex(TerminalAgent):
    transports = ["stdio", "http"]
    missing = {"progress": "Its terminal shows no progress"}
    prompt, question = "(?m)^ *›", "Allow `whoami"
    labels = {"once": r"(\d)\. Allow  ", "session": r"(\d)\. Allow for this session", "deny": r"(\d)\. (?:Deny|No)"}

    def write_config(self, place, model):
        program, *words = place.command()
        reached = f"url = {json.dumps(place.url)}" if place.url else f"command = {json.dumps(program)}\nargs = {json.dumps(words)}"
        config = CODEX_CONFIG.format(model="scripted", port=model.server_port, reached=reached, workspace=json.dumps(str(place.workspace)))
        (place.home / ".codex").mkdir(exist_ok=True)
        (place.home / ".codex/config.toml").write_text(config)

    def words(self, place, model):
        self.write_config(place, model)
        return [self.program, "exec", "--json", "--skip-git-repo-check", "--sandbox", "workspace-write", PROMPT]

    def terminal_words(self, place, model):
        self.write_config(place, model)
        return [self.program, "--sandbox", "workspace-write", "--ask-for-approval", "on-request"]

    def select_answer(self, terminal, answer):
        def selected():
            screen = terminal.screen()
            entry, marked = re.search(self.labels[answer], screen), re.search(r"› (\d)\.", screen)
            return (entry and marked and entry[1] == marked[1]) or terminal.press("Down")

        wait_for(f"the entry {answer}", selected, PATIENCE)
        return ["once", "session"], "Enter"


class ClaudeCode(TerminalAgent):
    prompt, question = r"(?m)^❯", "requests your input"

    def options(self, place):
        config = {"mcpServers": {"ringfence": self.entry(place)}}
        (place.at / "mcp.json").write_text(json.dumps(config))
        return ["--mcp-config", str(place.at / "mcp.json"), "--strict-mcp-config", "--allowedTools", "mcp__ringfence"]

    def words(self, place, _model):
        return [self.program, "-p", PROMPT, *self.options(place), "--output-format", "stream-json", "--verbose"]

    def terminal_words(self, place, _model):
        # As after its first start: folder trusted, key accepted.
        project = {str(place.workspace): {"hasTrustDialogAccepted": True}}
        state = {"hasCompletedOnboarding": True, "theme": "dark", "projects": project,
                 "customApiKeyResponses": {"approved": ["none"], "rejected": []}}
        (place.home / ".claude.json").write_text(json.dumps(state))
        return [self.program, *self.options(place)]

    def select_answer(self, terminal, answer):
        terminal.press_until("Right", "◉ Allow once")
        offered = ["once", *(["session"] if "Allow for this session" in terminal.screen() else [])]
        if answer == "session" and "session" in offered:
            terminal.press_until("Down", "❯ . Allow for this session")
            terminal.press_until("Space", "◉ Allow for this session|Answer: (▸ )?Allow for this session")
        terminal.press_until("Left", "(▸|Answer:) Allow")
        terminal.press_until("Down", "❯ Accept")
        if answer == "deny":
            terminal.press_until("Right", "❯ Decline")
        return offered, "Enter"

    def more(self, _place, model):
        return {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "ENABLE_TOOL_SEARCH": "false"}


class SilentAgent(Agent):
    """An agent that ends without a word to a server on the network."""

    def lacks(self, transport):
        return self.missing | ({"cancel": NO_NOTICE} if transport == "http" else {})


class Gemini(SilentAgent):
    def entry(self, place):
        entry = super().entry(place)
        kind = entry.pop("type")
        if kind == "http":
            entry = {"httpUrl": entry["url"]}
        return entry | {"trust": True}

    def words(self, place, model):
        settings = {"mcpServers": {"ringfence": self.entry(place)}, "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "general": {"disableAutoUpdate": True}, "privacy": {"usageStatisticsEnabled": False}}
        (place.home / ".gemini").mkdir()
        (place.home / ".gemini/settings.json").write_text(json.dumps(settings))
        return [self.program, "-p", PROMPT, "--approval-mode", "yolo", "--skip-trust", "-m", "gemini-2.5-flash", "-o", "stream-json"]

    def more(self, _place, model):
        return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model.url}


class QwenCode(Agent):
    def entry(self, place):
        entry = super().entry(place)
        kind = entry.pop("type")
        if kind == "http":
            entry = {"httpUrl": entry["url"]}
        return entry | {"trust": True}

    def words(self, place, model):
        config = json.dumps({"mcpServers": {"ringfence": self.entry(place)}})
        # Otherwise the model has to search for tools first.
        (place.home / ".qwen").mkdir()
        (place.home / ".qwen/settings.json").write_text(json.dumps({"tools": {"toolSearch": {"enabled": False}}}))
        return [self.program, PROMPT, "--yolo", "--auth-type", "openai", "--openai-base-url", f"{model.url}/v1",
                "--openai-api-key", "none", "-m", "qwen3-vl-plus", "--mcp-config", config, "-o", "stream-json"]


class OpenCode(SilentAgent):
    transports = ["stdio", "http"]

    def words(self, place, model):
        entry = {"type": "remote", "url": place.url} if place.url else {"type": "local", "command": place.command()}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "script", "options": {"baseURL": f"{model.url}/v1", "apiKey": "none"},
                    "models": {"scripted": {"name": "scripted", "attachment": True,
                                            "modalities": {"input": ["text", "image"], "output": ["text"]}}}}
        config = {"mcp": {"ringfence": entry | {"enabled": True}}, "provider": {"script": provider}, "model": "script/scripted",
                  "autoupdate": False, "share": "disabled"}
        (place.at / "opencode.json").write_text(json.dumps(config))
        return [self.program, "run", "--format", "json", "--auto", "-m", "script/scripted", PROMPT]

    def more(self, place, _model):
        return {"OPENCODE_CONFIG": str(place.at / "opencode.json"), "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_AUTOUPDATE": "1"}


class CopilotCli(TerminalAgent):
    prompt, question = r"(?m)^❯|/ commands", "needs information"

    def options(self, place):
        entry = self.entry(place) | {"tools": ["*"]}
        (place.at / "mcp.json").write_text(json.dumps({"mcpServers": {"ringfence": entry}}))
        return ["--allow-all-tools", "--additional-mcp-config", f"@{place.at / 'mcp.json'}", "--no-auto-update", "--disable-builtin-mcps"]

    def words(self, place, _model):
        return [self.program, "-p", PROMPT, *self.options(place), "--output-format", "json"]

    def terminal_words(self, place, _model):
        return [self.program, *self.options(place)]

    def more(self, _place, model):
        return {"COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_BASE_URL": f"{model.url}/v1", "COPILOT_MODEL": "gpt-4.1",
                "COPILOT_PROVIDER_API_KEY": "none"}

    def is_progress(self, line):
        return '"tool.execution_progress"' in line

    def pass_start(self, terminal):
        trust = "Do you trust the files"
        wait_for("the prompt of the agent", lambda: re.search(f"{self.prompt}|{trust}", terminal.screen()), PATIENCE)
        if trust in terminal.screen():
            terminal.press("Enter")
            super().pass_start(terminal)

    def select_answer(self, terminal, answer):
        offered = ["once", *(["session"] if "Allow for this session" in terminal.screen() else [])]
        if answer == "session" and "session" in offered:
            terminal.press_until("Down", "❯ Allow for this session")
        return offered, "C-d" if answer == "deny" else "Enter"
