"""A speculator that replies from a table: for tests of everything above the seam, without weights.

    speculator = ScriptedSpeculator({(1, 2): (7, 8, 9, 2)}, accepted=[2, 0])

The prompt 1, 2 is continued with 7, 8, 9, 2; the first step accepts two drafts, the second none,
and so on in turn. After the reply's end the last token repeats. A prompt with the beginning of its
reply is known too, continued as the same target would: 1, 2, 7 with 8, 9, 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult

DEFAULT_LIMITS = Limits(
    batch_size=2, max_prompt_tokens=64, max_total_tokens=128, num_draft_tokens=4
)


@dataclass
class _Sequence:
    reply: tuple[int, ...]
    position: int
    speculates: bool = True

    def take(self, count: int) -> tuple[int, ...]:
        indices = range(self.position, self.position + count)
        self.position += count
        return tuple(self.reply[min(index, len(self.reply) - 1)] for index in indices)


class ScriptedSpeculator:
    """A `Speculator` whose target is a table from prompts to replies."""

    def __init__(
        self,
        replies: Mapping[tuple[int, ...], Sequence[int]],
        *,
        accepted: Sequence[int] = (0,),
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._replies = {prompt: tuple(reply) for prompt, reply in replies.items()}
        self._accepted = cycle(accepted)
        self._limits = limits
        self._running: dict[int, _Sequence] = {}

    @property
    def limits(self) -> Limits:
        """What it pretends to hold."""
        return self._limits

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        """The reply's first token, however it is to be decoded."""
        if not 0 <= slot < self._limits.batch_size or slot in self._running:
            raise ValueError(f"slot {slot} is not free")
        sequence = self._find(tuple(prompt_ids))
        sequence.speculates = decoding.speculate
        self._running[slot] = sequence
        return PrefillResult(sequence.take(1)[0], None)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """The next tokens of every running reply; acceptance follows the script, at most k."""
        results = []
        for slot, sequence in sorted(self._running.items()):
            drafted = num_draft_tokens if sequence.speculates else 0
            accepted = min(next(self._accepted), drafted)
            tokens = sequence.take(accepted + 1)
            results.append(StepResult(slot, tokens, drafted, accepted))
        return results

    def release(self, slot: int) -> None:
        """Forget the slot's reply."""
        self._running.pop(slot, None)

    def _find(self, prompt: tuple[int, ...]) -> _Sequence:
        for length in range(len(prompt), 0, -1):
            reply, begun = self._replies.get(prompt[:length]), prompt[length:]
            if reply is not None and begun == reply[: len(begun)]:
                return _Sequence(reply, len(begun))
        raise ValueError(f"no reply is scripted for the prompt {prompt}")
