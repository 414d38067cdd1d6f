"""Record NxDI's signatures out of its source, without importing it: it cannot be imported here.

    python tests/nxdi_double/record.py SOURCE > tests/nxdi_double/contract.json

SOURCE is the folder `src/neuronx_distributed_inference` of NxDI's repository.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "neuronx_distributed_inference"
# File -> what this package calls there; a method as Class.method.
CALLED = {
    "models/config.py": (
        "to_torch_dtype",
        "NeuronConfig.__init__",
        "MoENeuronConfig.__init__",
        "InferenceConfig.__init__",
        "InferenceConfig.save",
        "InferenceConfig.get_text_config",
        "InferenceConfig.get_neuron_config_cls",
        "FusedSpecNeuronConfig.__init__",
        "OnDeviceSamplingConfig.__init__",
    ),
    "models/application_base.py": (
        "NeuronApplicationBase.__init__",
        "NeuronApplicationBase.get_config_cls",
        "NeuronApplicationBase.get_neuron_config_cls",
        "NeuronApplicationBase.compile",
        "NeuronApplicationBase.shard_weights",
        "NeuronApplicationBase.load",
        "NeuronApplicationBase.save_quantized_state_dict",
    ),
    "models/model_base.py": (
        "NeuronBaseForCausalLM.__init__",
        "NeuronBaseForCausalLM.forward",
        "NeuronBaseForCausalLM.reset",
    ),
    "utils/hf_adapter.py": ("load_pretrained_config",),
}


def signature(function: ast.FunctionDef) -> str:
    """Parameters with their defaults, without annotations."""
    for node in ast.walk(function.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(function.args)


def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions of a module, methods as Class.method."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}": method for method in methods}
    return found


def families(source: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """(module:class, names) of every text model's application class."""
    for path in sorted(source.glob("models/*/modeling_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        module = ".".join((PACKAGE, *path.relative_to(source).with_suffix("").parts))
        for name, node in classes.items():
            config = _returned(node, "get_config_cls")
            neuron_config = _neuron_config(classes.get(config))
            model = _assigned(node, "_model_cls")
            if name.endswith("ForCausalLM") and model and neuron_config:
                names = {"model": model, "config": config, "neuron_config": neuron_config}
                yield f"{module}:{name}", names


def _neuron_config(config: ast.ClassDef | None) -> str:
    if config is None:
        return ""
    inherited = [ast.unparse(base) for base in config.bases] == ["InferenceConfig"]
    return _returned(config, "get_neuron_config_cls") or "NeuronConfig" * inherited


def _assigned(node: ast.ClassDef, name: str) -> str:
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == name:
            return ast.unparse(item.value)
    return ""


def _returned(node: ast.ClassDef | None, method: str) -> str:
    if node is None:
        return ""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == method:
            last = item.body[-1]
            return ast.unparse(last.value) if isinstance(last, ast.Return) and last.value else ""
    return ""


def contract(source: Path) -> dict[str, Any]:
    """Everything recorded."""
    version = re.search(r'__version__ = "(.+)"', (source / "_version.py").read_text())
    assert version is not None
    signatures = {}
    for file, names in CALLED.items():
        functions = functions_of(ast.parse((source / file).read_text(encoding="utf-8")))
        module = ".".join((PACKAGE, *Path(file).with_suffix("").parts))
        signatures |= {f"{module}:{name}": signature(functions[name]) for name in names}
    return {
        "source": "aws-neuron/neuronx-distributed-inference, src/neuronx_distributed_inference",
        "version": version[1],
        "signatures": signatures,
        "families": dict(families(source)),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(contract(Path(sys.argv[1])), indent=1) + "\n")
