"""The page in a real browser, against a real server on a real socket."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from browser import chromium, expect, opened
from served import (
    CHAT,
    COMPLETIONS,
    AnySpeculator,
    Words,
    any_app,
    live,
    sse,
    wait_until,
    with_limits,
)

from neuron_spec import compile_model, load_spec, prepare
from neuron_spec.backends.base import StepResult
from neuron_spec.engine import Session
from neuron_spec.serving.app import create_app, create_session_app

PROMPT = "abcabcabcabcab"
MARKUP = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("page")
    tiny.write_target(folder / "target", seed=1)  # whose answers have tokens of every origin
    path = tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "ngram", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 64, "max_total_tokens": 160, "batch_size": 2},
    )
    spec = load_spec(path)
    return compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")


@pytest.fixture(scope="module")
def real(artifact: Any) -> Iterator[str]:
    """The address of a server of a real artifact."""
    with live(create_app(artifact)) as server:
        yield server.url


def answer_to(url: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The API's own answer to what the page sent: its usage, and all tokens."""
    path = CHAT if "messages" in body else COMPLETIONS
    events = sse(httpx.post(f"{url}{path}", json=body, timeout=30).text)[:-1]
    tokens = [token for e in events for choice in e["choices"] for token in choice["tokens"]]
    return events[-1]["usage"], tokens


def shown_tokens(shown: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Without a last, incomplete character, which belongs to no token."""
    return [(one["text"], one["origin"]) for one in shown if one["origin"] != "held"]


def bars_of(page: Any) -> list[str]:
    return list(page.locator("#bars .value").all_inner_texts())


def figures_of(page: Any, run: int = 0) -> dict[str, str]:
    shown = page.locator(".run").nth(run).locator(".figures div")
    return dict(text.split("\n") for text in shown.all_inner_texts())


# Generate


@pytest.mark.parametrize("endpoint", ["chat", "completion"])
def test_tokens_origins_and_bars_are_the_apis_own(browser: Any, real: str, endpoint: str) -> None:
    with opened(browser, real) as page:
        page.check(f"[name=endpoint][value={endpoint}]")
        page.generate(PROMPT, max_tokens=60)
        page.wait("#status", "^Done: ")
        (body,) = page.seen.bodies
        assert ("messages" in body) == (endpoint == "chat")
        assert (body["max_tokens"], body["temperature"]) == (60, 0)
        usage, tokens = answer_to(real, body)
        shown = page.tokens()
        expected = [(token["text"], token["origin"]) for token in tokens if token["text"]]
        assert shown_tokens(shown) == expected
        assert {"accepted", "corrected", "bonus", "plain"} == {origin for _, origin in expected}
        for origin in ("accepted", "corrected", "bonus", "plain"):
            count = sum(token["origin"] == origin for token in tokens)
            assert page.inner_text(f"#num-{origin}") == str(count)
        rates = usage["acceptance"]["acceptance_rate_by_position"]
        assert [int(text.rstrip(" %")) for text in bars_of(page)] == pytest.approx(
            [100 * rate for rate in rates], abs=0.51
        )
        assert f"{usage['acceptance']['num_steps']} steps" in page.inner_text("#acceptance-note")
        figures = figures_of(page)
        assert figures["Tokens"] == str(len(tokens)) == str(usage["completion_tokens"])
        assert figures["Per step"] == f"{usage['acceptance']['acceptance_length']:.2f}"
        assert all(character in "0123456789. ms" for character in figures["TTFT"] + figures["TPOT"])


def test_a_token_tells_its_origin_step_and_position(browser: Any) -> None:
    with live(any_app()) as server, opened(browser, server.url) as page:
        page.generate("5 6", max_tokens=8)
        page.wait("#status", "^Done: 8 tokens; ended by the limit")
        titles = [token["title"] for token in page.tokens()]
        assert titles[:4] == [
            "plain: the prompt's own next token",
            "accepted draft, position 1 of 3; step 1",
            "corrected: the target's own after 1 of 3 accepted; step 1",
            "accepted draft, position 1 of 3; step 2",
        ]
        assert titles[6] == "bonus: the target's own after all 3 accepted; step 2"


def test_bars_fill_while_tokens_arrive(browser: Any) -> None:
    steps = threading.Semaphore(0)

    class Stepwise(AnySpeculator):
        def step(self, num_draft_tokens: int) -> list[StepResult]:
            assert steps.acquire(timeout=20)
            return super().step(num_draft_tokens)

    with live(any_app(Stepwise())) as server, opened(browser, server.url) as page:
        page.generate("5 6", max_tokens=11)
        for rates in (["100 %", "0 %", "0 %"], ["100 %", "50 %", "50 %"]):  # 1 and 3 of 3
            assert page.inner_text("#status") == "Generating…"
            steps.release()
            expect(page.locator("#bars .value")).to_have_text(rates)
        steps.release()
        page.wait("#status", "^Done")
        assert bars_of(page) == ["100 %", "67 %", "67 %"]  # and 3 again


def test_markup_in_an_answer_is_text(browser: Any) -> None:
    class Hostile(Words):
        def decode(self, token_ids: Any) -> str:
            return MARKUP * len(token_ids)

    session = Session(AnySpeculator(), Hostile())
    name = f"{MARKUP}model"
    with (
        live(create_session_app(session, model_name=name)) as server,
        opened(browser, server.url) as page,
    ):
        page.generate("5 6", max_tokens=6)
        page.wait("#status", "^Done")
        assert page.locator(".output").inner_text() == MARKUP * 6
        assert page.locator("img").count() == 0
        assert page.title() == "neuron-spec"
        assert name in page.inner_text("#headline")


# Compare


def test_comparing_runs_the_same_prompt_on_and_off(browser: Any, real: str) -> None:
    with opened(browser, real) as page:
        page.generate(PROMPT, button="#compare", max_tokens=60)
        page.wait("#status", "^Done")
        on, off = page.seen.bodies
        assert off == {**on, "speculate": False}
        assert "speculate" not in on
        first, second = page.tokens(0), page.tokens(1)
        assert [token["text"] for token in first] == [token["text"] for token in second]
        assert {origin for _, origin in shown_tokens(second)} == {"plain"}
        assert {origin for _, origin in shown_tokens(first)} > {"accepted"}
        assert page.locator(".run h2").all_inner_texts() == ["Speculation on", "Speculation off"]
        assert "The same text, token for token." in page.inner_text("#verdict")
        rows = page.locator("#verdict tbody tr").all_inner_texts()
        cells = [row.split("\t") for row in rows]
        assert [row[0] for row in cells] == ["TTFT", "TPOT", "Tokens/s"]
        assert all(len(row) == 4 and row[3].endswith("×") for row in cells)
        shown = [figures_of(page, run)["TPOT"] for run in (0, 1)]
        assert cells[1][1:3] == shown
        assert page.inner_text("#num-plain") != str(len(second))  # the legend counts the first


def test_texts_that_part_are_told_with_the_place(browser: Any) -> None:
    class Wavering(AnySpeculator):
        """Another token at position 4 where nothing is drafted."""

        def step(self, num_draft_tokens: int) -> list[StepResult]:
            starts = {slot: row.position for slot, row in self.rows.items()}
            results = super().step(num_draft_tokens)
            if num_draft_tokens:
                return results
            return [
                StepResult(one.slot, (99,), 0, 0) if starts[one.slot] == 4 else one
                for one in results
            ]

    speculator = Wavering()
    with live(any_app(speculator)) as server, opened(browser, server.url) as page:
        page.fill("#temperature", "0")
        page.generate("5 6", button="#compare", max_tokens=8)
        page.wait("#status", "^Done")
        assert "The texts part at token 5." in page.inner_text("#verdict")
        page.fill("#temperature", "1")
        page.click("#compare")
        page.wait("#verdict", "The texts part at token 5, as samples do.")


def test_without_a_draft_there_is_nothing_to_compare(browser: Any, artifact: Any) -> None:
    with live(create_app(artifact, speculate=False)) as server, opened(browser, server.url) as page:
        assert page.is_disabled("#compare")
        assert "without a draft" in page.inner_text("#compare-hint")
        page.generate(PROMPT)
        page.wait("#status", "^Done")
        assert {origin for _, origin in shown_tokens(page.tokens())} == {"plain"}
        assert bars_of(page) == []
        assert page.inner_text("#acceptance-note") == "Nothing was drafted."


# Stopping and failing


@pytest.mark.parametrize("how", ["button", "key"])
def test_stopping_frees_the_servers_slot(browser: Any, how: str) -> None:
    speculator = with_limits(max_total_tokens=100_000)
    speculator.pause_s = 0.05
    with live(any_app(speculator)) as server, opened(browser, server.url) as page:
        assert page.is_disabled("#stop")
        page.generate("5 6", max_tokens=50_000)
        expect(page.locator(".output .token").nth(3)).to_be_visible()
        assert speculator.rows
        if how == "button":
            page.click("#stop")
        else:
            page.keyboard.press("Escape")
        page.wait("#status", "^Stopped")
        wait_until(lambda: not speculator.rows)
        assert len(page.tokens()) >= 4
        assert page.inner_text(".run .chip") == "stopped by you"
        assert page.is_enabled("#generate")
        page.generate("5 6", max_tokens=3)
        page.wait("#status", "^Done: 3 tokens")


def test_a_refused_field_is_named_and_marked(browser: Any, real: str) -> None:
    with opened(browser, real) as page:
        page.generate("x" * 65)
        page.wait("#error", "^Error 400 in messages.*the prompt is too long.*at most 64")
        assert page.get_attribute("#prompt", "aria-invalid") == "true"
        page.generate(PROMPT, max_tokens=4)
        page.wait("#status", "^Done")
        assert page.is_hidden("#error")
        assert page.get_attribute("#prompt", "aria-invalid") is None


def test_a_key_is_asked_for_and_kept_nowhere(browser: Any) -> None:
    with (
        live(any_app(api_keys=("sesame",))) as server,
        opened(browser, server.url, is_ready=False) as page,
    ):
        expect(page.locator("#key-form")).to_be_visible()
        assert page.is_hidden("#error")
        assert page.is_disabled("#generate")
        expect(page.locator("#key")).to_be_focused()
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait("#error", "^Error 401")
        expect(page.locator("#key")).to_have_value("")
        page.fill("#key", "sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        assert page.is_hidden("#error")
        page.generate("5 6", max_tokens=3)
        page.wait("#status", "^Done: 3 tokens")
        assert "sesame" not in page.content()
        assert "$NEURON_SPEC_API_KEY" in page.text_content("#curl-text")
        kept = page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]")
        assert kept == ["", 0, 0]


def test_a_busy_server_says_when_to_come_back(browser: Any) -> None:
    speculator = with_limits(batch_size=1)
    speculator.go.clear()
    with (
        live(any_app(speculator, max_waiting=0)) as server,
        opened(browser, server.url) as page,
        opened(browser, server.url) as other,
    ):
        page.generate("5 6")
        page.until(lambda: speculator.rows)
        other.generate("5 6")
        other.wait("#error", r"^Error 429.*1 requests run or wait.*Try again in \d+ s\.")
        assert other.is_enabled("#generate")
        assert other.locator(".run").count() == 0
        speculator.go.set()
        page.wait("#status", "^Done")


def test_a_server_that_goes_down_says_so(browser: Any) -> None:
    app = any_app()
    with live(app) as server, opened(browser, server.url) as page:
        app.gate.is_closed = True  # type: ignore[attr-defined]
        page.generate("5 6")
        page.wait("#error", r"^Error 503.*going down.*Try again in \d+ s\.")


def test_a_server_that_is_gone_is_told(browser: Any) -> None:
    with live(any_app()) as server, opened(browser, server.url) as page:
        server.tell_to_end()
        server.thread.join(10)
        page.generate("5 6")
        page.wait("#error", "^Error.*The server cannot be reached")


def test_a_failure_in_the_middle_keeps_what_came(browser: Any) -> None:
    class Breaking(AnySpeculator):
        def step(self, num_draft_tokens: int) -> list[StepResult]:
            if any(row.position > 4 for row in self.rows.values()):
                raise RuntimeError("the device is gone")
            return super().step(num_draft_tokens)

    with live(any_app(Breaking())) as server, opened(browser, server.url) as page:
        page.generate("5 6", button="#compare")
        page.wait("#error", "^Error.*the device is gone")
        assert page.locator(".run").count() == 1
        assert len(page.tokens()) == 7
        assert page.inner_text(".run .chip") == "broke off"
        assert page.is_hidden("#verdict")
        assert page.is_enabled("#generate")


# The rest of the page


def test_the_model_card_in_words(browser: Any, real: str) -> None:
    with opened(browser, real) as page:
        headline = page.inner_text("#headline")
        assert headline == "tiny · ngram draft · up to 3 drafted tokens a step"
        card = page.inner_text("#model")
        assert "greedy verification" in card
        for level in ("bitwise identity", "distribution equivalence", "quality parity"):
            assert f"{level} stated" in card
        source = page.locator("#model details p").first
        expect(source).to_be_hidden()
        page.locator("#model summary").first.click()
        expect(source).to_contain_text("argmax")
        assert page.is_disabled("#temperature")  # the greedy rule
        assert page.is_visible("#greedy-only")


def test_the_curl_command_runs_and_says_the_same(browser: Any, real: str) -> None:
    with opened(browser, real) as page:
        page.check("[name=endpoint][value=completion]")
        page.generate("it's $HOME \"quoted\" \\ 'x'", max_tokens=12)
        page.wait("#status", "^Done")
        command = page.text_content("#curl-text").replace("curl -N", "curl -sN")
        told = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
        tokens = [t for e in sse(told.stdout)[:-1] for c in e["choices"] for t in c["tokens"]]
        expected = [(token["text"], token["origin"]) for token in tokens if token["text"]]
        assert shown_tokens(page.tokens()) == expected
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click("#curl summary")
        page.click("#copy")
        page.wait("#status", "^Copied")
        assert page.evaluate("navigator.clipboard.readText()") == page.text_content("#curl-text")


def test_the_keyboard_is_enough(browser: Any) -> None:
    with live(any_app()) as server, opened(browser, server.url) as page:
        order = []
        for _ in range(6):
            page.keyboard.press("Tab")
            order.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
        assert order == ["prompt", "endpoint", "max_tokens", "temperature", "seed", "generate"]
        page.focus("#prompt")
        page.keyboard.press("Control+Enter")
        page.wait("#status", "^Done")
        page.focus(".output")
        page.keyboard.press("ArrowRight")
        page.wait(".told", "^From the prompt: nothing drafted: ")
        page.keyboard.press("ArrowRight")
        page.wait(".told", "^Step 1: 1 of 3 drafted positions accepted: ")
        page.keyboard.press("ArrowLeft")
        page.wait(".told", "^From the prompt")


def test_everything_to_press_or_fill_has_a_name(browser: Any, real: str) -> None:
    with opened(browser, real) as page:
        for role, names in {
            "textbox": ["Prompt"],
            "radio": ["Chat", "Completion"],
            "spinbutton": ["Max tokens", "Temperature", "Seed"],
            "button": ["Generate", "Compare on and off", "Stop"],
        }.items():
            for name in names:
                assert page.get_by_role(role, name=name, exact=True).count() == 1, name
        page.generate(PROMPT)
        page.wait("#status", "^Done")
        assert page.get_by_role("group", name="Output, speculation on").count() == 1
        assert page.locator("html").get_attribute("lang") == "en"
        headings = page.locator("h1, h2, h3").evaluate_all("all => all.map(h => h.tagName)")
        assert (headings[0], headings.count("H1")) == ("H1", 1)


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance of "rgb(r, g, b)"."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_can_be_read_and_origins_differ_without_colour(
    browser: Any, real: str, scheme: str
) -> None:
    code = """one => { const style = getComputedStyle(one);
        return [style.color, style.backgroundColor, style.textDecorationColor,
                style.textDecorationLine + " " + style.textDecorationStyle]; }"""
    with opened(browser, real, color_scheme=scheme) as page:
        panel = page.locator(".card").first.evaluate("c => getComputedStyle(c).backgroundColor")
        assert (luminance(panel) < 0.1) == (scheme == "dark")
        styles = {}
        for origin in ("accepted", "corrected", "bonus"):
            ink, ground, line, style = page.locator(f".legend .{origin}").evaluate(code)
            assert contrast(ink, ground) >= 4.5  # WCAG 2 AA: text
            assert contrast(line, ground) >= 3  # and what else must be seen
            styles[origin] = style
        styles["plain"] = page.locator(".legend .plain").evaluate(code)[3].split()[0]
        assert len(set(styles.values())) == 4
        for selector in ("#headline", ".hint >> nth=1", "#generate", "#model .chip >> nth=0"):
            ink, ground, *_ = page.locator(selector).evaluate(code)
            page_ground = page.locator("body").evaluate("b => getComputedStyle(b).backgroundColor")
            behind = {"#headline": page_ground}.get(selector, panel)
            assert contrast(ink, behind if ground == "rgba(0, 0, 0, 0)" else ground) >= 4.5


@pytest.mark.parametrize("width", [320, 768, 1400])
def test_nothing_sticks_out_sideways(browser: Any, real: str, width: int) -> None:
    with opened(browser, real, viewport={"width": width, "height": 800}) as page:
        page.generate(PROMPT, button="#compare")
        page.wait("#status", "^Done")
        page.click("#curl summary")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_it_works_below_a_prefix(browser: Any, real: str) -> None:
    """As behind a proxy: every address is relative."""
    with opened(browser, real) as page:

        def forward(way: Any) -> None:
            target = way.request.url.replace("/below/", "/")
            way.fulfill(response=way.fetch(url=target))

        page.route("**/below/**", forward)
        page.goto(f"{real}/below/")
        expect(page.locator("#generate")).to_be_enabled()
        page.generate(PROMPT, max_tokens=5)
        page.wait("#status", "^Done")
        assert f"{real}/below/v1/" in page.text_content("#curl-text")


def test_the_documentation_shows_without_any_other_server(browser: Any) -> None:
    with live(any_app()) as server, opened(browser, server.url) as page:
        page.goto(f"{server.url}/docs")
        for path in (COMPLETIONS, CHAT, "/metrics"):
            expect(page.locator(f'[data-path="{path}"]')).to_be_visible(timeout=30_000)
