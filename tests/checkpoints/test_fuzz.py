"""Whatever bytes a checkpoint has: it is read, or refused with one error, and nothing is left.

2,000 damaged checkpoints go through `identify` and `prepare_draft`, in the shares below.
`NEURON_SPEC_FUZZ_EXAMPLES=100000 pytest tests/checkpoints/test_fuzz.py` takes as many as you want.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import raw_checkpoints as raw
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_spec.checkpoints.identify import identify
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.errors import UserError

NUM_EXAMPLES = int(os.environ.get("NEURON_SPEC_FUZZ_EXAMPLES", "2000"))
MAX_SECONDS = 10  # of one example, on a machine that is busy with other things
MAX_GROWTH_BYTES = 300 << 20
MAX_MESSAGE_CHARS = 20_000

Files = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
NAMES = st.sampled_from(
    ["", ".", "..", "/etc/passwd", "../../etc/passwd", "a/../b", "\x1b[2J", "\ud800", "\0",
     "x" * 300, "model.safetensors", "config.json", "0.0.linear.weight", "0.1.weight",
     "99999999999.0.linear.weight", "layers.0.hidden_norm.weight", "model.embed_tokens.weight",
     "lm_head.weight", "fc.bias"]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 3, 2**31, 10**12, 10**30, 10**400, 0.5, -0.5, 1e308,
         float("nan"), float("inf"), "", "llama", "eagle3", "x" * 5_000, "\x1b[31m", "\ud800", [],
         {}, [[]], {"rope_theta": "x"}, {"rope_type": []}, {"type": "linear", "factor": "x"}]
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | NAMES,
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | NAMES, inner, max_size=3),
        max_leaves=6,
    ),
    st.integers(1, 400).map(lambda depth: json.loads("[" * depth + "]" * depth)),
)  # fmt: skip
FIELDS = st.sampled_from(
    [*raw.CONFIG, "head_dim", "rope_scaling", "rope_parameters", "sliding_window", "pad_token_id",
     "draft_vocab_size", "target_hidden_size", "eagle_config", "norm_before_residual", "fc_bias",
     "eagle_aux_hidden_state_layer_ids", "attention_bias", "use_sliding_window", "bias", "dtype",
     "quantization_config", "transformer_layer_config", "speculators_model_type", "architectures",
     "hydra_head_arch", "medusa_num_heads", "truncated_vocab_size", "embed_requires_grad"]
)  # fmt: skip
BASES = st.sampled_from([raw.EAGLE, raw.EAGLE3, raw.MEDUSA, raw.TARGET])


def changed_bytes(draw: Draw, content: bytes, end: int) -> bytes:
    """A few bytes before `end` replaced, inserted, removed or repeated."""
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, max(0, min(end, len(content)) - 1)))
        piece = draw(st.binary(max_size=3))
        length = draw(st.sampled_from([len(piece), 0, 1, 8]))
        content = content[:position] + piece + content[position + length :]
    return content


def header(draw: Draw) -> Files:
    base = draw(BASES)
    content = base[WEIGHTS]
    end = 8 + int.from_bytes(content[:8], "little")
    return {**base, WEIGHTS: changed_bytes(draw, content, end)}


def header_entries(draw: Draw) -> Files:
    """A header that is valid JSON and lies."""
    base = draw(BASES)
    content = base[WEIGHTS]
    end = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:end])
    name = draw(st.sampled_from(sorted(entries)))
    field = draw(st.sampled_from(["dtype", "shape", "data_offsets", "whole", "name"]))
    if field == "whole":
        entries[name] = draw(VALUES)
    elif field == "name":
        entries[draw(NAMES | st.text())] = entries.pop(name)
    else:
        entries[name][field] = draw(VALUES | st.lists(st.integers(-1, 2**62), max_size=3))
    return {**base, WEIGHTS: raw.with_header(entries, content[end:])}


def any_byte(draw: Draw) -> Files:
    base = draw(BASES)
    name = draw(st.sampled_from([WEIGHTS, CONFIG]))
    content = base[name] if name == WEIGHTS else json.dumps(base[name]).encode()
    return {**base, name: changed_bytes(draw, content, len(content))}


def cut(draw: Draw) -> Files:
    base = draw(BASES)
    return {**base, WEIGHTS: base[WEIGHTS][: draw(st.integers(0, len(base[WEIGHTS]) - 1))]}


def config(draw: Draw) -> Files:
    base = draw(BASES)
    fields = {**base[CONFIG], **draw(st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3))}
    removed = draw(st.sets(FIELDS, max_size=1))
    fields = {name: value for name, value in fields.items() if name not in removed}
    if draw(st.integers(0, 3)) == 0:
        fields = {"speculators_model_type": "eagle3", "transformer_layer_config": fields}
    return {**base, CONFIG: fields, "generation_config.json": draw(VALUES)}


def index(draw: Draw) -> Files:
    base = draw(BASES)
    shards = dict.fromkeys(("fc.weight", "lm_head.weight"), "one.safetensors")
    shards |= draw(st.dictionaries(NAMES | st.text(), NAMES | st.text() | VALUES, max_size=2))
    weight_map = draw(st.sampled_from([shards, shards, shards, None])) or draw(VALUES)
    files = {CONFIG: base[CONFIG], "one.safetensors": base[WEIGHTS]}
    return {**files, INDEX: {"weight_map": weight_map, "metadata": draw(VALUES)}}


def _pickled(is_zip: bool) -> bytes:
    tensors = {name: torch.zeros(shape) for name, (_, shape, _) in raw.eagle_tensors().items()}
    file = io.BytesIO()
    torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


PICKLES = [_pickled(True), _pickled(False)]


def pickled(draw: Draw) -> Files:
    content = draw(st.sampled_from(PICKLES))
    if draw(st.integers(0, 4)) == 0:
        content = content[: draw(st.integers(0, len(content) - 1))]
    else:
        end = draw(st.sampled_from([1_500, len(content)]))  # the pickle, or the zip's table too
        content = changed_bytes(draw, content, end)
    return {CONFIG: raw.CONFIG, "pytorch_model.bin": content}


SHARES = {
    header: 0.15, header_entries: 0.2, any_byte: 0.1, cut: 0.1, config: 0.2, index: 0.15,
    pickled: 0.1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sound models beside which the damaged one is put; nothing waits for the disk."""
    raw.write(tmp_path / "target", raw.TARGET)
    raw.write(tmp_path / "eagle", raw.EAGLE)
    (tmp_path / "build").mkdir()
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return tmp_path


def refusal(call: Callable[[], Any]) -> str | None:
    """What a user would read, or None if the call went well; anything else fails the test."""
    try:
        call()
    except UserError as error:
        return str(error)
    return None


def survives(folder: Path, files: Files) -> None:
    damaged, build = folder / "damaged", folder / "build"
    shutil.rmtree(damaged, ignore_errors=True)
    raw.write(damaged, files)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: identify(damaged).as_dict(),
        lambda: prepare_draft(damaged, folder / "target", build / "as-draft"),
        lambda: prepare_draft(folder / "eagle", damaged, build / "as-target"),
    )
    for call in calls:
        before = sorted(path.name for path in build.iterdir())
        message = refusal(call)
        left = sorted(path.name for path in build.iterdir())
        if message is None:
            assert all((path / CONFIG).is_file() for path in build.iterdir())
        else:
            assert left == before
            assert message.replace("\n", "").isprintable() and len(message) < MAX_MESSAGE_CHARS
        assert set(left) <= {"as-draft", "as-target"}
    for path in build.iterdir():
        shutil.rmtree(path)


@pytest.mark.parametrize("damage", SHARES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_read_or_refused(
    folder: Path, damage: Callable[[Draw], Files]
) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @settings(
        max_examples=round(NUM_EXAMPLES * SHARES[damage]),
        deadline=timedelta(seconds=MAX_SECONDS),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        survives(folder, damage(data.draw))

    run()
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    assert growth < MAX_GROWTH_BYTES


def test_the_shares_are_the_whole() -> None:
    assert sum(SHARES.values()) == pytest.approx(1)
