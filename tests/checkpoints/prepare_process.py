"""`prepare_draft` in a process of its own, which can be told when to die.

Run as `prepare_process.py DRAFT TARGET OUT STRIKE TIMES SWAP`. It says `ready`, waits for a line,
and prepares TIMES times. STRIKE is `never`, or kills the process: `any:5` right before its fifth
change of the file system (or after a block of values), `fsync:2` before its second flush. SWAP is
`exchange`, or `two-steps` as on a file system that cannot exchange two names.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuron_spec import files
from neuron_spec.checkpoints.prepare import prepare_draft

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "shutil.rmtree")


class Striker:
    """Counts changes, and kills the process at the chosen one."""

    def __init__(self, strike: str) -> None:
        self.kind, _, number = strike.partition(":")
        self.left = int(number or 0)

    def __call__(self, kind: str) -> None:
        self.left -= self.kind in ("any", kind)
        if self.left == 0 and self.kind in ("any", kind):
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_writing = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or is_writing:
            self(event)

    def before(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self(kind)
            return function(*arguments)

        return counted


def main(draft: Path, target: Path, out: Path, strike: str, times: int, swap: str) -> None:
    striker = Striker(strike)
    if swap == "two-steps":
        files._exchange = lambda first, second: False
    files._exchange = striker.before("exchange", files._exchange)
    os.fsync = striker.before("fsync", os.fsync)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.addaudithook(striker.audit)
    for _ in range(times):
        prepare_draft(draft, target, out, force=True, progress=lambda *call: striker("block"))


if __name__ == "__main__":
    paths, (strike, times, swap) = map(Path, sys.argv[1:4]), sys.argv[4:]
    main(*paths, strike, int(times), swap)
