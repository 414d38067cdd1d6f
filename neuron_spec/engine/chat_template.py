"""Chat templates: a conversation -> the text that a model was trained on.

The conventions are those of Hugging Face's `apply_chat_template`, which published templates are
written for: a sandboxed Jinja without mutation, blocks that leave no blank lines, `break` and
`continue`, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, and `generation`
blocks, which only matter in training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from neuron_spec.errors import RequestError

_FILE, _FOLDER, _DEFAULT = "chat_template.jinja", "additional_chat_templates", "default"


class ChatTemplate:
    """A model's template with its special tokens, compiled at first use.

    Attributes:
        source: the template as it was written.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are variables of the template: `bos_token`, `eos_token`, …"""
        self.source, self._special_tokens = source, dict(special_tokens)

    @cached_property
    def _template(self) -> jinja2.Template:
        return _environment().from_string(self.source)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation, up to where the model's answer begins.

        Raises:
            RequestError: the template does not compile, or refuses the conversation.
        """
        with refusals():
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )


@contextmanager
def refusals() -> Iterator[None]:
    """What a template raises is what it thinks of the request."""
    try:
        yield
    except (
        jinja2.TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise RequestError(f"the chat template refuses it: {error}", field="messages") from error


def read_chat_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; the one that is used without being named is `default`.

    Template files come before what `tokenizer_config.json` (`settings`) has.

    Raises:
        OSError, ValueError, LookupError, TypeError: no templates, or a file that is not UTF-8.
    """
    files = {path.stem: path for path in sorted((directory / _FOLDER).glob("*.jinja"))}
    if (directory / _FILE).is_file():
        files = {_DEFAULT: directory / _FILE} | files
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    found = settings.get("chat_template")
    if isinstance(found, list):
        return {_text(named["name"]): _text(named["template"]) for named in found}
    return {} if found is None else {_DEFAULT: _text(found)}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a chat template: {type(value).__name__}")
    return value


class _Generation(Extension):
    """`{% generation %}`: marks the model's own words for training; here they are just written."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        """A call, so that what is set inside stays inside."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
