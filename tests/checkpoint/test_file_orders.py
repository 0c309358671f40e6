"""The newest file that a trainer has handed over is the one in place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from procsv.ipc.messaging.checkpoint_messages import FilePlaced, PlaceFile
from procsv.ipc.shm.file_parcel import FileOrder, ParcelWriter, list_parcels, place_parcel
from procsv.services.checkpoint.file_orders import RETRY_S, FileOrders
from procsv.services.checkpoint.worker import Outcomes, Worker


class Service:
    """FileOrders on a real disk thread. The parcels are in `shm`."""

    def __init__(self, shm: Path) -> None:
        self.shm, self.news, self.answers = shm, threading.Event(), list[str]()
        self.outcomes = Outcomes(self.news.set)
        self.disk = Worker("disk", self.outcomes)
        environment: Any = SimpleNamespace(parcels=lambda: list_parcels(shm), place=place_parcel)
        self.orders = FileOrders(environment, self.disk, self._reply)
        self.outcomes.deliver()

    def _reply(self, _: Any, answer: FilePlaced) -> None:
        self.answers.append(answer.error)

    def hand_over(self, number: int, target: Path, contents: bytes) -> None:
        with ParcelWriter(self.shm, 1, number) as parcel:
            parcel.write_at(0, memoryview(contents))
            path = parcel.publish_parcel(FileOrder(str(target), len(contents)))
        asker: Any = object()
        self.orders.place(asker, PlaceFile(str(path)))

    def wait_idle(self) -> None:
        while self.orders.is_busy:
            assert self.news.wait(60)
            self.news.clear()
            self.outcomes.deliver()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "shm").mkdir()
    service = Service(tmp_path / "shm")
    yield service
    service.disk.close()


def test_a_file_that_failed_is_not_placed_over_a_newer_one_that_is_under_way(service: Service, tmp_path: Path) -> None:
    target = tmp_path / "models" / "best.keras"
    service.hand_over(1, target, b"old")
    service.wait_idle()
    assert service.answers[0], "its directory is missing"
    target.parent.mkdir()

    goes_on = threading.Event()
    service.disk.run_job(lambda: goes_on.wait(60), lambda _: None, lambda _: None)
    service.hand_over(2, target, b"new")
    service.orders.retry(RETRY_S * 2, is_last=False)
    goes_on.set()
    service.wait_idle()
    service.orders.retry(RETRY_S * 4, is_last=False)
    service.wait_idle()

    assert target.read_bytes() == b"new"
    assert list_parcels(service.shm) == []


def test_a_file_that_failed_is_placed_later_although_a_newer_one_failed_too(service: Service, tmp_path: Path) -> None:
    target = tmp_path / "models" / "best.keras"
    for number, contents in enumerate((b"old", b"new")):
        service.hand_over(number, target, contents)
    service.wait_idle()
    assert all(service.answers)
    target.parent.mkdir()
    service.orders.retry(RETRY_S * 2, is_last=False)
    service.wait_idle()

    assert target.read_bytes() == b"new"
    assert list_parcels(service.shm) == []
