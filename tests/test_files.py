"""Old state or new state, never half of it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neuron_spec import files
from neuron_spec.errors import StorageError, UserError
from neuron_spec.files import FileRecord, clear_leftovers, new_directory, sha256, write_text

MARK = "prepared.json"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def write_folder(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text("{}")
    (folder / "data").write_text(content)
    return folder


def content_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def dead_process_id() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_new_directory_appears_whole(tmp_path: Path) -> None:
    with new_directory(tmp_path / "a" / "out", MARK) as folder:
        write_folder(folder, "new")
        assert not (tmp_path / "a" / "out").exists()
    assert content_of(tmp_path / "a" / "out") == {MARK: "{}", "data": "new"}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_new_directory_replaces_an_earlier_one_completely(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "out", "old")
    (out / "stale").write_text("x")
    with new_directory(out, MARK) as folder:
        write_folder(folder, "new")
        assert content_of(out)["data"] == "old"
    assert content_of(out) == {MARK: "{}", "data": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_everything_is_on_the_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(files, "fsync_path", lambda path: flushed.append(path.name))
    swap = files._swap
    monkeypatch.setattr(files, "_swap", lambda *paths: (flushed.append("swap"), swap(*paths)))
    with new_directory(tmp_path / "out", MARK) as folder:
        write_folder(folder / "sub", "new")
    assert flushed == ["sub", "data", MARK, folder.name, "swap", tmp_path.name]


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("has_earlier", [True, False])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, error: BaseException, has_earlier: bool
) -> None:
    out = tmp_path / "out"
    if has_earlier:
        write_folder(out, "old")
    with pytest.raises(type(error)), new_directory(out, MARK) as folder:
        write_folder(folder, "half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if has_earlier else [])
    assert not has_earlier or content_of(out)["data"] == "old"


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG]
)
def test_the_file_systems_refusals_are_storage_errors(tmp_path: Path, number: int) -> None:
    out = write_folder(tmp_path / "out", "old")
    with pytest.raises(StorageError, match=os.strerror(number)) as caught, new_directory(out, MARK):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == 2
    assert str(out) in str(caught.value) and "--output" in str(caught.value)
    assert content_of(out)["data"] == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_other_operating_system_errors_are_not_renamed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="weather") as caught, new_directory(tmp_path / "o", MARK):
        raise OSError(errno.EIO, "weather")
    assert not isinstance(caught.value, StorageError)


@pytest.fixture
def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot exchange two names in one step."""
    monkeypatch.setattr(files, "_exchange", lambda first, second: False)


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system that locks no folders."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("without_exchange")
@pytest.mark.parametrize("failing_rename", [1, 2])
def test_a_failed_swap_puts_the_earlier_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_rename: int
) -> None:
    out = write_folder(tmp_path / "out", "old")
    rename, calls = Path.rename, []

    def fail_once(self: Path, target: Path) -> Path:
        calls.append(self)
        moved = rename(self, target) if failing_rename == 1 or len(calls) != 2 else None
        if len(calls) == failing_rename:
            raise KeyboardInterrupt  # the first right after it renamed, the second before
        assert moved is not None
        return moved

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(KeyboardInterrupt), new_directory(out, MARK) as folder:
        write_folder(folder, "new")
    assert content_of(out)["data"] == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("without_exchange")
def test_without_an_exchange_the_earlier_folder_is_replaced_in_two_steps(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "out", "old")
    (out / "stale").write_text("x")
    with new_directory(out, MARK) as folder:
        write_folder(folder, "new")
    assert content_of(out) == {MARK: "{}", "data": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_reader_always_finds_a_whole_folder(tmp_path: Path) -> None:
    """Or it is shown that this file system cannot exchange two names, and the test says so."""
    out, is_done, missed = write_folder(tmp_path / "out", "old"), threading.Event(), []
    if not files._exchange(write_folder(tmp_path / "a", "a"), write_folder(tmp_path / "b", "b")):
        pytest.skip("no exchange of names on this file system")

    def read() -> None:
        while not is_done.is_set():
            missed.extend([path for path in (out, out / MARK, out / "data") if not path.exists()])

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(100):
        with new_directory(out, MARK) as folder:
            write_folder(folder, str(number))
    is_done.set()
    reader.join()
    assert missed == []


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_is_still_being_written_is_left_alone(
    tmp_path: Path, has_locks: bool, request: pytest.FixtureRequest
) -> None:
    if not has_locks:
        request.getfixturevalue("without_locks")
    out = tmp_path / "out"
    with new_directory(out, MARK) as first:
        write_folder(first, "first")
        with new_directory(out, MARK) as second:
            write_folder(second, "second")
        assert content_of(out)["data"] == "second"
        assert content_of(first)["data"] == "first"
    assert content_of(out)["data"] == "first", "the last to end stays"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_threads_at_once_do_not_harm_each_other(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def write(number: int) -> None:
        with new_directory(out, MARK) as folder:
            write_folder(folder, str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(64)))
    assert content_of(out)["data"] in {str(number) for number in range(64)}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("has_locks", [True, False])
def test_leftovers_of_dead_processes_are_cleared(
    tmp_path: Path, dead_process_id: int, has_locks: bool, request: pytest.FixtureRequest
) -> None:
    if not has_locks:
        request.getfixturevalue("without_locks")
    out = write_folder(tmp_path / "out", "old")
    for kind in ("partial", "previous"):
        write_folder(tmp_path / f".out.{kind}-{dead_process_id}-01ab", kind)
    other = write_folder(tmp_path / f".other.partial-{dead_process_id}-01ab", "other")
    with new_directory(out, MARK) as folder:
        write_folder(folder, "new")
    assert {path.name for path in tmp_path.iterdir()} == {"out", other.name}


@pytest.mark.usefixtures("without_locks")
def test_without_locks_the_process_id_decides(tmp_path: Path) -> None:
    running = write_folder(tmp_path / f".out.partial-{os.getppid()}-01ab", "running")
    with new_directory(tmp_path / "out", MARK) as folder:
        write_folder(folder, "new")
    assert {path.name for path in tmp_path.iterdir()} == {"out", running.name}


def test_a_process_id_that_is_now_anothers_keeps_no_leftover(tmp_path: Path) -> None:
    write_folder(tmp_path / f".out.partial-{os.getppid()}-01ab", "half")
    with new_directory(tmp_path / "out", MARK) as folder:
        write_folder(folder, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_leftover_of_this_process_is_not_in_the_way(tmp_path: Path) -> None:
    write_folder(tmp_path / f".out.partial-{os.getpid()}", "half")
    with new_directory(tmp_path / "out", MARK) as folder:
        assert not any(folder.iterdir())
        write_folder(folder, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_moved_aside_by_a_killed_process_is_restored(
    tmp_path: Path, dead_process_id: int
) -> None:
    write_folder(tmp_path / f".out.previous-{dead_process_id}", "old")
    with pytest.raises(ValueError, match="fails"), new_directory(tmp_path / "out", MARK):
        raise ValueError("fails")
    assert content_of(tmp_path / "out")["data"] == "old"


def test_leftovers_are_cleared_where_nothing_has_to_be_written(
    tmp_path: Path, dead_process_id: int
) -> None:
    out = tmp_path / "out"
    write_folder(tmp_path / f".out.previous-{dead_process_id}-01ab", "old")
    write_folder(tmp_path / f".out.partial-{dead_process_id}-01ab", "half")
    clear_leftovers(out)
    assert content_of(out)["data"] == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    clear_leftovers(tmp_path / "nothing" / "here")


def test_a_process_of_another_user_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process_id: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert files._is_running(1)


def test_a_folder_that_we_did_not_write_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds no prepared\.json"), new_directory(out, MARK):
        pytest.fail("the block must not run")
    assert content_of(out) == {"thesis.tex": "years of work"}


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A prepared draft must survive `compile --output build/x/draft`."""
    out = write_folder(tmp_path / "out", "a prepared draft")
    with pytest.raises(UserError, match=r"manifest\.json"), new_directory(out, "manifest.json"):
        pytest.fail("the block must not run")
    assert content_of(out)["data"] == "a prepared draft"


def test_a_file_at_the_destination_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError), new_directory(tmp_path / "out", MARK):
        pytest.fail("the block must not run")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_file_in_the_way_of_the_destination_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "build").write_text("mine")
    for destination in (tmp_path / "build" / "out", tmp_path / "build" / "x" / "out"):
        with pytest.raises(StorageError), new_directory(destination, MARK):
            pytest.fail("the block must not run")


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_directory(tmp_path / "out", MARK) as folder:
        write_folder(folder, "new")
    assert content_of(tmp_path / "out")["data"] == "new"


def test_a_link_at_the_destination_stays_a_link(tmp_path: Path) -> None:
    elsewhere = write_folder(tmp_path / "disk" / "real", "old")
    (tmp_path / "out").symlink_to(elsewhere)
    with new_directory(tmp_path / "out", MARK) as folder:
        write_folder(folder, "new")
    assert (tmp_path / "out").is_symlink()
    assert content_of(elsewhere)["data"] == "new"
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]


def test_write_text_makes_the_folder_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "note.json"
    write_text(path, "one")
    write_text(path, "zwei: ü")
    assert path.read_text(encoding="utf-8") == "zwei: ü"
    assert [entry.name for entry in path.parent.iterdir()] == ["note.json"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("number", [errno.ENOSPC, None])
def test_write_text_keeps_the_old_text_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    path = tmp_path / "note.json"
    path.write_text("old")

    def fail(descriptor: int) -> None:
        raise KeyboardInterrupt if number is None else OSError(number, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt if number is None else StorageError):
        write_text(path, "new")
    assert content_of(tmp_path) == {"note.json": "old"}


def test_sha256_reports_progress_and_handles_an_empty_file(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    (tmp_path / "f").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    digest = sha256(tmp_path / "f", lambda *call: calls.append(call))
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert calls == [("digest f", 3, 3)]
    assert sha256(tmp_path / "empty") == EMPTY_SHA256


def test_file_record_tells_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    record = FileRecord.of(path)
    assert record.difference(path) is None
    assert FileRecord(**record.as_dict()) == record

    os.utime(path, ns=(1, 1))
    assert record.difference(path) is None, "touched, but the same bytes"

    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert record.difference(path) == "content differs from the recorded SHA-256"

    path.write_bytes(b"abcd")
    assert record.difference(path) == "4 bytes, recorded 3"
    path.unlink()
    assert record.difference(path) == "missing"
    path.mkdir()
    assert record.difference(path) == "missing"


def test_a_digest_is_computed_only_when_needed_or_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    record = FileRecord.of(path)
    path.write_bytes(b"abd")
    os.utime(path, ns=(record.mtime_ns, record.mtime_ns))
    assert record.difference(path) is None
    assert record.difference(path, always_digest=True) is not None
