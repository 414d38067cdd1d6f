"""Five prompts of different kinds: two that copy much from the prompt, two that copy some, one that
copies nothing."""

from __future__ import annotations

from neuron_spec.bench.slices import slices
from neuron_spec.bench.workload import WorkloadRow

EDIT = """Rename the parameter `d` to `discount` everywhere in this code and return the whole code.

```python
def total_price(items, d=0.0):
    \"\"\"Sum of price times quantity over all items, less the given share.\"\"\"
    if not 0.0 <= d < 1.0:
        raise ValueError(f"expected 0 <= d < 1, found {d}")
    total = 0.0
    for item in items:
        total += item["price"] * item["quantity"]
    return total * (1.0 - d)


def print_receipt(items, d=0.0):
    for item in items:
        print(item["name"], item["price"], item["quantity"])
    print("total", total_price(items, d=d))
```"""


def prompts() -> dict[str, WorkloadRow]:
    """Name -> prompt; all but the edit are built-in prompts of the package."""
    known = slices()
    return {
        "code": known["code"][0],
        "edit": WorkloadRow([{"role": "user", "content": EDIT}], "edit"),
        "extract 1": known["extraction"][1],
        "extract 2": known["extraction"][3],
        "chat": known["chat"][0],
    }
