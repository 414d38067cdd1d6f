"""Copies in large pages: whole, apart from each other, and there whatever the system says."""

from __future__ import annotations

import mmap
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.backends.reference.native import pages
from neuron_spec.backends.reference.native.pages import LargePages

DTYPES = [torch.float32, torch.bfloat16, torch.int8]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 700)), max_size=6))
def test_copies_are_whole_and_apart(sizes: list[tuple[int, int]]) -> None:
    place, generator = LargePages(), torch.Generator().manual_seed(len(sizes))
    whole = [
        torch.randn(width, height, generator=generator).mul(9).to(dtype)
        for (height, width), dtype in zip(sizes, DTYPES * 2, strict=False)
    ]
    copies = [place.copy(tensor.T) for tensor in whole]
    for tensor, copy in zip(whole, copies, strict=True):
        assert torch.equal(copy, tensor.T)
        assert copy.is_contiguous() and copy.dtype == tensor.dtype
        assert copy.data_ptr() % 64 == 0


def test_more_than_a_region_and_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_REGION", 4 << 20)
    place, large = LargePages(), torch.randn(3 << 20)  # 12 MiB
    before, copy, after = place.copy(torch.ones(5)), place.copy(large), place.copy(torch.zeros(5))
    assert torch.equal(copy, large)
    assert before.tolist() == [1] * 5
    assert after.tolist() == [0] * 5


def test_a_copy_outlives_the_place_that_made_it() -> None:
    place = LargePages()
    copy, gone = place.copy(torch.arange(1000)), weakref.ref(place)
    del place
    assert gone() is None
    assert torch.equal(copy, torch.arange(1000))


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
    copy = LargePages().copy(torch.arange(12).view(3, 4).T)
    assert copy.tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert copy.is_contiguous()
