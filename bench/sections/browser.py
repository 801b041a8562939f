"""Browser tools on one page, with the same browser. Our page server runs in the session, whose loopback is the only
one that its browser sees; it is the same program and the same bytes."""

import time
from contextlib import ExitStack

import browsers
import processes
from measure import OURS, RowGroup

PEERS = ("playwright", "chrome-devtools", "agent-browser")
NAVIGATE, PNG, BOTH = "browser.navigate", "browser.screenshot, PNG of a settled page", "navigate + screenshot, PNG"
CHOSEN, SNAPSHOT, ANSWER = "navigate + screenshot, as it comes", "browser.snapshot, full", "browser.snapshot, full: answer"
FIRST, MEMORY = "the first page", "memory with a page"


def measure(stage):
    if not stage.browser:
        raise RuntimeError("Chromium is missing: conformance/packages.sh installs it")
    place = stage.section("browser")
    with ExitStack() as stack:
        host = browsers.PageHost(place.workspace, stage.python)
        stack.callback(host.close)
        yield from measure_pages(stage, place, host, stack)
        yield from measure_first_pages(stage, place, host)
        yield from measure_memory(stage, place, host)


def open_browser(stage, place, host, name):
    return browsers.BrowserServer(name, place.argv(name), stage.env, place.workspace, host)


def measure_pages(stage, place, host, stack):
    group = RowGroup(stage, NAVIGATE, PNG, BOTH, CHOSEN, SNAPSHOT, ANSWER, rounds=30)
    for name in (OURS, *PEERS):
        group.add(name, visit_turn(stage, place, host, name, stack), warm=3)
    yield from group.measure()


def visit_turn(stage, place, host, name, stack):
    browser = None

    def turn():
        # It is opened only in its turn, so that one that cannot be opened is left out like any other failure.
        nonlocal browser
        if browser is None:
            browser = open_browser(stage, place, host, name)
            stack.callback(browser.close)
        # A picture right after a navigation waits for the page to be painted, which some servers have already done. So the
        # two together are one row, and a second picture of the settled page is another one.
        navigated, picture = browser.navigate(), browser.screenshot("png")
        snapshot, size = browser.snapshot()
        settled = browser.screenshot("png")
        chosen = browser.navigate() + browser.screenshot()
        return {NAVIGATE: navigated, PNG: settled, BOTH: navigated + picture, CHOSEN: chosen, SNAPSHOT: snapshot, ANSWER: size / 1024}

    return turn


def opened_turn(stage, place, host, name, work):
    def turn():
        browser = open_browser(stage, place, host, name)
        try:
            return work(browser)
        finally:
            browser.close()

    return turn


def measure_first_pages(stage, place, host):
    group = RowGroup(stage, FIRST, rounds=10)
    for name in (OURS, *PEERS):
        group.add(name, opened_turn(stage, place, host, name, lambda browser: browser.navigate()))
    yield from group.measure()


def measure_memory(stage, place, host):
    """Measures one server at a time: memory that several share would be divided among them."""
    group = RowGroup(stage, MEMORY, rounds=5)

    def hold(browser):
        for _ in range(5):
            browser.navigate()
            browser.screenshot("png")
        # The memory of a page that no one looks at, as between two steps of an agent.
        time.sleep(1)
        family = browser.family()
        group.note(f"{browser.name}: {len(family)} processes")
        return processes.measure_pss_mb(family)

    for name in (OURS, *PEERS):
        group.add(name, opened_turn(stage, place, host, name, hold), warm=0)
    yield from group.measure()
