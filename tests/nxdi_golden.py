"""The recorded NxDI runs, and the reference models in the form that the emulation takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from neuron_spec.backends.base import Limits
from neuron_spec.backends.decisions import Decisions
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import HEADS, Target
from neuron_spec.backends.reference.nxdi.chance import GREEDY, Chance
from neuron_spec.backends.reference.nxdi.eagle import FusedEagle
from neuron_spec.backends.reference.nxdi.eagle_tree import FusedEagleTree
from neuron_spec.backends.reference.nxdi.fused import FusedDraft
from neuron_spec.backends.reference.nxdi.passes import Buckets
from neuron_spec.backends.reference.nxdi.token_tree import TokenTree
from neuron_spec.backends.reference.parallel_heads import MedusaHeads
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.drafters import Drafter
from neuron_spec.trees import Tree

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4
SEQ_LEN, CONTEXT, SPECULATION_LENGTH = 96, 32, 5
PROMPTS = ([1, 17, 42, 99, 7], [1, 5, 88, 3, 61, 120, 33, 14, 9], [1, 100, 101, 64])
# Recorded case -> (target, draft, method).
CASES = {
    "fused_draft": ("target", "draft", "model"),
    "eagle1": ("target", "eagle1", "eagle"),
    "eagle1_norm": ("target", "eagle1_norm", "eagle"),
    "eagle3": ("target3", "eagle3", "eagle3"),
}


@cache
def recorded(case: str) -> dict[str, Any]:
    """A recorded case's JSON."""
    data: dict[str, Any] = json.loads((GOLDEN / f"{case}.json").read_text())
    return data


@cache
def tensors(case: str) -> dict[str, Tensor]:
    """A recorded case's tensors."""
    return load_file(GOLDEN / f"{case}.safetensors")


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE, rtol=0)


def buckets(
    speculation_length: int = SPECULATION_LENGTH, seq_len: int = SEQ_LEN, context: int = CONTEXT
) -> Buckets:
    """The recorded static lengths, unless said otherwise."""
    return Buckets(speculation_length, context, seq_len)


def placement(num_slots: int = 1, length: int = 128) -> Placement:
    return Placement(num_slots, length, torch.float32, torch.device("cpu"))


def load_target(directory: str = "target", method: str = "model", num_slots: int = 1) -> Target:
    num_layers = read_config(GOLDEN / directory).num_hidden_layers
    taps = HEADS[method].taps(GOLDEN / method, num_layers) if method == "eagle3" else ()
    return Target(GOLDEN / directory, placement(num_slots), taps=taps)


def load_draft(directory: str, method: str, num_slots: int = 1) -> Any:
    return HEADS[method].load(GOLDEN / directory, placement(num_slots))


def fused(
    case: str, lengths: Buckets | None = None, *, num_slots: int = 1, chance: Chance = GREEDY
) -> FusedDraft | FusedEagle:
    """The emulated graph of a recorded case."""
    lengths = lengths or buckets()
    target_name, draft_name, method = CASES[case]
    target = load_target(target_name, method, num_slots)
    draft = load_draft(draft_name, method, num_slots)
    if method == "model":
        return FusedDraft(target, draft, lengths)
    return FusedEagle(target, draft, lengths, num_slots=num_slots, chance=chance)


def eagle_tree(tree: Tree) -> FusedEagleTree:
    """EAGLE with a token tree."""
    return FusedEagleTree(
        load_target("target", "eagle"),
        load_draft("eagle1", "eagle"),
        buckets(tree.num_nodes),
        num_slots=1,
        tree=TokenTree(tree),
    )


def textbook(target: str, drafter: Drafter | None, k: int, num_slots: int = 1) -> Any:
    """The reference backend as it is without emulation."""
    method = "eagle3" if target == "target3" else "model"
    return ReferenceSpeculator(
        load_target(target, method, num_slots),
        drafter,
        Decisions("greedy", {}, draws_drafts=False, vocab_size=128),
        limits=Limits(num_slots, CONTEXT, SEQ_LEN, k),
        device=torch.device("cpu"),
    )


@cache
def target_alone(prompt: tuple[int, ...], num_new: int, target: str = "target") -> list[int]:
    """Greedy tokens of the target, without any speculation, EOS or limit."""
    speculator = textbook(target, None, 0)
    tokens = [speculator.prefill(0, prompt).token]
    while len(tokens) < num_new:
        tokens += speculator.step(0)[0].tokens
    return tokens


class Replay:
    """Uniform numbers as they were recorded; asked for another shape or once more, it fails."""

    def __init__(self, numbers: Iterable[list[float]]) -> None:
        self._numbers = iter(numbers)

    def __call__(self, shape: tuple[int, ...]) -> Tensor:
        return torch.tensor(next(self._numbers)).reshape(shape)

    def assert_used_up(self) -> None:
        assert next(self._numbers, None) is None


Draw = Callable[[tuple[int, ...]], Tensor]


@cache
def medusa_heads(folder: Path) -> MedusaHeads:
    """The recorded heads, prepared into a folder."""
    import shutil

    from neuron_spec.checkpoints.prepare import prepare_draft

    shutil.copytree(GOLDEN / "medusa", folder / "published", copy_function=shutil.copyfile)
    stored = load_file(folder / "published/medusa_heads.safetensors")
    torch.save(stored, folder / "published/medusa_heads.pt")
    prepare_draft(folder / "published", GOLDEN / "target", folder / "prepared")
    return MedusaHeads(folder / "prepared", placement())
