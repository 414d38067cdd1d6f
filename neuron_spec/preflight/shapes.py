"""Do the lengths fit the models and leave the room that speculation needs?"""

from __future__ import annotations

from neuron_spec.checkpoints.identify import Identity
from neuron_spec.preflight.findings import Finding, error
from neuron_spec.spec.schema import BuildSpec


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
    if spec.neuron is not None:
        findings.append(
            Finding(
                "neuron-section-unused",
                "info",
                "this version compiles for the reference backend only; [neuron] is read and kept "
                "in the manifest, but not used",
                "nothing to do",
                "neuron_spec.backends",
            )
        )
    return findings
