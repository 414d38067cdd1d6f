"""A model's name in a spec -> a directory: local, from the hub, or the demo target."""

from __future__ import annotations

import re
from pathlib import Path

from neuron_spec.checkpoints import demo_target
from neuron_spec.errors import CheckpointError
from neuron_spec.files import Progress, no_progress

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
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
    is_hub_id = _HUB_ID.fullmatch(model) is not None and not model.startswith(".")
    if path.exists() or not is_hub_id:
        raise CheckpointError(
            "no such directory" if not path.exists() else "is not a directory",
            where=path,
            expected="a checkpoint directory, a hub id (owner/name), or "
            f"{demo_target.SCHEME}{demo_target.NAME}",
            mend="correct the path; relative paths start at the spec file's folder",
        )
    return _download(model, progress)


def _download(model: str, progress: Progress) -> Path:
    """Fetch a snapshot (resumable, cached); safetensors where there are any, pickles otherwise."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = model.partition("@")
    progress(f"hub {repository}", 0, 0)
    try:
        try:
            names = HfApi().list_repo_files(repository, revision=revision or None)
        except OSError:  # not reachable: what an earlier download left is good enough
            return Path(
                snapshot_download(repository, revision=revision or None, local_files_only=True)
            )
        has_safetensors = any(name.endswith(".safetensors") for name in names)
        patterns = _HUB_FILES if has_safetensors else _HUB_FILES + _HUB_PICKLES
        return Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=patterns)
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"not a directory here, and the hub did not give it ({reason})",
            where=model,
            mend="check the name, the network and HF_TOKEN, or name a local directory",
        ) from error
