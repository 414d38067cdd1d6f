"""The compiled kernels: built once a machine, kept in the user's cache, found again by digest."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from neuron_spec.backends.reference.machine import machine
from neuron_spec.backends.reference.native.binding import Kernels
from neuron_spec.checkpoints.demo_target import cache_directory
from neuron_spec.errors import BackendError

SOURCE = Path(__file__).with_name("kernels.cpp")  # includes the headers beside it
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC")
_TIMEOUT_S = 300


@cache
def kernels() -> Kernels:
    """The kernels of this machine, compiled if they are not there yet.

    Raises:
        BackendError: no compiler, or what it makes does not run; the message says why.
    """
    library = path_of_kernels()
    if not library.is_file():
        _build(library)
    return _opened(library)


def path_of_kernels() -> Path:
    """Where they are kept: the name is a digest of the source, the flags and the machine."""
    digest = hashlib.sha256()
    for source in (SOURCE, *sorted(SOURCE.parent.glob("*.hpp"))):
        digest.update(source.read_bytes())
    digest.update("\n".join((*FLAGS, machine(torch.device("cpu")))).encode())
    return cache_directory() / "kernels" / f"{digest.hexdigest()[:32]}.so"


def _build(library: Path) -> None:
    """Compile, try out, and put in place in one step."""
    compilers = list(_compilers())
    if not compilers:
        raise BackendError(f"no C++ compiler found ({', '.join(COMPILERS)}, or $CXX)")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = _made(compilers, Path(folder))
            made.replace(library)
    except OSError as error:
        raise BackendError(f"cannot keep compiled kernels in {library.parent}: {error}") from error


def _compilers() -> Iterator[str]:
    for name in (os.environ.get("CXX"), *COMPILERS):
        if name and (found := shutil.which(name)):
            yield found


def _made(compilers: list[str], folder: Path) -> Path:
    """The first library that loads and multiplies right.

    Linked without an OpenMP library first: PyTorch has brought one into the process, and two would
    take the cores from each other.
    """
    faults: list[str] = []
    for number, (compiler, linked) in enumerate(
        (compiler, linked) for compiler in compilers for linked in ((), ("-fopenmp",))
    ):
        unit, library = folder / f"{number}.o", folder / f"{number}.so"
        try:
            _run([compiler, *FLAGS, "-c", str(SOURCE), "-o", str(unit)])
            _run([compiler, "-shared", *linked, str(unit), "-o", str(library)])
            _opened(library)
        except BackendError as error:
            faults.append(str(error))
        else:
            return library
    raise BackendError("; ".join(dict.fromkeys(faults)))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{command[0]} failed: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise BackendError(f"{command[0]} failed: {last}")


def _opened(library: Path) -> Kernels:
    try:
        found = Kernels(library)
    except (OSError, AttributeError) as error:
        raise BackendError(f"compiled kernels do not load: {error}") from error
    if not found.multiplies():
        raise BackendError(f"compiled kernels multiply wrongly: {library}")
    return found
