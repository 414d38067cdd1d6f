"""One HTTP request -> the engine's requests, one a choice."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from neuron_spec.engine.request import Request
from neuron_spec.engine.session import Session
from neuron_spec.serving.wire import CommonRequest


def requests_of(wire: CommonRequest, session: Session) -> list[Request]:
    """Choices in OpenAI's order: all of the first prompt, then all of the second, …

    Raises:
        RequestError: a field cannot be honoured, or a prompt does not fit.
    """
    limits = session.speculator.limits
    options = wire.options(can_sample=limits.can_sample)
    first, *others = wire.prompts()
    begun = replace(session.request(first, **options), speculate=wire.speculate is not False)
    # Nothing but the prompt differs: a schema is compiled once, however many there are.
    encoded = (session.tokenizer.encode(prompt) for prompt in others)
    requests = []
    for request in (begun, *(replace(begun, prompt_ids=prompt_ids) for prompt_ids in encoded)):
        request.output_limit(limits)
        requests += [_with_own_seed(request, index) for index in range(wire.n or 1)]
    return requests


def choice_seed(seed: int, index: int) -> int:
    """The seed of a request's choice; the first has the request's own, so that `n` does not change
    it."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits


def _with_own_seed(request: Request, index: int) -> Request:
    if request.sampling.seed is None:
        return request
    seed = choice_seed(request.sampling.seed, index)
    return replace(request, sampling=replace(request.sampling, seed=seed))
