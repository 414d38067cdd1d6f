"""What was measured, request by request and round by round, in process or over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neuron_spec.engine.events import Timing
from neuron_spec.metrics import AcceptanceCounts

OFF, ON, BY_LOAD = "off", "on", "by-load"
AS_SERVED = "as served"
"""Of an endpoint that nobody switches: with speculation or without, whichever it does."""
WAYS = (OFF, ON, BY_LOAD, AS_SERVED)
REQUESTS_PER_SLOT = 4
"""At least so many for every one in flight: before all are in flight, and while the last ones end,
fewer run than the concurrency says."""


@dataclass(frozen=True)
class Served:
    """One request that was served: its row in the workload, what came out, and when.

    Attributes:
        token_ids: None where only text is told.
        pieces: (text, origin of the token that completed it), in order.
        acceptance: None where it is not told for single requests.
        told_tokens: output tokens where their ids are not told.
        last_token_s: from submission to the last token, where the end of the request is not it.
    """

    row: int
    token_ids: tuple[int, ...] | None
    text: str
    pieces: tuple[tuple[str, str], ...]
    acceptance: AcceptanceCounts | None
    timing: Timing
    told_tokens: int = 0
    last_token_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return self.told_tokens if self.token_ids is None else len(self.token_ids)

    @property
    def output(self) -> tuple[int, ...] | str:
        """What two ways of decoding are compared by."""
        return self.text if self.token_ids is None else self.token_ids

    @property
    def tokens_per_s(self) -> float:
        """Of this request alone, prompt processing included."""
        return self.num_tokens / self.timing.total_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        ttft_s, last_s = self.timing.ttft_s, self.last_token_s
        if last_s is None:
            return self.timing.tpot_s(self.num_tokens)
        if ttft_s is None or self.num_tokens < 2 or last_s <= ttft_s:
            return None  # all came at once: there is no time between tokens
        return (last_s - ttft_s) / (self.num_tokens - 1)


@dataclass(frozen=True)
class Round:
    """All rows, as often as `passes_at` says, in one way of decoding, with so many requests in
    flight.

    Attributes:
        failures: what became of requests that were not served, one entry each.
        acceptance: of all requests together, where single ones do not tell it.
    """

    way: str
    concurrency: int
    repetition: int
    wall_s: float
    requests: tuple[Served, ...]
    failures: tuple[str, ...] = ()
    acceptance: AcceptanceCounts | None = None

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests that were served over the time of the round."""
        return sum(request.num_tokens for request in self.requests) / self.wall_s


@dataclass
class Rounds:
    """A whole run: the measured rounds, what a peer made of the rows, and the warm-up's time.

    Attributes:
        notes: what a reader has to know of how it was measured.
    """

    rounds: list[Round] = field(default_factory=list)
    peer_tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    warm_up_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def ways(self) -> list[str]:
        """Ways of decoding that were measured, `off` first."""
        found = {r.way for r in self.rounds}
        return [way for way in WAYS if way in found]

    @property
    def main_way(self) -> str:
        """What single prompts and kinds of work are told of: speculation on, if it was measured."""
        return ON if ON in self.ways else self.ways[-1]

    def of(self, way: str, concurrency: int) -> list[Round]:
        """The repetitions of one way at one concurrency, in order."""
        return [r for r in self.rounds if (r.way, r.concurrency) == (way, concurrency)]

    def by_row(self, way: str, concurrency: int) -> dict[int, list[Served]]:
        """Row -> its requests in all repetitions; rows that were never served are left out."""
        return by_row(self.of(way, concurrency))


def by_row(rounds: Sequence[Round]) -> dict[int, list[Served]]:
    """Row -> its requests in these rounds."""
    rows: dict[int, list[Served]] = {}
    for one in rounds:
        for request in one.requests:
            rows.setdefault(request.row, []).append(request)
    return dict(sorted(rows.items()))


def passes_at(concurrency: int, num_rows: int) -> int:
    """How often a round runs all rows: once, or more where they would not keep so many requests in
    flight for most of the time. Whole passes, so that every row counts the same."""
    return 1 if concurrency == 1 else -(-REQUESTS_PER_SLOT * concurrency // num_rows)


def rotated(ways: Sequence[str], by: int) -> list[str]:
    """The ways in their order, beginning elsewhere in every repetition."""
    place = by % len(ways)
    return [*ways[place:], *ways[:place]]
