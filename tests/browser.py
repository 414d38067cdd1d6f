"""Chromium for the tests of the page, and what it saw."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (the dev extra has it)"
    )
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=FLAGS, headless=True)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Seen:
    """What a page did.

    Attributes:
        errors: what its console and its scripts complained of.
        strangers: addresses it asked that are not the server's.
        bodies: what it sent.
    """

    errors: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


class Page:
    """The page of one server, in a tab of its own."""

    def __init__(self, tab: Any, url: str, seen: Seen) -> None:
        self.tab, self.url, self.seen = tab, url, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tab, name)

    def wait(self, selector: str, text: str) -> None:
        """Until an element's text matches."""
        expect(self.tab.locator(selector)).to_have_text(re.compile(text, re.DOTALL), timeout=30_000)

    def until(self, condition: Callable[[], object]) -> None:
        """Until something is so on the server; the tab goes on meanwhile."""
        for _ in range(1500):
            if condition():
                return
            self.tab.wait_for_timeout(20)
        raise AssertionError("it did not happen in time")

    def generate(self, prompt: str, *, button: str = "#generate", max_tokens: int = 40) -> None:
        """Fill the form in and press."""
        self.tab.fill("#prompt", prompt)
        self.tab.fill("#max_tokens", str(max_tokens))
        self.tab.click(button)

    def tokens(self, run: int = 0) -> list[dict[str, str]]:
        """Text, origin and title of every token shown."""
        code = """tokens => tokens.map(token => ({
            text: token.textContent, origin: token.classList[1], title: token.title}))"""
        shown = self.tab.locator(".run").nth(run).locator(".output .token")
        return list(shown.evaluate_all(code))


@contextmanager
def opened(browser: Any, url: str, *, is_ready: bool = True, **options: Any) -> Iterator[Page]:
    """The page of a server; afterwards it must not have complained or asked anybody else.

    Args:
        is_ready: whether the server tells its model; otherwise the page is just loaded.
        options: of the tab, such as `color_scheme` and `viewport`.
    """
    seen = Seen()
    context = browser.new_context(**options)
    tab = context.new_page()

    def route(way: Any) -> None:
        if not way.request.url.startswith(f"{url}/"):
            seen.strangers.append(way.request.url)
        if way.request.method == "POST":
            seen.bodies.append(json.loads(way.request.post_data))
        way.continue_()

    context.route("**/*", route)
    tab.on("pageerror", lambda error: seen.errors.append(str(error)))
    tab.on("console", lambda message: _note(seen, message))
    try:
        tab.goto(f"{url}/")
        page = Page(tab, url, seen)
        if is_ready:
            expect(tab.locator("#generate")).to_be_enabled()
        yield page
        assert seen.errors == []
        assert seen.strangers == []
    finally:
        context.close()


def _note(seen: Seen, message: Any) -> None:
    # The browser itself notes every refused request there; the tests look at what the page says.
    if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
        seen.errors.append(message.text)


def expect(locator: Any) -> Any:
    """Playwright's, imported late: it may not be installed."""
    from playwright.sync_api import expect as of_playwright

    return of_playwright(locator)
