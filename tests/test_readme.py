"""README against the program: help texts are the real ones, specs load, Python runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_spec.cli.main import VERBS, cli
from neuron_spec.spec import load_spec

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


def help_blocks() -> list[tuple[str, str]]:
    found = []
    for block in blocks("console"):
        first, _, rest = block.partition("\n")
        if first.startswith("$ neuron-spec") and first.endswith("--help"):
            found.append((first.removeprefix("$ "), rest))
    return found


def run_cli(command: str) -> str:
    from click.testing import CliRunner

    arguments = shlex.split(command)[1:]
    return CliRunner().invoke(cli, arguments, prog_name="neuron-spec").output


def test_help_in_the_readme_is_the_programs() -> None:
    assert help_blocks()
    for command, text in help_blocks():
        assert run_cli(command).strip() == text.strip(), f"README is out of date: {command}"


def test_every_verb_is_in_the_readme() -> None:
    for verb in set(VERBS) - {"demo"}:
        assert f"neuron-spec {verb} " in README


def test_tables_in_the_readme_are_the_programs() -> None:
    tables = re.findall(r"^<!-- (neuron-spec .*?) -->\n(.*?)^<!-- end -->", README, re.M | re.S)
    assert tables
    for command, text in tables:
        assert run_cli(command).strip() == text.strip(), f"README is out of date: {command}"


def test_every_spec_in_the_readme_loads(tmp_path: Path) -> None:
    assert blocks("toml")
    for text in blocks("toml"):
        path = tmp_path / "readme.toml"
        path.write_text(text)
        assert load_spec(path).draft.num_draft_tokens == 4


def test_links_in_the_readme_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


def test_commands_named_in_the_readme_exist() -> None:
    for target in re.findall(r"`?make (\w+)", README):
        if target in ("demo", "test", "check", "bench"):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.M)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_in_the_readme_runs(text: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
