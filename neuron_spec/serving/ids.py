"""Names of requests and answers."""

from __future__ import annotations

import random


class Ids:
    """Names that nobody meets twice.

    The system is asked once, not for every name: in every call of it the event loop's thread would
    give up the interpreter, and wait until the engine's thread hands it back.
    """

    def __init__(self) -> None:
        self._random = random.Random()

    def new(self) -> str:
        """128 random bits as hexadecimal digits."""
        return f"{self._random.getrandbits(128):032x}"
