"""NxDI's configuration classes: the same signatures, and of the behaviour what callers see."""

from __future__ import annotations

import copy
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch

from neuron_spec.platforms.nxdi_keywords import keyword_table
from nxdi_double.recorder import record

_DTYPES = ("torch_dtype", "attention_dtype", "rpl_reduce_dtype")


def to_torch_dtype(dtype_str):  # type: ignore[no-untyped-def]
    names = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    assert dtype_str in names, f"Unsupported dtype: {dtype_str}"
    return getattr(torch, dtype_str)


class OnDeviceSamplingConfig:
    def __init__(self, **kwargs: Any) -> None:
        record("OnDeviceSamplingConfig", dict(kwargs))
        for name, entry in keyword_table()["on_device_sampling_config"].items():
            setattr(self, name, kwargs.get(name, entry["default"]))


class NeuronConfig:
    def __init__(self, **kwargs: Any) -> None:
        record("NeuronConfig", copy.deepcopy(kwargs))
        table = keyword_table()["neuron_config"]
        for name in kwargs.keys() - table.keys():
            logging.getLogger("Neuron").warning("unexpected keyword %s", name)
        values = {name: copy.deepcopy(entry["default"]) for name, entry in table.items()}
        values |= kwargs
        values |= _followers(values, given=kwargs)
        values["enable_fused_speculation"] |= values["enable_eagle_speculation"]
        values["overrides_torch_dtype"] = "torch_dtype" in kwargs
        for name in _DTYPES:
            if isinstance(values.get(name), str):
                values[name] = to_torch_dtype(values[name])
        if type(values["on_device_sampling_config"]) is dict:
            sampling = OnDeviceSamplingConfig(**values["on_device_sampling_config"])
            values["on_device_sampling_config"] = sampling
        assert values["max_context_length"] <= values["max_length"]
        vars(self).update(values)
        self.is_prefill_stage = None


def _followers(values: dict[str, Any], *, given: dict[str, Any]) -> dict[str, Any]:
    """Settings that were not given and follow others."""
    length = values["seq_len"]
    ranks = values["tp_degree"] * values["pp_degree"] * values["ep_degree"]
    followers = {
        name: values[leader]
        for name, entry in keyword_table()["neuron_config"].items()
        for leader in ("seq_len", "batch_size")
        if entry.get("follows") == [leader]
    }
    followers |= {
        "max_new_tokens": length - given.get("max_context_length", length) or None,
        "buckets": [length],
        **dict.fromkeys(("world_size", "local_ranks_size"), ranks),
    }
    return {name: value for name, value in followers.items() if name not in given}


class MoENeuronConfig(NeuronConfig):
    def __init__(self, capacity_factor: Any = None, glu_mlp: Any = True, **kwargs: Any) -> None:
        own = keyword_table()["moe_neuron_config"]
        values = {name: kwargs.pop(name, entry["default"]) for name, entry in own.items()}
        super().__init__(**kwargs)
        vars(self).update({**values, "capacity_factor": capacity_factor, "glu_mlp": glu_mlp})


class InferenceConfig:
    def __init__(  # type: ignore[no-untyped-def]
        self, neuron_config, fused_spec_config=None, load_config=None, metadata=None, **kwargs
    ):
        record("InferenceConfig", {"neuron_config": neuron_config, **kwargs}, self)
        self.neuron_config = neuron_config
        self.fused_spec_config = fused_spec_config
        self.metadata = metadata
        if load_config is not None:
            load_config(self)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self, model_path):  # type: ignore[no-untyped-def]
        record("InferenceConfig.save", {"model_path": str(model_path)}, self)
        Path(model_path).mkdir(parents=True, exist_ok=True)
        text = json.dumps(vars(self), default=_plain, indent=2, sort_keys=True)
        Path(model_path, "neuron_config.json").write_text(text + "\n")

    def get_text_config(self):  # type: ignore[no-untyped-def]
        return self

    @classmethod
    def get_neuron_config_cls(cls):  # type: ignore[no-untyped-def]
        return NeuronConfig


class FusedSpecNeuronConfig:
    def __init__(  # type: ignore[no-untyped-def]
        self, worker_cls, draft_config=None, draft_model_path=None, draft_model_cls=None
    ):
        record("FusedSpecNeuronConfig", {
            "worker_cls": worker_cls, "draft_config": draft_config,
            "draft_model_path": draft_model_path, "draft_model_cls": draft_model_cls,
        })  # fmt: skip
        self.worker_cls = worker_cls
        self.draft_config = draft_config
        self.draft_model_path = draft_model_path
        self.draft_model_cls = draft_model_cls


def _plain(value: Any) -> Any:
    if isinstance(value, type):
        return {"__module__": value.__module__, "__name__": value.__name__}
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return vars(value)


# utils/hf_adapter.py


def load_pretrained_config(model_path_or_name=None, hf_config=None):  # type: ignore[no-untyped-def]
    record("load_pretrained_config", {"model_path_or_name": model_path_or_name})

    def load_config(self: InferenceConfig) -> None:
        path = os.path.join(model_path_or_name, "config.json")  # noqa: PTH118
        config = json.loads(Path(path).read_text())
        dtype = config.pop("dtype", None) or config.pop("torch_dtype", None)
        if dtype is not None and not self.neuron_config.overrides_torch_dtype:
            self.neuron_config.torch_dtype = to_torch_dtype(dtype)
        vars(self).update({"pad_token_id": None, **config, "_name_or_path": model_path_or_name})

    return load_config
