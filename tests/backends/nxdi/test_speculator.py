"""The emulation behind the seam: `[reference] emulate = "nxdi"` in a build spec."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nxdi_golden as golden
import pytest
import tiny

from neuron_spec.backends.base import Decoding, Speculator
from neuron_spec.backends.reference.nxdi.opening import buckets_of, sampling_of
from neuron_spec.backends.reference.nxdi.sampler import Sampling
from neuron_spec.backends.reference.nxdi.speculator import NxdiSpeculator
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.checkpoints.prepare import prepare
from neuron_spec.compiler import compile_model
from neuron_spec.engine import Session, load
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.equivalence.identity import compare_greedy
from neuron_spec.errors import RequestError, SpecError
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.spec import BuildSpec, load_spec
from neuron_spec.trees import Tree

K = 4
MEDUSA_TREE = golden.recorded("medusa_as_is")["medusa_tree"]
EVEN_TREE = [[0], [1], [0, 0], [0, 1], [1, 0]]  # `even6` of the recorded trees
UNFUSED = {"instance": "trn1.2xlarge", "fused": False}
# name -> (target, draft, [draft], other sections)
SPECS: dict[str, tuple[str, str | None, dict[str, Any], dict[str, Any]]] = {
    "none": ("target", None, {"method": "none"}, {}),
    "model": ("target", "draft", {"method": "model"}, {}),
    "unfused": ("target", "draft", {"method": "model"}, {"neuron": UNFUSED, "batch_size": 1}),
    "eagle": ("target", "eagle1", {"method": "eagle"}, {}),
    "eagle3": ("target3", "eagle3", {"method": "eagle3"}, {}),
    "tree": ("target", "eagle1", {"method": "eagle", "tree": EVEN_TREE}, {}),
    "medusa": ("target", "medusa", {"method": "medusa", "num_draft_tokens": 3}, {"batch_size": 1}),
}


def spec_of(name: str, *, emulate: bool = True, rule: str = "greedy") -> BuildSpec:
    _, draft, section, others = SPECS[name]
    size = others.get("batch_size", 3)
    data = {
        "target": {"model": "x"},
        "draft": {**section, **({"model": "y"} if draft else {})},
        "verification": {"rule": rule},
        "shape": {"max_prompt_tokens": 32, "max_total_tokens": 91, "batch_size": size},
        "reference": {"emulate": "nxdi"} if emulate else {},
        **({"neuron": others["neuron"]} if "neuron" in others else {}),
    }
    if section.get("tree") is None and draft:
        data["draft"].setdefault("num_draft_tokens", K)
    return BuildSpec.model_validate(data)


@pytest.fixture(scope="module")
def medusa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("medusa")
    golden.medusa_heads(folder)
    return folder / "prepared"


def opened(name: str, medusa: Path, **options: Any) -> Speculator:
    target, draft, section, _ = SPECS[name]
    directory = medusa if section["method"] == "medusa" else golden.GOLDEN / (draft or "")
    draft_directory = directory if draft else None
    return open_speculator(spec_of(name, **options), golden.GOLDEN / target, draft_directory)


def texts(speculator: Speculator, num_new: int = 30, k: int | None = None) -> list[list[int]]:
    """Answers to five prompts, through the engine's loop."""
    length = speculator.limits.num_draft_tokens if k is None else k
    loop = DecodeLoop(speculator, lambda ids: "", draft_length=DraftLength.constant(length))
    prompts = [*golden.PROMPTS, [7, 8], [100] * 12]
    ids = [loop.submit(Request(tuple(p), max_new_tokens=num_new)) for p in prompts]
    answers: dict[int, list[int]] = {request: [] for request in ids}
    for event in loop.run():
        if hasattr(event, "token_id"):
            answers[event.request_id].append(event.token_id)
    return [answers[request] for request in ids]


@pytest.mark.parametrize("name", SPECS)
def test_greedy_text_is_the_targets_own(name: str, medusa: Path) -> None:
    emulation = opened(name, medusa)
    assert isinstance(emulation, NxdiSpeculator)
    plain = texts(opened(name, medusa, emulate=False), k=0)
    assert texts(emulation) == plain
    assert texts(emulation, k=0) == plain


@pytest.mark.parametrize("name", ["model", "eagle", "eagle3"])
def test_counts_are_the_recorded_ones(name: str, medusa: Path) -> None:
    case = {"model": "fused_draft", "eagle": "eagle1"}.get(name, name)
    data = golden.recorded(case)["runs"][0]
    speculator = opened(name, medusa)
    assert speculator.prefill(1, data["prompt"]).token == data["context_encoding"]["out_tokens"][0]
    for step in data["steps"]:
        result = speculator.step(K)[0]  # rows 0 and 2 are free
        assert (result.slot, result.num_drafted) == (1, K)
        assert result.num_accepted == step["num_draft_accepted"]
        assert list(result.tokens) == step["emitted"]


@pytest.fixture
def medusa_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree, whose accepted entries have to be moved, in place of the chain."""
    target, draft, _, others = SPECS["medusa"]
    section = {"method": "medusa", "tree": MEDUSA_TREE}
    monkeypatch.setitem(SPECS, "medusa", (target, draft, section, others))


def test_a_medusa_tree_departs_from_the_target(medusa: Path, medusa_tree: None) -> None:
    """And the normal mode, and the emulated target alone, do not."""
    plain = texts(opened("medusa", medusa, emulate=False), k=0)
    assert texts(opened("medusa", medusa, emulate=False)) == plain
    assert texts(opened("medusa", medusa)) != plain
    assert texts(opened("medusa", medusa), k=0) == plain


def test_medusa_commits_the_recorded_steps(medusa: Path, medusa_tree: None) -> None:
    data = golden.recorded("medusa_as_is")["runs"][0]
    speculator = opened("medusa", medusa)
    last = speculator.prefill(0, data["prompt"]).token
    for step in data["steps"]:
        result = speculator.step(len(MEDUSA_TREE))[0]
        assert (result.num_drafted, result.num_positions) == (len(MEDUSA_TREE), 3)
        path = step["candidates"][step["best_candidate"]]
        assert [last, *result.tokens[:-1]] == path[: step["accept_length"] + 1]
        assert result.num_accepted == step["accept_length"]
        last = result.tokens[-1]


def test_a_tree_commits_the_recorded_steps(medusa: Path) -> None:
    data = golden.recorded("eagle1_token_tree")["trees"]["even6"]["runs"][0]
    speculator = opened("tree", medusa)
    speculator.prefill(0, data["prompt"])
    for step in data["steps"]:
        result = speculator.step(len(EVEN_TREE))[0]
        assert list(result.tokens) == step["emitted"]
        assert (result.num_drafted, result.num_positions) == (len(EVEN_TREE), 2)


def test_unfused_commits_the_recorded_steps(medusa: Path) -> None:
    data = golden.recorded("vanilla_unfused")["runs"][3]  # num_assistant_tokens 5 = k + 1
    assert data["num_assistant_tokens"] == K + 1
    speculator = opened("unfused", medusa)
    new = [speculator.prefill(0, data["prompt"]).token]
    while len(new) < len(data["sequence"]) - len(data["prompt"]):
        result = speculator.step(K)[0]
        assert result.num_drafted == K
        new += result.tokens
    assert [*data["prompt"], *new] == data["sequence"]


@pytest.fixture
def short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden vocabulary has 128 tokens, fewer than NxDI's default list."""
    neuron = {"instance": "trn1.2xlarge", "sampling": {"global_topk": 64}}
    for name, (target, draft, section, others) in list(SPECS.items()):
        entry = (target, draft, section, {**others, "neuron": neuron})
        monkeypatch.setitem(SPECS, name, entry)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "none"])
def test_sampling_repeats_with_its_seed(name: str, medusa: Path, short_list: None) -> None:
    speculator = opened(name, medusa, rule="rejection")

    def sampled(seed: int, k: int) -> list[int]:
        params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=seed)
        tokens = [speculator.prefill(0, golden.PROMPTS[0], Decoding(params)).token]
        while len(tokens) < 20:
            tokens += speculator.step(k)[0].tokens
        speculator.release(0)
        return tokens[:20]

    k = speculator.limits.num_draft_tokens
    assert sampled(1, k) == sampled(1, k) != sampled(2, k)
    assert sampled(1, 0) == sampled(1, 0) != sampled(2, 0)


def test_temperature_0_lets_padding_tokens_out(medusa: Path, short_list: None) -> None:
    """Read in NxDI, not recorded: probabilities are not numbers, so that no draft passes the test;
    the drawn token is the likeliest, and where it equals the draft, the padding after it is let out
    as a token. In the normal mode a greedy request is greedy."""
    alone = golden.target_alone(tuple(golden.PROMPTS[0]), 4)
    emulation, normal = (
        opened("eagle", medusa, rule="rejection", emulate=e) for e in (True, False)
    )
    tokens = [emulation.prefill(0, golden.PROMPTS[0]).token, *emulation.step(K)[0].tokens]
    assert tokens == [*alone[:2], 0]
    tokens = [normal.prefill(0, golden.PROMPTS[0]).token, *normal.step(K)[0].tokens]
    assert tokens[:4] == alone


def test_what_the_device_sampler_is_told() -> None:
    assert sampling_of(spec_of("eagle")) == Sampling()
    expected = Sampling(do_sample=True, dynamic=True, global_topk=256)
    assert sampling_of(spec_of("eagle", rule="rejection")) == expected


def test_what_the_device_sampler_is_told_by_the_spec(short_list: None) -> None:
    assert sampling_of(spec_of("eagle", rule="rejection")).global_topk == 64


def test_static_lengths_have_room_behind_the_limit() -> None:
    lengths = buckets_of(spec_of("eagle"))
    assert (lengths.speculation_length, lengths.max_context_length, lengths.seq_len) == (5, 32, 96)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sampling": SamplingParams(temperature=1.0, min_p=0.1)}, "min_p"),
        ({"sampling": SamplingParams(repetition_penalty=1.1)}, "repetition_penalty"),
        ({"sampling": SamplingParams(logit_bias={3: 1.0})}, "logit_bias"),
        ({"num_logprobs": 0}, "logprobs"),
    ],
)
def test_options_that_nxdi_lacks_are_refused(
    options: dict[str, Any], field: str, medusa: Path
) -> None:
    speculator = opened("eagle", medusa)
    with pytest.raises(RequestError) as caught:
        speculator.prefill(0, [1, 2], Decoding(**options))
    assert caught.value.field == field
    speculator.prefill(0, [1, 2])  # the slot is still free


def test_more_tokens_than_the_device_lists_are_refused(medusa: Path, short_list: None) -> None:
    speculator = opened("eagle", medusa, rule="rejection")
    with pytest.raises(RequestError, match="-1 … 64") as caught:
        speculator.prefill(0, [1, 2], Decoding(SamplingParams(temperature=1.0, top_k=65)))
    assert caught.value.field == "top_k"


def test_only_the_compiled_k_or_none(medusa: Path) -> None:
    speculator = opened("eagle", medusa)
    assert speculator.step(K) == []
    speculator.prefill(0, [1, 2])
    with pytest.raises(ValueError, match="k = 3"):
        speculator.step(3)
    with pytest.raises(ValueError, match="slot 0"):
        speculator.prefill(0, [1, 2])
    for count in (0, 92):
        with pytest.raises(ValueError, match=f"prompt of {count} tokens"):
            speculator.prefill(1, [5] * count)


def test_verify_shows_a_wrong_tree(medusa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` meets the defect of trees with leaves of unequal depth as one, and explains it with
    the target's logits after a prefix that is longer than any prompt."""
    skew = golden.recorded("eagle1_token_tree")["trees"]["skew"]
    paths = [list(path) for path in Tree.from_children(skew["token_tree_config"]).paths]
    entry = ("target", "eagle1", {"method": "eagle", "tree": paths}, {})
    monkeypatch.setitem(SPECS, "skew", entry)
    prompts = [tuple(run["prompt"]) for run in skew["runs"]]
    tokenizer: Any = SimpleNamespace(
        encode=tuple, decode=lambda ids: "", stop_token_ids=frozenset({2})
    )
    found = {}
    for emulate in (True, False):
        session = Session(opened("skew", medusa, emulate=emulate), tokenizer)
        compared = compare_greedy(session, prompts, max_new_tokens=60, near_tie_margin=1e-3)
        found[emulate] = [entry.divergence.kind if entry.divergence else None for entry in compared]
    assert found[True][2] == "defect" and found[False] == [None] * 3


REFUSED = {
    "[draft]\nmethod = 'ngram'": "draft.method 'ngram'",
    "[draft]\nmethod = 'eagle'\nmodel = 'e'\n[verification]\nrule = 'sample-match'": "rule",
    "[draft]\nmethod = 'model'\nmodel = 'e'\n[verification]\nrule = 'rejection'": "sampling with",
    "[draft]\nmethod = 'eagle3'\nmodel = 'e'\ntree = [[0], [1]]": "a tree with draft.method",
    "[draft]\nmethod = 'eagle'\nmodel = 'e'\ntree = [[0], [1]]\n[verification]\n"
    "rule = 'rejection'": "sampling with a token tree",
    "[draft]\nmethod = 'eagle'\nmodel = 'e'\ntree = [[0], [1]]\nnum_draft_tokens = 1": "cuts",
    "[draft]\nmethod = 'eagle'\nmodel = 'e'\ntree = [[0], [2]]": "skips one",
    "[draft]\nmethod = 'eagle'\nmodel = 'e'\ndynamic_tree = {}": "dynamic_tree",
    "[draft]\nmethod = 'eagle'\nmodel = 'e'\nby_load = [[1, 2]]": "by_load",
    "[draft]\nmethod = 'medusa'\nmodel = 'e'\n[shape]\nbatch_size = 2": "batch_size",
    "[draft]\nmethod = 'eagle'\nmodel = 'e'\n[shape]\nmax_prompt_tokens = 5": "takes for a step",
}


@pytest.mark.parametrize("text", REFUSED)
def test_specs_that_nxdi_cannot_do_are_refused(text: str, tmp_path: Path) -> None:
    head = "[target]\nmodel = 't'\n"
    path = tmp_path / "build.toml"
    path.write_text(f"{head}{text}\n")
    assert load_spec(path).reference.emulate is None
    path.write_text(f"{head}[reference]\nemulate = 'nxdi'\n{text}\n")
    with pytest.raises(SpecError, match=REFUSED[text]):
        load_spec(path)


def test_unknown_engine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "build.toml"
    path.write_text("[target]\nmodel = 't'\n[reference]\nemulate = 'vllm'\n")
    with pytest.raises(SpecError, match="emulate"):
        load_spec(path)


def test_from_spec_to_text(
    spec_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole walk: the emulated artifact answers as the normal one, and says what it is."""
    monkeypatch.chdir(tmp_path)
    texts = []
    for name, section in (("plain", {}), ("emulated", {"reference": {"emulate": "nxdi"}})):
        path = tiny.write_spec(tmp_path / f"{name}.toml", spec_path.read_text(), **section)
        spec = load_spec(path)
        artifact = compile_model(spec, prepare(spec), tmp_path / name)
        session = load(tmp_path / name)
        assert artifact.spec.reference.emulate == section.get("reference", {}).get("emulate")
        texts.append(session.generate([5, 6, 7], max_new_tokens=12, ignore_eos=True).token_ids)
    assert texts[0] == texts[1] and isinstance(session.speculator, NxdiSpeculator)
