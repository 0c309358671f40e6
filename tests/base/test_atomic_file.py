"""A file is replaced whole or not at all, whatever fails and whenever the process is killed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from procsv.base.system.atomic_file import replace_file
from procsv.base.system.disk import has_room
from procsv.services.checkpoint.store.staging_areas import check_room
from tests.support.programs import running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")
    return path


def test_a_file_is_made_or_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for data in (b"one", b"", b"three" * 100_000):
        replace_file(path, data)
        assert path.read_bytes() == data
        assert list(tmp_path.iterdir()) == [path]


def test_the_pieces_of_a_large_file_are_put_together(path: Path) -> None:
    replace_file(path, (b"%d," % number for number in range(5)), durable=False)
    assert path.read_bytes() == b"0,1,2,3,4,"


def test_a_short_write_is_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    replace_file(path, b"all of it, however slowly")
    assert path.read_bytes() == b"all of it, however slowly"


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename", "pieces"])
def test_when_a_call_fails_the_old_file_stays_and_no_temporary_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def pieces() -> Any:
        yield b"half"
        fail()

    with monkeypatch.context() as patch:
        if call != "pieces":
            patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            replace_file(path, pieces() if call == "pieces" else b"new")

    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_durable_file_is_synced_before_its_rename_and_its_directory_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(fd: int) -> None:
        calls.append("fsync " + Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    def note_rename(source: Path, target: Path) -> None:
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    replace_file(path, b"new")
    assert calls == ["fsync .run.json.new", "rename", f"fsync {path.parent.name}"]
    calls.clear()
    replace_file(path, b"newer", durable=False)
    assert calls == ["rename"]


@pytest.mark.fault
@pytest.mark.parametrize("call", ["os.write", "os.fsync", "os.close", "os.rename"])
def test_after_a_kill_before_any_call_the_old_file_stays_and_the_next_call_cleans_up(path: Path, call: str) -> None:
    source = """
        import os, signal, sys
        from pathlib import Path
        from procsv.base.system.atomic_file import replace_file
        setattr(os, sys.argv[2].removeprefix("os."), lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL))
        replace_file(Path(sys.argv[1]), b"new")
    """
    with running(source, path, call) as program:
        assert program.wait() == -9
    assert path.read_bytes() == b"old"

    replace_file(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert list(path.parent.iterdir()) == [path]


def test_a_filesystem_that_does_not_say_its_size_has_room_for_anything() -> None:
    assert has_room(Path("/proc"))
    check_room(Path("/proc"), 2**60)
