"""Drafters that need no model, out of a spec: alone, or before a draft."""

from __future__ import annotations

from collections.abc import Callable

from neuron_spec.drafters.base import Drafter
from neuron_spec.drafters.combined import CombinedDrafter
from neuron_spec.drafters.ngram import NgramDrafter
from neuron_spec.drafters.suffix import SuffixDrafter
from neuron_spec.spec.schema import DraftSpec


def _ngram(spec: DraftSpec) -> Drafter:
    shortest, longest = spec.ngram_sizes
    return NgramDrafter(min_size=shortest, max_size=longest)


def _suffix(spec: DraftSpec) -> Drafter:
    return SuffixDrafter(
        depth=spec.suffix_depth,
        min_probability=spec.suffix_min_probability,
        max_answers=spec.suffix_answers,
    )


LOOKUP_DRAFTERS: dict[str, Callable[[DraftSpec], Drafter]] = {"ngram": _ngram, "suffix": _suffix}


def with_lookup(spec: DraftSpec, draft: Drafter) -> Drafter:
    """The draft, behind the spec's lookup where it has one."""
    if spec.lookup is None:
        return draft
    return CombinedDrafter(
        LOOKUP_DRAFTERS[spec.lookup.method](spec),
        draft,
        num_draft_tokens=spec.num_draft_tokens,
        shortest=spec.lookup.shortest,
    )
