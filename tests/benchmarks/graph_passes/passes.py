"""The target's pass of a few tokens in every way that it can be compiled.

All compute the same: ids [1, rows] stored from a position on -> the likeliest next ids [1, rows]. A
graph reads a fixed span of the cache, with a mask; the others read what there is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuron_spec.backends.reference import linear
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.native import choice, compiler
from neuron_spec.backends.reference.recorded import FixedWindow
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.spec import BuildSpec

LENGTH = 1024
"""Positions of the cache."""

Run = Callable[[int, int], Tensor]
"""(rows, position of the first) -> ids [1, rows]."""

TUNED = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
"""Inductor's own products of packed weights, each way tried out when it compiles."""


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        folder: where what is compiled is kept; the second process finds it there.
        rows: how many tokens passes have.
        span: how much of the cache a graph reads.
    """

    model: Path
    folder: Path
    dtype: str
    rows: Sequence[int]
    span: int


def kernels(case: Case) -> Run:
    """Ours, as `compile` builds them."""
    compiler.cache_directory = lambda: case.folder  # type: ignore[attr-defined]
    reference = {"dtype": case.dtype, "kernels": "auto"}
    spec = BuildSpec.model_validate({"target": {"model": "target"}, "reference": reference})
    native = choice.native_of(spec)
    assert native is not None, "no compiler"
    return _direct(_target(case, native=native))


def operators(case: Case) -> Run:
    """PyTorch's operators one by one, weights in oneDNN's layout."""
    return _direct(_target(case))


def compiled(case: Case) -> Run:
    """torch.compile with weights as constants, and its caches on disk."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    programs = {rows: _exported(case, rows) for rows in case.rows}
    graphs = {
        rows: torch.compile(program.module(), dynamic=False) for rows, program in programs.items()
    }
    return _of_graphs(case, graphs)


def packaged(case: Case) -> Run:
    """AOTInductor: a package for every number of rows, each with its own copy of the weights."""
    return _packaged(case, {})


def packaged_tuned(case: Case) -> Run:
    """The same with products that are tuned."""
    return _packaged(case, TUNED)


WAYS: dict[str, Callable[[Case], Run]] = {
    "kernels": kernels,
    "operators": operators,
    "torch.compile": compiled,
    "AOTInductor": packaged,
    "AOTInductor, tuned": packaged_tuned,
}
"""Ours first, which all others are compared with."""


def _target(case: Case, **options: Any) -> Target:
    dtype = getattr(torch, case.dtype)
    return Target(case.model, Placement(1, LENGTH, dtype, torch.device("cpu"), **options))


def _direct(target: Target) -> Run:
    def run(rows: int, position: int) -> Tensor:
        hidden, _ = target.hidden(_tokens(rows), [position])
        return target.best(hidden)

    return run


def _tokens(rows: int) -> Tensor:
    return torch.arange(100, 100 + rows)[None]


class Pass(nn.Module):
    """The pass as a graph can have it: weights are the module's buffers, and so constants where
    they are frozen; the cache's tensors are inputs, which are written to."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._held = [target]  # in a list: its tensors are not this module's otherwise
        self._places = list(_places(target))
        names: dict[int, str] = {}
        self._names = []
        for number, (owner, attribute) in enumerate(self._places):
            tensor = _get(owner, attribute)
            if id(tensor) not in names:  # a tied head is the embedding
                names[id(tensor)] = f"weight_{number}"
                self.register_buffer(f"weight_{number}", tensor)
            self._names.append(names[id(tensor)])

    def forward(self, tokens: Tensor, places: Tensor, mask: Tensor, *caches: Tensor) -> Tensor:
        """Ids [1, n], their places [1, n], mask [1, 1, n, span] -> ids [1, n]."""
        target = self._held[0]
        for (owner, attribute), name in zip(self._places, self._names, strict=True):
            _set(owner, attribute, getattr(self, name))
        half = len(caches) // 2
        target.cache.keys, target.cache.values = list(caches[:half]), list(caches[half:])
        window = FixedWindow(slice(0, 1), places, places, mask)
        output, _ = target._decoder._run(target.embed(tokens), window)
        return target.logits(target.norm(output)).argmax(-1)


def _places(target: Target) -> Iterator[tuple[Any, str]]:
    """Every object that holds a weight, and where."""
    for layer in target.layers:
        yield from ((norm, "weight") for norm in layer.norms.values() if norm)
        attention = layer.attention
        products = (attention.qkv, attention.output, layer.gate_up, layer.down)
        yield from ((product, "parts") for product in products)
    yield from ((target.norm, "weight"), (target._lm_head, "parts"), (target, "_embedding"))
    yield from ((target._decoder, "_cos"), (target._decoder, "_sin"))


def _get(owner: Any, attribute: str) -> Tensor:
    value = getattr(owner, attribute)
    tensor: Tensor = value[0] if attribute == "parts" else value
    return tensor


def _set(owner: Any, attribute: str, tensor: Tensor) -> None:
    object.__setattr__(owner, attribute, (tensor,) if attribute == "parts" else tensor)


def _exported(case: Case, rows: int) -> Any:
    """The program of so many rows."""
    linear._can_pack = lambda dtype: False  # type: ignore[assignment]  # oneDNN's cannot be traced
    given = (*_inputs(case, rows, 0), *_caches(case))
    with torch.no_grad():
        return torch.export.export(Pass(_target(case)), given, strict=False)


def _inputs(case: Case, rows: int, position: int) -> tuple[Tensor, Tensor, Tensor]:
    places = torch.arange(position, position + rows)[None]
    mask = (torch.arange(case.span) <= places[:, :, None])[:, None]
    return _tokens(rows), places, mask


def _packaged(case: Case, settings: dict[str, Any]) -> Run:
    from torch import _inductor as inductor

    graphs = {}
    for rows in case.rows:
        path = case.folder / f"{rows}.pt2"
        if not path.is_file():
            with torch.no_grad():
                inductor.aoti_compile_and_package(
                    _exported(case, rows),
                    package_path=str(path),
                    inductor_configs={"freezing": True, **settings},
                )
            # All that it was made of stands in the package.
            shutil.rmtree(case.folder / "inductor", ignore_errors=True)
        graphs[rows] = inductor.aoti_load_package(str(path))
    return _of_graphs(case, graphs)


def _caches(case: Case) -> list[Tensor]:
    config = read_config(case.model)
    shape = (1, config.num_key_value_heads, LENGTH, config.head_dim)
    dtype = getattr(torch, case.dtype)
    return [torch.zeros(shape, dtype=dtype) for _ in range(2 * config.num_hidden_layers)]


def _of_graphs(case: Case, graphs: dict[int, Any]) -> Run:
    caches = _caches(case)

    def run(rows: int, position: int) -> Tensor:
        ids: Tensor = graphs[rows](*_inputs(case, rows, position), *caches)
        return ids

    return run
