"""The emulation behind the seam: the step is NxDI's, the loop around it is the engine's.

What belongs to NxDI's loops (when a run ends, EOS) is therefore not seen here, see `generate`. The
bucket has room for k + 1 tokens behind the limit, so that nothing is clamped either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.backends.reference.nxdi import sampler
from neuron_spec.backends.reference.nxdi.chance import Chance, drawn
from neuron_spec.backends.reference.nxdi.graph import FREE_POSITION, GREEDY_PARAMS, Graph, Inputs
from neuron_spec.errors import RequestError
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.trees import Tree

_KNOWN_OPTIONS = ("temperature", "top_k", "top_p", "seed")
_FREE = (0, FREE_POSITION)


@dataclass(frozen=True)
class Committed:
    """Tokens of one row's step, how many proposals were verified, and a tree's depth."""

    tokens: tuple[int, ...]
    num_drafted: int
    num_positions: int | None = None


class Application(Protocol):
    """What NxDI compiles and an adapter drives, slot by slot."""

    def begin(self, slot: int, prompt: Sequence[int], decoding: Decoding) -> tuple[int, Tensor]:
        """Context encoding: the first new token and the logits [vocab] it came from."""

    def step(self, slots: Sequence[int]) -> list[Committed]:
        """One speculation step."""

    def decode(self, slots: Sequence[int]) -> list[int]:
        """One token of the target alone."""

    def release(self, slot: int) -> None:
        """Forget a sequence."""


class NxdiSpeculator:
    """A `Speculator` around an emulated application."""

    def __init__(self, application: Application, *, limits: Limits) -> None:
        self._application, self._limits = application, limits
        self._slots: set[int] = set()

    @property
    def limits(self) -> Limits:
        """What it can hold."""
        return self._limits

    @torch.inference_mode()
    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        """See `Speculator.prefill`.

        Raises:
            RequestError: an option that NxDI does not have.
        """
        if not 0 <= slot < self._limits.batch_size or slot in self._slots:
            raise ValueError(f"slot {slot} is not free")
        if not 1 <= len(prompt_ids) <= self._limits.max_total_tokens:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens")
        check_options(decoding)
        token, logits = self._application.begin(slot, prompt_ids, decoding)
        self._slots.add(slot)
        return PrefillResult(token, logits.float())

    @torch.inference_mode()
    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """See `Speculator.step`; k is compiled in, and otherwise 0: the target alone."""
        if num_draft_tokens not in (0, self._limits.num_draft_tokens):
            k = self._limits.num_draft_tokens
            raise ValueError(f"k = {num_draft_tokens}: NxDI's graph drafts {k} tokens, or none")
        slots = sorted(self._slots)
        if not slots:
            return []
        if num_draft_tokens == 0:
            tokens = self._application.decode(slots)
            pairs = zip(slots, tokens, strict=True)
            return [StepResult(slot, (token,), 0, 0) for slot, token in pairs]
        return [_result(*pair) for pair in zip(slots, self._application.step(slots), strict=True)]

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._slots.discard(slot)
        self._application.release(slot)


def _result(slot: int, done: Committed) -> StepResult:
    return StepResult(
        slot,
        done.tokens,
        done.num_drafted,
        len(done.tokens) - 1,
        num_positions=done.num_positions,
    )


def check_options(decoding: Decoding) -> None:
    """Refuse what NxDI's sampler does not know.

    Raises:
        RequestError: such an option is set.
    """
    if decoding.num_logprobs is not None:
        raise RequestError("NxDI's graph gives tokens alone", field="logprobs")
    default = SamplingParams()
    for field in fields(SamplingParams):
        is_set = getattr(decoding.sampling, field.name) != getattr(default, field.name)
        if is_set and field.name not in _KNOWN_OPTIONS:
            raise RequestError("NxDI's sampler has no such option", field=field.name)


@dataclass
class _Row:
    token: int
    position: int
    params: Tensor


class FusedApplication:
    """A fused graph, or a target alone, with the rows that run on it."""

    def __init__(
        self, graph: Graph, *, tree: Tree, chance: Chance, generator: torch.Generator
    ) -> None:
        self._graph, self._tree, self._chance = graph, tree, chance
        self._generator = generator
        self._rows: dict[int, _Row] = {}

    def begin(self, slot: int, prompt: Sequence[int], decoding: Decoding) -> tuple[int, Tensor]:
        """See `Application.begin`. A seed sets the numbers of all rows anew: NxDI has none, and
        the device's numbers are its own."""
        sampling = self._chance.sampling
        if decoding.sampling.seed is not None:
            self._generator.manual_seed(decoding.sampling.seed)
        params = GREEDY_PARAMS
        if sampling.do_sample:
            params = _validated(_params(decoding), sampling.global_topk)
        begun = self._graph.encode(slot, prompt, params)
        self._rows[slot] = _Row(begun.token, len(prompt), params)
        return begun.token, begun.logits

    def step(self, slots: Sequence[int]) -> list[Committed]:
        """See `Application.step`."""
        accepted, tree = self._graph.step(self._inputs(slots)).accepted, self._tree
        done = []
        for slot in slots:
            row = self._rows[slot]
            tokens = [token for token in accepted.tokens[slot].tolist() if token >= 0]
            row.token, row.position = tokens[-1], int(accepted.next_positions[slot])
            done.append(Committed(tuple(tokens), tree.num_draft_tokens, tree.max_depth))
        return done

    def decode(self, slots: Sequence[int]) -> list[int]:
        """See `Application.decode`."""
        inputs, chance = self._inputs(slots), self._chance
        logits = self._graph.decode(inputs)
        chosen = logits.argmax(dim=-1)
        if chance.sampling.do_sample:
            chosen = drawn(logits, inputs.params, chance)
        for slot in slots:
            row = self._rows[slot]
            row.token, row.position = int(chosen[slot]), row.position + 1
        return [self._rows[slot].token for slot in slots]

    def release(self, slot: int) -> None:
        """See `Application.release`."""
        self._rows.pop(slot, None)

    def _inputs(self, slots: Sequence[int]) -> Inputs:
        free = _Row(*_FREE, GREEDY_PARAMS)
        rows = [self._rows.get(slot, free) for slot in range(max(slots) + 1)]
        return Inputs(
            torch.tensor([row.token for row in rows]),
            torch.tensor([row.position for row in rows]),
            torch.stack([row.params for row in rows]),
        )


def _params(decoding: Decoding) -> Tensor:
    """As they are: to NxDI a top_k of 0 is not "all tokens"."""
    params = decoding.sampling
    if params.is_greedy:
        return torch.tensor([1.0, 1.0, 0.0])
    return torch.tensor([float(params.top_k), params.top_p, params.temperature])


def _validated(params: Tensor, global_topk: int) -> Tensor:
    """[3] as NxDI takes them. All that a request can still ask too much of is the list's length."""
    try:
        return sampler.validated(params[None], global_topk)[0]
    except ValueError as error:
        raise RequestError(f"NxDI refuses it: {error}", field="top_k") from None
