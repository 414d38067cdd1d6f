"""The generation loop of NxDI's Hugging Face adapter around a fused graph.

Source: `utils/hf_adapter.py`, `_fused_assisted_decoding`. In this package the engine owns the loop;
this one stands beside it, to show what NxDI's does otherwise:

- The length counter starts at the prompt's length and never counts the token of context encoding. A
  run ends after a step that leaves no more than `speculation_length` of `max_length`, so up to that
  many tokens short; one step always runs, even beyond `max_length`.
- An EOS cuts what a step emitted. As the token of context encoding it is not noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.backends.reference.nxdi.graph import GREEDY_PARAMS, Begun, Graph, Inputs, Step


@dataclass(frozen=True)
class FusedRun:
    """One output, prompt included, and how it came about.

    Attributes:
        emitted: what every step added, cut at an EOS.
    """

    sequence: tuple[int, ...]
    begun: Begun
    steps: tuple[Step, ...]
    emitted: tuple[tuple[int, ...], ...]


@torch.inference_mode()
def generate(
    graph: Graph,
    prompt: Sequence[int],
    *,
    max_length: int,
    eos_token_ids: Collection[int] = (),
    params: Tensor = GREEDY_PARAMS,
) -> FusedRun:
    """Continue one prompt in slot 0, to about `max_length` tokens with the prompt.

    Args:
        params: [3] top_k, top_p, temperature; only a graph that samples reads them.
    """
    begun = graph.encode(0, prompt, params)
    position = counter = len(prompt)
    new, steps, emitted = [begun.token], [], []
    while True:
        inputs = Inputs(torch.tensor(new[-1:]), torch.tensor([position]), params[None])
        steps.append(graph.step(inputs))
        accepted = steps[-1].accepted
        num_emitted = int(accepted.next_positions[0]) - position
        tokens = accepted.tokens[0, :num_emitted].tolist()
        emitted.append(tuple(until_eos(tokens, eos_token_ids)))
        new += emitted[-1]
        position, counter = position + num_emitted, counter + num_emitted
        is_ended = bool(emitted[-1]) and emitted[-1][-1] in eos_token_ids
        if is_ended or must_stop(counter, max_length, graph.buckets.speculation_length):
            return FusedRun((*prompt, *new), begun, tuple(steps), tuple(emitted))


def until_eos(tokens: Sequence[int], eos_token_ids: Collection[int]) -> Sequence[int]:
    """The tokens to the first EOS, itself included."""
    ends = [place for place, token in enumerate(tokens) if token in eos_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def must_stop(counter: int, max_length: int, speculation_length: int) -> bool:
    """Whether the loop ends after a step that leaves its counter here."""
    return max_length - counter <= speculation_length
