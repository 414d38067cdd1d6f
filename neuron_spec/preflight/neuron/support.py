"""Is there an instance, a release and a class of NxDI for this build?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.checkpoints.formats import eagle3
from neuron_spec.errors import nearest
from neuron_spec.platforms.instances import INSTANCES, LNC_SOURCE
from neuron_spec.platforms.nxdi_keywords import release_number
from neuron_spec.platforms.nxdi_models import FAMILIES
from neuron_spec.platforms.nxdi_releases import (
    END_OF_SUPPORT,
    END_OF_SUPPORT_SOURCE,
    RELEASES,
)
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, info, listed, warning

_MODEL_TYPES = "NxDI utils/constants.py MODEL_TYPES"
_INSTEAD = "use eagle, eagle3, medusa, model, ngram or suffix, or build for the reference backend"


def check_instance(build: NeuronBuild) -> Iterator[Finding]:
    """A name that is known; Trainium 3 is described without EC2 sizes or TP degrees."""
    instance = build.instance
    if instance is None:
        name = build.neuron.instance
        yield error(
            "instance-unknown",
            f"neuron.instance '{name}' is none of the instances with Neuron cores that are "
            f"documented: {nearest(name, list(INSTANCES))}",
            "set neuron.instance to one of " + ", ".join(INSTANCES),
            "neuron_spec.platforms.instances (with its sources)",
        )
    elif not instance.chip.tp_degrees:
        yield info(
            "instance-tp-unlisted",
            f"no page lists the TP degrees of {instance.chip.name}; powers of two are taken for "
            "supported, as on Trainium2",
            "nothing to do",
            instance.source,
        )


def check_lnc(build: NeuronBuild) -> Iterator[Finding]:
    """Logical cores of two physical ones exist from Trainium2 on. (The runtime has to use what was
    compiled; that is recorded in the artifact and set when it is loaded.)"""
    instance = build.instance
    if instance is not None and build.lnc not in instance.chip.lncs:
        yield error(
            "lnc",
            f"neuron.logical_nc_config {build.lnc}: {instance.chip.name} has logical cores of "
            f"{listed(instance.chip.lncs)} physical core only",
            "leave neuron.logical_nc_config out",
            LNC_SOURCE,
        )


def check_release(build: NeuronBuild) -> Iterator[Finding]:
    """NxDI 0.9 (SDK 2.29) left Trn1 and Inf2; SDK 2.34 leaves NxDI."""
    sdk, instance = build.neuron.sdk, build.instance
    release = RELEASES.get(sdk)
    if release_number(sdk) >= release_number(END_OF_SUPPORT):
        yield error(
            "release-ended",
            f"neuron.sdk {sdk}: NxD Inference is not supported from SDK {END_OF_SUPPORT} on",
            "set neuron.sdk to a release before it, or move to the vLLM Neuron plugin",
            END_OF_SUPPORT_SOURCE,
        )
    elif release is None:
        yield warning(
            "release-unknown",
            f"neuron.sdk {sdk} is not a release that this version knows: {listed(tuple(RELEASES))}",
            "set neuron.sdk to the release on the instance",
            "neuron_spec.platforms.nxdi_releases",
        )
    elif instance is not None and instance.family not in release.chips:
        others = tuple(other.sdk for other in RELEASES.values() if instance.family in other.chips)
        yield error(
            "release-instance",
            f"NxDI {release.nxdi} of SDK {sdk} supports {listed(release.chips)}; "
            f"{instance.name} has {instance.chip.name} chips",
            f"set neuron.sdk to one of {listed(others)}",
            release.source,
        )
    elif not release.is_read:
        yield warning(
            "release-unread",
            f"what is known of NxDI here was read in the source of SDK 2.28 and 2.29; neuron.sdk "
            f"{sdk} may differ",
            "nothing to do, or use SDK 2.29 (trn2, trn3) or 2.28 (trn1, inf2)",
            release.source,
        )


def check_method(build: NeuronBuild) -> Iterator[Finding]:
    """What NxDI has no class for runs on the reference backend."""
    if build.path is not None:
        return
    draft = build.spec.draft
    setting, source = f"draft.method '{draft.method}'", "NxDI (text search of commit 4bcdc54)"
    instead = _INSTEAD
    if draft.dynamic_tree:
        setting = "draft.dynamic_tree (nothing in NxDI uses its dynamic_token_tree.py)"
        instead = "use draft.tree with eagle, or a chain"
    elif draft.lookup:
        setting = "draft.lookup (its graphs draft in every step)"
        instead = "leave draft.lookup out"
    elif draft.vocabulary == "intersection":
        setting = "draft.vocabulary 'intersection' (draft ids go to the target unmapped)"
        instead = "use a draft with the target's tokenizer"
    elif draft.tree and draft.method == "eagle3":
        setting = "draft.tree of draft.method 'eagle3'"
        instead = "leave draft.tree out: EAGLE-3 drafts chains on Neuron"
        source = "NxDI models/model_base.py NeuronFusedSpecModel (assertion)"
    elif draft.tree and draft.method == "model":
        setting = "draft.tree of draft.method 'model'"
        instead = "leave draft.tree out: a draft model drafts chains on Neuron"
    yield error(
        "method",
        f"NxDI has nothing for {setting}: it runs on the reference backend only",
        instead,
        source,
    )


def check_family(build: NeuronBuild) -> Iterator[Finding]:
    """Has NxDI a class for the target, and does that class go this way? Qwen2-VL would switch
    speculation off and compile."""
    family, kind = build.family, build.target_type
    if kind is None:
        return
    if family is None:
        yield error(
            "family",
            f"NxDI has no class for the target's model_type '{kind}'",
            "use a target of " + ", ".join(sorted({f.family for f in FAMILIES})),
            _MODEL_TYPES,
        )
    elif release_number(family.since) > release_number(build.neuron.sdk):
        yield error(
            "family-release",
            f"NxDI has '{family.family}' since SDK {family.since}, neuron.sdk is "
            f"{build.neuron.sdk}",
            f"set neuron.sdk to {family.since}, or use another target",
            _MODEL_TYPES,
        )
    elif build.path is not None and build.path not in family.paths:
        yield error(
            "family-method",
            f"draft.method '{build.spec.draft.method}' with a '{kind}' target: NxDI's class "
            f"{family.refusal}",
            "use a Llama target, which has all of NxDI's draft methods, or another draft.method",
            family.source,
        )
    elif build.path is not None and build.path not in family.shown and build.path != "host":
        yield warning(
            "family-unshown",
            f"'{build.path}' with NxDI's '{family.family}' class uses NxDI's common code; no "
            "guide, tutorial or release note of AWS shows it working",
            "run neuron-spec verify on the instance before serving",
            family.source,
        )


def check_draft_family(build: NeuronBuild) -> Iterator[Finding]:
    """EAGLE drafts are Llama classes; a draft model needs a class as a target does."""
    kind = build.draft_type
    if kind is None or not build.has_draft_model or build.is_eagle:
        return
    family, sdk = build.draft_family, build.neuron.sdk
    if family is not None and release_number(family.since) > release_number(sdk):
        yield error(
            "draft-family-release",
            f"NxDI has '{family.family}', of the draft, since SDK {family.since}, neuron.sdk is "
            f"{sdk}",
            f"set neuron.sdk to {family.since}, or use another draft",
            _MODEL_TYPES,
        )
    elif family is None or "fused" not in family.paths:
        yield error(
            "draft-family",
            f"NxDI cannot draft with a model of model_type '{kind}'",
            "use a draft of " + ", ".join(f.family for f in FAMILIES if "fused" in f.paths),
            _MODEL_TYPES,
        )


def check_feature_layers(build: NeuronBuild) -> Iterator[Finding]:
    """NxDI's EAGLE-3 target hands over three fixed states, whatever the draft was trained on."""
    if build.path != "eagle3" or build.draft is None or build.target is None:
        return
    num_layers = build.target.num_hidden_layers
    wanted, fixed = (
        eagle3.feature_layers(build.draft.raw, num_layers),
        eagle3.tapped_layers(num_layers),
    )
    if wanted is not None and wanted != fixed:
        yield error(
            "eagle3-feature-layers",
            f"the draft reads the inputs of the target's layers {list(wanted)}; NxDI gives it "
            f"those of {list(fixed)} and nothing else, so its drafts would be nonsense",
            "use a draft that was trained on these states, or the reference backend",
            "NxDI models/model_base.py (is_eagle3)",
        )


CONSTRAINTS: tuple[Constraint, ...] = (
    check_instance,
    check_lnc,
    check_release,
    check_method,
    check_family,
    check_draft_family,
    check_feature_layers,
)
