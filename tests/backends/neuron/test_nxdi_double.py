"""The double has NxDI's signatures, as recorded out of its source."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from nxdi_double import CONTRACT, Recorder
from nxdi_double.record import CALLED, contract

from neuron_spec.backends.neuron.families import CLASSES


def found(name: str) -> Any:
    module, _, path = name.partition(":")
    thing: Any = import_module(module)
    for part in path.split("."):
        thing = inspect.getattr_static(thing, part)
    return thing.__func__ if isinstance(thing, (classmethod, staticmethod)) else thing


@pytest.mark.parametrize("name", CONTRACT["signatures"], ids=lambda name: name.rpartition(":")[2])
def test_every_signature_is_nxdis(nxdi: Recorder, name: str) -> None:
    signature = inspect.signature(found(name))
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    written = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    assert written[1:-1] == CONTRACT["signatures"][name]


def test_the_contract_is_complete() -> None:
    names = {name.rpartition(":")[2] for name in CONTRACT["signatures"]}
    assert names == {name for file in CALLED.values() for name in file}
    assert CONTRACT["version"] == "0.9.0"


@pytest.mark.parametrize("family", CLASSES.values(), ids=CLASSES)
def test_the_names_of_classes_are_nxdis(nxdi: Recorder, family: Any) -> None:
    module = import_module(family.module)
    application = getattr(module, family.causal_lm)
    assert application._model_cls is getattr(module, family.model)
    assert application.get_neuron_config_cls()(tp_degree=2).tp_degree == 2


def test_recording_reads_defaults_bases_and_families(tmp_path: Path) -> None:
    (tmp_path / "models" / "some").mkdir(parents=True)
    (tmp_path / "utils").mkdir()
    (tmp_path / "_version.py").write_text('__version__ = "1.2"\n')
    for file, names in CALLED.items():
        lines: list[str] = []
        for name in names:
            owner, _, method = name.rpartition(".")
            head = f"class {owner}:\n    " if owner else ""
            lines.append(f"{head}def {method}(self, a: int = 3, *b, c=[], **d): pass")
        (tmp_path / file).write_text("\n".join(lines))
    (tmp_path / "models" / "some" / "modeling_some.py").write_text(
        "class SomeConfig(InferenceConfig): pass\n"
        "class NeuronSomeForCausalLM(Base):\n"
        "    _model_cls = NeuronSomeModel\n"
        "    def get_config_cls(cls):\n        return SomeConfig\n"
    )
    recorded = contract(tmp_path)
    assert recorded["version"] == "1.2"
    assert set(recorded["signatures"].values()) == {"self, a=3, *b, c=[], **d"}
    module = "neuronx_distributed_inference.models.some.modeling_some"
    assert recorded["families"] == {
        f"{module}:NeuronSomeForCausalLM": {
            "model": "NeuronSomeModel", "config": "SomeConfig", "neuron_config": "NeuronConfig",
        }
    }  # fmt: skip
