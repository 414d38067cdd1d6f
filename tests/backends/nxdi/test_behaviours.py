"""Where NxDI departs from the textbook: the emulation departs, and the normal mode does not.

One test a behaviour, numbered as in the notes that came with the recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nxdi_golden as golden
import pytest
import torch
from torch import Tensor

from neuron_spec.backends.base import Decoding
from neuron_spec.backends.reference.nxdi import (
    Chance,
    FusedEagle,
    Medusa,
    Unfused,
    acceptance,
    generate,
    generate_medusa,
    generate_unfused,
    sampler,
)
from neuron_spec.backends.reference.nxdi.graph import GREEDY_PARAMS, Inputs
from neuron_spec.backends.reference.nxdi.loop import until_eos
from neuron_spec.backends.reference.nxdi.sampler import Sampling
from neuron_spec.backends.reference.nxdi.token_tree import TokenTree
from neuron_spec.drafters import DraftShape
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.rules import CHAIN_RULES, Uniforms
from neuron_spec.rules.acceptance import residual
from neuron_spec.sampling import probabilities
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.trees import Tree

PROMPT, LONGER, SHORTER = golden.PROMPTS
K = 4


def eagle(num_slots: int = 1) -> Any:
    """The normal mode with the recorded EAGLE head."""
    head = golden.load_draft("eagle1", "eagle", num_slots)
    return golden.textbook("target", head.drafter(), K, num_slots)


def with_draft(num_slots: int = 1) -> Any:
    """The normal mode with the recorded draft model."""
    draft = golden.load_draft("draft", "model", num_slots)
    return golden.textbook("target", draft.drafter(), K, num_slots)


def engine_tokens(
    speculator: Any, prompt: Sequence[int], num_new: int, stop: Sequence[int] = ()
) -> list[int]:
    """What the engine makes of the normal mode."""
    loop = DecodeLoop(speculator, lambda ids: "", draft_length=DraftLength.constant(K))
    loop.submit(Request(tuple(prompt), max_new_tokens=num_new, stop_token_ids=frozenset(stop)))
    return [event.token_id for event in loop.run() if hasattr(event, "token_id")]


@pytest.mark.parametrize("prompt", golden.PROMPTS, ids=len)
def test_2_a_run_ends_early_or_late(prompt: list[int]) -> None:
    """NxDI's counter leaves out the first token, and a run ends once no more than
    speculation_length tokens are left. The engine's output has the length that was asked for."""
    alone = golden.target_alone(tuple(prompt), 60)
    num_new = 40 - len(prompt)
    found = generate(golden.fused("eagle1"), prompt, max_length=40).sequence
    assert (
        36 <= len(found) <= 40 and list(found[len(prompt) :]) == alone[: len(found) - len(prompt)]
    )
    assert engine_tokens(eagle(), prompt, num_new) == alone[:num_new]


def test_2_one_step_always_runs() -> None:
    """A prompt of 5 with max_length 6 comes out with 11 tokens: recorded."""
    found = generate(golden.fused("eagle1"), PROMPT, max_length=6)
    assert len(found.sequence) == 11 and len(found.steps) == 1
    assert engine_tokens(eagle(), PROMPT, 1) == [found.begun.token]


def test_2_the_unfused_loop_goes_on_with_exactly_as_many_left() -> None:
    """Fused ends where max_length - counter <= speculation_length, unfused where it is smaller."""
    draft = golden.load_draft("draft", "model")
    unfused = Unfused(golden.load_target(), draft, golden.buckets(), num_assistant_tokens=5)
    first = generate_unfused(unfused, PROMPT, max_length=6).steps[0]
    max_length = len(PROMPT) + len(first.emitted) + golden.SPECULATION_LENGTH
    assert len(generate_unfused(unfused, PROMPT, max_length=max_length).steps) == 2
    assert len(generate_unfused(unfused, PROMPT, max_length=max_length - 1).steps) == 1
    fused = generate(golden.fused("fused_draft"), PROMPT, max_length=6)
    max_length = len(PROMPT) + len(fused.emitted[0]) + golden.SPECULATION_LENGTH
    assert len(generate(golden.fused("fused_draft"), PROMPT, max_length=max_length).steps) == 1


@pytest.mark.parametrize("case", ["eagle1", "fused_draft"])
def test_3_eos_as_the_first_token_is_not_noticed(case: str) -> None:
    """The engine stops after it."""
    first = golden.target_alone(tuple(PROMPT), 1)[0]
    found = generate(golden.fused(case), PROMPT, max_length=40, eos_token_ids=[first])
    free = generate(golden.fused(case), PROMPT, max_length=40)
    assert found.begun.token == first and first not in free.sequence[len(PROMPT) + 1 :]
    assert found.sequence == free.sequence and len(found.steps) > 1
    speculator = eagle() if case == "eagle1" else with_draft()
    assert engine_tokens(speculator, PROMPT, 35, stop=[first]) == [first]


def test_3_eos_inside_a_step_cuts_it() -> None:
    """In both, and the EOS itself stays."""
    alone = golden.target_alone(tuple(PROMPT), 40)
    eos = alone[3]
    found = generate(golden.fused("eagle1"), PROMPT, max_length=40, eos_token_ids=[eos])
    assert list(found.sequence[len(PROMPT) :]) == alone[:4]
    assert engine_tokens(eagle(), PROMPT, 35, stop=[eos]) == alone[:4]
    assert until_eos([3, 2, 5, 2], [2, 9]) == [3, 2]


def test_7_near_the_end_of_the_bucket_eagle_repeats_a_position() -> None:
    """Fed its own outputs past the loop's end, NxDI's EAGLE is right up to position 91 = 96 - 5.
    From 92 on it works at 91 again. The normal mode has k + 1 places of room behind its limit."""
    graph = golden.fused("eagle1")
    assert isinstance(graph, FusedEagle)
    alone = golden.target_alone(tuple(PROMPT), golden.SEQ_LEN)
    token, position = graph.encode(0, PROMPT, GREEDY_PARAMS).token, len(PROMPT)
    while position <= 91:
        accepted = graph.step(Inputs.of([token], [position])).accepted
        kept = accepted.tokens[0][accepted.tokens[0] >= 0].tolist()
        start = position - len(PROMPT) + 1
        assert kept == alone[start : start + len(kept)]
        token, position = int(accepted.next_tokens), int(accepted.next_positions)
    step = graph.step(Inputs.of([token], [position]))
    assert int(step.accepted.next_positions) <= 91 + golden.SPECULATION_LENGTH
    assert int(step.target_tokens[0, 0]) != alone[position - len(PROMPT) + 1]
    assert engine_tokens(eagle(), PROMPT, 96 - len(PROMPT)) == alone[: 96 - len(PROMPT)]


def test_7_plain_fused_runs_out_of_the_bucket() -> None:
    graph = golden.fused("fused_draft")
    graph.encode(0, PROMPT, GREEDY_PARAMS)
    with pytest.raises(IndexError, match="bucket of 96"):
        graph.step(Inputs.of([7], [92]))
    alone = golden.target_alone(tuple(PROMPT), golden.SEQ_LEN)
    assert engine_tokens(with_draft(), PROMPT, 96 - len(PROMPT)) == alone[: 96 - len(PROMPT)]


def test_10_positions_share_one_random_number() -> None:
    """Two positions with the same distribution get the same token; the textbook draws apart."""
    ids = torch.arange(4).expand(1, 3, 4)
    probs = torch.full((1, 3, 4), 0.25)
    drafts = torch.tensor([[9, 9]])  # not on the list: nothing is taken off
    adjusted = acceptance.adjusted_probs(drafts, ids, probs)
    asked: list[tuple[int, ...]] = []

    def draw(shape: tuple[int, ...]) -> Tensor:
        asked.append(shape)
        return torch.full(shape, 0.6)

    uniform = sampler.selector(Sampling(True), draw, (1, 1, 1))
    assert sampler.draw_token(ids, adjusted, uniform).tolist() == [[2, 2, 2]]
    assert asked == [(1, 1, 1)]
    tree = Tree.chain(2)
    one = Uniforms.at_positions(torch.tensor([1]), torch.tensor([5]), tree).sample
    assert one.unique().numel() == one.numel() == 3


def test_10_a_resampled_token_equal_to_its_draft_lets_a_padding_token_out() -> None:
    """NxDI counts by comparing tokens again. The textbook counts what was accepted."""
    drafts, ids = torch.tensor([[3, 7]]), torch.tensor([[[3, 5], [7, 5], [6, 5]]])
    probs = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    adjusted = acceptance.adjusted_probs(drafts, ids, probs)
    assert adjusted[0, 0].tolist() == [1.0, 1.0]  # nothing is left: uniform over the list
    resampled = sampler.draw_token(ids, adjusted, torch.full((1, 1, 1), 0.1))
    tokens = acceptance.selected(drafts, resampled, torch.tensor([0]), 0)
    found = acceptance.postprocessed(drafts, tokens, torch.tensor([20]))
    assert found.tokens.tolist() == [[3, 0, -1]]
    target = torch.zeros(1, 3, 8)
    target[0, range(3), [3, 7, 6]] = 1
    assert residual(target[:, 0], target[:, 0]).tolist() == target[:, 0].tolist()
    uniforms = Uniforms(torch.zeros(1, 2), torch.full((1, 3), 0.1))
    verdict = CHAIN_RULES["rejection"](drafts, None, target, uniforms)
    assert (verdict.num_accepted.tolist(), verdict.next_tokens.tolist()) == ([2], [6])


def test_10_deterministic_leaves_the_accept_test_random() -> None:
    graph = golden.fused(
        "eagle1", chance=Chance(Sampling(True, deterministic=True, global_topk=64), torch.zeros)
    )
    params = torch.tensor([20.0, 1.0, 1.0])
    token = graph.encode(0, PROMPT, params).token
    shapes: list[tuple[int, ...]] = []

    def draw(shape: tuple[int, ...]) -> Tensor:
        shapes.append(shape)
        return torch.zeros(shape)

    assert isinstance(graph, FusedEagle)
    graph.chance = Chance(Sampling(True, deterministic=True, global_topk=64), draw)
    graph.step(Inputs(torch.tensor([token]), torch.tensor([5]), params[None]))
    assert shapes == [(1, K)]


LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def test_11_top_p_drops_the_token_that_crosses() -> None:
    """Hugging Face, vLLM and the normal mode keep it."""
    _, found = sampler.candidates(
        LOGITS[None], torch.tensor([[4.0, 0.7, 1.0]]), Sampling(True, global_topk=4)
    )
    assert (found[0] > 0).tolist() == [True, False, False, False]
    ours = probabilities(LOGITS, SamplingParams(temperature=1.0, top_p=0.7))
    assert (ours > 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize("top_k", [0, -1])
def test_11_top_k_0_is_uniform_over_the_list(top_k: int) -> None:
    """Elsewhere it means all tokens, with their own probabilities."""
    _, found = sampler.candidates(
        LOGITS[None], torch.tensor([[float(top_k), 1.0, 1.0]]), Sampling(True, global_topk=4)
    )
    assert found[0].tolist() == [0.25] * 4
    ours = probabilities(LOGITS, SamplingParams(temperature=1.0, top_k=top_k))
    golden.assert_close(ours, LOGITS.exp())


def test_11_temperature_0_leaves_no_numbers() -> None:
    """top_k and top_p become 1, the division stays; its token is still the likeliest. Here greedy
    is greedy."""
    params = sampler.validated(torch.tensor([[5.0, 0.5, 0.0]]), 256)
    ids, found = sampler.candidates(LOGITS[None] + 3, params, Sampling(True, global_topk=4))
    assert found.isnan().all()
    assert sampler.draw_token(ids, found, torch.tensor([[0.99]])).tolist() == [0]
    ours = probabilities(LOGITS, SamplingParams(temperature=0.0))
    assert ours.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_11_dynamic_top_p_1_can_drop_a_token_by_rounding() -> None:
    """A sum that is rounded above 1 crosses 1. The normal mode does not look at top_p 1."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 16, generator=generator)
    params = torch.tensor([16.0, 1.0, 1.0]).expand(400, -1)
    _, fixed = sampler.candidates(logits, params, Sampling(True, global_topk=16))
    _, dynamic = sampler.candidates(logits, params, Sampling(True, True, global_topk=16))
    assert (fixed > 0).all() and (dynamic == 0).any()
    assert (probabilities(logits, SamplingParams(temperature=1.0)) > 0).all()


SKEW = golden.recorded("eagle1_token_tree")["trees"]["skew"]


def test_12_a_tree_of_unequal_depths_emits_wrong_tokens() -> None:
    """Short paths are filled up with unrelated nodes, which the acceptance test takes for their
    continuation. The normal mode follows parents."""
    tree = Tree.from_children(SKEW["token_tree_config"])
    data = SKEW["runs"][2]
    assert not data["equals_target_alone_prefix"]
    found = generate(golden.eagle_tree(tree), data["prompt"], max_length=48)
    assert list(found.sequence) == data["sequence"]
    alone = golden.target_alone(tuple(data["prompt"]), 44)
    assert list(found.sequence[4:]) != alone[: len(found.sequence) - 4]
    leaf = TokenTree(tree).paths[4]  # root and node 3, which has no children
    assert leaf == (0, 3, 1, 2, 4) and tree.children[3] == ()
    head = golden.load_draft("eagle1", "eagle")
    drafter = head.drafter(DraftShape(tree=tree))
    speculator = golden.textbook("target", drafter, tree.num_draft_tokens)
    tokens = [speculator.prefill(0, data["prompt"]).token]
    num_accepted = 0
    while len(tokens) < 44:
        result = speculator.step(tree.num_draft_tokens)[0]
        tokens += result.tokens
        num_accepted += result.num_accepted
    assert tokens[:44] == alone and num_accepted > 0


@pytest.fixture(scope="module")
def medusa_heads(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return golden.medusa_heads(tmp_path_factory.mktemp("heads"))


def test_14_medusa_forgets_where_it_moved_accepted_entries(medusa_heads: Any) -> None:
    """Later steps see the tree's first nodes instead. The normal mode keeps the accepted branch."""
    tree = Tree.from_paths(golden.recorded("medusa_as_is")["medusa_tree"])

    def run(keeps_accepted: bool) -> list[int]:
        medusa = Medusa(
            golden.load_target(),
            medusa_heads,
            golden.buckets(tree.num_nodes),
            tree=tree,
            keeps_accepted=keeps_accepted,
        )
        return list(generate_medusa(medusa, PROMPT, max_new_tokens=40).sequence[len(PROMPT) :])

    alone = golden.target_alone(tuple(PROMPT), 60)
    as_is, mended = run(False), run(True)
    assert as_is != alone[: len(as_is)] and mended == alone[: len(mended)]
    drafter = medusa_heads.drafter(DraftShape(tree=tree))
    speculator = golden.textbook("target", drafter, tree.num_draft_tokens)
    tokens = [speculator.prefill(0, PROMPT).token]
    num_steps = 0
    while len(tokens) < 42:
        tokens += speculator.step(tree.num_draft_tokens)[0].tokens
        num_steps += 1
    assert tokens[:42] == alone[:42] and num_steps < 15


def test_14_the_normal_mode_takes_the_recorded_paths(medusa_heads: Any) -> None:
    """The mended recording and the normal mode accept the same tokens, step by step."""
    tree = Tree.from_paths(golden.recorded("medusa_kv_persisted")["medusa_tree"])
    for data in golden.recorded("medusa_kv_persisted")["runs"]:
        drafter = medusa_heads.drafter(DraftShape(tree=tree))
        speculator = golden.textbook("target", drafter, tree.num_draft_tokens)
        last = speculator.prefill(0, data["prompt"]).token
        for step in data["steps"]:
            path = step["candidates"][step["best_candidate"]][: step["accept_length"] + 1]
            tokens = speculator.step(tree.num_draft_tokens)[0].tokens
            assert [last, *tokens[:-1]] == path
            last = tokens[-1]


def test_15_the_first_unfused_step_compares_one_place_late() -> None:
    """The draft's first proposal is for the place of the token the target has given already. In
    the normal mode it continues that token."""
    draft = golden.load_draft("draft", "model")
    unfused = Unfused(golden.load_target(), draft, golden.buckets(), num_assistant_tokens=4)
    run = generate_unfused(unfused, PROMPT, max_length=48)
    first, second = run.steps[:2]
    assert first.calls[0].token is None  # the prompt
    assert first.inputs[:2] == (66, 66) and first.num_accepted == 0
    assert second.num_accepted == 3
    alone = golden.target_alone(tuple(PROMPT), 60)
    assert list(run.sequence[len(PROMPT) :]) == alone[: len(run.sequence) - len(PROMPT)]
    recorder = golden.load_draft("draft", "model")
    seen: list[int] = []

    def forward(tokens: Tensor, *rest: Any) -> Tensor:
        seen.append(int(tokens[0, -1]))
        return recorder.forward(tokens, *rest)

    from neuron_spec.drafters import ChainDrafter

    speculator = golden.textbook("target", ChainDrafter(forward, recorder.logits), 3)
    assert speculator.prefill(0, PROMPT).token == 66
    seen.clear()
    speculator.step(3)
    assert seen[0] == 66 and first.calls[1].token == 66 and first.calls[1].output == 59
    assert seen[1] == 59  # the first proposal of the normal mode is the draft's token after 66


def test_16_rows_of_a_plain_fused_batch_disturb_each_other() -> None:
    """Every row's draft sees the places that other rows are at, with whatever is stored there:
    proposals change, the output does not. The normal mode drafts the same in any batch."""
    data = golden.recorded("fused_draft_batch2")
    assert not all(map(all, data["draft_proposals_equal_to_batch1_at_same_position"]))
    prompts = data["prompts"]
    both, alone = golden.fused("fused_draft", num_slots=2), golden.fused("fused_draft")
    tokens = [both.encode(slot, prompt, GREEDY_PARAMS).token for slot, prompt in enumerate(prompts)]
    alone.encode(0, prompts[0], GREEDY_PARAMS)
    together = both.step(Inputs.of(tokens, [len(prompt) for prompt in prompts]))
    single = alone.step(Inputs.of(tokens[:1], [len(prompts[0])]))
    assert together.drafts[0].tolist() != single.drafts[0].tolist()
    assert together.accepted.tokens[0].tolist() == single.accepted.tokens[0].tolist()
    for row, prompt in enumerate(prompts):
        assert (
            accepted_by_step(with_draft(2), prompts)[row]
            == accepted_by_step(with_draft(1), [prompt])[0]
        )


def accepted_by_step(speculator: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Accepted drafts of ten steps, row by row."""
    for slot, prompt in enumerate(prompts):
        speculator.prefill(slot, prompt, Decoding())
    steps = [speculator.step(K) for _ in range(10)]
    return [[results[row].num_accepted for results in steps] for row in range(len(prompts))]


def test_16_eagle_rows_do_not() -> None:
    data = golden.recorded("eagle1_batch2")
    assert all(map(all, data["draft_proposals_equal_to_batch1_at_same_position"]))
    for row, prompt in enumerate(data["prompts"]):
        graph = golden.fused("eagle1")
        graph.encode(0, prompt, GREEDY_PARAMS)
        for expected, single in zip(data["steps"], data["steps_batch1"][row], strict=True):
            step = graph.step(Inputs.of(single["input_token"], single["position"]))
            assert step.drafts.tolist() == single["draft_tokens"]
            assert expected["draft_tokens"][row] == single["draft_tokens"][0]


def test_18_a_context_bucket_as_long_as_a_step_is_refused() -> None:
    """NxDI takes it for a speculation step, and fails. The normal mode has no such length."""
    with pytest.raises(RuntimeError, match="context bucket of 5"):
        golden.fused("eagle1", golden.buckets(context=5))
    found = generate(golden.fused("eagle1"), PROMPT, max_length=40)  # a prompt of 5 is fine
    alone = golden.target_alone(tuple(PROMPT), 40)
    assert list(found.sequence[5:]) == alone[: len(found.sequence) - 5]


def test_a_prompt_of_one_token_is_answered_from_its_padding() -> None:
    """Read in NxDI, not recorded: padding has position 1, and the last token is looked for at the
    largest position. The normal mode answers the token."""
    alone = golden.target_alone((66,), 1)
    begun = golden.fused("fused_draft").encode(0, [66], GREEDY_PARAMS)
    assert begun.token != alone[0]
    assert begun.token == golden.target_alone((66, 0), 1)[0]
