"""Keep a current copy of the chief's memory on a member.

The keeper fetches each new snapshot that the transfer rate allows, and holds on to its copy if the
coordinator is lost. Used by member_loop.py once the coordinator has ordered a copy. A newer copy
replaces the kept one only when it is whole, in one step. A kill at any point leaves the newest
whole copy, which the next launch on this machine offers (`OfferedMemoryCopy`).
"""

from __future__ import annotations

from collections.abc import Callable

from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.journal import entries
from procsv.ipc.bulk.fetch import Fetch, WakeFd
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.member_messages import AskSnapshot, MirrorKept, MirrorOffer, SnapshotOffered
from procsv.ipc.messaging.watchdog_messages import Note
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.ipc.shm.slot_file import NoRoom
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.watchdog.machines.core.memory_copy import AVERAGE_BYTES_PER_S, TransferRate
from procsv.watchdog.machines.memory_copy.files import MemoryCopyFiles, OfferedMemoryCopy

NOT_OFFERED = "the coordinator's machine does not offer its snapshot; see the log of its checkpoint service"

News = AskSnapshot | MirrorKept | Note  # a Note is for the journal


class MemoryCopyKeeper:
    def __init__(
        self,
        files: MemoryCopyFiles,
        run: str,
        host: str,
        clock: Clock,
        say: Callable[[str], None],
        bytes_per_s: float = AVERAGE_BYTES_PER_S,
    ) -> None:
        """`run`, `host`: the coordinator's. `say`: prints to the console. `bytes_per_s`: the
        average rate over all copies that this machine can afford.
        """
        self._bytes_per_s = bytes_per_s
        self._files, self._clock, self._say = files, clock, say
        self.run, self.host = run, host
        self._kept: SlotInfo | None = files.newest()
        # Whether the copy is ours to remove at the end. If not, a copy in `files` is another launch's on this machine.
        self._is_ours = self._kept is not None
        self._rate = TransferRate()
        self._fetch: Fetch | None = None
        self._offered: OfferedMemoryCopy | None = None
        self._step = self._sequence = 0  # of the snapshot being fetched
        self._is_well: bool | None = None  # whether the last try succeeded; None: there was none
        self._has_said = False
        self._wake_fd = WakeFd()

    def listen(self, waiter: Waiter) -> None:
        waiter.register(self._wake_fd.fd)

    def begin_copies(self, bytes_per_s: float) -> None:
        """Begin to keep a copy. `bytes_per_s`: the average rate over all copies that the
        coordinator's machine can afford.
        """
        self._is_ours = True
        self._rate.begin_transfers(self._clock.monotonic(), min(bytes_per_s, self._bytes_per_s))

    def offer(self) -> MirrorOffer | None:
        """Offer the copy to the next coordinator, until a coordinator has accepted us (`follow`).

        None if there is no copy to offer.
        """
        self._withdraw()
        self._offered = self._make_offer()
        return self._offered.offer

    def _make_offer(self) -> OfferedMemoryCopy:
        return OfferedMemoryCopy(self._files, self._clock)

    def _withdraw(self) -> None:
        if self._offered is not None:
            self._offered.close()
            self._offered = None

    def follow(self, run: str, host: str) -> None:
        """Serve another coordinator, which may order another member to keep a copy."""
        self.run, self.host = run, host
        self._rate.stop()
        self._withdraw()

    @property
    def due_s(self) -> float | None:
        """The time at which the next request is due.

        None while a fetch runs, or while an order or an answer must come first.
        """
        return self._rate.due_s if self._fetch is None else None

    def offered(self, told: SnapshotOffered) -> list[News]:
        """Fetch the snapshot that the coordinator offers, in answer to our request."""
        if self._fetch is not None:
            return []  # this offer answers a request to the previous coordinator
        if told.offer is None:
            return self._failed(NOT_OFFERED)
        try:
            self._files.make_room(told.offer.size)
        except (NoRoom, UserError, OSError) as error:
            return self._failed(str(error))
        self._step, self._sequence = told.step, told.offer.sequence
        bytes_per_s = self._rate.offered(told.offer.sequence, told.offer.size, self._clock.monotonic())
        self._fetch = self._begin_fetch(told.offer, bytes_per_s)
        return []

    def _begin_fetch(self, offer: StateOffer, bytes_per_s: float) -> Fetch:
        return Fetch(self.host, offer, self._files.directory, self._clock, self._wake, bytes_per_s)

    def poll_keeper(self) -> list[News]:
        """Return what to send to the coordinator: requests and reports."""
        self._wake_fd.clear()
        now_s, news = self._clock.monotonic(), list[News]()
        if (fetch := self._fetch) is not None and fetch.is_over:
            self._fetch = None
            news += self._fetched(fetch) if fetch.slot is not None else self._failed(fetch.error)
        if self._fetch is None and self._rate.is_due(now_s):
            self._rate.asked()
            news.append(
                AskSnapshot(self._kept.sequence if self._kept is not None and self._kept.run == self.run else 0)
            )
        return news

    def close(self, *, keeps: bool) -> None:
        """Stop. `keeps`: keep the copy for the next coordinator; otherwise the run is over, or
        continues without us.
        """
        if self._fetch is not None:
            self._fetch.stop()
            self._fetch.wait_over()
        self._withdraw()
        if self._is_ours and not keeps:
            self._files.remove()
        self._wake_fd.close()

    def _wake(self) -> None:
        self._wake_fd.wake()

    def _fetched(self, fetch: Fetch) -> list[News]:
        assert fetch.slot is not None, "fetched without a slot"
        self._files.keep_only(fetch.slot)
        self._kept = self._files.newest()
        self._rate.fetched(fetch.size, fetch.seconds, self._clock.monotonic())
        was_well, self._is_well = self._is_well, True
        kept = entries.MirrorKept(step=self._step, bytes=fetch.size, seconds=round(fetch.seconds, 3))
        return [MirrorKept(self._step, self._sequence), *([] if was_well else [Note(kept)])]

    def _failed(self, why: str) -> list[News]:
        self._rate.failed(self._clock.monotonic())
        was_well, self._is_well = self._is_well, False
        if not self._has_said:
            self._has_said = True
            self._say(f"the copy of the chief's snapshot cannot be updated; trying again: {why}")
        return [] if was_well is False else [Note(entries.MirrorNotKept(why=why))]
