"""Acceptance by depth and rank, measured on an artifact that drafts a wide tree of fixed shape.

Of an accepted node's children at most one is accepted. How often it is the one of rank r, by depth,
is what a tree is planned from; ranks and depths that the tree does not have stay unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine.session import Session
from neuron_spec.errors import UserError
from neuron_spec.metrics.estimates import Estimate, proportion
from neuron_spec.trees import ROOT, Tree


class RankCounts:
    """How often a node could have been accepted, and was: [depth][rank]."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        shape = [0] * (1 + max(tree.ranks))
        self.tried = [list(shape) for _ in range(tree.max_depth)]
        self.accepted = [list(shape) for _ in range(tree.max_depth)]

    def add(self, accepted_nodes: Sequence[int]) -> None:
        """Count one step."""
        tree = self._tree
        for parent, accepted in zip((ROOT, *accepted_nodes), (*accepted_nodes, None), strict=True):
            for child in tree.children[parent]:
                depth, rank = tree.depths[child] - 1, tree.ranks[child]
                self.tried[depth][rank] += 1
                self.accepted[depth][rank] += child == accepted

    def rates(self) -> list[list[Estimate]]:
        """[depth][rank] shares with intervals, without what was never tried."""
        rows = [
            [proportion(hits, tries) for hits, tries in zip(*pair, strict=True) if tries]
            for pair in zip(self.accepted, self.tried, strict=True)
        ]
        return [row for row in rows if row]


def measure_rank_rates(
    session: Session,
    tree_paths: Sequence[Sequence[int]],
    rows: Sequence[WorkloadRow],
    *,
    max_new_tokens: int,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> list[list[Estimate]]:
    """Decode every row greedily and count.

    Raises:
        UserError: the artifact drafts no tree of fixed shape, or does not tell what it accepted.
    """
    if not tree_paths:
        raise UserError(
            "acceptance by rank needs an artifact that drafts a tree",
            where="draft.tree",
            mend="compile one with a wide tree, such as every path of three ranks and three levels",
        )
    tree = Tree.from_paths(tree_paths)
    counts = RankCounts(tree.first(session.speculator.limits.num_draft_tokens))
    for index, row in enumerate(rows):
        progress("prompts", index, len(rows))
        for result in _steps(session, row, max_new_tokens):
            if result.accepted_nodes is None:
                raise UserError("this backend does not tell which branch it accepted")
            counts.add(result.accepted_nodes)
    progress("prompts", len(rows), len(rows))
    return counts.rates()


def _steps(session: Session, row: WorkloadRow, max_new_tokens: int) -> Iterator[Any]:
    """The steps of one request, without what follows its end."""
    speculator, limits = session.speculator, session.speculator.limits
    prompt = session.request(row.prompt).prompt_ids
    room = min(max_new_tokens, limits.max_total_tokens - len(prompt))
    tokens = [speculator.prefill(0, prompt).token]
    try:
        while len(tokens) < room and not session.tokenizer.stop_token_ids & set(tokens):
            (result,) = speculator.step(limits.num_draft_tokens)
            tokens += result.tokens
            yield result
    finally:
        speculator.release(0)
