"""A copy of the chief's memory is kept, offered and used, with real sockets and files and a
simulated coordinator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from procsv.base.cluster import CHIEF
from procsv.base.identity import TRAINER, WATCHDOG, TaskId
from procsv.base.journal.entries import MirrorFetched, MirrorNotKept
from procsv.base.placement import Placement
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.member_messages import AskSnapshot, MirrorKept, SnapshotOffered
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import Note
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.ipc.shm.slot_file import SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.watchdog.machines.coordinator import MemoryCopyRestore
from procsv.watchdog.machines.core.memory_copy import AVERAGE_BYTES_PER_S
from procsv.watchdog.machines.member import find_copy_files
from procsv.watchdog.machines.memory_copy.files import MemoryCopyFiles, OfferedMemoryCopy
from procsv.watchdog.machines.memory_copy.keeper import MemoryCopyKeeper, News
from tests.ipc.shm.snapshots import RUN, flip, publish, read

CLOCK, WAIT_S = SystemClock(), 60.0
WORKER = TaskId("worker", 0)
TENSORS = {"weights": bytes(range(256)) * 100}
N = TypeVar("N", bound=News)


class World:
    """The chief's machine and the one that keeps a copy."""

    def __init__(self, directory: Path) -> None:
        theirs, self.ours = directory / "theirs", directory / "ours"
        theirs.mkdir()
        self.pool = SlotPool(theirs, RUN, TRAINER, 1)
        self.pool.reserve(len(TENSORS["weights"]) + 1000, 3)
        self.sender = Sender(0, CLOCK)
        self.start = Start(WATCHDOG, RUN, 1, "/l", str(directory), str(self.ours))
        self.files = MemoryCopyFiles(self.start, "n2")
        self.said: list[str] = []
        self.waiter = Waiter()
        self.keeper = self.make()

    def make(self) -> MemoryCopyKeeper:
        """Make the keeper of a launch."""
        keeper = MemoryCopyKeeper(self.files, RUN, "127.0.0.1", CLOCK, self.said.append)
        keeper.listen(self.waiter)
        return keeper

    def offer(self, sequence: int) -> SnapshotOffered:
        writer = self.pool.begin_snapshot()
        assert writer is not None
        slot = publish(writer, sequence, TENSORS)
        return SnapshotOffered(slot.step, self.sender.offer(slot))

    def hear(self, kind: type[N]) -> tuple[N, list[News]]:
        """Return the first message of that kind and what came before."""
        before, until_s = list[News](), CLOCK.monotonic() + WAIT_S
        while CLOCK.monotonic() < until_s:
            for news in self.keeper.poll_keeper():
                if isinstance(news, kind):
                    return news, before
                before.append(news)
            self.waiter.wait(0.05)
        raise AssertionError(f"no {kind.__name__}, but {before}")

    def keep(self, sequence: int) -> None:
        assert not self.keeper.offered(self.offer(sequence))
        kept, _ = self.hear(MirrorKept)
        assert (kept.step, kept.sequence) == (10 * sequence, sequence)

    def restore(self) -> MemoryCopyRestore:
        """Restore as a coordinator on the machine that has the copy."""
        return MemoryCopyRestore(self.start, TRAINER, -1, CLOCK, lambda _: None, self.said.append)

    def close(self) -> None:
        self.sender.close()
        self.pool.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PROCSV_HOST", "n2")
    with contextlib.closing(World(tmp_path)) as made:
        yield made


def test_the_newest_whole_copy_is_kept_and_a_newer_one_is_requested(world: World) -> None:
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    assert world.hear(AskSnapshot) == (AskSnapshot(0), [])
    world.keep(1)
    assert world.hear(AskSnapshot)[0] == AskSnapshot(1)
    world.keep(4)

    (kept,) = scan_slots(world.files.directory)
    assert (kept.sequence, read(kept)) == (4, TENSORS)
    assert len(list(world.files.directory.iterdir())) == 1
    world.keeper.close(keeps=False)
    assert not world.files.directory.exists()


def test_nothing_is_requested_without_an_order_and_foreign_files_are_not_removed(world: World) -> None:
    assert world.keeper.poll_keeper() == []
    world.files.directory.mkdir()
    other = world.files.directory / "slot.1.fetched"
    other.touch()
    world.keeper.close(keeps=False)
    assert other.exists()


def test_a_copy_kept_when_the_coordinator_is_lost_is_offered_by_the_next_launch_and_removed_at_the_end_of_the_run(
    world: World,
) -> None:
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    world.keep(2)
    world.keeper.close(keeps=True)

    world.keeper = world.make()
    offer = world.keeper.offer()
    assert offer is not None
    assert (offer.run, offer.step, offer.offer.sequence, offer.host) == (RUN, 20, 2, "n2")
    world.keeper.follow("another", "127.0.0.1")
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    assert world.hear(AskSnapshot)[0] == AskSnapshot(0), "sequences of another run say nothing of this one's"
    world.keeper.close(keeps=False)
    assert not world.files.directory.exists()


PLACED = Placement(
    kind="indexed-job",
    rank=1,
    ranks=2,
    launch=WORKER,
    task=WORKER,
    tasks=(CHIEF, WORKER),
    scheduler="k8s:1:0",
    host="mine-worker-0-0.mine",
    addresses={WORKER: "mine-worker-0-0.mine:2222"},
    coordinator="mine-chief-0-0.mine:2223",
)


@pytest.mark.parametrize(
    ("placed", "host"),
    [
        (PLACED, "mine-worker-0-0.mine"),
        (replace(PLACED, addresses=None), "mine-worker-0-0.mine"),
        (replace(PLACED, kind="tf-config"), "mine-worker-0-0.mine"),
        (replace(PLACED, kind="tf-config", addresses={CHIEF: "n1:2222"}), "n2"),
        (replace(PLACED, kind="slurm", host="node7", addresses=None), "n2"),
    ],
    ids=["a pod", "an evaluator's pod", "by its address", "an evaluator", "by Slurm"],
)
def test_a_copy_is_offered_under_the_name_that_other_machines_use_for_this_one(
    world: World, placed: Placement, host: str
) -> None:
    """Its own name is n2 everywhere here, which only its own resolver may know."""
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    world.keep(1)
    world.keeper.close(keeps=True)

    with contextlib.closing(OfferedMemoryCopy(find_copy_files(world.start, placed), CLOCK)) as offered:
        assert offered.offer is not None
        assert offered.offer.host == host


def test_a_snapshot_without_room_is_reported_once_and_the_previous_one_stays(world: World) -> None:
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    world.keep(1)
    told = world.offer(2)
    assert told.offer is not None
    huge = replace(told, offer=replace(told.offer, size=1 << 55))

    (note,) = world.keeper.offered(huge)

    assert isinstance(note, Note)
    assert isinstance(note.entry, MirrorNotKept)
    assert "bytes free, " in note.entry.why
    assert world.keeper.offered(huge) == [], "told once"
    assert len(world.said) == 1
    assert [slot.sequence for slot in scan_slots(world.files.directory)] == [1]
    world.keeper.close(keeps=False)


def test_a_failed_transfer_leaves_the_copy_unchanged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    world.keep(1)
    monkeypatch.setattr("procsv.ipc.bulk.transfer.SILENCE_S_MAX", 0.3)
    told = world.offer(2)
    world.sender.close()

    assert not world.keeper.offered(told)
    note, _ = world.hear(Note)

    assert isinstance(note.entry, MirrorNotKept)
    assert "nothing has come" in note.entry.why
    assert [slot.sequence for slot in scan_slots(world.files.directory)] == [1]
    world.keeper.close(keeps=False)


def test_a_coordinator_on_the_copys_machine_uses_it_in_place(world: World) -> None:
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    world.keep(3)
    world.keeper.close(keeps=True)
    restore = world.restore()

    restore.fetch_newest([])

    (slot,) = scan_slots(world.ours)
    assert (slot.sequence, read(slot)) == (3, TENSORS)
    assert not world.files.directory.exists()
    (fetched,) = restore.entries
    assert isinstance(fetched, MirrorFetched)
    assert (fetched.step, fetched.host) == (30, "n2")


def test_a_copy_no_newer_than_local_state_is_removed(world: World) -> None:
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    world.keep(3)
    world.keeper.close(keeps=True)
    restore = MemoryCopyRestore(world.start, TRAINER, 30, CLOCK, lambda _: None, world.said.append)

    restore.fetch_newest([])

    assert not world.files.directory.exists()
    assert not scan_slots(world.ours)
    assert not restore.entries


def test_if_the_newest_copy_is_damaged_the_next_one_is_used(world: World) -> None:
    world.keeper.begin_copies(AVERAGE_BYTES_PER_S)
    world.keep(1)
    world.keeper.close(keeps=True)
    world.keeper = world.make()
    older = world.keeper.offer()
    assert older is not None
    told = world.offer(2)
    assert told.offer is not None
    flip(world.pool.paths[1], 5000)
    found = [
        replace(older, step=20, host="127.0.0.1", offer=told.offer),
        replace(older, host="127.0.0.1"),
    ]
    restore = world.restore()
    world.files.directory.rename(world.files.directory.with_name("of-another-machine"))

    restore.fetch_newest([(TRAINER, one) for one in found])

    assert [entry.event for entry in restore.entries] == ["mirror_not_fetched", "mirror_fetched"]
    assert [slot.sequence for slot in scan_slots(world.ours)] == [1]
    world.keeper.close(keeps=True)
