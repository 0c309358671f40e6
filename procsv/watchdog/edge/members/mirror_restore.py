"""A coordinator that follows a lost one gets the newest copy of what that had in memory, from whichever launch has come with one.

Used by main.py while the run is formed, before anything is started: the checkpoint service finds the copy among the snapshots of this
machine, and decides as it always does: it is restored if it is whole, of this logdir, and newer than all that is on disk.  Killed in
here: a draft stays, or the copy, which the next launch finds; the others keep theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.run.paths import make_private_dir
from procsv.base.units import show_size
from procsv.ipc.bulk.fetch import Fetch
from procsv.ipc.messaging.member_messages import MirrorOffer
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.watchdog.core.members.mirror import Copy, newer_copies
from procsv.watchdog.edge.members.mirror_files import MirrorFiles
from procsv.watchdog.edge.members.own_host import own_host

LOOK_S = 0.1  # for a signal

Offers = Sequence[tuple[TaskId, MirrorOffer]]
Event = tuple[str, dict[str, Any]]  # for the journal


class MirrorRestore:
    def __init__(
        self,
        start: Start,
        chief: TaskId,
        saved_step: int,
        clock: Clock,
        wait: Callable[[float], None],
        say: Callable[[str], None],
    ) -> None:
        """`saved_step`: of the newest checkpoint.  `wait` raises where the run is not wanted any more."""
        self._start, self._chief, self._saved_step, self._clock, self._wait, self._say = (
            start,
            chief,
            saved_step,
            clock,
            wait,
            say,
        )
        self.events: list[Event] = []  # once there is a journal

    def take(self, offers: Offers) -> None:
        """Gets the newest that is worth having; one that cannot be had leaves the next its turn, and the checkpoint the last."""
        ways: list[tuple[Copy, Callable[[], bool]]] = [
            (Copy(one.run, one.offer.sequence, one.step), partial(self._fetch, who, one)) for who, one in offers
        ]
        files = MirrorFiles(self._start, own_host())
        if (here := files.newest()) is not None:  # this machine was another one's mirror
            ways.append((_copy_of(here), partial(self._move, files, here)))
        own = [_copy_of(slot) for slot in scan_slots(self._start.paths.shm_dir) if slot.task == self._chief]
        newer = newer_copies(ways, own, self._saved_step)
        has_one = any(way() for way in newer)
        if here is not None and (has_one or not newer):
            files.remove()  # it is here now, or of no use any more

    def _move(self, files: MirrorFiles, slot: SlotInfo) -> bool:
        try:
            files.move(slot, self._start.paths.shm_dir)
        except (OSError, UserError) as error:
            return self._failed(slot.step, own_host(), str(error))  # it stays, for the next launch
        self.note("mirror_fetched", slot.step, own_host(), bytes=slot.toc_offset + slot.toc_size, seconds=0.0)
        return True

    def _fetch(self, who: TaskId, one: MirrorOffer) -> bool:
        size = show_size(one.offer.size)
        self._say(f"step {one.step} of the run before is in the memory of {one.host} ({who}): fetching it ({size})")
        make_private_dir(self._start.paths.shm_dir)
        over = threading.Event()
        fetch = Fetch(one.host, one.offer, self._start.paths.shm_dir, self._clock, over.set)
        try:
            while not over.wait(LOOK_S):
                self._wait(0.0)
        except BaseException:
            fetch.give_up()
            fetch.wait_over()
            raise
        fetch.wait_over()
        if fetch.slot is None:
            return self._failed(one.step, one.host, fetch.error)
        seconds = round(fetch.seconds, 3)
        self.note("mirror_fetched", one.step, one.host, bytes=one.offer.size, seconds=seconds)
        return True

    def _failed(self, step: int, host: str, why: str) -> bool:
        self._say(f"what {host} has of step {step} cannot be used: {why}")
        self.note("mirror_not_fetched", step, host, why=why)
        return False

    def note(self, event: str, step: int, host: str, **fields: float | str) -> None:
        """For the journal, once there is one."""
        self.events.append((event, {"step": step, "host": host, **fields}))


def _copy_of(slot: SlotInfo) -> Copy:
    return Copy(slot.run, slot.sequence, slot.step)
