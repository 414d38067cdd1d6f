"""Building and opening artifacts for Neuron: NxD Inference compiles, everything about it is
recorded. NxDI is imported inside functions only."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_spec.artifacts import Artifact, NeuronRecord, installed_version
from neuron_spec.backends.builds import BuildPreview
from neuron_spec.backends.neuron.config import NxdiConfig, render
from neuron_spec.backends.neuron.environment import (
    CACHE,
    WORK_DIRECTORY,
    build_variables,
    deciding_variables,
    variables_set,
)
from neuron_spec.backends.neuron.failures import (
    GRAPH,
    GRAPH_FOLDERS,
    disk_is_full,
    failure_text,
    keep_compiler_logs,
)
from neuron_spec.backends.neuron.graph_list import Buckets, graphs_of, planned_graphs
from neuron_spec.backends.neuron.leftovers import forget_others
from neuron_spec.backends.neuron.objects import (
    Applications,
    compiled_folder,
    make_application,
    require_packages,
)
from neuron_spec.backends.neuron.output import last_lines, output_into
from neuron_spec.backends.neuron.places import Places
from neuron_spec.backends.neuron.progress import GRAPHS, SHARDS, Counted, watched
from neuron_spec.backends.neuron.reading import facts_here, facts_of
from neuron_spec.checkpoints.prepare import PreparedCheckpoint
from neuron_spec.errors import (
    BackendError,
    DependencyError,
    SpecError,
    StorageError,
    storage_errors,
)
from neuron_spec.files import Progress
from neuron_spec.spec.schema import BuildSpec

if TYPE_CHECKING:
    from neuron_spec.backends.base import Speculator

COMPILED = "model.pt"  # the last file that NxDI writes before the weights; its mark of success
_SHARD_FILES = "tp*_sharded_checkpoint.safetensors"
_LIBRARIES = (
    "neuronx-distributed-inference",
    "neuronx-distributed",
    "torch-neuronx",
    "neuronx-cc",
    "torch",
    "transformers",
)


class NeuronBackend:
    """See `neuron_spec.backends.builds.Backend`."""

    name = "neuron"

    def require(self) -> None:
        """See `require_packages`."""
        require_packages()

    def libraries(self) -> dict[str, str]:
        """Of the whole chain from a checkpoint to a NEFF."""
        found = {name: installed_version(name) for name in _LIBRARIES}
        return {name: version for name, version in found.items() if version}

    def environment(self) -> dict[str, str]:
        """See `deciding_variables`."""
        return deciding_variables(os.environ)

    def preview(self, spec: BuildSpec, destination: Path) -> BuildPreview:
        """Rendered from what is here; NxDI is not asked."""
        config, places = render(spec, facts_here(spec)), Places.of(destination, destination)
        graphs = planned_graphs(config)
        variables = _variables(config, spec, places)
        return BuildPreview(
            tuple(_phases(config, graphs)),
            graphs,
            {**variables, WORK_DIRECTORY: "one beside the artifact, removed at the end"},
            {"log": str(places.log), "cache of compiled graphs": variables[CACHE]},
        )

    def build(
        self,
        spec: BuildSpec,
        prepared: PreparedCheckpoint,
        folder: Path,
        *,
        destination: Path,
        progress: Progress,
    ) -> dict[str, Any]:
        """Compile every application into a folder of its role.

        Raises:
            DependencyError: NxDI is not here, or lacks a class.
            SpecError: NxDI refuses a setting.
            StorageError: the disk is full.
            BackendError: a graph did not compile; the message says which, why, and what to change.
        """
        require_packages()
        config = render(spec, facts_of(spec, prepared.target, prepared.draft))
        places, started = Places.of(folder, destination), time.monotonic()
        variables = _variables(config, spec, places)
        with variables_set(variables), output_into(places.log):
            applications = _applications(spec, config, prepared)
            _refuse_shared_weights(spec, applications)
            with places.working() as work:
                for role, application in applications.by_role.items():
                    with _told(config, work / role, places.log, variables[CACHE]):
                        _quantize(application)
                        _compile(application, folder, work=work / role, progress=progress)
        return _record(spec, config, applications, variables, time.monotonic() - started)

    def open(self, artifact: Artifact) -> Speculator:
        """See `open_speculator`."""
        from neuron_spec.backends.neuron.opening import open_speculator

        return open_speculator(artifact)


BACKEND = NeuronBackend()


def _variables(config: NxdiConfig, spec: BuildSpec, places: Places) -> dict[str, str]:
    assert spec.neuron is not None
    instance = spec.neuron.instance
    return build_variables(config, instance, cache=places.cache, given=os.environ)


def _phases(config: NxdiConfig, graphs: dict[str, Buckets]) -> Iterator[str]:
    yield "import NxD Inference, and give it the configuration"
    settings = config.neuron_arguments
    if settings.get("quantized"):
        yield f"quantize the weights, unless {settings['quantized_checkpoints_path']} is there"
    for role in dict.fromkeys(name.split()[0] for name in graphs):
        count = sum(len(buckets) for name, buckets in graphs.items() if name.split()[0] == role)
        yield f"{role}: trace and compile {count} graphs, write {role}/{COMPILED}"
        if settings.get("save_sharded_checkpoint"):
            yield f"{role}: write every rank's weights to {role}/weights"


def _applications(
    spec: BuildSpec, config: NxdiConfig, prepared: PreparedCheckpoint
) -> Applications:
    """NxDI's constructors check their settings, each with exceptions of its own kind."""
    try:
        return make_application(config, prepared.target, prepared.draft)
    except ImportError as error:
        raise DependencyError(
            f"NxD Inference does not import: {error}",
            mend=f"install the packages of SDK {spec.neuron.sdk if spec.neuron else ''}; "
            "neuron-spec check SPEC says which are here",
        ) from error
    except OSError as error:
        if error.errno is not None:  # else a library's own words about a checkpoint
            raise
        raise _refused(spec, error) from error
    except Exception as error:
        raise _refused(spec, error) from error


def _refused(spec: BuildSpec, error: Exception) -> SpecError:
    words = str(error).strip() or type(error).__name__
    return SpecError(
        f"NxD Inference refuses the configuration: {words}",
        where=spec.name,
        mend="change what it names; neuron-spec check SPEC --show-config shows every setting and "
        "where it comes from",
    )


def _refuse_shared_weights(spec: BuildSpec, applications: Applications) -> None:
    """A draft of its own has a copy of the target's settings, the place of its weights too."""
    if applications.draft is None or not applications.draft.neuron_config.quantized:
        return
    path = applications.draft.neuron_config.quantized_checkpoints_path
    if path == applications.target.neuron_config.quantized_checkpoints_path:
        raise SpecError(
            f"the draft would load the target's quantized weights, {path}",
            where=spec.name,
            mend="set neuron.draft_config.quantized = false, or another quantized_checkpoints_path "
            "there",
        )


@contextmanager
def _told(config: NxdiConfig, work: Path, log: Path, cache: str) -> Iterator[None]:
    """Failures in the block as errors of ours; the compiler's logs are kept first."""
    try:
        with storage_errors(log.parent):
            yield
    except BaseException as error:
        keep_compiler_logs(work, log)
        if isinstance(error, StorageError) or not isinstance(error, Exception):  # Ctrl-C
            raise
        if disk_is_full("\n".join([str(error), *last_lines(log, 50)])):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        text = failure_text(error, config, work=work, log=log, cache=cache)
        raise BackendError(text) from error


def _quantize(application: Any) -> None:
    """As NxDI's `inference_demo.py` does before it compiles; a file that is there is kept."""
    neuron_config = application.neuron_config
    path = Path(neuron_config.quantized_checkpoints_path or "")
    if not neuron_config.quantized or path.exists():
        return
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    neuron_config.quantized_checkpoints_path = str(partial)
    try:
        application.save_quantized_state_dict(application.model_path, application.config)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
        neuron_config.quantized_checkpoints_path = str(path)


def _compile(application: Any, folder: Path, *, work: Path, progress: Progress) -> None:
    role = work.name
    compiled = compiled_folder(folder, role)
    os.environ[WORK_DIRECTORY] = str(work)
    neuron_config = application.neuron_config
    num_shards = neuron_config.local_ranks_size if neuron_config.save_sharded_checkpoint else 0
    num_graphs = sum(len(buckets) for buckets in graphs_of(role, application).values())
    graphs = Counted(f"{role} {GRAPHS}", work, f"{GRAPH_FOLDERS}/{GRAPH}", num_graphs)
    shards = Counted(f"{role} {SHARDS}", compiled / "weights", _SHARD_FILES, num_shards)
    forget_others(application)
    with watched(progress, graphs, shards):
        application.compile(str(compiled))
    if not (compiled / COMPILED).is_file():
        raise BackendError(f"NxD Inference wrote no {role}/{COMPILED}, and raised no error")
    if shards.done < num_shards:
        raise BackendError(f"NxD Inference wrote weights of {shards.done} of {num_shards} ranks")


def _record(
    spec: BuildSpec,
    config: NxdiConfig,
    applications: Applications,
    variables: dict[str, str],
    seconds: float,
) -> dict[str, Any]:
    neuron, settings = spec.neuron, config.neuron_arguments
    assert neuron is not None
    graphs: dict[str, Buckets] = {}
    for role, application in applications.by_role.items():
        graphs |= graphs_of(role, application)
    return NeuronRecord(
        instance=neuron.instance,
        sdk=neuron.sdk,
        tp_degree=neuron.tp_degree,
        logical_nc_config=settings["logical_nc_config"],
        batch_size=spec.shape.batch_size,
        graphs=graphs,
        config=config.as_dict(),
        environment={**deciding_variables(os.environ), **variables},
        holds_weights=neuron.save_sharded_checkpoint,
        compile_seconds=round(seconds, 1),
    ).model_dump()
