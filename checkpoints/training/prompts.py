"""Writes the training prompts to <work>/prompts.jsonl.

Sources: Spec-Bench rows that are not kept for evaluation (whole, cut into passages, and their
first words as openings), user turns of recorded dialogs, and functions and docstrings of the
Python standard library. A row with `open` true is only the start of a user turn, which the
target completes itself. Prompts that share 13 tokens with an evaluation row are left out.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common import (
    add_target,
    evaluation_split,
    load_tokenizer,
    need,
    ngrams,
    read_jsonl,
    write_jsonl,
)
from transformers import PreTrainedTokenizerBase

CODE_INSTRUCTION = "Complete the code I provided.\n\n"
GREEDY_SHARE = 0.65
OPENINGS = [
    "Write a Python function that",
    "Write a function",
    "Write a short story about",
    "Write an email to",
    "Write a blog post about",
    "Write a poem",
    "Write a review of",
    "Write a C++ program",
    "Write a SQL query",
    "Implement",
    "Fix the bug in this code:",
    "Explain",
    "Explain the difference between",
    "Describe",
    "Compare",
    "Discuss",
    "Analyze",
    "What is",
    "What are the",
    "What happens when",
    "Why do",
    "Why is",
    "How do I",
    "How does",
    "How can",
    "How many",
    "Who wrote",
    "Who is",
    "When did",
    "When was",
    "Where is",
    "Which",
    "Can you",
    "Is it true that",
    "Give me",
    "List",
    "Name",
    "Suggest",
    "Create",
    "Design",
    "Pretend to be",
    "You are",
    "Imagine",
    "Act as",
    "As a",
    "Suppose",
    "Given",
    "If",
    "Solve the equation",
    "Calculate",
    "Find the",
    "A train",
    "A store sells",
    "There are",
    "Extract the",
    "Identify the",
    "Classify the following",
    "Rewrite the following",
    "Summarize the following text:",
    "Translate to English:",
    "Translate to French:",
    "Question:",
    "Context:",
    "Answer the following question:",
    "Here is a text:",
    "I have a",
]
QUESTION_OPENINGS = ["Who", "What is", "When did", "Where", "How many", "Which", "Why", "What"]
LONG_CATEGORIES = {"summarization", "rag"}
OPEN_COPIES = {"translation": 14, "qa": 20, "math_reasoning": 16}  # per row; others below
OTHER_COPIES = 24


class PromptMaker:
    """Builds prompt rows with a seeded random number generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def row(
        self,
        text: str,
        source: str,
        group: str,
        *,
        temperature: float | None = None,
        max_user: int = 0,
    ) -> dict:
        """One prompt; max_user > 0 makes it an opening for the target to complete."""
        if temperature is None:
            greedy = self.random.random() < GREEDY_SHARE
            temperature = 0.0 if greedy else round(self.random.uniform(0.5, 0.8), 2)
        return {
            "text": text.strip(),
            "source": source,
            "group": group,
            "open": max_user > 0,
            "max_user": max_user,
            "user_temperature": 1.0,
            "temperature": temperature,
            "max_new": self.random.randint(128, 224),
        }

    def slice_words(self, text: str, low: int, high: int) -> str:
        """A run of low..high words, from the start of a sentence where there is one."""
        words = text.split(" ")
        count = min(len(words), self.random.randint(low, high))
        start = self.random.randint(0, len(words) - count)
        while start and not words[start - 1].endswith((".", "?", "!", '"')):
            start -= 1
        return " ".join(words[start : start + count])

    def opening(self, text: str) -> str:
        """The first two words or more of a text, at most 60 % of it."""
        words = text.split(" ")
        return " ".join(words[: self.random.randint(2, max(2, min(16, int(0.6 * len(words)))))])


def from_spec_bench(make: PromptMaker, rows: list[dict]) -> Iterator[dict]:
    """Training rows as they are: one greedy answer and three sampled ones."""
    for row in rows:
        group = f"spec-bench:{row['question_id']}"
        yield make.row(row["turns"][0], row["category"], group, temperature=0.0)
        for _ in range(3):
            temperature = round(make.random.uniform(0.5, 0.9), 2)
            yield make.row(row["turns"][0], row["category"], group, temperature=temperature)


def openings_of_spec_bench(make: PromptMaker, rows: list[dict]) -> Iterator[dict]:
    """First words of short training rows, which the target turns into new prompts."""
    for row in rows:
        category, text = row["category"], row["turns"][0]
        group = f"spec-bench:{row['question_id']}"
        if category in LONG_CATEGORIES:
            continue
        prefix = "Translate German to English: " if category == "translation" else ""
        for _ in range(OPEN_COPIES.get(category, OTHER_COPIES)):
            start = prefix + make.opening(text.removeprefix(prefix))
            yield make.row(start, f"open-{category}", group, max_user=140)


def passages_of_spec_bench(make: PromptMaker, rows: list[dict]) -> Iterator[dict]:
    """Parts of long training rows, to summarize or to answer a question about."""
    for row in rows:
        category, text = row["category"], row["turns"][0]
        group = f"spec-bench:{row['question_id']}"
        if category == "summarization":
            article = text.removeprefix("Summarize: ")
            for _ in range(10):
                part = make.slice_words(article, 60, 500)
                yield make.row(f"Summarize: {part}", "part-summarization", group)
            for _ in range(8):
                start = " ".join(make.slice_words(article, 6, 20).split())
                yield make.row(f"Summarize: {start}", "open-summarization", group, max_user=250)
        elif category == "rag":
            article, question = text.rsplit("\n", 1)
            for _ in range(6):
                part = make.slice_words(article, 100, 450)
                yield make.row(f"{part}\n{question}", "part-rag", group)
        if category in LONG_CATEGORIES:
            for _ in range(8):
                part = make.slice_words(article, 60, 350)
                start = make.random.choice(QUESTION_OPENINGS)
                yield make.row(f"{part}\n{start}", "open-rag", group, max_user=30)


def from_dialogs(make: PromptMaker, rows: list[dict]) -> Iterator[dict]:
    """User turns of the recorded dialogs: a greedy and a sampled answer."""
    for index, row in enumerate(rows):
        yield make.row(row["user"], "dialog", f"dialog:{index}", temperature=0.0)
        yield make.row(row["user"], "dialog", f"dialog:{index}", temperature=0.7)


def blank_and_general(make: PromptMaker, blank: int, per_opening: int) -> Iterator[dict]:
    """User turns that the target writes from nothing or from a general opening."""
    for index in range(blank):
        yield make.row("", "open-blank", f"blank:{index}", max_user=160)
    for start in OPENINGS:
        for index in range(per_opening):
            yield make.row(start, "open-general", f"general:{start}:{index}", max_user=160)
    for index in range(500):
        yield make.row("Summarize:", "open-summarization", f"summarize:{index}", max_user=250)


def library_nodes(library: Path) -> Iterator[tuple[str, str, ast.AST]]:
    """(module, source, node) of documented functions, classes and modules."""
    for file in sorted(library.rglob("*.py")):
        relative = file.relative_to(library)
        if {"test", "tests", "site-packages", "idle_test", "lib2to3"} & set(relative.parts):
            continue
        try:
            source = file.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield str(relative), source, node


def function_head(source: str, node: ast.FunctionDef) -> str:
    """Signature and docstring of a function, without indentation."""
    docstring = node.body[0]
    lines = source.splitlines()[node.lineno - 1 : docstring.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines) + "\n"


def from_library(make: PromptMaker, library: Path, functions: int) -> Iterator[dict]:
    """Code to complete and passages to summarize, from the standard library."""
    nodes = [n for n in library_nodes(library) if ast.get_docstring(n[2])]
    make.random.shuffle(nodes)
    for module, source, node in nodes:
        doc = ast.get_docstring(node) or ""
        words = len(doc.split())
        if isinstance(node, ast.FunctionDef) and functions and 6 <= words <= 90:
            functions -= 1
            text = CODE_INSTRUCTION + function_head(source, node)
            yield make.row(text, "code", f"library:{module}:{node.name}")
            if functions % 2 == 0:
                start = f'{CODE_INSTRUCTION}def {node.name}({ast.unparse(node.args)}):\n    """'
                yield make.row(start, "open-code", f"library:{module}:{node.name}", max_user=90)
        elif not isinstance(node, ast.FunctionDef) and 60 <= words <= 700:
            yield make.row(f"Summarize: {doc}", "part-summarization", f"library:{module}")
            start = make.random.choice(QUESTION_OPENINGS)
            yield make.row(f"{doc}\n{start}", "open-rag", f"library:{module}", max_user=30)


def keep_clean(
    rows: list[dict], evaluation: list[str], tokenizer: PreTrainedTokenizerBase
) -> list[dict]:
    """Leaves out repeated greedy prompts and those that share a long run of tokens."""
    forbidden: set[int] = set()
    for text in evaluation:
        forbidden |= ngrams(tokenizer(text, add_special_tokens=False).input_ids)
    seen: set[tuple[str, float]] = set()
    kept, close = [], 0
    encoded = tokenizer([row["text"] for row in rows], add_special_tokens=False).input_ids
    for row, tokens in zip(rows, encoded, strict=True):
        if not forbidden.isdisjoint(ngrams(tokens)):
            close += 1
            continue
        key = (row["text"], row["temperature"])
        if row["open"] or key not in seen:
            kept.append(row)
        seen.add(key)
    print(f"{close} prompts share 13 tokens with an evaluation row and are left out")
    return kept


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    add_target(parser)
    parser.add_argument("--spec-bench", type=Path, default=Path("spec-bench-questions.jsonl"))
    parser.add_argument("--humaneval", type=Path, default=Path("humaneval-questions.jsonl"))
    parser.add_argument("--dialogs", type=Path, default=Path("smollm2-self-dialogs.jsonl"))
    parser.add_argument(
        "--stdlib",
        type=Path,
        default=Path(sysconfig.get_path("stdlib")),
        help="folder of the Python standard library's sources",
    )
    parser.add_argument("--blank", type=int, default=3000)
    parser.add_argument("--per-opening", type=int, default=25)
    parser.add_argument("--functions", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    need(parser, args.target, args.spec_bench, args.humaneval, args.dialogs, args.stdlib)
    make = PromptMaker(args.seed)
    training, held = evaluation_split(read_jsonl(args.spec_bench))
    rows = [
        *from_spec_bench(make, training),
        *openings_of_spec_bench(make, training),
        *passages_of_spec_bench(make, training),
        *from_dialogs(make, read_jsonl(args.dialogs)),
        *blank_and_general(make, args.blank, args.per_opening),
        *from_library(make, args.stdlib, args.functions),
    ]
    evaluation = [row["turns"][0] for row in held + read_jsonl(args.humaneval)]
    rows = keep_clean(rows, evaluation, load_tokenizer(args.target))
    make.random.shuffle(rows)  # so that any first part of the file is like the whole
    write_jsonl(args.work / "prompts.jsonl", rows)
    print(f"{len(rows)} prompts: {dict(Counter(row['source'] for row in rows))}")


if __name__ == "__main__":
    main()
