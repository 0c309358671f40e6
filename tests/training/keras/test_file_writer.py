"""A file that the training process places itself is not replaced by an older one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from procsv.base.errors import PeerError
from procsv.ipc.shm.file_parcel import FileOrder, ParcelWriter, list_parcels
from procsv.training.keras.file_writer import FileWriter


def parcel(shm: Path, number: int, order: FileOrder, contents: bytes) -> Path:
    with ParcelWriter(shm, 1, number) as writer:
        writer.write_at(0, memoryview(contents))
        return writer.publish_parcel(order)


def test_an_older_file_that_the_service_could_not_place_is_dropped(tmp_path: Path) -> None:
    def lost(*_: object) -> None:
        raise PeerError("gone")

    shm, target = tmp_path / "shm", tmp_path / "best.keras"
    shm.mkdir()
    order, other = FileOrder(str(target), 3), FileOrder(str(tmp_path / "other.keras"), 3)
    parcel(shm, 1, order, b"old")
    of_another = parcel(shm, 2, other, b"old")
    newest = parcel(shm, 3, order, b"new")
    connection = SimpleNamespace(
        start=SimpleNamespace(paths=SimpleNamespace(shm_dir=shm)), link=SimpleNamespace(ask=lost)
    )
    runtime: Any = SimpleNamespace(connection=connection)
    FileWriter(runtime)._place(newest, order)

    assert target.read_bytes() == b"new"
    assert list_parcels(shm) == [of_another]
