"""Form a run on several machines, as its coordinator.

The coordinator is the launch that has the task whose state is saved. Used by main.py. If the
coordinator is killed while it forms the run, the members find a term whose coordinator does not
answer, and wait for the next one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial

from procsv.base.clock import Clock
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.journal.entries import Entry, MirrorFetched, MirrorNotFetched
from procsv.base.placement import Placement
from procsv.base.run.paths import make_private_dir
from procsv.base.run.run_file import read_run
from procsv.base.run.terms import withdraw_terms
from procsv.base.units import show_size
from procsv.ipc.bulk.fetch import Fetch
from procsv.ipc.messaging.curve_transport import derive_keys, own_host
from procsv.ipc.messaging.member_messages import MirrorOffer
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.watchdog.edge.launch import Formed, Launch
from procsv.watchdog.edge.opening.held_logdir import wait_with_lease
from procsv.watchdog.edge.opening.open_run import OpenedRun, remove_run
from procsv.watchdog.edge.opening.run_lock import Wait
from procsv.watchdog.machines.core.adoption import NothingToAdopt
from procsv.watchdog.machines.core.memory_copy import Copy, newer_copies
from procsv.watchdog.machines.forming import Forming, refuse_members, say_where
from procsv.watchdog.machines.memory_copy.files import MemoryCopyFiles

LOOK_S = 0.1  # between two checks for a signal

Offers = Sequence[tuple[TaskId, MirrorOffer]]
# Gets one copy: yields an event that is set when there may be news, and returns whether the copy is here.
Way = Generator[threading.Event, None, bool]
Turns = Generator[threading.Event, None, None]


class Coordinator:
    """Implements Formation for a launch with that placement."""

    def __init__(self, placement: Placement, secret: bytes) -> None:
        """`secret`: shared by all launches; if it is empty, the run's keys are generated here."""
        self._placement = placement
        self._keys = derive_keys(secret, placement.scheduler) if secret else None

    def refuse(self, launch: Launch, error: UserError) -> None:
        refuse_members(launch.start, self._placement, self._keys, error, launch.clock)

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        """Gather the members and form the run.

        Raises UserError if some do not come, after telling the ones that came why there is no run.
        """
        start, clock = launch.start, launch.clock
        wait = wait_with_lease(start.paths, opened.lease, clock, launch.wait)
        restore = MemoryCopyRestore(start, self._placement.task, opened.saved_step, clock, wait, launch.console.say)
        try:
            return self._form(launch, wait, restore)
        except UserError:
            remove_run(start.paths, opened, keep_memory=True)
            raise

    def _form(self, launch: Launch, wait: Wait, restore: MemoryCopyRestore) -> Formed:
        forming, survivors = Forming(launch.start, self._placement, self._keys, launch.clock), None
        say = launch.console.say
        say_where(say)
        try:
            forming.publish()
            forming.gather(wait, say)
            while forming.has_run_before and survivors is None:
                try:
                    survivors = forming.adopt(launch.ports)
                except NothingToAdopt as why:
                    forming.begin_anew(str(why), say)
                    forming.gather(wait, say)
            if forming.wants_copy(survivors):
                restore.fetch_newest(forming.copy_offers)
            start, remote = forming.finish(launch.ports, survivors)
            return Formed(start, remote, restore.entries)
        except UserError as error:
            forming.refuse(error)
            raise

    def withdraw(self, start: Start) -> None:
        withdraw_terms(start.paths, start.run)


class MemoryCopyRestore:
    """Fetches the newest copy of the chief's memory for a coordinator that follows a lost one.

    It does so while the run is formed, before anything is started. Any launch that has come may
    have a copy. The checkpoint service finds the fetched copy among this machine's snapshots and
    decides as always: it restores the copy if it is whole, belongs to this logdir, and is newer
    than everything on disk. A kill in here leaves a draft, or the copy, which the next launch
    finds; the other launches keep theirs.
    """

    def __init__(
        self,
        start: Start,
        chief: TaskId,
        saved_step: int,
        clock: Clock,
        wait: Callable[[float], None],
        say: Callable[[str], None],
        host: str = "",
    ) -> None:
        """`saved_step`: the newest checkpoint's. `wait` raises if the run is no longer wanted.
        `host`: this machine's name in the run; "": its own host name.
        """
        self._host = host or own_host()
        self._start, self._chief, self._saved_step, self._clock, self._wait, self._say = (
            start,
            chief,
            saved_step,
            clock,
            wait,
            say,
        )
        self.entries: list[Entry] = []  # journal entries, written once the journal is open

    def fetch_newest(self, offers: Offers) -> None:
        """Fetch the newest useful copy. If that fails, try the next one; if all fail, the run
        resumes from the checkpoint.
        """
        with contextlib.closing(self.take_in_turns(offers)) as turns:
            for over in turns:
                over.wait(LOOK_S)
                self._wait(0.0)

    def take_in_turns(self, offers: Offers) -> Turns:
        """Do the same as a generator, which yields while a fetch is under way. Closing it abandons
        the fetch.
        """
        ways: list[tuple[Copy, Callable[[], Way]]] = [
            (Copy(one.run, one.offer.sequence, one.step), partial(self._fetch, who, one)) for who, one in offers
        ]
        files = self._files()
        if (here := files.newest()) is not None:  # this machine has kept a copy of another one's memory
            ways.append((_copy_of(here), partial(self._move, files, here)))
        own = [_copy_of(slot) for slot in self._slots_here() if slot.task == self._chief]
        newer, has_one = newer_copies(ways, own, self._saved_step, self._last_run()), False
        for way in newer:
            has_one = yield from way()
            if has_one:
                break
        if here is not None and (has_one or not newer):
            files.remove()  # our snapshots now include a copy, or no copy is useful

    def _files(self) -> MemoryCopyFiles:
        return MemoryCopyFiles(self._start, self._host)

    def _slots_here(self) -> list[SlotInfo]:
        """Return the snapshots in the memory of this machine's run."""
        return scan_slots(self._start.paths.shm_dir)

    def _last_run(self) -> str:
        """Return the run that had the logdir last; "" if unknown."""
        last = read_run(self._start.paths.run_json)
        return last.run if last is not None else ""

    def _move(self, files: MemoryCopyFiles, slot: SlotInfo) -> Way:
        yield from ()  # makes this a generator; it needs no wait
        try:
            files.move(slot, self._start.paths.shm_dir)
        except (OSError, UserError) as error:
            return self._failed(slot.step, self._host, str(error))  # the copy stays for the next launch
        size = slot.toc_offset + slot.toc_size
        self.entries.append(MirrorFetched(step=slot.step, host=self._host, bytes=size, seconds=0.0))
        return True

    def _fetch(self, who: TaskId, one: MirrorOffer) -> Way:
        size, over = show_size(one.offer.size), threading.Event()
        self._say(f"step {one.step} of the previous run is in the memory of {one.host} ({who}): fetching it ({size})")
        fetch = self._begin_fetch(one, over.set)
        try:
            while not fetch.is_over:
                yield over
        finally:
            if not fetch.is_over:
                fetch.give_up()
            fetch.wait_over()
        if fetch.slot is None:
            return self._failed(one.step, one.host, fetch.error)
        seconds = round(fetch.seconds, 3)
        self.entries.append(MirrorFetched(step=one.step, host=one.host, bytes=one.offer.size, seconds=seconds))
        return True

    def _begin_fetch(self, one: MirrorOffer, ended: Callable[[], None]) -> Fetch:
        make_private_dir(self._start.paths.shm_dir)
        return Fetch(one.host, one.offer, self._start.paths.shm_dir, self._clock, ended)

    def _failed(self, step: int, host: str, why: str) -> bool:
        self._say(f"the snapshot of step {step} on {host} cannot be used: {why}")
        self.entries.append(MirrorNotFetched(step=step, host=host, why=why))
        return False


def _copy_of(slot: SlotInfo) -> Copy:
    return Copy(slot.run, slot.sequence, slot.step)
