"""The target's own tokenizer: chat template once, ids checked, what is missing told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from tokenizers import Tokenizer

from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.errors import CheckpointError, RequestError


def change_settings(directory: Path, **changes: object) -> None:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_text_is_encoded_as_it_is(target_directory: Path) -> None:
    tokenizer = ModelTokenizer(target_directory)
    ids = tokenizer.encode("né →")
    assert len(ids) == len("né →".encode())  # a token a byte, nothing added
    assert min(ids) >= len(tiny.SPECIAL)
    assert tokenizer.decode(ids) == "né →"


def test_special_tokens_are_left_out_of_the_text(target_directory: Path) -> None:
    tokenizer = ModelTokenizer(target_directory)
    assert tokenizer.decode([1, *tokenizer.encode("a , b"), tiny.EOS]) == "a , b"


def test_a_conversation_goes_through_the_template_once(target_directory: Path) -> None:
    tokenizer = ModelTokenizer(target_directory)
    ids = tokenizer.encode(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]
    )
    by_hand = (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids == tokenizer.encode(by_hand)
    assert ids.count(1) == 3  # <|im_start|>


def test_a_tokenizer_that_adds_a_first_token_adds_it_to_text_only(target_directory: Path) -> None:
    """Templates write the first token themselves; a second one would harm quality."""
    path = target_directory / "tokenizer.json"
    data = json.loads(path.read_text())
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    path.write_text(json.dumps(data))
    tokenizer = ModelTokenizer(target_directory)
    assert tokenizer.encode("a")[0] == 1
    assert len(tokenizer.encode("a")) == 2
    conversation = tokenizer.encode([{"role": "user", "content": "a"}])
    assert conversation[0] == 1
    assert conversation[1] != 1


def test_token_ids_are_taken_as_they_are(target_directory: Path) -> None:
    assert ModelTokenizer(target_directory).encode([0, 258, 7]) == (0, 258, 7)
    assert ModelTokenizer(target_directory).encode([]) == ()


@pytest.mark.parametrize("bad", [259, -1, "7", 1.0, True, None])
def test_ids_outside_the_vocabulary_are_refused(target_directory: Path, bad: object) -> None:
    with pytest.raises(RequestError, match="not a token id") as caught:
        ModelTokenizer(target_directory).encode([5, bad])  # type: ignore[list-item]
    assert caught.value.field == "prompt"
    assert "258" in str(caught.value)


def test_no_chat_template(target_directory: Path) -> None:
    change_settings(target_directory, chat_template=None)
    tokenizer = ModelTokenizer(target_directory)
    with pytest.raises(RequestError, match="has no chat template") as caught:
        tokenizer.encode([{"role": "user", "content": "hi"}])
    assert caught.value.field == "messages"
    assert tokenizer.encode("hi")


def test_a_template_that_refuses_the_conversation(target_directory: Path) -> None:
    refusal = "{{ raise_exception('roles must alternate') }}"
    change_settings(target_directory, chat_template=refusal)
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        ModelTokenizer(target_directory).encode([{"role": "user", "content": "hi"}])
    assert caught.value.field == "messages"


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb"])
def test_half_a_character_is_refused(target_directory: Path, text: str) -> None:
    tokenizer = ModelTokenizer(target_directory)
    with pytest.raises(RequestError, match="not Unicode text") as caught:
        tokenizer.encode(text)
    assert caught.value.field == "prompt"
    str(caught.value).encode("utf-8")  # the message itself can be printed
    with pytest.raises(RequestError, match="not Unicode text") as caught:
        tokenizer.encode([{"role": "user", "content": text}])
    assert caught.value.field == "messages"


def test_no_tokenizer_beside_the_weights(target_directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target_directory / name).unlink()
    with pytest.raises(CheckpointError, match="no usable tokenizer") as caught:
        ModelTokenizer(target_directory).encode("hi")
    assert str(target_directory) in str(caught.value)


def test_a_damaged_tokenizer(target_directory: Path) -> None:
    (target_directory / "tokenizer.json").write_text('{"version": "1.0", "mod')
    with pytest.raises(CheckpointError, match="no usable tokenizer"):
        ModelTokenizer(target_directory).encode("hi")


def test_stop_ids_of_the_config(target_directory: Path) -> None:
    assert ModelTokenizer(target_directory).stop_token_ids == {tiny.EOS}


def test_several_stop_ids_of_the_generation_config(target_directory: Path) -> None:
    path = target_directory / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [2, 17, 40]}))
    assert ModelTokenizer(target_directory).stop_token_ids == {2, 17, 40}


def test_stop_id_of_the_tokenizer_where_no_config_has_one(tmp_path: Path) -> None:
    directory = tiny.write_target(tmp_path / "target", eos_token_id=None)
    assert ModelTokenizer(directory).stop_token_ids == {tiny.EOS}


def test_bytes_of_single_tokens(target_directory: Path) -> None:
    tokenizer = ModelTokenizer(target_directory)
    ids = tokenizer.encode("né →")
    assert b"".join(map(tokenizer.token_bytes, ids)) == "né →".encode()
    assert tokenizer.token_bytes(tiny.EOS) == b"<|im_end|>"
    path = target_directory / "tokenizer.json"
    pipeline = Tokenizer.from_file(str(path))
    pipeline.add_tokens(["né▁"])  # an added token is no piece of the byte alphabet
    pipeline.save(str(path))
    fresh = ModelTokenizer(target_directory)
    assert fresh.token_bytes(tiny.CONFIG["vocab_size"]) == "né▁".encode()
    assert tokenizer.token_bytes(10**6) == b""  # an embedding may be padded beyond the tokenizer


def test_made_ready_is_read_once(target_directory: Path) -> None:
    expected = ModelTokenizer(target_directory).encode("né →")
    tokenizer = ModelTokenizer(target_directory)
    tokenizer.make_ready()
    (target_directory / "tokenizer.json").unlink()
    assert tokenizer.encode("né →") == expected


def test_making_ready_leaves_what_is_wrong_to_the_first_text(target_directory: Path) -> None:
    change_settings(target_directory, chat_template="{% for %}")
    tokenizer = ModelTokenizer(target_directory)
    tokenizer.make_ready()
    with pytest.raises(RequestError, match="chat template"):
        tokenizer.encode([{"role": "user", "content": "hi"}])
