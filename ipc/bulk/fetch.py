"""Fetches a snapshot from the memory of another machine into a slot of this one, on a thread of its own.

Used by the watchdog of a member (procsv/watchdog/machines/checkpoint_proxy.py, memory_copy/keeper.py), whose event loop goes on meanwhile, and by a
coordinator that begins (memory_copy/restore.py).  Whatever goes wrong is an error to be read in `error`: nothing is lost by it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.ipc.bulk.receive import receive
from procsv.ipc.bulk.transfer import Transfer
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.shm.incoming_slot import IncomingSlot
from procsv.ipc.shm.slot_file import NoRoom


class WakeFd:
    """A descriptor by which a thread wakes the loop, which looks at every turn whether it is set, and seldom has to ask the kernel."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_set = False

    def wake(self) -> None:
        """From any thread: `fd` can be read."""
        os.eventfd_write(self.fd, 1)
        self._is_set = True  # last: whoever sees it finds something to read

    def clear(self) -> None:
        """`fd` can be read no more, until it is set again; where a thread sets it just now, after one turn more."""
        if self._is_set:
            self._is_set = False  # first: what is set from here on is seen in the next turn
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class Fetch:
    """One snapshot, from its offer to a READY slot, or to an error."""

    def __init__(
        self,
        host: str,
        offer: StateOffer,
        shm_dir: Path,
        clock: Clock,
        ended: Callable[[], None],
        bytes_per_s: float | None = None,
    ) -> None:
        """`host`: the machine that offers it.  `ended` is called on the thread, once `is_over`.  `bytes_per_s`: at most, on the average."""
        self._bytes_per_s = bytes_per_s
        self._host, self._offer, self._shm_dir, self._clock, self._ended = host, offer, shm_dir, clock, ended
        self._lock, self._is_wanted = threading.Lock(), True  # a slot gets its name only while it is wanted
        self.slot: Path | None = None
        self.size = offer.size  # bytes
        self.error = ""
        self.seconds = 0.0
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    def give_up(self) -> None:
        """Nobody wants it any more; the thread ends soon."""
        with self._lock:
            self._is_wanted = False
            if self.slot is not None:
                self.slot.unlink(missing_ok=True)

    def stop(self) -> None:
        """Nothing more is to come; what has come whole stays."""
        with self._lock:
            self._is_wanted = False

    def wait_over(self) -> None:
        """Returns when nothing goes on any more."""
        self._thread.join()

    def _run(self) -> None:
        began_s = self._clock.monotonic()
        try:
            self._fetch()
        except (PeerError, NoRoom, OSError, ValueError) as error:
            self.error = str(error) or type(error).__name__
        finally:  # a bug of ours is an error, too, with its traceback in the log
            self.error = self.error or ("" if self.slot is not None else "it was given up")
            self.seconds = self._clock.monotonic() - began_s
            self.is_over = True
            self._ended()

    def _fetch(self) -> None:
        offer = self._offer
        transfer = Transfer(
            offer.size, self._clock.monotonic(), self._bytes_per_s
        )  # before anything is reserved: a size can be nonsense
        slot = IncomingSlot(self._shm_dir, offer.size)
        # killed here, or anywhere below: a draft stays, which nobody reads, and which the next launch of the member removes
        try:
            receive(self._host, offer, transfer, slot.write_at, self._clock, lambda: self._is_wanted)
            slot.verify_slot(offer.sequence, offer.contents_hash)
            with self._lock:
                self.slot = slot.publish_slot() if self._is_wanted else None
        finally:
            slot.close()
