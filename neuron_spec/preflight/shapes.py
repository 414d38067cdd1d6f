"""Do the lengths fit the models and leave the room that speculation needs?"""

from __future__ import annotations

from neuron_spec.checkpoints.formats import hydra, medusa
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.preflight.findings import Finding, error
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import Tree


def check_shapes(spec: BuildSpec, target: Identity | None) -> list[Finding]:
    """Compiled length against the target's context, draft length against the output."""
    findings = []
    total, room = spec.shape.max_total_tokens, spec.num_draft_tokens + 1
    context = target.config.max_position_embeddings if target else None
    if context is not None and total + room > context:
        findings.append(
            error(
                "length-beyond-context",
                f"max_total_tokens {total} and room for k + 1 = {room} more positions exceed the "
                f"{context} positions that the target was trained for",
                f"lower shape.max_total_tokens to at most {context - room}",
                "config.json max_position_embeddings",
            )
        )
    if spec.shape.max_total_tokens == spec.shape.max_prompt_tokens:
        findings.append(
            Finding(
                "no-room-for-output",
                "warning",
                "max_prompt_tokens equals max_total_tokens: the longest prompt gets no output",
                "raise shape.max_total_tokens",
                "neuron_spec.engine.request",
            )
        )
    return findings


def check_draft_context(spec: BuildSpec, draft: Identity, target: Identity) -> list[Finding]:
    """A draft that was trained for fewer positions than a request may reach still runs: NxDI and
    the reference backend compute rotary positions without a limit."""
    ours, theirs = (model.config.max_position_embeddings for model in (draft, target))
    total = spec.shape.max_total_tokens
    if not 0 < ours < min(total, theirs):
        return []
    return [
        Finding(
            "draft-positions",
            "warning",
            f"max_total_tokens {total} exceeds the draft's max_position_embeddings {ours} (target "
            f"{theirs}): past {ours} acceptance may fall, the output stays the target's",
            f"nothing to do, or lower shape.max_total_tokens to {ours}",
            "NxDI models/llama/modeling_llama.py get_rope (max_position_embeddings is not a limit)",
        )
    ]


def check_draft_length(spec: BuildSpec, draft: Identity) -> list[Finding]:
    """Medusa and Hydra draft one token a head, and a level of a tree a head."""
    counts = {"medusa": medusa.num_heads, "hydra": hydra.num_heads}
    if draft.family not in counts:
        return []
    num_heads = counts[draft.family](draft.shapes)
    length, what = spec.draft.num_draft_tokens, "num_draft_tokens"
    if spec.draft.tree:
        length = Tree.from_paths(spec.draft.tree).first(length).max_depth
        what = "levels of draft.tree"
    if length <= num_heads:
        return []
    setting = "draft.tree" if spec.draft.tree else "draft.num_draft_tokens"
    return [
        error(
            "draft-length-beyond-heads",
            f"{what} {length}, but {draft.directory} has {num_heads} heads, which draft one token "
            "each",
            f"set {setting} to at most {num_heads}" + " levels" * bool(spec.draft.tree),
            f"neuron_spec.checkpoints.formats.{draft.family}",
        )
    ]
