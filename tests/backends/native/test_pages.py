"""Tensors in large pages: whole, apart from each other, and there whatever the system says."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.backends.reference.native import pages
from neuron_spec.backends.reference.native.pages import LargePages


def copied(place: LargePages, tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy that the place has room for."""
    return place.empty(*tensor.shape, dtype=tensor.dtype).copy_(tensor)


DTYPES = [torch.float32, torch.bfloat16, torch.int8]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 700)), max_size=6))
def test_copies_are_whole_and_apart(sizes: list[tuple[int, int]]) -> None:
    place, generator = LargePages(), torch.Generator().manual_seed(len(sizes))
    whole = [
        torch.randn(width, height, generator=generator).mul(9).to(dtype)
        for (height, width), dtype in zip(sizes, DTYPES * 2, strict=False)
    ]
    copies = [copied(place, tensor.T) for tensor in whole]
    for tensor, copy in zip(whole, copies, strict=True):
        assert torch.equal(copy, tensor.T)
        assert copy.is_contiguous() and copy.dtype == tensor.dtype
        assert copy.data_ptr() % 64 == 0


def test_more_than_a_region_and_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_REGION", 4 << 20)
    place, large = LargePages(), torch.randn(3 << 20)  # 12 MiB
    before, copy, after = (
        copied(place, torch.ones(5)),
        copied(place, large),
        copied(place, torch.zeros(5)),
    )
    assert torch.equal(copy, large)
    assert before.tolist() == [1] * 5
    assert after.tolist() == [0] * 5


def test_a_copy_outlives_the_place_that_made_it() -> None:
    place = LargePages()
    copy, gone = copied(place, torch.arange(1000)), weakref.ref(place)
    del place
    assert gone() is None
    assert torch.equal(copy, torch.arange(1000))


@pytest.mark.parametrize("begun", [1, 3 << 20, 100 << 20])
def test_memory_that_was_made_ready_is_what_tensors_get(
    begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a thread still takes it from the system, too: what is written stays."""
    taken: list[int] = []
    region = pages._region
    monkeypatch.setattr(pages, "_region", lambda size: taken.append(size) or region(size))
    place = LargePages()
    place.make_ready(begun)
    whole = [torch.randn(1 << 18) for _ in range(3)]  # 1 MiB each
    copies = [copied(place, tensor) for tensor in whole]
    for thread in threading.enumerate():
        if "(populate)" in thread.name:
            thread.join()
    assert len(taken) == 1 and taken[0] >= begun
    assert all(map(torch.equal, copies, whole))


def test_it_is_taken_before_anything_is_written() -> None:
    """By what Linux says of a new process."""
    code = """
import pathlib, re, time
from neuron_spec.backends.reference.native.pages import LargePages

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

before, place, end = resident(), LargePages(), time.monotonic() + 20
place.make_ready(48 << 20)
while resident() - before < 48 << 10 and time.monotonic() < end:
    time.sleep(0.01)
print(resident() - before)
"""
    if not can_populate():
        pytest.skip("this kernel takes memory when it is written to, and not before")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 48 << 10 <= int(done.stdout) < 60 << 10


def can_populate() -> bool:
    memory = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(pages._POPULATE_WRITE)
    except OSError:
        return False
    return True


def test_nothing_to_be_made_ready() -> None:
    place = LargePages()
    place.make_ready(0)
    assert copied(place, torch.ones(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("problem", ["no memory", "no such advice", "refused advice"])
def test_without_large_pages_memory_is_as_usual(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(22, "Invalid argument")

    def none_left(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    if problem == "no such advice":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    else:
        monkeypatch.setattr(mmap, "mmap", none_left if problem == "no memory" else Refusing)
    copy = copied(LargePages(), torch.arange(12).view(3, 4).T)
    assert copy.tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert copy.is_contiguous()
