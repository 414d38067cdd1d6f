"""What the double was called with, and where it is told to fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """One call of NxDI: `name` as NeuronConfig, or NeuronLlamaForCausalLM.compile."""

    name: str
    arguments: dict[str, Any]
    owner: Any = None


@dataclass
class Recorder:
    """One a test.

    Attributes:
        calls: in order.
        failures: what a call raises, by its name.
        forward: computes an application's forward pass: (application, its arguments) -> outputs.
        wrapper: computes one graph: (its wrapper, arguments in order) -> outputs.
    """

    calls: list[Call] = field(default_factory=list)
    failures: dict[str, BaseException] = field(default_factory=dict)
    forward: Forward | None = None
    wrapper: Forward | None = None

    def __call__(self, name: str, arguments: dict[str, Any], owner: Any = None) -> None:
        self.calls.append(Call(name, arguments, owner))
        if name in self.failures:
            raise self.failures[name]

    @property
    def names(self) -> list[str]:
        """Of all calls, in order."""
        return [call.name for call in self.calls]

    def arguments_of(self, name: str) -> list[dict[str, Any]]:
        """Of every call of that name."""
        return [call.arguments for call in self.calls if call.name == name]


class Current:
    """The recorder of the test that runs."""

    recorder = Recorder()


def record(name: str, arguments: dict[str, Any], owner: Any = None) -> None:
    """Note a call with the current recorder, and fail where it says so."""
    Current.recorder(name, arguments, owner)
