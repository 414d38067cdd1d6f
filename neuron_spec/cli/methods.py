"""`neuron-spec methods`: what can draft, what can verify, and what each rule guarantees."""

from __future__ import annotations

import click

from neuron_spec.cli.common import json_option, out, print_json

# Draft method -> (what drafts, the way it takes through NxDI 0.9 or None).
_DRAFTS = {
    "none": ("nothing: the target alone", "alone"),
    "model": ("a smaller language model", "unfused, fused"),
    "medusa": ("Medusa heads", "medusa"),
    "hydra": ("Hydra or Hydra++ heads", None),
    "eagle": ("an EAGLE v1 head", "eagle, eagle-tree"),
    "eagle3": ("an EAGLE-3 head", "eagle3"),
    "mtp": ("the target's own multi-token-prediction layer", None),
    "early-exit": ("the target's own first layers", None),
    "ngram": ("what followed the last tokens before", None),
    "suffix": ("a suffix tree over prompt and earlier answers", None),
}


@click.command(
    "methods",
    short_help="Tables of draft methods, rules and their guarantees.",
    epilog="Example: neuron-spec methods --markdown",
)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@json_option
def command(markdown: bool, as_json: bool) -> None:
    """Say what can draft (draft.method) and verify (verification.rule), and what each rule claims.

    Every draft works with every rule on the reference backend. The last column of the first table
    is the way that the method takes through NxDI.
    """
    drafts, rules = draft_rows(), rule_rows()
    if as_json:
        print_json({"drafts": drafts, "rules": rules})
    elif markdown:
        click.echo(_markdown(drafts) + "\n\n" + _markdown(rules))
    else:
        for rows in (drafts, rules):
            out().print(_table(rows))


def draft_rows() -> list[dict[str, str]]:
    """One row a draft method."""
    from neuron_spec.spec import schema

    def shapes(method: str) -> str:
        if method == "none":
            return "-"
        named = {
            "chain": schema.DRAFT_METHODS,
            "tree": schema.METHODS_WITH_TREE,
            "dynamic tree": schema.METHODS_WITH_DYNAMIC_TREE,
            "drawn chain": schema.METHODS_THAT_SAMPLE,
        }
        return ", ".join(shape for shape, methods in named.items() if method in methods)

    return [
        {
            "draft.method": method,
            "what drafts": _DRAFTS[method][0],
            "shapes": shapes(method),
            "NxDI 0.9": _DRAFTS[method][1] or "-",
        }
        for method in schema.DRAFT_METHODS
    ]


def rule_rows() -> list[dict[str, str]]:
    """One row a verification rule; a rule whose claims depend on a parameter has two."""
    from neuron_spec.spec.guarantees import claims_for
    from neuron_spec.spec.schema import RULES

    rows = []
    for rule in RULES:
        cases: tuple[tuple[str, float | None], ...] = ((rule, None),)
        if rule == "lenient":
            cases = (("lenient, lenience < 1", 0.5), ("lenient, lenience = 1", 1.0))
        for label, lenience in cases:
            claims = claims_for(rule, lenience=lenience)
            row: dict[str, str] = {"verification.rule": label}
            row |= {claim.level: claim.status for claim in claims}
            rows.append(row)
    return rows


def _markdown(rows: list[dict[str, str]]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row[name] for name in head) + " |" for row in rows]
    return "\n".join(lines)


def _table(rows: list[dict[str, str]]):  # type: ignore[no-untyped-def]  # rich is imported when used
    from rich.table import Table

    table = Table()
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*row.values())
    return table
