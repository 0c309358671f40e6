"""A snapshot is fetched from another machine's memory whole and exact, or not at all, over real
sockets and slots.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from msgspec.structs import replace

from procsv.base.errors import PeerError, UserError
from procsv.base.identity import TRAINER
from procsv.base.run.cleanup import remove_shm_files
from procsv.base.run.paths import RunPaths
from procsv.base.system import failpoints
from procsv.base.system.system_clock import SystemClock
from procsv.ipc.bulk import fetch as fetching
from procsv.ipc.bulk import sender as sending
from procsv.ipc.bulk.fetch import Fetch
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.bulk.transfer import PIECE_BYTES
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.curve_transport import KeyPair
from procsv.ipc.shm import incoming_slot
from procsv.ipc.shm.slot_file import NoRoom, SlotPool
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import remove_slot
from procsv.ipc.shm.slot_state import SlotInfo
from tests.ipc.shm.snapshots import RUN, publish, read
from tests.support.programs import running, until

CLOCK = SystemClock()
TENSORS = {"weights": bytes(range(256)) * 4 * 5000, "step": b"12345678"}  # five pieces


class Machines:
    """The machine that has a snapshot and the one that wants it."""

    def __init__(self, directory: Path) -> None:
        self.theirs, self.ours = directory / "theirs", directory / "ours"
        for path in (self.theirs, self.ours):
            path.mkdir()
        self.pool = SlotPool(self.theirs, RUN, TRAINER, 1)
        self.pool.reserve(len(TENSORS["weights"]) + 1000)
        self.sender = Sender(0, CLOCK)
        self.slot = self.publish(1)

    def publish(self, sequence: int) -> SlotInfo:
        writer = self.pool.begin_snapshot()
        assert writer is not None
        return publish(writer, sequence, TENSORS)

    def fetch(self, offer: StateOffer) -> Fetch:
        """The transfer, when it is over."""
        over = threading.Event()
        fetch = Fetch("127.0.0.1", offer, self.ours, CLOCK, over.set)
        assert over.wait(300)
        fetch.wait_over()
        return fetch

    def refusal(self, offer: StateOffer) -> str:
        """Why it has failed; nothing is left of it."""
        fetch = self.fetch(offer)
        assert fetch.slot is None
        assert not list(self.ours.iterdir())
        return fetch.error

    def close(self) -> None:
        self.sender.close()
        self.pool.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with contextlib.closing(Machines(tmp_path)) as made:
        yield made


@contextlib.contextmanager
def armed(name: str, action: str) -> Iterator[None]:
    failpoints.arm(f"{name}={action}")
    try:
        yield
    finally:
        failpoints.disarm(name)


def test_a_fetched_snapshot_has_a_name_that_no_local_task_writes_to(machines: Machines) -> None:
    fetch = machines.fetch(machines.sender.offer(machines.slot))

    assert fetch.error == ""
    (found,) = scan_slots(machines.ours)
    assert found == replace(machines.slot, path=machines.ours / "slot.1.fetched") == replace(found, path=fetch.slot)
    assert read(found) == TENSORS
    pool = SlotPool(machines.ours, RUN, TRAINER, 2)
    pool.reserve(10)
    assert found.path not in pool.paths
    pool.unlink()


def test_an_offered_slot_is_not_refilled_until_the_fetch_ends(machines: Machines) -> None:
    offer = machines.sender.offer(machines.slot)
    machines.publish(2)
    assert machines.pool.begin_snapshot() is None, "the only other slot is offered"
    assert not remove_slot(machines.slot.path)

    assert machines.fetch(offer).error == ""

    freed = threading.Event()
    for _ in range(30_000):  # the sender hears a moment later that it has come
        if (writer := machines.pool.begin_snapshot()) is not None:
            break
        freed.wait(0.01)
    assert writer is not None


def test_a_slot_that_holds_something_else_by_now_is_not_offered(machines: Machines) -> None:
    machines.publish(2)
    machines.publish(3)
    with pytest.raises(PeerError, match="snapshot 1"):
        machines.sender.offer(machines.slot)


def test_a_piece_damaged_in_transit_is_noticed(machines: Machines) -> None:
    with armed("sender.piece", "2*off->1*torn"):
        assert "damaged" in machines.refusal(machines.sender.offer(machines.slot))
    assert machines.fetch(machines.sender.offer(machines.slot)).error == "", "the slot itself is as it was"


def test_a_snapshot_that_is_not_the_offered_one_is_refused(machines: Machines) -> None:
    offer = machines.sender.offer(machines.slot)
    assert "snapshot 1 instead of " in machines.refusal(replace(offer, sequence=2))
    offer = machines.sender.offer(machines.slot)
    assert "the offered 1" in machines.refusal(replace(offer, contents_hash=1))
    offer = machines.sender.offer(machines.slot)
    assert "is incomplete" in machines.refusal(replace(offer, size=100))


def test_a_client_without_a_token_or_too_late_learns_so_at_once(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = machines.sender.offer(machines.slot)
    assert "does not offer" in machines.refusal(replace(offer, token=b"x" * 16))

    monkeypatch.setattr(sending, "OFFER_S_MAX", 0.0)
    monkeypatch.setattr(sending, "LOOK_S", 0.01)
    late = machines.sender.offer(machines.slot)
    assert machines.refusal(late)
    machines.publish(2)
    assert machines.pool.begin_snapshot() is not None, "its memory is free again"


def test_a_client_without_the_keys_gets_nothing(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SILENCE_S_MAX", 0.5)
    monkeypatch.setattr("procsv.ipc.bulk.transfer.SILENCE_S_MAX", 0.5)
    keys = KeyPair.new()
    offer = replace(machines.sender.offer(machines.slot), client_public=keys.public, client_secret=keys.secret)
    assert "0.5 s, after 0 of" in machines.refusal(offer)


def test_a_machine_that_dies_in_mid_transfer_is_given_up(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procsv.ipc.bulk.transfer.SILENCE_S_MAX", 3.0)
    with armed("sender.piece", "3*off->1*raise"):  # ends its thread
        error = machines.refusal(machines.sender.offer(machines.slot))
    assert f"after {3 * PIECE_BYTES} of" in error
    with pytest.raises(PeerError, match="has ended"):
        machines.sender.offer(machines.slot)


def test_without_memory_for_it_nothing_is_fetched(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise NoRoom("no memory")

    monkeypatch.setattr(incoming_slot, "reserve", none)
    assert machines.refusal(machines.sender.offer(machines.slot)) == "no memory"
    assert "a snapshot of" in machines.refusal(replace(machines.sender.offer(machines.slot), size=1 << 60))


def test_a_fetch_that_is_no_longer_wanted_leaves_nothing(machines: Machines) -> None:
    over, offer = threading.Event(), machines.sender.offer(machines.slot)
    with armed("sender.piece", "1*sleep(0.3)"):
        fetch = Fetch("127.0.0.1", offer, machines.ours, CLOCK, over.set)
        fetch.give_up()
        fetch.wait_over()
    assert not list(machines.ours.iterdir())

    fetch = machines.fetch(machines.sender.offer(machines.slot))
    assert fetch.slot is not None
    fetch.give_up()
    assert not list(machines.ours.iterdir())


def test_a_whole_snapshot_stays_when_only_the_fetching_is_to_end(machines: Machines) -> None:
    fetch = machines.fetch(machines.sender.offer(machines.slot))
    fetch.stop()
    assert fetch.slot is not None
    assert read(scan_slots(machines.ours)[0]) == TENSORS


def test_a_lasting_offer_can_be_fetched_at_any_time(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "OFFER_S_MAX", 0.0)
    monkeypatch.setattr(sending, "LOOK_S", 0.01)
    lasting, other = (machines.sender.offer(machines.slot, silence_s) for silence_s in (math.inf, None))
    until(lambda: other.token not in machines.sender._offers, lambda: time.sleep(0.01))
    assert machines.refusal(other)
    assert machines.fetch(lasting).error == ""


def test_an_impossible_offer_is_an_error(machines: Machines) -> None:
    offer = machines.sender.offer(machines.slot)
    assert "cannot connect" in machines.refusal(replace(offer, server_key="short"))


def test_a_taken_port_is_an_error_that_says_so() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        port = taken.bind_to_random_port("tcp://*")
        with pytest.raises(UserError, match=f"port {port}"):
            Sender(port, CLOCK)


def test_an_offer_shows_no_keys(machines: Machines) -> None:
    offer = machines.sender.offer(machines.slot)
    assert offer.client_secret not in repr(offer)


FETCHES = """
    import sys, threading
    from pathlib import Path
    import msgspec
    from procsv.base.system.system_clock import SystemClock
    from procsv.ipc.bulk.fetch import Fetch
    from procsv.ipc.messaging.checkpoint_messages import StateOffer
    offer, over = msgspec.json.decode(sys.argv[2], type=StateOffer), threading.Event()
    fetch = Fetch("127.0.0.1", offer, Path(sys.argv[1]), SystemClock(), over.set)
    over.wait()
    print("fetched", fetch.slot)
    sys.stdin.readline()
"""


@pytest.mark.fault
def test_a_process_killed_during_a_fetch_leaves_a_draft_that_is_never_read(machines: Machines) -> None:
    offer = msgspec.json.encode(machines.sender.offer(machines.slot)).decode()
    with running(FETCHES, machines.ours, offer, failpoints="member.before_fetched=kill") as child:
        assert child.wait() == -signal.SIGKILL
    (draft,) = machines.ours.iterdir()
    assert not scan_slots(machines.ours, any_state=True)
    remove_shm_files(RunPaths(machines.ours, machines.ours, machines.ours))
    assert not draft.exists()
