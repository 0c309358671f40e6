"""Progress of a snapshot that comes from another machine: the pieces that are missing, and those to be asked for.  Pure.

Used by fetch.py.  Who receives asks for each piece, so neither side ever holds more than a window of them, and one that sends nothing
is noticed.  TCP loses nothing as long as a connection lasts: a piece is asked for again only where nothing at all has come for a while.
"""

from __future__ import annotations

import struct

import msgspec

PIECE_BYTES = 1 << 20
WINDOW_PIECES = 8  # that are asked for and have not come
BYTES_MAX = 1 << 42  # of one snapshot; more is no snapshot
AGAIN_S = 1.5  # without a piece; then those that are missing are asked for again
SILENCE_S_MAX = 5.0  # then nobody is there


class TransferPiece(msgspec.Struct, frozen=True):
    """Bytes of the slot's file."""

    offset: int
    size: int


class Transfer:
    """One snapshot of `size` bytes.  Times are monotonic seconds."""

    def __init__(self, size: int, now_s: float, bytes_per_s: float | None = None) -> None:
        """`bytes_per_s`: no more are asked for, on the average; None: as many as come."""
        if not 0 < size <= BYTES_MAX:
            raise ValueError(f"a snapshot of {size} bytes; it can have 1 to {BYTES_MAX}")
        self.size = size
        self.come_bytes = 0
        self._next = 0  # what was never asked for begins here
        self._asked: dict[int, TransferPiece] = {}  # and has not come, by offset
        self._heard_s = self._asked_s = self._began_s = now_s
        self._bytes_per_s = bytes_per_s

    @property
    def is_complete(self) -> bool:
        return self.come_bytes == self.size

    def next_pieces(self, now_s: float) -> list[TransferPiece]:
        """The pieces to be asked for now."""
        if self._asked and now_s - max(self._heard_s, self._asked_s) >= AGAIN_S:
            self._asked_s = now_s
            return list(self._asked.values())
        pieces: list[TransferPiece] = []
        while self._next < self._due_bytes(now_s) and len(self._asked) < WINDOW_PIECES:
            piece = TransferPiece(self._next, min(PIECE_BYTES, self.size - self._next))
            self._asked[piece.offset] = piece
            self._next += piece.size
            pieces.append(piece)
        return pieces

    def pause_s(self, now_s: float, most_s: float) -> float:
        """For how long there is nothing to be asked for, unless something comes; `most_s` at most."""
        if self._bytes_per_s is None or self._next >= self.size or len(self._asked) >= WINDOW_PIECES:
            return most_s
        return min(most_s, max(0.0, (self._next - self._due_bytes(now_s)) / self._bytes_per_s))

    def _due_bytes(self, now_s: float) -> float:
        if self._bytes_per_s is None:
            return self.size
        return min(self.size, PIECE_BYTES + (now_s - self._began_s) * self._bytes_per_s)

    def came(self, offset: int, size: int, now_s: float) -> bool:
        """Whether those bytes are a piece that is missing, which it is no more; else they are to be dropped."""
        piece = self._asked.get(offset)
        if piece is None or piece.size != size:
            return False
        del self._asked[offset]
        self.come_bytes += size
        self._heard_s = now_s
        return True

    def is_silent(self, now_s: float) -> bool:
        """Whether nobody is there any more."""
        return not self.is_complete and now_s - self._heard_s >= SILENCE_S_MAX


# -- frames ------------------------------------------------------------------------------------------------------
# receiver -> sender   token, [offset, size]       asks for those bytes; of size 0: has all, or wants no more
# sender -> receiver   [offset, size], bytes       they are
# sender -> receiver   "gone"                      there is no such offer (any more)
# They are no messages (messages.py): no envelope, no repetition, no acknowledgement.
TOKEN_BYTES = 16
GONE = b"gone"
_RANGE = struct.Struct("!QI")
END = TransferPiece(0, 0)


def request(token: bytes, piece: TransferPiece) -> list[bytes]:
    return [token, _RANGE.pack(piece.offset, piece.size)]


def read_request(frames: list[bytes]) -> tuple[bytes, TransferPiece] | None:
    """The token, and what is asked for; None if it is no request."""
    if len(frames) != 2 or len(frames[0]) != TOKEN_BYTES or len(frames[1]) != _RANGE.size:
        return None
    offset, size = _RANGE.unpack(frames[1])
    piece = TransferPiece(offset, size)
    return (frames[0], piece) if piece.size <= PIECE_BYTES and piece.offset <= BYTES_MAX else None


def part(offset: int, data: bytes) -> list[bytes]:
    return [_RANGE.pack(offset, len(data)), data]


def read_part(frames: list[bytes]) -> tuple[int, bytes] | None:
    """The offset and the bytes; None if it is no part."""
    if len(frames) != 2 or len(frames[0]) != _RANGE.size:
        return None
    offset, size = _RANGE.unpack(frames[0])
    return (offset, frames[1]) if len(frames[1]) == size else None
