"""The error tree.

NeuronSpecError
├── UserError                 the input can be mended; exit code 2
│   ├── SpecError             a build spec
│   ├── CheckpointError       a model directory or one of its files
│   ├── ArtifactError         a compiled artifact
│   ├── PreflightError        errors found before compiling; carries all findings
│   ├── RequestError          a generation request; carries the field's name
│   ├── DependencyError       an optional package is missing or not the real one
│   └── StorageError          disk full, no permission, read-only file system
└── BackendError              the machine or its libraries failed; exit code 1
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class NeuronSpecError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1


class UserError(NeuronSpecError):
    """Bad input: says where, what was found, what was expected and how to mend it."""

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        where: str | Path | None = None,
        found: object = None,
        expected: object = None,
        mend: str | None = None,
    ) -> None:
        self.problem, self.where, self.mend = problem, where, mend
        self.found, self.expected = found, expected
        super().__init__(self._text())

    def _text(self) -> str:
        head = f"{self.where}: {self.problem}" if self.where is not None else self.problem
        details = (("found", self.found), ("expected", self.expected), ("mend", self.mend))
        lines = [f"  {name}: {value}" for name, value in details if value is not None]
        return readable("\n".join([head, *lines]))


class SpecError(UserError):
    """A build spec cannot be read or contradicts itself."""


class CheckpointError(UserError):
    """A model directory, or a file in it, is not what it should be."""


class ArtifactError(UserError):
    """A compiled artifact is incomplete, changed, or made for something else."""


class RequestError(UserError):
    """A generation request asks for what this artifact cannot do; `field` names the culprit."""

    def __init__(self, problem: str, *, field: str, **details: Any) -> None:
        self.field = field
        super().__init__(problem, where=field, **details)


class DependencyError(UserError):
    """An optional package is missing, too old, or a placeholder of the same name."""


class StorageError(UserError):
    """The file system refused: no space, no permission, read-only."""


class PreflightError(UserError):
    """Preflight found errors; `findings` holds all of them, warnings included."""

    def __init__(self, findings: Sequence[Any]) -> None:
        self.findings = tuple(findings)
        errors = [finding for finding in findings if finding.severity == "error"]
        lines = [
            f"{finding.code}: {finding.message}\n  mend: {finding.remedy}" for finding in errors
        ]
        super().__init__(readable("\n".join([f"preflight found {len(errors)} error(s)", *lines])))


class BackendError(NeuronSpecError):
    """A backend failed at run time, with valid input."""


_STORAGE_MENDS = {
    errno.ENOSPC: "free disk space, or write elsewhere with --output",
    errno.EDQUOT: "free disk quota, or write elsewhere with --output",
    errno.EACCES: "check the permissions, or write elsewhere with --output",
    errno.EPERM: "check the permissions, or write elsewhere with --output",
    errno.EROFS: "the file system is read-only: write elsewhere with --output",
    errno.EFBIG: "the file system takes no files of this size: write elsewhere with --output",
    errno.ENOTDIR: "a file stands where a folder is needed: write elsewhere with --output",
    errno.EEXIST: "a file stands where a folder is needed: write elsewhere with --output",
    errno.ENAMETOOLONG: "choose a shorter path with --output",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals while writing `path` into `StorageError`."""
    try:
        yield
    except OSError as error:
        mend = _STORAGE_MENDS.get(error.errno or 0)
        if mend is None:
            raise
        raise StorageError(f"cannot write: {error.strerror}", where=path, mend=mend) from error


def shown(value: object, max_chars: int = 100) -> str:
    """A value out of somebody's file, as a message can quote it: escaped, and cut."""
    text = repr(value)
    return text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text)} characters)"


def readable(text: str) -> str:
    """Text without what a terminal would obey: control characters are spelt out, lines stay."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def nearest(name: str, known: Sequence[str]) -> str:
    """A sentence that helps with a misspelt name: the nearest known one, or all of them."""
    matches = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean '{matches[0]}'?" if matches else f"known: {', '.join(sorted(known))}"
