"""How NxDI 0.9.0 was recorded to behave, and who takes care of it in a build.

What a constraint refuses is named by its code; what the configuration or the runner settles, and
what only a device can show, is told in two findings, each with what concerns this build.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from neuron_spec.platforms.nxdi_models import EAGLES, FUSED, Path
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, info, warning

By = Literal["constraint", "config", "runner", "device"]
_SOURCE = "NxDI 0.9.0 recorded on a CPU, without a Neuron device or compiler"


@dataclass(frozen=True)
class Behaviour:
    """One recorded behaviour.

    Attributes:
        number: in the order of the recording; 0 for what was read in the source.
        paths: ways through NxDI that show it.
        by: who settles it.
        text: what the build does about it.
        codes: of the findings that tell it, where a constraint or a code of the preflight does.
    """

    number: int
    paths: tuple[Path, ...]
    by: By
    text: str
    codes: tuple[str, ...] = ()


_SPECULATING: tuple[Path, ...] = ("host", "unfused", *FUSED, "medusa")
BEHAVIOURS: tuple[Behaviour, ...] = (
    Behaviour(1, ("fused", "eagle", "eagle3", "medusa"), "device",
              "greedy output equals the target's alone, which was recorded in float32"),
    Behaviour(2, _SPECULATING, "runner",
              "NxDI's loop ends up to a step before the limit; the cache has room for a whole "
              "step, and the engine's loop goes on to the limit", ("neuron-token-buckets-short",)),
    Behaviour(3, _SPECULATING, "runner",
              "the first token is not looked at for end of sequence; the engine looks at every "
              "token"),
    Behaviour(4, FUSED, "config",
              "speculation_length is k + 1: k proposals are verified in a step"),
    Behaviour(5, FUSED, "runner",
              "rejected places hold -1; tokens are counted by next position minus position"),
    Behaviour(6, EAGLES, "config",
              "the draft's shifted prompt and rolling buffer are inside the graph"),
    Behaviour(7, ("eagle", "eagle-tree", "eagle3", "fused"), "constraint",
              "beyond bucket - k EAGLE repeats a position: no step starts there",
              ("neuron-token-buckets-short",)),
    Behaviour(8, ("eagle3",), "config",
              "sequence_parallel_enabled and enable_eagle_draft_input_norm are set; prepare "
              "renames midlayer and widens the vocabulary",
              ("neuron-eagle3-sequence-parallel", "draft-target-layers", "draft-unprepared")),
    Behaviour(9, ("fused", "eagle", "eagle3"), "constraint",
              "sampling on the device is EAGLE's alone, and its drafts are greedy",
              ("neuron-rule", "neuron-draft-sampled", "neuron-sampling-truncated")),
    Behaviour(10, ("eagle", "eagle3"), "constraint",
              "deterministic would fix the residual draw; the runner counts emitted tokens, so "
              "that a pad token more is not taken for one",
              ("neuron-deterministic",)),
    Behaviour(11, ("alone", "eagle", "eagle3"), "constraint",
              "top-p, top-k 0 and temperature 0 mean something else on the device",
              ("neuron-sampling-value", "neuron-top-k-vocabulary", "neuron-sampling-truncated")),
    Behaviour(12, ("eagle-tree",), "constraint",
              "trees are greedy and end at one depth",
              ("neuron-tree-leaf-depths", "neuron-rule")),
    Behaviour(13, ("medusa",), "runner",
              "a Medusa step gathers hidden states from the smallest position id on: the graph has "
              "a node more, which the runner puts at position 0"),
    Behaviour(14, ("medusa",), "runner",
              "entries of accepted tokens are moved in the cache for one step and not stored: the "
              "runner moves none, stores the likeliest branch where it belongs, and runs again "
              "what was accepted beside it; tokens are not counted by non-zero ids",
              ("neuron-medusa-top-k", "neuron-medusa-cache")),
    Behaviour(15, ("unfused",), "runner",
              "the first step's proposals are shifted by one, and one request runs at a time",
              ("neuron-batch",)),
    Behaviour(16, ("fused",), "constraint",
              "with a batch the draft's mask mixes rows", ("neuron-batch-draft-mask",)),
    Behaviour(17, ("fused",), "constraint",
              "output_logits shifts the cache's places", ("neuron-output-logits",)),
    Behaviour(18, _SPECULATING, "constraint",
              "a prompt graph as long as a step is taken for one", ("neuron-bucket-is-step",)),
    Behaviour(19, ("alone", *_SPECULATING), "constraint",
              "unknown keywords do nothing; fc.bias needs fc_bias in config.json, which prepare "
              "writes", ("neuron-keyword", "draft-unprepared")),
)  # fmt: skip

# Read in the source: what a build would need to be told if the configuration did not do it.
CONFIGURED: tuple[Behaviour, ...] = (
    Behaviour(0, (*FUSED, "medusa"), "config",
              "on-device sampling is configured, of target and draft alike"),
    Behaviour(0, FUSED, "config",
              "an EAGLE draft keeps the target's speculation_length, a draft model has 0"),
    Behaviour(0, ("medusa",), "config",
              "max_new_tokens and num_medusa_heads are set, medusa_heads.pt lies beside the "
              "target's weights"),
    Behaviour(0, ("host", "unfused"), "runner",
              "the speculation graph is all there is: every step has exactly k + 1 inputs"),
    Behaviour(0, ("alone", *_SPECULATING), "runner",
              "a prompt of one token is padded by the runner: NxDI would read the output of its "
              "own padding"),
    Behaviour(0, ("alone", *_SPECULATING), "runner",
              "models are named by directory, never by hub id, which tied embeddings need"),
    Behaviour(0, ("unfused",), "runner",
              "end of sequence and padding are the engine's: NxDI's own loop would need both ids"),
)  # fmt: skip


def check_behaviours(build: NeuronBuild) -> Iterator[Finding]:
    """What is settled without the user, and what waits for the device, of this build's path."""
    for code, by, message, remedy in (
        ("handled", ("config", "runner"), "taken care of by configuration and runner",
         "nothing to do"),
        ("on-instance", ("device",), "settled only on a device; the on-instance smoke test does it",
         "run it once an artifact is built, before serving"),
    ):  # fmt: skip
        concerned = [b for b in (*BEHAVIOURS, *CONFIGURED) if build.path in b.paths and b.by in by]
        if concerned:
            items = "; ".join(behaviour.text for behaviour in concerned)
            yield info(code, f"{message}: {items}", remedy, _SOURCE)


def check_medusa_cache(build: NeuronBuild) -> Iterator[Finding]:
    """The output is the target's by inputs that NxDI's own loop does not give."""
    if build.path == "medusa":
        yield warning(
            "medusa-cache",
            "NxDI's own Medusa loop does not store the cache entries of accepted tokens, and its "
            "output departed from greedy after a step that accepted a side branch; this package's "
            "runner gives the graph other inputs, which keep them (shown on a CPU, on no device "
            "yet). NxDI's loop, and so vLLM, would not: they cannot run this build, whose graph "
            "has a node more than the tree",
            "open the artifact with this package only, and run the on-instance smoke test and "
            "neuron-spec verify before serving; or use eagle",
            _SOURCE,
        )


CONSTRAINTS: tuple[Constraint, ...] = (check_behaviours, check_medusa_cache)
