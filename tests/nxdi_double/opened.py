"""Speculators over the double, on the recorded models: what an opened artifact gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nxdi_golden as golden
import torch

from neuron_spec.backends.base import Speculator
from neuron_spec.backends.neuron.config import NxdiConfig, render
from neuron_spec.backends.neuron.loading import load_applications
from neuron_spec.backends.neuron.objects import Applications, compiled_folder, make_application
from neuron_spec.backends.neuron.reading import facts_of
from neuron_spec.backends.neuron.run import speculator_of
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.spec.schema import BuildSpec
from nxdi_double.forward import Emulation
from nxdi_double.recorder import Recorder

K = golden.SPECULATION_LENGTH - 1
VOCAB_SIZE = 128
MEDUSA_TREE = golden.recorded("medusa_as_is")["medusa_tree"]
EVEN_TREE = [[0], [1], [0, 0], [0, 1], [1, 0]]
# name -> (target, draft, [draft], [neuron])
BUILDS: dict[str, tuple[str, str | None, dict[str, Any], dict[str, Any]]] = {
    "alone": ("target", None, {"method": "none"}, {}),
    "sampling": ("target", None, {"method": "none"}, {"sample_on_device": True}),
    "ngram": ("target", None, {"method": "ngram"}, {}),
    "suffix": ("target", None, {"method": "suffix"}, {}),
    "unfused": ("target", "draft", {"method": "model"}, {"fused": False}),
    "fused_draft": ("target", "draft", {"method": "model"}, {}),
    "eagle1": ("target", "eagle1", {"method": "eagle"}, {}),
    "eagle1_norm": ("target", "eagle1_norm", {"method": "eagle"}, {}),
    "eagle3": ("target3", "eagle3", {"method": "eagle3"}, {}),
    "tree": ("target", "eagle1", {"method": "eagle", "tree": EVEN_TREE}, {}),
    "medusa": ("target", "medusa", {"method": "medusa", "tree": MEDUSA_TREE}, {}),
}
# One of each kind: another norm of the draft makes no difference to who runs it.
WAYS = [name for name in BUILDS if name != "eagle1_norm"]


@dataclass(frozen=True)
class Opened:
    """A speculator, and NxDI's objects below it."""

    speculator: Speculator
    applications: Applications
    spec: BuildSpec


def spec_of(name: str, **changes: Any) -> BuildSpec:
    """A build spec whose cache has the recorded length; changes by section."""
    _, draft, section, neuron = BUILDS[name]
    section = {**section, **({"model": "y"} if draft else {}), **changes.get("draft", {})}
    if section["method"] != "none" and not section.get("tree"):
        section.setdefault("num_draft_tokens", K)
    step = (
        len(section["tree"]) + 1 if section.get("tree") else section.get("num_draft_tokens", -1) + 1
    )
    step += section["method"] == "medusa"
    shape = {"max_prompt_tokens": golden.CONTEXT, "max_total_tokens": golden.SEQ_LEN - step}
    return BuildSpec.model_validate(
        {
            "target": {"model": "x", "dtype": "float32"},
            "draft": section,
            "verification": changes.get("verification", {}),
            "shape": {**shape, **changes.get("shape", {})},
            "neuron": {
                "instance": "trn1.2xlarge",
                "sdk": "2.28",
                **neuron,
                **changes.get("neuron", {}),
            },
        }
    )


def config_of(name: str, spec: BuildSpec, draft: Path | None) -> NxdiConfig:
    """A build's configuration; without a draft's directory that of one which is not here."""
    return render(spec, facts_of(spec, golden.GOLDEN / BUILDS[name][0], draft))


def opened(
    recorder: Recorder, folder: Path, name: str, *, draw: Any = torch.rand, **changes: Any
) -> Opened:
    """Render, make and load a build, and join it; nothing is compiled.

    Args:
        folder: for files; the prepared Medusa heads are made there.
        changes: to the spec, by section.
    """
    spec = spec_of(name, **changes)
    target, draft = golden.GOLDEN / BUILDS[name][0], BUILDS[name][1]
    directory = golden.GOLDEN / draft if draft else None
    if draft == "medusa":
        golden.medusa_heads(folder)
        directory = folder / "prepared"
    config = config_of(name, spec, directory)
    applications = make_application(config, target, directory)
    Emulation(recorder, draw)
    for role, application in applications.by_role.items():
        compiled = compiled_folder(folder, role)
        compiled.mkdir()
        (compiled / "model.pt").write_bytes(b"graphs of " + application.tags.encode())
    load_applications(applications, folder)
    return Opened(
        speculator_of(spec, config, applications, vocab_size=VOCAB_SIZE), applications, spec
    )


def generated(
    speculator: Speculator, prompts: list[list[int]], num_new: int | None = None, **options: Any
) -> list[list[int]]:
    """Outputs of the engine's loop, side by side as far as the batch allows.

    Args:
        options: `k`, else the largest; the others are a request's.
    """
    k = options.pop("k", speculator.limits.num_draft_tokens)
    loop = DecodeLoop(speculator, lambda ids: "", draft_length=DraftLength.constant(k))
    tokens: dict[int, list[int]] = {}
    for prompt in prompts:
        request = Request(tuple(prompt), max_new_tokens=num_new, **options)
        tokens[loop.submit(request)] = []
    for event in loop.run():
        if isinstance(event, TokenEvent):
            tokens[event.request_id].append(event.token_id)
    return list(tokens.values())


def alone(name: str, prompt: list[int], num_new: int) -> list[int]:
    """What the target of a build gives without any of this."""
    return golden.target_alone(tuple(prompt), num_new, BUILDS[name][0])
