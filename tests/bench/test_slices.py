"""The built-in prompts: enough of every kind, and how they are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuron_spec.bench.slices import rows_of, slices
from neuron_spec.bench.workload import BUILT_IN
from neuron_spec.errors import UserError

HEADS = Path(__file__).parents[2] / "checkpoints"
KINDS = ["code", "extraction", "chat", "summarization", "translation", "maths", "rag", "creative"]


def test_every_kind_has_enough_prompts_for_an_interval() -> None:
    assert list(slices()) == KINDS
    texts = [row.prompt[0]["content"] for rows in slices().values() for row in rows]  # type: ignore[index,call-overload]
    assert len(set(texts)) == len(texts)
    assert all(len(rows) >= 8 for rows in slices().values())
    assert all(row.category == kind for kind, rows in slices().items() for row in rows)


def test_prompts_fit_a_small_context() -> None:
    """Characters bound tokens of this text from above; the demo target takes 1536."""
    assert max(len(row.prompt[0]["content"]) for rows in slices().values() for row in rows) < 1536  # type: ignore[index,call-overload]


def test_none_of_them_evaluates_the_demo_heads() -> None:
    texts = {row.prompt[0]["content"] for rows in slices().values() for row in rows}  # type: ignore[index,call-overload]
    files = list(HEADS.glob("*/evaluation-prompts.jsonl"))
    assert files
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            assert not texts & {*row.get("turns", []), row.get("prompt")}


def test_kinds_by_name() -> None:
    assert {row.category for row in rows_of(None, "maths,rag", None)} == {"maths", "rag"}
    assert len(rows_of(None, "all", None)) == 8 * len(KINDS)
    assert len(rows_of(None, "all", 5)) == 5
    assert rows_of(None, None, None) == list(BUILT_IN)
    with pytest.raises(UserError, match="did you mean 'code'"):
        rows_of(None, "cod", None)
    with pytest.raises(UserError, match="either"):
        rows_of(Path("x.jsonl"), "code", None)
