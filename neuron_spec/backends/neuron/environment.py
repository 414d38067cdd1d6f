"""Environment variables of a build and of a run: pure functions of the configuration.

Sources: `BASE_COMPILE_WORK_DIR`, NxDI `models/application_base.py`; `NEURON_COMPILE_CACHE_URL` and
`NEURON_CC_FLAGS`, AWS Neuron documentation, neuron-caching; `NEURON_LOGICAL_NC_CONFIG` and
`NEURON_PLATFORM_TARGET_OVERRIDE`, NxDI `models/config.py`; the two of FP8, NxDI
`inference_demo.py: create_neuron_config`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from neuron_spec.backends.neuron.config import NxdiConfig

WORK_DIRECTORY = "BASE_COMPILE_WORK_DIR"
CACHE = "NEURON_COMPILE_CACHE_URL"

# What the compiler, NxD and NxDI read from outside while they compile; paths decide nothing.
_DECIDING = (
    "DISABLE_NUMERIC_CC_TOKEN",
    "NEURON_CC_FLAGS",
    "NEURON_COMBINE_KV_ALLOCATIONS",
    "UNSAFE_FP8FNCAST",
    "XLA_DENSE_GATHER_FACTOR",
    "XLA_HANDLE_SPECIAL_SCALAR",
)


def device_variables(config: NxdiConfig, instance: str) -> dict[str, str]:
    """What must be the same when graphs are compiled and when they run.

    The logical cores would otherwise be taken from the machine's environment, against the spec; the
    platform from the machine's chips, and a machine that only compiles may have none.
    """
    settings = {name: setting.value for name, setting in config.neuron_config.items()}
    variables = {
        "NEURON_LOGICAL_NC_CONFIG": str(settings["logical_nc_config"]),
        "NEURON_PLATFORM_TARGET_OVERRIDE": _platform(instance),
    }
    is_fp8 = settings.get("quantized") and settings.get("quantization_dtype") == "f8e4m3"
    if is_fp8 or settings.get("kv_cache_quant"):
        variables |= {"XLA_HANDLE_SPECIAL_SCALAR": "1", "UNSAFE_FP8FNCAST": "1"}
    return variables


def build_variables(
    config: NxdiConfig, instance: str, *, cache: Path, given: Mapping[str, str]
) -> dict[str, str]:
    """What a build sets, but for the work directory, which each application gets for itself.

    Args:
        cache: of compiled graphs; one that the user's environment names is kept.
        given: the user's environment.
    """
    url = given.get(CACHE) or str(cache)
    if "://" not in url:  # NxD compiles in a folder of its own
        url = str(Path(url).absolute())
    return {CACHE: url, **device_variables(config, instance)}


def deciding_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Those of the user's environment that decide what is compiled."""
    return {name: given[name] for name in _DECIDING if given.get(name)}


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set them for the block; afterwards the environment is as before, whatever NxDI has set."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _platform(instance: str) -> str:
    """As torch-neuronx calls them: inf2, trn1, trn1n, trn2, trn3; trn2u has the chips of trn2."""
    family = instance.partition(".")[0]
    return family if family in ("inf2", "trn1", "trn1n") else family[:4]
