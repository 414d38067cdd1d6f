"""The recorded models as builds for Neuron: what `tests/neuron/` compiles, on a device or a double.

All static lengths are those of the recordings, so that every step can be compared: 96 positions,
prompt graphs of 32. float32 and no kernels, since the heads of these models (16 wide) are smaller
than any kernel's tile.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nxdi_golden as golden
import torch
from safetensors.torch import load_file

from neuron_spec import compile_model, load, load_spec, prepare
from neuron_spec.backends.base import Speculator
from neuron_spec.engine import Session
from neuron_spec.trees import Tree

Open = Callable[[str], Session]
K = golden.SPECULATION_LENGTH - 1
TREES = ("binary7", "even6", "even9", "chain5")  # `skew` is refused: NxDI emits wrong tokens
MEDUSA_TREE: list[list[int]] = golden.recorded("medusa_kv_persisted")["medusa_tree"]


@dataclass(frozen=True)
class Place:
    """Where the builds run; `instance` and `sdk` as a spec names them."""

    instance: str
    sdk: str


@dataclass(frozen=True)
class Case:
    """One build.

    Attributes:
        target, draft: folders of `tests/golden`.
        step: positions that the target scores in a step.
        draft_table, neuron: what the spec's tables have beside the usual.
    """

    target: str = "target"
    draft: str | None = None
    method: str = "none"
    step: int = golden.SPECULATION_LENGTH
    batch_size: int = 1
    draft_table: Mapping[str, Any] = field(default_factory=dict)
    neuron: Mapping[str, Any] = field(default_factory=dict)

    @property
    def max_total_tokens(self) -> int:
        """A whole step fits behind it."""
        return golden.SEQ_LEN - (self.step if self.method != "none" else 0)

    @property
    def samples_on_device(self) -> bool:
        """With NxDI's whole list of likeliest tokens, which is longer than this vocabulary."""
        is_fused = self.method in ("model", "eagle", "eagle3") and self.neuron.get("fused", True)
        return bool(is_fused or self.neuron.get("sample_on_device"))


def tree_of(name: str) -> Tree:
    """A recorded token tree."""
    recorded = golden.recorded("eagle1_token_tree")["trees"][name]
    return Tree.from_children(recorded["token_tree_config"])


def _tree_case(name: str) -> Case:
    tree = tree_of(name)
    paths = [list(path) for path in tree.paths]
    table = {"tree": paths, "num_draft_tokens": tree.num_draft_tokens}
    return Case(draft="eagle1", method="eagle", step=tree.num_nodes, draft_table=table)


_EAGLE = Case(draft="eagle1", method="eagle")
CASES: dict[str, Case] = {
    "target_alone": Case(neuron={"sample_on_device": True}),
    "target_alone_logits": Case(),
    "target_alone_two_cores": Case(neuron={"sample_on_device": True, "tp_degree": 2}),
    "fused_draft": Case(draft="draft", method="model"),
    "fused_draft_batch2": Case(draft="draft", method="model", batch_size=2),
    "unfused_draft": Case(draft="draft", method="model", neuron={"fused": False}),
    "eagle1": _EAGLE,
    "eagle1_two_cores": Case(draft="eagle1", method="eagle", neuron={"tp_degree": 2}),
    "eagle1_batch2": Case(draft="eagle1", method="eagle", batch_size=2),
    "eagle1_norm": Case(draft="eagle1_norm", method="eagle"),
    "eagle3": Case("target3", "eagle3", "eagle3"),
    **{f"tree_{name}": _tree_case(name) for name in TREES},
    "medusa": Case(
        draft="medusa", method="medusa", step=len(MEDUSA_TREE) + 2,
        draft_table={"tree": MEDUSA_TREE, "num_draft_tokens": len(MEDUSA_TREE)},
    ),
}  # fmt: skip


def write_spec(folder: Path, case: Case, place: Place) -> Path:
    """The case's models beside its spec."""
    folder.mkdir(parents=True)
    _copy(golden.GOLDEN / case.target, folder / "target")
    sections: dict[str, dict[str, Any]] = {
        "target": {"model": "target", "dtype": "float32"},
        "draft": {"method": case.method},
        "verification": {"rule": "greedy"},
        "shape": {
            "max_prompt_tokens": golden.CONTEXT,
            "max_total_tokens": case.max_total_tokens,
            "batch_size": case.batch_size,
        },
        "neuron": {
            "instance": place.instance,
            "sdk": place.sdk,
            "tp_degree": 1,
            "context_encoding_buckets": [golden.CONTEXT],
            "token_generation_buckets": [golden.SEQ_LEN],
            **case.neuron,
        },
        **({"neuron.sampling": {"global_topk": 64}} if case.samples_on_device else {}),
        "neuron.config": {"attn_kernel_enabled": False, "disable_argmax_kernel": True},
    }
    if case.draft is not None:
        _copy(golden.GOLDEN / case.draft, folder / "draft")
        if case.method == "medusa":
            _as_published(folder / "draft")
        sections["draft"] |= {"model": "draft", "num_draft_tokens": K, **case.draft_table}
    path = folder / "smoke.toml"
    path.write_text("\n".join(_toml(sections)))
    return path


def _copy(source: Path, destination: Path) -> None:
    shutil.copytree(source, destination, copy_function=shutil.copyfile)


def _as_published(folder: Path) -> None:
    """Medusa heads are published as a pickle."""
    recorded = folder / "medusa_heads.safetensors"
    torch.save(load_file(recorded), folder / "medusa_heads.pt")
    recorded.unlink()


def _toml(sections: dict[str, dict[str, Any]]) -> Iterator[str]:
    for title, table in sections.items():
        yield f"[{title}]"
        yield from (f"{name} = {json.dumps(value)}" for name, value in table.items())
        yield ""


class Artifacts:
    """Builds by name: each prepared and compiled once, one loaded at a time."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder = place, folder
        self._loaded: tuple[str, Speculator] | None = None

    def speculator(self, name: str) -> Speculator:
        """An opened artifact with free slots."""
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None
            gc.collect()  # so that the device is free for the next
            self._loaded = (name, load(self._artifact(name)).speculator)
        speculator = self._loaded[1]
        for slot in range(speculator.limits.batch_size):
            speculator.release(slot)
        return speculator

    def _artifact(self, name: str) -> Path:
        folder = self.folder / name
        if not (folder / "artifact").is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            spec = load_spec(write_spec(folder, CASES[name], self.place))
            prepared = prepare(spec, folder / "prepared")
            compile_model(spec, prepared, folder / "artifact", backend="neuron")
        return folder / "artifact"


def greedy(target: str, prompt: list[int], num_new: int) -> list[int]:
    """What the target alone says, computed here; once a prompt, for the whole cache."""
    whole = golden.target_alone(tuple(prompt), golden.SEQ_LEN - len(prompt), target)
    return whole[:num_new]


def assert_greedy(target: str, prompt: list[int], found: list[int]) -> None:
    """Tokens equal the target's own; where not, whether its two best were near each other there."""
    expected = greedy(target, prompt, len(found))
    if found == expected:
        return
    place = next(
        i for i, pair in enumerate(zip(found, expected, strict=True)) if len(set(pair)) > 1
    )
    raise AssertionError(
        f"new token {place} is {found[place]}, the target's own is {expected[place]}; in float32 "
        f"its two best logits are {margin(target, prompt + expected[:place]):.1e} apart there: "
        "less than 1e-3 is the device's arithmetic, more is a wrong graph"
    )


def margin(target: str, context: list[int]) -> float:
    """Between the two best logits behind a context."""
    model = golden.load_target(target, "eagle3" if target == "target3" else "model")
    with torch.inference_mode():
        hidden, _ = model.hidden(torch.tensor([context]), [0])
        best = model.logits(hidden[0, -1]).topk(2).values
    return float(best[0] - best[1])
