"""Speculation off and on at servers: the same closed loop as in process, from streamed answers.

What is timed is what a client sees: the network and the server's queue are in it. A chunk of a
stream may hold several tokens, and with speculation most do, so that the time between chunks is not
the time between tokens: tokens are counted by the server's usage, and the time per output token is
that from the first chunk to the last over the tokens after the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from neuron_spec.bench.load import NO_OFF, WARM_UP_TOKENS, LoadSettings
from neuron_spec.bench.rounds import AS_SERVED, OFF, ON, Round, Rounds, Served, passes_at, rotated
from neuron_spec.bench.scrape import SpeculationMetrics
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.client import OWNER, Answer, AnswerError, OpenAIClient, request_of
from neuron_spec.engine.events import Timing
from neuron_spec.engine.tokenizer import Tokenizer
from neuron_spec.errors import UserError
from neuron_spec.metrics import AcceptanceCounts

SWITCH = {"speculate": False}  # our own server's field for one request
_REFUSED = (400, 422)

TPOT_NOTE = (
    "time per output token: from the first chunk to the last, over the tokens after the first, "
    "which is taken to be one token; a chunk may hold several, so that the times between chunks "
    "are not times between tokens"
)
RETOKENIZED_NOTE = (
    "the server tells no usage: tokens are counted by tokenizing its text again, which can differ "
    "by a few from what it generated"
)


@dataclass(frozen=True)
class Remote:
    """One way of decoding at a server.

    Attributes:
        extra: fields added to its requests, such as those that switch speculation.
        card: the model's entry in /v1/models.
        stream_options: of every request; empty where the server refuses the field.
        tokenizer: counts the tokens of servers that tell no usage.
    """

    client: OpenAIClient
    extra: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)
    stream_options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None

    @property
    def is_switched_in_vain(self) -> bool:
        """Whether this server drafts whatever it is asked for: off, it is no faster (the card says
        so, see `Limits.always_drafts`)."""
        return self.is_ours and bool(self.card.get("always_drafts"))

    @property
    def is_ours(self) -> bool:
        """Whether the card says that it is a server of this project."""
        return self.card.get("owned_by") == OWNER

    def ask(self, row: WorkloadRow, options: Mapping[str, Any]) -> Answer:
        """Stream one answer."""
        api, body = request_of(row.prompt, options)
        stream = {"stream": True}
        if self.stream_options:
            stream["stream_options"] = self.stream_options  # type: ignore[assignment]
        return self.client.ask(api, {**body, **stream, **self.extra})

    def count(self, answer: Answer) -> int | None:
        """Output tokens; None where neither the server nor a tokenizer tells."""
        if answer.num_tokens is not None or self.tokenizer is None:
            return answer.num_tokens
        return len(self.tokenizer.encode(answer.text))


def ways_at(
    on: Remote, off: Remote | None, probe: WorkloadRow, options: Mapping[str, Any]
) -> dict[str, Remote]:
    """The ways of decoding, each tried once with a few tokens.

    Args:
        off: the same without speculation: another server, or other fields; None lets our own
            server's switch do it where it has one, and else measures the one way there is.

    Raises:
        UserError: a server does not answer, nobody can count its tokens, or what is named as off
            is no faster than on.
    """
    short = {**options, "max_new_tokens": WARM_UP_TOKENS}
    on = _tried(on, probe, short)
    if off is not None:
        off = _tried(off, probe, short)
        if off.is_switched_in_vain:
            raise UserError(
                f"nothing to compare speculation with: {NO_OFF}",
                where=off.client.base_url,
                mend="name in --off-endpoint a server of the same target with draft.method 'none'",
            )
        return {OFF: off, ON: on}
    is_switchable = on.is_ours and on.card.get("speculation") and not on.is_switched_in_vain
    if is_switchable and (plain := _switched(on, probe, short)):
        return {OFF: plain, ON: on}
    return {AS_SERVED: on}


def measure_endpoints(
    ways: Mapping[str, Remote],
    rows: Sequence[WorkloadRow],
    settings: LoadSettings,
    *,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> Rounds:
    """Run every row at every concurrency in every way, in turn; failures are counted."""
    result, start = Rounds(), time.perf_counter()
    short = {**settings.options, "max_new_tokens": WARM_UP_TOKENS}
    for concurrency in settings.concurrencies:
        for remote in ways.values():
            _run_closed(remote, [rows[0]] * concurrency, short, concurrency)
    result.warm_up_s = time.perf_counter() - start
    total = settings.repetitions * len(settings.concurrencies) * len(ways)
    for repetition in range(settings.repetitions):
        for concurrency in settings.concurrencies:
            for way in rotated(list(ways), repetition):
                progress("rounds", len(result.rounds), total)
                own = _round(ways[way], rows, settings.options, concurrency)
                result.rounds.append(replace(own, way=way, repetition=repetition))
    progress("rounds", total, total)
    if not any(r.requests for r in result.rounds):
        raise UserError("no request was answered", found=", ".join(set(_failures(result))))
    result.notes += _notes(ways, result)
    return result


def _round(
    remote: Remote, rows: Sequence[WorkloadRow], options: Mapping[str, Any], concurrency: int
) -> Round:
    before = SpeculationMetrics.parse(remote.client.metrics(), remote.client.model)
    passes = passes_at(concurrency, len(rows))
    wall_s, served, failures = _run_closed(remote, rows, options, concurrency, passes)
    after = SpeculationMetrics.parse(remote.client.metrics(), remote.client.model)
    counts = None
    if before is not None and after is not None and not failures:
        counts = after.since(before, own_tokens=sum(request.num_tokens for request in served))
    return Round("", concurrency, 0, wall_s, tuple(served), tuple(failures), counts)


def _run_closed(
    remote: Remote,
    rows: Sequence[WorkloadRow],
    options: Mapping[str, Any],
    concurrency: int,
    passes: int = 1,
) -> tuple[float, list[Served], list[str]]:
    """Seconds, what was served, and the kinds of failures, with so many requests in flight."""

    def one(place: int) -> Served | str:
        try:
            answer = remote.ask(rows[place], options)
        except AnswerError as error:
            return error.kind
        count = remote.count(answer)
        if count is None:
            return "no token count"
        return _served(place, answer, count, tells_acceptance=remote.is_ours)

    places = list(range(len(rows))) * passes
    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        results = list(pool.map(one, places))
    seconds = time.perf_counter() - start
    served = [result for result in results if isinstance(result, Served)]
    return seconds, served, [result for result in results if isinstance(result, str)]


def _served(row: int, answer: Answer, num_tokens: int, *, tells_acceptance: bool) -> Served:
    told = (answer.usage or {}).get("acceptance") if tells_acceptance else None
    return Served(
        row,
        None,
        answer.text,
        tuple((text, "plain") for _, text in answer.chunks),
        AcceptanceCounts.from_dict(told) if told else None,
        Timing(0.0, answer.ttft_s, answer.total_s),
        told_tokens=num_tokens,
        last_token_s=answer.last_s,
    )


def _tried(remote: Remote, row: WorkloadRow, options: Mapping[str, Any]) -> Remote:
    """With its card, as much usage as it tells, and no tokenizer where it tells enough."""
    remote = replace(remote, card=remote.client.card())
    wanted: dict[str, Any] = {"include_usage": True}
    if remote.is_ours:
        wanted["include_acceptance"] = True
    for stream_options in (wanted, {}):
        candidate = replace(remote, stream_options=stream_options)
        try:
            answer = candidate.ask(row, options)
        except AnswerError as error:
            if stream_options and error.status in _REFUSED:
                continue  # servers that check their fields may refuse this one
            raise
        break
    if candidate.count(answer) is None:
        raise UserError(
            "the server tells no usage in its stream: nobody can count its tokens",
            where=candidate.client.name,
            mend="give --tokenizer DIRECTORY, the model's own",
        )
    return candidate if answer.num_tokens is None else replace(candidate, tokenizer=None)


def _switched(on: Remote, row: WorkloadRow, options: Mapping[str, Any]) -> Remote | None:
    """The same server without speculation, if it has the switch."""
    off = replace(on, extra={**on.extra, **SWITCH})
    try:
        off.ask(row, options)
    except AnswerError as error:
        if error.status in _REFUSED:
            return None
        raise
    return off


def _notes(ways: Mapping[str, Remote], result: Rounds) -> list[str]:
    notes = [TPOT_NOTE]
    if (only := ways.get(AS_SERVED)) is not None:
        switch = ", or --off-body with the fields that switch it"
        notes.append(
            "one way of decoding only: to compare speculation on and off give --off-endpoint"
            + (f"; requests cannot switch it: {NO_OFF}" if only.is_switched_in_vain else switch)
        )
    if any(remote.tokenizer is not None for remote in ways.values()):
        notes.append(RETOKENIZED_NOTE)
    told = [r.acceptance or any(s.acceptance for s in r.requests) for r in result.rounds]
    if not any(told):
        notes.append("acceptance: not told, neither in usage nor in /metrics under vLLM's names")
    return notes


def _failures(result: Rounds) -> list[str]:
    return [failure for r in result.rounds for failure in r.failures]
