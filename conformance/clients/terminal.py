"""An agent's own terminal interface in tmux, with someone who answers its questions."""

import contextlib
import re
import subprocess
import time

from codex_run import wait_for
from steps import STEPS, group_calls

PATIENCE = 30
# What only a person at a terminal can do; the rest is done headless.
NAMES = ["once", "session", "again", "deny", "progress", "cancel"]
STEPS_SEEN = [step for step in STEPS if step["step"] in NAMES]


class Terminal:
    """A program in a tmux of its own."""

    def __init__(self, place, words, environment):
        self.tmux = ["tmux", "-f", "/dev/null", "-S", str(place.at / "tmux")]
        pairs = [f"{name}={value}" for name, value in (environment | {"TERM": "xterm-256color"}).items()]
        self.run("new-session", "-d", "-x", "150", "-y", "60", "-c", str(place.workspace), "env", "-i", *pairs, *words)

    def run(self, *words):
        return subprocess.run([*self.tmux, *words], capture_output=True, text=True, check=True).stdout

    def screen(self):
        return self.run("capture-pane", "-p")

    def press(self, key):
        """Presses a key, and waits a moment for the screen to change."""
        before = self.screen()
        self.run("send-keys", key)
        with contextlib.suppress(TimeoutError):
            wait_for("a new screen", lambda: self.screen() != before, 1)

    def press_until(self, key, wanted):
        """Presses one key until the screen shows what is wanted."""
        def shown():
            return re.search(wanted, self.screen()) or self.press(key)

        wait_for(f"{wanted} on the screen", shown, PATIENCE)

    def close(self):
        subprocess.run([*self.tmux, "kill-server"], capture_output=True)


class Person:
    """Answers the questions of one agent. `agent` knows what its questions look like and how to answer them."""

    def __init__(self, place, agent, terminal):
        self.place, self.agent, self.terminal = place, agent, terminal
        self.earlier = len(self.calls())
        self.notes = {}

    def calls(self):
        return group_calls(self.place.records())

    def call(self, number):
        calls = self.calls()[self.earlier:]
        return calls[number] if number < len(calls) else []

    def has(self, number, event):
        return any(record["event"] == event for record in self.call(number))

    def begin(self, prompt):
        """Types the prompt until the agent makes a call: some agents do not wait for their servers."""
        def begun():
            self.agent.pass_start(self.terminal)
            self.terminal.run("send-keys", "-l", prompt)
            wait_for("the prompt", lambda: prompt in self.terminal.screen(), PATIENCE)
            # A line end that follows typing at once is taken for part of a pasted text.
            time.sleep(0.5)
            self.terminal.run("send-keys", "Enter")
            with contextlib.suppress(TimeoutError):
                return wait_for("a call", lambda: self.call(0), 5)

        wait_for("the first call", begun, 2 * PATIENCE)

    def answer(self, number, step):
        """Answers the question of a step; a call that needs no approval ends without one."""
        def asked():
            return re.search(self.agent.question, self.terminal.screen()) or self.has(number, "call.stop")

        wait_for(f"the question of step {step['step']}", asked, PATIENCE)
        if self.has(number, "call.stop"):
            return
        offered, key = self.agent.select_answer(self.terminal, step["answer"])
        self.notes[step["step"]] = {"questions": [{"offered": offered}]}
        self.press_until_recorded(key, number, "approval")

    def press_until_recorded(self, key, number, event):
        """Presses a key until the audit log has the event of a call: agents ignore keys for a moment after a change."""
        wait_for(f"{event} after {key}", lambda: self.has(number, event) or self.terminal.press(key), PATIENCE)

    def watch(self, number):
        """Collects what the screen shows of a running command, until it shows the last line."""
        seen = set()

        def ended():
            lines = set(re.findall(r"tick \d", self.terminal.screen()))
            if "tick 4" not in lines:
                seen.update(lines)
            return self.has(number, "call.stop")

        wait_for("the end of the command", ended, PATIENCE)
        self.notes["progress"] = {"progress": sorted(seen)}

    def interrupt(self, number):
        wait_for("the command", (self.place.workspace / "started").exists, PATIENCE)
        self.press_until_recorded("Escape", number, "call.stop")

    def follow(self, prompt):
        """Takes all steps. Returns notes on the questions and on progress, by step."""
        self.begin(prompt)
        for number, step in enumerate(STEPS_SEEN):
            wait_for(f"the call of step {step['step']}", lambda: self.call(number), PATIENCE)
            if step.get("cancel"):
                self.interrupt(number)
            elif step["step"] == "progress":
                self.watch(number)
            else:
                self.answer(number, step)
        return self.notes


def follow_plan(place, agent, words, environment, prompt):
    """Runs an agent in a terminal to the end of the plan. What the screen showed last is kept in `screen`."""
    terminal = Terminal(place, words, environment)
    person = Person(place, agent, terminal)
    try:
        person.follow(prompt)
    except (TimeoutError, subprocess.CalledProcessError) as error:
        with contextlib.suppress(subprocess.CalledProcessError):
            (place.at / "screen").write_text(f"{error}\n{terminal.screen()}")
    finally:
        terminal.close()
    return person.notes
