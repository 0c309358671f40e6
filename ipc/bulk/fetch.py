"""Fetch data that another machine offers, in pieces.

`receive` passes each piece to a function of the caller.  A trainer uses it to copy the captures of
parameter servers on other machines into its own slot.

`Fetch` fetches a whole snapshot into a new slot on this machine.  It works on a thread, while the
caller's event loop runs on.  A member's watchdog uses it
(procsv/watchdog/machines/checkpoint_proxy.py, memory_copy/keeper.py), and so does a starting
coordinator (coordinator.py).  If a fetch fails, `Fetch.error` says why, and the sender's
slot stays.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.ipc.bulk.sockets import BulkClient
from procsv.ipc.bulk.transfer import END, GONE, PIECE_BYTES, SILENCE_S_MAX, WINDOW_PIECES, Transfer, read_part, request
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.curve_transport import KeyPair
from procsv.ipc.shm.incoming_slot import IncomingSlot
from procsv.ipc.shm.slot_file import NoRoom

LOOK_S = 0.1  # how often to check whether the caller still wants the data
FRAME_BYTES_MAX = PIECE_BYTES + 1024

Write = Callable[[int, bytes], None]  # (offset, data)


def receive(
    host: str,
    offer: StateOffer,
    transfer: Transfer,
    write: Write,
    clock: Clock,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Calls `write` with each piece until `transfer` is complete.

    PeerError if the sender does not answer or no longer has the offer, or if `is_wanted` returns
    False.  At its end, even after an error, `receive` tells the sender that the offer is no longer
    needed.
    """
    keys = KeyPair(offer.client_public, offer.client_secret)
    client = BulkClient(f"{host}:{offer.port}", keys, offer.server_key, FRAME_BYTES_MAX, 2 * WINDOW_PIECES)
    try:
        _Receiving(host, offer, transfer, write, clock, client).run(is_wanted)
    finally:
        client.send(request(offer.token, END))
        client.close()


class _Receiving:
    def __init__(
        self, host: str, offer: StateOffer, transfer: Transfer, write: Write, clock: Clock, client: BulkClient
    ) -> None:
        self._host, self._offer, self._transfer, self._write = host, offer, transfer, write
        self._clock, self._client = clock, client

    def run(self, is_wanted: Callable[[], bool]) -> None:
        transfer, client = self._transfer, self._client
        while not transfer.is_complete:
            self._ask_pieces()
            client.wait(transfer.pause_s(self._clock.monotonic(), LOOK_S))
            while not transfer.is_complete and (frames := client.receive()) is not None:
                self._take_piece(frames)
                self._ask_pieces()
            if not is_wanted():
                raise PeerError("nobody wants it any more")
            if transfer.is_silent(self._clock.monotonic()):
                come = f"{transfer.come_bytes} of {transfer.size} bytes"
                raise PeerError(f"nothing has come for {SILENCE_S_MAX:g} s, after {come}")

    def _ask_pieces(self) -> None:
        for piece in self._transfer.next_pieces(self._clock.monotonic()):
            self._client.send(request(self._offer.token, piece))

    def _take_piece(self, frames: list[bytes]) -> None:
        if frames == [GONE]:
            raise PeerError(f"{self._host} does not offer it any more")
        part = read_part(frames)
        if part is not None and self._transfer.came(part[0], len(part[1]), self._clock.monotonic()):
            self._write(*part)


class WakeFd:
    """A descriptor through which a thread wakes the event loop.

    The loop calls `clear` in every turn.  `clear` looks at a flag first, so it seldom needs a
    system call.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_set = False

    def wake(self) -> None:
        """Makes `fd` readable.  Any thread may call it."""
        os.eventfd_write(self.fd, 1)
        self._is_set = True  # set last: a `clear` that sees the flag then has something to read

    def clear(self) -> None:
        """Makes `fd` unreadable until the next `wake`.

        If a thread calls `wake` at the same time, the loop may run one extra turn.
        """
        if self._is_set:
            self._is_set = False  # clear first, so that the next turn sees a later `wake`
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class Fetch:
    """Fetches one snapshot on a thread of its own.

    Once `is_over`, `slot` is the path of the READY slot.  If there is none, `slot` is None and
    `error` says why.
    """

    def __init__(
        self,
        host: str,
        offer: StateOffer,
        shm_dir: Path,
        clock: Clock,
        ended: Callable[[], None],
        bytes_per_s: float | None = None,
    ) -> None:
        """`host`: the machine that offers the snapshot.

        `ended`: the thread calls it once `is_over` is True.  `bytes_per_s`: the highest average
        rate; None: no limit.
        """
        self._bytes_per_s = bytes_per_s
        self._host, self._offer, self._shm_dir, self._clock, self._ended = host, offer, shm_dir, clock, ended
        self._lock, self._is_wanted = threading.Lock(), True  # a slot is published only while True
        self.slot: Path | None = None
        self.size = offer.size  # bytes
        self.error = ""
        self.seconds = 0.0
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    def give_up(self) -> None:
        """Gives up the snapshot and removes its slot; the thread ends soon."""
        with self._lock:
            self._is_wanted = False
            if self.slot is not None:
                self.slot.unlink(missing_ok=True)

    def stop(self) -> None:
        """Stops the transfer; a slot that is already published stays."""
        with self._lock:
            self._is_wanted = False

    def wait_over(self) -> None:
        """Waits until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        began_s = self._clock.monotonic()
        try:
            self._fetch()
        except (PeerError, NoRoom, OSError, ValueError) as error:
            self.error = str(error) or type(error).__name__
        finally:  # even after a bug of ours, whose traceback is in the log
            self.error = self.error or ("" if self.slot is not None else "it was given up")
            self.seconds = self._clock.monotonic() - began_s
            self.is_over = True
            self._ended()

    def _fetch(self) -> None:
        offer = self._offer
        # Transfer rejects a nonsensical size before the slot reserves memory.
        transfer = Transfer(offer.size, self._clock.monotonic(), self._bytes_per_s)
        slot = IncomingSlot(self._shm_dir, offer.size)
        # A kill from here on leaves a draft.  Nobody reads it, and the next launch on this machine removes it.
        try:
            receive(self._host, offer, transfer, slot.write_at, self._clock, lambda: self._is_wanted)
            slot.verify_slot(offer.sequence, offer.contents_hash)
            with self._lock:
                self.slot = slot.publish_slot() if self._is_wanted else None
        finally:
            slot.close()
