"""Prompt -> tokens: the decode loop, stopping, sessions, and the events everything else reads."""

from neuron_spec.engine.events import Event, FinishEvent, TokenEvent
from neuron_spec.engine.request import Request
from neuron_spec.engine.session import Generation, Session, load, open_session

__all__ = [
    "Event",
    "FinishEvent",
    "Generation",
    "Request",
    "Session",
    "TokenEvent",
    "load",
    "open_session",
]
