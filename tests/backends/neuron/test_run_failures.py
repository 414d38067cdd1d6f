"""What goes wrong on the way: at loading, in a call, in its outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nxdi_golden as golden
import pytest
from nxdi_double.opened import BUILDS, WAYS, Opened, alone, config_of, generated, opened, spec_of
from nxdi_double.recorder import Recorder

from neuron_spec.backends.neuron.config import NxdiConfig
from neuron_spec.backends.neuron.loading import check_runnable, runtime_variables, set_environment
from neuron_spec.backends.neuron.recorded import recorded_config
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import FailEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.errors import ArtifactError, BackendError

Open = Callable[..., Opened]
CALL = "NeuronLlamaForCausalLM.forward"
NRT = RuntimeError("nrt_execute status=1202\x1b[31m")


@pytest.mark.parametrize("name", WAYS)
def test_a_failed_prompt_names_the_call_and_leaves_the_slot_free(
    name: str, open_: Open, nxdi: Recorder
) -> None:
    speculator = open_(name).speculator
    nxdi.failures[CALL] = NRT
    with pytest.raises(BackendError) as failed:
        speculator.prefill(0, golden.PROMPTS[0])
    text = str(failed.value)
    assert "target's context encoding of 5 tokens in slot 0" in text
    assert "RuntimeError" in text and "status=1202" in text and "\x1b" not in text
    nxdi.failures.clear()
    assert generated(speculator, [golden.PROMPTS[0]], 9) == [alone(name, golden.PROMPTS[0], 9)]


@pytest.mark.parametrize("name", WAYS)
def test_a_failed_step_fails_its_requests_and_no_later_one(
    name: str, open_: Open, nxdi: Recorder
) -> None:
    speculator = open_(name).speculator
    calls = ["medusa_speculation_model.forward"] if name == "medusa" else [CALL]
    k = speculator.limits.num_draft_tokens
    loop = DecodeLoop(speculator, lambda ids: "", draft_length=DraftLength.constant(k))
    loop.submit(Request(tuple(golden.PROMPTS[0]), max_new_tokens=20))
    speculator_step = speculator.step

    def step(k: int) -> Any:
        nxdi.failures.update(dict.fromkeys(calls, NRT))
        return speculator_step(k)

    speculator.step = step  # type: ignore[method-assign]
    events = [*loop.advance(), *loop.advance()]
    (failure,) = [event for event in events if isinstance(event, FailEvent)]
    assert isinstance(failure.error, BackendError)
    call = "target's step at position 5"
    if name == "unfused":
        call = "draft's context encoding of 5 tokens in slot 0"
    assert f"{call}: RuntimeError" in str(failure.error)
    assert failure.error.exit_code == 1
    nxdi.failures.clear()
    del speculator.step
    assert loop.is_idle
    assert generated(speculator, [golden.PROMPTS[1]], 9) == [alone(name, golden.PROMPTS[1], 9)]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_graphs_that_do_not_load(role: str, nxdi: Recorder, tmp_path: Path) -> None:
    count = iter(range(2))
    wanted = ["target", "draft"].index(role)

    class FailsAt(dict[str, BaseException]):
        def __contains__(self, name: object) -> bool:
            return str(name).endswith(".load") and next(count) == wanted

        def __getitem__(self, name: str) -> BaseException:
            return OSError("NRT_RESOURCE: no free cores")

    nxdi.failures = FailsAt()
    with pytest.raises(BackendError, match=f"load the {role}: OSError .*no free cores"):
        opened(nxdi, tmp_path, "unfused")


def test_each_application_is_loaded_once_from_its_folder(nxdi: Recorder, tmp_path: Path) -> None:
    opened(nxdi, tmp_path, "unfused")
    loaded = nxdi.arguments_of("NeuronLlamaForCausalLM.load")
    assert [Path(call["compiled_model_path"]).name for call in loaded] == ["target", "draft"]
    assert not any(call["skip_warmup"] for call in loaded)


def test_outputs_that_make_no_sense_are_not_handed_on(open_: Open, nxdi: Recorder) -> None:
    speculator = open_("eagle1").speculator
    speculator.prefill(0, golden.PROMPTS[0])
    compute = nxdi.forward
    assert compute is not None

    def wrong(application: Any, given: dict[str, Any]) -> Any:
        outputs = compute(application, given)
        outputs.fused_outputs[3] = outputs.fused_outputs[3] + 9
        return outputs

    nxdi.forward = wrong
    with pytest.raises(BackendError, match="from position 5 to"):
        speculator.step(4)


def rendered(name: str, **changes: Any) -> NxdiConfig:
    draft = BUILDS[name][1]
    directory = golden.GOLDEN / draft if draft and draft != "medusa" else None
    return config_of(name, spec_of(name, **changes), directory)


@pytest.mark.parametrize("name", WAYS)
def test_a_recorded_configuration_is_the_rendered_one(name: str) -> None:
    config = rendered(name)
    found = recorded_config(json.loads(json.dumps(config.as_dict())))
    assert {**found.as_dict(), "reasons": {}} == {**config.as_dict(), "reasons": {}}


@pytest.mark.parametrize(
    ("path", "value"),
    [(["neuron_config"], None), (["model_class", "__name__"], "NeuronOther"), (["draft"], {})],
)
def test_a_damaged_record_is_refused(path: list[str], value: Any) -> None:
    record = json.loads(json.dumps(rendered("eagle1").as_dict()))
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ArtifactError, match="compile again"):
        recorded_config(record)


def test_the_environment_of_the_compile_is_set_or_refused() -> None:
    variables = runtime_variables(rendered("eagle1"), "trn2.48xlarge")
    assert variables["NEURON_RT_VIRTUAL_CORE_SIZE"] == variables["NEURON_LOGICAL_NC_CONFIG"] == "1"
    environment = {"HOME": "x", "NEURON_LOGICAL_NC_CONFIG": "1"}
    set_environment(variables, environment)
    assert environment == {"HOME": "x", **variables}
    with pytest.raises(ArtifactError, match="unset NEURON_RT_VIRTUAL_CORE_SIZE"):
        set_environment(variables, {"NEURON_RT_VIRTUAL_CORE_SIZE": "2"})


@pytest.mark.parametrize(
    ("neuron", "named"),
    [
        ({"config": {"async_mode": True}}, "neuron.config.async_mode"),
        ({"sampling": {"global_topk": 0}}, "neuron.sampling.global_topk"),
    ],
)
def test_settings_that_the_runner_cannot_read(neuron: dict[str, Any], named: str) -> None:
    check_runnable(rendered("eagle1"))
    with pytest.raises(ArtifactError, match=named):
        check_runnable(rendered("eagle1", neuron=neuron))
