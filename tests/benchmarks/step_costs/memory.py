"""What the KV cache takes: as predicted, as allocated, and as the system sees it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from neuron_spec.backends.reference.cache import KVCache
from neuron_spec.backends.reference.opening import cache_length
from neuron_spec.checkpoints.model_config import ModelConfig, read_config
from step_costs.opening import Model


def cache_memory(model: Model, batch: int, length: int) -> dict[str, Any]:
    """Of target and EAGLE head with `batch` slots, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measured, model, batch, length).result()


def predicted_bytes(config: ModelConfig, slots: int, length: int, bytes_a_number: int) -> int:
    """Keys and values of every layer."""
    heads, dim = config.num_key_value_heads, config.head_dim
    return 2 * config.num_hidden_layers * slots * heads * length * dim * bytes_a_number


def _measured(model: Model, batch: int, length: int) -> dict[str, Any]:
    spec = model.spec("eagle", batch_size=batch, length=length, prompt=length)
    prepared = model.prepared(spec)
    with recorded() as made:
        session = model.session(spec)
    tensors = [tensor for cache, _ in made for tensor in (*cache.keys, *cache.values)]
    del session
    size = getattr(torch, model.dtype).itemsize
    configs = [read_config(part) for part in (prepared.target, prepared.draft) if part]
    whole = cache_length(spec)
    return {
        "batch": batch,
        "positions": whole,
        "predicted_bytes": sum(predicted_bytes(each, batch, whole, size) for each in configs),
        "allocated_bytes": sum(tensor.nbytes for tensor in tensors),
        "resident_bytes": sum(grown for _, grown in made),
    }


@contextmanager
def recorded() -> Iterator[list[tuple[KVCache, int]]]:
    """Caches that are made within, and by how much the process grew for each, all of it written."""
    made: list[tuple[KVCache, int]] = []
    make = KVCache.__init__

    def noted(self: KVCache, *args: Any, **options: Any) -> None:
        before = resident_bytes()
        make(self, *args, **options)
        for tensor in (*self.keys, *self.values):
            tensor.fill_(0)  # pages are taken when they are first written
        made.append((self, resident_bytes() - before))

    with mock.patch.object(KVCache, "__init__", noted):
        yield made


def resident_bytes() -> int:
    """Of this process (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")
