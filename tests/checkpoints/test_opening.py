"""Which files of a checkpoint are opened: no link out of it, no pipe, no device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import raw_checkpoints as raw
from raw_checkpoints import refusal

from neuron_spec.checkpoints import identify

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLE, SHARD = "pytorch_model.bin", "one.safetensors"
SECRET = "hunter2"
DIGEST = "0123456789abcdef" * 4
ESCAPE = "\x1b[2J\x07"


@pytest.mark.parametrize("linked", [CONFIG, WEIGHTS, INDEX, SHARD, "generation_config.json"])
@pytest.mark.parametrize("is_relative", [True, False])
def test_a_link_out_of_the_checkpoint_is_refused(
    tmp_path: Path, linked: str, is_relative: bool
) -> None:
    (tmp_path / "secret").write_text(f'{{"password": "{SECRET}"}}')
    model = raw.write(tmp_path / "model", raw.EAGLE if linked != SHARD else raw.sharded())
    if linked == INDEX:
        (model / WEIGHTS).unlink()
    (model / linked).unlink(missing_ok=True)
    (model / linked).symlink_to("../secret" if is_relative else tmp_path / "secret")
    message = refusal(lambda: identify(model))
    assert "is a link out of the checkpoint's directory" in message and linked in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "shard",
    ["/etc/passwd", "../../etc/passwd", "sub/../../x", "sub/x", "..\\x", ESCAPE, "x\0", "é" * 200],
)
def test_a_shard_is_a_plain_file_name(tmp_path: Path, shard: str) -> None:
    raw.write(tmp_path, raw.sharded(a=shard))
    assert "a shard is not a file beside the index" in refusal(lambda: identify(tmp_path))


def test_the_hub_caches_links_are_read(tmp_path: Path) -> None:
    """Snapshots are links to blobs; older downloads into a folder link to the cache as well."""
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot, folder = repository / "snapshots" / "abc", tmp_path / "folder"
    raw.write(repository / "blobs", {DIGEST[:40]: raw.CONFIG, DIGEST: raw.EAGLE[WEIGHTS]})
    for directory in (snapshot, folder):
        directory.mkdir(parents=True)
        for name, blob in ((CONFIG, DIGEST[:40]), (WEIGHTS, DIGEST)):
            blob_path = repository / "blobs" / blob
            is_snapshot = directory == snapshot
            (directory / name).symlink_to(f"../../blobs/{blob}" if is_snapshot else blob_path)
        assert identify(directory).family == "eagle"


def test_links_within_the_checkpoint_and_to_it_are_read(tmp_path: Path) -> None:
    model = raw.write(tmp_path / "model", raw.sharded())
    (model / "store").mkdir()
    (model / SHARD).rename(model / "store" / "data")
    (model / SHARD).symlink_to("store/data")
    (tmp_path / "link").symlink_to(model)
    assert identify(tmp_path / "link").family == "eagle"


@pytest.mark.parametrize("blob", ["passwd", DIGEST[:39], f"{DIGEST}/x", f"../{DIGEST}"])
def test_what_only_looks_like_the_cache_is_refused(tmp_path: Path, blob: str) -> None:
    target = tmp_path / "models--o--n" / "blobs" / blob
    raw.write(target.parent, {target.name: raw.EAGLE[WEIGHTS]})
    model = raw.write(tmp_path / "model", raw.EAGLE)
    (model / WEIGHTS).unlink()
    (model / WEIGHTS).symlink_to(target)
    assert "link out of" in refusal(lambda: identify(model))


def test_a_cache_whose_blobs_are_elsewhere_is_refused(tmp_path: Path) -> None:
    """An archive can carry `blobs -> /anywhere` too."""
    raw.write(tmp_path / "elsewhere", {DIGEST: raw.EAGLE[WEIGHTS]})
    repository = tmp_path / "models--o--n"
    model = raw.write(repository / "snapshots" / "abc", {CONFIG: raw.CONFIG})
    (repository / "blobs").symlink_to(tmp_path / "elsewhere")
    (model / WEIGHTS).symlink_to(f"../../blobs/{DIGEST}")
    assert "link out of" in refusal(lambda: identify(model))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, INDEX, SHARD, PICKLE, "generation_config.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_what_is_no_file_is_refused_and_never_waited_for(
    tmp_path: Path, name: str, kind: str
) -> None:
    raw.write(tmp_path, raw.sharded() if name in (SHARD, INDEX) else {CONFIG: raw.CONFIG})
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero" if kind == "device" else name)
    message = refusal(lambda: identify(tmp_path))
    assert name != CONFIG or {
        "pipe": "is not a regular file", "device": "is a link out of", "loop": "cannot be read",
    }[kind] in message  # fmt: skip
