"""The whole proposal: tables in the order of a spec, and the spec that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.platforms.instances import Instance
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron import check_build, neuron_build
from neuron_spec.proposal.lengths import draft_length, lengths
from neuron_spec.proposal.models import Models
from neuron_spec.proposal.placement import place
from neuron_spec.proposal.values import Table, Value, plain
from neuron_spec.spec.schema import BuildSpec, Dtype

_TITLES = {
    "none": "A target alone: the baseline of builds that draft",
    "model": "A draft model with its target",
    "medusa": "Medusa heads on their target",
    "hydra": "Hydra heads on their target",
    "eagle": "An EAGLE v1 head with its target",
    "eagle3": "An EAGLE-3 head with its target",
    "ngram": "Prompt lookup: pays where the output repeats its input",
    "suffix": "Suffix decoding: pays where answers repeat their prompt, themselves or earlier ones",
}


@dataclass(frozen=True)
class Proposal:
    """A spec to be written.

    Attributes:
        title: one line on what it is.
        tables: the spec's tables, by name.
    """

    title: str
    tables: Mapping[str, Table]

    @property
    def data(self) -> dict[str, dict[str, Any]]:
        """The tables without the reasons."""
        return {name: plain(table) for name, table in self.tables.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """Dotted field -> why it has its value."""
        return {
            f"{table}.{name}": value.reason
            for table, fields in self.tables.items()
            for name, value in fields.items()
            if value.reason
        }


def propose(models: Models, *, instance: Instance | None) -> Proposal:
    """A spec for these models.

    Args:
        instance: where it is to run; None: the reference backend, on a CPU.

    Raises:
        UserError: the models have no room for any request.
    """
    dtype = _dtype(models.target.config.raw)
    k, shape = lengths(models, draft_length(models))
    tables = {
        "target": {"model": Value(models.target_name), "dtype": dtype},
        **_draft(models, k),
        "shape": shape,
    }
    if instance is None:
        tables["reference"] = {"device": Value("cpu"), "dtype": Value("float32")}
    else:
        tables["neuron"] = place(
            models, instance, dtype.value, lambda neuron: _checked(models, tables, neuron)
        )
    return Proposal(_TITLES[models.method], tables)


def _checked(models: Models, tables: Mapping[str, Table], neuron: Table) -> list[Finding]:
    data = {name: plain(table) for name, table in {**tables, "neuron": neuron}.items()}
    spec = BuildSpec.model_validate({**data, "base_directory": Path.cwd()})
    return check_build(neuron_build(spec, models.target, models.draft))


def _draft(models: Models, k: Value) -> dict[str, Table]:
    if models.method == "none":
        return {}
    model = {"model": Value(models.draft_name)} if models.draft_name is not None else {}
    return {
        "draft": {"method": Value(models.method), **model, "num_draft_tokens": k},
        "verification": {"rule": Value("greedy", "temperature 0; every way of drafting takes it")},
    }


def _dtype(raw: Mapping[str, Any]) -> Value:
    """That of the weights; transformers 5 calls it `dtype`."""
    found = raw.get("dtype") or raw.get("torch_dtype")
    if found in Dtype.__args__:  # type: ignore[attr-defined]
        return Value(found, "" if found == "bfloat16" else "as in config.json")
    said = "config.json names none" if found is None else f"config.json: {found}"
    return Value("bfloat16", f"{said}; the usual type on Neuron")
