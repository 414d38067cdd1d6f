"""What an export is made of: a command, what is lost with it, what to know before running it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuron_spec.errors import SpecError
from neuron_spec.spec.schema import BuildSpec


@dataclass(frozen=True)
class Model:
    """A model as another system names it: a directory, or a hub id with its revision apart."""

    name: str
    revision: str | None = None


@dataclass(frozen=True)
class Models:
    """Target and draft; None where the method has no second checkpoint."""

    target: Model
    draft: Model | None = None


@dataclass(frozen=True)
class Loss:
    """One thing that the spec says and the other system does not do.

    Attributes:
        field: where the spec says it.
        reason: what happens instead, and why.
    """

    field: str
    reason: str


@dataclass(frozen=True)
class Handover:
    """A command for another system.

    Attributes:
        system: what it is for, with the versions it was written for.
        program: the command's first words.
        options: option -> value; None for a bare flag, tables become JSON.
        environment: variables that it needs.
        losses: what is not carried over.
        notes: what else to know before running it.
    """

    system: str
    program: tuple[str, ...]
    options: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command as a list, as subprocess.run takes it."""
        return (*self.program, *(word for words in self._option_words for word in words))

    @property
    def shell(self) -> str:
        """The command as lines to paste into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        options = ["  " + shlex.join(words) for words in self._option_words]
        return " \\\n".join([*variables, shlex.join(self.program), *options])

    @property
    def _option_words(self) -> list[tuple[str, ...]]:
        return [
            (name,) if value is None else (name, _text(value))
            for name, value in self.options.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "system": self.system,
            "environment": dict(self.environment),
            "command": list(self.arguments),
            "options": dict(self.options),
            "lost": [vars(loss) for loss in self.losses],
            "notes": list(self.notes),
        }


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


UNTRIED = "made from the plugin's sources and documents; we did not start it on a device"


def refuse(spec: BuildSpec, problem: str, mend: str) -> SpecError:
    """The error for a spec of which nothing sensible would be left."""
    return SpecError(f"not exported: {problem}", where=spec.name, mend=mend)
