"""Small worlds in which the law of a rule's output is computed and not sampled.

A world is a target over a handful of tokens, one distribution for every prefix, and a draft, one
distribution for every prefix and drafted node. `block_law` follows every draw, acceptance and
rejection of the algorithm with its probability, through the package's own decision functions.
`grid_law` takes the rule as a black box: probabilities that are multiples of 1/4 put every
threshold on a grid line, so that counting the cells of a grid of random numbers is exact.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from neuron_spec.rules import Uniforms, Verdict
from neuron_spec.rules.acceptance import acceptance_probability, as_drawn, residual, without
from neuron_spec.trees import ROOT, Tree

Prefix = tuple[int, ...]
Distribution = Callable[[Prefix], Tensor]
Rule = Callable[..., Verdict]


@dataclass
class World:
    """Distributions [vocab] float64 by prefix, made on first use and the same ever after.

    Attributes:
        sharpness: 0 is uniform; 3 and more is nearly one-hot.
        num_impossible: ids that a distribution gives no probability, at random.
        quarters: probabilities are multiples of 1/4.
    """

    seed: int
    vocab: int = 3
    sharpness: float = 1.0
    num_impossible: int = 0
    quarters: bool = False
    _made: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def target(self, prefix: Prefix) -> Tensor:
        return self._of("target", prefix)

    def draft(self, prefix: Prefix, node: int = 0) -> Tensor:
        """What a node's token is drawn from after `prefix`; one for all nodes unless asked."""
        return self._of("draft", prefix, node)

    def _of(self, *key: object) -> Tensor:
        if key not in self._made:
            seed = zlib.crc32(repr((self.seed, key)).encode())  # the same in every process
            generator = torch.Generator().manual_seed(seed)
            self._made[key] = self._quarters(generator) if self.quarters else self._any(generator)
        return self._made[key]

    def _quarters(self, generator: torch.Generator) -> Tensor:
        drawn = torch.randint(self.vocab, (4,), generator=generator)
        return torch.bincount(drawn, minlength=self.vocab).double() / 4

    def _any(self, generator: torch.Generator) -> Tensor:
        logits = self.sharpness * torch.randn(self.vocab, generator=generator, dtype=torch.float64)
        logits[torch.randperm(self.vocab, generator=generator)[: self.num_impossible]] = -torch.inf
        return logits.softmax(dim=0)


def table(distribution: Distribution, vocab: int, length: int) -> Tensor:
    """[vocab] * length + [vocab]: the distribution after every prefix of one length."""
    prefixes = itertools.product(range(vocab), repeat=length)
    return torch.stack([distribution(prefix) for prefix in prefixes]).reshape(
        [vocab] * (length + 1)
    )


def joint(distribution: Distribution, length: int, prefix: Prefix = ()) -> Tensor:
    """[vocab] * length: the law of the next tokens when drawn one by one."""
    if length == 0:
        return torch.ones((), dtype=torch.float64)
    probs = distribution(prefix)
    rows = [
        prob * joint(distribution, length - 1, (*prefix, token)) for token, prob in enumerate(probs)
    ]
    return torch.stack(rows)


@dataclass(frozen=True)
class Algorithm:
    """The decisions of rejection sampling on a tree, each of which a test may falsify.

    Attributes:
        drawn: (prefix, node) -> what the node's token is really drawn from, before siblings.
        stated: the same as the rule is told; None where it is true.
        siblings: None for deterministic trees, whose `drawn` is one-hot.
        rest: (target, draft) -> what to draw from on rejection.
        rest_prefix: (prefix, rejected token) -> whose target row `rest` is taken of.
    """

    world: World
    tree: Tree
    drawn: Callable[[Prefix, int], Tensor]
    stated: Callable[[Prefix, int], Tensor] | None = None
    siblings: str | None = None
    lenience: float = 1.0
    rest: Callable[[Tensor, Tensor], Tensor] = residual
    rest_prefix: Callable[[Prefix, int], Prefix] | None = None

    @property
    def length(self) -> int:
        return self.tree.max_depth + 1

    def block_law(self, node: int = ROOT, prefix: Prefix = ()) -> Tensor:
        """[vocab] * (length - depth): the law from a node on, filled up by the target."""
        return self._trial(self.tree.children[node], prefix, self.world.target(prefix), ())

    def _trial(
        self, children: tuple[int, ...], prefix: Prefix, target_probs: Tensor, tried: Prefix
    ) -> Tensor:
        if not children:
            left = self.length - len(prefix) - 1
            rows = [
                prob * joint(self.world.target, left, (*prefix, token))
                for token, prob in enumerate(target_probs)
            ]
            return torch.stack(rows)
        node, *others = children
        drawn = self._still_drawn(self.drawn(prefix, node), tried)
        law = torch.zeros([self.world.vocab] * (self.length - len(prefix)), dtype=torch.float64)
        for token in drawn.nonzero().flatten().tolist():
            stated = (self.stated or self.drawn)(prefix, node)
            stated = as_drawn(torch.tensor(token), self._left_over(stated, tried), self.world.vocab)
            accepted = float(
                acceptance_probability(target_probs[token], stated[token], lenience=self.lenience)
            )
            if accepted > 0:
                share = drawn[token] * accepted
                law[token] += share * self.block_law(node, (*prefix, token))
            if accepted < 1:
                row = target_probs
                if self.rest_prefix is not None:
                    row = self.world.target(self.rest_prefix(prefix, token))
                rest = self.rest(row, stated)
                share = drawn[token] * (1 - accepted)
                law += share * self._trial(tuple(others), prefix, rest, (*tried, token))
        return law

    def _left_over(self, probs: Tensor, tried: Prefix) -> Tensor:
        """What the rule believes that the next sibling is drawn from."""
        if self.siblings != "without-replacement":
            return probs
        return without(probs, self._mask(tried))

    def _still_drawn(self, probs: Tensor, tried: Prefix) -> Tensor:
        """The same, and as in Sequoia any of the untried ids where nothing is left."""
        if self.siblings != "without-replacement":
            return probs
        left = probs.masked_fill(self._mask(tried), 0)
        if left.sum() == 0:
            left = (~self._mask(tried)).double()
        return left / left.sum()

    def _mask(self, tried: Prefix) -> Tensor:
        mask = torch.zeros(self.world.vocab, dtype=torch.bool)
        mask[list(tried)] = True
        return mask


def top_tokens(world: World, tree: Tree) -> Callable[[Prefix, int], Tensor]:
    """A deterministic tree: sibling number n is the n-th likeliest token of the draft."""

    def one_hot(prefix: Prefix, node: int) -> Tensor:
        ordered = world.draft(prefix).argsort(descending=True, stable=True)
        return torch.eye(world.vocab, dtype=torch.float64)[ordered[tree.sibling_numbers[node]]]

    return one_hot


GRID = 12  # multiples of 1/4 have quotients and residuals in 1/1 … 1/4: all of them lines of 1/12


def grid_law(rule: Rule, world: World, num_drafts: int, *, deterministic: bool = False) -> Tensor:
    """[vocab] * (k + 1): the law of a chain rule's output, filled up by the target.

    Args:
        rule: called as `ChainRule`; `draft_probs` is None for a deterministic draft.
        world: one whose probabilities are `quarters`.
    """
    cells = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    numbers = torch.cartesian_prod(*[cells] * (num_drafts + 1)).reshape(-1, num_drafts + 1)
    last = numbers[:, -1:].expand(-1, num_drafts + 1)  # only one of them is used in each row
    law = torch.zeros([world.vocab] * (num_drafts + 1), dtype=torch.float64)
    for draft in itertools.product(range(world.vocab), repeat=num_drafts):
        drafted = [_draft_row(world, draft[:i], deterministic) for i in range(num_drafts)]
        share = 1.0
        for probs, token in zip(drafted, draft, strict=True):
            share *= float(probs[token])
        if share == 0:
            continue
        batch = len(numbers)
        verdict = rule(
            torch.tensor(draft, dtype=torch.int64).expand(batch, -1),
            None if deterministic or not drafted else torch.stack(drafted).expand(batch, -1, -1),
            torch.stack([world.target(draft[:i]) for i in range(num_drafts + 1)]).expand(
                batch, -1, -1
            ),
            Uniforms(numbers[:, :-1], last),
        )
        pairs = torch.stack([verdict.num_accepted, verdict.next_tokens], dim=1)
        for (kept, token), count in zip(*_counted(pairs), strict=True):
            output = (*draft[:kept], token)
            left = num_drafts - kept
            law[output] += share * count / batch * joint(world.target, left, output)
    return law


def _counted(pairs: Tensor) -> tuple[list[list[int]], list[int]]:
    values, counts = pairs.unique(dim=0, return_counts=True)
    return values.tolist(), counts.tolist()


def _draft_row(world: World, prefix: Prefix, deterministic: bool) -> Tensor:
    probs = world.draft(prefix)
    if deterministic:
        return torch.eye(world.vocab, dtype=torch.float64)[probs.argmax()]
    return probs


def drafted_chain(
    world: World, num_drafts: int, num: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Chains drawn from the world's draft, with the rows that go with them, float32."""
    tokens = torch.zeros(num, 0, dtype=torch.int64)
    drafts, targets = [], []
    for place in range(num_drafts + 1):
        prefixes = tuple(tokens.unbind(1))
        rows = table(world.target, world.vocab, place).float()
        targets.append(rows[prefixes] if place else rows.expand(num, -1))
        if place < num_drafts:
            rows = table(world.draft, world.vocab, place).float()
            drafts.append(rows[prefixes] if place else rows.expand(num, -1))
            drawn = drafts[-1].multinomial(1, generator=generator)
            tokens = torch.cat([tokens, drawn], dim=1)
    return tokens, torch.stack(drafts, dim=1), torch.stack(targets, dim=1)


def chi_square_p_value(counts: Tensor, probs: Tensor) -> float:
    """How often counts of this many draws would fit worse; cells without probability must be 0."""
    counts, probs = counts.double().flatten(), probs.double().flatten()
    if bool((counts[probs == 0] > 0).any()):
        return 0.0
    counts, expected = counts[probs > 0], probs[probs > 0] * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))
