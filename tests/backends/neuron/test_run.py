"""Every way through NxDI, run over its double: the recorded tokens, and the target's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nxdi_golden as golden
import pytest
from nxdi_double.opened import MEDUSA_TREE, WAYS, K, Opened, alone, generated
from nxdi_double.recorder import Recorder

from neuron_spec.backends.base import Decoding
from neuron_spec.trees import Tree

Open = Callable[..., Opened]
FUSED = ("fused_draft", "eagle1", "eagle3", "tree")
BATCHED = ("alone", "sampling", "ngram", "suffix", *FUSED)
PLAIN = Decoding(speculate=False)
PROMPTS = [*golden.PROMPTS, [7, 8], [100] * 12]


def steps_of(recorder: Recorder) -> list[dict[str, Any]]:
    """Arguments of every forward call that is not a prompt's."""
    calls = [c.arguments for c in recorder.calls if c.name.endswith(".forward")]
    return [given for given in calls if given["position_ids"].min() > 0]


@pytest.mark.parametrize("name", WAYS)
def test_greedy_output_is_the_targets_alone(name: str, open_: Open) -> None:
    speculator = open_(name).speculator
    for prompt in golden.PROMPTS:
        assert generated(speculator, [prompt], 40) == [alone(name, prompt, 40)]


@pytest.mark.parametrize("case", golden.CASES)
def test_recorded_steps_of_fused_graphs(case: str, open_: Open, nxdi: Recorder) -> None:
    speculator = open_(case).speculator
    for run in golden.recorded(case)["runs"]:
        nxdi.calls.clear()
        first = speculator.prefill(0, run["prompt"])
        found = [first.token]
        for expected in run["steps"]:
            (result,) = speculator.step(K)
            kept = [token for token in expected["accepted_tokens_padded"] if token != -1]
            assert list(result.tokens) == kept
            assert (result.num_drafted, result.num_accepted) == (K, expected["num_draft_accepted"])
            found += result.tokens
        inputs = [(int(s["input_ids"]), int(s["position_ids"])) for s in steps_of(nxdi)]
        assert inputs == [(s["input_token"], s["position"]) for s in run["steps"]]
        sequence = [*run["prompt"], *found]
        assert sequence[: len(run["sequence"])] == run["sequence"]  # which an EOS may have cut
        speculator.release(0)


@pytest.mark.parametrize("name", ["binary7", "even6", "even9", "chain5"])
def test_recorded_steps_of_token_trees(name: str, open_: Open) -> None:
    data = golden.recorded("eagle1_token_tree")["trees"][name]
    tree = Tree.from_children(data["token_tree_config"])
    paths = [[tree.ranks[node] for node in tree.route(n)[1:]] for n in range(1, tree.num_nodes)]
    speculator = open_("tree", draft={"tree": paths}).speculator
    for run in data["runs"]:
        speculator.prefill(0, run["prompt"])
        for expected in run["steps"]:
            (result,) = speculator.step(tree.num_draft_tokens)
            kept = [token for token in expected["accepted_tokens_padded"] if token != -1]
            assert list(result.tokens) == kept
            assert result.num_drafted == tree.num_draft_tokens
            assert result.num_positions == (None if name == "chain5" else tree.max_depth)
        speculator.release(0)


@pytest.mark.parametrize("case", ["fused_draft", "eagle1"])
def test_recorded_steps_of_a_batch(case: str, open_: Open) -> None:
    data = golden.recorded(f"{case}_batch2")
    speculator = open_(case, shape={"batch_size": 2}).speculator
    for slot, prompt in enumerate(data["prompts"]):
        speculator.prefill(slot, prompt)
    for expected in data["steps"]:
        for row, result in enumerate(speculator.step(K)):
            kept = [token for token in expected["accepted_tokens_padded"][row] if token != -1]
            assert (result.slot, list(result.tokens)) == (row, kept)


@pytest.mark.parametrize("name", ["unfused", "medusa"])
def test_recorded_sequences(name: str, open_: Open) -> None:
    case = {"unfused": "vanilla_unfused", "medusa": "medusa_kv_persisted"}[name]
    speculator = open_(name).speculator
    for run in golden.recorded(case)["runs"]:
        prompt, sequence = run["prompt"], run["sequence"]
        (found,) = generated(speculator, [prompt], len(sequence) - len(prompt))
        assert [*prompt, *found] == sequence


@pytest.mark.parametrize("name", BATCHED)
def test_requests_that_come_and_go_do_not_disturb_each_other(name: str, open_: Open) -> None:
    """Three slots for five prompts of unequal lengths: slots fall free and are taken again."""
    speculator = open_(name, shape={"batch_size": 3}).speculator
    expected = [alone(name, prompt, 17 + index) for index, prompt in enumerate(PROMPTS)]
    assert generated(speculator, PROMPTS, 17) == [tokens[:17] for tokens in expected]


@pytest.mark.parametrize("name", BATCHED)
def test_a_free_slot_between_running_ones(name: str, open_: Open, nxdi: Recorder) -> None:
    speculator = open_(name, shape={"batch_size": 3}).speculator
    k = speculator.limits.num_draft_tokens
    found = {slot: [speculator.prefill(slot, PROMPTS[slot]).token] for slot in range(3)}
    speculator.release(1)
    for _ in range(4):
        for result in speculator.step(k):
            found[result.slot] += result.tokens
    assert steps_of(nxdi)[-1]["seq_ids"].tolist() == [0, 2]
    for slot in (0, 2):
        assert found[slot] == alone(name, PROMPTS[slot], 30)[: len(found[slot])]


@pytest.mark.parametrize("name", WAYS)
def test_output_reaches_the_limit_and_ends_there(name: str, open_: Open) -> None:
    opened = open_(name)
    total = opened.spec.shape.max_total_tokens
    for prompt in golden.PROMPTS[:2]:
        (found,) = generated(opened.speculator, [prompt])
        assert len(prompt) + len(found) == total
        assert found == alone(name, prompt, len(found))


@pytest.mark.parametrize("name", WAYS)
def test_an_end_of_sequence_as_first_token_ends_the_output(name: str, open_: Open) -> None:
    speculator, prompt = open_(name).speculator, golden.PROMPTS[0]
    first, *_, third = alone(name, prompt, 3)
    assert generated(speculator, [prompt], 20, stop_token_ids=frozenset([first])) == [[first]]
    (found,) = generated(speculator, [prompt], 20, stop_token_ids=frozenset([third]))
    assert found == alone(name, prompt, 3)


@pytest.mark.parametrize("name", WAYS)
def test_a_prompt_of_one_token(name: str, open_: Open) -> None:
    """NxDI would look at its padding."""
    speculator = open_(name).speculator
    for token in (1, 0, 77):
        assert generated(speculator, [[token]], 12) == [alone(name, [token], 12)]


@pytest.mark.parametrize("name", WAYS)
def test_a_prompt_with_padding_ids(name: str, open_: Open) -> None:
    """NxDI's Medusa loop counts what is not zero, and the adapter tokens that are not padding."""
    prompt = [0, 17, 0, 42, 2, 0]
    assert generated(open_(name).speculator, [prompt], 20) == [alone(name, prompt, 20)]


@pytest.mark.parametrize("name", WAYS)
def test_without_speculation_one_token_comes_at_a_time(name: str, open_: Open) -> None:
    speculator, prompt = open_(name).speculator, golden.PROMPTS[0]
    found = [speculator.prefill(0, prompt).token]
    for _ in range(12):
        (result,) = speculator.step(0)
        assert (len(result.tokens), result.num_drafted, result.num_accepted) == (1, 0, 0)
        found += result.tokens
    for _ in range(3):  # and on again, from whatever the draft has seen
        found += speculator.step(speculator.limits.num_draft_tokens)[0].tokens
    assert found == alone(name, prompt, len(found))


@pytest.mark.parametrize("name", [name for name in BATCHED if name not in ("alone", "sampling")])
def test_requests_with_and_without_speculation_side_by_side(name: str, open_: Open) -> None:
    speculator = open_(name, shape={"batch_size": 2}).speculator
    found = {0: [speculator.prefill(0, PROMPTS[0]).token]}
    found[1] = [speculator.prefill(1, PROMPTS[1], PLAIN).token]
    num_accepted = 0
    for _ in range(8):
        for result in speculator.step(speculator.limits.num_draft_tokens):
            found[result.slot] += result.tokens
            num_accepted += result.num_accepted
            if result.slot == 1:
                assert (len(result.tokens), result.num_drafted) == (1, 0)
    assert num_accepted > 0 or name in ("ngram", "suffix")
    assert {slot: alone(name, PROMPTS[slot], len(found[slot])) for slot in found} == found


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_graph_drafts_what_it_was_compiled_for(name: str, open_: Open) -> None:
    speculator = open_(name).speculator
    assert speculator.limits.always_drafts
    speculator.prefill(0, golden.PROMPTS[0])
    results = [speculator.step(1)[0] for _ in range(6)]
    assert {result.num_drafted for result in results} == {speculator.limits.num_draft_tokens}
    assert max(result.num_accepted for result in results) > 1  # nothing accepted is thrown away


@pytest.mark.parametrize("name", ["ngram", "suffix", "unfused", "medusa"])
def test_others_draft_no_more_than_they_are_asked_for(name: str, open_: Open) -> None:
    speculator, prompt = open_(name).speculator, [5, 6, 7, 5, 6, 7, 5, 6]
    assert speculator.limits.always_drafts is (name == "medusa")  # whose graph runs as a whole
    found = [speculator.prefill(0, prompt).token]
    for k in (1, 2, 3, 1, 2, 3, speculator.limits.num_draft_tokens):
        (result,) = speculator.step(k)
        assert result.num_drafted <= k
        found += result.tokens
    assert found == alone(name, prompt, len(found))


@pytest.mark.parametrize("name", WAYS)
def test_slots_and_prompts_that_are_not_possible(name: str, open_: Open) -> None:
    speculator = open_(name).speculator
    limits = speculator.limits
    for prompt in ([], [1] * (limits.max_total_tokens + 1)):
        with pytest.raises(ValueError, match="prompt of"):
            speculator.prefill(0, prompt)
    for slot in (-1, limits.batch_size):
        with pytest.raises(ValueError, match="not free"):
            speculator.prefill(slot, [1, 2])
    speculator.prefill(0, [1, 2])
    with pytest.raises(ValueError, match="not free"):
        speculator.prefill(0, [1, 2])
    with pytest.raises(ValueError, match="beyond"):
        speculator.step(limits.num_draft_tokens + 1)
    speculator.release(0)
    assert speculator.step(limits.num_draft_tokens) == []


@pytest.mark.parametrize("name", WAYS)
def test_a_step_beyond_the_cache_is_refused(name: str, open_: Open) -> None:
    opened = open_(name)
    speculator, k = opened.speculator, opened.speculator.limits.num_draft_tokens
    speculator.prefill(0, golden.PROMPTS[0])
    with pytest.raises(ValueError, match="the cache has 96"):
        for _ in range(golden.SEQ_LEN + 1):
            speculator.step(k)


def test_a_medusa_step_drafts_the_whole_tree(open_: Open) -> None:
    """The graph has a node more, for position 0; only what is run again displaces nodes."""
    opened = open_("medusa")
    speculator, k = opened.speculator, len(MEDUSA_TREE)
    length = opened.applications.target.neuron_config.medusa_speculation_length
    assert length == k + 2 and speculator.limits.num_draft_tokens == k
    main = [node for node, path in enumerate(MEDUSA_TREE, start=1) if not any(path)]
    for prompt in golden.PROMPTS:
        speculator.prefill(0, prompt)
        behind = 0
        for _ in range(8):
            (result,) = speculator.step(k)
            assert result.num_drafted == k - behind
            accepted = result.accepted_nodes or ()
            right = [a == b for a, b in zip(accepted, main, strict=False)]
            behind = len(accepted) - (right.index(False) if False in right else len(right))
        speculator.release(0)
