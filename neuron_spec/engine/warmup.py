"""Using everything once, so that no request waits for what is made at first use."""

from __future__ import annotations

from contextlib import suppress

from neuron_spec.backends.base import ChunkedSpeculator, Speculator
from neuron_spec.engine.session import Session
from neuron_spec.engine.tokenizer import Tokenizer
from neuron_spec.errors import RequestError
from neuron_spec.files import Progress

_SHORTEST_BUCKET = 128  # where powers of two begin, as in NxDI's automatic bucketing
_TOKEN = 1


def warm_up(session: Session, *, report: Progress | None = None) -> int:
    """Encode and decode, prefill prompts of every length that may have a graph of its own, then
    step with every k, with one running row and with all; the slots are free before and after.

    Returns:
        How many prefills and steps were run.
    """
    _warm_up_text(session.tokenizer)
    speculator = session.speculator
    limits = speculator.limits
    lengths = _prompt_lengths(speculator)
    ks = sorted({0, limits.num_draft_tokens, *(k for _, k in session.draft_length.bands)})
    batches = sorted({1, limits.batch_size})
    total, done = len(lengths) + len(ks) * len(batches), 0

    def count() -> None:
        nonlocal done
        done += 1
        if report:
            report("warming up", done, total)

    for length in lengths:
        speculator.prefill(0, [_TOKEN] * length)
        speculator.release(0)
        count()
    for num_rows in batches:
        for k in ks:
            for slot in range(num_rows):
                speculator.prefill(slot, [_TOKEN])
            speculator.step(k)
            for slot in range(num_rows):
                speculator.release(slot)
            count()
    return done


def _warm_up_text(tokenizer: Tokenizer) -> None:
    """Load the tokenizer and compile the chat template; the vocabulary, which only grammars need,
    stays where it is."""
    tokenizer.decode([*tokenizer.encode("1"), *tokenizer.stop_token_ids])
    tokenizer.token_bytes(_TOKEN)
    with suppress(RequestError):  # no chat template, or one that asks for more: requests are told
        tokenizer.encode([{"role": "user", "content": "1"}])


def _prompt_lengths(speculator: Speculator) -> list[int]:
    longest = speculator.limits.max_prompt_tokens
    if isinstance(speculator, ChunkedSpeculator):
        return sorted({1, min(speculator.prefill_chunk_tokens, longest)})
    lengths, length = {1, longest}, _SHORTEST_BUCKET
    while length < longest:
        lengths.add(length)
        length *= 2
    return sorted(lengths)
