"""The page's files: where they are, what headers they have, and that they are whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import TestClient, any_app, error_of

import neuron_spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(neuron_spec.__file__).parent
STATIC = PACKAGE / "serving" / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "javascript",
    ".svg": "image/svg+xml",
}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with TestClient(any_app(api_keys=("secret",))) as client:
        yield client


def test_the_page_needs_no_key_and_is_the_file(client: Any) -> None:
    response = client.get("/")
    assert response.status_code == 200
    assert response.text == (STATIC / "page.html").read_text(encoding="utf-8")
    head = client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == response.headers["content-length"]


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_its_type_and_the_headers_that_keep_it_to_itself(
    client: Any, name: str
) -> None:
    response = client.get(f"/static/{name}")
    assert response.content == (STATIC / name).read_bytes()
    headers = response.headers
    assert TYPES[Path(name).suffix] in headers["content-type"]
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert "'none'" in policy["frame-ancestors"]
    assert policy["require-trusted-types-for"] == "'script'"
    allowed = {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")}
    assert allowed == {"'self'"}
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/static/page.js"])
def test_what_is_known_is_not_sent_again(client: Any, path: str) -> None:
    first = client.get(path)
    again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    other = client.get(path, headers={"If-None-Match": '"another"'})
    assert other.content == first.content


@pytest.mark.parametrize("path", ["/static/none.js", "/static/", "/static/../app.py", "/page.html"])
def test_nothing_else_is_there(client: Any, path: str) -> None:
    error_of(client.get(path), 404)
    error_of(client.get(path.replace("..", "%2e%2e")), 404)


def test_only_reading_is_possible(client: Any) -> None:
    for path in ("/", "/static/page.js"):
        error_of(client.post(path), 405)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "icon.svg"])
def test_files_are_small_and_name_nothing_outside(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert not re.search(r"https?:|//[a-z]|@import|\burl\(", re.sub(r"(?m)(^|\s)// .*$", "", text))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    assert not re.search(r"localStorage|sessionStorage|document\.cookie|indexedDB", text)


def test_the_page_has_nothing_inline_and_names_only_files_that_are_there() -> None:
    text = (STATIC / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", text)
    named = set(re.findall(r'(?:href|src)="static/([^"]+)"', text))
    for name in NAMES:
        if name.endswith(".js"):
            code = (STATIC / name).read_text(encoding="utf-8")
            named |= set(re.findall(r'from "\./([^"]+)"', code))
    assert named | {"page.html"} == set(NAMES)


@pytest.mark.parametrize("prefix", ["", "/below/here"])
def test_the_documentation_asks_no_other_server_for_its_parts(prefix: str) -> None:
    with TestClient(any_app(), root_path=prefix) as client:
        response = client.get(f"{prefix}/docs")
        assert response.status_code == 200
        named = re.findall(r"""(?:href|src)="([^"]+)"|url: '([^']+)'""", response.text)
        paths = [path or url for path, url in named]
        assert len(paths) == 4  # style, icon, script, document
        for path in paths:
            assert path.startswith(f"{prefix}/")
            answer = client.get(path)
            assert answer.status_code == 200
            assert answer.content
        assert "//" not in re.sub(r"(?m)^\s*//.*$|<!--.*?-->", "", response.text)
        error_of(client.get(f"{prefix}/redoc"), 404)  # would load everything from elsewhere


def test_every_file_is_package_data() -> None:
    project = PACKAGE.parent / "pyproject.toml"
    if not project.is_file():
        pytest.skip("an installed package has no pyproject.toml")
    with project.open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["neuron_spec"]
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert packed >= set(STATIC.iterdir())
