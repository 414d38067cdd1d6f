"""Each of the 19 recorded behaviours is a finding, said to be settled, or left to a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from neuron_builds import assert_found, codes_of, findings_of

import neuron_spec.preflight
from neuron_spec.platforms.nxdi_models import FUSED
from neuron_spec.preflight.neuron.behaviours import BEHAVIOURS, CONFIGURED

BUILDS: dict[str, dict[str, Any]] = {
    "alone": {},
    "host": {"method": "ngram"},
    "unfused": {"method": "model", "neuron": {"fused": False}},
    "fused": {"method": "model"},
    "eagle": {"method": "eagle"},
    "eagle-tree": {"method": "eagle", "draft_fields": {"tree": [[0], [1]]}},
    "eagle3": {"method": "eagle3"},
    "medusa": {"method": "medusa", "target": "vicuna-7b"},
}


def message_of(code: str, fields: dict[str, Any]) -> str:
    return next((f.message for f in findings_of(**fields) if f.code == f"neuron-{code}"), "")


def test_all_nineteen_are_settled_by_somebody() -> None:
    assert [b.number for b in BEHAVIOURS] == list(range(1, 20))
    assert all(b.codes for b in BEHAVIOURS if b.by == "constraint")


def test_the_codes_that_settle_them_exist() -> None:
    sources = Path(neuron_spec.preflight.__file__).parent.rglob("*.py")
    text = "\n".join(path.read_text() for path in sources)
    for code in {code for behaviour in BEHAVIOURS for code in behaviour.codes}:
        told_by_a_format = code == "draft-target-layers"  # see checkpoints.formats.eagle3
        spellings = (code, code.removeprefix("neuron-"))
        is_told = any(f'"{spelling}"' in text for spelling in spellings)
        assert is_told or told_by_a_format, code


@pytest.mark.parametrize("path", BUILDS)
def test_each_path_is_told_what_concerns_it(path: str) -> None:
    handled, device = (message_of(code, BUILDS[path]) for code in ("handled", "on-instance"))
    for behaviour in BEHAVIOURS:
        told = {"device": device, "config": handled, "runner": handled}.get(behaviour.by, "")
        expected = path in behaviour.paths and behaviour.by != "constraint"
        assert (behaviour.text in told) is expected, behaviour.number


def test_only_devices_can_show_what_is_left_to_them() -> None:
    told = {path: message_of("on-instance", fields) for path, fields in BUILDS.items()}
    numbers = {path: [b.number for b in BEHAVIOURS if b.text in told[path]] for path in BUILDS}
    assert numbers == {
        "alone": [], "host": [], "unfused": [], "eagle-tree": [],
        "fused": [1], "eagle": [1], "eagle3": [1], "medusa": [1],
    }  # fmt: skip
    assert set(FUSED) <= numbers.keys()


def test_medusa_is_not_trusted_in_silence() -> None:
    assert_found("medusa-cache", BUILDS["medusa"], BUILDS["eagle"], "warning")
    told, handled = (message_of(code, BUILDS["medusa"]) for code in ("medusa-cache", "handled"))
    assert "NxDI's loop, and so vLLM, would not" in told and "no device" in told
    assert "position 0" in handled and "runs again what was accepted beside it" in handled


def test_every_build_pads_a_prompt_of_one_token() -> None:
    for fields in BUILDS.values():
        assert "a prompt of one token is padded by the runner" in message_of("handled", fields)


def test_what_the_configuration_does_unasked_is_told_too() -> None:
    assert all(b.number == 0 and b.by in ("config", "runner") for b in CONFIGURED)
    assert "max_new_tokens" in message_of("handled", BUILDS["medusa"])
    assert "max_new_tokens" not in message_of("handled", BUILDS["eagle"])
    assert "keeps the target's speculation_length" in message_of("handled", BUILDS["eagle"])
    assert "exactly k + 1 inputs" in message_of("handled", BUILDS["host"])


def test_a_target_alone_has_little_to_be_told() -> None:
    assert not codes_of() & {"on-instance", "medusa-cache"}
    assert message_of("handled", {}).count(";") == 1
