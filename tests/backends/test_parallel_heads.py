"""Medusa and Hydra heads against their formulas, written down once more without the package."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import tiny_heads
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.parallel_heads import HydraHeads, MedusaHeads
from neuron_spec.checkpoints.prepare import prepare_draft

HIDDEN, NUM_HEADS = tiny.CONFIG["hidden_size"], 3
PLACEMENT = Placement(2, 64, torch.float32, torch.device("cpu"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


def sequence(num_tokens: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ids [n + 1] and features [n, hidden]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 259, (num_tokens + 1,), generator=generator)
    return tokens, torch.randn(num_tokens, HIDDEN, generator=generator)


@pytest.mark.parametrize("form", ["authors", "vllm-shared"])
def test_medusa(form: str, tmp_path: Path, target: Path) -> None:
    draft = tiny_heads.write_medusa(tmp_path / "draft", form=form)
    prepare_draft(draft, target, tmp_path / "out")
    stored = torch.load(tmp_path / "out/medusa_heads.pt", weights_only=True)
    heads = MedusaHeads(tmp_path / "out", PLACEMENT)
    features = sequence(5)[1]
    logits = heads.head_logits(features, NUM_HEADS)
    assert logits.shape == (5, NUM_HEADS, 259)
    for head in range(NUM_HEADS):
        block = (stored[f"medusa_head_{head}.0.linear.{part}"] for part in ("weight", "bias"))
        state = features + F.silu(F.linear(features, *block))
        expected = state @ stored[f"medusa_head_{head}.1.weight"].T
        torch.testing.assert_close(logits[:, head], expected)
    torch.testing.assert_close(heads.head_logits(features, 2), logits[:, :2])


class NaiveHydra:
    """The authors' modules as plain functions of a state dict."""

    def __init__(self, folder: Path, arch: str, num_layers: int, *, grounded: bool) -> None:
        self.tensors = torch.load(folder / "draft/hydra_lm_head.pt", weights_only=True)
        self.grounded, self.num_layers = grounded, num_layers
        self.step, self.shift = (1, 0) if arch == "mlp" else (2, 1)
        self.tail = "" if arch == "mlp" else ".1"
        self.prefix = None
        if arch == "prefix-mlp":
            config = LlamaConfig(**{**tiny.CONFIG, "num_hidden_layers": 1, "torch_dtype": None})
            config._attn_implementation = "eager"
            self.prefix = LlamaModel(config).eval()
            name = "prefix_embeding_layer."
            own = {k.removeprefix(name): v for k, v in self.tensors.items() if k.startswith(name)}
            self.prefix.load_state_dict(own)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    @torch.no_grad()
    def chain(self, tokens: Tensor, features: Tensor, embedding: Tensor, length: int) -> list[int]:
        if self.prefix:
            features = self.prefix(inputs_embeds=features[None]).last_hidden_state[0]
        drafted: list[int] = []
        for head in range(length):
            after = torch.tensor([int(tokens[-1]), *drafted])
            x = torch.cat([features[-1], embedding[after].flatten()])
            x = x if self.grounded else features[-1]
            first = f"hydra_mlp.{head}.{self.shift}"
            skip = self.linear(f"{first}.res_connection", x) if self.grounded else x
            x = skip + F.silu(self.linear(f"{first}.linear", x))
            for layer in range(1, self.num_layers):
                place = f"hydra_mlp.{head}.{layer * self.step + self.shift}.linear"
                x = x + F.silu(self.linear(place, x))
            drafted.append(int(self.linear(f"hydra_lm_head.{head}{self.tail}", x).argmax()))
        return drafted


@pytest.mark.parametrize(
    ("arch", "num_layers", "grounded"),
    [("mlp", 1, True), ("mlp", 3, True), ("mlp", 2, False), ("prefix-mlp", 4, True)],
)
def test_hydra_drafts_what_the_formulas_say(
    arch: str, num_layers: int, grounded: bool, tmp_path: Path, target: Path
) -> None:
    draft = tiny_heads.write_hydra(
        tmp_path / "draft", arch=arch, num_layers=num_layers, grounded=grounded
    )
    prepare_draft(draft, target, tmp_path / "out")
    heads = HydraHeads(tmp_path / "out", PLACEMENT)
    naive = NaiveHydra(tmp_path, arch, num_layers, grounded=grounded)
    drafter = heads.drafter()
    rows = [sequence(9, seed=1), sequence(6, seed=2)]
    for slot, (tokens, features) in enumerate(rows):
        drafter.begin(slot, tokens, features)
    for round_ in range(3):
        proposals = drafter.propose(2, NUM_HEADS).tokens.tolist()
        for slot, (tokens, features) in enumerate(rows):
            expected = naive.chain(tokens, features, heads._embedding, NUM_HEADS)
            assert proposals[slot] == expected, (round_, slot)
            # Commit one token in one row, three in the other: rows advance at their own pace.
            count = 1 + 2 * slot
            more, new = sequence(count, seed=10 + 5 * round_ + slot)
            rows[slot] = (torch.cat([tokens, more[:count]]), torch.cat([features, new]))
            drafter.observe(slot, more[:count], new)
