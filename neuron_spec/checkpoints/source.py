"""A model's name in a spec -> a directory: local, from the hub, or the demo target."""

from __future__ import annotations

import re
from pathlib import Path

from neuron_spec.checkpoints import demo_target
from neuron_spec.checkpoints.tensors import HEAD_FILES
from neuron_spec.errors import CheckpointError
from neuron_spec.files import Progress, no_progress

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
# Heads beside a whole model are pickles even where the model is not.
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", *HEAD_FILES]
_HUB_PICKLES = ["*.bin", "*.pt"]


def resolve_model(model: str, base_directory: Path, *, progress: Progress = no_progress) -> Path:
    """Find a model: an existing directory, `demo:<name>`, or a hub id `owner/name[@revision]`.

    Args:
        base_directory: what a relative path is relative to (the spec file's folder).

    Raises:
        CheckpointError: no such directory, or the hub has it not or cannot be reached.
    """
    if model.startswith(demo_target.SCHEME):
        return demo_target.ensure(model, progress)
    path = base_directory / Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists() or not is_hub_id(model):
        raise CheckpointError(
            "no such directory" if not path.exists() else "is not a directory",
            where=path,
            expected="a checkpoint directory, a hub id (owner/name), or "
            f"{demo_target.SCHEME}{demo_target.NAME}",
            mend="correct the path; relative paths start at the spec file's folder",
        )
    return _download(model, progress)


def find_model(model: str, base_directory: Path) -> Path | None:
    """The directory of a model that is on this machine; nothing is downloaded or made."""
    if model.startswith(demo_target.SCHEME):
        return demo_target.find(model)
    path = base_directory / Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    return _cached(model) if is_hub_id(model) else None


def is_hub_id(model: str) -> bool:
    """Whether a name has the form of a hub id: `owner/name`, or `owner/name@revision`."""
    return _HUB_ID.fullmatch(model) is not None


def _cached(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = model.partition("@")
    config = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    return Path(config).parent if isinstance(config, str) else None


def _snapshot(repository: str, revision: str | None) -> Path:
    """The snapshot's folder (downloads are resumable and cached).

    Safetensors where there are any, pickles otherwise.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        names = HfApi().list_repo_files(repository, revision=revision)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as unreachable:  # what an earlier download left is good enough
        try:
            return Path(snapshot_download(repository, revision=revision, local_files_only=True))
        except LocalEntryNotFoundError:
            raise unreachable from None
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    patterns = _HUB_FILES if has_safetensors else _HUB_FILES + _HUB_PICKLES
    return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))


def _download(model: str, progress: Progress) -> Path:
    """A model of the hub, with every failure told the same way."""
    repository, _, revision = model.partition("@")
    progress(f"hub {repository}", 0, 0)
    try:
        return _snapshot(repository, revision or None)
    except Exception as error:  # the errors of the hub's two HTTP libraries have no other base
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise CheckpointError(
            f"not a directory here, and the hub did not give it ({type(error).__name__}: {reason})",
            where=model,
            mend="check the name, the network and HF_TOKEN, or name a local directory",
        ) from error
