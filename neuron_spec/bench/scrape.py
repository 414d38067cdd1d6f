"""Acceptance from a server's /metrics, before and after: vLLM's names, in Prometheus' text form.

Names as in vllm-project/vllm `vllm/v1/spec_decode/metrics.py`: a "draft" is a step that verified
one. Counters are of the whole server: they tell of our requests only if it served no others in the
time, which its count of generated tokens shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from neuron_spec.metrics import AcceptanceCounts

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = "vllm:generation_tokens_total"
_SAMPLE = re.compile(r"([\w:]+)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class SpeculationMetrics:
    """The counters of one model at one moment, summed over its engines.

    Attributes:
        by_position: position in the draft, 0 first -> accepted tokens.
    """

    num_drafts: float
    num_drafted: float
    num_accepted: float
    num_generated: float
    by_position: Mapping[int, float]

    @classmethod
    def parse(cls, text: str | None, model: str) -> SpeculationMetrics | None:
        """From /metrics; None where speculation's counters are not in it."""
        totals: dict[str, float] = {}
        by_position: dict[int, float] = {}
        for line in (text or "").splitlines():
            match = _SAMPLE.match(line)
            if match is None:
                continue
            labels = dict(_LABEL.findall(match[2] or ""))
            if labels.get("model_name", model) != model:
                continue
            if match[1] == _BY_POSITION:
                place = int(labels["position"])
                by_position[place] = by_position.get(place, 0.0) + float(match[3])
            elif match[1] in (_DRAFTS, _DRAFTED, _ACCEPTED, _GENERATED):
                totals[match[1]] = totals.get(match[1], 0.0) + float(match[3])
        if not {_DRAFTS, _DRAFTED, _ACCEPTED} <= totals.keys():
            return None
        drafts, drafted, accepted = (totals[name] for name in (_DRAFTS, _DRAFTED, _ACCEPTED))
        return cls(drafts, drafted, accepted, totals.get(_GENERATED, 0.0), by_position)

    def since(self, before: SpeculationMetrics, *, own_tokens: int) -> AcceptanceCounts | None:
        """What was counted since `before`; None if others were served too.

        Args:
            own_tokens: output tokens of our own requests in the time.
        """
        # The counter may include a stop token or a cut stop string that a client does not get.
        generated = self.num_generated - before.num_generated
        if self.num_generated and not own_tokens <= generated <= 1.1 * own_tokens + 16:
            return None
        drafts, drafted, accepted = (
            round(now - then)
            for now, then in (
                (self.num_drafts, before.num_drafts),
                (self.num_drafted, before.num_drafted),
                (self.num_accepted, before.num_accepted),
            )
        )
        if drafts < 0:  # the server was started again in between
            return None
        by_position = [
            round(count - before.by_position.get(place, 0.0))
            for place, count in sorted(self.by_position.items())
        ]
        reached = [drafts, *by_position, 0]
        exact = [a - b for a, b in zip(reached, reached[1:], strict=False)] if by_position else []
        # Steps may draft less than the most: where each had as many is not told then.
        is_constant = drafted == drafts * len(by_position)
        return AcceptanceCounts(
            num_steps=drafts,
            num_drafted=drafted,
            num_accepted=accepted,
            accepted_by_position=by_position,
            drafted_by_position=[drafts] * len(by_position) if is_constant else [],
            steps_by_accepted=exact,
        )
