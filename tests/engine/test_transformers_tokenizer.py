"""Tokenizers by transformers: two instances, so that prompts do not hold up outputs."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_tokenizers

from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.engine.transformers_tokenizer import TransformersTokenizer
from neuron_spec.errors import RequestError


class Alone:
    """A tokenizer that notices when a second thread comes in."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._is_busy = tokenizer, False
        self.chat_template = tokenizer.chat_template

    def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        assert not self._is_busy
        self._is_busy = True
        time.sleep(0.001)
        result = function(*arguments, **options)
        self._is_busy = False
        return result

    def __call__(self, text: str) -> Any:
        return self._run(self._tokenizer, text)

    def decode(self, *arguments: Any, **options: Any) -> Any:
        return self._run(self._tokenizer.decode, *arguments, **options)

    def apply_chat_template(self, *arguments: Any, **options: Any) -> Any:
        return self._run(self._tokenizer.apply_chat_template, *arguments, **options)


def test_two_threads_at_once(target_directory: Path) -> None:
    tokenizer = TransformersTokenizer(target_directory)
    for name in ("_tokenizer", "_prompt_tokenizer"):
        vars(tokenizer)[name] = Alone(getattr(tokenizer, name))
    texts = [f"number {number} é→" * 20 for number in range(60)]

    def there_and_back(text: str) -> str:
        conversation = tokenizer.encode_chat([{"role": "user", "content": text}])
        assert tokenizer.decode(conversation).count("é") == 20
        return tokenizer.decode(tokenizer.encode(text))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(there_and_back, texts)) == texts


def test_a_long_prompt_holds_up_no_output(target_directory: Path) -> None:
    tokenizer = TransformersTokenizer(target_directory)
    begun, may_end = threading.Event(), threading.Event()

    def slow(text: str) -> dict[str, list[int]]:
        begun.set()
        assert may_end.wait(30)
        return {"input_ids": [1, 2]}

    vars(tokenizer)["_prompt_tokenizer"] = slow
    with ThreadPoolExecutor(2) as threads:
        encoding = threads.submit(tokenizer.encode, "long")
        assert begun.wait(30)
        decoding = threads.submit(tokenizer.decode, [tiny.EOS])
        try:
            assert decoding.result(timeout=20) == ""
            assert not encoding.done()
        finally:
            may_end.set()
        assert encoding.result() == [1, 2]


@pytest.fixture
def slow_directory(target_directory: Path) -> Path:
    """A setting that nobody knows: what it does, only transformers can tell."""
    tiny_tokenizers.change(target_directory / "tokenizer_config.json", unheard_of=True)
    return target_directory


def test_the_models_tokenizer_is_the_same_by_both_ways(
    target_directory: Path, tmp_path: Path
) -> None:
    plain = ModelTokenizer(target_directory)
    slow = ModelTokenizer(shutil.copytree(target_directory, tmp_path / "slow"))
    tiny_tokenizers.change(tmp_path / "slow/tokenizer_config.json", unheard_of=True)
    conversation = [{"role": "user", "content": "né"}]
    for prompt in ("né →<|im_end|>", conversation, [5, 6]):
        assert plain.encode(prompt) == slow.encode(prompt)
    assert plain.decode([1, 9, 200, 2]) == slow.decode([1, 9, 200, 2])
    assert plain.vocabulary() == slow.vocabulary()
    assert [plain.token_bytes(i) for i in range(300)] == [slow.token_bytes(i) for i in range(300)]
    assert isinstance(slow._codec, TransformersTokenizer)
    assert not isinstance(plain._codec, TransformersTokenizer)


def test_a_template_that_refuses_the_conversation(slow_directory: Path) -> None:
    refusal = "{{ raise_exception('roles must alternate') }}"
    tiny_tokenizers.change(slow_directory / "tokenizer_config.json", chat_template=refusal)
    with pytest.raises(RequestError, match="refuses it: roles must alternate") as caught:
        ModelTokenizer(slow_directory).encode([{"role": "user", "content": "hi"}])
    assert caught.value.field == "messages"


def test_no_chat_template(slow_directory: Path) -> None:
    tiny_tokenizers.change(slow_directory / "tokenizer_config.json", chat_template=None)
    with pytest.raises(RequestError, match="has no chat template"):
        ModelTokenizer(slow_directory).encode([{"role": "user", "content": "hi"}])


def test_stop_id_of_the_tokenizer_where_no_config_has_one(slow_directory: Path) -> None:
    tiny.change_config(slow_directory, eos_token_id=None)
    assert ModelTokenizer(slow_directory).stop_token_ids == {tiny.EOS}
