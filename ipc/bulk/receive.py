"""Receive data that another machine offers, piece by piece, in the calling thread.

fetch.py uses it to fill a slot, and a trainer to copy captures of servers on other machines into its
own slot.
"""

from __future__ import annotations

from collections.abc import Callable

from procsv.base.clock import Clock
from procsv.base.errors import PeerError
from procsv.ipc.bulk.sockets import BulkClient
from procsv.ipc.bulk.transfer import END, GONE, PIECE_BYTES, SILENCE_S_MAX, WINDOW_PIECES, Transfer, read_part, request
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.curve_transport import KeyPair

LOOK_S = 0.1  # how often to check whether the data is still wanted
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
    """Calls `write` with each piece until `transfer` is complete, and always gives the offer back.

    PeerError if the sender does not answer, or if the data is no longer wanted.
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
