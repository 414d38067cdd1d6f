"""Chat templates: the same text as `apply_chat_template` of transformers makes."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from neuron_spec.checkpoints.demo_target import ensure
from neuron_spec.engine.chat_template import ChatTemplate, read_chat_templates, refusals
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.errors import RequestError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = {
    "ChatML": tiny.TEMPLATE,
    "Llama 3": (
        "{%- set loop_messages = messages %}\n"
        "{%- if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}\n"
        "{%- if messages[0]['role'] == 'system' %}\n"
        "    {%- set system_message = messages[0]['content'] | trim %}\n"
        "    {%- set loop_messages = messages[1:] %}\n"
        "{%- else %}\n    {%- set system_message = '' %}\n{%- endif %}\n"
        "{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' }}\n"
        "{%- if tools is not none %}{{- 'Environment: ipython\n' }}{% endif %}\n"
        "{{- 'Today Date: ' + date_string + '\n\n' + system_message + '<|eot_id|>' }}\n"
        "{%- for message in loop_messages %}\n"
        "    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}\n"
        "        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] | trim + '<|eot_id|>' }}\n"
        "    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\n{%- endif %}\n"
    ),
    "Mistral": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
        "{% endif %}{% endfor %}"
    ),
    "Qwen": (
        "{%- set ns = namespace(multi_step_tool=true, last=messages|length - 1) %}\n"
        "{%- for message in messages[::-1] %}\n"
        "    {%- set index = (messages|length - 1) - loop.index0 %}\n"
        "    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string"
        " and not(message.content.startswith('<tool_response>')) %}\n"
        "        {%- set ns.multi_step_tool = false %}\n"
        "        {%- set ns.last = index %}\n"
        "    {%- endif %}\n"
        "{%- endfor %}\n"
        "{%- for message in messages %}\n"
        "    {%- if '</think>' in message.content and loop.index0 > ns.last %}\n"
        "        {{- message.content.split('</think>')[-1].lstrip('\\n') }}\n"
        "    {%- else %}\n"
        "        {{- '<|im_start|>' + message.role + '\\n' + message.content }}\n"
        "    {%- endif %}\n"
        "    {{- '<|im_end|>' ~ '\\n' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|im_start|>assistant\\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
        "    {%- endif %}\n"
        "{%- endif %}"
    ),
    "JSON": (
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ tools | tojson }}"
        "{{ messages[0] | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}"
    ),
    "loop controls": (
        "{% for m in messages %}\n"
        "  {% if m.role == 'system' %}\n    {% continue %}\n  {% endif %}\n"
        "  {{ m.content }}\n  {% if loop.index > 2 %}{% break %}{% endif %}\n{% endfor %}\n"
    ),
    "generation blocks": (
        "{% set x = 1 %}{% for m in messages %}\n"
        "{% if m.role == 'assistant' %}\n"
        "  {% generation %}\n  {% set x = 2 %}{{ m.content }}{{ loop.index }}{{ x }}"
        "{{ eos_token }}\n"
        "  {%- endgeneration -%}\n"
        "{% else %}{{ m.content }}{{ x }}{% endif %}{% endfor %}"
    ),
    "what is not there": "{{ messages[99] }}[{{ pad_token }}]{{ messages[0].no }}{{ documents }}",
    "a failure": "{{ 1 // (messages | length - 1) }}",
    "text and number": "{{ messages[0].content + 1 }}",
    "nothing there": "{{ messages[0].nothing.more }}",
    "mutation": "{{ messages.append(1) }}",
    "beyond the sandbox": "{{ messages.__class__.__mro__ }}",
    "no template": "{% for m in messages %}",
    "an unknown tag": "{% nonsense %}",
}  # fmt: skip

MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
            | st.sampled_from(["<&>'\"", "a</think>\n\nb", "<tool_response>", " x \n", "</s>"]),
        }
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL)


def by_transformers(source: str, messages: list[dict[str, str]]) -> str | type[Exception]:
    try:
        rendered, _ = render_jinja_template(
            conversations=[messages], chat_template=source, add_generation_prompt=True, **SPECIAL
        )
    except Exception as error:  # told as a refusal
        return type(error)
    text: str = rendered[0]
    return text


def by_us(source: str, messages: list[dict[str, str]]) -> str | type[Exception]:
    try:
        return compiled(source).render(messages)
    except RequestError as error:
        assert error.field == "messages" and "the chat template refuses it: " in str(error)
        return type(error.__cause__)


@given(messages=MESSAGES)
@settings(deadline=None)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(name: str, messages: list[dict[str, str]]) -> None:
    assert by_us(TEMPLATES[name], messages) == by_transformers(TEMPLATES[name], messages)


def test_every_template_says_something_and_those_that_refuse_refuse() -> None:
    """So that the comparison above is not one of two failures."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    said = {name: by_us(source, messages) for name, source in TEMPLATES.items()}
    refused = {name for name, text in said.items() if not isinstance(text, str)}
    assert refused == {
        "text and number", "nothing there", "mutation", "beyond the sandbox", "no template",
        "an unknown tag",
    }  # fmt: skip
    assert said["Mistral"] == "<s>[INST] a [/INST]b</s>"
    assert said["generation blocks"] == "a1b22</s>"
    assert "\u65e5" in str(by_us(TEMPLATES["JSON"], [{"role": "user", "content": "\u65e5<"}]))


@given(messages=MESSAGES)
@settings(deadline=None)
def test_the_demo_model_speaks_as_with_transformers(messages: list[dict[str, str]]) -> None:
    tokenizer, ours = demo()
    wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(ours.encode(messages)) == list(wanted)


@cache
def demo() -> tuple[Any, ModelTokenizer]:
    directory = ensure("demo:smollm2-135m-instruct")
    return AutoTokenizer.from_pretrained(str(directory)), ModelTokenizer(directory)


def test_today() -> None:
    form = "%d %b %Y"
    before = datetime.now().strftime(form)
    told = ChatTemplate(f"{{{{ strftime_now('{form}') }}}}", {}).render([])
    assert told in (before, datetime.now().strftime(form))


def test_a_refusal_is_told_as_the_template_words_it() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(RequestError, match="the chat template refuses it: roles must alternate"):
        template.render([{"role": "user", "content": "a"}])


def test_what_is_no_refusal_is_not_told_as_one() -> None:
    with pytest.raises(MemoryError), refusals():
        raise MemoryError


DEFAULT = {"name": "default", "template": "of the list"}


@pytest.mark.parametrize(
    ("setting", "files", "wanted"),
    [
        (..., {}, None),
        (None, {}, None),
        ("of the settings", {}, "of the settings"),
        ("", {}, ""),
        ([{"name": "tool_use", "template": "tools"}, DEFAULT], {}, "of the list"),
        ("of the settings", {"chat_template.jinja": "of the\r\nfile"}, "of the\nfile"),
        (
            "of the settings",
            {"chat_template.jinja": "of the file", "additional_chat_templates/rag.jinja": "rag"},
            "of the file",
        ),
        ("settings", {"additional_chat_templates/default.jinja": "additional"}, "additional"),
    ],
)
def test_where_templates_come_from(
    tmp_path: Path, setting: Any, files: dict[str, str], wanted: str | None
) -> None:
    directory = tiny_tokenizers.byte_level(tmp_path)
    tiny_tokenizers.change(directory / "tokenizer_config.json", chat_template=setting)
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    config = {} if setting is ... else {"chat_template": setting}
    assert read_chat_templates(directory, config).get("default") == wanted
    messages = [{"role": "user", "content": "a"}]
    tokenizer = ModelTokenizer(directory)
    if wanted is None:
        assert AutoTokenizer.from_pretrained(str(directory)).chat_template is None
        with pytest.raises(RequestError, match="has no chat template"):
            tokenizer.encode(messages)
        return
    theirs = AutoTokenizer.from_pretrained(str(directory))
    assert theirs.get_chat_template() == wanted
    assert tokenizer.encode(messages) == tokenizer.encode(wanted)


def test_no_default_among_several(tmp_path: Path) -> None:
    directory = tiny_tokenizers.byte_level(tmp_path)
    named = [{"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "rag"}]
    tiny_tokenizers.change(directory / "tokenizer_config.json", chat_template=named)
    with pytest.raises(RequestError, match="refuses it: .* no default") as caught:
        ModelTokenizer(directory).encode([{"role": "user", "content": "a"}])
    assert caught.value.field == "messages"


def test_a_template_that_nobody_can_read(tmp_path: Path) -> None:
    directory = tiny_tokenizers.byte_level(tmp_path)
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UnicodeDecodeError):
        read_chat_templates(directory, {})
