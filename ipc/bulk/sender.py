"""Send data in this machine's memory, mostly snapshots, to other machines on a thread.

Three processes of a run on several machines use a sender: the checkpoint service, a parameter
server whose chief is on another machine (procsv/training/servers.py), and a member that keeps a
copy of a snapshot for a starting coordinator (procsv/watchdog/machines/memory_copy/files.py).  Each
creates its sender with its first offer, and listens on no port until then.

One thread at a time calls `offer`, `offer_source` and `close`.  While a slot is offered, the sender
holds a reader's lock on it, so no trainer overwrites it.  If the process is killed, the kernel
releases the lock, and the receiver gets no more answers.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import traceback
from typing import Protocol

import msgspec

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.bulk.sockets import BulkServer
from procsv.ipc.bulk.transfer import GONE, TOKEN_BYTES, WINDOW_PIECES, TransferPiece, part, read_request
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.curve_transport import KeyPair
from procsv.ipc.shm.slot_reader import SlotReader
from procsv.ipc.shm.slot_state import SlotInfo

OFFER_S_MAX = 30.0  # if the receiver is silent for this long, the offer ends and its memory is released
LOOK_S = 1.0  # how often to check for offers whose receiver is silent
JOIN_S_MAX = 2.0

declare("sender.piece")


class Source(Protocol):
    """The data behind an offer.

    The sender's thread reads it, and closes it when the offer ends.
    """

    def read_at(self, offset: int, size: int) -> bytes: ...
    def close(self) -> None: ...


class _Open(msgspec.Struct):
    source: Source
    size: int
    heard_s: float
    silence_s: float | None  # None: OFFER_S_MAX


class Sender:
    def __init__(self, port: int, clock: Clock) -> None:
        """`port`: 0 for any free port.  UserError if it is taken."""
        self._clock, self._keys, self._client_keys = clock, KeyPair.new(), KeyPair.new()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._offers: dict[bytes, _Open] = {}  # the calling thread adds offers; the sender's thread removes them
        self._is_over = False
        try:
            self._server = BulkServer(port, self._keys, self._client_keys.public, self._wake_fd, 2 * WINDOW_PIECES)
        except BaseException:
            os.close(self._wake_fd)
            raise
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def offer(self, slot: SlotInfo, silence_s: float | None = None) -> StateOffer:
        """Locks the slot and returns how to fetch it.

        PeerError if the slot no longer holds the snapshot that `slot` describes, or if the sender
        has ended.  `silence_s`: if the receiver is silent for this long, release the slot; None:
        OFFER_S_MAX.
        """
        size = slot.toc_offset + slot.toc_size
        return self.offer_source(SlotReader(slot), size, slot.sequence, slot.toc_hash, silence_s)

    def offer_source(
        self, source: Source, size: int, sequence: int, contents_hash: int, silence_s: float | None = None
    ) -> StateOffer:
        """Offers any other data of `size` bytes.

        If the sender has ended, this closes `source` and raises PeerError.
        """
        if not self._thread.is_alive():
            source.close()
            raise PeerError("the thread that sends snapshots has ended")
        token, keys = secrets.token_bytes(TOKEN_BYTES), self._client_keys
        self._offers[token] = _Open(source, size, self._clock.monotonic(), silence_s)
        os.eventfd_write(self._wake_fd, 1)
        return StateOffer(
            port=self._server.port,
            server_key=self._keys.public,
            client_public=keys.public,
            client_secret=keys.secret,
            token=token,
            size=size,
            sequence=sequence,
            contents_hash=contents_hash,
        )

    def close(self) -> None:
        self._is_over = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(JOIN_S_MAX)

    # -- the thread ------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._is_over:
                if self._server.wait(LOOK_S if self._offers else None):
                    os.eventfd_read(self._wake_fd)
                while not self._is_over and (received := self._server.receive()) is not None:
                    self._answer(*received)
                self._forget_silent()
        except Exception:  # noqa: BLE001  the receiver uses the state on disk, and this process goes on
            traceback.print_exc(file=sys.stderr)
        finally:
            for token in list(self._offers):
                self._forget(token)
            self._server.close()

    def _answer(self, who: bytes, frames: list[bytes]) -> None:
        if (asked := read_request(frames)) is None:
            return
        token, piece = asked
        offer = self._offers.get(token)
        if offer is None:
            self._server.send(who, [GONE])
        elif not piece.size:
            self._forget(token)
        elif piece.offset + piece.size <= offer.size:
            offer.heard_s = self._clock.monotonic()
            self._server.send(who, part(piece.offset, _read_piece(offer.source, piece)))

    def _forget_silent(self) -> None:
        now_s = self._clock.monotonic()
        for token, offer in list(self._offers.items()):
            if offer.heard_s < now_s - (OFFER_S_MAX if offer.silence_s is None else offer.silence_s):
                self._forget(token)

    def _forget(self, token: bytes) -> None:
        self._offers.pop(token).source.close()


def _read_piece(source: Source, piece: TransferPiece) -> bytes:
    data = source.read_at(piece.offset, piece.size)
    if failpoint("sender.piece"):
        return data[:-1] + bytes([data[-1] ^ 1])
    return data
