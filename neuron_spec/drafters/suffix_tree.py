"""How often every string of tokens occurred in some sequences, and what followed it.

A tree of suffixes that are at most `depth` tokens long. A string that occurred once is a leaf: a
place in its sequence, which the tree expands when the string occurs again. The tree so grows with
what repeats, and adding a token costs as many steps as the longest repeated string before it has
tokens, not as many as the depth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class _Node:
    """A string that occurred `count` times.

    Attributes:
        children: what followed it, the latest last; None in a leaf.
        sequence: where a leaf's string occurred; None where the depth ends a repeated string.
        end: the place in `sequence` after it.
    """

    __slots__ = ("children", "count", "end", "sequence")

    def __init__(self, sequence: Sequence[int] | None = None, end: int = 0) -> None:
        self.count = 1
        self.children: dict[int, _Node] | None = None
        self.sequence, self.end = sequence, end

    def expand(self, *, is_deepest: bool) -> None:
        """Make a leaf an inner node, with what followed its one occurrence as its first child."""
        if self.children is None and not is_deepest:
            self.children = {}
            if (token := self.next_in_sequence(0)) is not None:
                self.children[token] = _Node(self.sequence, self.end + 1)
        self.sequence = None

    def next_in_sequence(self, offset: int) -> int | None:
        """The token `offset` places after a leaf's string, if its sequence goes on."""
        if self.sequence is None or self.end + offset >= len(self.sequence):
            return None
        return self.sequence[self.end + offset]


@dataclass(frozen=True)
class Continuation:
    """What may follow.

    Attributes:
        score: the sum of the tokens' estimated probabilities: how many will probably be right.
    """

    tokens: list[int]
    score: float


class SuffixTree:
    """Counts strings of at most `depth` tokens. One sequence grows at a time: the latest begun."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._root = _Node()
        self._root.children = {}
        self._growing: list[int] = []
        self._open = [self._root]  # the growing sequence's last 0, 1, 2, … tokens, if not leaves

    def begin(self) -> None:
        """Start another sequence."""
        self._growing = []
        self._open = [self._root]

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens to the growing sequence."""
        for token in tokens:
            self._growing.append(token)
            still_open = [self._root]
            for length, node in enumerate(self._open[: self._depth], start=1):
                child = self._step(node, token, is_deepest=length == self._depth)
                if child is not None:
                    still_open.append(child)
            self._open = still_open

    def _step(self, node: _Node, token: int, *, is_deepest: bool) -> _Node | None:
        """Count `token` after `node`; the child, or None if it is a new leaf."""
        assert node.children is not None
        child = node.children.pop(token, None)
        if child is None:
            node.children[token] = _Node(self._growing, len(self._growing))
            return None
        child.count += 1
        child.expand(is_deepest=is_deepest)
        node.children[token] = child  # the latest last
        return child

    def remove(self, sequence: Sequence[int]) -> None:
        """Take out a whole sequence that was added before."""
        for start in range(len(sequence)):
            node = self._root
            for token in sequence[start : start + self._depth]:
                if node.children is None:
                    break
                child = node.children[token]
                child.count -= 1
                if child.count == 0:
                    del node.children[token]
                    break
                node = child

    def continuation(
        self, context: Sequence[int], num_tokens: int, min_probability: float
    ) -> Continuation:
        """The best continuation of `context`, over all lengths of what is matched of its end.

        It is no longer than the match: short matches are weak evidence. Of equal scores the longer
        match's wins.
        """
        best = Continuation([], 0.0)
        for length in range(1, min(len(context), self._depth - 1) + 1):
            place = self._find(context[len(context) - length :])
            if place is None:
                break
            limit = min(num_tokens, length, self._depth - length)
            found = _follow(*place, limit, min_probability)
            if found.score >= best.score:
                best = found
        return best

    def _find(self, string: Sequence[int]) -> tuple[_Node, int] | None:
        """Where a string ends, if something followed it: its node, or a leaf and how far the string
        goes on in the leaf's sequence."""
        node, offset = self._root, 0
        for token in string:
            if node.children is None:
                if node.next_in_sequence(offset) != token:
                    return None
                offset += 1
            elif token in node.children:
                node = node.children[token]
            else:
                return None
        goes_on = node.children if node.children is not None else node.next_in_sequence(offset)
        return (node, offset) if goes_on not in ({}, None) else None


def _follow(node: _Node, offset: int, limit: int, min_probability: float) -> Continuation:
    """The most frequent token again and again, the latest of equals, while it is probable enough.

    A token's probability is that of the whole path to it.
    """
    tokens: list[int] = []
    probability, score = 1.0, 0.0
    while len(tokens) < limit:
        if node.children is None:
            token = node.next_in_sequence(offset)
            offset += 1
        else:
            token, node, share = _most_frequent(node)
            probability *= share
        if token is None or probability < min_probability:
            break
        tokens.append(token)
        score += probability
    return Continuation(tokens, score)


def _most_frequent(node: _Node) -> tuple[int | None, _Node, float]:
    """The most frequent child of an inner node and its share, or None and no share."""
    if not node.children:
        return None, node, 0.0
    total = sum(child.count for child in node.children.values())
    token, child = max(reversed(node.children.items()), key=lambda item: item[1].count)
    return token, child, child.count / total


class AnswerStore:
    """A suffix tree over the latest `max_answers` answers."""

    def __init__(self, depth: int, max_answers: int) -> None:
        self.tree = SuffixTree(depth)
        self._max_answers = max_answers
        self._answers: deque[list[int]] = deque()

    def add(self, answer: list[int]) -> None:
        """Store a whole answer; the oldest is dropped when there are too many."""
        if not self._max_answers:
            return
        if len(self._answers) == self._max_answers:
            self.tree.remove(self._answers.popleft())
        self._answers.append(answer)
        self.tree.begin()
        self.tree.extend(answer)
