"""The command line: exit codes, one message, nothing half-written, JSON that parses.

Most runs go through `main` in this process, which is the whole program but its interpreter; signals
and a few exit codes are tested on real processes.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import neuron_spec.cli.main as program
from neuron_spec.version import __version__

SHAPE = {"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 2}
SCRIPT = [sys.executable, "-c", "from neuron_spec.cli.main import main; main()"]


@dataclass(frozen=True)
class Result:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`main` with these arguments, as a process would see it."""
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str | Path, stdin: str | bytes = "") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["neuron-spec", *map(str, arguments)])
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        with pytest.raises(SystemExit) as caught:
            program.main()
        captured = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Result(caught.value.code, captured.out, captured.err)

    yield call
    signal.signal(signal.SIGTERM, handler)


def write_build(folder: Path, **draft: Any) -> Path:
    """Tiny models and their spec; `tiny.toml`'s path."""
    tiny.write_target(folder / "target")
    tiny.write_eagle(folder / "eagle", **draft)
    return write_tiny_spec(folder)


def write_tiny_spec(folder: Path, **draft: Any) -> Path:
    return tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3, **draft},
        shape=SHAPE,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with tiny models and their spec; also the current one."""
    write_build(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build that was prepared and compiled; not to be changed."""
    from neuron_spec import compile_model, load_spec, prepare

    folder = tmp_path_factory.mktemp("built")
    spec = load_spec(write_build(folder))
    compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")
    (folder / "prompts.jsonl").write_text('"ab"\n{"prompt": [5, 6, 7]}\n{"turns": ["hi"]}\n')
    return folder


@pytest.fixture
def artifact(built: Path) -> Path:
    return built / "artifact"


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_refused(result: Result, *parts: str) -> None:
    """Exit code 2 and one clear message, on standard error only."""
    assert result.exit_code == 2, result
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("error: ") == 1
    assert "Traceback" not in result.err
    for part in parts:
        assert part in result.err, result.err


# Help, verbs and options


@pytest.mark.parametrize("verb", program.VERBS)
def test_every_verb_has_help_with_an_example(run: Run, verb: str) -> None:
    for option in ("--help", "-h"):
        result = run(verb, option)
        assert result.exit_code == 0
        assert f"Example: neuron-spec {verb}" in result.out
        assert result.err == ""


def test_the_programs_own_help_lists_every_verb(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for verb in program.VERBS:
        assert f"\n  {verb} " in result.out
    assert "Example: neuron-spec " in result.out
    assert run("--version").out == f"neuron-spec, version {__version__}\n"


@pytest.mark.parametrize(
    ("misspelt", "right"), [("complie", "compile"), ("prepair", "prepare"), ("verfy", "verify")]
)
def test_a_misspelt_verb_is_told_the_nearest(run: Run, misspelt: str, right: str) -> None:
    result = run(misspelt, "x.toml")
    assert result.exit_code == 2
    assert f"no verb '{misspelt}': did you mean '{right}'?" in result.err


def test_a_verb_like_no_other_is_told_all(run: Run) -> None:
    result = run("xyzzy")
    assert result.exit_code == 2
    for verb in program.VERBS:
        assert verb in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare",),
        ("prepare", "tiny.toml", "--outptu", "x"),
        ("compile", "tiny.toml", "--backend", "neurn"),
        ("generate", "artifact"),
        ("generate", "artifact", "hi", "--prompts", "x.jsonl"),
        ("generate", "artifact", "hi", "-n", "many"),
        ("verify", "artifact"),
        ("verify", "artifact", "--prompts", "x.jsonl", "--near-tie-margin", "-1"),
        ("bench", "artifact", "--repetitions", "0"),
        ("serve", "artifact", "--port", "99999"),
    ],
)
def test_wrong_arguments(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.out == ""
    assert result.err.count("Error: ") == 1
    assert "Traceback" not in result.err


def test_no_verb_at_all_shows_the_help(run: Run) -> None:
    result = run()
    assert result.exit_code == 2
    assert "compile" in result.out + result.err


# What is refused


@pytest.mark.parametrize("verb", ["prepare", "check", "compile"])
def test_no_such_spec(run: Run, folder: Path, verb: str) -> None:
    before = listing(folder)
    assert_refused(run(verb, "missing.toml"), "missing.toml", "no such build spec")
    assert listing(folder) == before


@pytest.mark.parametrize("verb", ["prepare", "check", "compile"])
def test_a_misspelt_key(run: Run, folder: Path, verb: str) -> None:
    path = write_tiny_spec(folder, num_draft_token=3)
    before = listing(folder)
    result = run(verb, path)
    assert_refused(result, "tiny.toml", "draft.num_draft_token'", "did you mean 'num_draft_tokens'")
    assert listing(folder) == before


def break_nothing(folder: Path) -> None:
    shutil.rmtree(folder / "eagle")


def break_config(folder: Path) -> None:
    (folder / "eagle/config.json").unlink()


def break_weights(folder: Path) -> None:
    path = folder / "eagle/model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def break_target_weights(folder: Path) -> None:
    path = folder / "target/model.safetensors"
    path.write_bytes(path.read_bytes()[:5])


def break_hidden_size(folder: Path) -> None:
    shutil.rmtree(folder / "eagle")
    tiny.write_eagle(folder / "eagle", hidden_size=16, head_dim=4)


def break_shape(folder: Path) -> None:
    tiny.change_tensors(folder / "eagle", fc__weight=torch.zeros(32, 65))


BROKEN: list[tuple[Callable[[Path], None], tuple[str, ...]]] = [
    (break_nothing, ("eagle", "no such directory")),
    (break_config, ("eagle", "config.json")),
    (break_weights, ("eagle/model.safetensors",)),
    (break_target_weights, ("target/model.safetensors",)),
    (break_hidden_size, ("hidden", "16", "32")),
    (break_shape, ("fc.weight",)),
]


@pytest.mark.parametrize(("break_it", "parts"), BROKEN)
@pytest.mark.parametrize("verb", ["prepare", "compile"])
def test_models_that_cannot_be_used(
    run: Run,
    folder: Path,
    verb: str,
    break_it: Callable[[Path], None],
    parts: tuple[str, ...],
) -> None:
    break_it(folder)
    before = listing(folder)
    assert_refused(run(verb, "tiny.toml"), *parts)
    assert listing(folder) == before


@pytest.mark.parametrize(("break_it", "parts"), BROKEN)
def test_the_check_lists_them_and_says_no(
    run: Run, folder: Path, break_it: Callable[[Path], None], parts: tuple[str, ...]
) -> None:
    break_it(folder)
    result = run("check", "tiny.toml")
    assert result.exit_code == 2
    assert "Traceback" not in result.err
    for part in parts:
        assert part in result.out + result.err


def test_an_unprepared_draft_is_not_compiled(run: Run, folder: Path) -> None:
    before = listing(folder)
    result = run("compile", "tiny.toml")
    assert_refused(result, "lm_head.weight", "neuron-spec prepare")
    assert str(folder / "tiny.toml") in result.err  # the command can be copied
    assert listing(folder) == before


def test_a_target_whose_lm_head_is_missing(run: Run, folder: Path) -> None:
    tiny.change_tensors(folder / "target", lm_head__weight=None)
    assert_refused(run("prepare", "tiny.toml"), "lm_head.weight")
    assert not (folder / "build").exists() or listing(folder / "build") == []


@pytest.mark.parametrize("model", ["eagle", "target"])
def test_an_input_is_never_written_to(run: Run, folder: Path, model: str) -> None:
    before = listing(folder)
    assert_refused(run("prepare", "tiny.toml", "-o", folder / model), model)
    assert listing(folder) == before


def test_a_folder_of_someone_else_is_left_alone(run: Run, folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine/letter.txt").write_text("dear")
    before = listing(folder)
    assert_refused(run("prepare", "tiny.toml", "-o", folder / "mine"), "mine")
    assert listing(folder) == before


# A file that is there: prompts may be read before the artifact is opened.
SOME_PROMPTS = str(
    Path(__file__).parents[2] / "checkpoints/smollm2-135m-instruct-eagle/evaluation-prompts.jsonl"
)
USES = [
    ("generate", "{}", "hi"),
    ("verify", "{}", "--prompts", SOME_PROMPTS),
    ("bench", "{}", "--prompts", SOME_PROMPTS),
    ("serve", "{}", "--port", "0"),
]


@pytest.mark.parametrize("arguments", USES)
def test_no_such_artifact(run: Run, folder: Path, arguments: tuple[str, ...]) -> None:
    for name, problem in (("nowhere", "no such directory"), ("target", "not an artifact")):
        result = run(*(argument.format(name) for argument in arguments))
        assert_refused(result, name, problem, "neuron-spec compile")


@pytest.mark.parametrize("missing", ["artifact/program.json", "target/model.safetensors"])
@pytest.mark.parametrize("arguments", USES)
def test_an_artifact_with_a_missing_file(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], missing: str
) -> None:
    from neuron_spec import compile_model, load_spec, prepare

    spec = load_spec(write_build(tmp_path))
    compile_model(spec, prepare(spec, tmp_path / "draft"), tmp_path / "artifact")
    (tmp_path / missing).unlink()
    result = run(*(argument.format(tmp_path / "artifact") for argument in arguments))
    assert_refused(result, str(tmp_path / missing), "missing")


def test_prompts_that_cannot_be_read(run: Run, artifact: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('"fine"\n{"promt": "x"}\n')
    for verb in ("generate", "verify", "bench"):
        assert_refused(run(verb, artifact, "--prompts", bad), f"{bad}:2", "not a prompt")
        assert_refused(run(verb, artifact, "--prompts", tmp_path / "no.jsonl"), "no.jsonl")


def test_a_prompt_that_does_not_fit(run: Run, artifact: Path) -> None:
    result = run("generate", artifact, "x" * 100, "--raw")
    assert_refused(result, "prompt", "100 tokens", "at most 64")
    assert_refused(run("generate", artifact, "", "--raw"), "prompt", "empty")
    assert_refused(run("generate", artifact, "hi", "--stop", ""), "stop")


def test_standard_input_that_is_no_text(run: Run, artifact: Path) -> None:
    assert_refused(run("generate", artifact, "-", stdin=b"\xff\xfe"), "standard input", "UTF-8")


def test_an_argument_that_is_no_text(run: Run, artifact: Path) -> None:
    for option in ([], ["--raw"]):
        assert_refused(run("generate", artifact, "a\udcff", *option), "not Unicode text")


# The walk, and its JSON


def test_the_walk_of_the_verbs(run: Run, folder: Path) -> None:
    result = run("inspect", "eagle")
    assert result.exit_code == 0
    assert "lm_head.weight" in result.out
    assert run("check", "tiny.toml").exit_code == 2  # not prepared yet

    prepared = run("prepare", "tiny.toml")
    assert prepared.exit_code == 0
    assert "prepared: build/tiny/draft" in prepared.out
    assert "unchanged" in run("prepare", "tiny.toml").out
    assert "prepared:" in run("prepare", "tiny.toml", "--force").out

    checked = run("check", "tiny.toml")
    assert checked.exit_code == 0
    assert "bitwise identity: stated" in checked.out

    compiled = run("compile", "tiny.toml")
    assert compiled.exit_code == 0
    assert "artifact: build/tiny/artifact" in compiled.out
    assert compiled.err == "compiling: no artifact there yet\n"
    made = (folder / "build/tiny/artifact/manifest.json").stat().st_mtime_ns
    again = run("compile", "tiny.toml")
    assert again.out.replace(" (kept: nothing changed)", "") == compiled.out != again.out
    assert again.err == ""
    assert (folder / "build/tiny/artifact/manifest.json").stat().st_mtime_ns == made
    assert not [name for name in listing(folder) if "partial" in name or "previous" in name]

    inspected = run("inspect", "build/tiny/artifact")
    assert inspected.exit_code == 0
    assert "eagle, k = 3" in inspected.out
    generated = run("generate", "build/tiny/artifact", "hi", "-n", "5", "--ignore-eos")
    assert generated.exit_code == 0
    assert "5 tokens, finish: length" in generated.err


def test_other_folders_for_draft_and_artifact(run: Run, folder: Path) -> None:
    assert run("prepare", "tiny.toml", "-o", "d").exit_code == 0
    result = run("compile", "tiny.toml", "--prepared", "d", "-o", "a", "--json")
    assert result.exit_code == 0
    assert result.json["artifact"] == "a"
    assert not (folder / "build").exists()
    assert_refused(run("compile", "tiny.toml", "--prepared", "e", "-o", "b"), "e")
    assert not (folder / "b").exists()


def test_json_of_every_verb(run: Run, folder: Path) -> None:
    (folder / "prompts.jsonl").write_text('"ab"\n')
    artifact = folder / "build/tiny/artifact"
    assert run("inspect", "eagle", "--json").json["family"] == "eagle"
    assert run("check", "tiny.toml", "--json").json["findings"][0]["severity"] == "error"
    prepared = run("prepare", "tiny.toml", "--json").json
    assert (prepared["draft"], prepared["is_new"]) == ("build/tiny/draft", True)
    checked = run("check", "tiny.toml", "--json").json
    assert (checked["findings"], checked["rule"]) == ([], "greedy")
    assert checked["claims"][0]["level"] == "bitwise identity"
    assert run("compile", "tiny.toml", "--json").json["speculation"] is True
    assert run("inspect", artifact, "--json").json["num_draft_tokens"] == 3
    generated = run("generate", artifact, "hi", "-n", "5", "--ignore-eos", "--json").json
    assert generated["num_output_tokens"] == 5
    options = ("--prompts", "prompts.jsonl", "-n", "6", "--json")
    verified = run("verify", artifact, *options).json
    assert (verified["num_prompts"], verified["num_identical"]) == (1, 1)
    (row,) = run("bench", artifact, *options, "--repetitions", "1").json["prompts"]
    assert row["identical"] is True
    assert row["ratio"] > 0


def test_a_draft_model_is_not_prepared_but_looked_at(run: Run, folder: Path) -> None:
    write_tiny_spec(folder, method="model", model="target")
    result = run("prepare", "tiny.toml")
    assert result.exit_code == 0
    assert result.out.startswith("nothing to prepare") and len(result.out.splitlines()) == 1
    torch.save({}, folder / "target/pytorch_model.bin")
    lines = run("prepare", "tiny.toml").out.splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["draft", "target"]
    assert "pytorch_model.bin beside it is not" in lines[1]


def test_a_target_alone(run: Run, folder: Path) -> None:
    tiny.write_spec(folder / "alone.toml", target={"model": "target"}, shape=SHAPE)
    assert "nothing to prepare" in run("prepare", "alone.toml").out
    assert run("prepare", "alone.toml", "--json").json["draft"] is None
    assert run("compile", "alone.toml").exit_code == 0
    assert "off" in run("inspect", "build/alone/artifact").out
    result = run("generate", "build/alone/artifact", "hi", "-n", "3", "--ignore-eos", "--json")
    assert result.json["acceptance"]["num_drafted_tokens"] == 0


# generate, verify, bench


def test_generate_from_standard_input_and_as_an_argument(run: Run, artifact: Path) -> None:
    limits = ("-n", "8", "--ignore-eos")
    argument = run("generate", artifact, "né", *limits)
    assert argument.exit_code == 0
    assert run("generate", artifact, "-", *limits, stdin="né").out == argument.out
    whole = run("generate", artifact, "né", *limits, "--json").json
    assert argument.out == whole["text"] + "\n"
    raw = run("generate", artifact, "né", *limits, "--json", "--raw").json
    assert (raw["num_prompt_tokens"], whole["num_prompt_tokens"] > 3) == (3, True)
    plain = run("generate", artifact, "né", *limits, "--json", "--no-speculation").json
    assert plain["acceptance"]["num_drafted_tokens"] == 0
    assert plain["token_ids"] == whole["token_ids"]
    assert whole["acceptance"]["num_drafted_tokens"] > 0


def test_generate_nothing(run: Run, artifact: Path) -> None:
    result = run("generate", artifact, "hi", "-n", "0")
    assert (result.exit_code, result.out) == (0, "\n")
    assert "0 tokens" in result.err


def test_generate_from_a_file(run: Run, built: Path) -> None:
    arguments = ("generate", built / "artifact", "--prompts", built / "prompts.jsonl")
    result = run(*arguments, "-n", "4", "--ignore-eos", "--json")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["num_output_tokens"] for row in rows] == [4, 4, 4]
    assert [row["num_prompt_tokens"] for row in rows][:2] == [2, 3]
    text = run(*arguments, "-n", "4", "--ignore-eos").out
    assert text == "".join(f"{row['text']}\n---\n" for row in rows)


def test_verify_says_identical_and_ends_with_0(run: Run, built: Path) -> None:
    arguments = ("verify", built / "artifact", "--prompts", built / "prompts.jsonl", "-n", "12")
    result = run(*arguments)
    assert result.exit_code == 0
    assert "3 of 3 identical, 0 near-tie(s), 0 defect(s)" in result.out
    assert "2 of 2 identical" in run(*arguments, "--limit", "2").out


def test_verify_ends_with_1_on_a_defect(
    run: Run, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that accepts every draft: the fault that the verb exists to find."""
    from neuron_spec.rules import greedy
    from neuron_spec.trees import Tree

    def accept_all(
        tree: Tree, draft_tokens: list[int], best: list[int]
    ) -> tuple[tuple[int, ...], int]:
        return tuple(range(tree.num_nodes)), best[-1]

    monkeypatch.setattr(greedy, "follow", accept_all)
    arguments = ("verify", built / "artifact", "--prompts", built / "prompts.jsonl", "-n", "12")
    result = run(*arguments, "--ignore-eos")
    assert result.exit_code == 1
    assert "defect at output position" in result.out
    data = run(*arguments, "--ignore-eos", "--json").json
    assert data["num_defects"] > 0
    defect = next(row for row in data["comparisons"] if not row["identical"])
    assert defect["divergence"]["margin"] > data["near_tie_margin"]


def test_bench_prints_a_table(run: Run, built: Path) -> None:
    arguments = ("bench", built / "artifact", "--prompts", built / "prompts.jsonl", "--limit", "2")
    result = run(*arguments, "-n", "4", "--repetitions", "1")
    assert result.exit_code == 0
    assert "identical: yes" in result.out
    assert "ratio" in result.out


# Real processes


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **changes}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("check", "missing.toml"), 2, "error: missing.toml: no such build spec"),
        (("chekc",), 2, "did you mean 'check'?"),
        (("inspect", "nowhere/at/all"), 2, "error: "),
        (("--version",), 0, ""),
    ],
)
def test_exit_codes_of_the_process(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    result = subprocess.run(
        [*SCRIPT, *arguments],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == exit_code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_standard_output(folder: Path, options: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*SCRIPT, "check", "tiny.toml", *options],
            cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr == "error: [Errno 28] No space left on device\n"


def test_a_reader_who_leaves(folder: Path) -> None:
    process = subprocess.Popen(
        [*SCRIPT, "check", "tiny.toml"],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


# Python runs this before anything else: the first flush to the disk never comes back.
_HANG_AT_FSYNC = """
import os, pathlib, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
def fsync(descriptor):
    pathlib.Path(os.environ["HANGING"]).touch()
    time.sleep(60)
os.fsync = fsync
"""


@pytest.mark.parametrize(
    ("signal_number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
@pytest.mark.parametrize("verb", ["prepare", "compile"])
def test_a_signal_in_the_middle_leaves_nothing_half_written(
    tmp_path: Path, verb: str, signal_number: signal.Signals, exit_code: int
) -> None:
    from neuron_spec import load_spec, prepare

    folder = tmp_path / "work"
    folder.mkdir()
    spec_path = write_build(folder)
    if verb == "compile":
        prepare(load_spec(spec_path), folder / "build/tiny/draft")
    before = listing(folder)
    hook, hanging = tmp_path / "hook", tmp_path / "hanging"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_HANG_AT_FSYNC)
    path = os.pathsep.join([str(hook), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with subprocess.Popen(
        [*SCRIPT, verb, "tiny.toml"],
        cwd=folder, env=environment(PYTHONPATH=path, HANGING=str(hanging)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            wait_for(hanging.exists, process)
            assert any(".partial-" in name for name in listing(folder))  # else this proves nothing
            process.send_signal(signal_number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == exit_code, err
    assert "Traceback" not in err
    assert out == ""
    assert set(listing(folder)) - set(before) <= {"build", "build/tiny"}


def post(url: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=30)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_is_given_its_options(
    run: Run, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuron_spec.serving import server

    given: dict[str, Any] = {}

    def serve(app: Any, listening: socket.socket, **options: Any) -> None:
        given.update(options, address=listening.getsockname())

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.delenv("NEURON_SPEC_API_KEYS", raising=False)
    result = run("serve", artifact, "--port", "0")
    assert result.exit_code == 0
    assert f"http://127.0.0.1:{given['address'][1]}/v1" in result.out
    settings = given["settings"]
    assert (given["log_form"], settings.api_keys) == ("json", ())
    assert 0 < settings.drain_s <= 60  # a supervisor does not wait for ever
    (tmp_path / "keys").write_text("one\n")
    options = "--port 0 --max-waiting 5 --max-body-mb 0.5 --request-timeout 7 --drain-timeout 3"
    run("serve", artifact, *options.split(), "--log-format", "text", "--no-warm-up",
        "--api-key-file", tmp_path / "keys")  # fmt: skip
    settings = given["settings"]
    assert (settings.max_waiting, settings.max_body_bytes) == (5, 1 << 19)
    assert (settings.request_timeout_s, settings.drain_s) == (7, 3)
    assert (given["log_form"], settings.api_keys) == ("text", ("one",))
    result = run("serve", artifact, "--port", "0", "--api-key-file", tmp_path / "no-keys")
    assert_refused(result, "no-keys", "cannot be read")


def test_a_port_in_use_is_found_before_the_artifact_is_opened(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(run("serve", "nowhere", "--port", port), port, "cannot listen", "--port")


# A server that was told to end and did has not failed; 128 + 15 is what supervisors expect.
@pytest.mark.parametrize(
    ("signal_number", "exit_code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)]
)
def test_a_server_answers_and_ends_when_told(
    artifact: Path, tmp_path: Path, signal_number: signal.Signals, exit_code: int
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [*SCRIPT, "serve", str(artifact), "--port", str(port)],
        cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def is_healthy() -> bool:
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    try:
        wait_for(is_healthy, process)
        body = {"model": "tiny", "prompt": "ab", "max_tokens": 4, "ignore_eos": True}
        with post(f"{base}/v1/completions", body) as response:
            assert json.load(response)["usage"]["completion_tokens"] == 4
        with post(f"{base}/v1/completions", {**body, "stream": True}) as response:
            assert response.read().endswith(b"data: [DONE]\n\n")
        # Told to end in the middle of an answer, it ends the answer first.
        with post(f"{base}/v1/completions", {**body, "max_tokens": 60, "stream": True}) as response:
            response.read(1)
            process.send_signal(signal_number)
            assert response.read().endswith(b"data: [DONE]\n\n")
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == exit_code, err
    assert "Traceback" not in err
    assert f"{base}/v1" in out
    lines = [json.loads(line) for line in err.splitlines()]
    (last,) = (line for line in lines if line.get("output_tokens") == 60)
    assert (last["status"], last["finish_reasons"]) == (200, ["length"])


def test_the_demo_on_another_spec(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write_target(tmp_path / "target", max_position_embeddings=1024)
    tiny.write_eagle(tmp_path / "eagle")
    spec_path = tiny.write_spec(
        tmp_path / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 500, "max_total_tokens": 520},
    )
    result = run("demo", "--spec", spec_path, "-n", "4")
    assert result.exit_code == 0, result.err
    for step in ("inspect", "prepare", "check and compile", "generate"):
        assert f"== {step}" in result.out
    assert "identical: yes" in result.out
    assert_refused(run("demo", "--spec", "missing.toml"), "missing.toml")
