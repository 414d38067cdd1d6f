"""Tokenizers without transformers: the same as with it, wherever they are used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_tokenizers import PLAIN, change
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from neuron_spec.checkpoints.demo_target import ensure
from neuron_spec.engine import tokenizer_settings
from neuron_spec.engine.plain_tokenizer import PlainTokenizer, open_plain
from neuron_spec.engine.tokenizer import Codec, ModelTokenizer
from neuron_spec.engine.transformers_tokenizer import TransformersTokenizer
from neuron_spec.errors import CheckpointError

CONFIG, JSON = "tokenizer_config.json", "tokenizer.json"
Pair = tuple[PlainTokenizer, TransformersTokenizer]
TEXTS = ["", " a  b\n", "né 日本 🙂", "<|im_start|>x<|im_end|> sea <tool>", "the sea\u2581\x00 Å"]


@pytest.fixture(scope="module", params=[*PLAIN, "demo"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if request.param == "demo":
        directory = ensure("demo:smollm2-135m-instruct")
    else:
        directory = PLAIN[request.param](tmp_path_factory.mktemp("tokenizer"))
    plain = open_plain(directory)
    assert plain is not None
    return plain, TransformersTokenizer(directory)


def names(codec: Codec) -> Iterator[str]:
    yield from codec.added.values()
    yield from filter(None, codec.pieces(range(codec.num_tokens)[-40:]))


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_text_and_ids_are_those_of_transformers(pair: Pair, data: st.DataObject) -> None:
    plain, slow = pair
    part = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    text = "".join(data.draw(st.lists(part | st.sampled_from(sorted(names(plain))), max_size=6)))
    assert list(plain.encode(text)) == list(slow.encode(text))
    ids = data.draw(st.lists(st.integers(0, plain.num_tokens + 5), max_size=12))
    assert plain.decode(ids) == slow.decode(ids)
    assert plain.decode(list(plain.encode(text))) == slow.decode(list(slow.encode(text)))
    if plain.has_chat_template:
        messages = [{"role": "user", "content": text}]
        assert list(plain.encode_chat(messages)) == list(slow.encode_chat(messages))


def assert_same_vocabulary(plain: Codec, slow: Codec) -> None:
    for name in ("num_tokens", "special_ids", "eos_token_id", "is_byte_level", "has_chat_template"):
        assert getattr(plain, name) == getattr(slow, name), name
    assert dict(plain.added) == dict(slow.added)
    every = range(plain.num_tokens + 10)
    assert plain.pieces(every) == slow.pieces(every)


def test_vocabulary_and_special_tokens_are_those_of_transformers(pair: Pair) -> None:
    assert_same_vocabulary(*pair)


def test_several_threads_may_use_it_at_once(pair: Pair) -> None:
    plain, _ = pair
    texts = [f"number {number} é→" * 300 for number in range(40)]
    wanted = [list(plain.encode(text)) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            assert list(map(list, threads.map(plain.encode, texts))) == wanted
            assert list(threads.map(plain.decode, wanted)) == [plain.decode(ids) for ids in wanted]


def json_changes(directory: Path, **changes: Any) -> None:
    change(directory / JSON, **changes)


def add(directory: Path, *tokens: AddedToken) -> None:
    pipeline = Tokenizer.from_file(str(directory / JSON))
    pipeline.add_tokens(list(tokens))
    pipeline.save(str(directory / JSON))


def add_first_token(directory: Path) -> None:
    first = {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
    sequence = [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    processor = {
        "type": "TemplateProcessing",
        "single": sequence,
        "pair": sequence + [{"Sequence": {"id": "B", "type_id": 0}}],
    }
    json_changes(directory, post_processor={**processor, "special_tokens": {"<|im_start|>": first}})


def change_part(directory: Path, part: str, **changes: Any) -> None:
    data = json.loads((directory / JSON).read_text())
    json_changes(directory, **{part: data[part] | changes})


def own_prefix_space(directory: Path) -> None:
    pipeline = Tokenizer.from_file(str(directory / JSON))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    pipeline.save(str(directory / JSON))


def flags(content: str, **changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = AddedToken(content, special=True, normalized=False).__getstate__()
    return state | changes


NOT_PLAIN: dict[str, Callable[[Path], Any]] = {
    "another class": lambda d: change(d / CONFIG, tokenizer_class="LlamaTokenizerFast"),
    "no class": lambda d: change(d / CONFIG, tokenizer_class=...),
    "a class by config.json": lambda d: change(d / "config.json", model_type="qwen2"),
    "code of its own": lambda d: change(d / CONFIG, auto_map={"AutoTokenizer": ["a.B", "a.C"]}),
    "a setting nobody knows": lambda d: change(d / CONFIG, image_token="<|im_end|>"),
    "a token to be added": lambda d: change(d / CONFIG, sep_token="<sep>"),
    "one more to be added": lambda d: change(d / CONFIG, additional_special_tokens=["<more>"]),
    "a named token that is text": lambda d: (
        add(d, AddedToken("<end>")),
        change(d / CONFIG, eos_token="<end>"),
    ),
    "a named token with other flags": lambda d: change(
        d / CONFIG, eos_token=flags("<|im_end|>", lstrip=True, __type="AddedToken")
    ),
    "an added token with other flags": lambda d: change(
        d / CONFIG, added_tokens_decoder={"2": flags("<|im_end|>", rstrip=True)}
    ),
    "an added token elsewhere": lambda d: change(
        d / CONFIG, added_tokens_decoder={"7": flags("<|im_end|>")}
    ),
    "an added token that is missing": lambda d: change(
        d / CONFIG, added_tokens_decoder={"259": flags("<more>")}
    ),
    "tokens in an older file": lambda d: (d / "added_tokens.json").write_text('{"<more>": 259}'),
    "names in an older file": lambda d: (d / "special_tokens_map.json").write_text(
        '{"eos_token": "<|pad|>"}'
    ),
    "extra tokens with names": lambda d: change(
        d / CONFIG, extra_special_tokens={"image_token": "<|pad|>"}
    ),
    "special tokens split": lambda d: change(d / CONFIG, split_special_tokens=True),
    "another prefix space": lambda d: change(d / CONFIG, add_prefix_space=True),
    "a prefix space taken away": own_prefix_space,
    "a first token by setting": lambda d: change(d / CONFIG, add_bos_token=True),
    "a first token switched off": lambda d: (
        add_first_token(d),
        change(d / CONFIG, add_bos_token=False),
    ),
    "padding with a token to be added": lambda d: (
        tiny_tokenizers.with_cuts_and_padding(d),
        change_part(d, "padding", pad_token="<p>"),
        change(d / CONFIG, pad_token=...),
    ),
    "a side that is none": lambda d: change(d / CONFIG, padding_side="top"),
    "Mistral's own file": lambda d: (d / "tekken.json").write_text("{}"),
    "templates without a default": lambda d: change(
        d / CONFIG, chat_template=[{"name": "tool_use", "template": ""}]
    ),
    "a template by version": lambda d: change(
        d / CONFIG, chat_template="{{ additional_special_tokens }}"
    ),
    "a template that is none": lambda d: change(d / CONFIG, chat_template=7),
    "damaged": lambda d: (d / JSON).write_text('{"version": "1.0", "mod'),
    "missing": lambda d: (d / JSON).unlink(),
    "settings that are no table": lambda d: (d / CONFIG).write_text("[]"),
    "no config": lambda d: (d / "config.json").unlink(),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_is_not_surely_plain_goes_through_transformers(tmp_path: Path, what: str) -> None:
    directory = tiny_tokenizers.byte_level(tmp_path)
    assert open_plain(directory) is not None
    NOT_PLAIN[what](directory)
    assert open_plain(directory) is None


QWEN2_BREACHES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "normalizer": lambda data: data.update(normalizer={"type": "NFKC"}),
    "no normalizer": lambda data: data.update(normalizer=None),
    "pattern": lambda data: data["pre_tokenizer"]["pretokenizers"][0].update(
        pattern={"Regex": tiny_tokenizers.LLAMA3_PATTERN}
    ),
    "prefix space": lambda data: data["pre_tokenizer"]["pretokenizers"][1].update(
        add_prefix_space=True
    ),
    "regex": lambda data: data["pre_tokenizer"]["pretokenizers"][1].update(use_regex=True),
    "one splitter": lambda data: data["pre_tokenizer"]["pretokenizers"].pop(0),
    "decoder": lambda data: data.update(decoder={"type": "Fuse"}),
    "merges": lambda data: data["model"].update(ignore_merges=True),
    "unknown": lambda data: data["model"].update(unk_token="a"),
}


@pytest.mark.parametrize("what", QWEN2_BREACHES)
def test_a_qwen_pipeline_that_version_5_would_not_make(tmp_path: Path, what: str) -> None:
    directory = tiny_tokenizers.qwen2(tmp_path)
    data = json.loads((directory / JSON).read_text())
    QWEN2_BREACHES[what](data)
    (directory / JSON).write_text(json.dumps(data))
    assert open_plain(directory) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"eos_token": ..., "additional_special_tokens": ["<|missing|>"]},
        {"added_tokens_decoder": {}},
    ],
)
def test_qwen_tokens_that_are_not_all_told(tmp_path: Path, changes: dict[str, Any]) -> None:
    directory = tiny_tokenizers.qwen2(tmp_path)
    change(directory / CONFIG, **changes)
    assert open_plain(directory) is None


def test_qwen_has_names_for_tokens_of_which_the_settings_are_silent(tmp_path: Path) -> None:
    directory = tiny_tokenizers.qwen2(tmp_path)
    change(directory / CONFIG, eos_token=...)
    plain = open_plain(directory)
    assert plain is not None
    assert plain.added[plain.eos_token_id or 0] == "<|endoftext|>"
    assert plain.eos_token_id == TransformersTokenizer(directory).eos_token_id


def test_settings_as_version_5_writes_them(tmp_path: Path) -> None:
    directory = tiny_tokenizers.byte_level(tmp_path)
    before = open_plain(directory)
    change(
        directory / CONFIG,
        tokenizer_class="TokenizersBackend",
        backend="tokenizers",
        is_local=True,
        extra_special_tokens=["<|im_start|>"],
    )
    plain = open_plain(directory)
    assert before is not None and plain is not None
    assert_same_vocabulary(plain, before)


TOKENS = st.sampled_from([*tiny.SPECIAL * 4, "<tool>", "a", "<more>"])
NAMED = st.one_of(
    st.none(),
    TOKENS,
    st.builds(lambda t, s: flags(t, special=s, __type="AddedToken"), TOKENS, st.booleans()),
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(tokenizer_settings.NAMES, NAMED),
        "additional_special_tokens": st.none() | st.lists(TOKENS, max_size=3),
        "added_tokens_decoder": st.dictionaries(
            st.sampled_from(["0", "1", "2", "259"]),
            st.builds(lambda t, s: flags(t, special=s), TOKENS, st.booleans()),
            max_size=2,
        ),
        "add_prefix_space": st.booleans(),
        "split_special_tokens": st.booleans(),
        "clean_up_tokenization_spaces": st.booleans(),
        "legacy": st.booleans(),
        "tokenizer_class": st.sampled_from(["PreTrainedTokenizerFast", "LlamaTokenizerFast"]),
    },
)


@given(changes=CHANGES, tool=st.booleans(), first=st.booleans(), prefix=st.booleans())
@settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_the_settings_plain_is_what_transformers_makes(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    tool: bool,
    first: bool,
    prefix: bool,
) -> None:
    caplog.set_level(logging.ERROR)
    directory = tiny_tokenizers.byte_level(tmp_path)
    if prefix:
        own_prefix_space(directory)
    if tool:
        add(directory, AddedToken("<tool>", lstrip=True))
    if first:
        add_first_token(directory)
    template = "{% for t in [bos_token, eos_token, unk_token, sep_token] %}[{{ t }}]{% endfor %}"
    change(directory / CONFIG, chat_template=template, **changes)
    plain = open_plain(directory)
    if plain is None:
        return
    slow = TransformersTokenizer(directory)
    assert_same_vocabulary(plain, slow)
    for text in TEXTS:
        assert list(plain.encode(text)) == list(slow.encode(text))
        assert plain.decode(plain.encode(text)) == slow.decode(slow.encode(text))
    messages = [{"role": "user", "content": "a"}]
    assert list(plain.encode_chat(messages)) == list(slow.encode_chat(messages))


def test_the_classes_that_version_5_makes_anew() -> None:
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto")
    doubted = getattr(auto, "MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS", None)
    if doubted is None:
        pytest.skip("version 4 takes the class that the settings name")
    classes = {model_type: auto.TOKENIZER_MAPPING_NAMES[model_type] for model_type in doubted}
    rebuilt = {name for name, made in classes.items() if made != "TokenizersBackend"}
    assert rebuilt <= set(tokenizer_settings.REBUILT_TYPES)


def test_what_is_wrong_is_told_as_transformers_tells_it(tmp_path: Path) -> None:
    directory = tiny_tokenizers.byte_level(tmp_path)
    NOT_PLAIN["damaged"](directory)
    with pytest.raises(CheckpointError, match="no usable tokenizer"):
        ModelTokenizer(directory).encode("hi")
    assert tiny.EOS in ModelTokenizer(directory).stop_token_ids  # config.json knows it
