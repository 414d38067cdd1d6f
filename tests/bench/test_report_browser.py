"""The report in a real browser: light, dark, narrow and on paper, without asking anybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_runs import RECORD, ROWS, costs, rounds
from browser import chromium

from neuron_spec.bench.report import html_report
from neuron_spec.bench.run import run_of


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html_report(run_of(RECORD, ROWS, rounds(), costs())), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(params=["light", "dark"])
def tab(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The report in a tab; nothing may complain, and nobody else is asked."""
    context = browser.new_context(
        color_scheme=request.param, viewport={"width": 1200, "height": 900}
    )
    page, asked, complaints = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(address)
    yield page
    assert asked == [address]
    assert complaints == []
    context.close()


def luminance(color: str) -> float:
    """Of `rgb(r, g, b)`, as WCAG 2.1 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(tab: Any, selector: str, ground: str) -> float:
    color = "element => getComputedStyle(element).color"
    background = "element => getComputedStyle(element).backgroundColor"
    values = [
        tab.locator(selector).first.evaluate(color),
        tab.locator(ground).first.evaluate(background),
    ]
    light, dark = sorted(map(luminance, values), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_it_can_be_read(tab: Any) -> None:
    assert tab.locator("h1").inner_text() == "a <b>"
    assert tab.locator("svg").count() >= 5
    for selector, ground in (
        ("h1", "body"),
        (".lead", "body"),
        ("td", "section"),
        ("th", "section"),
    ):
        assert contrast(tab, selector, ground) >= 4.5, selector


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_sticks_out(tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_on_paper_it_is_black_on_white_and_nothing_is_cut(tab: Any) -> None:
    tab.emulate_media(media="print")
    assert tab.locator("body").evaluate("b => getComputedStyle(b).backgroundColor") in (
        "rgb(255, 255, 255)", "rgba(0, 0, 0, 0)",
    )  # fmt: skip
    assert contrast(tab, "td", "section") >= 7
    hidden = tab.locator(".scroll").evaluate_all(
        "all => all.filter(each => getComputedStyle(each).overflowX !== 'visible').length"
    )
    assert hidden == 0
    assert len(tab.pdf(format="A4")) > 10_000
