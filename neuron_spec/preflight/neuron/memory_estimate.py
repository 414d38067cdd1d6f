"""Device memory of a build, per logical core, from sizes in config.json alone.

What is counted follows NxDI: `modules/attention/gqa.py` and `modules/kvcache/*.py` for heads and
caches, `models/llama/modeling_llama.py` for Medusa heads and EAGLE's `fc`, `modules/eagle/
hidden_state.py` for the rolling buffer. What the compiler adds (code, spilled intermediates, DMA
rings) is in no source; the SDK's rule is weights + KV cache < cores x memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.platforms.nxdi_models import ROLLING_CACHE
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.sharding import padded, shard_heads
from neuron_spec.spec.graphs import TILE

GIB = 1 << 30
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FP32 = 4


@dataclass(frozen=True)
class Part:
    """What lies in one core's memory under one name."""

    name: str
    num_bytes: float


@dataclass(frozen=True)
class MemoryEstimate:
    """All parts on one logical core; `rough` ones are an order of magnitude."""

    parts: tuple[Part, ...]
    rough: tuple[Part, ...]
    tp_degree: int

    @property
    def counted_bytes(self) -> float:
        """Weights, caches and buffers on one core."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def core_bytes(self) -> float:
        """With the rough parts."""
        return self.counted_bytes + sum(part.num_bytes for part in self.rough)

    @property
    def total_bytes(self) -> float:
        """Counted parts on all cores together."""
        return self.counted_bytes * self.tp_degree

    def largest(self, count: int) -> list[Part]:
        """The largest parts first."""
        parts = [part for part in (*self.parts, *self.rough) if part.num_bytes]
        return sorted(parts, key=lambda part: -part.num_bytes)[:count]


def estimate(build: NeuronBuild) -> MemoryEstimate | None:
    """The parts of a build; None where target or draft are not known."""
    target = build.target
    if target is None or (build.has_draft_model and build.draft is None):
        return None
    return MemoryEstimate(
        tuple(_counted(build, target)), tuple(_rough(build, target)), build.neuron.tp_degree
    )


def _counted(build: NeuronBuild, target: ModelConfig) -> Iterator[Part]:
    degree, dtype_bytes = build.neuron.tp_degree, _DTYPE_BYTES[build.spec.target.dtype]
    yield from _weights("target", target, degree, dtype_bytes, _layer_bytes(build, dtype_bytes))
    yield _kv_cache("target", target, degree, build)
    if build.has_draft_model and (draft := build.draft) is not None:
        degree = build.draft_tp_degree
        yield from _weights("draft", draft, degree, dtype_bytes, dtype_bytes)
        yield _kv_cache("draft", draft, degree, build)
        if build.is_eagle:
            yield from _eagle(build, draft, degree, dtype_bytes)
    if build.path == "medusa":
        yield from _medusa(build, target, degree, dtype_bytes)


def _rough(build: NeuronBuild, target: ModelConfig) -> Iterator[Part]:
    """Logits are float32, and whole where they leave the device; activations of one prompt."""
    degree, dtype_bytes = build.neuron.tp_degree, _DTYPE_BYTES[build.spec.target.dtype]
    rows = build.spec.shape.batch_size * build.step
    columns = target.vocab_size / (degree if build.samples_on_device else 1)
    yield Part("logits", rows * columns * _FP32)
    widths = 4 * target.hidden_size + 3 * target.intermediate_size / degree
    yield Part("activations of the longest prompt graph", build.context_buckets[-1] * widths
               * dtype_bytes)  # fmt: skip


def _layer_bytes(build: NeuronBuild, dtype_bytes: int) -> float:
    """Quantized layers have one byte a value; embedding and LM head keep their dtype."""
    return 1 if build.settings.get("quantized") else dtype_bytes


def _weights(
    role: str, config: ModelConfig, degree: int, dtype_bytes: int, layer_bytes: float
) -> Iterator[Part]:
    """A tied LM head is a copy of the embedding (`update_state_dict_for_tied_weights`)."""
    layers, norms = _layer_values(config, degree)
    yield Part(f"{role} layers", config.num_hidden_layers * (layers * layer_bytes + norms
               * dtype_bytes))  # fmt: skip
    head = padded(config.vocab_size, degree) // degree * config.hidden_size * dtype_bytes
    yield Part(f"{role} embedding", config.vocab_size * padded(config.hidden_size, degree)
               // degree * dtype_bytes)  # fmt: skip
    yield Part(f"{role} LM head", head)


def _layer_values(config: ModelConfig, degree: int) -> tuple[float, float]:
    """Values of one layer on one core: matrices, and what every core has whole."""
    heads, hidden = shard_heads(config, degree), config.hidden_size
    projections = 2 * heads.query + 2 * heads.key_value  # q and o, k and v
    matrices = projections * config.head_dim * hidden + _mlp_values(config)
    return matrices / degree, 2 * hidden


def _mlp_values(config: ModelConfig) -> int:
    """Three matrices a dense MLP or expert, and the router of a mixture."""
    num_experts = _size(config, "num_local_experts") or _size(config, "num_experts")
    width = _size(config, "moe_intermediate_size") if num_experts else 0
    matrices = 3 * config.hidden_size * (width or config.intermediate_size)
    return num_experts * (matrices + config.hidden_size) if num_experts else matrices


def _size(config: ModelConfig, name: str) -> int:
    """A field of config.json that only mixtures have; 0 where it is not a size."""
    value = config.raw.get(name)
    return value if type(value) is int and value > 0 else 0


def _kv_cache(role: str, config: ModelConfig, degree: int, build: NeuronBuild) -> Part:
    batch = build.spec.shape.batch_size + int(build.settings.get("kv_cache_padding_size", 0))
    is_quantized = build.settings.get("kv_cache_quant") or build.settings.get("kv_quant_config")
    value_bytes = 1 if is_quantized else _DTYPE_BYTES[build.spec.target.dtype]
    heads = shard_heads(config, degree).key_value // degree
    row = 2 * heads * config.head_dim * value_bytes
    blocks, block = (build.settings.get(name) for name in ("pa_num_blocks", "pa_block_size"))
    if build.settings.get("is_block_kv_layout") and blocks and block:
        return Part(f"{role} KV cache", row * config.num_hidden_layers * blocks * block)
    return Part(f"{role} KV cache", row * batch * sum(_cache_lengths(config, build)))


def _cache_lengths(config: ModelConfig, build: NeuronBuild) -> list[int]:
    """Positions a layer; windows shorten them, in gpt-oss those of every other layer."""
    length, window = build.cache_length, config.raw.get("sliding_window")
    if config.model_type == "gpt_oss" and window:
        kept = window + build.step - 2 if build.is_fused else window - 1
        kept = (kept // TILE + 1) * TILE
        return [kept if layer % 2 == 0 else length for layer in range(config.num_hidden_layers)]
    if config.sliding_window and config.model_type in ROLLING_CACHE:
        length = config.sliding_window
    return [length] * config.num_hidden_layers


def _eagle(build: NeuronBuild, draft: ModelConfig, degree: int, dtype_bytes: int) -> Iterator[Part]:
    """`fc` is sharded, the rolling buffer is whole on every core."""
    hidden = draft.hidden_size
    taps = 3 if build.path == "eagle3" else 1
    width = 3 * hidden if build.path == "eagle3" else 2 * hidden
    yield Part("draft fc", width * hidden * dtype_bytes / degree)
    if build.path == "eagle3":  # q, k and v read embedding and hidden state side by side
        heads = shard_heads(draft, degree)
        extra = (heads.query + 2 * heads.key_value) * draft.head_dim * hidden
        yield Part("draft attention, second half of its input", extra * dtype_bytes / degree)
    rows = (build.spec.shape.batch_size + 1) * 2 * build.step
    yield Part("EAGLE rolling buffer", rows * taps * hidden * dtype_bytes)


def _medusa(
    build: NeuronBuild, target: ModelConfig, degree: int, dtype_bytes: int
) -> Iterator[Part]:
    """Blocks are whole on every core, projections are sharded."""
    count = build.num_medusa_heads or build.tree.max_depth
    hidden = target.hidden_size
    yield Part("Medusa blocks", count * (hidden + 1) * hidden * dtype_bytes)
    yield Part("Medusa projections", count * target.vocab_size * hidden * dtype_bytes / degree)


def stored_bytes(config: ModelConfig, dtype: str) -> float:
    """Weights in one piece, as they pass through the host."""
    layers, norms = _layer_values(config, 1)
    heads = 1 if config.tie_word_embeddings else 2
    values = config.num_hidden_layers * (layers + norms)
    return (values + heads * config.vocab_size * config.hidden_size) * _DTYPE_BYTES[dtype]
