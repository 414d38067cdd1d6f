"""Killed at any moment, or run twice at once: the old draft or the new one, and no leftovers.

`make test-slow` kills at every change of the file system and at random moments.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import raw_checkpoints as raw

from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.files import sha256

SCRIPT = Path(__file__).with_name("prepare_process.py")
CONFIG, WEIGHTS, RECORD = "config.json", "model.safetensors", "prepared.json"
FEWEST_CHANGES = 15  # folder, files, flushes, swap: fewer would mean that they are not counted
SWAPS = ["exchange", "two-steps"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A draft and its target; outputs go to `build`, which holds nothing else."""
    raw.write(tmp_path / "draft", raw.EAGLE)
    raw.write(tmp_path / "target", raw.TARGET)
    (tmp_path / "build").mkdir()
    return tmp_path


@contextmanager
def process(
    folder: Path, *, strike: str = "never", times: int = 1, swap: str = "exchange"
) -> Iterator[subprocess.Popen[str]]:
    """The script, imported and waiting for its line."""
    paths = [str(folder / name) for name in ("draft", "target", "build/out")]
    command = [sys.executable, str(SCRIPT), *paths, strike, str(times), swap]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        yield running


def content(out: Path) -> dict[str, bytes] | None:
    """What a reader finds; None for nothing. Anything but a whole draft fails the test."""
    if not out.exists():
        return None
    assert sorted(path.name for path in out.iterdir()) == [CONFIG, WEIGHTS, RECORD]
    for record in json.loads((out / RECORD).read_text())["files"]:
        assert sha256(out / record["name"]) == record["sha256"]
    return {name: (out / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def prepare(folder: Path) -> dict[str, bytes] | None:
    prepare_draft(folder / "draft", folder / "target", folder / "build" / "out")
    assert [path.name for path in (folder / "build").iterdir()] == ["out"]
    return content(folder / "build" / "out")


def with_earlier(folder: Path, has_earlier: bool) -> dict[str, bytes] | None:
    """An earlier output, of another draft than the one that is there now."""
    earlier = prepare(folder) if has_earlier else None
    raw.write(folder / "draft", {WEIGHTS: raw.safetensors(raw.eagle_tensors(fill=1))})
    return earlier


def assert_whole(
    folder: Path, earlier: dict[str, bytes] | None, *, may_be_absent: bool = False
) -> None:
    """Right after a kill, and after the next run."""
    found = content(folder / "build" / "out")
    new = prepare(folder)
    assert new is not None and new != earlier
    assert found in (earlier, new) or (may_be_absent and found is None)


def kill_at_change(folder: Path, strike: str, has_earlier: bool, swap: str) -> bool:
    """Whether there were that many changes; before the last of them the process is killed."""
    earlier = with_earlier(folder, has_earlier)
    with process(folder, strike=strike, swap=swap) as running:
        running.communicate("go\n")
    assert running.returncode in (0, -signal.SIGKILL)
    assert_whole(folder, earlier, may_be_absent=swap == "two-steps")
    return running.returncode != 0


def start_over(folder: Path) -> None:
    for path in (folder / "build" / "out").iterdir():
        path.unlink()
    (folder / "build" / "out").rmdir()
    raw.write(folder / "draft", raw.EAGLE)


@pytest.mark.parametrize(
    ("strike", "has_earlier", "swap"),
    [
        ("block:2", False, "exchange"),
        ("fsync:2", True, "exchange"),
        ("exchange:1", True, "exchange"),
        ("shutil.rmtree:1", True, "exchange"),  # the new draft is there, and so is the old one
        ("os.rename:2", True, "two-steps"),  # neither is
    ],
)
def test_a_kill_leaves_the_old_draft_or_the_new_one(
    folder: Path, strike: str, has_earlier: bool, swap: str
) -> None:
    assert kill_at_change(folder, strike, has_earlier, swap)


@pytest.mark.slow
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("has_earlier", [True, False])
def test_a_kill_at_every_change(folder: Path, has_earlier: bool, swap: str) -> None:
    strike = 1
    while kill_at_change(folder, f"any:{strike}", has_earlier, swap):
        start_over(folder)
        strike += 1
    assert strike > FEWEST_CHANGES


@pytest.mark.slow
@pytest.mark.parametrize("has_earlier", [True, False])
def test_a_kill_at_any_time(folder: Path, has_earlier: bool) -> None:
    num_killed, chance = 0, random.Random(0)
    for _ in range(40):
        earlier = with_earlier(folder, has_earlier)
        with process(folder, times=1_000) as running:
            assert running.stdin is not None
            running.stdin.write("go\n")
            running.stdin.flush()
            time.sleep(chance.uniform(0, 0.05))
            running.kill()
        num_killed += running.wait() == -signal.SIGKILL
        assert_whole(folder, earlier)
        start_over(folder)
    assert num_killed == 40


@pytest.mark.parametrize("swap", SWAPS)
def test_processes_at_once_end_well(folder: Path, swap: str) -> None:
    """Three processes, ten rounds each, on one destination."""
    earlier = with_earlier(folder, True)
    with (
        process(folder, times=10, swap=swap) as one,
        process(folder, times=10, swap=swap) as two,
        process(folder, times=10, swap=swap) as three,
    ):
        processes = (one, two, three)
        for running in processes:
            assert running.stdin is not None
            running.stdin.write("go\n")
            running.stdin.flush()
        errors = [running.communicate()[1] for running in processes]
    assert errors == ["", "", ""]
    assert [running.returncode for running in processes] == [0, 0, 0]
    assert [path.name for path in (folder / "build").iterdir()] == ["out"]
    assert_whole(folder, earlier)
    assert content(folder / "build" / "out") != earlier


def test_one_is_killed_while_another_writes(folder: Path) -> None:
    """The survivor's folder is left alone by a third that clears what the dead one left."""
    earlier = with_earlier(folder, True)
    with process(folder, times=20) as survivor, process(folder, strike="fsync:2") as victim:
        assert survivor.stdin is not None
        survivor.stdin.write("go\n")
        survivor.stdin.flush()
        victim.communicate("go\n")
        prepare_draft(folder / "draft", folder / "target", folder / "build" / "out", force=True)
        _, error = survivor.communicate()
    assert (victim.returncode, survivor.returncode, error) == (-signal.SIGKILL, 0, "")
    assert_whole(folder, earlier)
