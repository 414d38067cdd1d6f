"""`neuron-spec init`: the file, what is printed, and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner, Result

from neuron_spec.cli.main import cli
from neuron_spec.errors import UserError
from neuron_spec.spec import load_spec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny.write_target(tmp_path / "Some Llama")
    tiny.write_eagle(tmp_path / "eagle")
    return tmp_path


def init(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["init", *arguments])


def test_two_directories_become_a_spec_and_the_next_commands(folder: Path) -> None:
    result = init("Some Llama", "eagle", "--instance", "trn2.3xlarge")
    assert result.exit_code == 0, result.output
    name = "some-llama-eagle.trn2.3xlarge.toml"
    spec = load_spec(name)
    assert (spec.draft.method, spec.draft.model, spec.target.model) == (
        "eagle", "./eagle", "./Some Llama",
    )  # fmt: skip
    assert f"wrote {name}: An EAGLE v1 head" in result.output
    assert "preflight: 0 error(s)" in result.output
    assert result.output.splitlines()[-2:] == [
        f"next: neuron-spec prepare {name}",
        f"next: neuron-spec compile {name} --backend neuron",
    ]
    assert "draft-unprepared" not in result.output
    assert sorted(path.name for path in folder.iterdir()) == ["Some Llama", "eagle", name]


def test_the_written_spec_is_prepared_and_checked(folder: Path) -> None:
    assert init("Some Llama", "eagle", "-o", "specs/mine.toml").exit_code == 0
    assert load_spec("specs/mine.toml").target.model == "../Some Llama"
    for verb in ("prepare", "check"):
        result = CliRunner().invoke(cli, [verb, "specs/mine.toml"])
        assert result.exit_code == 0, result.output


def test_without_a_draft_it_looks_up(folder: Path) -> None:
    result = init("Some Llama")
    assert result.exit_code == 0
    assert load_spec("some-llama-ngram.cpu.toml").draft.method == "ngram"
    assert result.output.splitlines()[-1] == "next: neuron-spec compile some-llama-ngram.cpu.toml"
    assert init("Some Llama", "--method", "none").exit_code == 0
    assert load_spec("some-llama-none.cpu.toml").draft.method == "none"


def test_a_file_is_replaced_only_when_asked(folder: Path) -> None:
    path = Path("mine.toml")
    path.write_text("precious")
    result = init("Some Llama", "-o", "mine.toml")
    assert isinstance(result.exception, UserError)
    assert "exists; it is left as it is" in str(result.exception)
    assert path.read_text() == "precious"
    assert init("Some Llama", "-o", "mine.toml", "--force").exit_code == 0
    assert load_spec(path).draft.method == "ngram"


def test_a_misspelt_instance_is_told_before_models_are_looked_for(folder: Path) -> None:
    result = init("nobody/nothing", "--instance", "trn2.3xl")
    assert isinstance(result.exception, UserError)
    assert "did you mean 'trn2.3xlarge'" in str(result.exception)


def test_what_stops_the_build_is_told_and_exits_with_2(folder: Path) -> None:
    tiny.change_config(folder / "Some Llama", hidden_act="gelu")
    tiny.change_config(folder / "eagle", hidden_size=16, intermediate_size=16)
    result = init("Some Llama", "eagle", "--instance", "trn2.3xlarge")
    assert result.exit_code == 2
    name = "some-llama-eagle.trn2.3xlarge.toml"
    assert Path(name).is_file(), "the spec is written all the same"
    assert "error draft-keys-misshapen" in result.output
    assert "error target-hidden-act" not in result.output, (
        "the reference backend's, and no error here"
    )
    assert result.output.splitlines()[-1] == f"next: neuron-spec check {name}"
    assert init("Some Llama").exit_code == 2, "the reference backend has no gelu"


def test_machines_are_told_everything(folder: Path) -> None:
    result = init("Some Llama", "eagle", "--instance", "inf2.xlarge", "--json")
    data = json.loads(result.output)
    assert data["spec"] == "some-llama-eagle.inf2.xlarge.toml"
    assert data["neuron"]["sdk"] == "2.28"
    assert data["draft"]["num_draft_tokens"] == 4
    assert "inf2" in data["reasons"]["neuron.sdk"]
    assert {"draft-unprepared", "neuron-packages"} <= {f["code"] for f in data["findings"]}
    assert [line.split()[1] for line in data["next"]] == ["prepare", "compile"]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("plain", "plain-ngram.cpu.toml"),
        ("./Über (v2)!", "ber-v2-ngram.cpu.toml"),
        ("..", "inner-ngram.cpu.toml"),
        ("日本", "target-ngram.cpu.toml"),
    ],
)
def test_the_file_is_named_after_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, name: str
) -> None:
    home = tmp_path / "inner"
    home.mkdir()
    monkeypatch.chdir(home)
    if target == "..":
        tiny.write_target(home)
        (home / "below").mkdir()
        monkeypatch.chdir(home / "below")
    else:
        (home / target).mkdir()
        tiny.write_target(home / target)
    assert init(target).exit_code == 0
    assert load_spec(name).draft.method == "ngram"


def test_a_name_with_a_quote_is_written_and_read(folder: Path) -> None:
    odd = folder / 'a "quoted" \\ name'
    tiny.write_target(odd)
    assert init(odd.name, "-o", "odd.toml").exit_code == 0
    assert load_spec("odd.toml").target.model == f"./{odd.name}"


def test_no_torch_is_imported(folder: Path) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from neuron_spec.cli.main import cli\n"
        "arguments = ['init', 'Some Llama', 'eagle', '--instance', 'trn2.3xlarge']\n"
        "r = CliRunner().invoke(cli, arguments)\n"
        "assert r.exit_code == 0, r.output\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
