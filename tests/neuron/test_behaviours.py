"""What only a device can settle: every behaviour that the preflight leaves to it has a test here,
and so have those of Medusa that our runner mends by what it feeds the graph.

On the double these show what was recorded of NxDI on a CPU; on a device, whether it is the same.
"""

from __future__ import annotations

import nxdi_golden as golden
import pytest
from neuron_smoke import CASES, MEDUSA_TREE, Artifacts, Open, assert_greedy

from neuron_spec.preflight.neuron.behaviours import BEHAVIOURS

CASES_OF = {
    1: ("fused_draft", "eagle1", "eagle1_norm", "eagle3", "medusa"),
    13: ("medusa",),
    14: ("medusa",),
}
MENDED = {13, 14}


def test_every_behaviour_that_waits_for_a_device_is_here() -> None:
    assert {b.number for b in BEHAVIOURS if b.by == "device"} == set(CASES_OF) - MENDED
    assert {b.by for b in BEHAVIOURS if b.number in MENDED} == {"runner"}
    tests = "\n".join(name for name in globals() if name.startswith("test_behaviour_"))
    for number in CASES_OF:
        assert f"test_behaviour_{number}_" in tests


@pytest.mark.parametrize("run", range(3))
@pytest.mark.parametrize("case", CASES_OF[1])
def test_behaviour_1_greedy_output_is_the_targets(session: Open, case: str, run: int) -> None:
    """The same prompts with speculation and by the target alone, both on the device."""
    prompt = golden.PROMPTS[run]
    options = {"max_new_tokens": 60, "ignore_eos": True}
    found = session(case).generate(prompt, **options)
    assert_greedy(CASES[case].target, prompt, list(found.token_ids))
    if CASES[case].target == "target":
        alone = session("target_alone").generate(prompt, **options)
        assert found.token_ids == alone.token_ids
    assert found.acceptance.num_accepted > 0


@pytest.mark.parametrize("run", range(3))
def test_behaviour_13_a_medusa_step_gathers_hidden_states(artifacts: Artifacts, run: int) -> None:
    """The graph gathers from the smallest position id on. A step whose states were another's
    would give tokens that the target does not."""
    prompt = golden.PROMPTS[run]
    speculator = artifacts.speculator("medusa")
    tokens = [speculator.prefill(0, prompt).token]
    tokens += speculator.step(len(MEDUSA_TREE))[0].tokens
    assert_greedy("target", prompt, tokens)


@pytest.mark.parametrize("run", range(3))
def test_behaviour_14_medusa_keeps_what_it_accepted(session: Open, run: int) -> None:
    """After a step that accepted tokens of a side branch, the cache holds those and not the
    entries of the rejected ones: as recorded, output departed from greedy only steps later."""
    prompt = golden.PROMPTS[run]
    engine = session("medusa")
    found = engine.generate(prompt, max_new_tokens=None, ignore_eos=True)
    assert found.acceptance.num_accepted > 0
    assert_greedy("target", prompt, list(found.token_ids))
