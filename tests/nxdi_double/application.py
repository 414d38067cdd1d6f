"""NxDI's applications: compiling writes the files that NxDI and NxD write, in the same order."""

from __future__ import annotations

import copy
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from nxdi_double.recorder import Current, record

COMPILER_LOG = "log-neuron-cc.txt"


class GraphError(RuntimeError):
    """Injected as failures["graph"]: the graph of that tag and bucket leaves `log` and raises."""

    def __init__(self, tag: str, bucket: int, log: str) -> None:
        super().__init__(f"neuronx-cc failed with 70 on {tag}")
        self.tag, self.bucket, self.log = tag, bucket, log


class ModelWrapper(torch.nn.Module):
    """One graph a bucket."""

    def __init__(self, config: Any, tag: str) -> None:
        super().__init__()
        self.config, self.tag, self.neuron_config = config, tag, config.neuron_config

    def forward(self, *args, pad_type="first_fit"):  # type: ignore[no-untyped-def]
        record(f"{self.tag}.forward", {"args": args, "pad_type": pad_type}, self)
        assert Current.recorder.wrapper is not None, "the test gives no forward pass"
        return Current.recorder.wrapper(self, args)


class NeuronApplicationBase(torch.nn.Module):
    _FUSED_PREFIX = ""

    def __init__(self, model_path, config=None, neuron_config=None):  # type: ignore[no-untyped-def]
        record(type(self).__name__, {"model_path": model_path, "config": config}, self)
        super().__init__()
        assert config is not None, "loaded from model_path, which this package never asks for"
        self.model_path = os.path.join(os.path.normpath(model_path), "")  # noqa: PTH118
        self.config, self.neuron_config = config, config.neuron_config
        self.fused_spec_config = config.fused_spec_config
        self.models: list[ModelWrapper] = []
        self.is_loaded_to_neuron = False

    @classmethod
    def get_config_cls(cls):  # type: ignore[no-untyped-def]
        raise NotImplementedError("get_config_cls is not implemented")

    @classmethod
    def get_neuron_config_cls(cls):  # type: ignore[no-untyped-def]
        return cls.get_config_cls().get_neuron_config_cls()

    def compile(  # type: ignore[no-untyped-def]
        self,
        compiled_model_path,
        debug=False,
        pre_shard_weights_hook=None,
        dry_run=False,
        disable_fail_fast=False,
    ):
        self._record("compile", compiled_model_path=str(compiled_model_path))
        self.config.save(compiled_model_path)
        self._trace(Path(os.environ.get("BASE_COMPILE_WORK_DIR", "/tmp/nxd_model/")))
        if not self._skips("model.pt"):
            record("torch.jit.save", {"path": str(compiled_model_path)})
            Path(compiled_model_path, "model.pt").write_bytes(b"graphs of " + self.tags.encode())
        self.shard_weights(compiled_model_path, debug, pre_shard_weights_hook)

    def _trace(self, work: Path) -> None:
        if work.exists():
            shutil.rmtree(work)
        graphs = [(m.tag, n) for m in self.models for n in range(len(m.neuron_config.buckets))]
        for tag, bucket in graphs:
            (work / tag / f"_tp0_bk{bucket}" / "model").mkdir(parents=True)
        os.write(1, b"a line of a compiler's process\n")
        sys.stdout.write("a line of NxD\n")
        record("trace", {"work": str(work), "environment": dict(os.environ)})
        self._make_draft_group()
        for tag, bucket in graphs:
            folder = work / tag / f"_tp0_bk{bucket}"
            (folder / COMPILER_LOG).write_text(f"compiling {tag} {bucket}\n")
            _fail_at(folder, tag, bucket)
            (folder / "graph.neff").write_bytes(b"neff")

    def shard_weights(  # type: ignore[no-untyped-def]
        self, compiled_model_path, debug=False, pre_shard_weights_hook=None
    ):
        if not self.neuron_config.save_sharded_checkpoint:
            return
        self._record("shard_weights", compiled_model_path=str(compiled_model_path))
        self._read_weights()
        folder = Path(compiled_model_path, "weights")
        folder.mkdir()
        for rank in range(self.neuron_config.local_ranks_size):
            (folder / f"tp{rank}_sharded_checkpoint.safetensors").write_bytes(b"shard")

    def load(  # type: ignore[no-untyped-def]
        self, compiled_model_path, start_rank_id=None, local_ranks_size=None, skip_warmup=False
    ):
        self._record("load", compiled_model_path=str(compiled_model_path), skip_warmup=skip_warmup)
        graphs = Path(compiled_model_path, "model.pt").read_bytes()
        assert graphs == b"graphs of " + self.tags.encode(), "graphs of another application"
        if not self.neuron_config.save_sharded_checkpoint:
            self._read_weights()
        self.is_loaded_to_neuron = True

    def _make_draft_group(self) -> None:
        """As NxD's initialize_speculative_draft_group; the group outlives the application."""
        if self.fused_spec_config is None:
            return
        state: Any = sys.modules["neuronx_distributed.parallel_layers.parallel_state"]
        size = self.fused_spec_config.draft_config.neuron_config.tp_degree
        if state._SPECULATIVE_DRAFT_GROUP is not None:
            assert size == state._SPECULATIVE_DRAFT_GROUP_SIZE, "another draft group size"
            return
        state._SPECULATIVE_DRAFT_GROUP, state._SPECULATIVE_DRAFT_GROUP_SIZE = object(), size

    def _read_weights(self) -> None:
        """As checkpoint_loader_fn: the class keeps the prefix of a fused graph's weights."""
        self._make_draft_group()
        if self.neuron_config.enable_fused_speculation:
            type(self)._FUSED_PREFIX = "target_model"
        elif self._FUSED_PREFIX:
            raise KeyError(f"the graph has no weights named {self._FUSED_PREFIX}.*")

    @classmethod
    def save_quantized_state_dict(cls, model_path, config):  # type: ignore[no-untyped-def]
        path = config.neuron_config.quantized_checkpoints_path
        record("save_quantized_state_dict", {"model_path": model_path, "path": path})
        Path(path).write_bytes(b"quantized")

    def _record(self, method: str, **arguments: Any) -> None:
        record(f"{type(self).__name__}.{method}", arguments, self)

    def _skips(self, name: str) -> bool:
        return f"no {name}" in Current.recorder.failures

    @property
    def tags(self) -> str:
        """Of the sub-models."""
        return " ".join(model.tag for model in self.models)


def _fail_at(folder: Path, tag: str, bucket: int) -> None:
    failure = Current.recorder.failures.get("graph")
    if isinstance(failure, GraphError) and (failure.tag, failure.bucket) == (tag, bucket):
        (folder / COMPILER_LOG).write_text(failure.log)
        raise failure


class NeuronBaseForCausalLM(NeuronApplicationBase):
    _model_cls: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.neuron_config
        self._add("context_encoding_model", config.context_encoding_buckets or [
            config.max_context_length
        ], is_prefill=True)  # fmt: skip
        decoding = config.token_generation_buckets or [config.max_length]
        if config.enable_fused_speculation:
            assert self.fused_spec_config is not None
            self._add("fused_speculation_model", decoding)
        elif config.speculation_length > 0:
            self._add("speculation_model", decoding)
        elif config.medusa_speculation_length > 0:
            self._add("medusa_speculation_model", config.buckets)
        else:
            self._add("token_generation_model", decoding)

    def _add(self, tag: str, buckets: list[int], *, is_prefill: bool = False) -> None:
        config = copy.deepcopy(self.config)
        config.neuron_config.buckets = list(buckets)
        config.neuron_config.is_prefill_stage = is_prefill
        self.models.append(ModelWrapper(config, tag))
        attribute = "fused_spec_model" if tag == "fused_speculation_model" else tag
        setattr(self, attribute, self.models[-1])

    def forward(  # type: ignore[no-untyped-def]
        self,
        input_ids=None,
        seq_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        sampling_params=None,
        prev_hidden=None,
        labels=None,
        use_cache=None,
        output_attentions=None,
        output_hidden_states=None,
        adapter_ids=None,
        medusa_args=None,
        return_dict=None,
        llava_args=[],  # noqa: B006
        input_capture_hook=None,
        tensor_capture_hook=None,
        slot_mapping=None,
        block_table=None,
        full_context_lens=None,
        computed_context_lens=None,
        tf_args=None,
    ):
        given = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "__class__") and value is not None and value != []
        }
        assert self.is_loaded_to_neuron, "not loaded"
        self._record("forward", **given)
        assert Current.recorder.forward is not None, "the test gives no forward pass"
        return Current.recorder.forward(self, given)

    def reset(self) -> None:
        self._record("reset")
