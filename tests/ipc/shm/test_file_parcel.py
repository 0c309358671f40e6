"""A file parcel puts a file in place whole, or the old file stays."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from procsv.base.system import disk
from procsv.ipc.shm.file_parcel import (
    BadParcel,
    FileOrder,
    ParcelWriter,
    list_parcels,
    place_parcel,
    sweep_unfinished,
    temporary_of,
)
from tests.support.launched import environment

CONTENTS = os.urandom(9_000_000)  # more than two pieces


def make_parcel(directory: Path, target: Path, number: int = 1, **more: Any) -> Path:
    with ParcelWriter(directory, 1, number) as parcel:
        half = len(CONTENTS) // 2
        parcel.write_at(half, memoryview(CONTENTS)[half:])
        parcel.write_at(0, memoryview(CONTENTS)[:half])
        return parcel.publish_parcel(FileOrder(str(target), len(CONTENTS), **more))


def test_a_parcels_file_is_put_in_place_whole_and_the_parcel_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "best.weights.h5"
    parcel = make_parcel(tmp_path, target)
    place_parcel(parcel)
    assert target.read_bytes() == CONTENTS
    assert list(tmp_path.iterdir()) == [target]


def test_the_contents_may_be_a_member_of_an_archive(tmp_path: Path) -> None:
    target = tmp_path / "best.keras"
    more: dict[str, Any] = {"member": "data", "before": (("first", b"1"),), "after": (("last", b"2"),)}
    place_parcel(make_parcel(tmp_path, target, **more))
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert [(name, archive.read(name)) for name in archive.namelist()] == [
            ("first", b"1"),
            ("data", CONTENTS),
            ("last", b"2"),
        ]


def test_parcels_are_listed_in_the_order_of_their_creation_and_unfinished_ones_are_removed(tmp_path: Path) -> None:
    made = [make_parcel(tmp_path, tmp_path / "file", number) for number in (2, 10, 1)]
    (tmp_path / "file.x").touch()
    unfinished = tmp_path / ".file.1.3.new"
    unfinished.touch()
    assert list_parcels(tmp_path) == [made[2], made[0], made[1]]
    sweep_unfinished(tmp_path)
    assert not unfinished.exists()


def test_an_incomplete_parcel_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "best.weights.h5"
    target.write_bytes(b"old")
    parcel = make_parcel(tmp_path, target)
    os.truncate(parcel, 5_000_000)
    with pytest.raises(BadParcel):
        place_parcel(parcel)
    assert target.read_bytes() == b"old"


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_the_parcel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "best.weights.h5"
    target.write_bytes(b"old")
    parcel = make_parcel(tmp_path, target)

    def fail(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(disk, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        place_parcel(parcel)
    assert target.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == sorted([target, parcel])


@pytest.mark.parametrize("moment", ["parcel.place", "parcel.within", "parcel.placed"])
def test_a_kill_leaves_the_old_file_or_the_new_one_and_the_parcel_is_applied_again(tmp_path: Path, moment: str) -> None:
    target = tmp_path / "best.weights.h5"
    target.write_bytes(b"old")
    parcel = make_parcel(tmp_path, target)
    program = f"from procsv.ipc.shm.file_parcel import place_parcel; from pathlib import Path; place_parcel(Path({str(parcel)!r}))"
    killed = subprocess.run(
        [sys.executable, "-c", program], env=environment(PROCSV_FAILPOINTS=f"{moment}=kill"), check=False
    )
    assert killed.returncode == -9
    assert target.read_bytes() == (CONTENTS if moment == "parcel.placed" else b"old")
    assert parcel.exists()
    place_parcel(parcel)
    assert target.read_bytes() == CONTENTS
    assert not temporary_of(target).exists()
