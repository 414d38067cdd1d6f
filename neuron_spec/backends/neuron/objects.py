"""Plain data -> NxDI's own objects, made as its `inference_demo.py: run_inference` makes them.

NxDI is imported inside functions only, and its objects are `Any`: it has no type stubs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from neuron_spec.backends.neuron.config import DraftModel, NxdiConfig
from neuron_spec.backends.neuron.families import ModelClasses
from neuron_spec.errors import DependencyError
from neuron_spec.platforms.neuron_packages import neuron_packages

_CONFIG = "neuronx_distributed_inference.models.config"
_ADAPTER = "neuronx_distributed_inference.utils.hf_adapter"
_QUANTIZED = "quantized_checkpoints_path"
_DTYPES = ("torch_dtype", "attention_dtype", "rpl_reduce_dtype")


@dataclass(frozen=True)
class Applications:
    """NxDI's causal-LM applications, which compile, load and run.

    Attributes:
        target: with the draft in its graph where that is fused.
        draft: an application of its own where the host verifies; else None.
    """

    target: Any
    draft: Any | None = None

    @property
    def by_role(self) -> dict[str, Any]:
        """Role -> application; the order in which they are compiled and loaded."""
        draft = {} if self.draft is None else {"draft": self.draft}
        return {"target": self.target, **draft}


def require_packages() -> None:
    """Do nothing where the Neuron packages are here.

    Raises:
        DependencyError: one is missing, too old, or a placeholder of the same name.
    """
    unready = [str(package) for package in neuron_packages() if package.state != "ready"]
    if unready:
        raise DependencyError(
            "the Neuron backend needs AWS's Neuron packages",
            found=", ".join(unready),
            mend="pip install 'neuron-spec[neuron]' from AWS's own Neuron package index (README, "
            "Install); `compile --dry-run` and `check` need none of them",
        )


def compiled_folder(artifact: Path, role: str) -> Path:
    """Where the application of a role is compiled to, and loaded from."""
    return artifact / role


def make_application(config: NxdiConfig, target: Path, draft: Path | None) -> Applications:
    """The applications of a configuration; nothing is compiled or loaded yet.

    Args:
        target: directory of the target's checkpoint.
        draft: directory of the prepared draft, wherever it lay when the config was rendered.

    Raises:
        ImportError: NxDI is not here, or has no such class.
        AssertionError, ValueError, NotImplementedError, ...: NxDI refuses a setting.
    """
    target, draft = target.absolute(), draft and draft.absolute()  # NxDI writes them down
    folder = _model_folder(config, target, draft)
    application = model_class(config.target)
    neuron_config = _neuron_config(config)
    inference_config = _inference_config(application, neuron_config, folder)
    own_draft = None
    if config.draft is not None:
        assert draft is not None
        draft_class = model_class(config.draft.classes)
        draft_neuron_config = _draft_neuron_config(neuron_config, config)
        draft_config = _inference_config(draft_class, draft_neuron_config, draft)
        if config.is_fused:
            inference_config.fused_spec_config = _fused_config(config, draft_config, draft)
        else:
            own_draft = draft_class(str(draft), draft_config)
    return Applications(application(str(folder), inference_config), own_draft)


def model_class(classes: ModelClasses) -> Any:
    """NxDI's application class of a family.

    Raises:
        ImportError: this NxDI has no such class.
    """
    return _class(classes, classes.causal_lm)


def _class(classes: ModelClasses, name: str) -> Any:
    module = import_module(classes.module)
    if not hasattr(module, name):
        raise ImportError(f"{classes.module} has no {name}")
    return getattr(module, name)


def _model_folder(config: NxdiConfig, target: Path, draft: Path | None) -> Path:
    """NxDI reads medusa_heads.pt beside the target's weights: the prepared draft is that folder."""
    is_medusa = "is_medusa" in config.neuron_config
    return draft if is_medusa and draft is not None else target


def _neuron_config(config: NxdiConfig) -> Any:
    neuron_config_class = model_class(config.target).get_neuron_config_cls()
    return neuron_config_class(**_absolute(copy.deepcopy(config.neuron_arguments)))


def _absolute(values: dict[str, Any]) -> dict[str, Any]:
    """With the one path as seen from here: NxDI reads it while it compiles, somewhere else."""
    if path := values.get(_QUANTIZED):
        values[_QUANTIZED] = str(Path(path).absolute())
    return values


def _inference_config(application: Any, neuron_config: Any, folder: Path) -> Any:
    load_pretrained_config = import_module(_ADAPTER).load_pretrained_config
    config_class = application.get_config_cls()
    return config_class(neuron_config, load_config=load_pretrained_config(str(folder)))


def _draft_neuron_config(target: Any, config: NxdiConfig) -> Any:
    assert config.draft is not None
    neuron_config = copy.deepcopy(target)
    for name, value in _changes(config.draft).items():
        setattr(neuron_config, name, value)
    if not config.is_fused:
        # Followers of tp_degree, computed by the constructor: an application of its own would
        # otherwise be built for the target's number of ranks.
        ranks = neuron_config.tp_degree * neuron_config.pp_degree * neuron_config.ep_degree
        neuron_config.world_size = neuron_config.local_ranks_size = ranks
    return neuron_config


def _changes(draft: DraftModel) -> dict[str, Any]:
    """As the constructor would have stored them."""
    to_torch_dtype = import_module(_CONFIG).to_torch_dtype
    values = {name: copy.deepcopy(setting.value) for name, setting in draft.changes.items()}
    values = _absolute(values)
    dtypes = {name for name in _DTYPES if isinstance(values.get(name), str)}
    return {n: to_torch_dtype(value) if n in dtypes else value for n, value in values.items()}


def _fused_config(config: NxdiConfig, draft_config: Any, draft: Path) -> Any:
    assert config.draft is not None
    is_other = config.draft.classes != config.target
    return import_module(_CONFIG).FusedSpecNeuronConfig(
        _class(config.target, config.target.model),
        draft_config=draft_config,
        draft_model_path=str(draft),
        draft_model_cls=model_class(config.draft.classes) if is_other else None,
    )
