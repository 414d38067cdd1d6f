"""Following the target's own choices through a draft: what `greedy` and `sample-match` share."""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_spec.rules.verdict import NO_NODE, TreeVerdict, Verdict
from neuron_spec.trees import ROOT, Tree


def match_chain(draft_tokens: Tensor, target_tokens: Tensor) -> Verdict:
    """Keep the longest drafted prefix that equals the target's choices.

    Args:
        draft_tokens: [batch, k] ids or `NO_PROPOSAL`.
        target_tokens: [batch, k + 1] the target's choice after the first i drafted tokens.
    """
    matches = draft_tokens == target_tokens[:, :-1]  # [batch, k]
    num_accepted = matches.cumprod(dim=1).sum(dim=1)  # [batch]
    next_tokens = target_tokens.gather(1, num_accepted[:, None]).squeeze(1)
    return Verdict(num_accepted, next_tokens)


def match_tree(tree: Tree, draft_tokens: Tensor, target_tokens: Tensor) -> TreeVerdict:
    """From the root on, go to the child that equals the target's choice, while there is one.

    Of siblings with the same token, which no sensible draft has, the first is taken.

    Args:
        draft_tokens: [batch, nodes - 1] ids or `NO_PROPOSAL`.
        target_tokens: [batch, nodes] the target's choice after each node.
    """
    children = children_table(tree, draft_tokens.device)
    route = [draft_tokens.new_full((len(draft_tokens),), ROOT, dtype=torch.int64)]
    current = route[0]  # [batch]
    for _ in range(tree.max_depth):
        candidates = children[current]  # [batch, max_children]
        wanted = target_tokens.gather(1, current[:, None])
        matches = (tokens_of(draft_tokens, candidates) == wanted) & (candidates != NO_NODE)
        first = matches.long().argmax(dim=1, keepdim=True)
        found = matches.any(dim=1)  # once False, False on every further turn: `current` stays
        child = candidates.gather(1, first).squeeze(1)
        current = torch.where(found, child, current)
        route.append(torch.where(found, child, NO_NODE))
    return tree_verdict(route, target_tokens.gather(1, current[:, None]).squeeze(1))


def tree_verdict(route: list[Tensor], next_tokens: Tensor) -> TreeVerdict:
    """A verdict from the node of each depth: max_depth + 1 tensors [batch]."""
    nodes = torch.stack(route, dim=1)
    return TreeVerdict((nodes != NO_NODE).sum(dim=1) - 1, next_tokens, nodes)


def children_table(tree: Tree, device: torch.device) -> Tensor:
    """[nodes, max_children] children of each node in the order they are tried, then `NO_NODE`."""
    width = tree.max_children
    rows = [[*below, *[NO_NODE] * (width - len(below))] for below in tree.children]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(tree.num_nodes, width)


def tokens_of(draft_tokens: Tensor, nodes: Tensor) -> Tensor:
    """[batch, n] drafted tokens of nodes [batch, n]; anything for the root and `NO_NODE`."""
    return draft_tokens.gather(1, (nodes - 1).clamp(min=0))
