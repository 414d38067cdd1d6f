"""TOML file -> frozen `BuildSpec`; every fault is told with the file, the key and the mend."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from neuron_spec.errors import SpecError, nearest
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import Tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SET_ON_LOADING = ("name", "base_directory")


def load_spec(path: str | Path) -> BuildSpec:
    """Read a build spec.

    Raises:
        SpecError: the file is missing, not TOML, or holds unknown, missing or invalid fields;
            all faults are listed in one error.
    """
    path = Path(path)
    data = _read_toml(path)
    faults = [f"'{key}' is not a key of a build spec" for key in _SET_ON_LOADING if key in data]
    settings = {
        **_with_tree_file(data, path.absolute().parent),
        "name": path.stem,
        "base_directory": path.absolute().parent,
    }
    try:
        spec = BuildSpec.model_validate(settings)
    except ValidationError as error:
        faults += [_explain(fault) for fault in error.errors()]
    if faults:
        raise SpecError("\n  ".join(["invalid build spec", *faults]), where=path)
    return spec


def _read_toml(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise SpecError("is a directory", where=path, expected="a build spec (a TOML file)")
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return data
    except FileNotFoundError:
        mend = "name an existing file; examples are in compile/"
        raise SpecError("no such build spec", where=path, mend=mend) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"not valid TOML: {error}", where=path) from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", where=path) from None


def _with_tree_file(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """`draft.tree` may name a JSON file: a list of rank paths, or NxDI's table of children."""
    draft = data.get("draft")
    if not isinstance(draft, dict) or not isinstance(draft.get("tree"), str):
        return data
    path = base / draft["tree"]
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"draft.tree cannot be read: {error.strerror}", where=path) from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"draft.tree is not valid JSON: {error}", where=path) from None
    if isinstance(tree, dict):
        tree = Tree.from_children(tree).paths
    return {**data, "draft": {**draft, "tree": tree}}


def _explain(fault: ErrorDetails) -> str:
    """One line a fault: the dotted key, what is wrong with it, and what to write instead."""
    location = [str(part) for part in fault["loc"]]
    key = ".".join(location) or "(whole file)"
    if fault["type"] == "extra_forbidden":
        return f"unknown key '{key}': {nearest(location[-1], _known_keys(location[:-1]))}"
    if fault["type"] == "missing":
        return f"missing key '{key}'"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" + _found(fault)


def _found(fault: ErrorDetails) -> str:
    value = fault["input"]
    return "" if isinstance(value, (dict, BaseModel)) else f" (found {value!r})"


def _known_keys(section: list[str]) -> list[str]:
    model: type[BaseModel] = BuildSpec
    for part in section:
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *get_args(annotation))
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return [name for name in model.model_fields if name not in _SET_ON_LOADING]
