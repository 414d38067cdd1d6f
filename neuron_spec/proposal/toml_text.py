"""A proposal as TOML that a person can read: reasons are comments beside their values."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from neuron_spec.errors import readable
from neuron_spec.proposal.propose import Proposal
from neuron_spec.proposal.values import Table, Value

_WIDTH, _COLUMN = 100, 39


def toml_text(proposal: Proposal) -> str:
    """The text of the spec file."""
    head = (
        f"{proposal.title}. Written by neuron-spec init from the files of the models: a start, "
        "every value may be changed."
    )
    blocks = ["\n".join(_comment(head))]
    blocks += ["\n".join(_table(name, table)) for name, table in proposal.tables.items()]
    return "\n\n".join(blocks) + "\n"


def _table(name: str, table: Table) -> Iterator[str]:
    yield f"[{name}]"
    for field, value in table.items():
        yield from _line(field, value)


def _line(field: str, value: Value) -> Iterator[str]:
    text, reason = f"{field} = {_toml(value.value)}", _one_line(value.reason)
    line = f"{text:<{_COLUMN - 1}} # {reason}"
    if not reason:
        yield text
    elif len(line) <= _WIDTH:
        yield line
    else:
        yield from _comment(reason)
        yield text


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(_one_line(text), _WIDTH - 2)]


def _one_line(text: str) -> str:
    return readable(" ".join(text.split()))


def _toml(value: Any) -> str:
    """JSON's strings, numbers and booleans are TOML's, but for the one control character that
    JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
