"""What a grammar is to those who choose tokens, and its masks along drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from neuron_spec.trees import ROOT, Tree

if TYPE_CHECKING:
    from torch import Tensor


class Matcher(Protocol):
    """How far one output has come in its grammar."""

    @property
    def is_ended(self) -> bool:
        """Whether an end-of-sequence token was accepted; nothing can follow it."""

    def accept(self, token: int) -> bool:
        """Go one token on; False, and nothing changes, where the grammar has no such token next."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""

    def allowed(self) -> Tensor:
        """Which tokens may come next, [vocab] bool on the CPU; not to be asked after the end. An
        end-of-sequence token may come iff the output is complete."""


class Grammar(Protocol):
    """A compiled grammar, for any number of outputs."""

    def begin(self) -> Matcher:
        """The matcher of a new output."""


@dataclass(frozen=True)
class NodeMasks:
    """What may follow the nodes of a drafted tree.

    Attributes:
        allowed: [nodes, vocab] bool; all of a row where no path of the grammar leads to the node,
            where the output has ended, and at dead ends.
        dead_ends: nodes in the grammar after which none of the vocabulary's tokens can come.
    """

    allowed: Tensor
    dead_ends: frozenset[int]


def node_masks(matcher: Matcher, tree: Tree, tokens: Sequence[int], vocab: int) -> NodeMasks:
    """Masks at the root, where the matcher stands, and after every drafted token.

    Args:
        tokens: [nodes - 1] ids; negative ones are no proposals.
    """
    import torch

    allowed = torch.ones(tree.num_nodes, vocab, dtype=torch.bool)
    dead_ends: list[int] = []

    def visit(node: int) -> None:
        if matcher.is_ended:
            return
        own = matcher.allowed()
        if not bool(own.any()):
            dead_ends.append(node)
            return
        allowed[node] = own
        for child in tree.children[node]:
            if _goes_on(matcher, tokens[child - 1]):
                visit(child)
                matcher.rollback(1)

    visit(ROOT)
    return NodeMasks(allowed, frozenset(dead_ends))


def allowed_after(matcher: Matcher, path: Sequence[int]) -> Tensor | None:
    """Which tokens may follow `path`, [vocab] bool; None where the grammar has nothing to say: the
    path is not one of its own, or the output has ended."""
    num_accepted = 0
    for token in path:
        if not _goes_on(matcher, token):
            break
        num_accepted += 1
    is_open = num_accepted == len(path) and not matcher.is_ended
    allowed = matcher.allowed() if is_open else None
    matcher.rollback(num_accepted)
    return allowed


def _goes_on(matcher: Matcher, token: int) -> bool:
    return token >= 0 and not matcher.is_ended and matcher.accept(token)
