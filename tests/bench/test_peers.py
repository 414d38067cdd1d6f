"""A peer runs the same weights: greedy, it gives the tokens that our plain decoding gives."""

from __future__ import annotations

from pathlib import Path

from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.bench.measure import measure_on_off
from neuron_spec.bench.peers import PEERS
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine import Session
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.spec import BuildSpec


def test_transformers_gives_our_plain_tokens_and_is_timed(target_directory: Path) -> None:
    spec = BuildSpec.model_validate(
        {
            "target": {"model": str(target_directory)},
            "shape": {"max_prompt_tokens": 16, "max_total_tokens": 64},
        }
    )
    speculator = open_speculator(spec, target_directory, None)
    session = Session(speculator, ModelTokenizer(target_directory))
    peer = PEERS["transformers"](target_directory, dtype="float32", device="cpu")
    plain = session.generate("abc", max_new_tokens=12).token_ids
    assert tuple(peer(session.tokenizer.encode("abc"), 12)) == plain
    results = measure_on_off(session, [WorkloadRow("abc", "code")], max_new_tokens=4, peer=peer)
    assert results[0].peer_tokens_per_s is not None
    assert results[0].peer_tokens_per_s > 0
