"""Passes that are recorded once and replayed, on a CPU; the calls to CUDA, on doubles."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from families import build
from recordings import Rerun
from torch import Tensor

from neuron_spec.backends.reference import recorded
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.opening import is_recorded
from neuron_spec.backends.reference.recorded import MAX_TOKENS, CudaGraphs
from neuron_spec.backends.reference.scoring import branches_of
from neuron_spec.spec import BuildSpec


def load(directory: Path, record: Rerun | None, taps: tuple[int, ...] = ()) -> Target:
    placement = Placement(3, 256, torch.float32, torch.device("cpu"), record=record)
    return Target(directory, placement, taps=taps)


def ids(rows: int, count: int) -> Tensor:
    return torch.randint(97, (rows, count), generator=torch.Generator().manual_seed(count))


def walk(target: Target) -> list[Tensor]:
    """Features of a prompt, of steps through every span, in one slot of three, and of a tree."""
    tokens, tree = ids(3, 256), torch.tensor([[0, 0, 1, 2, 2]] * 3)
    found = [target.hidden(tokens[:, :40], [0, 0, 0])]
    found += [
        target.hidden(tokens[:, at : at + 5], [at, at - 1, at - 2]) for at in range(40, 140, 5)
    ]
    found.append(target.hidden(tokens[1:2, 139:142], [139], 1))
    found.append(
        target.hidden(tokens[:, 150:156], [141, 142, 140], 0, branches_of([141, 142, 140], tree))
    )
    target.keep(1, 142, [0, 2, 5])
    found.append(target.hidden(tokens[:, 156:157], [144, 145, 142]))
    return [part for pair in found for part in pair]


@pytest.mark.parametrize("taps", [(), (0, 2)])
def test_a_replayed_pass_computes_the_same(taps: tuple[int, ...], tmp_path: Path) -> None:
    build("llama", tmp_path)
    record = Rerun()
    with torch.inference_mode():
        expected, found = walk(load(tmp_path, None, taps)), walk(load(tmp_path, record, taps))
    # What earlier passes gave has outlived the later ones, which wrote to the same memory.
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, atol=2e-5, rtol=2e-5)
    # Three spans of the steps, and one shape each of what follows; the prompt is too long.
    assert record.num_recorded == 3 + 3


def test_prompts_are_not_recorded(tmp_path: Path) -> None:
    build("llama", tmp_path)
    record = Rerun()
    target = load(tmp_path, record)
    target.hidden(ids(1, MAX_TOKENS + 1), [0])
    assert record.num_recorded == 0
    target.hidden(ids(1, MAX_TOKENS), [0])
    assert record.num_recorded == 1


def test_cuda_graphs_unless_the_spec_says_eager() -> None:
    def spec(**reference: str) -> BuildSpec:
        return BuildSpec.model_validate({"target": {"model": "t"}, "reference": reference})

    assert is_recorded(spec(device="cuda"))
    assert not is_recorded(spec(device="cuda", kernels="eager"))
    assert not is_recorded(spec(device="cpu"))


class Cuda:
    """Doubles of what `CudaGraphs` calls, which note what happens in which order."""

    def __init__(self, said: list[str]) -> None:
        self._said, self._num_graphs = said, 0

    def current_stream(self) -> Stream:
        return Stream("current", self._said)

    def Stream(self) -> Stream:  # noqa: N802
        return Stream("aside", self._said)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self._said.append(f"on {stream.name}")
        yield
        self._said.append("back")

    def CUDAGraph(self) -> Graph:  # noqa: N802
        self._num_graphs += 1
        return Graph(self._num_graphs, self._said)

    @contextmanager
    def graph(self, graph: Graph, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        self._said.append(f"capture {graph.number} pool {pool} {capture_error_mode}")
        yield
        self._said.append("captured")


class Stream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self._said = name, said

    def wait_stream(self, other: Stream) -> None:
        self._said.append(f"{self.name} waits for {other.name}")


class Graph:
    def __init__(self, number: int, said: list[str]) -> None:
        self.number, self._said = number, said

    def pool(self) -> tuple[int, int]:
        return (0, 7)

    def replay(self) -> None:
        self._said.append(f"replay {self.number}")


def test_the_calls_to_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(recorded.torch, "cuda", Cuda(said))
    record = CudaGraphs()
    replay = record(lambda: said.append("run"))
    replay()
    assert said == [
        "aside waits for current", "on aside", "run", "run", "run", "back",
        "current waits for aside",
        "capture 1 pool None thread_local", "run", "captured", "replay 1",
    ]  # fmt: skip
    record(lambda: None)
    assert "capture 2 pool (0, 7) thread_local" in said  # working memory is shared


def test_the_doubles_are_like_pytorch() -> None:
    parameters = inspect.signature(torch.cuda.graph.__init__).parameters
    assert {"cuda_graph", "pool", "stream", "capture_error_mode"} <= parameters.keys()
    assert {"replay", "pool"} <= set(dir(torch.cuda.CUDAGraph))
    assert "wait_stream" in dir(torch.cuda.Stream)
