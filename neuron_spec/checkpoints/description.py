"""A checkpoint as a person, or a program, wants it told: what it is, for whom, and what is wrong.

Everything comes out of one directory, without a target beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.contradictions import Contradiction, of_checkpoint
from neuron_spec.checkpoints.formats import eagle, eagle3, hydra, medusa
from neuron_spec.checkpoints.identify import Identity, identify
from neuron_spec.checkpoints.json_files import read_json
from neuron_spec.checkpoints.plans import PLANS
from neuron_spec.errors import CheckpointError

_TITLES = {
    "causal-lm": "a language model",
    "eagle": "an EAGLE v1 draft head (EAGLE-2 shares the weights)",
    "eagle3": "an EAGLE-3 draft head",
    "medusa": "Medusa heads",
    "hydra": "Hydra heads",
}
# What tells checkpoints of one family apart; only parts that the family can have are spoken of.
_PARTS = {
    "LM head": (eagle.LM_HEAD,),
    "embedding": (eagle.EMBEDDING, medusa.BASE_EMBEDDING),
    "vocabulary map": (eagle3.D2T, eagle3.T2D, medusa.TOKEN_MAP),
    "final norm": (eagle3.NORM, "model.norm.weight"),
    "input norm": (eagle.INPUT_NORM,),
    "bias of fc": (eagle.FC_BIAS,),
    "biases of attention": (
        "layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_proj.bias",
    ),
}  # fmt: skip
_COUNTED = {"medusa": medusa.num_heads, "hydra": hydra.num_heads}


@dataclass(frozen=True)
class Description:
    """One checkpoint with everything that can be said about it alone.

    Attributes:
        present: the parts it holds.
        absent: the parts of its family that it does not hold.
        named_targets: (field of the file, what it names) for every hint at the target.
        needed_of_target: what a target must have for this draft; empty for a language model.
        refusals: (code, sentence) of what no preparation can mend.
    """

    identity: Identity
    present: tuple[str, ...]
    absent: tuple[str, ...]
    named_targets: tuple[tuple[str, str], ...]
    needed_of_target: Mapping[str, int]
    contradictions: tuple[Contradiction, ...]
    refusals: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        """What it is, in words."""
        title = _TITLES.get(self.identity.family, self.identity.family)
        count = _COUNTED.get(self.identity.family)
        number = f"{count(self.identity.shapes)} " if count else ""
        return number + title

    @property
    def is_draft_head(self) -> bool:
        """Whether `prepare` has something to do with it."""
        return self.identity.family in PLANS

    @property
    def is_usable(self) -> bool:
        """Whether nothing in it stops `prepare`, or a build if there is nothing to prepare."""
        identity = self.identity
        is_whole = not (identity.missing or identity.misshapen)
        is_known = not identity.unexpected or not self.is_draft_head
        is_settled = all(item.severity != "error" for item in self.contradictions)
        return is_whole and is_known and is_settled and not self.refusals

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **self.identity.as_dict(),
            "title": self.title,
            "present": list(self.present),
            "absent": list(self.absent),
            "named_targets": [{"field": f, "target": t} for f, t in self.named_targets],
            "needed_of_target": dict(self.needed_of_target),
            "contradictions": [item.as_dict() for item in self.contradictions],
            "refusals": [{"code": code, "message": text} for code, text in self.refusals],
            "is_usable": self.is_usable,
        }


def describe(directory: Path) -> Description:
    """Identify a checkpoint directory and say everything that it shows alone.

    Raises:
        CheckpointError: not a checkpoint; see `identify`.
    """
    identity = identify(directory)
    present, absent = _parts(identity)
    is_head = identity.family in PLANS
    return Description(
        identity,
        present,
        absent,
        named_targets=tuple(_named_targets(identity)) if is_head else (),
        needed_of_target=_needed_of_target(identity) if is_head else {},
        contradictions=tuple(of_checkpoint(identity)),
        refusals=tuple(identity.refusals()),
    )


def _parts(identity: Identity) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Present and absent."""
    found, form = identity.shapes, identity.format
    possible = {
        **form.required_shapes(identity.config, found),
        **form.optional_shapes(identity.config, found),
    }
    present, absent = [], []
    for part, keys in _PARTS.items():
        if stored := [key for key in keys if key in found]:
            present.append(f"{part} ({', '.join(stored)})")
        elif part == "LM head" and identity.config.tie_word_embeddings:
            absent.append(f"{part} (tied to the embedding)")
        elif any(key in possible for key in keys):
            absent.append(part)
    return tuple(present), tuple(absent)


def _named_targets(identity: Identity) -> Iterator[tuple[str, str]]:
    """Hints at the target: published fields, and the record of an earlier preparation."""
    raw = identity.config.raw
    fields = (
        ("base_model_name_or_path",),
        ("speculators_config", "verifier", "name_or_path"),
        ("eagle_config", "target_model_name_or_path"),
    )
    for path in fields:
        value: Any = raw
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            yield "config.json " + ".".join(path), value
    if (prepared_for := _prepared_for(identity.directory)) is not None:
        yield "prepared.json", prepared_for


def _prepared_for(directory: Path) -> str | None:
    try:
        return str(read_json(directory / "prepared.json")["sources"]["target"]["directory"])
    except (CheckpointError, KeyError, TypeError):
        return None


def _needed_of_target(identity: Identity) -> dict[str, int]:
    """Sizes, by the names of the target's config.json; what nothing in the file says is left out.

    `target_hidden_size` goes before the head's own size, which the reading code compares with it.
    """
    config = identity.config
    hidden = config.raw.get("target_hidden_size")
    needs = {
        "hidden_size": hidden if type(hidden) is int else config.hidden_size,
        "vocab_size": config.vocab_size,
    }
    if identity.family == eagle3.FAMILY:
        num_layers = _num_tapped_layers(config.raw)
        if num_layers is None:
            needs["min_num_hidden_layers"] = eagle3.MIN_TARGET_LAYERS
        else:
            needs["num_hidden_layers"] = num_layers
    return {name: size for name, size in needs.items() if size}


def _num_tapped_layers(raw: Mapping[str, Any]) -> int | None:
    """Layers of the one target whose states a list of tapped layers names, if it is the usual one.

    The last entry is L-3 counted by input, L-4 by output; see `eagle3.tapped_layers`.
    """
    nested = raw.get("eagle_config")
    source = nested if isinstance(nested, dict) else raw
    ids = source.get("eagle_aux_hidden_state_layer_ids")
    if not isinstance(ids, list) or len(ids) != eagle3.NUM_TAPS or type(ids[-1]) is not int:
        return None
    for shift in (0, 1):
        layers = ids[-1] + shift + 3
        if ids == [layer - shift for layer in eagle3.tapped_layers(layers)]:
            return layers
    return None
