"""Where a build for Neuron writes."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """Where a build writes.

    Attributes:
        folder: becomes the artifact.
        log: of everything that is printed meanwhile; it stays whatever happens.
        cache: of compiled graphs, for all builds beside each other.
        steady_work: see `working`.
    """

    folder: Path
    log: Path
    cache: Path
    steady_work: Path

    @classmethod
    def of(cls, folder: Path, destination: Path) -> Places:
        """Those of an artifact that is written to `folder` and ends at `destination`."""
        destination = destination.absolute()
        return cls(
            folder,
            destination.with_name(f"{destination.name}.log"),
            destination.with_name("neff-cache"),
            destination.with_name(f".{destination.name}.work"),
        )

    @contextmanager
    def working(self) -> Iterator[Path]:
        """Folder of NxD's work directories, one a role, for the block; the log is there by now.

        It is the current folder too: NxD writes graphs into that by names which are the same in
        every build (`trace/model_builder.py`: _add_layout_optimization_to_remaining_hlo), and two
        builds at once would take each other's.

        The path is the same in every build of a destination, since NxD takes it into the key of
        compiled graphs (`trace/model_builder.py`: --logfile): under another they would not be
        found again. What a killed build leaves there, the next one removes. A second build at the
        same time has a folder of its own, and finds nothing.
        """
        with self.log.open("ab") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                work = self.steady_work
            except OSError:  # held by another build, or a file system without locks
                work = self.folder.absolute() / "work"
            work.mkdir(parents=True, exist_ok=True)
            before = Path.cwd()
            try:
                os.chdir(work)
                yield work
            finally:
                os.chdir(before)
                shutil.rmtree(work, ignore_errors=True)
