"""An EAGLE head that can be computed by hand: a slip of one position in the wiring shows at once.

Its layer adds nothing, `fc` passes either the embedding or the feature through, and embedding and
LM head are tables of unit vectors. So a head that passes the embedding through proposes the token
after the one it reads (the LM head is shifted by one), and one that passes the feature through
proposes what the target's own feature stands for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import EagleHead
from neuron_spec.checkpoints.prepare import prepare_draft

SIZE = 32  # of the vocabulary and of the hidden state: every token is a unit vector
PASSES = {"embedding": slice(0, SIZE), "feature": slice(SIZE, 2 * SIZE)}


def head_of(folder: Path, passes: str) -> EagleHead:
    target = tiny.write_target(folder / "target", vocab_size=SIZE)
    draft = tiny.write_eagle(folder / "draft", vocab_size=SIZE, bias=False)
    tensors = {
        name: torch.zeros_like(t) for name, t in load_file(draft / "model.safetensors").items()
    }
    tensors["fc.weight"][:, PASSES[passes]] = torch.eye(SIZE)
    tensors["embed_tokens.weight"] = torch.eye(SIZE)
    tensors["lm_head.weight"] = torch.eye(SIZE).roll(1, dims=0)  # unit vector i means token i + 1
    save_file(tensors, draft / "model.safetensors", {"format": "pt"})
    prepare_draft(draft, target, folder / "prepared")
    placement = Placement(2, 64, torch.float32, torch.device("cpu"))
    return EagleHead(folder / "prepared", placement)


def units(*tokens: int) -> Tensor:
    """Features that stand for these tokens, [n, hidden]."""
    return torch.eye(SIZE)[list(tokens)]


def test_the_embedding_is_of_the_last_token(tmp_path: Path) -> None:
    drafter = head_of(tmp_path, "embedding").drafter()
    drafter.begin(0, torch.tensor([5, 6, 7]), units(20, 21))
    # 7 is the last token, 8 follows it; each proposal is the next one's last token.
    assert drafter.propose(1, 4).tokens.tolist() == [[8, 9, 10, 11]]
    drafter.observe(0, torch.tensor([8, 3]), units(22, 23))
    assert drafter.propose(1, 3).tokens.tolist() == [[4, 5, 6]]


def test_the_feature_is_of_the_position_before_the_last_token(tmp_path: Path) -> None:
    drafter = head_of(tmp_path, "feature").drafter()
    drafter.begin(0, torch.tensor([5, 6, 7]), units(20, 21))
    # The feature before 7 stands for 21; drafting on, the head's own output is the same feature.
    assert drafter.propose(1, 3).tokens.tolist() == [[22, 22, 22]]
    drafter.observe(0, torch.tensor([8, 3]), units(24, 11))
    assert drafter.propose(1, 2).tokens.tolist() == [[12, 12]]


@pytest.mark.parametrize("passes", PASSES)
def test_rows_do_not_mix(tmp_path: Path, passes: str) -> None:
    drafter = head_of(tmp_path, passes).drafter()
    drafter.begin(0, torch.tensor([5, 6, 7]), units(20, 21))
    drafter.begin(1, torch.tensor([9, 2]), units(14))
    expected = {"embedding": [[8, 9], [3, 4]], "feature": [[22, 22], [15, 15]]}
    assert drafter.propose(2, 2).tokens.tolist() == expected[passes]
