"""From a name on the command line to a system: an artifact, a spec, or an endpoint.

build/x/artifact        an artifact, speculation on
build/x/artifact@off    the same without speculation
compile/x.toml@off      a spec on the reference backend
http://host:8000/v1     an OpenAI-compatible endpoint; #MODEL after it names the model
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from neuron_spec.artifacts import Artifact, open_artifact
from neuron_spec.engine.session import Session, open_session
from neuron_spec.engine.tokenizer import Tokenizer
from neuron_spec.equivalence.endpoint import EndpointSystem
from neuron_spec.equivalence.systems import SessionSystem, System
from neuron_spec.errors import UserError
from neuron_spec.spec import BuildSpec, load_spec

_SUFFIXES = ("on", "off")


@dataclass(frozen=True)
class Opened:
    """A system, and what it was built from where that is known."""

    system: System
    spec: BuildSpec | None
    session: Session | None


def open_pair(
    candidate: str,
    against: str | None,
    *,
    extra: Mapping[str, Any] | None = None,
    against_extra: Mapping[str, Any] | None = None,
) -> tuple[Opened, Opened]:
    """(reference, candidate); without `against` the reference is the candidate without speculation.

    Args:
        extra, against_extra: fields added to the requests of each, where it is an endpoint: some
            servers switch speculation by them.

    Raises:
        UserError: an endpoint alone, without fields that make it two systems.
    """
    if against is None and is_endpoint(candidate) and extra != against_extra:
        against = candidate
    if against is None:
        if is_endpoint(candidate):
            raise UserError(
                "an endpoint alone cannot be compared with itself",
                where=candidate,
                mend="name what to compare it with: --against ARTIFACT@off, another endpoint, or "
                "--body with the fields that switch its speculation",
            )
        opened = open_system(candidate)
        assert opened.session is not None
        off = SessionSystem(opened.session, speculate=False, name=f"{candidate}@off")
        return Opened(off, opened.spec, opened.session), opened
    first = None if is_endpoint(candidate) else open_system(candidate)
    tokenizer = first.session.tokenizer if first and first.session else None
    reference = open_system(against, tokenizer=tokenizer, extra=against_extra)
    if first is None:
        own = reference.session.tokenizer if reference.session else None
        first = open_system(candidate, tokenizer=own, extra=extra)
    return reference, first


def open_system(
    name: str, *, tokenizer: Tokenizer | None = None, extra: Mapping[str, Any] | None = None
) -> Opened:
    """Open one system.

    Args:
        tokenizer: what turns conversations into ids for an endpoint.
        extra: fields added to an endpoint's requests.
    """
    if is_endpoint(name):
        url, _, model = name.partition("#")
        endpoint = EndpointSystem(url, model or None, tokenizer=tokenizer, extra=extra)
        return Opened(endpoint, None, None)
    path, at, suffix = name.rpartition("@")
    if not at or suffix not in _SUFFIXES:
        path, suffix = name, "on"
    with ExitStack() as stack:
        artifact = _artifact(Path(path), stack)
        session, spec = open_session(artifact), artifact.spec
    return Opened(SessionSystem(session, speculate=suffix == "on", name=name), spec, session)


def is_endpoint(name: str) -> bool:
    """Whether it is an address."""
    return name.startswith(("http://", "https://"))


def _artifact(path: Path, stack: ExitStack) -> Artifact:
    """An artifact that is there, or one made of a spec for as long as it takes to load it."""
    if path.suffix != ".toml":
        return open_artifact(path)
    from neuron_spec.compiler import compile_model

    folder = stack.enter_context(TemporaryDirectory(prefix="neuron-spec-verify-"))
    return compile_model(load_spec(path), output=Path(folder) / "artifact")
