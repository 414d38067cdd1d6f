"""Prompts from JSONL files: every form, and a line number for what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuron_spec.bench.workload import BUILT_IN, WorkloadRow, read_workload
from neuron_spec.errors import UserError


def write(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "prompts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ('"a text"', WorkloadRow("a text", "prompt")),
        ({"prompt": "a text"}, WorkloadRow("a text", "prompt")),
        ({"prompt": [1, 2]}, WorkloadRow([1, 2], "prompt")),
        ({"messages": MESSAGES}, WorkloadRow(MESSAGES, "prompt")),
        ({"turns": ["hi", "and then?"]}, WorkloadRow(MESSAGES, "prompt")),
        ({"prompt": "x", "category": "code"}, WorkloadRow("x", "code")),
        ({"turns": ["hi"], "category": 7, "question_id": 81}, WorkloadRow(MESSAGES, "7")),
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "lo"}]},
            WorkloadRow(MESSAGES, "prompt", ("lo",)),
        ),
        (
            {"conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "hi"}]},
            WorkloadRow([{"role": "system", "content": "s"}, *MESSAGES], "prompt"),
        ),
        (
            {"custom_id": "1", "method": "POST", "url": "/v1/x", "body": {"messages": MESSAGES}},
            WorkloadRow(MESSAGES, "prompt"),
        ),
        ({"request": {"prompt": "x"}, "category": "code"}, WorkloadRow("x", "code")),
        ({"prompt": "x", "reference": "y"}, WorkloadRow("x", "prompt", ("y",))),
        ({"prompt": "x", "answer": 4}, WorkloadRow("x", "prompt", ("4",))),
        ({"prompt": "x", "references": ["y", 5]}, WorkloadRow("x", "prompt", ("y", "5"))),
    ],
)
def test_forms_of_a_line(tmp_path: Path, line: Any, row: WorkloadRow) -> None:
    assert read_workload(write(tmp_path, line)) == [row]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "5",
        "null",
        "[1, 2]",
        {},
        {"text": "x"},
        {"prompt": 5},
        {"prompt": None},
        {"messages": "hi"},
        {"turns": []},
        {"turns": [5]},
        {"turns": "hi"},
        {"conversations": []},
        {"conversations": [{"from": "gpt", "value": "lo"}]},
        {"conversations": [{"from": "martian", "value": "hi"}]},
        {"conversations": [{"from": "human", "value": 5}]},
        {"body": {"input": "x"}},
        "[" * 100_000,
    ],
)
def test_a_line_in_no_form_is_told_with_its_number(tmp_path: Path, line: Any) -> None:
    path = write(tmp_path, '"one"', "", line, '"four"')
    with pytest.raises(UserError, match="not a prompt") as caught:
        read_workload(path)
    assert caught.value.where == f"{path}:3"
    assert len(str(caught.value)) < 400
    assert "messages" in str(caught.value)


def test_empty_lines_are_skipped_and_the_limit_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, '"1"', "", "   ", '"2"', '"3"')
    assert [row.prompt for row in read_workload(path)] == ["1", "2", "3"]
    assert [row.prompt for row in read_workload(path, limit=2)] == ["1", "2"]
    assert len(read_workload(path, limit=9)) == 3


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_other_ends_of_line_inside_a_string_do_not_end_the_row(tmp_path: Path, end: str) -> None:
    text = f"one{end}two"
    path = write(tmp_path, json.dumps(text, ensure_ascii=False), '"next"')
    assert [row.prompt for row in read_workload(path)] == [text, "next"]


def test_files_of_windows_programs(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf"one"\r\n"two"\r\n')
    assert [row.prompt for row in read_workload(path)] == ["one", "two"]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe", None])
def test_a_file_without_prompts(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_workload(path)
    assert caught.value.where == path
    with pytest.raises(UserError):
        read_workload(tmp_path)  # a directory


def test_one_json_array_is_a_file_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "lo"}]
    path.write_text(json.dumps([{"id": "a", "conversations": turns}, "two"], indent=1))
    assert [row.prompt for row in read_workload(path)] == [MESSAGES, "two"]
    assert len(read_workload(path, limit=1)) == 1
    path.write_text(json.dumps(["one", {"text": "x"}]))
    with pytest.raises(UserError, match="not a prompt") as caught:
        read_workload(path)
    assert caught.value.where == f"{path}: row 2"


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b'plain words\r\n\n"quoted"\n[1, 2]\n')
    assert [row.prompt for row in read_workload(path)] == ["plain words", '"quoted"', "[1, 2]"]


def test_built_in_prompts_are_of_different_kinds() -> None:
    assert len({row.category for row in BUILT_IN}) == len(BUILT_IN) == 3
    assert all(row.prompt[0]["role"] == "user" for row in BUILT_IN)  # type: ignore[index]
