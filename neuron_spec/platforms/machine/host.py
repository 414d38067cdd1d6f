"""The four ways a machine is asked: files, commands, variables, packages; all replaceable."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

_COMMAND_TIMEOUT_S = 10
_METADATA_TIMEOUT_S = 1  # the service is on the host itself: later it does not answer at all
_METADATA = "http://169.254.169.254/latest"
_TOKEN_SECONDS = "60"


def run_command(arguments: Sequence[str]) -> str | None:
    """What a command prints; None if there is none of the name, it fails, or takes too long."""
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=True, timeout=_COMMAND_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout


def installed_package(name: str) -> tuple[str, str] | None:
    """Version and description of a Python package; None if it is not installed."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return found.version, str(found.metadata.json.get("description", ""))


def ec2_metadata(path: str) -> str | None:
    """One value of the EC2 instance metadata service, version 2; None away from EC2.

    Never takes longer than two short timeouts, and asks no proxy.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    header = {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_SECONDS}
    request = urllib.request.Request(f"{_METADATA}/api/token", headers=header, method="PUT")
    try:
        with opener.open(request, timeout=_METADATA_TIMEOUT_S) as answer:
            token = answer.read(1024).decode("ascii")
        request = urllib.request.Request(
            f"{_METADATA}/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token}
        )
        with opener.open(request, timeout=_METADATA_TIMEOUT_S) as answer:
            return str(answer.read(1024).decode("ascii").strip())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Host:
    """Where a machine is read from; the defaults are this one.

    Attributes:
        root: in front of every absolute path of /dev, /proc, /sys and /opt.
        run: command -> its output, or None.
        ec2: path of the metadata service -> value, or None.
        package: Python package -> (version, description), or None.
    """

    root: Path = Path("/")
    run: Callable[[Sequence[str]], str | None] = run_command
    ec2: Callable[[str], str | None] = ec2_metadata
    package: Callable[[str], tuple[str, str] | None] = installed_package
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def path(self, absolute: str) -> Path:
        """A path of the machine."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str | None:
        """The stripped text of a small file; None if it cannot be read."""
        try:
            return self.path(absolute).read_text("utf-8", errors="replace").strip()
        except OSError:
            return None

    def names(self, absolute: str) -> list[str]:
        """Names in a folder, sorted; none if it cannot be read."""
        try:
            return sorted(path.name for path in self.path(absolute).iterdir())
        except OSError:
            return []
