"""The forward pass of the double: NxDI's host side as it is, the graphs by their emulation.

Host side: `models/model_base.py` `NeuronBaseForCausalLM.forward`, `models/model_wrapper.py`
`ModelWrapper.forward`. What NxDI would raise for wrong inputs is raised here; what it would take
without a word, and compute nonsense from, is an AssertionError.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from neuron_spec.backends.reference.nxdi import passes, sampler
from nxdi_double.graphs import Graphs, graphs_of
from nxdi_double.recorder import Recorder

_ROWS = ("input_ids", "attention_mask", "position_ids", "seq_ids", "sampling_params")


class Emulation:
    """Applications that compute; one draws random numbers with `draw`."""

    def __init__(self, recorder: Recorder, draw: Any = torch.rand) -> None:
        self._draw = draw
        self._graphs: dict[int, Graphs] = {}  # by application
        self._owners: dict[int, Any] = {}  # wrapper -> application
        recorder.forward, recorder.wrapper = self.forward, self.run_wrapper

    def forward(self, application: Any, given: dict[str, Any]) -> CausalLMOutputWithPast:
        """See `NeuronBaseForCausalLM.forward`."""
        for model in application.models:
            self._owners[id(model)] = application
        config = application.neuron_config
        ids, mask, positions, slots, params = (given[name] for name in _ROWS)
        if config.on_device_sampling_config is not None:
            params = sampler.validated(params, config.on_device_sampling_config.global_topk)
        args = [ids, mask, positions, slots, params, None, None]
        wrapper = self._chosen(application, ids, positions)
        if config.is_medusa and wrapper is application.context_encoding_model:
            args += [torch.zeros(1, 1, dtype=torch.int32)] * 4
        return _constructed(config, self.run_wrapper(wrapper, tuple(args)))

    def run_wrapper(self, wrapper: Any, args: tuple[Any, ...]) -> Any:
        """See `ModelWrapper.forward`: rows padded to the batch, lengths to a bucket."""
        config = wrapper.neuron_config
        ids, mask, positions, slots, params = args[:5]
        _check_rows(ids, mask, positions, slots, params)
        is_prompt = wrapper.tag == "context_encoding_model"
        room = 0 if is_prompt or wrapper.tag.startswith(("token", "medusa")) else None
        _bucket(wrapper, mask.shape[1] + (config.speculation_length if room is None else room))
        application = self._owners[id(wrapper)]
        graphs = self._graphs.setdefault(id(application), graphs_of(application, self._draw))
        if is_prompt:
            assert ids.shape == mask.shape == positions.shape, "a prompt's inputs differ in length"
            return _encoded(graphs, wrapper, ids, mask, positions, int(slots), params)
        if wrapper.tag == "medusa_speculation_model":
            return graphs.medusa(ids, mask, positions, *args[7:11])
        assert bool((mask.sum(dim=1) == positions[:, 0]).all()), "a row sees what it has not"
        whole = _padded(slots, config.max_batch_size, ids, positions[:, 0], params)
        found = graphs.step(*whole)
        rows = slots.long()
        return [t[rows] for t in found] if isinstance(found, list) else found[rows]

    def _chosen(self, application: Any, ids: Tensor, positions: Tensor) -> Any:
        """See `NeuronBaseForCausalLM._get_model_outputs`."""
        config = application.neuron_config
        if int(positions.min()) == 0:
            return application.context_encoding_model
        if config.enable_fused_speculation:
            return application.fused_spec_model
        if ids.shape[-1] == config.speculation_length:
            return application.speculation_model
        if ids.shape[-1] == config.medusa_speculation_length:
            return application.medusa_speculation_model
        return application.token_generation_model


def _check_rows(ids: Tensor, mask: Tensor, positions: Tensor, slots: Tensor, params: Any) -> None:
    for tensor in (ids, mask, positions, slots):
        assert tensor.dtype in (torch.int32, torch.int64), tensor.dtype
    rows = len(slots)
    assert slots.ndim == 1 and {len(ids), len(mask), len(positions), len(params)} == {rows}
    assert params.dtype == torch.float32 and params.shape == (rows, 3)
    prefix = torch.arange(mask.shape[1]) < mask.sum(dim=1, keepdim=True)
    assert torch.equal(mask.bool(), prefix), "holes in an attention mask"


def _bucket(wrapper: Any, length: int) -> int:
    """See `ModelWrapper._get_seq_bucket`, strategy first_fit."""
    buckets: list[int] = wrapper.neuron_config.buckets
    found = next((bucket for bucket in buckets if length < bucket), None)
    if found is None and length != buckets[-1]:
        raise ValueError(f"Input len {length} exceeds largest bucket ({buckets[-1]})")
    return found or buckets[-1]


def _padded(slots: Tensor, batch: int, *tensors: Tensor) -> list[Tensor]:
    """All slots in order: those that are missing get the first row's inputs, which then overwrite
    what their cache holds (`ModelWrapper._forward_with_pad`)."""
    numbers = slots.tolist()
    assert len(set(numbers)) == len(numbers) and max(numbers) < batch, f"slots {numbers}"
    if len(numbers) == batch:
        assert numbers == sorted(numbers), "a whole batch is not put in order"
    order = [numbers.index(slot) if slot in numbers else 0 for slot in range(batch)]
    return [tensor[order] for tensor in tensors]


def _encoded(
    graphs: Graphs,
    wrapper: Any,
    ids: Tensor,
    mask: Tensor,
    positions: Tensor,
    slot: int,
    params: Tensor,
) -> Any:
    """One prompt. Its padding has position 1, unless the caller padded to the whole graph."""
    length, width = int(mask.sum()), ids.shape[1]
    assert positions[0, :length].tolist() == list(range(length)), "a prompt begins at position 0"
    fillers = set(positions[0, length:].tolist())
    if fillers:
        assert width == wrapper.neuron_config.buckets[-1] and len(fillers) == 1
    with patch.object(passes, "PADDING_POSITION", next(iter(fillers), passes.PADDING_POSITION)):
        return graphs.encode(slot, ids[0, :length].tolist(), params)


def _constructed(config: Any, outputs: Any) -> CausalLMOutputWithPast:
    """See `NeuronBaseForCausalLM._construct_output`."""
    on_device = config.on_device_sampling_config is not None
    found = CausalLMOutputWithPast(logits=None if on_device else outputs, hidden_states=outputs)
    if config.is_medusa:
        found.tokens, found.medusa_tokens = outputs[:1], outputs[1:]
    elif config.enable_fused_speculation:
        found.fused_outputs, found.async_should_stop = outputs, False
    else:
        found.tokens = outputs
    found.captured_tensors = None
    return found
