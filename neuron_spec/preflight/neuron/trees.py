"""Which draft trees NxDI's two tree paths take: Medusa's rank paths and EAGLE's token tree.

That nodes are numbered breadth-first, that every prefix is there and no node has two parents
is the rule of `neuron_spec.trees`; the step is always the number of nodes, and no tree is
deeper than its draft has heads (finding `draft-length-beyond-heads`).
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.platforms.nxdi_models import MEDUSA_TOP_K
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, listed

_MEDUSA_TABLES = "NxD utils/medusa_utils.py generate_medusa_buffers (TOPK = 10)"
_TOKEN_TREE = "NxDI modules/eagle/token_tree.py"


def check_medusa_ranks(build: NeuronBuild) -> Iterator[Finding]:
    """Medusa's tables assume ten candidates a head; another rank is silently another head's."""
    if build.path == "medusa" and max(build.tree.ranks) >= MEDUSA_TOP_K:
        yield error(
            "medusa-rank",
            f"draft.tree has rank {max(build.tree.ranks)}: the tables know the {MEDUSA_TOP_K} best "
            "of a head, and would take a candidate of the next head for it",
            f"use ranks 0 … {MEDUSA_TOP_K - 1}",
            _MEDUSA_TABLES,
        )


def check_leaf_depths(build: NeuronBuild) -> Iterator[Finding]:
    """Short paths are padded with nodes of others, which take part in the test."""
    depths = sorted({len(route) - 1 for route in build.tree.leaf_routes})
    if build.path == "eagle-tree" and len(depths) > 1:
        yield error(
            "tree-leaf-depths",
            f"draft.tree has leaves at depths {listed(tuple(depths))}: NxDI pads the shorter paths "
            "with nodes of other paths, and can emit tokens that the target did not choose",
            "end all paths at the same depth",
            f"{_TOKEN_TREE}; recorded with 0.9.0 on a CPU",
        )


def check_sibling_ranks(build: NeuronBuild) -> Iterator[Finding]:
    """A token tree has no ranks of its own: a node's is its place among its siblings."""
    if build.path == "eagle-tree" and build.tree.ranks != build.tree.sibling_numbers:
        yield error(
            "tree-rank-gap",
            "draft.tree leaves out a better sibling of one of its nodes: NxDI would draft another "
            "tree than the one that is written",
            "number the children of every node 0, 1, … without a gap",
            _TOKEN_TREE,
        )


CONSTRAINTS: tuple[Constraint, ...] = (
    check_medusa_ranks,
    check_leaf_depths,
    check_sibling_ranks,
)
