"""Which file of a checkpoint directory may be opened.

A checkpoint is often an unpacked archive, or a cloned repository, of somebody else. A link in it
can name any file of this machine, whose content would then stand in an error message or in the
prepared draft. The rule:

- Only regular files are read. A pipe or a device is refused, and cannot make the program wait.
- A name taken out of a file (a shard in an index) is a plain file name beside the index.
- A link, of whatever file, must lead to a file inside the checkpoint's own directory, or to a blob
  of the Hugging Face cache (`models--*/blobs/<digest>`). That is what the cache's snapshots, and
  folders made by older `--local-dir` downloads, consist of; a blob is named by the digest of its
  content, so that a link to one tells its author nothing new.
- The directory itself may be a link: the user named it.

This guards against what a checkpoint carries, not against somebody who changes it while it is read.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from neuron_spec.errors import CheckpointError, shown

_HUB_BLOB = re.compile(r".*/models--[^/]+/blobs/(?:[0-9a-f]{40}|[0-9a-f]{64})", re.DOTALL)
_MAX_NAME_BYTES = 255


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file of a checkpoint directory for reading.

    Raises:
        CheckpointError: a link that leaves the checkpoint, or not a regular file.
        OSError: missing, or not readable.
    """
    _check_link(path)
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise CheckpointError(f"cannot be read: is {kind}", where=path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb")


def is_plain_name(name: str) -> bool:
    """Whether a name out of a file can only be an entry of the directory that the file is in."""
    return (
        name.isprintable()
        and len(name.encode()) <= _MAX_NAME_BYTES
        and not set("/\\") & set(name)
        and name not in ("", ".", "..")
    )


def _check_link(path: Path) -> None:
    if not path.is_symlink():
        return
    target = Path(os.path.realpath(path))
    is_inside = target.is_relative_to(os.path.realpath(path.parent))
    if not is_inside and not _HUB_BLOB.fullmatch(str(target)):
        raise CheckpointError(
            "is a link out of the checkpoint's directory",
            where=path,
            found=f"a link to {shown(str(target))}",
            expected="a file, or a link within the directory or into the Hugging Face cache",
            mend="copy or hard-link the file here if you made the link, else distrust the download",
        )
